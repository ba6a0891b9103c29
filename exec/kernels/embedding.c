/* embedding.c: embeddings, of a whole table or of the rows that a rank has. */
#include <stdlib.h>

#include "call.h"
#include "grid_embedding.h"
#include "table.h"

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
    if (tsr__is_wide(call))
        tsr_grid_embedding_f64(&e, 0, 1);
    else
        tsr_grid_embedding_f32(&e, 0, 1);
    return TSR_OK;
}

/* Lists of the tokens of every row, in the order of tokens. One allocation: rows + tokens. */
static uint64_t *lists_of(const struct tsr_elems *ids, uint64_t first, uint64_t rows)
{
    uint64_t *lists = malloc((rows + ids->n + 1) * sizeof *lists);
    if (!lists)
        return NULL;
    for (uint64_t row = 0; row < rows; row++)
        lists[row] = TSR_NO_TOKEN;
    for (uint64_t t = ids->n; t-- > 0;) { /* from behind: each goes before the others */
        uint64_t row = tsr_embedding_row(tsr_elems_i64(ids, t), first, rows);
        lists[rows + t] = row < rows ? lists[row] : TSR_NO_TOKEN;
        if (row < rows)
            lists[row] = t;
    }
    return lists;
}

tsr_status tsr__embedding_dense_backward(const struct tsr_kernel_call *call)
{
    struct tsr_embedding_grad e = {.rows = tsr__arg(call, 1)};
    struct tsr_elems ids;
    TSR_TRY(tsr__need_args(call, 2));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_IDS, TSR_ANY_NUMBER, &ids));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &e.out));
    e.columns = e.rows ? e.out.n / e.rows : 0;
    if (e.out.n != e.rows * e.columns)
        return tsr__defect(call, "slot 2: %llu elements for %llu rows", (unsigned long long)e.out.n,
                           (unsigned long long)e.rows);
    uint64_t n = e.rows ? tsr__product3(ids.n, e.columns, 1) : TSR_ANY_NUMBER;
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, n, &e.g));
    uint64_t *lists = lists_of(&ids, tsr__arg(call, 0), e.rows);
    if (!lists)
        return tsr__no_memory(call);
    e.head = lists;
    e.next = lists + e.rows;
    if (tsr__is_wide(call))
        tsr_grid_embedding_grad_f64(&e, 0, 1);
    else
        tsr_grid_embedding_grad_f32(&e, 0, 1);
    free(lists);
    return TSR_OK;
}
