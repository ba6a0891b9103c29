/* rules_queries.h: questions about what a rig (rules_testing.h) has recorded: events, instructions,
 * and bytes that were live.
 */
#ifndef TSR_RULES_QUERIES_H
#define TSR_RULES_QUERIES_H

#include "tests/rules/rules_testing.h"

/* ---- questions about events ------------------------------------------------------------------ */

static inline bool rig_has_token(const char *text, const char *token, size_t len)
{
    for (const char *at = text; (at = strstr(at, token)) != NULL; at++)
        if (at == text || at[-1] == ' ')
            if (strlen(at) >= len && (at[len] == ' ' || at[len] == 0))
                return true;
    return false;
}

static inline bool rig_matches(const char *text, const char *query)
{
    char token[256];
    for (bool first = true; *query; first = false) {
        size_t len = strcspn(query, " ");
        assert_true(len < sizeof token);
        memcpy(token, query, len);
        token[len] = 0;
        if (first ? strncmp(text, token, len) != 0 || (text[len] != ' ' && text[len] != 0)
                  : !rig_has_token(text, token, len))
            return false;
        query += len + (query[len] == ' ');
    }
    return true;
}

static inline int rig_count(const struct rig *r, const char *query)
{
    int n = 0;
    for (size_t i = 0; i < r->n_events; i++)
        n += rig_matches(r->events[i].text, query);
    return n;
}

static inline void rig_print_events(const struct rig *r)
{
    for (size_t i = 0; i < r->n_events; i++)
        fprintf(stderr, "%3zu %s\n", i, r->events[i].text);
}

/* The nth event (from 0) that matches; the test fails without it. */
static inline size_t rig_event(const struct rig *r, const char *query, int nth)
{
    for (size_t i = 0; i < r->n_events; i++)
        if (rig_matches(r->events[i].text, query) && nth-- == 0)
            return i;
    rig_print_events(r);
    fail_msg("no event '%s'", query);
    return 0;
}

static inline const char *rig_short(const char *text, char *out, size_t size)
{
    const char *g = strstr(text, " g=");
    size_t len = g ? strcspn(g + 3, " ") : 0;
    if (len > 7 && strncmp(g + 3, "layers.", 7) == 0) {
        g += 7;
        len -= 7;
    }
    snprintf(out, size, "%.*s", (int)len, g ? g + 3 : "");
    return out;
}

/* What happened in a phase, as section 3.16 writes it. `ops`: those of AG (all-gather issued), W
 * (copy-out), F (reshard), RS (reduction), POST (post-backward) to show. phase NULL: all. */
static inline const char *rig_trace(struct rig *r, const char *phase, const char *ops)
{
    static const char *const names[][2] = {{"AG", "all_gather"},
                                           {"W", "wait_unshard res=copy_out"},
                                           {"W", "wait_unshard res=local"},
                                           {"F", "reshard res=sharded"},
                                           {"F", "reshard res=post_forward"},
                                           {"RS", "reduce"},
                                           {"AR", "all_reduce"},
                                           {"POST", "post_backward"}};
    size_t used = 0;
    r->text[0] = 0;
    for (size_t i = 0; i < r->n_events; i++) {
        const struct rig_event *ev = &r->events[i];
        char group[64];
        if (phase && strcmp(tsr_phase_name(ev->phase), phase) != 0)
            continue;
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            if (rig_has_token(ops, names[k][0], strlen(names[k][0])) &&
                rig_matches(ev->text, names[k][1]))
                used += (size_t)snprintf(r->text + used, sizeof r->text - used, "%s%s %s",
                                         used ? ", " : "", names[k][0],
                                         rig_short(ev->text, group, sizeof group));
    }
    return r->text;
}

/* ---- questions about instructions ------------------------------------------------------------ */

/* What an instruction must be; NULL and 0 do not matter. */
struct rig_want {
    int kind;
    const char *group, *work, *category, *phase, *stream, *comm;
};

static inline bool rig_is(const struct rig *r, const struct tsr_instr *i, struct rig_want w)
{
    const struct tsr_tables *t = tsr_engine_tables(r->e);
    const char *group = i->origin.group == TSR_NO_ID ? "" : t->groups[i->origin.group];
    if (i->kind != w.kind || (w.work && (!i->work || strcmp(i->work->name, w.work) != 0)) ||
        (w.category && strcmp(tsr_category_name(i->category), w.category) != 0) ||
        (w.phase && strcmp(tsr_phase_name(i->origin.phase), w.phase) != 0) ||
        (w.stream && strcmp(t->streams[i->stream].name, w.stream) != 0) ||
        (w.comm && (i->comm == UINT16_MAX || strcmp(t->comms[i->comm].name, w.comm) != 0)))
        return false;
    if (w.group && strcmp(w.group, "root") == 0)
        return i->origin.group != TSR_NO_ID && !*group;
    return !w.group || strcmp(group, w.group) == 0;
}

static inline int rig_count_instrs(const struct rig *r, struct rig_want want)
{
    int n = 0;
    for (size_t i = 0; i < r->now.n_instrs; i++)
        n += rig_is(r, &r->now.instrs[i], want);
    return n;
}

static inline size_t rig_find_instr(const struct rig *r, int nth, struct rig_want want)
{
    for (size_t i = 0; i < r->now.n_instrs; i++)
        if (rig_is(r, &r->now.instrs[i], want) && nth-- == 0)
            return i;
    fail_msg("no %s instruction: group %s, work %s, category %s", tsr_instr_kind_name(want.kind),
             want.group ? want.group : "any", want.work ? want.work : "any",
             want.category ? want.category : "any");
    return 0;
}

/* RIG_COUNT(&r, .kind = TSR_ALL_GATHER, .group = "layers.0"); RIG_FIND(&r, nth, ...): its index. */
#define RIG_COUNT(rig, ...)     rig_count_instrs((rig), (struct rig_want){__VA_ARGS__})
#define RIG_FIND(rig, nth, ...) rig_find_instr((rig), (nth), (struct rig_want){__VA_ARGS__})

static inline const struct tsr_instr *rig_at(const struct rig *r, size_t i)
{
    return &r->now.instrs[i];
}

/* Where a buffer is freed, at or after instruction `from`; SIZE_MAX: not in this iteration. */
static inline size_t rig_freed(const struct rig *r, uint32_t buffer, size_t from)
{
    for (size_t i = from; i < r->now.n_instrs; i++)
        if (r->now.instrs[i].kind == TSR_FREE && r->now.instrs[i].buffer == buffer)
            return i;
    return SIZE_MAX;
}

/* Requested device bytes of a category just before instruction `at` of this iteration. */
static inline uint64_t rig_level(const struct rig *r, size_t at, enum tsr_category category)
{
    uint64_t level = r->level[category];
    for (size_t i = 0; i < at; i++) {
        const struct tsr_instr *instr = &r->now.instrs[i];
        if (instr->kind == TSR_ALLOC && instr->category == category)
            level += instr->bytes;
        if (instr->kind == TSR_FREE && instr->category == category)
            level -= instr->bytes;
    }
    return level;
}

#endif
