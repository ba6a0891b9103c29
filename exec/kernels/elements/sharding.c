/* sharding.c: tensors from gathered pieces, and pieces for a reduction. */
#include "exec/kernels/call/table.h"
#include "exec/kernels/elements/list.h"
#include "exec/kernels/grid/grid_copy.h"

/* The k-th cut of args; `whole` gets how many elements the tensor has. */
static tsr_status cut_of(const struct tsr_kernel_call *call, uint32_t k, uint64_t ranks,
                         struct tsr_cut *cut, uint64_t *whole)
{
    const uint64_t *a = call->work->args + 1 + 4 * (size_t)k;
    *cut = (struct tsr_cut){a[0], a[1], a[2], a[3]};
    *whole = tsr__product3(a[0], a[1], a[2]);
    uint64_t all = tsr__product3(ranks, a[3], 1);
    if (*whole >= UINT64_MAX / 64 || all >= UINT64_MAX / 64 || all < a[1] ||
        (*whole > 0 && a[3] == 0) || tsr__product3(a[0], all, a[2]) >= UINT64_MAX / 64)
        return tsr__defect(call, "cut %u: (%llu, %llu, %llu) in chunks of %llu for %llu ranks", k,
                           (unsigned long long)a[0], (unsigned long long)a[1],
                           (unsigned long long)a[2], (unsigned long long)a[3],
                           (unsigned long long)ranks);
    return TSR_OK;
}

/* args: ranks, and a cut for each operand of the list. */
static tsr_status check_args(const struct tsr_kernel_call *call, uint32_t n, uint64_t *ranks)
{
    TSR_TRY(tsr__need_args(call, 1));
    *ranks = call->work->args[0];
    if (call->work->n_args != 1 + 4 * (uint64_t)n || *ranks == 0)
        return tsr__defect(call, "%u arguments for %u tensors", call->work->n_args, n);
    return TSR_OK;
}

/* ---- all-gather ------------------------------------------------------------------------------ */

/* As a tensor of bytes: pieces of different dtypes follow each other unaligned. */
static tsr_status output(const struct tsr_kernel_call *call, const struct tsr_view *view,
                         uint32_t k, uint64_t ranks, struct tsr_pieces *p)
{
    uint64_t numel, item = tsr_dtype_bytes((tsr_dtype)view->dtype);
    TSR_TRY(cut_of(call, k, ranks, &p->cut, &numel));
    if (!(view->access & TSR_WRITE) || item == 0)
        return tsr__defect(call, "slot 2: output %u is no tensor that is written", k);
    TSR_TRY(tsr__elems(call, view, TSR_OPERAND_BYTES, &p->whole));
    if (p->whole.n != numel * item)
        return tsr__defect(call, "slot 2: output %u has %llu bytes instead of %llu", k,
                           (unsigned long long)p->whole.n, (unsigned long long)(numel * item));
    p->cut.inner *= item;
    return TSR_OK;
}

/* A block of a rank in bytes. */
static tsr_status block_bytes(const struct tsr_kernel_call *call, uint64_t ranks, uint64_t *bytes)
{
    uint32_t next = 0, k = 0;
    const struct tsr_view *view;
    *bytes = 0;
    while ((view = tsr__next(call, 2, &next))) {
        struct tsr_pieces p;
        TSR_TRY(output(call, view, k++, ranks, &p));
        *bytes += tsr_cut_padded(&p.cut);
    }
    return TSR_OK;
}

/* The same copy in words as large as all of it allows. */
static struct tsr_pieces in_words(const struct tsr_pieces *p)
{
    struct tsr_pieces w = *p;
    uint64_t dim = p->cut.dim * p->cut.inner, chunk = p->cut.chunk * p->cut.inner;
    uint64_t word = tsr__word_of(dim, tsr__word_of(chunk, 16));
    word = tsr__word_of(p->first, tsr__word_of(p->stride, word));
    word = tsr__word_of_elems(&p->whole, tsr__word_of_elems(&p->pieces, word));
    w.cut = (struct tsr_cut){p->cut.outer, dim / word, 1, chunk / word};
    w.first /= word;
    w.stride /= word;
    w.whole = tsr__as_words(&p->whole, word);
    w.pieces = tsr__as_words(&p->pieces, word);
    return w;
}

