/* build.h: from a resolved strategy to an engine that is ready to run. */
#ifndef TSR_STUDY_BUILD_H
#define TSR_STUDY_BUILD_H

#include "experiments/study/job/job.h"

/* Creates the engine of `rank`: model, checkpointing, wrapping, prefetch lists, step. Parameters
 * are not materialised yet. Errors are those of the engine, with the place of the key that caused
 * them. */
tsr_status tsr_build(const struct tsr_job *job, uint32_t rank, struct tsr_executor *executor,
                     struct tsr_engine **out) TSR_MUST_USE;

/* Builds rank 0's engine, lets `use` look at it (NULL: nobody does) and throws it away. */
typedef tsr_status (*tsr_engine_fn)(const struct tsr_job *job, struct tsr_engine *engine,
                                    void *user);
tsr_status tsr_build_aside(const struct tsr_job *job, tsr_engine_fn use, void *user) TSR_MUST_USE;
/* Finds mistakes before anything runs. */
tsr_status tsr_build_check(const struct tsr_job *job) TSR_MUST_USE;

/* wrap.c: checkpointed blocks, groups and prefetch lists. */
tsr_status tsr_apply_wrap(const struct tsr_job *job, struct tsr_engine *engine) TSR_MUST_USE;

/* A list of modules. */
struct tsr_modules {
    struct tsr_module **items;
    size_t n;
};
/* The repeated blocks of the model, in order. The array is malloc()ed. */
tsr_status tsr_find_blocks(const struct tsr_job *job, struct tsr_engine *engine,
                           struct tsr_modules *out) TSR_MUST_USE;
/* Modules that own parameters and lie before or after the blocks in module order, none inside
 * another (embedding; final norm and head). Arrays are malloc()ed. Tied parameters of the two sides
 * put everything into `after`. */
tsr_status tsr_find_sides(const struct tsr_job *job, struct tsr_engine *engine,
                          const struct tsr_modules *blocks, struct tsr_modules *before,
                          struct tsr_modules *after) TSR_MUST_USE;
/* All modules that match the patterns. The array is malloc()ed. */
tsr_status tsr_match_modules(struct tsr_engine *engine, const char *const *patterns, size_t n,
                             struct tsr_modules *out) TSR_MUST_USE;

#endif
