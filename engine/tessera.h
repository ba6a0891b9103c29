/* tessera.h: the public API of the engine. A program that uses the engine includes this file only.
 *
 * One tsr_engine stands for one rank (or one class of ranks that do the same). The life of a job:
 *
 *   tsr_engine_create()                          rank, world, executor, trace sink
 *   tsr_model_llama() / _gpt2() / _mpt() / _tree(), or tsr_module_add() +
 *     tsr_param_add() for an own model
 *   tsr_fully_shard() / tsr_replicate() / tsr_ddp(), bottom-up, then tsr_set_...()
 *   tsr_engine_init_params()                     shards are materialised (iteration -1)
 *   tsr_step_run() per iteration, or tsr_step_forward() / _backward() / _optimizer() by hand
 *
 * Rule numbers (R1 ... R256) and sections are those of engine/SEMANTICS.md.
 *
 * Ownership: everything that the engine returns belongs to the engine and dies with it. Strings and
 * arrays that are passed in are copied. Errors: tsr_status + tsr_error_text(); after a failed step
 * the engine can only be destroyed. One engine is used by one thread at a time.
 */
#ifndef TSR_TESSERA_H
#define TSR_TESSERA_H

#include "engine/allocator/allocator.h"
#include "engine/program/base.h"
#include "engine/program/executor.h"
#include "engine/program/program.h"
#include "engine/program/trace.h"

struct tsr_engine;
struct tsr_module;
struct tsr_param;
struct tsr_tensor;

/* ---- engine ---------------------------------------------------------------------------------- */

enum { TSR_MAX_MESH = 4 };

/* Row-major: the last dimension varies fastest. Product of shape = world. */
struct tsr_mesh {
    int n_dims;
    uint32_t shape[TSR_MAX_MESH];
    char name[TSR_MAX_MESH][32]; /* "" = unnamed */
};

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
    uint32_t rank;
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

tsr_status tsr_engine_create(const struct tsr_engine_config *config,
                             struct tsr_engine **out) TSR_MUST_USE;
void tsr_engine_destroy(struct tsr_engine *engine); /* NULL is fine */
const struct tsr_tables *tsr_engine_tables(const struct tsr_engine *engine);
struct tsr_allocator_stats tsr_engine_memory(const struct tsr_engine *engine);
/* Number of rank classes by layout: ranks with the same local shapes. class_of[world] gets the
 * class of each rank, representative[k] one rank of class k (room for world entries). Call after
 * wrapping. */
tsr_status tsr_engine_rank_classes(struct tsr_engine *engine, uint32_t *class_of,
                                   uint32_t *representative, uint32_t *n_classes) TSR_MUST_USE;

/* ---- models ---------------------------------------------------------------------------------- */

/* Whose module names and order of parameters a model has. */
enum tsr_names {
    TSR_NAMES_HF,   /* Hugging Face: model.layers.0.mlp.gate_proj, transformer.h.0 ... */
    TSR_NAMES_PLAIN /* torchtitan and alike: layers.0.feed_forward.w1; GPT-2: h.0, with [out, in]
                       matrices */
};
/* Whose forward a model runs: what is allocated when, and kept. */
enum tsr_impl {
    TSR_IMPL_PLAIN,       /* plain modules in the style of torchtitan and nanoGPT */
    TSR_IMPL_TRANSFORMERS /* LlamaForCausalLM, GPT2LMHeadModel with the sdpa attention */
};

/* Rotary embedding. theta 0: 10000. llama3: frequencies are scaled as Llama 3.1 does. */
struct tsr_rope {
    double theta;
    bool llama3;
    bool other; /* scaled in a way that no kernel here knows: simulated, not executed */
    uint64_t factor, low_freq_factor, high_freq_factor, original_positions;
};

/* Llama, Mistral, Qwen2, Qwen3 (dense). */
struct tsr_llama_config {
    uint64_t hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim, vocab_size;
    uint64_t max_positions;
    double norm_eps; /* 0: 1e-5 */
    double init_std; /* of matrices and embeddings; 0: 0.02 */
    struct tsr_rope rope;
    bool qkv_bias, o_bias,
        mlp_bias; /* Qwen2: qkv_bias. attention_bias of a config sets q, k, v and o */
    bool qk_norm; /* Qwen3 */
    bool tie_embeddings;
    enum tsr_names names;
    enum tsr_impl impl;
    bool hand_norm; /* RMSNorm of elementary operations instead of one kernel; always so with
                       TSR_IMPL_TRANSFORMERS */
    /* TSR_IMPL_TRANSFORMERS: position ids are read back from the device to see whether sequences
     * are packed; what the read yields is declared here. true: an attention mask is built. */
    bool packed_mask;
};
struct tsr_gpt2_config {
    uint64_t n_embd, n_layer, n_head, n_positions, n_inner, vocab_size; /* n_inner 0: 4 n_embd */
    double norm_eps;                                                    /* 0: 1e-5 */
    double init_std;                                                    /* 0: 0.02 */
    bool untied; /* lm_head has a weight of its own */
    enum tsr_names names;
    enum tsr_impl impl;
    bool packed_mask; /* as above */
};
/* MPT of llm-foundry with learned positions (no ALiBi), biases, low-precision LayerNorm and GELU;
 * module names of MPTForCausalLM. Parameters: vocab_size d + max_seq_len d + 2 d, and in a layer
 * 4 d^2 + 2 d w + 8 d + w + d of width d and feed-forward width w (12 d^2 + 13 d for w = 4 d). */
