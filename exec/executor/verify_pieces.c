/* verify_pieces.c: operands overlap (in place, lists, views of columns); cut at every edge they
 * become pieces that do not.
 */
#include <stdlib.h>

#include "exec/executor/verify_impl.h"

static bool add_edge(struct tsr_verify_pieces *p, const struct tsr_view *view, uint64_t at,
                     int8_t sign)
{
    bool writes = view->access & TSR_WRITE;
    const struct tsr_verify_edge edge = {
        .at = at,
        .buffer = view->buffer,
        .reads = (view->access & TSR_READ) ? sign : (int8_t)0,
        .writes = writes ? sign : (int8_t)0,
        .typed = writes && view->dtype != TSR_DTYPE_NONE ? sign : (int8_t)0};
    return TSR_PUSH(p->edges, p->n_edges, p->cap_edges, edge);
}

static bool add_range(struct tsr_verify_pieces *p, const struct tsr_view *view, uint64_t begin,
                      uint64_t end)
{
    return begin >= end || (add_edge(p, view, begin, 1) && add_edge(p, view, end, -1));
}

/* Rows of `width` bytes, `pitch` apart. Rows that repeat (pitch < width) lie side by side. */
static bool add_view(struct tsr_verify_pieces *p, const struct tsr_view *view)
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
    const struct tsr_verify_edge *x = a, *y = b;
    if (x->buffer != y->buffer)
        return x->buffer < y->buffer ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

tsr_status tsr_verify_cut(struct tsr_verify_pieces *p, const struct tsr_view *views, uint32_t n)
{
    int reads = 0, writes = 0, typed = 0;
    bool ok = true;
    p->n = p->n_edges = 0;
    for (uint32_t i = 0; ok && i < n; i++)
        ok = add_view(p, &views[i]);
    if (ok && p->n_edges)
        qsort(p->edges, p->n_edges, sizeof *p->edges, by_place);
    for (size_t i = 0; ok && i < p->n_edges; i++) {
        const struct tsr_verify_edge *edge = &p->edges[i], *next = edge + 1;
        reads += edge->reads;
        writes += edge->writes;
        typed += edge->typed;
        if ((reads == 0 && writes == 0) || next->at == edge->at)
            continue; /* something is open, so there is a next edge, of the same buffer */
        const struct tsr_verify_piece piece = {edge->buffer, reads > 0, writes > 0,
                                               typed > 0,    edge->at,  next->at};
        ok = TSR_PUSH(p->items, p->n, p->cap, piece);
    }
    return ok ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory: operands to verify");
}

void tsr_verify_pieces_fini(struct tsr_verify_pieces *pieces)
{
    free(pieces->items);
    free(pieces->edges);
    *pieces = (struct tsr_verify_pieces){0};
}
