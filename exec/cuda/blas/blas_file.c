/* blas_file.c: the file of plans. Text: what it belongs to, a line for every plan (the key, then
 * the algorithm as the library has it, then its time), and a checksum of all that.
 */
#include "exec/cuda/blas/blas_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/base/disk.h"

enum { MOST_BYTES = 16 << 20, WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t) };

/* What the file belongs to: its first lines. */
static int head(const struct tsr_cuda_gpu *gpu, char *out, size_t n)
{
    return snprintf(out, n, "tessera plans of matrix products 1\ngpu %s\ndriver %d\ncublaslt %zu\n",
                    gpu->name, gpu->driver, cublasLtGetVersion());
}

tsr_status tsr__blas_path(const struct tsr_cuda_gpu *gpu, const char *folder, char **out)
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

tsr_status tsr__blas_read_file(struct tsr_blas *blas)
{
    char *text = NULL;
    size_t n;
    tsr_status status = TSR_OK;
    if (access(blas->path, F_OK) != 0)
        return TSR_OK; /* the first time */
    const char *wrong = "cannot be read";
    if (tsr_disk_read_file(blas->path, MOST_BYTES, &text, &n) == TSR_OK)
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
tsr_status tsr__blas_write_file(struct tsr_blas *blas)
{
    char path[TSR_PATH_BYTES], folder[TSR_PATH_BYTES];
    size_t n;
    char *text = text_of(blas, &n);
    if (!text)
        return tsr_no_memory(blas->path);
    tsr_status status;
    TSR_GOTO(end, tsr_path(folder, "%s", blas->path));
    *strrchr(folder, '/') = 0;
    TSR_GOTO(end, tsr_disk_make_dirs(&tsr_disk_posix, folder));
    TSR_GOTO(end, tsr_path(path, "%s.%ld-%" PRIxPTR, blas->path, (long)getpid(), (uintptr_t)blas));
    TSR_GOTO(end, tsr_disk_write_file(&tsr_disk_posix, path, text, n));
    status = tsr_disk_move(&tsr_disk_posix, path, blas->path);
end:
    free(text);
    return status;
}
