/* reach.c: the graph of a program and its closure (reach.h). */
#include "tests/check/study/reach.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOBODY = -1, MAX_STREAMS = 64 };

/* ---- graph ----------------------------------------------------------------------------------- */

struct graph {
    size_t n, words;
    uint64_t *before; /* row i: the instructions that come before i, and i */
};

static void add_edge(struct graph *g, size_t to, long from)
{
    if (from < 0)
        return;
    uint64_t *row = g->before + to * g->words;
    const uint64_t *other = g->before + (size_t)from * g->words;
    for (size_t w = 0; w < g->words; w++)
        row[w] |= other[w];
}

static bool is_before(const struct graph *g, size_t a, size_t b)
{
    return g->before[b * g->words + a / 64] >> (a % 64) & 1;
}

static bool is_call(uint8_t kind)
{
    return (kind >= TSR_ALL_GATHER && kind <= TSR_RECV) || kind == TSR_CUSTOM_COLLECTIVE;
}

static bool is_work(uint8_t kind)
{
    return kind == TSR_COPY || kind == TSR_FILL || kind == TSR_OP || is_call(kind);
}

static bool is_on_stream(uint8_t kind)
{
    return is_work(kind) || kind == TSR_RECORD || kind == TSR_WAIT || kind == TSR_HOST_READ;
}

/* The last instruction before i that records the event. */
static long record_of(const struct sequence *s, size_t i, uint32_t event)
{
    for (size_t k = i; k-- > 0;)
        if (s->v[k].kind == TSR_RECORD && s->v[k].event == event)
            return (long)k;
    return NOBODY;
}

/* Ends of a stream: one instruction, or all calls of a launch. */
enum { MOST_CALLS = 128 };
struct tail {
    long last[MOST_CALLS];
    int n;
};

static void add_edges(struct graph *g, size_t to, const struct tail *tail)
{
    for (int k = 0; k < tail->n; k++)
        add_edge(g, to, tail->last[k]);
}

struct building {
    struct tail streams[MAX_STREAMS];
    struct tail before[MAX_STREAMS]; /* what was there before the launch */
    long host;
    bool in_launch, silent; /* silent: the row is there already */
    size_t launch, stream_launch[MAX_STREAMS];
};

static void place_on_stream(struct graph *g, const struct sequence *s, size_t i, struct building *b)
{
    const struct tsr_instr *instr = &s->v[i];
    struct tail *tail = &b->streams[instr->stream % MAX_STREAMS];
    struct tail *before = &b->before[instr->stream % MAX_STREAMS];
    size_t *launch = &b->stream_launch[instr->stream % MAX_STREAMS];
    bool same = b->in_launch && *launch == b->launch;
    if (!same) {
        *before = *tail;
        tail->n = 0;
    }
    if (!b->silent) {
        add_edge(g, i, b->host);
        add_edges(g, i, before);
        if (instr->kind == TSR_WAIT)
            add_edge(g, i, record_of(s, i, instr->event));
    }
    if (tail->n == MOST_CALLS)
        abort();
    tail->last[tail->n++] = (long)i;
    *launch = b->in_launch ? b->launch : 0;
}

static bool is_of_host(uint8_t kind)
{
    return kind == TSR_HOST_WAIT || kind == TSR_HOST_READ || kind == TSR_HOST_OP;
}

/* Rows before `same` are there already. */
static void graph_build(struct graph *g, const struct sequence *s, size_t same)
{
    struct building *b = calloc(1, sizeof *b);
    if (!b)
        abort();
    b->host = NOBODY;
    memset(g->before + same * g->words, 0, (s->n - same) * g->words * sizeof *g->before);
    for (size_t i = 0; i < s->n; i++) {
        const struct tsr_instr *instr = &s->v[i];
        b->silent = i < same;
        if (!b->silent)
            g->before[i * g->words + i / 64] |= UINT64_C(1) << (i % 64);
        if (instr->kind == TSR_GROUP_BEGIN || instr->kind == TSR_GROUP_END) {
            b->in_launch = instr->kind == TSR_GROUP_BEGIN;
            b->launch += b->in_launch;
        }
        if (is_on_stream(instr->kind))
            place_on_stream(g, s, i, b);
        if (!is_of_host(instr->kind))
            continue;
        if (!b->silent) {
            add_edge(g, i, b->host);
            if (instr->kind == TSR_HOST_WAIT)
                add_edge(g, i, record_of(s, i, instr->event));
        }
        b->host = (long)i;
    }
    free(b);
}