struct tsr_mpt_config {
    uint64_t d_model, n_heads, n_layers, max_seq_len, vocab_size;
    uint64_t ffn_width; /* expansion_ratio times d_model; 0: 4 d_model */
    double norm_eps;    /* 0: 1e-5 */
    double init_std;    /* 0: 0.02 */
    bool untied;        /* the head has a weight of its own */
    /* flash-attn's variable-length form: each block takes padding away from q, k and v and puts it
     * back, with six reads on the host, although there is none. */
    bool unpad;
};

/* Node of a generic model; types and fields as in tests/golden/README.md ("tree"). */
enum tsr_tree_type {
    TSR_TREE_LINEAR,
    TSR_TREE_EMBEDDING,
    TSR_TREE_RMSNORM,
    TSR_TREE_LAYERNORM,
    TSR_TREE_SCALE,
    TSR_TREE_RELU,
    TSR_TREE_SILU,
    TSR_TREE_GELU,
    TSR_TREE_ATTENTION, /* causal self-attention over [q|k|v] of width (heads + 2 kv_heads)
                           head_dim; no parameters */
    TSR_TREE_SEQ,
    TSR_TREE_LIST
};
struct tsr_tree_node {
    const char *name;
    enum tsr_tree_type type;
    uint64_t in, out;         /* linear; embedding: in = num, out = dim; norms: in = dim */
    uint64_t heads, kv_heads; /* attention */
    uint64_t head_dim;
    bool bias, residual;
    int n_dims; /* scale */
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

/* Each builds the model as the engine's root. One model per engine. */
tsr_status tsr_model_llama(struct tsr_engine *engine,
                           const struct tsr_llama_config *config) TSR_MUST_USE;
tsr_status tsr_model_gpt2(struct tsr_engine *engine,
                          const struct tsr_gpt2_config *config) TSR_MUST_USE;
tsr_status tsr_model_mpt(struct tsr_engine *engine,
                         const struct tsr_mpt_config *config) TSR_MUST_USE;
tsr_status tsr_model_tree(struct tsr_engine *engine,
                          const struct tsr_tree_config *config) TSR_MUST_USE;

/* After a model is built, before wrapping. Patterns: '*' inside one FQN component, '**' anything,
 * "" the root. */
tsr_status tsr_param_tie(struct tsr_engine *engine, const char *fqn,
                         const char *source) TSR_MUST_USE;
tsr_status tsr_param_freeze(struct tsr_engine *engine, const char *pattern) TSR_MUST_USE;
tsr_status tsr_param_set_dtype(struct tsr_engine *engine, const char *pattern,
                               tsr_dtype dtype) TSR_MUST_USE;
void tsr_model_set_meta(struct tsr_engine *engine, bool meta);
/* Stored transposed: fully_shard refuses it (R16). */
tsr_status tsr_param_set_noncontiguous(struct tsr_engine *engine, const char *pattern) TSR_MUST_USE;

struct tsr_module *tsr_module_root(struct tsr_engine *engine);
struct tsr_module *tsr_module_find(struct tsr_engine *engine, const char *fqn); /* NULL if none */
/* Modules that match any of the patterns, in module (pre-)order. out has room for *n entries, *n
 * becomes the number of matches (may be larger than the room). */
void tsr_module_match(struct tsr_engine *engine, const char *const *patterns, size_t n_patterns,
                      struct tsr_module **out, size_t *n);
const char *tsr_module_fqn(const struct tsr_module *module);
const char *
tsr_module_type_name(const struct tsr_module *module); /* "Linear", "LlamaDecoderLayer" ... */
size_t tsr_module_n_children(const struct tsr_module *module);
struct tsr_module *tsr_module_child(const struct tsr_module *module, size_t i);
/* Parameters that the module owns directly. */
size_t tsr_module_n_params(const struct tsr_module *module);
struct tsr_param *tsr_module_param(const struct tsr_module *module, size_t i);

struct tsr_param_info {
    const char *fqn;
    int n_dims;
    uint64_t shape[4];
    uint64_t numel;
    tsr_dtype dtype;
    bool requires_grad;
    bool is_alias; /* tied: counted under its first name */
};
struct tsr_param_info tsr_param_info(const struct tsr_param *param, const struct tsr_module *owner);
uint64_t tsr_model_n_params(struct tsr_engine *engine); /* tied ones once */

/* ---- own models ------------------------------------------------------------------------------ */

/* Runs a module: reads `in` (borrowed), returns a new reference in *out. Use tsr_call() for
 * children, so that their hooks run, and the tsr_op_...() functions of ops.h for work. */
typedef void (*tsr_forward_fn)(struct tsr_engine *engine, struct tsr_module *self, void *impl,
                               struct tsr_tensor *in, struct tsr_tensor **out);
struct tsr_module *tsr_module_add(struct tsr_engine *engine, struct tsr_module *parent,
                                  const char *name, tsr_forward_fn forward,
                                  void *impl); /* parent NULL: the root. NULL on failure */
struct tsr_param *tsr_param_add(struct tsr_engine *engine, struct tsr_module *module,
                                const char *name, int n_dims, const uint64_t *shape,
                                tsr_dtype dtype); /* NULL on failure */
/* Inputs of an own model: (tokens, width) floats with a mean-square loss, or token ids with
 * cross-entropy over `vocab` logits. One of the two is called before the first step. */
void tsr_model_set_float_input(struct tsr_engine *engine, uint64_t width);
void tsr_model_set_token_input(struct tsr_engine *engine, uint64_t vocab);
struct tsr_tensor *tsr_call(struct tsr_engine *engine, struct tsr_module *module,
                            struct tsr_tensor *in);

/* ---- fully_shard, replicate ------------------------------------------------------------------ */

enum tsr_reshard_kind { TSR_RESHARD_DEFAULT, TSR_RESHARD_FALSE, TSR_RESHARD_TRUE, TSR_RESHARD_INT };

struct tsr_mp_policy {
    tsr_dtype param, reduce, output; /* NONE = not set */
    bool no_cast_inputs;             /* cast_forward_inputs = False */
};
enum tsr_offload { TSR_OFFLOAD_NONE, TSR_OFFLOAD_CPU, TSR_OFFLOAD_CPU_PINNED };

struct tsr_shard_dim {
    const char *pattern; /* parameter FQN */
    int dim;             /* negative counts from the end */
    bool replicate;      /* the placement function returns Replicate: an error */
};

/* 2.15: a mesh for some parameters (expert parallelism): shard groups of `size` ranks that lie
 * `stride` apart, and `replicas` such groups side by side that hold the same (1: none). */
struct tsr_param_mesh {
    const char *pattern;  /* parameter FQN */
    const void *identity; /* mesh infos with the same groups must be the same object (R53) */
    uint32_t size, stride, replicas, replica_stride;
};

struct tsr_wrap_options {
    enum tsr_reshard_kind reshard;
    int64_t reshard_int;
    const char *reshard_invalid; /* text of a value that is neither bool nor integer: refused */
    struct tsr_mp_policy mp;
    enum tsr_offload offload;
    bool mirror; /* shards are kept in the compute dtype as well (OPTIONS.md); not with offload */
    bool direct; /* every parameter is gathered into its place (OPTIONS.md) */
    bool folds;  /* gradients stay sums; fused AdamW scales them (OPTIONS.md); not with offload */
    size_t n_shard_dims;
    const struct tsr_shard_dim *shard_dims; /* first match wins; none: dim 0 */
    size_t n_ignored;
    const char *const *ignored; /* parameter patterns */
    /* Names of the mesh dimensions to use, HSDP: replicate, then shard. None: all that no tensor
     * parallelism uses (engine/layout/tensor_parallel.h). */
    int n_mesh_dims;
    const char *const *mesh_dims;
    /* 2.15 only: */
    size_t n_param_meshes;
    const struct tsr_param_mesh *param_meshes; /* first match wins; none: the engine's mesh */
    size_t n_full_precision;
    const char *const *full_precision; /* parameters that mp.param does not cast */
    /* dp_mesh_dims (section 2.8): the engine's mesh is the whole mesh, every parameter a DTensor on
     * it, and these dimensions are data parallel. Several names become one dimension, so they must
     * be neighbours in the mesh. No shard names: fully_shard() behaves as replicate(). */
    int n_spmd_shard, n_spmd_replicate;
    const char *const *spmd_shard, *const *spmd_replicate;
};

/* One call of fully_shard(modules, ...): n > 1 modules form one group (R1-R24). Uses the engine's
 * mesh: 1-D shards, 2-D replicates over dim 0 and shards over dim 1. options NULL: defaults. */
tsr_status tsr_fully_shard(struct tsr_engine *engine, struct tsr_module *const *modules, size_t n,
                           const struct tsr_wrap_options *options) TSR_MUST_USE;
/* replicate() on the FSDP machinery (section 5.1). reshard and shard_dims are ignored. */
tsr_status tsr_replicate(struct tsr_engine *engine, struct tsr_module *const *modules, size_t n,
                         const struct tsr_wrap_options *options) TSR_MUST_USE;

/* FSDP1: FullyShardedDataParallel(module, use_orig_params=True) around one module (FSDP1.md). Its
 * parameters, less those of modules that are wrapped already, become one flat parameter. Calls go
 * bottom-up; the root comes last and has the same options. The mesh gives the strategy: 1-D shards,
 * 2-D replicates over dim 0 and shards over dim 1 (HYBRID_SHARD), one shard rank is NO_SHARD. */
enum tsr_fsdp1_prefetch {
    TSR_FSDP1_BACKWARD_PRE,  /* when a module's backward begins */
    TSR_FSDP1_BACKWARD_POST, /* when its gradients are there */
    TSR_FSDP1_NO_PREFETCH
};
struct tsr_fsdp1_options {
    bool keep_after_forward; /* SHARD_GRAD_OP, _HYBRID_SHARD_ZERO2; else FULL_SHARD, HYBRID_SHARD */
    struct tsr_mp_policy mp; /* output is not used; reduce NONE: that of param, if it is set */
    enum tsr_fsdp1_prefetch backward_prefetch;
    bool forward_prefetch;
    bool no_limit; /* limit_all_gathers=False */
};
tsr_status tsr_fsdp1(struct tsr_engine *engine, struct tsr_module *module,
                     const struct tsr_fsdp1_options *options) TSR_MUST_USE;
/* false: backwards are under no_sync(). */
tsr_status tsr_fsdp1_set_sync(struct tsr_engine *engine, bool sync) TSR_MUST_USE;

/* Bucketed replicate, the DDP-based one (section 5.2-5.4), on the root. */
struct tsr_ddp_options {
    double bucket_cap_mb; /* <= 0: the default, 25 MiB with a first bucket of 1 MiB */
    bool find_unused;
    bool static_graph;
    bool gradient_as_bucket_view;
    struct tsr_mp_policy mp; /* param: forward copies in this dtype; reduce: dtype of the buckets */
    /* Limits of the first bucket, the second ...; the last holds for the rest. NULL: bucket_cap_mb
     */
    const double *bucket_cap_mb_list;
    size_t n_caps;
    bool skip_all_reduce_unused; /* buckets of which every parameter is unused are not reduced */
    const char *device_id;       /* "0", "cuda:0", "cpu"; NULL: none */
    /* Borrowed during the call: */
    size_t n_ignored;
    const char *const *ignored; /* patterns of modules that are left alone, with all below (R215) */
    /* delay_all_reduce_named_params: patterns of parameters whose gradients lie in one buffer that
     * is reduced when the gradient of `delayed_after` is there. Both or neither (R219). */
    size_t n_delayed;
    const char *const *delayed;
    const char *delayed_after;
};
/* Comm hooks replace scaling and all-reduce of a bucket; one at most (RuntimeError). USER: fn gets
 * the bucket on the reduction's stream and emits, e.g. with tsr_emit_all_reduce(). */
enum tsr_ddp_hook {
    TSR_DDP_HOOK_ALLREDUCE,
    TSR_DDP_HOOK_FP16_COMPRESS,
    TSR_DDP_HOOK_BF16_COMPRESS,
    TSR_DDP_HOOK_USER
};
size_t tsr_ddp_n_device_ids(const struct tsr_engine *engine);
/* The bucketed replicate's set_requires_gradient_sync (no_sync). */
tsr_status tsr_ddp_set_sync(struct tsr_engine *engine, bool sync) TSR_MUST_USE;
tsr_status tsr_ddp(struct tsr_engine *engine, const struct tsr_ddp_options *options) TSR_MUST_USE;

/* Activation checkpointing (non-reentrant). outside: hooks run again in the recomputation. */
tsr_status tsr_checkpoint(struct tsr_engine *engine, struct tsr_module *module, bool outside,
                          bool early_stop) TSR_MUST_USE;
/* torchtitan's selective checkpointing by operator: the results of attention kernels and of every
 * second matrix product of the module (the 1st, 3rd, ...) are kept, and what tensor-parallel
 * reduce-scatters returned; the rest is recomputed. */
tsr_status tsr_checkpoint_selective(struct tsr_engine *engine,
                                    struct tsr_module *module) TSR_MUST_USE;

/* ---- methods of a wrapped module (section 4.3) ----------------------------------------------- */

typedef void (*tsr_all_reduce_hook)(struct tsr_engine *engine, struct tsr_tensor *buffer,
                                    void *user);

tsr_status tsr_ddp_register_comm_hook(struct tsr_engine *e, enum tsr_ddp_hook hook,
                                      tsr_all_reduce_hook fn, void *user) TSR_MUST_USE;

tsr_status tsr_set_requires_gradient_sync(struct tsr_engine *e, struct tsr_module *m, bool value,
                                          bool recurse);
tsr_status tsr_set_requires_all_reduce(struct tsr_engine *e, struct tsr_module *m, bool value,
                                       bool recurse);
/* kind must be TRUE or FALSE (R: bool only). */
tsr_status tsr_set_reshard_after_forward(struct tsr_engine *e, struct tsr_module *m, bool value,
                                         bool recurse);
tsr_status tsr_set_reshard_after_backward(struct tsr_engine *e, struct tsr_module *m, bool value,
                                          bool recurse);
tsr_status tsr_set_is_last_backward(struct tsr_engine *e, struct tsr_module *m, bool value);
tsr_status tsr_set_forward_prefetch(struct tsr_engine *e, struct tsr_module *m,
                                    struct tsr_module *const *list, size_t n);
tsr_status tsr_set_backward_prefetch(struct tsr_engine *e, struct tsr_module *m,
                                     struct tsr_module *const *list, size_t n);
tsr_status tsr_unshard(struct tsr_engine *e, struct tsr_module *m, bool async_op);
tsr_status tsr_wait_unshard_handle(struct tsr_engine *e, struct tsr_module *m);
tsr_status tsr_reshard(struct tsr_engine *e, struct tsr_module *m);
tsr_status tsr_set_gradient_divide_factor(struct tsr_engine *e, struct tsr_module *m,
                                          double factor);
tsr_status tsr_set_force_sum(struct tsr_engine *e, struct tsr_module *m, bool value);
tsr_status tsr_set_unshard_in_backward(struct tsr_engine *e, struct tsr_module *m, bool value);
tsr_status tsr_set_unshard_async_op(struct tsr_engine *e, struct tsr_module *m, bool value);
/* own_stream: the hook runs on a stream of its own (1-D meshes only, R170). hook NULL: only traced.
 */
/* [2.15] Reductions of a group may be in flight at once (R158). 1 <= k <= 16. */
tsr_status tsr_set_reduce_scatter_max_input_buffers(struct tsr_engine *e, struct tsr_module *m,
                                                    int64_t k, bool recurse);
/* [2.15] Reduce-scatter on a communicator of its own (R200). */
tsr_status tsr_set_separate_reduce_scatter_group(struct tsr_engine *e, struct tsr_module *m,
                                                 bool value, bool recurse);
/* [2.15] Unused trainable parameters enter the reduction with zeros (R175). */
tsr_status tsr_set_reduce_scatter_unused_params(struct tsr_engine *e, struct tsr_module *m,
                                                bool value, bool recurse);
/* [2.15] Full storage stays on reshard: stable addresses. */
tsr_status tsr_set_keep_unsharded_storage(struct tsr_engine *e, struct tsr_module *m, bool value,
                                          bool recurse);
/* [2.15] The caller ends each backward with tsr_finalize_backward() (R202). Root only. */
tsr_status tsr_set_manual_backward_finalization(struct tsr_engine *e, struct tsr_module *m,
                                                bool value);
tsr_status tsr_finalize_backward(struct tsr_engine *e, struct tsr_module *m);
/* [2.15] After a failed step: drops all gradients, reshards, clears trackers; the next iteration
 * starts clean (R201). Root only. */
tsr_status tsr_reset_iter_state(struct tsr_engine *e, struct tsr_module *m);
/* All-gather extension (section 2.11): what travels is not the shard itself (fp8 data and scales).
 * pre() says what one rank contributes for a shard of `numel` elements: up to 4 inputs, returned is
 * their number; an unevenly cut parameter needs inputs of exactly the padded shard size. post()
 * names the kernel that makes the unsharded parameter from the gathered inputs. */
struct tsr_gather_input {
    uint64_t numel;
    tsr_dtype dtype;
};
struct tsr_gather_extension {
    int (*pre)(void *user, uint64_t numel, struct tsr_gather_input out[4]);
    const char *post;     /* NULL beside a pre(): AssertionError */
    bool free_after_post; /* [2.15] the gathered inputs die when post has run */
    void *user;
};
tsr_status tsr_set_gather_extension(struct tsr_engine *e, const char *pattern,
                                    const struct tsr_gather_extension *extension);
/* Runs after the sharded gradient of a parameter is set, once per reduction (R152). */
typedef void (*tsr_grad_hook)(struct tsr_engine *engine, struct tsr_param *param, void *user);
tsr_status tsr_register_post_accumulate_grad_hook(struct tsr_engine *e, const char *pattern,
                                                  tsr_grad_hook hook, void *user);
tsr_status tsr_set_all_reduce_hook(struct tsr_engine *e, struct tsr_module *m,
                                   tsr_all_reduce_hook hook, void *user, bool own_stream);
/* A collective of one's own (R195, R196). run() emits it on the current stream with the tsr_emit_
 * functions below: `in` is this rank's contribution, `out` the result; group size, own index and
 * communicator are in `call`. allocate() (may be NULL) is told of each buffer before it is made. */
struct tsr_custom_call {
    uint16_t comm; /* index into tsr_tables.comms */
    uint32_t size, index;
    uint8_t reduce_op; /* enum tsr_reduce_op; all-gather: NONE */
    double factor;     /* PREMUL_SUM */
};
struct tsr_custom_comm {
    const char *name;
    void (*run)(struct tsr_engine *e, struct tsr_tensor *out, struct tsr_tensor *in,
                const struct tsr_custom_call *call, void *user);
    void (*allocate)(struct tsr_engine *e, uint64_t numel, tsr_dtype dtype, void *user);
    void *user;
    bool is_pure; /* what they do depends on their arguments only: steps can be replayed (replay.h)
                   */
};
/* NULL: the default again. `comm` is borrowed until the engine dies. */
tsr_status tsr_set_custom_all_gather(struct tsr_engine *e, struct tsr_module *m,
                                     const struct tsr_custom_comm *comm);
tsr_status tsr_set_custom_reduce_scatter(struct tsr_engine *e, struct tsr_module *m,
                                         const struct tsr_custom_comm *comm);
/* Shipped example: pieces cross the network between ranks with the same place in their nodes, then
 * spread inside the nodes. The caller owns `t` and keeps it while the engine lives. */
struct tsr_two_level {
    struct tsr_custom_comm comm; /* for tsr_set_custom_all_gather() */
    uint32_t local_ranks;        /* members of the communicator in one node, side by side */
};
void tsr_two_level_init(struct tsr_two_level *t, uint32_t local_ranks);
/* The same for every group that was wrapped; the engine owns it. */
tsr_status tsr_use_two_level_gather(struct tsr_engine *e, uint32_t gpus_per_node) TSR_MUST_USE;

/* Buffers of collectives come from the process group's own allocator. AssertionError with a custom
 * comm (R197). */
tsr_status tsr_set_allocate_from_process_group(struct tsr_engine *e, struct tsr_module *m,
                                               bool value);
tsr_status tsr_set_post_optim_event(struct tsr_engine *e, struct tsr_module *m);
tsr_status tsr_share_comm_ctx(struct tsr_engine *e, struct tsr_module *const *list, size_t n);
tsr_status tsr_state_dict(struct tsr_engine *e,
                          struct tsr_module *m); /* groups become sharded first */

/* A wrapped module cannot be copied: AssertionError (R20). */
tsr_status tsr_deepcopy(struct tsr_engine *e, struct tsr_module *m);
/* A second way to run an own module, beside its forward. */
tsr_status tsr_module_add_method(struct tsr_engine *e, struct tsr_module *m, const char *name,
                                 tsr_forward_fn method);
/* Runs it; its hooks run only if it was registered. NULL on failure. */
struct tsr_tensor *tsr_call_method(struct tsr_engine *e, struct tsr_module *m, const char *name,
                                   struct tsr_tensor *in);
/* Makes another method of the module run its forward hooks (R122); nothing on a module that is not
 * wrapped (R123). */
tsr_status tsr_register_forward_method(struct tsr_engine *e, struct tsr_module *m,
                                       const char *name);
bool tsr_module_is_wrapped(const struct tsr_module *module);

/* For custom collectives: `bytes` from `offset` of a tensor to or from member `peer` of the
 * communicator; what stands between group_begin and group_end is one launch. */
void tsr_emit_send(struct tsr_engine *e, struct tsr_tensor *t, uint64_t offset, uint64_t bytes,
                   uint16_t comm, uint32_t peer);
void tsr_emit_recv(struct tsr_engine *e, struct tsr_tensor *t, uint64_t offset, uint64_t bytes,
                   uint16_t comm, uint32_t peer);
/* Sums `t` over the ranks of a communicator, in place, on the current stream. */
void tsr_emit_all_reduce(struct tsr_engine *e, struct tsr_tensor *t, uint16_t comm);
void tsr_emit_group_begin(struct tsr_engine *e);
void tsr_emit_group_end(struct tsr_engine *e);
/* Copies inside the device. */
void tsr_emit_device_copy(struct tsr_engine *e, struct tsr_tensor *to, uint64_t to_offset,
                          struct tsr_tensor *from, uint64_t from_offset, uint64_t bytes);
uint64_t tsr_tensor_bytes(const struct tsr_tensor *t);

/* For hooks: emits one kernel that reads and writes `buffer` on the hook's stream. */
void tsr_emit_user_op(struct tsr_engine *engine, struct tsr_tensor *buffer, const char *name,
                      double flops);

/* ---- steps ----------------------------------------------------------------------------------- */

enum tsr_optimizer {
    TSR_OPT_ADAMW_FOREACH,
    TSR_OPT_ADAMW_FUSED,
    TSR_OPT_ADAMW_LOOP,
    TSR_OPT_SGD,
    TSR_OPT_SGD_MOMENTUM,
    TSR_OPT_NONE,
    TSR_OPT_DECOUPLED,     /* composer's DecoupledAdamW: eight kernels for each parameter */
    TSR_OPT_DECOUPLED_READ /* the same; the host reads each parameter's step from the device */
};
/* What micro-batches before the last of an iteration do (section 3.12). */
enum tsr_accumulate {
    TSR_ACCUM_REDUCE_EACH,
    TSR_ACCUM_NO_REDUCE,            /* no-sync: unsharded gradients are kept */
    TSR_ACCUM_NO_REDUCE_NO_RESHARD, /* and parameters stay unsharded */
    TSR_ACCUM_NO_ALL_REDUCE         /* HSDP: reduce-scatter only */
};
/* How gradients are clipped by their global norm. */
enum tsr_clip {
    TSR_CLIP_FOREACH,  /* torch's clip_grad_norm_: kernels over all gradients */
    TSR_CLIP_LOOP,     /* FSDP1's: a norm and a product for each gradient */
    TSR_CLIP_LOOP_READ /* as in torch 2.1 and before: the host waits once */
};
/* How the cross-entropy of logits is made (the eager dialect). */
enum tsr_loss_kernel {
    TSR_LOSS_EAGER,        /* fp32 copy, log-softmax, nll */
    TSR_LOSS_FLASH,        /* flash-attn's: one kernel in the dtype of the logits */
    TSR_LOSS_FLASH_INPLACE /* the same with inplace_backward: gradients take the logits' place */
};
enum { TSR_MAX_METRICS = 8 };
/* Where the host stops until the device has come so far. */
enum tsr_sync {
    TSR_SYNC_NONE,
    TSR_SYNC_LOSS, /* it reads the loss of each micro-batch before backward: loss.item() */
    TSR_SYNC_STEP  /* it waits for all streams at the end of the iteration */
};

struct tsr_step_config {
    uint64_t batch, seq; /* sequences and tokens per micro-batch and rank */
    uint32_t n_micro;    /* micro-batches per iteration */
    enum tsr_optimizer optimizer;
    enum tsr_accumulate accumulate;
    bool clip; /* by the global norm */
    enum tsr_clip clip_how;
    enum tsr_loss_kernel loss_kernel;
    /* Plain cross-entropies over the logits of every micro-batch, after its backward and without
     * gradients, as a trainer's metrics have them. Logits then live until the next micro-batch has
     * its own. Not with a loss in chunks. At most TSR_MAX_METRICS. */
    uint32_t metrics;
    /* The host reads the loss at the end of the iteration, as a logger does, and so waits for all
     * of the compute stream. */
    bool reads_loss;
    /* > 1: the head makes the loss in so many chunks of tokens, with its gradients, and returns it
     * instead of logits (ops_chunked_loss.c). Llama family and GPT-2 without tensor parallelism. */
    uint64_t loss_chunks;
    bool decay_matrices_only; /* weight decay leaves out parameters of one dimension */
    bool sgd_decay;           /* SGD with momentum adds decayed parameters to the gradient */
    /* The loss of every micro-batch, and the norm when gradients are clipped, go to the host: a
     * copy that nobody waits for before the end of the iteration, then HOST_OPs "report". */
    bool report;
    enum tsr_sync sync;
    /* In which optimizer states are kept; NONE: that of the parameter. Kernels load and store it
     * and compute in the dtype of the parameter, without a cast copy of the states; temporaries of
     * foreach and loop, made from a state, have its dtype. */
    tsr_dtype state_dtype;
};
tsr_status tsr_step_configure(struct tsr_engine *engine,
                              const struct tsr_step_config *config) TSR_MUST_USE;

/* Materialises the parameters (phase init). Call once, after wrapping and before the first step. */
tsr_status tsr_engine_init_params(struct tsr_engine *engine) TSR_MUST_USE;
/* One whole iteration: inputs, zero_grad, forward/loss/backward per micro-batch, clip, optimizer.
 */
tsr_status tsr_step_run(struct tsr_engine *engine, uint32_t iteration) TSR_MUST_USE;

/* The request that ended a step with TSR_EOOM. */
struct tsr_oom {
    uint8_t category; /* enum tsr_category */
    struct tsr_origin origin;
    struct tsr_allocator_oom memory; /* its size and stream, and what there was after the retry */
};
/* False: no step ran out of memory. */
bool tsr_engine_oom(const struct tsr_engine *engine, struct tsr_oom *out);

/* The parts, for own schedules. `entry`: run this submodule instead of the root (NULL: the root).
 */
tsr_status tsr_step_begin(struct tsr_engine *engine,
                          uint32_t iteration) TSR_MUST_USE; /* inputs, zero_grad */
tsr_status tsr_step_forward(struct tsr_engine *engine, uint32_t micro, struct tsr_module *entry,
                            bool no_grad) TSR_MUST_USE;
tsr_status tsr_step_backward(struct tsr_engine *engine, const uint32_t *micros,
                             size_t n) TSR_MUST_USE;
tsr_status tsr_step_optimizer(struct tsr_engine *engine) TSR_MUST_USE; /* clip, optimizer */
tsr_status tsr_step_end(struct tsr_engine *engine) TSR_MUST_USE;       /* inputs are dropped */

/* ---- outside the step (outside_step.c) ------------------------------------------------------- */

/* Each is a section of a run between two iterations, after tsr_engine_init_params(); what it does
 * is instructions of phase load, eval or save. Errors: TSR_EUNSUPPORTED for full state dicts of
 * tensor-parallel models; TSR_EOOM. Rank 0 has more to do in the full ones: its program is its own.
 */
enum tsr_load {
    TSR_LOAD_SHARDED,   /* each rank reads its shards to the host and copies them in */
    TSR_LOAD_FULL_RANK0 /* rank 0 has everything on the host and broadcasts tensor by tensor */
};
/* optimizer: its states, too; they are made first, as by a step with zero gradients. */
tsr_status tsr_load_run(struct tsr_engine *engine, enum tsr_load how, bool optimizer) TSR_MUST_USE;
/* A forward with its loss, without gradients, of one micro-batch. Sharded gradients of the last
 * step stay. */
tsr_status tsr_eval_run(struct tsr_engine *engine) TSR_MUST_USE;

enum tsr_save {
    TSR_SAVE_SHARDED,     /* each rank copies its shards through pinned memory and writes them */
    TSR_SAVE_FULL_RANK0,  /* tensors are gathered on every device; rank 0 keeps them on the host */
    TSR_SAVE_FULL_DEVICE, /* as before, but every rank keeps all of them on its device */
    /* Each rank copies its shards to pinned memory beside the next step, and they are written
     * after it (OPTIONS.md). */
    TSR_SAVE_SHARDED_ASYNC
};
static inline bool tsr_save_is_sharded(enum tsr_save how)
{
    return how == TSR_SAVE_SHARDED || how == TSR_SAVE_SHARDED_ASYNC;
}
/* Parameters and optimizer states. */
tsr_status tsr_save_run(struct tsr_engine *engine, enum tsr_save how) TSR_MUST_USE;
/* Of TSR_SAVE_SHARDED_ASYNC: the step is still to come whose end hands the copies over. */
bool tsr_save_is_copying(const struct tsr_engine *engine);
/* Waits until what is being saved is written, and gives the copies' memory back; the next save does
 * so, too. Nothing if nothing is being saved. */
tsr_status tsr_save_end(struct tsr_engine *engine) TSR_MUST_USE;

/* ---- what was built (for inspection and layout tables) --------------------------------------- */

struct tsr_group_info {
    const char *name; /* FQNs of its modules, joined by ", " */
    const char *api;  /* "fully_shard", "replicate", "fsdp1" */
    size_t n_modules, n_params;
    const char *const *modules; /* FQNs */
    const char *const *params;  /* FQNs, order of the flat buffer */
    uint64_t shard_numel; /* padded elements that one rank contributes; full size for replicate */
    uint64_t all_gather_numel; /* 0 for replicate */
};
size_t tsr_n_groups(
    struct tsr_engine *engine); /* wrapped states in module order, also those without parameters */
struct tsr_group_info tsr_group_info(struct tsr_engine *engine, size_t i);

struct tsr_param_layout {
    const char *fqn, *group; /* group NULL: not managed */
    int n_dims;
    uint64_t shape[4];
    int shard_dim; /* -1: replicated */
    uint64_t padded[4];
    tsr_dtype dtype, param_dtype, reduce_dtype; /* the last two NONE: no cast */
    bool requires_grad;
    bool is_untied;  /* outside the groups: what a group's call left of a tie (section 2.1) */
    bool has_dtypes; /* the group was lazily initialised: param_dtype, reduce_dtype are known */
    size_t n_aliases;
    const char *const *aliases;
};
size_t tsr_n_param_layouts(struct tsr_engine *engine); /* in module order */
struct tsr_param_layout tsr_param_layout(struct tsr_engine *engine, size_t i);
/* Local shape on shard rank r. */
void tsr_param_local_shape(struct tsr_engine *engine, size_t i, uint32_t shard_rank,
                           uint64_t out[4]);
uint32_t tsr_shard_world(const struct tsr_engine *engine); /* ranks over which parameters are cut */

/* Where values lie, for those who look at what an executor computed (after a drain). */
struct tsr_values {
    uint32_t buffer;
    uint8_t space; /* enum tsr_space */
    tsr_dtype dtype;
    uint64_t offset, numel; /* bytes into the buffer; elements of this rank, without padding */
};
/* False: there is none. The loss of a micro-batch, between its forward and its backward. */
bool tsr_loss_values(const struct tsr_engine *engine, uint32_t micro, struct tsr_values *out);
enum tsr_param_part { TSR_PARAM_VALUE, TSR_PARAM_GRAD, TSR_PARAM_STATE0, TSR_PARAM_STATE1 };
/* Of parameter i of tsr_n_param_layouts(); its place in the whole: tsr_param_dtensor(). */
bool tsr_param_values(struct tsr_engine *engine, size_t i, enum tsr_param_part part,
                      struct tsr_values *out);

/* The reducer's buckets after the latest backward (tsr_ddp). */
struct tsr_bucket_info {
    size_t index, n_params;
    const char *const *params; /* FQNs in bucket order */
    uint64_t numel, bytes;
    bool last;
};
size_t tsr_ddp_n_buckets(struct tsr_engine *engine);
struct tsr_bucket_info tsr_ddp_bucket(struct tsr_engine *engine, size_t i);

#endif
