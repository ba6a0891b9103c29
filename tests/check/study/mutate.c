/* mutate.c: mutations of programs (mutate.h). */
#include "tests/check/study/mutate.h"

#include <stdlib.h>
#include <string.h>

const char *mutation_name(int kind)
{
    static const char *const names[N_MUTATION_KINDS] = {"all waits of a number dropped",
                                                        "wait dropped",
                                                        "host wait dropped",
                                                        "record dropped",
                                                        "event dropped",
                                                        "record earlier",
                                                        "free right behind the last use",
                                                        "free before the last use",
                                                        "free dropped",
                                                        "other stream",
                                                        "operand halved",
                                                        "operand shifted",
                                                        "calls swapped",
                                                        "call dropped",
                                                        "call of half the size",
                                                        "operand dropped",
                                                        "slots swapped",
                                                        "another buffer"};
    return names[kind];
}

/* ---- what can be mutated --------------------------------------------------------------------- */

static bool is_call(uint8_t kind)
{
    return (kind >= TSR_ALL_GATHER && kind <= TSR_RECV) || kind == TSR_CUSTOM_COLLECTIVE;
}

static bool is_work(uint8_t kind)
{
    return kind == TSR_COPY || kind == TSR_FILL || kind == TSR_OP || is_call(kind);
}

static bool is_free(uint8_t kind)
{
    return kind == TSR_FREE || kind == TSR_HOST_FREE;
}

struct list {
    struct mutation *v;
    size_t n, cap;
};

static void add(struct list *l, enum mutation_kind kind, size_t at, size_t second)
{
    struct mutation m = {kind, at, second};
    if (!TSR_PUSH(l->v, l->n, l->cap, m))
        abort();
}

/* The next call on the communicator, outside of launches. */
static size_t next_call(const struct recorded *r, size_t i)
{
    const struct tsr_instr *v = r->sequences[0].v;
    for (size_t k = i + 1; k < r->end; k++)
        if (is_call(v[k].kind) && v[k].comm == v[i].comm)
            return k;
    return r->end;
}

/* Of values: slots differ, or an operand may lie elsewhere. */
static void add_values(struct list *l, const struct recorded *r, size_t i)
{
    const struct tsr_instr *v = &r->sequences[0].v[i];
    if (v->kind == TSR_SEND || v->kind == TSR_RECV)
        add(l, SIZED_CALL, i, 0);
    bool kernel = v->kind == TSR_OP || v->kind == TSR_COPY || v->kind == TSR_HOST_OP;
    if (!kernel || v->n_operands == 0)
        return;
    add(l, DROP_OPERAND, i, i % v->n_operands);
    add(l, OTHER_BUFFER, i, i % v->n_operands);
    if (v->n_operands > 1)
        add(l, OTHER_SLOT, i, i % v->n_operands);
}

static void add_of(struct list *l, const struct recorded *r, size_t i)
{
    const struct tsr_instr *v = &r->sequences[0].v[i];
    bool host = v->kind == TSR_HOST_OP;
    if (v->kind == TSR_WAIT)
        add(l, DROP_WAIT, i, 0);
    if (v->kind == TSR_HOST_WAIT || v->kind == TSR_HOST_READ)
        add(l, DROP_HOST_WAIT, i, 0);
    if (v->kind == TSR_RECORD) {
        add(l, DROP_RECORD, i, 0);
        add(l, DROP_EVENT, i, 0);
        add(l, EARLY_RECORD, i, 0);
    }
    if (is_free(v->kind)) {
        add(l, EARLY_FREE, i, 0);
        add(l, EARLIER_FREE, i, 0);
        add(l, DROP_FREE, i, 0);
    }
    uint16_t n_streams = r->sequences[0].tables->n_streams;
    if (is_work(v->kind) && n_streams > 1)
        add(l, OTHER_STREAM, i, (v->stream + 1 + i % (n_streams - 1U)) % n_streams);
    if ((is_work(v->kind) || host) && v->n_operands > 0) {
        add(l, SHORT_OPERAND, i, i % v->n_operands);
        add(l, SHIFTED_OPERAND, i, (i / 2) % v->n_operands);
    }
    bool p2p = v->kind == TSR_SEND || v->kind == TSR_RECV;
    if (is_call(v->kind) && !p2p && next_call(r, i) < r->end)
        add(l, SWAPPED_CALLS, i, next_call(r, i));
    if (is_call(v->kind))
        add(l, DROP_CALL, i, 0);
    if (is_call(v->kind) && !p2p) /* the second opinion does not match messages */
        add(l, SIZED_CALL, i, 0);
}

