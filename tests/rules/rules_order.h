/* rules_order.h: order between instructions. An instruction runs after another when both are on one
 * stream, or when a chain of events (RECORD, WAIT) or the host stands between them.
 *
 * rig_race() goes over everything that a rig has run: every two uses of a buffer, and of two
 * buffers that have the same addresses one after the other, must be ordered. So a wait that is
 * missing anywhere shows, whatever it protects.
 */
#ifndef TSR_RULES_ORDER_H
#define TSR_RULES_ORDER_H

#include "tests/rules/rules_testing.h"

enum { RIG_STREAMS = 16, RIG_HOST = 15 };

/* Is instruction b of this iteration sure to start after a has ended? */
static inline bool rig_ordered(const struct rig *r, size_t a, size_t b)
{
    bool after[RIG_STREAMS] = {false}, host = false;
    uint32_t events[512];
    size_t n = 0;
    after[r->now.instrs[a].stream] = true;
    for (size_t i = a + 1; i < b; i++) {
        const struct tsr_instr *x = &r->now.instrs[i];
        bool known = false;
        for (size_t k = 0; k < n; k++)
            known |= events[k] == x->event;
        if (x->kind == TSR_RECORD && (after[x->stream] || host)) {
            assert_true(n < sizeof events / sizeof *events);
            events[n++] = x->event;
        }
        after[x->stream] |= x->kind == TSR_WAIT && known;
        host |=
            (x->kind == TSR_HOST_WAIT && known) || (x->kind == TSR_HOST_READ && after[x->stream]);
    }
    return host || after[r->now.instrs[b].stream];
}

/* ---- races ----------------------------------------------------------------------------------- */

struct rig_clock {
    uint32_t t[RIG_STREAMS];
};

struct rig_buffer {
    bool known, freed;
    uint64_t address, end;
    struct rig_clock reads, writes, before; /* before: uses of what had these addresses */
};

struct rig_race {
    struct rig_clock stream[RIG_STREAMS], host;
    struct rig_clock *events;
    struct rig_buffer *buffers;
    uint32_t n_buffers, n_events;
};

static inline void rig_join(struct rig_clock *into, const struct rig_clock *from)
{
    for (int s = 0; s < RIG_STREAMS; s++)
        if (into->t[s] < from->t[s])
            into->t[s] = from->t[s];
}

static inline bool rig_covers(const struct rig_clock *now, const struct rig_clock *before)
{
    for (int s = 0; s < RIG_STREAMS; s++)
        if (now->t[s] < before->t[s])
            return false;
    return true;
}

static inline bool rig_use(struct rig_race *x, uint32_t stream, const struct tsr_operand *o)
{
    struct rig_buffer *b = &x->buffers[o->buffer];
    const struct rig_clock *now = &x->stream[stream];
    if (b->freed || !rig_covers(now, &b->before) || !rig_covers(now, &b->writes))
        return false;
    if (o->access & TSR_WRITE) {
        if (!rig_covers(now, &b->reads))
            return false;
        b->writes.t[stream] = now->t[stream];
    }
    if (o->access & TSR_READ)
        b->reads.t[stream] = now->t[stream];
    return true;
}

static inline void rig_allocated(struct rig_race *x, const struct tsr_instr *i)
{
    struct rig_buffer *b = &x->buffers[i->buffer];
    *b = (struct rig_buffer){
        .known = true, .address = i->address, .end = i->address + i->block_bytes};
    for (uint32_t k = 0; k < x->n_buffers; k++) {
        struct rig_buffer *old = &x->buffers[k];
        if (!old->known || !old->freed || old->end <= b->address || b->end <= old->address)
            continue;
        rig_join(&b->before, &old->before);
        rig_join(&b->before, &old->reads);
        rig_join(&b->before, &old->writes);
    }
}

static inline bool rig_advance(struct rig_race *x, const struct tsr_instr *i)
{
    uint32_t s = i->kind == TSR_HOST_OP ? RIG_HOST : i->stream;
    bool ok = true;
    rig_join(&x->stream[s], &x->host); /* the host issues it after what it waited for */
    if (i->kind == TSR_ALLOC)
        rig_allocated(x, i);
    else if (i->kind == TSR_FREE)
        x->buffers[i->buffer].freed = true;
    else if (i->kind == TSR_RECORD)
        x->events[i->event] = x->stream[s];
    else if (i->kind == TSR_WAIT)
        rig_join(&x->stream[s], &x->events[i->event]);
    else if (i->kind == TSR_HOST_WAIT)
        rig_join(&x->host, &x->events[i->event]);
    else if (i->kind == TSR_HOST_READ)
        rig_join(&x->host, &x->stream[s]);
    x->stream[s].t[s]++;
    for (uint32_t k = 0; k < i->n_operands; k++)
        ok &= rig_use(x, s, &i->operands[k]);
    if (i->kind == TSR_HOST_OP)
        rig_join(&x->host, &x->stream[s]);
    return ok;
}

/* The first instruction of the whole run that uses memory without being ordered behind an earlier
 * use; -1: there is none. */
static inline long rig_race(const struct rig *r)
{
    struct rig_race x = {.n_buffers = 1, .n_events = 1};
    const struct tsr_program *p = &r->all;
    for (size_t i = 0; i < p->n_instrs; i++) {
        assert_true(p->instrs[i].stream < RIG_HOST);
        if (p->instrs[i].kind == TSR_ALLOC && x.n_buffers <= p->instrs[i].buffer)
            x.n_buffers = p->instrs[i].buffer + 1;
        if (x.n_events <= p->instrs[i].event)
            x.n_events = p->instrs[i].event + 1;
        for (uint32_t k = 0; k < p->instrs[i].n_operands; k++)
            if (x.n_buffers <= p->instrs[i].operands[k].buffer)
                x.n_buffers = p->instrs[i].operands[k].buffer + 1;
    }
    x.events = calloc(x.n_events, sizeof *x.events);
    x.buffers = calloc(x.n_buffers, sizeof *x.buffers);
    assert_true(x.events && x.buffers);
    long bad = -1;
    for (size_t i = 0; i < p->n_instrs && bad < 0; i++)
        if (!rig_advance(&x, &p->instrs[i]))
            bad = (long)i;
    free(x.events);
    free(x.buffers);
    return bad;
}

static inline void rig_print(void *user, const char *text)
{
    (void)user;
    fputs(text, stderr);
}

static inline void rig_no_race(const struct rig *r)
{
    long bad = rig_race(r);
    if (bad < 0)
        return;
    const struct tsr_instr *i = &r->all.instrs[bad];
    struct tsr_program one = {
        .n_instrs = 1, .instrs = &r->all.instrs[bad], .tables = r->all.tables};
    tsr_program_dump(&one, rig_print, NULL);
    fail_msg("instruction %ld (%s, iteration %u) uses memory without an order", bad,
             tsr_instr_kind_name(i->kind), i->origin.iteration);
}

#endif
