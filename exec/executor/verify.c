/* verify.c: poisons memory, cuts the operands of an instruction into pieces, and looks at what it
 * left in them and around them.
 */
#include "exec/executor/verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/executor/buffers.h"

/* What lies in memory that may not be touched, and in what is to be written; by run. All differ:
 * then it is known whose bytes a result shows. The first are NaN patterns, the second are not. */
static const unsigned char poison[2] = {0xff, 0x3f}, unwritten[2] = {0xfe, 0x3e};

/* ---- operands as pieces ---------------------------------------------------------------------- */

/* Operands overlap (in place, lists, views of columns); cut at every edge they become pieces that
 * do not. */

/* A part of a buffer that is declared in one way throughout. */
struct piece {
    uint32_t buffer;
    bool reads, writes;
    bool typed; /* some operand that writes it has a dtype */
    uint64_t begin, end;
};

/* Where the declarations begin or end to hold. */
struct edge {
    uint64_t at;
    uint32_t buffer;
    int8_t reads, writes, typed; /* 1, 0, -1 */
};

struct pieces {
    size_t n, cap, n_edges, cap_edges;
    struct piece *items; /* in order of buffers, then of bytes */
    struct edge *edges;
};

static bool add_edge(struct pieces *p, const struct tsr_view *view, uint64_t at, int8_t sign)
{
    bool writes = view->access & TSR_WRITE;
    const struct edge edge = {.at = at,
                              .buffer = view->buffer,
                              .reads = (view->access & TSR_READ) ? sign : (int8_t)0,
                              .writes = writes ? sign : (int8_t)0,
                              .typed = writes && view->dtype != TSR_DTYPE_NONE ? sign : (int8_t)0};
    return TSR_PUSH(p->edges, p->n_edges, p->cap_edges, edge);
}

static bool add_range(struct pieces *p, const struct tsr_view *view, uint64_t begin, uint64_t end)
{
    return begin >= end || (add_edge(p, view, begin, 1) && add_edge(p, view, end, -1));
}

/* Rows of `width` bytes, `pitch` apart. Rows that repeat (pitch < width) lie side by side. */
static bool add_view(struct pieces *p, const struct tsr_view *view)
{
    uint64_t first = (uint64_t)((char *)view->data - (char *)view->base);
    uint64_t end = first + view->bytes;
    if (view->pitch <= view->width)
        return add_range(p, view, first, end);
    for (uint64_t row = first; row < end; row += view->pitch)
        if (!add_range(p, view, row, tsr_min_u64(row + view->width, end)))
            return false;
    return true;
}