/* ---- memory as atoms: the finest ranges between borders of operands and blocks -----------------
 */

#define PINNED (UINT64_C(1) << 32)
#define HOST   (UINT64_C(2) << 32)
struct place {
    uint64_t space; /* 0: the device; PINNED + block; HOST + buffer */
    uint64_t at;
};

struct atom {
    struct place begin;
    long write;
    long *reads;
    size_t n_reads, cap_reads;
    uint32_t owner;
    bool written;
};

struct life {
    bool live, dropped; /* dropped: freed, and waits for its last use (TSR_MARK_DROPPED) */
    uint8_t space;
    uint16_t stream;
    uint32_t segment;
    uint64_t address, bytes, block;
    size_t born;      /* instruction */
    struct tail tail; /* of its stream then */
    long *uses;
    size_t n_uses, cap_uses;
};

struct memory {
    struct atom *atoms;
    size_t n_atoms;
    struct place *borders;
    size_t n_borders, cap_borders;
    struct life *lives; /* by buffer id */
    size_t n_lives;
};

static int by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->space != y->space)
        return x->space < y->space ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

static void border(struct memory *m, uint64_t space, uint64_t at)
{
    struct place p = {space, at};
    if (!TSR_PUSH(m->borders, m->n_borders, m->cap_borders, p))
        abort();
}

static struct place place_of(const struct life *l, uint32_t id, uint64_t offset)
{
    if (l->space == TSR_SPACE_DEVICE)
        return (struct place){0, l->address + offset};
    if (l->space == TSR_SPACE_PINNED)
        return (struct place){PINNED + l->segment, offset};
    return (struct place){HOST + id, offset};
}

static bool is_alloc(uint8_t kind)
{
    return kind == TSR_ALLOC || kind == TSR_HOST_ALLOC;
}

static bool is_free(uint8_t kind)
{
    return kind == TSR_FREE || kind == TSR_HOST_FREE;
}

static struct life life_of(const struct tsr_instr *instr, size_t i)
{
    return (struct life){.live = true,
                         .space = instr->kind == TSR_ALLOC ? TSR_SPACE_DEVICE : instr->space,
                         .stream = instr->stream,
                         .segment = instr->segment,
                         .address = instr->address,
                         .bytes = instr->bytes,
                         .block = instr->block_bytes,
                         .born = i};
}

/* Every border that any instruction will ever need. */
static void find_borders(struct memory *m, const struct sequence *s)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct tsr_instr *instr = &s->v[i];
        if (is_alloc(instr->kind) && instr->buffer < m->n_lives) {
            struct life *l = &m->lives[instr->buffer];
            *l = life_of(instr, i);
            struct place p = place_of(l, instr->buffer, 0);
            border(m, p.space, p.at);
            border(m, p.space, p.at + l->block);
        }
        for (uint32_t k = 0; k < instr->n_operands; k++) {
            const struct tsr_operand *o = &instr->operands[k];
            if (o->buffer >= m->n_lives || !m->lives[o->buffer].live)
                continue;
            struct place p = place_of(&m->lives[o->buffer], o->buffer, o->offset);
            border(m, p.space, p.at);
            border(m, p.space, p.at + o->bytes);
        }
    }
    for (size_t i = 0; i < m->n_lives; i++)
        m->lives[i].live = false;
}

static void memory_fini(struct memory *m)
{
    for (size_t i = 0; i < m->n_atoms; i++)
        free(m->atoms[i].reads);
    for (size_t i = 0; i < m->n_lives; i++)
        free(m->lives[i].uses);
    free(m->atoms);
    free(m->borders);
    free(m->lives);
    *m = (struct memory){0};
}

