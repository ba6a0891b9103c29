/* codes.c: the kernels of the GPU that compute what code of the host computes
 * (exec/kernels/call/kernel.h), by name, and how they are launched.
 */
#include <stdlib.h>
#include <string.h>

#include "exec/cuda/kernels/code.h"
#include "exec/cuda/kernels/declare.h"
#include "exec/cuda/launch/cuda_launch.h"

/* How work is dealt out to blocks of threads. */
enum spread {
    ELEMENTS, /* n elements, TSR_CUDA_ITEMS in a thread at a time */
    SINGLES,  /* n items, one in a thread at a time; one form for all dtypes */
    ROWS,     /* a team of threads has a row at a time (kernels/team.h) */
    OWN       /* by a function of its own (launch.h) */
};

struct entry {
    const char *name;
    enum spread spread;
    struct tsr_cuda_forms forms;
    unsigned kept; /* ROWS: reals of an element that stay in shared memory */
    bool grows;    /* ROWS: a TSR_LONG_KERNEL */
    tsr_cuda_launcher own;
    /* ELEMENTS, SINGLES: blocks that a multiprocessor has, all at once, until all is done: threads
     * of these kernels do much before their first element. 0: a block for each part of the work. */
    unsigned stay;
};

/* Kernels in f32 and in f64; one that has no arithmetic (both also over lists, where blocks stay);
 * rows; a function. */
#define ENTRY_LIST(name, spread, stay)                                                             \
    {                                                                                              \
#name, spread, {tsr_cuda_##name##_f32, NULL, tsr_cuda_##name##_f64 }, 0, false, NULL, stay \
    }
#define ENTRY_WORDS(name, stay)                                                         \
    {                                                                                   \
#name, SINGLES, {tsr_cuda_##name, NULL, tsr_cuda_##name }, 0, false, NULL, stay \
    }
#define ENTRY(name, spread) ENTRY_LIST(name, spread, 0)
#define ENTRY_OF_ONE(name)  ENTRY_WORDS(name, 0)
#define ENTRY_ROWS(name, kept, grows)                      \
    {                                                      \
#name, ROWS, TSR_FORMS(name), kept, grows, NULL, 0 \
    }
#define ENTRY_OWN(name)                                               \
    {                                                                 \
#name, OWN, {NULL, NULL, NULL }, 0, false, tsr_cuda_##name, 0 \
    }

/* In the order of strcmp(). */
static const struct entry entries[] = {
    ENTRY_OWN(column_sums),
    ENTRY_OF_ONE(conjugate),
    ENTRY_OWN(cross_entropy),
    ENTRY_LIST(cut_pieces, ELEMENTS, TSR_CUDA_STAY),
    ENTRY(elementwise, ELEMENTS),
    ENTRY(embedding, ELEMENTS),
    ENTRY_OWN(fold),
    ENTRY(head_sums, ELEMENTS),
    ENTRY_WORDS(join_words, TSR_CUDA_STAY),
    ENTRY_LIST(list, ELEMENTS, TSR_CUDA_STAY),
    ENTRY_ROWS(log_p_backward, 0, true),
    ENTRY_ROWS(log_softmax, 1, true),
    ENTRY_ROWS(log_softmax_backward, 1, true),
    ENTRY_ROWS(log_softmax_tp, 0, true),
    ENTRY_WORDS(move, TSR_CUDA_STAY),
    ENTRY(mse_backward, ELEMENTS),
    ENTRY_OWN(nll),
    ENTRY_ROWS(nll_backward, 0, true),
    ENTRY(nll_gather, SINGLES),
    ENTRY_ROWS(norm, 1, false),
    ENTRY_OWN(norm_backward),
    ENTRY(norm_power, SINGLES),
    ENTRY_OWN(norms),
    ENTRY_LIST(optimizer, ELEMENTS, TSR_CUDA_STAY_WIDE),
    ENTRY_LIST(optimizer_fused, ELEMENTS, TSR_CUDA_STAY_FUSED),
    ENTRY(place, ELEMENTS),
    ENTRY(rare, ELEMENTS),
    ENTRY(rotary, ELEMENTS),
    ENTRY_OF_ONE(rotary_table),
    ENTRY_ROWS(row_exp_sum, 0, true),
    ENTRY_ROWS(row_max, 0, true),
    ENTRY_ROWS(row_sums, 0, true),
    ENTRY_ROWS(softmax, 1, true),
    ENTRY_ROWS(softmax_backward, 2, true),
    ENTRY(swiglu, ELEMENTS),
    ENTRY(swiglu_backward, ELEMENTS),
    ENTRY_OF_ONE(used_map),
};

static int compare(const void *name, const void *entry)
{
    return strcmp((const char *)name, ((const struct entry *)entry)->name);
}

/* Blocks that come and go leave no multiprocessor idle at the end if there are many; more than that
 * are only a cost. */
enum { MANY = 128 };

static unsigned blocks_for(const struct tsr_kernel_call *call, const struct entry *e, uint64_t n)
{
    uint64_t each = e->stay ? e->stay : MANY;
    return (unsigned)tsr_min_u64(n, each * (unsigned)tsr_cuda_context(call)->n_sms);
}

tsr_status tsr_cuda_launch_code(const struct tsr_kernel_call *call, const struct tsr_code *code,
                                bool wide, const void *params, uint64_t n)
{
    const struct entry *e =
        bsearch(code->name, entries, sizeof entries / sizeof *entries, sizeof *entries, compare);
    if (!e)
        return tsr_fail(TSR_EUNSUPPORTED, "the GPU has no code '%s'", code->name);
    if (e->spread == OWN)
        return e->own(call, wide, params, n);
    if (e->spread == ROWS)
        return tsr_cuda_launch_rows(call, &e->forms, wide, e->kept, e->grows, params);
    if (n == 0)
        return TSR_OK;
    const uint64_t per_block =
        (uint64_t)TSR_CUDA_THREADS * (e->spread == ELEMENTS ? TSR_CUDA_ITEMS : 1);
    const struct tsr_cuda_grid grid = {.blocks = blocks_for(call, e, tsr_ceil_div(n, per_block)),
                                       .threads = TSR_CUDA_THREADS};
    return tsr_cuda_launch(call, wide ? e->forms.f64 : e->forms.f32, grid, params);
}
