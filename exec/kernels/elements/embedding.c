/* embedding.c: embeddings, of a whole table or of the rows that a rank has. */
#include <stdlib.h>

#include "exec/kernels/call/table.h"
#include "exec/kernels/elements/embedding.h"

TSR_CODE(embedding, tsr_grid_embedding, struct tsr_embedding);

tsr_status tsr__embedding(const struct tsr_kernel_call *call)
{
    struct tsr_embedding e = {.first = tsr__arg(call, 0), .rows = tsr__arg(call, 1)};
    TSR_TRY(tsr__need_args(call, 2));
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_IDS, TSR_ANY_NUMBER, &e.ids));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &e.out));
    e.columns = e.ids.n ? e.out.n / e.ids.n : 0;
    if (e.out.n != e.ids.n * e.columns)
        return tsr__defect(call, "slot 2: %llu elements for %llu ids", (unsigned long long)e.out.n,
                           (unsigned long long)e.ids.n);
    uint64_t n = e.ids.n ? tsr__product3(e.rows, e.columns, 1) : TSR_ANY_NUMBER;
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, n, &e.w));
    return tsr__run(call, &code_embedding, &e, e.ids.n * tsr_grid_blocks(e.columns) * TSR_BLOCK);
}

tsr_status tsr__embedding_grad(const struct tsr_kernel_call *call, struct tsr_embedding_grad *e,
                               struct tsr_elems *ids)
{
    *e = (struct tsr_embedding_grad){.rows = tsr__arg(call, 1)};
    TSR_TRY(tsr__need_args(call, 2));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_IDS, TSR_ANY_NUMBER, ids));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &e->out));
    e->columns = e->rows ? e->out.n / e->rows : 0;
    if (e->out.n != e->rows * e->columns)
        return tsr__defect(call, "slot 2: %llu elements for %llu rows",
                           (unsigned long long)e->out.n, (unsigned long long)e->rows);
    if (e->rows > UINT32_MAX || ids->n > UINT32_MAX)
        return tsr__defect(call, "%llu ids for %llu rows are more than 32 bits count",
                           (unsigned long long)ids->n, (unsigned long long)e->rows);
    uint64_t n = e->rows ? tsr__product3(ids->n, e->columns, 1) : TSR_ANY_NUMBER;
    return tsr__in(call, 0, TSR_OPERAND_FLOAT, n, &e->g);
}

/* Sorts tokens by row, in their order. One allocation: start and count of rows, order. */
static uint32_t *sorted(const struct tsr_elems *ids, uint64_t first, uint64_t rows)
{
    uint32_t *start = calloc(2 * rows + ids->n + 1, sizeof *start), n = 0;
    if (!start)
        return NULL;
    uint32_t *count = start + rows, *order = count + rows;
    for (uint64_t t = 0; t < ids->n; t++) {
        uint64_t row = tsr_embedding_row(tsr_elems_i64(ids, t), first, rows);
        if (row < rows)
            count[row]++;
    }
    for (uint64_t row = 0; row < rows; n += count[row++])
        start[row] = n;
    memset(count, 0, rows * sizeof *count);
    for (uint64_t t = 0; t < ids->n; t++) {
        uint64_t row = tsr_embedding_row(tsr_elems_i64(ids, t), first, rows);
        if (row < rows)
            order[start[row] + count[row]++] = (uint32_t)t;
    }
    return start;
}

tsr_status tsr__embedding_dense_backward(const struct tsr_kernel_call *call)
{
    struct tsr_embedding_grad e;
    struct tsr_elems ids;
    TSR_TRY(tsr__embedding_grad(call, &e, &ids));
    uint32_t *start = sorted(&ids, tsr__arg(call, 0), e.rows);
    if (!start)
        return tsr__no_memory(call);
    e.start = start;
    e.count = start + e.rows;
    e.order = start + 2 * e.rows;
    if (tsr__is_wide(call))
        tsr_grid_embedding_grad_f64(&e, 0, 1);
    else
        tsr_grid_embedding_grad_f32(&e, 0, 1);
    free(start);
    return TSR_OK;
}