/* Every number that the iteration has. */
static void add_numbers(struct list *l, const struct recorded *r)
{
    bool has[N_WAITS] = {false};
    for (size_t i = r->begin; i < r->end; i++)
        has[wait_number(&r->sequences[0], i)] = true;
    for (size_t k = 1; k < N_WAITS; k++)
        if (has[k])
            add(l, DROP_NUMBER, 0, k);
}

struct mutation *mutations_of(const struct recorded *r, bool with_values, size_t *n)
{
    struct list l = {0};
    add_numbers(&l, r);
    for (size_t i = r->begin; i < r->end; i++) {
        add_of(&l, r, i);
        if (with_values)
            add_values(&l, r, i);
    }
    *n = l.n;
    return l.v;
}

/* ---- changing -------------------------------------------------------------------------------- */

static void changes_at(struct mutant *m, size_t i)
{
    m->sequence.same = i < m->sequence.same ? i : m->sequence.same;
}

static void drop(struct mutant *m, size_t i)
{
    changes_at(m, i);
    memmove(m->v + i, m->v + i + 1, (m->sequence.n - i - 1) * sizeof *m->v);
    m->sequence.n--;
}

/* Instruction `from` comes to stand right before `to` <= from. */
static void move_up(struct mutant *m, size_t from, size_t to)
{
    struct tsr_instr moved = m->v[from];
    changes_at(m, to);
    memmove(m->v + to + 1, m->v + to, (from - to) * sizeof *m->v);
    m->v[to] = moved;
}

static bool uses(const struct tsr_instr *v, uint32_t buffer)
{
    for (uint32_t k = 0; k < v->n_operands; k++)
        if (v->operands[k].buffer == buffer)
            return true;
    return (v->kind == TSR_ALLOC || v->kind == TSR_HOST_ALLOC) && v->buffer == buffer;
}

static bool free_earlier(struct mutant *m, size_t at, bool before)
{
    size_t k = at;
    while (k > 0 && !uses(&m->v[k - 1], m->v[at].buffer))
        k--;
    if (k == 0 || (!before && k == at))
        return false;
    move_up(m, at, before ? k - 1 : k);
    return true;
}

static bool record_earlier(struct mutant *m, size_t at)
{
    size_t k = at;
    while (k > 0 && !(is_work(m->v[k - 1].kind) && m->v[k - 1].stream == m->v[at].stream))
        k--;
    if (k == 0)
        return false;
    move_up(m, at, k - 1);
    return true;
}

static bool drop_event(struct mutant *m, size_t at)
{
    uint32_t event = m->v[at].event;
    for (size_t i = m->sequence.n; i-- > 0;) {
        const struct tsr_instr *v = &m->v[i];
        bool names_it = v->kind == TSR_RECORD || v->kind == TSR_WAIT || v->kind == TSR_HOST_WAIT;
        if (names_it && v->event == event)
            drop(m, i);
    }
    return true;
}

/* Operands of instruction `at` that are the mutant's own. */
static struct tsr_operand *own_operands(struct mutant *m, size_t at)
{
    struct tsr_instr *v = &m->v[at];
    if (m->cap_operands < v->n_operands) {
        free(m->operands);
        m->operands = malloc(v->n_operands * sizeof *m->operands);
        m->cap_operands = v->n_operands;
        if (!m->operands)
            abort();
    }
    memcpy(m->operands, v->operands, v->n_operands * sizeof *m->operands);
    v->operands = m->operands;
    changes_at(m, at);
    m->sequence.own_operands = true;
    return m->operands;
}

static bool change_operand(struct mutant *m, const struct mutation *what)
{
    if (m->v[what->at].operands[what->second].bytes < 2)
        return false;
    struct tsr_operand *o = &own_operands(m, what->at)[what->second];
    if (what->kind == SHORT_OPERAND)
        o->bytes /= 2;
    else
        o->offset += o->bytes / 2;
    return true;
}

static bool drop_operand(struct mutant *m, const struct mutation *what)
{
    struct tsr_operand *o = own_operands(m, what->at);
    struct tsr_instr *v = &m->v[what->at];
    memmove(o + what->second, o + what->second + 1, (v->n_operands - what->second - 1) * sizeof *o);
    v->n_operands--;
    return true;
}

