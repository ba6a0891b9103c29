/* blas.c: products, the plans that are kept, and the file that keeps them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/cuda/blas/blas_impl.h"
#include "sim/base/disk.h"
#include "sim/base/files.h"

/* The name of the file for this GPU, driver and library: *out is the caller's to free(). */
static tsr_status tsr__blas_path(const struct tsr_cuda_gpu *gpu, const char *folder,
                                 char **out) TSR_MUST_USE;

static tsr_status tsr__blas_write_file(struct tsr_blas *blas) TSR_MUST_USE;

/* Reads the file at blas->path: plans that are not there yet. What is wrong with it goes to
 * blas->file_note. TSR_ENOMEM. */
static tsr_status tsr__blas_read_file(struct tsr_blas *blas) TSR_MUST_USE;

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

/* With the lock: the plan of a key, or NULL. */
static struct tsr_blas_plan *tsr__blas_find(const struct tsr_blas *blas,
                                            const struct tsr_blas_key *key)
{
    bool found;
    size_t at = place_of(blas, key, &found);
    return found ? &blas->plans[at] : NULL;
}

/* With the lock: keeps a plan, in the place of one with its key. TSR_ENOMEM. */
static tsr_status tsr__blas_keep(struct tsr_blas *blas, const struct tsr_blas_plan *plan)
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
    tsr_status status;
    *out = NULL;
    if (result != CUBLAS_STATUS_SUCCESS) {
        blas->handle = NULL;
        TSR_GOTO(failed, tsr_fail(TSR_EBACKEND, "cuBLASLt does not start: %s",
                                  cublasLtGetStatusString(result)));
    }
    if (config->plans && config->tune) {
        TSR_GOTO(failed, tsr__blas_path(&blas->gpu, config->plans, &blas->path));
        TSR_GOTO(failed, tsr__blas_read_file(blas));
    }
    *out = blas;
    return TSR_OK;
failed:
    tsr_blas_destroy(blas);
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
    if (!blas->path || !blas->n_unsaved)
        goto done;
    TSR_GOTO(done, tsr__blas_read_file(blas)); /* what other processes have found meanwhile */
    TSR_GOTO(done, tsr__blas_write_file(blas));
    blas->n_unsaved = 0;
done:
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

/* A product that adds to its result cannot be timed there. It takes the algorithm of the one that
 * is alike and does not add, which the first micro-batch has had timed, if there is one. */
static bool alike(struct tsr_blas *blas, struct tsr_blas_problem *p, struct tsr_blas_plan *out)
{
    struct tsr_blas_key key = p->key;
    if (!(key.field[TSR_BLAS_FLAGS] & TSR_BLAS_ADD))
        return false;
    key.field[TSR_BLAS_FLAGS] &= ~(uint64_t)TSR_BLAS_ADD;
    pthread_mutex_lock(&blas->lock);
    const struct tsr_blas_plan *timed = tsr__blas_find(blas, &key);
    bool usable = timed && timed->origin == TSR_BLAS_TIMED;
    if (usable)
        *out = *timed;
    pthread_mutex_unlock(&blas->lock);
    out->key = p->key;
    return usable && tsr__blas_check(blas, p, &out->algo);
}

/* Plans the problem, and keeps the plan, unless another thread was faster: then it takes that. */
static tsr_status plan(struct tsr_blas *blas, struct tsr_blas_problem *p, struct tsr_blas_plan *out)
{
    tsr_status status = alike(blas, p, out) ? TSR_OK : tsr__blas_plan(blas, p, out);
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

/* ---- the file of plans ----------------------------------------------------------------------- */

/* The file of plans. Text: what it belongs to, a line for every plan (the key, then
 * the algorithm as the library has it, then its time), and a checksum of all that. */

enum { MOST_BYTES = 16 << 20, WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t) };

/* What the file belongs to: its first lines. */
static int head(const struct tsr_cuda_gpu *gpu, char *out, size_t n)
{
    return snprintf(out, n, "tessera plans of matrix products 1\ngpu %s\ndriver %d\ncublaslt %zu\n",
                    gpu->name, gpu->driver, cublasLtGetVersion());
}