static int by_place(const void *a, const void *b)
{
    const struct edge *x = a, *y = b;
    if (x->buffer != y->buffer)
        return x->buffer < y->buffer ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Replaces the pieces by those of the views. */
static tsr_status cut(struct pieces *p, const struct tsr_view *views, uint32_t n)
{
    int reads = 0, writes = 0, typed = 0;
    bool ok = true;
    p->n = p->n_edges = 0;
    for (uint32_t i = 0; ok && i < n; i++)
        ok = add_view(p, &views[i]);
    if (ok && p->n_edges)
        qsort(p->edges, p->n_edges, sizeof *p->edges, by_place);
    for (size_t i = 0; ok && i < p->n_edges; i++) {
        const struct edge *edge = &p->edges[i], *next = edge + 1;
        reads += edge->reads;
        writes += edge->writes;
        typed += edge->typed;
        if ((reads == 0 && writes == 0) || next->at == edge->at)
            continue; /* something is open, so there is a next edge, of the same buffer */
        const struct piece piece = {edge->buffer, reads > 0, writes > 0,
                                    typed > 0,    edge->at,  next->at};
        ok = TSR_PUSH(p->items, p->n, p->cap, piece);
    }
    return ok ? TSR_OK : tsr_no_memory("operands to verify");
}

static void pieces_fini(struct pieces *pieces)
{
    free(pieces->items);
    free(pieces->edges);
    *pieces = (struct pieces){0};
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A live buffer. */
struct live {
    struct live *next, *prev;
    char *data, *contents; /* contents: owned */
    uint64_t bytes;
    uint64_t middle, tail; /* [middle, tail) is not looked at */
    uint32_t buffer;
    size_t first, n; /* pieces of the instruction at hand */
};

enum { WORKSPACE_END = 4096 };

/* The parts of a range of a buffer that are looked at. */
struct part {
    uint64_t begin, end;
};

static int parts_of(const struct live *l, uint64_t begin, uint64_t end, struct part out[2])
{
    int n = 0;
    if (begin < tsr_min_u64(end, l->middle))
        out[n++] = (struct part){begin, tsr_min_u64(end, l->middle)};
    if (tsr_max_u64(begin, l->tail) < end)
        out[n++] = (struct part){tsr_max_u64(begin, l->tail), end};
    return n;
}

static void fill(const struct live *l, char *data, uint64_t begin, uint64_t end, unsigned char byte)
{
    struct part parts[2];
    for (int n = parts_of(l, begin, end, parts), k = 0; k < n; k++)
        memset(data + parts[k].begin, byte, parts[k].end - parts[k].begin);
}

struct tsr_verify {
    struct tsr_buffers index; /* id to struct live */
    struct live *head;
    struct pieces pieces;
    const struct tsr_verify_who *who;
    unsigned run;       /* which poison lies in memory: 0 or 1 */
    bool again;         /* the second run is under way: `results` has what the first wrote */
    char *results;      /* the pieces that are written, one behind the other */
    size_t cap_results; /* bytes */
};

/* ---- buffers --------------------------------------------------------------------------------- */

tsr_status tsr_verify_create(struct tsr_verify **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? TSR_OK : tsr_no_memory("verification");
}

static void free_live(struct live *l)
{
    free(l->contents);
    free(l);
}

void tsr_verify_destroy(struct tsr_verify *v)
{
    if (!v)
        return;
    while (v->head) {
        struct live *next = v->head->next;
        free_live(v->head);
        v->head = next;
    }
    tsr_buffers_fini(&v->index);
    pieces_fini(&v->pieces);
    free(v->results);
    free(v);
}

static struct live *find(const struct tsr_verify *v, uint32_t buffer)
{
    struct tsr_buffer *b = tsr_buffers_find(&v->index, buffer);
    return b ? b->data : NULL;
}

tsr_status tsr_verify_add(struct tsr_verify *v, uint32_t buffer, bool is_workspace, void *data,
                          uint64_t bytes)
{
    struct live *l = calloc(1, sizeof *l);
    if (l)
        l->contents = malloc(bytes + 1);
    if (!l || !l->contents) {
        free(l);
        return tsr_no_memory("the contents of a buffer");
    }
    l->data = data;
    l->bytes = bytes;
    l->buffer = buffer;
    l->middle = l->tail = bytes;
    if (is_workspace && bytes > 2 * WORKSPACE_END) {
        l->middle = WORKSPACE_END;
        l->tail = bytes - WORKSPACE_END;
    }
    const struct tsr_buffer entry = {.id = buffer, .bytes = bytes, .data = l};
    tsr_status status = tsr_buffers_add(&v->index, &entry);
    if (status != TSR_OK) {
        free_live(l);
        return status;
    }
    l->next = v->head;
    if (v->head)
        v->head->prev = l;
    v->head = l;
    fill(l, l->contents, 0, bytes, 0xff);
    fill(l, l->data, 0, bytes, poison[v->run]);
    return TSR_OK;
}

void tsr_verify_remove(struct tsr_verify *v, uint32_t buffer)
{
    struct live *l = find(v, buffer);
    if (!l)
        return;
    *(l->prev ? &l->prev->next : &v->head) = l->next;
    if (l->next)
        l->next->prev = l->prev;
    tsr_buffers_remove(&v->index, buffer);
    free_live(l);
}

void *tsr_verify_contents(const struct tsr_verify *v, uint32_t buffer)
{
    struct live *l = find(v, buffer);
    return l ? l->contents : NULL;
}

/* ---- messages -------------------------------------------------------------------------------- */

static tsr_status defect(const struct tsr_verify *v, const struct piece *where, const char *does,
                         const char *but)
{
    const struct tsr_instr *instr = v->who->instr;
    const struct tsr_tables *t = v->who->tables;
    bool named = t && instr->origin.module < t->n_modules;
    return tsr_fail(TSR_EDEFECT,
                    "defect: instruction %llu (%s '%s' of module '%s' in phase %s) %s bytes %llu "
                    "to %llu of buffer %u%s",
                    (unsigned long long)v->who->number, tsr_instr_kind_name(instr->kind),
                    instr->work ? instr->work->name : "",
                    named ? t->modules[instr->origin.module] : "",
                    tsr_phase_name(instr->origin.phase), does, (unsigned long long)where->begin,
                    (unsigned long long)where->end, where->buffer, but);
}

/* ---- looking --------------------------------------------------------------------------------- */

static bool all_are(const char *p, uint64_t n, unsigned char byte)
{
    return n == 0 || ((unsigned char)*p == byte && memcmp(p, p + 1, n - 1) == 0);
}

static tsr_status check_poison(const struct tsr_verify *v, const struct live *l, uint64_t begin,
                               uint64_t end)
{
    unsigned char byte = poison[v->run];
    if (all_are(l->data + begin, end - begin, byte))
        return TSR_OK;
    while ((unsigned char)l->data[begin] == byte)
        begin++;
    while ((unsigned char)l->data[end - 1] == byte)
        end--;
    const struct piece where = {.buffer = l->buffer, .begin = begin, .end = end};
    return defect(v, &where, "writes", ", which it does not declare");
}

/* [begin, end) of a buffer is declared by nobody. */
static tsr_status check_undeclared(const struct tsr_verify *v, const struct live *l, uint64_t begin,
                                   uint64_t end)
{
    struct part parts[2];
    for (int n = parts_of(l, begin, end, parts), k = 0; k < n; k++)
        TSR_TRY(check_poison(v, l, parts[k].begin, parts[k].end));
    return TSR_OK;
}

static tsr_status check_contents(const struct tsr_verify *v, const struct live *l, uint64_t begin,
                                 uint64_t end)
{
    if (memcmp(l->data + begin, l->contents + begin, end - begin) == 0)
        return TSR_OK;
    while (l->data[begin] == l->contents[begin])
        begin++;
    while (l->data[end - 1] == l->contents[end - 1])
        end--;
    const struct piece where = {.buffer = l->buffer, .begin = begin, .end = end};
    return defect(v, &where, "changes", ", which it declares as read");
}

static tsr_status check_read(const struct tsr_verify *v, const struct live *l,
                             const struct piece *piece)
{
    struct part parts[2];
    for (int n = parts_of(l, piece->begin, piece->end, parts), k = 0; k < n; k++)
        TSR_TRY(check_contents(v, l, parts[k].begin, parts[k].end));
    return TSR_OK;
}

/* Everything but what is declared as written is as it was. */
static tsr_status check_rest(const struct tsr_verify *v)
{
    for (const struct live *l = v->head; l; l = l->next) {
        uint64_t at = 0;
        for (size_t i = l->first; i < l->first + l->n; i++) {
            const struct piece *piece = &v->pieces.items[i];
            TSR_TRY(check_undeclared(v, l, at, piece->begin));
            if (!piece->writes)
                TSR_TRY(check_read(v, l, piece));
            at = piece->end;
        }
        TSR_TRY(check_undeclared(v, l, at, l->bytes));
    }
    return TSR_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Memory as the work finds it: poisoned, what it reads in place. */
static void load(const struct tsr_verify *v)
{
    for (size_t i = 0; i < v->pieces.n; i++) {
        const struct piece *piece = &v->pieces.items[i];
        const struct live *l = find(v, piece->buffer);
        struct part parts[2];
        int n = parts_of(l, piece->begin, piece->end, parts);
        for (int k = 0; piece->reads && k < n; k++)
            memcpy(l->data + parts[k].begin, l->contents + parts[k].begin,
                   parts[k].end - parts[k].begin);
        if (!piece->reads)
            fill(l, l->data, piece->begin, piece->end, unwritten[v->run]);
    }
}

static tsr_status set_pieces(struct tsr_verify *v, uint64_t *written)
{
    *written = 0;
    for (size_t i = 0; i < v->pieces.n; i++) {
        const struct piece *piece = &v->pieces.items[i];
        struct live *l = find(v, piece->buffer);
        if (!l || piece->end > l->bytes)
            return tsr_fail(TSR_EDEFECT, "buffer %u is not verified", piece->buffer);
        if (l->n++ == 0)
            l->first = i;
        if (piece->writes)
            *written += piece->end - piece->begin;
    }
    return TSR_OK;
}

tsr_status tsr_verify_enter(struct tsr_verify *v, const struct tsr_verify_who *who,
                            const struct tsr_view *views, uint32_t n, bool *twice)
{
    uint64_t written;
    v->who = who;
    v->again = false;
    TSR_TRY(cut(&v->pieces, views, n));
    TSR_TRY(set_pieces(v, &written));
    while (v->cap_results < written)
        if (!tsr_grow(&v->results, v->cap_results, &v->cap_results, 1))
            return tsr_no_memory("results to verify");
    *twice = written > 0;
    load(v);
    return TSR_OK;
}

static void keep_results(const struct tsr_verify *v)
{
    char *to = v->results;
    for (size_t i = 0; i < v->pieces.n; i++) {
        const struct piece *piece = &v->pieces.items[i];
        const struct live *l = find(v, piece->buffer);
        struct part parts[2];
        int n = parts_of(l, piece->begin, piece->end, parts);
        for (int k = 0; piece->writes && k < n; k++) {
            memcpy(to, l->data + parts[k].begin, parts[k].end - parts[k].begin);
            to += parts[k].end - parts[k].begin;
        }
    }
}

tsr_status tsr_verify_again(struct tsr_verify *v)
{
    TSR_TRY(check_rest(v));
    keep_results(v);
    v->again = true;
    v->run = !v->run;
    for (struct live *l = v->head; l; l = l->next)
        fill(l, l->data, 0, l->bytes, poison[v->run]);
    load(v);
    return TSR_OK;
}

/* Takes over what was written. Bytes that show both runs' filling were not written: they keep what
 * they had. */
static tsr_status take_part(const struct tsr_verify *v, const struct piece *piece,
                            const struct part *part, const char *first)
{
    const struct live *l = find(v, piece->buffer);
    const char *second = l->data + part->begin;
    char *to = l->contents + part->begin;
    uint64_t n = part->end - part->begin;
    if (memcmp(first, second, n) == 0) {
        memcpy(to, second, n);
        return TSR_OK;
    }
    for (uint64_t i = 0; i < n; i++) {
        const struct piece where = {
            .buffer = piece->buffer, .begin = part->begin + i, .end = part->end};
        bool left = (unsigned char)first[i] == unwritten[!v->run] &&
                    (unsigned char)second[i] == unwritten[v->run];
        if (first[i] == second[i])
            to[i] = second[i];
        else if (!left)
            return defect(v, &where, "writes to",
                          " what follows from memory that it does not declare as read");
        else if (piece->typed && !piece->reads)
            return defect(v, &where, "leaves", " unwritten, which it declares as written");
    }
    return TSR_OK;
}

static tsr_status take_results(const struct tsr_verify *v)
{
    const char *first = v->results;
    for (size_t i = 0; v->again && i < v->pieces.n; i++) {
        const struct piece *piece = &v->pieces.items[i];
        struct part parts[2];
        int n = parts_of(find(v, piece->buffer), piece->begin, piece->end, parts);
        for (int k = 0; piece->writes && k < n; k++) {
            TSR_TRY(take_part(v, piece, &parts[k], first));
            first += parts[k].end - parts[k].begin;
        }
    }
    return TSR_OK;
}

tsr_status tsr_verify_leave(struct tsr_verify *v)
{
    TSR_TRY(check_rest(v));
    TSR_TRY(take_results(v));
    for (size_t i = 0; i < v->pieces.n; i++) {
        const struct piece *piece = &v->pieces.items[i];
        struct live *l = find(v, piece->buffer);
        fill(l, l->data, piece->begin, piece->end, poison[v->run]);
        l->n = 0;
    }
    return TSR_OK;
}