static bool swap_slots(struct mutant *m, const struct mutation *what)
{
    const struct tsr_instr *v = &m->v[what->at];
    size_t a = what->second, b = (a + 1) % v->n_operands;
    if (v->operands[a].slot == v->operands[b].slot)
        return false;
    struct tsr_operand *o = own_operands(m, what->at);
    uint8_t kept = o[a].slot;
    o[a].slot = o[b].slot;
    o[b].slot = kept;
    return true;
}

/* The latest buffer before that is as large, in the same memory, and still there. */
static bool other_buffer(struct mutant *m, const struct mutation *what)
{
    const struct tsr_operand *old = &m->v[what->at].operands[what->second];
    uint8_t kind = old->space == TSR_SPACE_DEVICE ? TSR_ALLOC : TSR_HOST_ALLOC;
    for (size_t i = what->at; i-- > 0;) {
        const struct tsr_instr *alloc = &m->v[i];
        bool lives = alloc->kind == kind && alloc->bytes >= old->offset + old->bytes &&
                     alloc->buffer != old->buffer &&
                     (kind == TSR_ALLOC || alloc->space == old->space);
        for (size_t k = i; k < what->at && lives; k++)
            lives = !(is_free(m->v[k].kind) && m->v[k].buffer == alloc->buffer);
        if (!lives)
            continue;
        uint32_t buffer = alloc->buffer;
        own_operands(m, what->at)[what->second].buffer = buffer;
        return true;
    }
    return false;
}

/* The call says so, and its operands fit. */
static bool halve_call(struct mutant *m, size_t at)
{
    struct tsr_instr *v = &m->v[at];
    if (v->bytes < 2 || v->n_operands == 0)
        return false;
    struct tsr_operand *o = own_operands(m, at);
    for (uint32_t i = 0; i < v->n_operands; i++)
        o[i].bytes /= 2;
    v->bytes /= 2;
    return true;
}

static bool swap_calls(struct mutant *m, size_t a, size_t b)
{
    struct tsr_instr kept = m->v[a];
    changes_at(m, a);
    m->v[a] = m->v[b];
    m->v[b] = kept;
    return true;
}

static bool drop_number(struct mutant *m, const struct recorded *r, size_t number)
{
    for (size_t i = r->end; i-- > r->begin;)
        if ((size_t)wait_number(&r->sequences[0], i) == number)
            drop(m, i);
    return true;
}

static bool change(struct mutant *m, const struct recorded *r, const struct mutation *what)
{
    switch (what->kind) {
    case DROP_NUMBER:
        return drop_number(m, r, what->second);
    case DROP_WAIT:
    case DROP_HOST_WAIT:
    case DROP_RECORD:
    case DROP_FREE:
    case DROP_CALL:
        drop(m, what->at);
        return true;
    case DROP_EVENT:
        return drop_event(m, what->at);
    case EARLY_RECORD:
        return record_earlier(m, what->at);
    case EARLY_FREE:
        return free_earlier(m, what->at, false);
    case EARLIER_FREE:
        return free_earlier(m, what->at, true);
    case OTHER_STREAM:
        changes_at(m, what->at);
        m->v[what->at].stream = (uint16_t)what->second;
        return true;
    case SHORT_OPERAND:
    case SHIFTED_OPERAND:
        return change_operand(m, what);
    case SWAPPED_CALLS:
        return swap_calls(m, what->at, what->second);
    case SIZED_CALL:
        return halve_call(m, what->at);
    case DROP_OPERAND:
        return drop_operand(m, what);
    case OTHER_SLOT:
        return swap_slots(m, what);
    case OTHER_BUFFER:
        return other_buffer(m, what);
    default:
        return false;
    }
}

bool mutate(const struct recorded *r, const struct mutation *what, struct mutant *out)
{
    const struct sequence *s = &r->sequences[0];
    if (out->cap < s->n) {
        free(out->v);
        out->v = malloc(s->n * sizeof *out->v);
        out->cap = s->n;
        if (!out->v)
            abort();
    }
    memcpy(out->v, s->v, s->n * sizeof *out->v);
    out->sequence = *s;
    out->sequence.v = out->v;
    out->sequence.same = s->n;
    return change(out, r, what);
}

void mutant_fini(struct mutant *m)
{
    free(m->v);
    free(m->operands);
    *m = (struct mutant){0};
}

/* ---- W1 ... W15 ------------------------------------------------------------------------------ */

static bool is_stream(const struct sequence *s, uint16_t stream, const char *name)
{
    return strcmp(s->tables->streams[stream].name, name) == 0;
}

