/* check_text.c: findings in words: instructions, streams and buffers by name, the list, and which
 * instructions must be remembered because a finding may still name them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/check/check_impl.h"

static const char *kind_name(int kind)
{
    static const char *const names[TSR_N_CHECK_KINDS] = {
        "race", "reuse", "early-free", "early-use", "use-after-free", "unwritten",
        "leak", "event", "structure",  "mismatch",  "deadlock"};
    return kind >= 0 && kind < TSR_N_CHECK_KINDS ? names[kind] : "?";
}

/* ---- parts of a sentence --------------------------------------------------------------------- */

const char *tsr__lane_name(const struct tsr__check_rank *r, uint32_t lane)
{
    if (lane == TSR__HOST_LANE)
        return "the host";
    if (r->tables && lane - 1 < r->tables->n_streams)
        return r->tables->streams[lane - 1].name;
    return "an unknown stream";
}

static const char *kernel_name(const struct tsr__note *note)
{
    return note->name && *note->name ? note->name : tsr_instr_kind_name(note->kind);
}

/* "init #12 chunk_cat" */
const char *tsr__short(const struct tsr__check_rank *r, uint32_t i, char *out, size_t size)
{
    const struct tsr__note *note = &r->notes[i];
    const char *section = r->sections[note->section];
    if (section)
        snprintf(out, size, "%s #%" PRIu32 " %s", section, note->number, kernel_name(note));
    else
        snprintf(out, size, "iteration %u #%" PRIu32 " %s", note->origin.iteration, note->number,
                 kernel_name(note));
    return out;
}

static bool uses_stream(uint8_t kind)
{
    return kind != TSR_HOST_OP && kind != TSR_HOST_WAIT && kind != TSR_HOST_ALLOC &&
           kind != TSR_HOST_FREE && kind != TSR_PIN && kind != TSR_MARK;
}

TSR_PRINTF(4, 5) static void add(char *out, size_t size, size_t *n, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int k = vsnprintf(out + *n, size - *n, fmt, args);
    va_end(args);
    if (k > 0)
        *n = tsr_min_u64(*n + (size_t)k, size - 1);
}

/* "init #12 OP chunk_cat, stream default, module layers.0, group layers.0, backward, ..." */
const char *tsr__full(const struct tsr__check_rank *r, uint32_t i, char *out, size_t size)
{
    const struct tsr__note *note = &r->notes[i];
    const struct tsr_origin *o = &note->origin;
    const struct tsr_tables *t = r->tables;
    const char *section = r->sections[note->section];
    size_t n = 0;
    out[0] = '\0';
    if (section)
        add(out, size, &n, "%s", section);
    else
        add(out, size, &n, "iteration %u", o->iteration);
    add(out, size, &n, " #%" PRIu32 " %s", note->number, tsr_instr_kind_name(note->kind));
    if (note->name)
        add(out, size, &n, " %s", note->name);
    if (uses_stream(note->kind))
        add(out, size, &n, ", stream %s", tsr__lane_name(r, note->stream + 1U));
    if (t && note->comm != UINT16_MAX && note->comm < t->n_comms)
        add(out, size, &n, ", communicator %s", t->comms[note->comm].name);
    if (t && o->module < t->n_modules)
        add(out, size, &n, ", module %s",
            t->modules[o->module][0] ? t->modules[o->module] : "(root)");
    if (t && o->group < t->n_groups)
        add(out, size, &n, ", group %s", t->groups[o->group][0] ? t->groups[o->group] : "(root)");
    add(out, size, &n, ", phase %s, micro-batch %u", tsr_phase_name(o->phase), o->micro);
    if (o->hook != TSR_HOOK_NONE)
        add(out, size, &n, ", hook %s", tsr_hook_name(o->hook));
    if (o->recompute)
        add(out, size, &n, ", recomputed");
    return out;
}

const char *tsr__buffer_text(const struct tsr__check_rank *r, uint32_t id, char *out, size_t size)
{
    static const char *const spaces[] = {"", "host ", "pinned "};
    uint32_t i = tsr_map_get(&r->ids, id);
    if (i != TSR__NONE) {
        const struct tsr__buffer *b = &r->buffers[i];
        snprintf(out, size, "%sbuffer %" PRIu32 " (%s, %llu bytes)", spaces[b->space % 3], id,
                 tsr_category_name(b->category), (unsigned long long)b->bytes);
        return out;
    }
    for (size_t k = 0; k < TSR__N_FREED && k < r->n_freed; k++)
        if (r->freed[k].id == id) {
            snprintf(out, size, "the freed buffer %" PRIu32 " (%s, %llu bytes)", id,
                     tsr_category_name(r->freed[k].category),
                     (unsigned long long)r->freed[k].bytes);
            return out;
        }
    snprintf(out, size, "buffer %" PRIu32, id);
    return out;
}

/* What two findings must share to count as one: not the iteration, not the module. */
uint64_t tsr__note_key(const struct tsr__check_rank *r, uint32_t i)
{
    const struct tsr__note *note = &r->notes[i];
    const char *name = kernel_name(note);
    uint64_t key = tsr_hash_bytes(TSR_HASH_INIT, name, strlen(name));
    key = tsr_hash_u64(key, note->stream);
    return tsr_hash_u64(key, note->origin.phase);
}

