/* launch_codes.c: the kernels of the GPU that compute what code of the host computes
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
    OWN       /* by a function of its own (cuda_launch.h) */
};

struct entry {
    const char *name;
    enum spread spread;
    struct tsr_cuda_forms forms;
    unsigned kept; /* ROWS: reals of an element that stay in shared memory */
    bool grows;    /* ROWS: a TSR_GROWING_KERNEL */
    tsr_cuda_launcher own;
    /* ELEMENTS, SINGLES: blocks that a multiprocessor has, all at once, until all is done: threads
     * of these kernels do much before their first element. 0: a block for each part of the work. */
    unsigned stay;
};

/* clang-format off */
/* The forms of a kernel: in f32 and in f64; one that has no arithmetic. TSR_FORMS: of a team. */
#define REALS(name) {tsr_cuda_##name##_f32, NULL, tsr_cuda_##name##_f64}
#define WORDS(name) {tsr_cuda_##name, NULL, tsr_cuda_##name}

/* In the order of strcmp(). Kernels over lists stay. */
static const struct entry entries[] = {
    {"column_sums",          OWN,      .own = tsr_cuda_column_sums},
    {"conjugate",            SINGLES,  .forms = WORDS(conjugate)},
    {"cross_entropy",        OWN,      .own = tsr_cuda_cross_entropy},
    {"cut_pieces",           ELEMENTS, .forms = REALS(cut_pieces), .stay = TSR_CUDA_STAY},
    {"elementwise",          ELEMENTS, .forms = REALS(elementwise)},
    {"embedding",            ELEMENTS, .forms = REALS(embedding)},
    {"fold",                 OWN,      .own = tsr_cuda_fold},
    {"head_sums",            ELEMENTS, .forms = REALS(head_sums)},
    {"initial",              SINGLES,  .forms = WORDS(initial)},
    {"join_words",           SINGLES,  .forms = WORDS(join_words), .stay = TSR_CUDA_STAY},
    {"list",                 ELEMENTS, .forms = REALS(list), .stay = TSR_CUDA_STAY},
    {"log_p_backward",       ROWS,     .forms = TSR_FORMS(log_p_backward), .grows = true},
    {"log_softmax",          ROWS,     .forms = TSR_FORMS(log_softmax), .kept = 1, .grows = true},
    {"log_softmax_backward", ROWS,     .forms = TSR_FORMS(log_softmax_backward), .kept = 1, .grows = true},
    {"log_softmax_tp",       ROWS,     .forms = TSR_FORMS(log_softmax_tp), .grows = true},
    {"move",                 SINGLES,  .forms = WORDS(move), .stay = TSR_CUDA_STAY},
    {"mse_backward",         ELEMENTS, .forms = REALS(mse_backward)},
    {"nll",                  OWN,      .own = tsr_cuda_nll},
    {"nll_backward",         ROWS,     .forms = TSR_FORMS(nll_backward), .grows = true},
    {"nll_gather",           SINGLES,  .forms = REALS(nll_gather)},
    {"norm",                 ROWS,     .forms = TSR_FORMS(norm), .kept = 1},
    {"norm_backward",        OWN,      .own = tsr_cuda_norm_backward},
    {"norm_power",           SINGLES,  .forms = REALS(norm_power)},
    {"norms",                OWN,      .own = tsr_cuda_norms},
    {"optimizer",            ELEMENTS, .forms = REALS(optimizer), .stay = TSR_CUDA_STAY_WIDE},
    {"optimizer_fused",      ELEMENTS, .forms = REALS(optimizer_fused), .stay = TSR_CUDA_STAY_WIDE},
    {"place",                ELEMENTS, .forms = REALS(place)},
    {"rare",                 ELEMENTS, .forms = REALS(rare)},
    {"rotary",               ELEMENTS, .forms = REALS(rotary)},
    {"rotary_table",         SINGLES,  .forms = WORDS(rotary_table)},
    {"row_exp_sum",          ROWS,     .forms = TSR_FORMS(row_exp_sum), .grows = true},
    {"row_max",              ROWS,     .forms = TSR_FORMS(row_max), .grows = true},
    {"row_sums",             ROWS,     .forms = TSR_FORMS(row_sums), .grows = true},
    {"softmax",              ROWS,     .forms = TSR_FORMS(softmax), .kept = 1, .grows = true},
    {"softmax_backward",     ROWS,     .forms = TSR_FORMS(softmax_backward), .kept = 2, .grows = true},
    {"swiglu",               ELEMENTS, .forms = REALS(swiglu)},
    {"swiglu_backward",      ELEMENTS, .forms = REALS(swiglu_backward)},
    {"used_map",             SINGLES,  .forms = WORDS(used_map)},
};
/* clang-format on */

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