/* Nobody has accessed anything yet. */
static void memory_reset(struct memory *m)
{
    for (size_t i = 0; i < m->n_atoms; i++) {
        m->atoms[i].write = NOBODY;
        m->atoms[i].n_reads = 0;
        m->atoms[i].owner = TSR_NO_ID;
        m->atoms[i].written = false;
    }
    for (size_t i = 0; i < m->n_lives; i++) {
        m->lives[i].live = false;
        m->lives[i].n_uses = 0;
    }
}

static void memory_build(struct memory *m, const struct sequence *s)
{
    uint32_t most = 0;
    for (size_t i = 0; i < s->n; i++)
        if (is_alloc(s->v[i].kind) && s->v[i].buffer > most)
            most = s->v[i].buffer;
    m->n_lives = most + 1UL;
    m->lives = calloc(m->n_lives, sizeof *m->lives);
    if (!m->lives)
        abort();
    find_borders(m, s);
    qsort(m->borders, m->n_borders, sizeof *m->borders, by_place);
    m->atoms = calloc(m->n_borders + 1, sizeof *m->atoms);
    if (!m->atoms)
        abort();
    for (size_t i = 0; i < m->n_borders; i++) {
        if (i > 0 && by_place(&m->borders[i], &m->borders[i - 1]) == 0)
            continue;
        m->atoms[m->n_atoms++] =
            (struct atom){.begin = m->borders[i], .write = NOBODY, .owner = TSR_NO_ID};
    }
}

