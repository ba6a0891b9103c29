/* fit.h: whether a strategy fits on its card: the one verdict that every table, file and search
 * shows, and what it rests on.
 *
 * The allocator has what the card leaves: what a process sees of it, less the CUDA context, the
 * libraries and NCCL. Some of these are known from below only, so there are two limits: what is
 * left if nothing comes on top of what is known, and what certainly is. Reserved memory beyond a
 * limit is no end yet: PyTorch's allocator frees what it has cached and asks again. So where memory
 * is between the two, or above them, the programs are emitted once more with that limit.
 */
#ifndef TSR_STUDY_FIT_H
#define TSR_STUDY_FIT_H

#include "engine/program/base.h"
#include "sim/card/gpu.h"

struct tsr_emission;
struct tsr_job;

enum tsr_fits {
    TSR_FITS_UNKNOWN = -1, /* what is not known may be more than what is left; or nothing is known
                              of the card (usable 0) */
    TSR_FITS_NO,
    TSR_FITS_YES,
    TSR_FITS_RETRIES /* yes, but the allocator gives back what it has cached and asks again */
};

/* Bytes of one GPU, the fullest, over all programs that were emitted. */
struct tsr_fit {
    bool is_known; /* it was looked into */
    enum tsr_fits verdict;
    uint64_t usable; /* what a process sees of the card, or plan.budget_gib; 0: unknown */
    bool has_nccl;   /* there is a cluster: what follows is known */
    uint64_t nccl, nccl_at_most;
    uint64_t left;        /* of usable, beside what is known of context, libraries and NCCL */
    uint64_t left_surely; /* beside the most that these may take */
    uint64_t wanted;      /* reserved by an allocator without a limit */
    uint64_t short_of; /* NO: wanted beyond left. UNKNOWN: what may be lacking at most, if all that
                          is not known is as large as it can be */
    double retries;    /* per step, in the long run */
    uint32_t all_retries; /* in all programs that were emitted */
    uint64_t limit;       /* that the emission's programs were emitted with; 0: none */
};

/* job->limit_bytes: never, whatever the settings say. */
#define TSR_UNLIMITED UINT64_MAX

/* Fills emission->fit. With allocator.limit: auto the emission is replaced by that of the limit
 * with which it runs, where that changes it. Emits up to two more times. Errors: those of
 * tsr_emit() but TSR_EOOM; *emission is then as it was. */
tsr_status tsr_fit_emission(const struct tsr_job *job, struct tsr_emission *emission) TSR_MUST_USE;
/* The same from figures alone, without emitting: of programs that ran, so that the allocator had
 * enough. */
tsr_status tsr_fit_measured(const struct tsr_job *job, const struct tsr_emission *emission,
                            uint64_t reserved, struct tsr_fit *out) TSR_MUST_USE;
/* What the card leaves the allocator in a job with these programs; for allocator.limit: card. */
tsr_status tsr_fit_limit(const struct tsr_job *job, const struct tsr_emission *emission,
                         uint64_t *out) TSR_MUST_USE;

/* What a card has for the allocator, NCCL and what is known of its context and libraries, whatever
 * else these two take; 0: unknown. What needs more does not surely fit. */
uint64_t tsr_fit_budget(const struct tsr_gpu *gpu);

/* "yes", "NO", "?", "yes, retries" */
const char *tsr_fits_text(int verdict);
/* For files: "yes", "no", "unknown", "retries". */
const char *tsr_fits_word(int verdict);

#endif
