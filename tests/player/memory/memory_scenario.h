/* memory_scenario.h: a scenario of recorded memory (tests/golden-memory/README.md) as `tessera
 * memory` sees it.
 */
#ifndef TSR_PLAYER_MEMORY_SCENARIO_H
#define TSR_PLAYER_MEMORY_SCENARIO_H

#include <jansson.h>

#include "engine/tessera.h"
#include "experiments/study/model/trace_file.h"

/* The largest device that a scenario may have. */
#define TSR_MEMORY_DEVICE_LIMIT (UINT64_C(1) << 50)

enum tsr_memory_family { TSR_MEMORY_LLAMA, TSR_MEMORY_GPT2, TSR_MEMORY_MPT };

/* Which modules become groups: blocks; the parts beside them too; nothing; and the root. */
enum tsr_memory_wrap {
    TSR_MEMORY_WRAP_BLOCK_ROOT,
    TSR_MEMORY_WRAP_EMBED_BLOCK_TAIL_ROOT,
    TSR_MEMORY_WRAP_ROOT
};
enum tsr_memory_ac {
    TSR_AC_NONE,
    TSR_AC_FULL,
    TSR_AC_EVERY2,
    TSR_AC_SELECTIVE_OP,
};

/* A scenario, read and checked. Owns `file`; `object` and `name` point into it, `path` is
 * borrowed. Of the three models the family's is filled; none where there is a trace. */
struct tsr_memory_scenario {
    json_t *file, *object; /* the file (owned) and the scenario in it */
    const char *path, *name;
    struct tsr_engine_config engine; /* without executor and variant */
    struct tsr_llama_config llama;
    struct tsr_gpt2_config gpt2;
    struct tsr_mpt_config mpt;
    enum tsr_memory_family family;
    bool is_replicate, is_traced;
    struct tsr_traced_file trace;            /* is_traced: owned */
    const struct tsr_trace_variant *variant; /* of the trace */
    enum tsr_reshard_kind root_reshard;      /* of a traced model's root */
    int64_t root_reshard_int;
    unsigned wrap, ac; /* enum tsr_memory_wrap, enum tsr_memory_ac */
    struct tsr_wrap_options options;
    struct tsr_step_config step;
    uint64_t forward_prefetch, backward_prefetch, iterations;
};

/* Reads FILE: a scenario, or an object that has one under the key "scenario". trace: the file of
 * its traced model; NULL: it has a preset. Errors: TSR_ECONFIG, one line with file, key, value and
 * what is allowed. `path` is borrowed. On failure nothing is to be freed. */
tsr_status tsr_memory_scenario_load(const char *path, const char *trace,
                                    struct tsr_memory_scenario *out) TSR_MUST_USE;
void tsr_memory_scenario_fini(struct tsr_memory_scenario *scenario);

/* Builds the engine of one variant: as PyTorch runs, or as it runs while being recorded. The
 * parameters are not materialised yet. */
tsr_status tsr_memory_scenario_build(const struct tsr_memory_scenario *s,
                                     struct tsr_executor *executor, bool instrumented,
                                     struct tsr_engine **out) TSR_MUST_USE;

/* Prefetches of a list of groups as the scenario says: the nearest first, as far as there are any.
 */
tsr_status tsr_memory_set_prefetch(const struct tsr_memory_scenario *s, struct tsr_engine *engine,
                                   struct tsr_module *const *modules, size_t n) TSR_MUST_USE;

/* "layers.3": name of the block that a parameter belongs to, if that block is checkpointed; returns
 * its length, else 0. */
size_t tsr_memory_checkpointed_prefix(const struct tsr_memory_scenario *s, const char *fqn);

#endif