static long find_record(const struct sequence *s, size_t before, uint32_t event)
{
    for (size_t k = before; k-- > 0;)
        if (s->v[k].kind == TSR_RECORD && s->v[k].event == event)
            return (long)k;
    return -1;
}

/* What the stream did last before instruction i, over records and waits. */
static const struct tsr_instr *last_work(const struct sequence *s, size_t i)
{
    for (size_t k = i; k-- > 0;)
        if (is_work(s->v[k].kind) && s->v[k].stream == s->v[i].stream)
            return &s->v[k];
    return NULL;
}

static size_t count_waits(const struct sequence *s, uint32_t event, size_t before)
{
    size_t n = 0;
    for (size_t k = 0; k < before; k++)
        n += s->v[k].kind == TSR_WAIT && s->v[k].event == event;
    return n;
}

/* Records of a stream between its latest work and instruction i. */
static size_t records_since_work(const struct sequence *s, size_t i)
{
    size_t n = 0;
    for (size_t k = i; k-- > 0;) {
        if (s->v[k].stream != s->v[i].stream)
            continue;
        if (is_work(s->v[k].kind))
            break;
        n += s->v[k].kind == TSR_RECORD;
    }
    return n;
}

static bool is_named(const struct tsr_instr *v, const char *name)
{
    return v && v->work && v->work->name && strcmp(v->work->name, name) == 0;
}

/* A wait of copy-in or all-gather for something of the compute stream. */
static int gather_wait(const struct sequence *s, size_t i, size_t record)
{
    bool at_once = record + 1 == i || (record + 2 == i && s->v[record + 1].kind == TSR_WAIT);
    if (is_named(last_work(s, record), "post_forward_slice") && !at_once)
        return 2;
    if (s->v[i].origin.hook == TSR_HOOK_POST_FORWARD)
        return 8;
    size_t waits = count_waits(s, s->v[i].event, s->n);
    if ((at_once && waits == 1) || s->v[record].origin.iteration != s->v[i].origin.iteration ||
        s->v[record].origin.phase == TSR_PHASE_OPTIMIZER)
        return 1;
    return at_once ? 7 : 6;
}

/* A wait of the compute stream for something of the streams that reduce. The first event behind the
 * reduce-scatter frees its input; a later one says that the gradients are there. */
static int compute_wait(const struct sequence *s, size_t i, size_t record)
{
    const struct tsr_instr *work = last_work(s, record);
    bool of_scatter = is_stream(s, s->v[record].stream, "reduce_scatter") && work &&
                      (work->kind == TSR_REDUCE_SCATTER || is_named(work, "reduce_scatter_copy")) &&
                      records_since_work(s, record) == 0;
    if (!of_scatter)
        return 10;
    return s->v[i].origin.hook == TSR_HOOK_FINAL_CALLBACK ? 14 : 9;
}

int wait_number(const struct sequence *s, size_t i)
{
    const struct tsr_instr *v = &s->v[i];
    if (v->kind == TSR_HOST_WAIT) /* others: for the pinned memory of inputs, ... */
        return v->origin.hook == TSR_HOOK_FINAL_CALLBACK ? 13 : 0;
    if (v->kind != TSR_WAIT)
        return 0;
    long record = find_record(s, i, v->event);
    if (record < 0)
        return 0;
    uint16_t on = s->v[record].stream, by = v->stream;
    const struct tsr_instr *work = last_work(s, (size_t)record);
    bool gathers = is_stream(s, on, "all_gather") || (work && work->kind == TSR_ALL_GATHER);
    if (is_stream(s, by, "all_gather") && is_stream(s, on, "copy_in"))
        return 3;
    if (is_stream(s, by, "default") && gathers && v->origin.hook == TSR_HOOK_FINAL_CALLBACK)
        return 15;
    if (is_stream(s, by, "default") && gathers)
        return count_waits(s, v->event, i) == 0 ? 4 : 5;
    if (is_stream(s, by, "reduce_scatter"))
        return 11;
    if (is_stream(s, on, "reduce_scatter") && !is_stream(s, by, "default"))
        return 12;
    if (is_stream(s, by, "copy_in") || is_stream(s, by, "all_gather"))
        return gather_wait(s, i, (size_t)record);
    bool ddp = !is_stream(s, on, "reduce_scatter") && s->tables->n_streams < 5;
    bool tp = is_stream(s, by, "tensor_parallel") || is_stream(s, on, "tensor_parallel");
    return ddp || tp ? 0 : compute_wait(s, i, (size_t)record);
}
