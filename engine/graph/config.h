/* config.h: what an engine is created with: mesh, dialect, executor, memory. tsr_engine_create()
 * (engine/create.h) takes it; every folder reads it.
 */
#ifndef TSR_ENGINE_CONFIG_H
#define TSR_ENGINE_CONFIG_H

#include "engine/allocator/allocator.h"
#include "engine/program/executor.h"
#include "engine/program/trace.h"

enum { TSR_MAX_MESH = 4 };

/* The ranks in 1 to TSR_MAX_MESH dimensions, row-major: the last one varies fastest. Product of
 * shape = world. */
struct tsr_mesh {
    int n_dims;
    uint32_t shape[TSR_MAX_MESH];
    char name[TSR_MAX_MESH][32]; /* "" = unnamed */
};

/* How attention over all heads is computed. */
enum tsr_attention {
    TSR_SDPA_FLASH,     /* the fastest backend that serves: flash, else efficient, else math */
    TSR_SDPA_EFFICIENT, /* efficient, else math */
    TSR_SDPA_MATH,
    TSR_ATTENTION_EAGER /* transformers' eager attention: scores, softmax, product */
};

/* Which kernels a model is made of. */
enum tsr_dialect {
    TSR_DIALECT_EAGER, /* those of eager PyTorch, with what it allocates and saves */
    TSR_DIALECT_FUSED, /* our own where there are some (KERNELS.md, Fused): plain Llama and GPT-2 */
    TSR_DIALECT_COMPILE /* each block by torch.compile (COMPILE.md), the rest eager; simulated only
                         */
};

/* In what the products of linear layers inside blocks run (FP8.md). */
enum tsr_linear {
    TSR_LINEAR_PLAIN,          /* the dtype of the parameters */
    TSR_LINEAR_FP8_TENSORWISE, /* fp8, scaled dynamically as torchao does; dialect compile */
    TSR_LINEAR_FP8_DELAYED     /* fp8, delayed scaling of TransformerEngine; dialect eager, fused */
};

/* Whose behaviour the hooks have, where releases differ (rules marked [2.15]). */
enum tsr_version { TSR_TORCH_2_11, TSR_TORCH_2_15 };

/* How parameters come to be (phase init). */
enum tsr_init {
    TSR_INIT_META,   /* built on the meta device, sharded, to_empty(): only shards exist */
    TSR_INIT_DEVICE, /* built on the device, then sharded: the whole model is there first */
    TSR_INIT_HOST    /* built in host memory: each sharding call brings its modules over */
};

struct tsr_engine_config {
    enum tsr_version version;
    enum tsr_init init;
    struct tsr_mesh mesh;
    uint32_t rank;                      /* in the mesh: below the product of its shape */
    struct tsr_executor *executor;      /* borrowed until tsr_engine_destroy(); required */
    const struct tsr_trace_sink *trace; /* optional; copied */
    struct tsr_allocator_config allocator;
    enum tsr_attention attention;
    enum tsr_dialect dialect;
    enum tsr_linear linear;
    /* fp8_tensorwise with fully_shard: those layers' weights travel in fp8 (torchao's
     * enable_fsdp_float8_all_gather). */
    bool fp8_gather;
    bool gqa_repeat; /* repeat K and V heads before attention (transformers, torchtitan) */
    /* As PyTorch runs while something records every operation (a dispatch mode): sums of gradients
     * and the mask of math attention go into new tensors, where they otherwise go in place if they
     * may (golden-memory/operators.md, sections 3 and 7). */
    bool instrumented;
};

#endif