static tsr_status tsr__blas_path(const struct tsr_cuda_gpu *gpu, const char *folder, char **out)
{
    char path[TSR_PATH_BYTES], name[sizeof gpu->name];
    size_t n = 0;
    for (; n + 1 < sizeof name && gpu->name[n]; n++) {
        char c = gpu->name[n];
        bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        name[n] = plain ? c : '-';
    }
    name[n] = 0;
    TSR_TRY(tsr_path(path, "%s/%s-driver-%d-cublaslt-%zu.plans", folder, name, gpu->driver,
                     cublasLtGetVersion()));
    *out = strdup(path);
    return *out ? TSR_OK : tsr_no_memory(path);
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool read_number(const char **at, int base, uint64_t *out)
{
    char *end;
    *out = strtoull(*at, &end, base);
    bool ok = end != *at;
    *at = end;
    return ok;
}

/* A line of a plan; *at moves behind it. */
static bool read_plan(const char **at, struct tsr_blas_plan *plan)
{
    *plan = (struct tsr_blas_plan){.origin = TSR_BLAS_FROM_FILE};
    for (int i = 0; i < TSR_BLAS_FIELDS; i++)
        if (!read_number(at, 10, &plan->key.field[i]))
            return false;
    for (int i = 0; i < WORDS; i++)
        if (!read_number(at, 16, &plan->algo.data[i]))
            return false;
    char *end;
    plan->microseconds = strtod(*at, &end);
    bool ok = end != *at && *end == '\n';
    *at = end + ok;
    return ok;
}

/* The text is whole: its last line is the checksum of what stands before. */
static bool is_whole(const char *text, size_t n, size_t *body)
{
    static const char mark[] = "\nchecksum ";
    const char *last = NULL;
    for (const char *at = text; (at = strstr(at, mark)); at++)
        last = at;
    if (!last || strlen(text) != n)
        return false;
    *body = (size_t)(last - text) + 1;
    const char *at = last + sizeof mark - 1;
    uint64_t sum;
    return read_number(&at, 16, &sum) && *at == '\n' && sum == tsr_hash_bytes(0, text, *body);
}

/* NULL: fine; else what is wrong with the text. */
static const char *take_text(struct tsr_blas *blas, const char *text, size_t n, tsr_status *status)
{
    char expected[512];
    size_t body, of_head = (size_t)head(&blas->gpu, expected, sizeof expected);
    if (!is_whole(text, n, &body))
        return "is damaged";
    if (body < of_head || memcmp(text, expected, of_head) != 0)
        return "is of another GPU, driver or library";
    const char *at = text + of_head, *end = text + body;
    while (at < end && *status == TSR_OK) {
        struct tsr_blas_plan plan;
        if (!read_plan(&at, &plan))
            return "is damaged";
        if (!tsr__blas_find(blas, &plan.key))
            *status = tsr__blas_keep(blas, &plan);
    }
    return NULL;
}

static tsr_status tsr__blas_read_file(struct tsr_blas *blas)
{
    char *text = NULL;
    size_t n;
    tsr_status status = TSR_OK;
    if (tsr_kind_of(NULL, blas->path) == TSR_KIND_NONE)
        return TSR_OK; /* the first time */
    const char *wrong = "cannot be read";
    if (tsr_file_read(NULL, blas->path, MOST_BYTES, &text, &n) == TSR_OK)
        wrong = take_text(blas, text, n, &status);
    if (wrong)
        snprintf(blas->file_note, sizeof blas->file_note,
                 "%.160s %s: matrix products are timed again", blas->path, wrong);
    free(text);
    return status;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void write_plan(FILE *f, const struct tsr_blas_plan *plan)
{
    for (int i = 0; i < TSR_BLAS_FIELDS; i++)
        fprintf(f, "%" PRIu64 " ", plan->key.field[i]);
    for (int i = 0; i < WORDS; i++)
        fprintf(f, "%" PRIx64 " ", plan->algo.data[i]);
    fprintf(f, "%.3f\n", plan->microseconds);
}

/* The text of the file; NULL: out of memory. */
static char *text_of(const struct tsr_blas *blas, size_t *n)
{
    char *text = NULL, first[512];
    FILE *f = open_memstream(&text, n);
    if (!f)
        return NULL;
    head(&blas->gpu, first, sizeof first);
    fputs(first, f);
    for (size_t i = 0; i < blas->n; i++)
        if (blas->plans[i].origin >= TSR_BLAS_TIMED)
            write_plan(f, &blas->plans[i]);
    if (fflush(f) == 0)
        fprintf(f, "checksum %016" PRIx64 "\n", tsr_hash_bytes(0, text, *n));
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
}

/* Through a file of this rank alone: others, threads or processes, may be writing, too. */
static tsr_status tsr__blas_write_file(struct tsr_blas *blas)
{
    char path[TSR_PATH_BYTES], part[TSR_PATH_BYTES];
    struct tsr_folder folder = TSR_NO_FOLDER;
    const char *name;
    size_t n;
    char *text = text_of(blas, &n);
    if (!text)
        return tsr_no_memory(blas->path);
    tsr_status status;
    TSR_GOTO(end, tsr_path(path, "%s", blas->path));
    *strrchr(path, '/') = 0;
    TSR_GOTO(end, tsr_disk_make_dirs(&tsr_disk_posix, path));
    TSR_GOTO(end, tsr_folder_around(blas->path, &folder, &name));
    TSR_GOTO(end, tsr_path(part, "%s.%ld-%" PRIxPTR, name, (long)getpid(), (uintptr_t)blas));
    TSR_GOTO(end, tsr_disk_write_file(&tsr_disk_posix, &folder, part, text, n));
    status = tsr_disk_move(&tsr_disk_posix, &folder, part, name);
end:
    tsr_folder_close(&folder);
    free(text);
    return status;
}
