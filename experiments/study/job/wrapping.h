/* wrapping.h: what `checkpoint`, `wrap` and the prefetch lists of a strategy stand for in a model:
 * which modules are checkpointed, and the calls that shard, in their order. wrap.c makes these
 * calls on an engine, experiments/study/code writes them down for PyTorch.
 */
#ifndef TSR_STUDY_WRAPPING_H
#define TSR_STUDY_WRAPPING_H

#include "experiments/study/job/build.h"

/* One call of fully_shard(), replicate() or FSDP1. */
struct tsr_wrap_call {
    const struct tsr_wrap_entry *entry; /* of a `wrap` list; NULL: a keyword's */
    struct tsr_reshard_value reshard;
    struct tsr_modules modules; /* several form one group */
};

/* Modules belong to the engine, whose model is built, the arrays to this. */
struct tsr_wrapping {
    struct tsr_modules checkpointed; /* blocks, in order */
    struct tsr_wrap_call *calls;     /* [n_calls], bottom-up; none for api: ddp */
    size_t n_calls, cap_calls;
    struct tsr_modules units; /* the first module of each call but the root, in module order: what
                                 prefetch lists are made of */
};

/* Errors: TSR_ECONFIG with the place of the key, TSR_ENOMEM. On failure *out needs no _fini. */
tsr_status tsr_wrapping_of(const struct tsr_job *job, struct tsr_engine *engine,
                           struct tsr_wrapping *out) TSR_MUST_USE;
void tsr_wrapping_fini(struct tsr_wrapping *wrapping);

/* The units that unit `i` gathers ahead, nearest first: returns how many, at most TSR_MAX_AHEAD. */
enum { TSR_MAX_AHEAD = 1024 }; /* as the keys have it */
size_t tsr_units_ahead(const struct tsr_wrapping *wrapping, const struct tsr_settings *settings,
                       size_t i, bool backward, struct tsr_module **out);

#endif
