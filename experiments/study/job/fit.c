/* fit.c: what the card leaves, and whether the allocator can do with it. */
#include "experiments/study/job/fit.h"

#include <string.h>

#include "experiments/study/job/emit.h"
#include "sim/network/nccl_memory.h"

/* What a CUDA context with the device code of PyTorch's libraries takes at most: vLLM measured
 * 1.79 GiB outside PyTorch's allocator on one 79.2 GiB card (vllm-project/vllm#10511). */
static const uint64_t CONTEXT_AND_LIBRARIES_AT_MOST = UINT64_C(2) << 30;

const char *tsr_fits_text(int verdict)
{
    return verdict == TSR_FITS_YES       ? "yes"
           : verdict == TSR_FITS_RETRIES ? "yes, retries"
           : verdict == TSR_FITS_NO      ? "NO"
                                         : "?";
}

const char *tsr_fits_word(int verdict)
{
    return verdict == TSR_FITS_YES       ? "yes"
           : verdict == TSR_FITS_RETRIES ? "retries"
           : verdict == TSR_FITS_NO      ? "no"
                                         : "unknown";
}

/* ---- what the card leaves -------------------------------------------------------------------- */

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static tsr_status find_nccl(const struct tsr_job *job, const struct tsr_emission *emission,
                            struct tsr_fit *fit)
{
    fit->has_nccl = *job->cluster.name;
    for (uint32_t i = 0; i < emission->n_classes && fit->has_nccl; i++) {
        struct tsr_nccl_memory nccl;
        TSR_TRY(tsr_nccl_memory_of(&job->cluster, &job->settings->sim,
                                   (const struct tsr_program *const *)emission->classes[i].programs,
                                   emission->n_iterations, &nccl));
        fit->nccl = tsr_max_u64(fit->nccl, nccl.bytes);
        fit->nccl_at_most = tsr_max_u64(fit->nccl_at_most, nccl.at_most);
    }
    return TSR_OK;
}

/* Of the context and libraries. */
static uint64_t unknown_inner(const struct tsr_gpu *gpu)
{
    bool is_known = gpu->context_bytes && gpu->library_bytes;
    return is_known ? 0
                    : less(CONTEXT_AND_LIBRARIES_AT_MOST, gpu->context_bytes + gpu->library_bytes);
}

uint64_t tsr_fit_budget(const struct tsr_gpu *gpu)
{
    return less(gpu->visible_bytes, unknown_inner(gpu));
}

/* A budget of the user's own is what may be taken, all told: nothing unknown comes on top. */
static void find_left(const struct tsr_job *job, struct tsr_fit *fit)
{
    const struct tsr_gpu *gpu = &job->cluster.gpu;
    uint64_t inner = gpu->context_bytes + gpu->library_bytes;
    uint64_t unknown = unknown_inner(gpu) + fit->nccl_at_most - fit->nccl;
    if (job->budget_bytes)
        unknown = 0;
    fit->usable = job->budget_bytes ? job->budget_bytes : gpu->visible_bytes;
    fit->left = less(fit->usable, inner + fit->nccl);
    fit->left_surely = less(fit->left, unknown);
}

tsr_status tsr_fit_limit(const struct tsr_job *job, const struct tsr_emission *emission,
                         uint64_t *out)
{
    struct tsr_fit fit = {.verdict = TSR_FITS_UNKNOWN};
    TSR_TRY(find_nccl(job, emission, &fit));
    find_left(job, &fit);
    *out = fit.left;
    return TSR_OK;
}

/* ---- what the allocator does ----------------------------------------------------------------- */

/* A run of releases is one answer to one request. */
static uint32_t count_releases(const struct tsr_program *program)
{
    uint32_t n = 0;
    bool releases = false;
    for (size_t i = 0; i < program->n_instrs; i++) {
        bool is_release = program->instrs[i].kind == TSR_SEGMENT_FREE;
        n += is_release && !releases;
        releases = is_release;
    }
    return n;
}

/* Steps that are alike go on so; else those after the first, on the average. */
static double steady_retries(const struct tsr_emission *emission, struct tsr_emitted_class *class)
{
    uint32_t last = emission->steady, n = 0;
    for (uint32_t i = emission->first + 1; i <= last; i++)
        n += count_releases(class->programs[i]);
    bool alike = last > emission->first && n > 0 &&
                 tsr_emitted_hash(class, last) == tsr_emitted_hash(class, last - 1);
    if (alike || last == emission->first)
        return count_releases(class->programs[last]);
    return (double)n / (last - emission->first);
}

static uint32_t count_all(const struct tsr_emission *emission)
{
    uint32_t most = 0;
    for (uint32_t c = 0; c < emission->n_classes; c++) {
        uint32_t all = 0;
        for (uint32_t i = 0; i < emission->n_iterations; i++)
            all += count_releases(emission->classes[c].programs[i]);
        most = all > most ? all : most;
    }
    return most;
}