static void join_one(const struct tsr_pieces *p)
{
    const struct tsr_elems *whole = &p->whole, *pieces = &p->pieces;
    for (uint64_t i = 0, run; i < whole->n; i += run) {
        uint64_t place = tsr_pieces_place(p, i, &run);
        run = tsr_elems_run(whole, i, tsr_elems_run(pieces, place, run));
        memcpy(whole->data + whole->item * tsr_elems_place(whole, i),
               pieces->data + pieces->item * tsr_elems_place(pieces, place), run * whole->item);
    }
}

/* Whole runs of words at once. */
static void join_on_host(const struct tsr_pieces_list *k, uint64_t begin, uint64_t step)
{
    for (uint64_t i = begin; i < k->n; i += step)
        join_one(&k->of[i]);
}
TSR_CODE_OF_ONE(join_words, join_on_host, struct tsr_pieces_list);

tsr_status tsr__split_with_sizes_copy(const struct tsr_kernel_call *call)
{
    uint32_t next = 0, k = 0, n = tsr__count(call, 2);
    struct tsr_pieces p = {.first = 0};
    struct tsr_pieces_list list = {.n = 0};
    uint64_t first = 0, words = 0;
    TSR_TRY(check_args(call, n, &p.ranks));
    TSR_TRY(block_bytes(call, p.ranks, &p.stride));
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_BYTES, tsr__product3(p.ranks, p.stride, 1), &p.pieces));
    const struct tsr_view *view;
    while ((view = tsr__next(call, 2, &next))) {
        TSR_TRY(output(call, view, k++, p.ranks, &p));
        p.first = first;
        first += tsr_cut_padded(&p.cut);
        list.of[list.n] = in_words(&p);
        words += list.of[list.n++].whole.n;
        if (list.n < TSR_MAX_PIECES && k < n)
            continue;
        TSR_TRY(tsr__run(call, &code_join_words, &list, words));
        list.n = 0;
        words = 0;
    }
    return TSR_OK;
}

/* ---- reduce-scatter -------------------------------------------------------------------------- */

static tsr_status gradient(const struct tsr_kernel_call *call, uint32_t k, uint64_t ranks,
                           uint32_t *next, struct tsr_pieces *p)
{
    uint64_t numel;
    TSR_TRY(cut_of(call, k, ranks, &p->cut, &numel));
    return tsr__take(call, 0, next, TSR_READ, numel, &p->whole);
}

TSR_CODE(cut_pieces, tsr_grid_cut_pieces, struct tsr_pieces_list);

tsr_status tsr__chunk_cat(const struct tsr_kernel_call *call)
{
    uint32_t n = tsr__count(call, 0), next = 0;
    struct tsr_pieces p = {.first = 0};
    struct tsr_pieces_list list = {.n = 0};
    uint64_t blocks = 0;
    TSR_TRY(check_args(call, n, &p.ranks));
    for (uint32_t k = 0; k < n; k++) {
        TSR_TRY(gradient(call, k, p.ranks, &next, &p));
        p.stride += tsr_cut_padded(&p.cut);
    }
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, tsr__product3(p.ranks, p.stride, 1), &p.pieces));
    next = 0;
    for (uint32_t k = 0; k < n; k++) {
        TSR_TRY(gradient(call, k, p.ranks, &next, &p));
        list.of[list.n++] = p;
        blocks += tsr_grid_blocks(tsr_cut_padded(&p.cut)) * p.ranks;
        p.first += tsr_cut_padded(&p.cut);
        if (list.n < TSR_MAX_PIECES && k + 1 < n)
            continue;
        TSR_TRY(tsr__run(call, &code_cut_pieces, &list, blocks * TSR_BLOCK));
        list.n = 0;
        blocks = 0;
    }
    return TSR_OK;
}
