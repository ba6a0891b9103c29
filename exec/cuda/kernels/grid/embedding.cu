/* embedding.cu: rows of a table by their numbers, and their gradient (grid.h). */
#include "exec/cuda/kernels/code.h"

#include "exec/cuda/kernels/grid/grid.h"

TSR_GRID_CODE(embedding, tsr_grid_embedding, struct tsr_embedding)
TSR_GRID_CODE(embedding_grad, tsr_grid_embedding_grad, struct tsr_embedding_grad)

/* The row of a token, counted from the first; rows or more: it has none here. */
TSR_DEVICE uint64_t row_of(const struct tsr_tokens *k, uint64_t token)
{
    uint64_t row = tsr_embedding_row(tsr_elems_i64(&k->ids, token), k->first, k->all);
    return row < k->begin || row - k->begin >= k->rows || row >= k->all ? k->rows : row - k->begin;
}

TSR_GRID_KERNEL(tsr_cuda_tokens_clear, struct tsr_tokens)
{
    for (uint64_t row = tsr_begin(); row < k.rows; row += tsr_step())
        k.count[row] = k.start[row] = 0;
    if (tsr_begin() == 0)
        *k.total = 0;
}

TSR_GRID_KERNEL(tsr_cuda_tokens_count, struct tsr_tokens)
{
    for (uint64_t token = tsr_begin(); token < k.ids.n; token += tsr_step()) {
        uint64_t row = row_of(&k, token);
        if (row < k.rows)
            k.places[token] = tsr_atomic_add(&k.count[row], 1);
    }
}

/* The token with the first place in a row takes places for all of them. */
TSR_GRID_KERNEL(tsr_cuda_tokens_start, struct tsr_tokens)
{
    for (uint64_t token = tsr_begin(); token < k.ids.n; token += tsr_step()) {
        uint64_t row = row_of(&k, token);
        if (row < k.rows && k.places[token] == 0)
            k.start[row] = tsr_atomic_add(k.total, k.count[row]);
    }
}

TSR_GRID_KERNEL(tsr_cuda_tokens_gather, struct tsr_tokens)
{
    for (uint64_t token = tsr_begin(); token < k.ids.n; token += tsr_step()) {
        uint64_t row = row_of(&k, token);
        if (row < k.rows)
            k.tokens[k.start[row] + k.places[token]] = (uint32_t)token;
    }
}

/* A token's place is the number of earlier ones in its row. */
TSR_GRID_KERNEL(tsr_cuda_tokens_order, struct tsr_tokens)
{
    for (uint64_t token = tsr_begin(); token < k.ids.n; token += tsr_step()) {
        uint64_t row = row_of(&k, token);
        if (row >= k.rows)
            continue;
        const uint32_t *tokens = k.tokens + k.start[row];
        uint32_t n = k.count[row], earlier = 0;
        for (uint32_t i = 0; i < n; i++)
            earlier += tokens[i] < token;
        k.places[k.start[row] + earlier] = (uint32_t)token;
    }
}