static void count_retries(const struct tsr_emission *emission, struct tsr_fit *fit)
{
    fit->retries = 0;
    fit->all_retries = count_all(emission);
    for (uint32_t c = 0; c < emission->n_classes; c++) {
        double each = steady_retries(emission, &emission->classes[c]);
        fit->retries = each > fit->retries ? each : fit->retries;
    }
}

static void find_peaks(const struct tsr_emission *emission, uint64_t *reserved, uint64_t *requested)
{
    *reserved = *requested = 0;
    for (uint32_t c = 0; c < emission->n_classes; c++) {
        struct tsr_allocator_stats stats = tsr_engine_memory(emission->classes[c].engine);
        *reserved = tsr_max_u64(*reserved, stats.peak_reserved);
        *requested = tsr_max_u64(*requested, stats.peak_requested);
    }
}

/* False in *runs: it does not run with this limit. Else *out is to be freed. */
static tsr_status try_limit(const struct tsr_job *job, uint64_t limit, struct tsr_emission *out,
                            bool *runs)
{
    struct tsr_job limited = *job;
    limited.limit_bytes = limit;
    limited.is_trial = true;
    memset(out, 0, sizeof *out);
    *runs = false;
    if (!limit)
        return TSR_OK;
    tsr_status status = tsr_emit(&limited, out);
    if (status == TSR_EOOM)
        return TSR_OK;
    *runs = status == TSR_OK;
    return status;
}

static bool retries(const struct tsr_fit *fit)
{
    return fit->all_retries > 0;
}

/* The programs of a limit take the place of those without, unless the user chose. */
static void take(const struct tsr_job *job, struct tsr_emission *limited, uint64_t limit,
                 struct tsr_fit *fit, struct tsr_emission *emission)
{
    bool has_own = job->settings->alloc_limit == TSR_LIMIT_CARD && retries(fit);
    if (!has_own) /* what it does with less is no news of a run that was emitted with a limit */
        count_retries(limited, fit);
    if (job->settings->alloc_limit == TSR_LIMIT_AUTO && retries(fit)) {
        double seconds = emission->seconds + limited->seconds;
        tsr_emission_fini(emission);
        *emission = *limited;
        emission->seconds = seconds;
        fit->limit = limit;
    } else {
        tsr_emission_fini(limited);
    }
}

/* Memory is beyond what is surely left: by how much can the allocator do with less? */
static tsr_status try_limits(const struct tsr_job *job, struct tsr_emission *emission,
                             uint64_t requested, struct tsr_fit *fit)
{
    struct tsr_emission limited;
    bool runs = false;
    if (requested <= fit->left_surely)
        TSR_TRY(try_limit(job, fit->left_surely, &limited, &runs));
    if (runs) {
        take(job, &limited, fit->left_surely, fit, emission);
        fit->verdict = retries(fit) ? TSR_FITS_RETRIES : TSR_FITS_YES;
        return TSR_OK;
    }
    if (fit->left > fit->left_surely)
        TSR_TRY(try_limit(job, fit->left, &limited, &runs));
    if (runs) {
        take(job, &limited, fit->left, fit, emission);
        fit->short_of = less(tsr_min_u64(fit->wanted, fit->left), fit->left_surely);
        return TSR_OK;
    }
    fit->verdict = TSR_FITS_NO;
    fit->short_of = less(fit->wanted, fit->left);
    return TSR_OK;
}

tsr_status tsr_fit_emission(const struct tsr_job *job, struct tsr_emission *emission)
{
    struct tsr_fit fit = {.is_known = true, .verdict = TSR_FITS_UNKNOWN};
    uint64_t requested;
    TSR_TRY(find_nccl(job, emission, &fit));
    find_left(job, &fit);
    find_peaks(emission, &fit.wanted, &requested);
    count_retries(emission, &fit);
    tsr_status status = TSR_OK;
    if (fit.usable && fit.wanted <= fit.left_surely) {
        fit.verdict = retries(&fit) ? TSR_FITS_RETRIES : TSR_FITS_YES;
    } else if (fit.usable && requested > fit.left) { /* whatever the allocator does */
        fit.verdict = TSR_FITS_NO;
        fit.short_of = fit.wanted - fit.left;
    } else if (fit.usable) {
        status = try_limits(job, emission, requested, &fit);
    }
    bool has_limit = job->settings->alloc_limit == TSR_LIMIT_CARD;
    if (has_limit && count_all(emission) > 0)
        fit.limit = fit.left;
    emission->fit = fit;
    return status;
}

tsr_status tsr_fit_measured(const struct tsr_job *job, const struct tsr_emission *emission,
                            uint64_t reserved, struct tsr_fit *out)
{
    *out = (struct tsr_fit){.is_known = true, .verdict = TSR_FITS_UNKNOWN, .wanted = reserved};
    TSR_TRY(find_nccl(job, emission, out));
    find_left(job, out);
    if (!out->usable)
        return TSR_OK;
    out->verdict = reserved <= out->left_surely ? TSR_FITS_YES
                   : reserved > out->left       ? TSR_FITS_NO
                                                : TSR_FITS_UNKNOWN;
    out->short_of = less(reserved, out->verdict == TSR_FITS_NO ? out->left : out->left_surely);
    return TSR_OK;
}
