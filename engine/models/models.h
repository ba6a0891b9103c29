/* models.h: the models that come with the engine: Llama, GPT-2, MPT, and generic trees. A model of
 * one's own: engine/graph/module_tree.h.
 */
#ifndef TSR_ENGINE_MODELS_H
#define TSR_ENGINE_MODELS_H

#include "engine/graph/architecture.h"

struct tsr_engine;

/* Node of a generic model; types and fields as in tests/golden/README.md ("tree"). */
enum tsr_tree_type {
    TSR_TREE_LINEAR,
    TSR_TREE_EMBEDDING,
    TSR_TREE_RMSNORM,
    TSR_TREE_LAYERNORM,
    TSR_TREE_SCALE,
    TSR_TREE_RELU,
    TSR_TREE_SILU,
    TSR_TREE_GELU,      /* tanh form */
    TSR_TREE_GELU_ERF,  /* torch.nn.GELU() */
    TSR_TREE_ATTENTION, /* self-attention over [q|k|v] of width (heads + 2 kv_heads) head_dim; no
                           parameters */
    TSR_TREE_SWIGLU,    /* silu(g) * u of [g|u]: half as wide; no parameters */
    TSR_TREE_OP,        /* an operation that is only priced (tsr_op_generic()) */
    TSR_TREE_SEQ,
    TSR_TREE_LIST
};
struct tsr_tree_node {
    const char *name;
    enum tsr_tree_type type;
    uint64_t in, out;         /* linear; embedding: in = num, out = dim; norms: in = dim */
    uint64_t heads, kv_heads; /* attention */
    uint64_t head_dim;
    double eps; /* norms; 0: 1e-5 */
    bool bias, residual;
    bool full; /* attention: not causal */
    struct tsr_tree_op {
        uint64_t params;                       /* elements of a parameter "weight"; 0: none */
        double flops, bytes;                   /* as struct tsr_generic */
        double backward_flops, backward_bytes; /* below 0: twice the forward's */
        uint64_t saved_bytes;
        bool per_sequence, saves_input;
    } op;              /* in: 0: any; out: 0: the width of the input */
    const char *where; /* for messages: where it was described, "FILE:LINE:COLUMN"; may be NULL */
    int n_dims;        /* scale */
    uint64_t dims[4];
    const char *ref; /* FQN of an earlier module: the same object again */
    size_t n_children;
    const struct tsr_tree_node *children;
    size_t n_run; /* names of the children to run, in order; 0: all, in order (run_none: nothing) */
    const char *const *run;
    bool run_none;
    int n_run_at; /* other lists for given iterations */
    const struct tsr_tree_run {
        int iteration;
        size_t n_run;
        const char *const *run;
    } * run_at;
};
struct tsr_tree_config {
    struct tsr_tree_node root; /* its children are the model; type SEQ */
    uint64_t tokens;           /* vocabulary of the input; 0: float input */
    uint64_t in_dim;           /* width of a float input */
    bool loss_mse;             /* else cross-entropy over all positions */
    uint64_t target_dim;       /* width of the target of a mean-square loss; 0: there is none */
    tsr_dtype param_dtype;     /* NONE = f32 */
};

/* Each builds the model as the engine's root; `config` is copied. Errors: TSR_EVALUE if the
 * engine has a model already, or for sizes and names that make none: in a tree each module takes
 * the width that the one before it gives; TSR_EUNSUPPORTED for modules that the dialect has no
 * kernels for; TSR_ENOMEM. */
tsr_status tsr_model_llama(struct tsr_engine *engine,
                           const struct tsr_llama_config *config) TSR_MUST_USE;
tsr_status tsr_model_gpt2(struct tsr_engine *engine,
                          const struct tsr_gpt2_config *config) TSR_MUST_USE;
tsr_status tsr_model_mpt(struct tsr_engine *engine,
                         const struct tsr_mpt_config *config) TSR_MUST_USE;
tsr_status tsr_model_tree(struct tsr_engine *engine,
                          const struct tsr_tree_config *config) TSR_MUST_USE;

#endif