/* ---- the list -------------------------------------------------------------------------------- */

void tsr__check_no_memory(struct tsr__check_rank *r)
{
    if (r->status == TSR_OK)
        r->status = tsr_fail(TSR_ENOMEM, "no memory left to check %llu instructions",
                             (unsigned long long)r->n_instrs);
}

static struct tsr_finding *seen_before(struct tsr_checker *c, uint64_t key)
{
    for (size_t i = 0; i < c->n_seen; i++)
        if (c->seen[i] == key && c->seen_finding[i] != TSR__NONE)
            return &c->findings[c->seen_finding[i]];
    return NULL;
}

static bool is_counted(const struct tsr_checker *c, uint64_t key)
{
    for (size_t i = 0; i < c->n_seen; i++)
        if (c->seen[i] == key)
            return true;
    return false;
}

void tsr__find_text(struct tsr_checker *c, uint32_t rank, enum tsr_check_kind kind, uint64_t key,
                    const char *headline, const char *details)
{
    key = tsr_hash_u64(key, kind);
    struct tsr_finding *old = seen_before(c, key);
    if (old)
        old->times++;
    if (is_counted(c, key))
        return;
    size_t most = c->config.max_findings ? c->config.max_findings : 64;
    struct tsr_finding f = {.kind = (uint8_t)kind, .rank = rank, .times = 1};
    bool keep = c->n_findings < most;
    if (keep) {
        f.headline =
            tsr_arena_printf(&c->arena, "rank %u: %s: %s", rank, kind_name(kind), headline);
        f.details = tsr_arena_strdup(&c->arena, details);
        keep = f.headline && f.details && TSR_PUSH(c->findings, c->n_findings, c->cap_findings, f);
    }
    if (c->n_seen < TSR__MAX_SEEN) {
        c->seen[c->n_seen] = key;
        c->seen_finding[c->n_seen++] = keep ? (uint32_t)(c->n_findings - 1) : TSR__NONE;
    }
    c->counts.findings++;
    c->counts.by_kind[kind]++;
}

void tsr__find(struct tsr__check_rank *r, enum tsr_check_kind kind, uint64_t key,
               const uint32_t *notes, size_t n_notes, const char *fmt, ...)
{
    char headline[4 * TSR__TEXT], details[4 * TSR__TEXT], text[TSR__TEXT];
    size_t n = 0;
    va_list args;
    details[0] = '\0';
    if (is_counted(r->checker, tsr_hash_u64(key, kind))) { /* no text is needed */
        tsr__find_text(r->checker, r->rank, kind, key, "", "");
        return;
    }
    va_start(args, fmt);
    vsnprintf(headline, sizeof headline, fmt, args);
    va_end(args);
    for (size_t i = 0; i < n_notes; i++)
        add(details, sizeof details, &n, "    %s\n", tsr__full(r, notes[i], text, sizeof text));
    tsr__find_text(r->checker, r->rank, kind, key, headline, details);
}

/* ---- which notes are kept -------------------------------------------------------------------- */

/* Forgets instructions that no finding can name any more, so that a long run can be
 * checked as it goes. */

enum { MANY = 1 << 20 };

/* Calls fn for every place that holds the number of a note. */
static void each_note(struct tsr__check_rank *r, void (*fn)(void *user, uint32_t *note), void *user)
{
    for (size_t i = 0; i < r->n_regions; i++)
        for (size_t k = 0; k < r->regions[i].n; k++) {
            struct tsr__span *span = &r->regions[i].spans[k];
            if (span->write.epoch)
                fn(user, &span->write.note);
            for (uint32_t reader = span->reads; reader != TSR__NONE;
                 reader = r->readers[reader].next)
                fn(user, &r->readers[reader].stamp.note);
        }
    for (size_t i = 0; i < r->ids.n_slots; i++)
        if (r->ids.keys[i] != TSR__NONE)
            fn(user, &r->buffers[r->ids.values[i]].note);
    for (size_t i = 0; i < r->n_freed && i < TSR__N_FREED; i++)
        fn(user, &r->freed[i].note);
    for (size_t i = 0; i < r->n_pending; i++) {
        fn(user, &r->pending[i].use.note);
        fn(user, &r->pending[i].free_note);
    }
    for (size_t i = 0; i < r->n_calls; i++)
        fn(user, &r->calls[i].note);
    for (size_t i = 0; i < r->n_refused; i++)
        fn(user, &r->refused[i].note);
    fn(user, &r->launch_note);
}

static void mark_kept(void *user, uint32_t *note)
{
    uint32_t *to = user;
    to[*note] = 1;
}

static void renumber(void *user, uint32_t *note)
{
    const uint32_t *to = user;
    *note = to[*note];
}

void tsr__notes_forget(struct tsr__check_rank *r)
{
    if (r->n_notes < MANY || r->n_notes < 2 * r->n_kept_notes)
        return;
    uint32_t *to = calloc(r->n_notes, sizeof *to);
    size_t n = 0;
    if (!to)
        return; /* another time */
    each_note(r, mark_kept, to);
    for (size_t i = 0; i < r->n_notes; i++) {
        if (!to[i])
            continue;
        to[i] = (uint32_t)n;
        r->notes[n++] = r->notes[i];
    }
    each_note(r, renumber, to);
    free(to);
    r->n_notes = r->n_kept_notes = n;
}
