/* blas.c: products, and the plans that are kept. */
#include "exec/cuda/blas/blas_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_keys(const void *a, const void *b)
{
    const struct tsr_blas_key *x = a, *y = b;
    for (int i = 0; i < TSR_BLAS_FIELDS; i++)
        if (x->field[i] != y->field[i])
            return x->field[i] < y->field[i] ? -1 : 1;
    return 0;
}

/* Where a key is, or would be. */
static size_t place_of(const struct tsr_blas *blas, const struct tsr_blas_key *key, bool *found)
{
    size_t low = 0, high = blas->n;
    *found = false;
    while (low < high && !*found) {
        size_t middle = low + (high - low) / 2;
        int order = compare_keys(key, &blas->plans[middle].key);
        *found = order == 0;
        if (order > 0)
            low = middle + 1;
        else
            high = middle;
    }
    return *found ? high : low;
}

struct tsr_blas_plan *tsr__blas_find(const struct tsr_blas *blas, const struct tsr_blas_key *key)
{
    bool found;
    size_t at = place_of(blas, key, &found);
    return found ? &blas->plans[at] : NULL;
}

tsr_status tsr__blas_keep(struct tsr_blas *blas, const struct tsr_blas_plan *plan)
{
    bool found;
    size_t at = place_of(blas, &plan->key, &found);
    if (!found) {
        if (blas->n == blas->capacity) {
            size_t capacity = blas->capacity ? 2 * blas->capacity : 64;
            struct tsr_blas_plan *plans = realloc(blas->plans, capacity * sizeof *plans);
            if (!plans)
                return tsr_no_memory("plans of matrix products");
            blas->plans = plans;
            blas->capacity = capacity;
        }
        memmove(blas->plans + at + 1, blas->plans + at, (blas->n - at) * sizeof *blas->plans);
        blas->n++;
    }
    blas->plans[at] = *plan;
    return TSR_OK;
}

tsr_status tsr_blas_create(const struct tsr_blas_config *config, struct tsr_blas **out)
{
    struct tsr_blas *blas = calloc(1, sizeof *blas);
    if (!blas)
        return tsr_no_memory("cuBLASLt");
    blas->gpu = *config->gpu;
    blas->deterministic = config->deterministic;
    blas->tune = config->tune;
    pthread_mutex_init(&blas->lock, NULL);
    cublasStatus_t result = cublasLtCreate(&blas->handle);
    tsr_status status = TSR_OK;
    if (result != CUBLAS_STATUS_SUCCESS) {
        blas->handle = NULL;
        status =
            tsr_fail(TSR_EBACKEND, "cuBLASLt does not start: %s", cublasLtGetStatusString(result));
    } else if (config->plans && config->tune) {
        status = tsr__blas_path(&blas->gpu, config->plans, &blas->path);
        if (status == TSR_OK)
            status = tsr__blas_read_file(blas);
    }
    if (status != TSR_OK) {
        tsr_blas_destroy(blas);
        blas = NULL;
    }
    *out = blas;
    return status;
}

void tsr_blas_destroy(struct tsr_blas *blas)
{
    if (!blas)
        return;
    /* Without the file, the next process times them again: no more is lost. */
    (void)(tsr_blas_save(blas) == TSR_OK);
    if (blas->handle)
        cublasLtDestroy(blas->handle);
    pthread_mutex_destroy(&blas->lock);
    free(blas->plans);
    free(blas->path);
    free(blas);
}

tsr_status tsr_blas_save(struct tsr_blas *blas)
{
    tsr_status status = TSR_OK;
    pthread_mutex_lock(&blas->lock);
    if (blas->path && blas->n_unsaved) {
        status = tsr__blas_read_file(blas); /* what other processes have found meanwhile */
        if (status == TSR_OK)
            status = tsr__blas_write_file(blas);
        if (status == TSR_OK)
            blas->n_unsaved = 0;
    }
    pthread_mutex_unlock(&blas->lock);
    return status;
}

const char *tsr_blas_note(struct tsr_blas *blas)
{
    pthread_mutex_lock(&blas->lock);
    snprintf(blas->note, sizeof blas->note, "%s", blas->file_note);
    if (blas->n_untimed) {
        size_t used = strlen(blas->note);
        snprintf(blas->note + used, sizeof blas->note - used,
                 "%s%zu matrix products run cuBLASLt's first choice: they could not be timed "
                 "(a stream that is captured, or no memory for a second result)",
                 used ? "; " : "", blas->n_untimed);
    }
    pthread_mutex_unlock(&blas->lock);
    return blas->note;
}

/* The plan that is kept for the problem, checked if it comes from the file. */
static bool known(struct tsr_blas *blas, struct tsr_blas_problem *p, struct tsr_blas_plan *out)
{
    pthread_mutex_lock(&blas->lock);
    struct tsr_blas_plan *plan = tsr__blas_find(blas, &p->key);
    bool usable = plan != NULL;
    if (plan && plan->origin == TSR_BLAS_FROM_FILE) {
        usable = tsr__blas_check(blas, p, &plan->algo);
        if (usable)
            plan->origin = TSR_BLAS_TIMED;
    }
    if (usable)
        *out = *plan;
    pthread_mutex_unlock(&blas->lock);
    return usable;
}

/* Plans the problem, and keeps the plan, unless another thread was faster: then it takes that. */
static tsr_status plan(struct tsr_blas *blas, struct tsr_blas_problem *p, struct tsr_blas_plan *out)
{
    tsr_status status = tsr__blas_plan(blas, p, out);
    if (status != TSR_OK)
        return status;
    pthread_mutex_lock(&blas->lock);
    const struct tsr_blas_plan *kept = tsr__blas_find(blas, &p->key);
    if (kept && kept->origin != TSR_BLAS_FROM_FILE) {
        *out = *kept;
    } else {
        status = tsr__blas_keep(blas, out);
        blas->n_unsaved += out->origin == TSR_BLAS_TIMED;
        blas->n_untimed += out->origin == TSR_BLAS_FIRST && blas->tune;
    }
    pthread_mutex_unlock(&blas->lock);
    return status;
}

tsr_status tsr_blas_run(struct tsr_blas *blas, const struct tsr_cuda_context *context,
                        const struct tsr_blas_gemm *gemm)
{
    struct tsr_blas_problem p;
    struct tsr_blas_plan found;
    TSR_TRY(tsr__blas_describe(blas, context, gemm, &p));
    if (!known(blas, &p, &found))
        TSR_TRY(plan(blas, &p, &found));
    cublasStatus_t result = CUBLAS_STATUS_NOT_SUPPORTED;
    if (found.origin != TSR_BLAS_NONE)
        result = tsr__blas_launch(blas, &p, &found.algo, gemm->out);
    if (result == CUBLAS_STATUS_SUCCESS)
        return TSR_OK;
    return tsr_fail(result == CUBLAS_STATUS_NOT_SUPPORTED ? TSR_EUNSUPPORTED : TSR_EBACKEND,
                    "matrix product (%llu, %llu) x (%llu, %llu): cuBLASLt says '%s'",
                    (unsigned long long)gemm->m, (unsigned long long)gemm->k,
                    (unsigned long long)gemm->k, (unsigned long long)gemm->n,
                    cublasLtGetStatusString(result));
}