static size_t first_atom(const struct memory *m, struct place p)
{
    size_t low = 0, high = m->n_atoms;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (by_place(&m->atoms[middle].begin, &p) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- the walk -------------------------------------------------------------------------------- */

struct walk {
    const struct sequence *s;
    const struct graph *g;
    struct memory *m;
    struct tail tails[MAX_STREAMS];
    size_t late_use[4096], late_free[4096]; /* uses that the owner's next work must come after */
    uint16_t late_stream[4096];
    size_t n_late;
    size_t iterations; /* begun */
    size_t begins[8];  /* where the iterations begin */
    size_t idle;       /* buffers that the second iteration left and did not use */
    char *why;
    size_t size;
    bool found, in_launch;
};

TSR_PRINTF(2, 3) static void hazard(struct walk *w, const char *fmt, ...)
{
    va_list args;
    if (w->found)
        return;
    w->found = true;
    va_start(args, fmt);
    vsnprintf(w->why, w->size, fmt, args);
    va_end(args);
}

static void must_precede(struct walk *w, long a, size_t b, const char *what)
{
    if (a >= 0 && (size_t)a != b && !is_before(w->g, (size_t)a, b))
        hazard(w, "%s: %ld, %zu", what, a, b);
}

static void touch(struct walk *w, size_t i, const struct tsr_operand *o, bool writes)
{
    const struct life *l = &w->m->lives[o->buffer];
    struct place from = place_of(l, o->buffer, o->offset);
    struct place to = place_of(l, o->buffer, o->offset + o->bytes);
    for (size_t k = first_atom(w->m, from); by_place(&w->m->atoms[k].begin, &to) < 0; k++) {
        struct atom *a = &w->m->atoms[k];
        must_precede(w, a->write, i, "write, then access");
        if (!writes) {
            if (!a->written)
                hazard(w, "unwritten: %zu", i);
            if (!TSR_PUSH(a->reads, a->n_reads, a->cap_reads, (long)i))
                abort();
            continue;
        }
        for (size_t r = 0; r < a->n_reads; r++)
            must_precede(w, a->reads[r], i, "read, then write");
        a->n_reads = 0;
        a->write = (long)i;
        a->written = true;
    }
}

static bool check_operand(struct walk *w, size_t i, const struct tsr_operand *o)
{
    if (o->bytes == 0)
        return false;
    struct life *l = o->buffer < w->m->n_lives ? &w->m->lives[o->buffer] : NULL;
    if (!l || !l->live || o->space != l->space || o->offset + o->bytes > l->bytes) {
        hazard(w, "operand not there, or outside: %zu", i);
        return false;
    }
    if (!TSR_PUSH(l->uses, l->n_uses, l->cap_uses, (long)i))
        abort();
    bool elsewhere = w->s->v[i].kind != TSR_HOST_OP && w->s->v[i].stream != l->stream;
    for (int k = 0; k < l->tail.n && elsewhere && l->space == TSR_SPACE_DEVICE; k++)
        must_precede(w, l->tail.last[k], i, "used too early");
    if (w->s->v[i].kind == TSR_HOST_OP && l->space == TSR_SPACE_DEVICE)
        hazard(w, "the host on device memory: %zu", i);
    return true;
}

/* What travels must be what the operands hold. */
static void check_sizes(struct walk *w, size_t i)
{
    const struct tsr_instr *v = &w->s->v[i];
    uint64_t in = 0, out = 0, size = 1;
    if (!is_call(v->kind) || v->kind == TSR_CUSTOM_COLLECTIVE || v->kind == TSR_ALL_TO_ALL)
        return;
    if (v->comm < w->s->tables->n_comms)
        size = w->s->tables->comms[v->comm].size;
    for (uint32_t k = 0; k < v->n_operands; k++) {
        in += v->operands[k].access == TSR_WRITE ? 0 : v->operands[k].bytes;
        out += v->operands[k].access == TSR_READ ? 0 : v->operands[k].bytes;
    }
    uint64_t want_in = v->kind == TSR_ALL_GATHER ? v->bytes / size : v->bytes;
    uint64_t want_out = v->kind == TSR_REDUCE_SCATTER ? v->bytes / size : v->bytes;
    if (v->kind == TSR_SEND)
        want_out = 0;
    if (v->kind == TSR_RECV)
        want_in = 0;
    if (in != want_in || out != want_out)
        hazard(w, "sizes: %zu", i);
}

static void settle_late(struct walk *w, size_t i)
{
    size_t kept = 0;
    for (size_t k = 0; k < w->n_late; k++) {
        if (w->late_stream[k] == w->s->v[i].stream) {
            must_precede(w, (long)w->late_use[k], i, "freed too early");
            continue;
        }
        w->late_use[kept] = w->late_use[k];
        w->late_stream[kept++] = w->late_stream[k];
    }
    w->n_late = kept;
}

static void on_work(struct walk *w, size_t i)
{
    const struct tsr_instr *v = &w->s->v[i];
    if (v->kind != TSR_HOST_OP)
        settle_late(w, i);
    check_sizes(w, i);
    bool fits[4096];
    for (uint32_t k = 0; k < v->n_operands && k < 4096; k++) {
        fits[k] = check_operand(w, i, &v->operands[k]);
        if (fits[k] && v->operands[k].access != TSR_WRITE)
            touch(w, i, &v->operands[k], false);
    }
    for (uint32_t k = 0; k < v->n_operands && k < 4096; k++)
        if (fits[k] && v->operands[k].access != TSR_READ)
            touch(w, i, &v->operands[k], true);
}

static void on_alloc(struct walk *w, size_t i)
{
    const struct tsr_instr *v = &w->s->v[i];
    struct life *l = &w->m->lives[v->buffer];
    if (l->live) {
        hazard(w, "allocated twice: %zu", i);
        return;
    }
    struct life old = *l;
    *l = life_of(v, i);
    l->uses = old.uses;
    l->cap_uses = old.cap_uses;
    l->tail = w->tails[v->stream % MAX_STREAMS];
    struct place to = place_of(l, v->buffer, l->block);
    for (size_t k = first_atom(w->m, place_of(l, v->buffer, 0));
         by_place(&w->m->atoms[k].begin, &to) < 0; k++) {
        if (w->m->atoms[k].owner != TSR_NO_ID)
            hazard(w, "overlaps: %zu", i);
        w->m->atoms[k].owner = v->buffer;
        w->m->atoms[k].written = false;
    }
}

static void host_must_know(struct walk *w, const struct life *l, size_t i)
{
    for (size_t k = 0; k < l->n_uses; k++) {
        bool known = w->s->v[l->uses[k]].kind == TSR_HOST_OP;
        for (size_t h = i; h-- > 0 && !known;)
            if (is_of_host(w->s->v[h].kind)) {
                known = is_before(w->g, (size_t)l->uses[k], h);
                break;
            }
        if (!known)
            hazard(w, "the host frees too early: %ld, %zu", l->uses[k], i);
    }
}

static void on_free(struct walk *w, size_t i)
{
    const struct tsr_instr *v = &w->s->v[i];
    struct life *l = v->buffer < w->m->n_lives ? &w->m->lives[v->buffer] : NULL;
    if (!l || !l->live) {
        hazard(w, "freed, but not there: %zu", i);
        return;
    }
    l->live = false;
    struct place to = place_of(l, v->buffer, l->block);
    for (size_t k = first_atom(w->m, place_of(l, v->buffer, 0));
         by_place(&w->m->atoms[k].begin, &to) < 0; k++)
        w->m->atoms[k].owner = TSR_NO_ID;
    if (l->space == TSR_SPACE_HOST)
        host_must_know(w, l, i);
    for (size_t k = 0; k < l->n_uses && l->space == TSR_SPACE_DEVICE && w->n_late < 4096; k++) {
        if (w->s->v[l->uses[k]].stream == l->stream)
            continue;
        w->late_use[w->n_late] = (size_t)l->uses[k];
        w->late_stream[w->n_late++] = l->stream;
    }
}

/* Buffers that are there, were not used in the iteration that has just ended, and are not about to
 * go. A leak makes them more. */
static size_t count_idle(const struct walk *w)
{
    size_t n = 0;
    for (size_t i = 0; i < w->m->n_lives; i++) {
        const struct life *l = &w->m->lives[i];
        size_t last = l->n_uses ? (size_t)l->uses[l->n_uses - 1] : 0;
        n += l->live && !l->dropped && last < w->begins[w->iterations];
    }
    return n;
}

static void visit(struct walk *w, size_t i)
{
    const struct tsr_instr *v = &w->s->v[i];
    if (v->kind == TSR_MARK && v->mark == TSR_MARK_ITERATION && w->iterations < 7) {
        if (w->iterations == 2)
            w->idle = count_idle(w);
        w->begins[++w->iterations] = i;
    }
    if (v->kind == TSR_MARK && v->mark == TSR_MARK_DROPPED && v->buffer < w->m->n_lives)
        w->m->lives[v->buffer].dropped = true;
    if (v->kind == TSR_GROUP_BEGIN || v->kind == TSR_GROUP_END)
        w->in_launch = v->kind == TSR_GROUP_BEGIN;
    if (w->in_launch && is_on_stream(v->kind) && !is_call(v->kind))
        hazard(w, "inside a launch: %zu", i);
    bool waits = v->kind == TSR_WAIT || v->kind == TSR_HOST_WAIT;
    if (waits && record_of(w->s, i, v->event) == NOBODY)
        hazard(w, "waits for what is not recorded: %zu", i);
    if (is_alloc(v->kind))
        on_alloc(w, i);
    if (is_free(v->kind))
        on_free(w, i);
    if (is_work(v->kind) || v->kind == TSR_HOST_OP || v->kind == TSR_HOST_READ)
        on_work(w, i);
    if (is_on_stream(v->kind)) {
        struct tail *tail = &w->tails[v->stream % MAX_STREAMS];
        tail->n = 1; /* inside a launch: the last call; uses elsewhere wait for all of it anyway */
        tail->last[0] = (long)i;
    }
}

/* ---- what callers see ------------------------------------------------------------------------ */

struct reach {
    const struct sequence *base;
    struct graph of_base, now;
    struct memory of_base_memory, own_memory; /* own: of a sequence with other operands */
};

static void graph_init(struct graph *g, size_t n)
{
    g->n = n;
    g->words = n / 64 + 1;
    g->before = calloc(n * g->words + 1, sizeof *g->before);
    if (!g->before)
        abort();
}

struct reach *reach_open(const struct sequence *base)
{
    struct reach *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    r->base = base;
    graph_init(&r->of_base, base->n);
    graph_init(&r->now, base->n);
    graph_build(&r->of_base, base, 0);
    memory_build(&r->of_base_memory, base);
    return r;
}

void reach_close(struct reach *r)
{
    free(r->of_base.before);
    free(r->now.before);
    memory_fini(&r->of_base_memory);
    memory_fini(&r->own_memory);
    free(r);
}

/* The borders of the base serve every sequence that has no operand of its own. */
static struct memory *memory_for(struct reach *r, const struct sequence *s)
{
    struct memory *m = s->own_operands ? &r->own_memory : &r->of_base_memory;
    if (s->own_operands) {
        memory_fini(m);
        memory_build(m, s);
    }
    memory_reset(m);
    return m;
}

bool reach_hazard(struct reach *r, const struct sequence *s, char *why, size_t size)
{
    struct walk *w = calloc(1, sizeof *w);
    size_t same = s == r->base ? s->n : s->same;
    if (!w || s->n > r->base->n)
        abort();
    memcpy(r->now.before, r->of_base.before, same * r->now.words * sizeof *r->now.before);
    graph_build(&r->now, s, same);
    *w = (struct walk){.s = s, .g = &r->now, .m = memory_for(r, s), .why = why, .size = size};
    for (size_t i = 0; i < s->n && !w->found; i++)
        visit(w, i);
    if (!w->found && w->iterations == 4 && count_idle(w) != w->idle)
        hazard(w, "leak: %zu, %zu", w->idle, count_idle(w));
    bool found = w->found;
    free(w);
    return found;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static const char *group_name(const struct sequence *s, const struct tsr_instr *v)
{
    return v->origin.group < s->tables->n_groups ? s->tables->groups[v->origin.group] : "";
}

static bool same_call(const struct sequence *a, const struct tsr_instr *x, const struct sequence *b,
                      const struct tsr_instr *y)
{
    return x->kind == y->kind && x->bytes == y->bytes && x->dtype == y->dtype &&
           x->reduce_op == y->reduce_op && x->factor == y->factor &&
           x->origin.phase == y->origin.phase && x->origin.micro == y->origin.micro &&
           strcmp(group_name(a, x), group_name(b, y)) == 0 && (x->peer == y->peer);
}

/* The k-th collective of a communicator by name; NULL: there is none. */
static const struct tsr_instr *nth_call(const struct sequence *s, const char *comm, size_t k)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct tsr_instr *v = &s->v[i];
        bool p2p = v->kind == TSR_SEND || v->kind == TSR_RECV;
        if (is_call(v->kind) && !p2p && v->comm < s->tables->n_comms &&
            strcmp(s->tables->comms[v->comm].name, comm) == 0 && k-- == 0)
            return v;
    }
    return NULL;
}

/* The names of communicators in the order of calls: equal on all ranks means that there is no ring.
 */
static bool same_order(const struct sequence *a, const struct sequence *b)
{
    size_t i = 0, k = 0;
    for (;; i++, k++) {
        while (i < a->n && !is_call(a->v[i].kind))
            i++;
        while (k < b->n && !is_call(b->v[k].kind))
            k++;
        if (i >= a->n || k >= b->n)
            return i >= a->n && k >= b->n;
        const struct tsr_comm *x = &a->tables->comms[a->v[i].comm];
        const struct tsr_comm *y = &b->tables->comms[b->v[k].comm];
        if (strcmp(x->name, y->name) != 0)
            return false;
    }
}

bool reach_ranks_differ(const struct sequence *ranks, uint32_t n, char *why, size_t size)
{
    const struct sequence *first = &ranks[0];
    for (uint16_t c = 0; c < first->tables->n_comms; c++) {
        const struct tsr_comm *comm = &first->tables->comms[c];
        for (uint32_t m = 0; m < comm->size; m++) {
            uint32_t other = tsr_comm_member(comm, 0, m);
            for (size_t k = 0; other < n; k++) {
                const struct tsr_instr *x = nth_call(first, comm->name, k);
                const struct tsr_instr *y = nth_call(&ranks[other], comm->name, k);
                if (!x && !y)
                    break;
                if (x && y && same_call(first, x, &ranks[other], y))
                    continue;
                snprintf(why, size, "call %zu of %s on rank %u", k, comm->name, other);
                return true;
            }
        }
    }
    for (uint32_t r = 1; r < n; r++)
        if (!same_order(first, &ranks[r])) {
            snprintf(why, size, "order of communicators on rank %u", r);
            return true;
        }
    return false;
}
