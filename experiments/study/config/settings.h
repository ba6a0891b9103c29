/* settings.h: the keys of an experiment file, one table row each, and the values that they set.
 *
 * The table (keys.def) is the only place that knows a key: the parser, the validator, the reference
 * (`tessera help keys`) and --print-config are driven by it.
 */
#ifndef TSR_STUDY_SETTINGS_H
#define TSR_STUDY_SETTINGS_H

#include "engine/tessera.h"
#include "experiments/study/base/yaml.h"
#include "experiments/study/config/section.h"
#include "sim/sim.h"

enum tsr_api { TSR_API_FULLY_SHARD, TSR_API_REPLICATE, TSR_API_DDP, TSR_API_FSDP1 };
enum tsr_wrap_kind { TSR_WRAP_BLOCK, TSR_WRAP_BLOCK_EMBED_HEAD, TSR_WRAP_ROOT, TSR_WRAP_LIST };
enum tsr_hooks { TSR_HOOKS_INSIDE, TSR_HOOKS_OUTSIDE };
enum tsr_limit { TSR_LIMIT_AUTO, TSR_LIMIT_CARD, TSR_LIMIT_NONE };
enum tsr_norm { TSR_NORM_KERNEL, TSR_NORM_HAND };
/* The words of optimizer.variant; sgd has the first three. */
enum tsr_adamw {
    TSR_ADAMW_FOREACH,
    TSR_ADAMW_FUSED,
    TSR_ADAMW_LOOP,
    TSR_ADAMW_DECOUPLED,
    TSR_ADAMW_DECOUPLED_READ
};
/* The words of compile.components. */
enum tsr_compiled_part { TSR_COMPILE_MODEL, TSR_COMPILE_LOSS };
enum tsr_opt_name { TSR_OPTIM_ADAMW, TSR_OPTIM_SGD, TSR_OPTIM_NONE };

struct tsr_reshard_value {
    enum tsr_reshard_kind kind;
    int64_t value; /* of TSR_RESHARD_INT */
};

/* One call of fully_shard() or replicate() of a `wrap` list. */
struct tsr_wrap_entry {
    const struct tsr_yaml_node *at;
    size_t n_modules;
    const char *const *modules; /* patterns */
    bool group;                 /* all matches form one group */
    bool has_reshard;           /* else the strategy's */
    struct tsr_reshard_value reshard;
};

struct tsr_wrap_value {
    enum tsr_wrap_kind kind;
    size_t n_entries; /* of TSR_WRAP_LIST */
    const struct tsr_wrap_entry *entries;
};

struct tsr_shape_value {
    uint32_t n; /* 0: not set */
    uint32_t size[TSR_MAX_MESH];
};

/* Ids of keys, in the order of help and of printed files: precision.param is TSR_K_PRECISION_PARAM.
 */
#define KEY(id, ...) TSR_K_##id,
enum tsr_key_id {
#include "experiments/study/config/keys.def"
    TSR_N_KEYS
};
#undef KEY

enum tsr_order { TSR_ORDER_SHUFFLED, TSR_ORDER_SEQUENTIAL };
enum tsr_decay { TSR_DECAY_ALL, TSR_DECAY_MATRICES };

/* What only `tessera run` on the host or on GPUs asks for. */
struct tsr_run_settings {
    const char *weights;     /* of Hugging Face */
    const char *train, *val; /* token files, separated by commas */
    unsigned order, decay;   /* enum tsr_order, tsr_decay */
    unsigned schedule;       /* enum tsr_schedule_kind */
    uint64_t steps, warmup, seed, log_every;
    double lr, min_lr, beta1, beta2, eps, weight_decay, momentum, dampening, max_norm;
    uint64_t eval_every, eval_batches, save_every, keep;
    bool save_last;
};

#define TSR_CKPT_SELECTIVE_OP UINT64_MAX

/* A module tree: the path of a file, or the tree itself as it stands in the experiment; neither:
 * none is given. */
struct tsr_tree_value {
    const char *path;
    const struct tsr_yaml_node *node;
};

/* The keys of a cluster that is described in the experiment (struct tsr_cluster_keys). */
struct tsr_own_cluster {
    const char *gpu;
    uint64_t nodes, gpus, nics, leaf_nodes; /* 0: not given */
    unsigned nvlink;                        /* enum tsr_nvlink */
    double nic_gbit, oversubscription;      /* NaN: not given */
};

/* What `tessera goodput` asks for besides the strategy. */
struct tsr_goodput_settings {
    double node_mtbf_s, interval_s, restart_s, storage_bw, days; /* interval 0: only the best one */
    bool asynchronous;
    uint64_t runs;
};

/* One resolved strategy: the value of every key. Strings belong to the experiment. */
struct tsr_settings {
    const struct tsr_yaml_node *from[TSR_N_KEYS]; /* where the value was given; NULL: the default */

    const char *stack; /* whose defaults go before those of the table (stack.h); NULL: none */
    const char *model, *model_blocks, *cluster, *gpu;
    struct tsr_tree_value model_tree;
    const char *model_trace, *model_variant;
    struct tsr_own_cluster own;             /* in the place of `cluster`, or over its file */
    uint64_t nodes, gpus_per_node;          /* 0: as in the cluster's file */
    uint64_t model_layers, model_positions; /* 0: as in the model's file */
    unsigned model_impl, model_names;       /* enum tsr_impl, tsr_names */
    unsigned model_norm;                    /* enum tsr_norm */
    bool model_packed;
    uint64_t world; /* 0: all GPUs of the cluster, or the product of the mesh */
    struct tsr_shape_value mesh;
    uint64_t mesh_replicate, mesh_shard; /* 0: not set */

    uint64_t batch, seq;
    uint64_t accum_steps;
    unsigned accum_mode; /* enum tsr_accumulate */
    uint64_t iterations;

    unsigned master, param, reduce, output; /* tsr_dtype */
    bool cast_inputs;
    unsigned optimizer, variant; /* enum tsr_opt_name; enum tsr_adamw */
    unsigned state_dtype;        /* tsr_dtype; NONE: that of precision.master */
    bool momentum, nesterov, maximize, amsgrad, clip, reads_loss;
    unsigned clip_how, loss_kernel; /* enum tsr_clip, tsr_loss_kernel */
    uint64_t metrics;
    uint64_t loss_chunks;
    unsigned sync;       /* enum tsr_sync */
    uint64_t ckpt_every; /* 0: none; TSR_CKPT_SELECTIVE_OP: every block, by operator */
    uint64_t ckpt_first; /* from 1; 0: the k-th */
    uint64_t ckpt_count; /* at most so many; 0: all */
    double ckpt_share;   /* of the blocks, evenly spread; 1: as `every` says */
    unsigned ckpt_hooks; /* enum tsr_hooks */
    bool ckpt_early_stop;
    unsigned attention;     /* enum tsr_attention */
    unsigned dialect;       /* enum tsr_dialect */
    unsigned compile_parts; /* set of 1 << enum tsr_compiled_part, of TSR_DIALECT_COMPILE */
    unsigned linear;        /* enum tsr_linear */
    bool fp8_gather;        /* beside linear: fp8_tensorwise */
    bool gqa_repeat, attention_unpad;
    uint64_t tp; /* tensor-parallel ranks; 1: none */
    bool sequence_parallel;
    bool two_level_gather, separate_reduce;
    bool mirror, direct_gather, folded_scale;

    unsigned phases;     /* set of 1 << enum tsr_section; 0: not asked for */
    unsigned init;       /* enum tsr_init */
    unsigned load, save; /* enum tsr_load, tsr_save */
    bool load_optimizer;

    const char *description;
    unsigned api; /* enum tsr_api */
    struct tsr_wrap_value wrap;
    struct tsr_reshard_value reshard;
    bool reshard_after_backward;
    uint64_t forward_prefetch, backward_prefetch;
    unsigned offload; /* enum tsr_offload */
    double ddp_bucket_mb;
    bool ddp_find_unused, ddp_static_graph, ddp_view;
    unsigned fsdp1_backward_prefetch; /* enum tsr_fsdp1_prefetch */
    bool fsdp1_forward_prefetch, fsdp1_limit_all_gathers;

    double data_host_gib; /* GiB of each node's host that the dataset holds */
    struct tsr_run_settings run;

    struct tsr_allocator_config allocator;
    unsigned alloc_limit; /* enum tsr_limit */
    struct tsr_sim_options sim;
    uint64_t samples; /* simulations with other noise each */
    struct tsr_goodput_settings goodput;
    double calibration[TSR_N_CALIBRATIONS]; /* over the device file's; NaN: not given */
};

/* Returns true if the strategy asks torch.compile for its blocks, or for its loss. */
static inline bool tsr_settings_compile(const struct tsr_settings *s, enum tsr_compiled_part part)
{
    return s->dialect == TSR_DIALECT_COMPILE && (s->compile_parts >> part & 1);
}

enum tsr_key_type {
    TSR_KEY_STRING,
    TSR_KEY_UINT,   /* uint64_t */
    TSR_KEY_UINT32, /* uint32_t or unsigned */
    TSR_KEY_BOOL,
    TSR_KEY_DOUBLE,
    TSR_KEY_ENUM, /* unsigned: index into words */
    TSR_KEY_SHAPE,
    TSR_KEY_RESHARD,
    TSR_KEY_WRAP,
    TSR_KEY_CHECKPOINT, /* uint64_t: 0 none, 1 full, k, or TSR_CKPT_SELECTIVE_OP */
    TSR_KEY_LIST,       /* unsigned: set of words, given as a list in their order; null: empty */
    TSR_KEY_FAULTS,     /* struct tsr_faults */
    TSR_KEY_TRAFFIC,    /* struct tsr_traffic_list */
    TSR_KEY_TREE        /* struct tsr_tree_value */
};

/* What another value of a key leaves as it is. The bounds of a plan rest on it (plan/README.md). */
enum tsr_preserved {
    TSR_PRESERVES_MODEL = 1, /* what modules compute, and keep for backward */
    TSR_PRESERVES_STATE = 2, /* shards of parameters, the optimizer's states and its kernels */
    TSR_PRESERVES_HOOKS = 4  /* what is gathered and reduced, and the copies around it */
};

/* A row of the table of keys: everything that reading, printing, checking and help know of a key.
 * All of it is static. */
/* What becomes of a key in code and configuration that is written for PyTorch. */
enum tsr_export {
    TSR_EXPORT_SAID,      /* the file says it */
    TSR_EXPORT_BROUGHT,   /* the user's program has it: model, data, loop */
    TSR_EXPORT_SIMULATED, /* it is of the simulation alone */
    TSR_EXPORT_LACKING,   /* the format cannot say it */
    TSR_N_EXPORTS
};
enum { TSR_N_EXPORT_FORMATS = 3 }; /* torch, torchtitan, accelerate (code/code.h) */

/* What becomes of some values of a key. A list ends with the first whose value is NULL. */
struct tsr_key_export {
    const char *value;                     /* as tsr_key_format() has it; NULL: any other */
    uint8_t becomes[TSR_N_EXPORT_FORMATS]; /* enum tsr_export */
    const char
        *note; /* beside LACKING: what to do instead; beside BROUGHT: what is to be brought */
};

struct tsr_key {
    const char *name; /* "precision.param" */
    enum tsr_key_type type;
    size_t offset;   /* in struct tsr_settings */
    const char *def; /* YAML text; NULL: what tsr_settings_default() puts there by itself */
    double min, max; /* numbers */
    double scale;    /* a DOUBLE or UINT is multiplied by it when it is stored; 0: 1 */
    const char *const *words; /* ENUM: the values; UINT: words for 0, 1, ...; NULL-terminated */
    const char *help;
    unsigned reads;      /* set of 1 << enum tsr_api: the APIs that read it */
    unsigned changes;    /* what another value changes beside speed: set of enum tsr_change */
    unsigned preserves;  /* set of enum tsr_preserved */
    unsigned class_rank; /* position, from 1, among the keys in which measured classes differ; 0:
                            classes do not depend on it. Result files list keys in this order */
    const struct tsr_key_export *exports;
    bool comes_from_script; /* the training script sets it beside written code: `check` needs it */
};

extern const struct tsr_key tsr_keys[TSR_N_KEYS];
/* True if the strategies of an API read the key. */
bool tsr_key_is_read(const struct tsr_key *key, unsigned api);
/* True if the strategies of an API read some key that `name` is, or is a prefix of: a sweep or a
 * search over others would only repeat itself. A mesh gives every API its number of ranks, unless
 * the key `world` does. */
bool tsr_name_is_read(const char *name, unsigned api, bool has_world);
/* "fully_shard, replicate or fsdp1": the APIs that read the key; "" if all do. */
void tsr_key_readers(const struct tsr_key *key, char *out, size_t size);
/* Returns the id of the key with this name; TSR_N_KEYS if there is none. */
size_t tsr_key_find(const char *name);
/* True if some key begins with "NAME.". */
bool tsr_key_is_prefix(const char *name);
/* "mesh" -> "mesh.shape": where a value goes that is given to the prefix itself; NULL if none. */
const char *tsr_key_shorthand(const char *prefix);
/* True for prefixes (model, mesh, cluster) whose keys make one thing: a value of the prefix is
 * another one, and resets them all. */
bool tsr_key_prefix_resets(const char *prefix);

/* "an integer from 1 to 1024", "none, f32, bf16 or f16", ... */
void tsr_key_allowed(const struct tsr_key *key, char *out, size_t size);
enum { TSR_VALUE_BYTES = 40000 }; /* room for every value: a whole tree (value_tree.c) */
/* The value of a key as YAML (flow style). */
tsr_status tsr_key_format(const struct tsr_key *key, const struct tsr_settings *settings, char *out,
                          size_t size) TSR_MUST_USE;
/* Adds the names and values of all keys to *hash. Errors: TSR_ENOMEM. */
tsr_status tsr_settings_hash(const struct tsr_settings *settings, uint64_t *hash) TSR_MUST_USE;
/* Stores the value of `node`. `path` is what the message calls the key. */
tsr_status tsr_key_store(struct tsr_arena *arena, const struct tsr_key *key, const char *path,
                         const struct tsr_yaml_node *node,
                         struct tsr_settings *settings) TSR_MUST_USE;
/* Gives a key the value that it has in `from`, with the place that it came from. */
void tsr_key_copy(const struct tsr_key *key, const struct tsr_settings *from,
                  struct tsr_settings *to);
/* Puts a key back to its default. */
void tsr_key_reset(const struct tsr_key *key, struct tsr_settings *settings);

void tsr_settings_default(struct tsr_settings *out);
/* Gives `to` every value that `from` was given and `to` was not, with the place that it came from;
 * but for keys that `to` has no use for: model.* of a tree, wrap, fsdp1.* and ddp.* of other APIs,
 * compile.* of other dialects. */
void tsr_settings_fill(struct tsr_settings *to, const struct tsr_settings *from);
/* Puts those keys of `to` back to their `defaults` whose value and place are those of `from`. */
void tsr_settings_take_back(struct tsr_settings *to, const struct tsr_settings *from,
                            const struct tsr_settings *defaults);
/* Applies a mapping of keys (a whole file or one strategy). `where` ("strategies.fsdp.") goes
 * before the key in messages; keys in `skip` (NULL-terminated, may be NULL) are somebody else's. */
tsr_status tsr_settings_apply(struct tsr_arena *arena, const struct tsr_yaml_node *map,
                              const char *where, const char *const *skip,
                              struct tsr_settings *settings) TSR_MUST_USE;
/* Applies one value to a key or prefix by its dotted name. */
tsr_status tsr_settings_put(struct tsr_arena *arena, const char *name,
                            const struct tsr_yaml_node *value,
                            struct tsr_settings *settings) TSR_MUST_USE;
/* Where a key (an enum tsr_key_id) was given; NULL: it has its default. */
const struct tsr_yaml_node *tsr_setting_at(const struct tsr_settings *settings, size_t key);
/* The key nearest to `name`; NULL if nothing is near. */
const char *tsr_key_nearest(const char *name);

/* ---- words of enumerated keys ---------------------------------------------------------------- */

/* The index of a word is the stored value. */

extern const char *const tsr_words_accum[];     /* enum tsr_accumulate */
extern const char *const tsr_words_dtype[];     /* tsr_dtype up to f16 */
extern const char *const tsr_words_real[];      /* tsr_dtype from f32 to f64 */
extern const char *const tsr_words_optimizer[]; /* enum tsr_opt_name */
extern const char *const tsr_words_variant[];
extern const char *const tsr_words_clip[];
extern const char *const tsr_words_loss[];             /* tsr_dtype up to bf16 */
extern const char *const tsr_words_state[];            /* tsr_dtype up to bf16 */
extern const char *const tsr_words_impl[];             /* enum tsr_impl */
extern const char *const tsr_words_names[];            /* enum tsr_names */
extern const char *const tsr_words_norm[];             /* enum tsr_norm */
extern const char *const tsr_words_sync[];             /* enum tsr_sync */
extern const char *const tsr_words_ckpt[];             /* of TSR_KEY_CHECKPOINT */
extern const char *const tsr_words_hooks[];            /* enum tsr_hooks */
extern const char *const tsr_words_attention[];        /* enum tsr_attention */
extern const char *const tsr_words_linear[];           /* enum tsr_linear */
extern const char *const tsr_words_dialect[];          /* enum tsr_dialect */
extern const char *const tsr_words_compiled[];         /* enum tsr_compiled_part */
extern const char *const tsr_words_api[];              /* enum tsr_api */
extern const char *const tsr_words_fsdp1_prefetch[];   /* enum tsr_fsdp1_prefetch */
extern const char *const tsr_words_wrap[];             /* enum tsr_wrap_kind without LIST */
extern const char *const tsr_words_offload[];          /* enum tsr_offload */
extern const char *const tsr_words_sections[];         /* enum tsr_section */
extern const char *const tsr_words_init[];             /* enum tsr_init */
extern const char *const tsr_words_load[];             /* enum tsr_load */
extern const char *const tsr_words_save[];             /* enum tsr_save */
extern const char *const tsr_words_order[];            /* enum tsr_order */
extern const char *const tsr_words_decay[];            /* enum tsr_decay */
extern const char *const tsr_words_schedule[];         /* enum tsr_schedule_kind */
extern const char *const tsr_words_limit[];            /* enum tsr_limit */
extern const char *const tsr_words_algorithm[];        /* enum tsr_algorithm */
extern const char *const tsr_words_protocol[];         /* enum tsr_protocol */
extern const char *const tsr_words_attention_kernel[]; /* enum tsr_attention_kernel */
extern const char *const tsr_words_norm_kernel[];      /* enum tsr_norm_kernel */

/* ---- reading and printing values ------------------------------------------------------------- */

/* Shared by values.c and value_lists.c. */

/* `text` as a YAML scalar. Errors: TSR_ECONFIG if it does not fit. */
tsr_status tsr_yaml_quote(const char *text, char *out, size_t size) TSR_MUST_USE;
bool tsr_reshard_of(const struct tsr_yaml_node *node, struct tsr_reshard_value *out);

/* The shortest decimal that reads back as the same number. */
void tsr_format_double(double value, char *out, size_t size);

/* The keys sim.faults and sim.traffic. *ok false: the caller says what is
 * allowed. */
extern const char *const tsr_faults_allowed, *const tsr_traffic_allowed;
tsr_status tsr_faults_read(struct tsr_arena *arena, const char *path,
                           const struct tsr_yaml_node *node, struct tsr_faults *out,
                           bool *ok) TSR_MUST_USE;
tsr_status tsr_faults_format(const struct tsr_faults *faults, char *out, size_t size) TSR_MUST_USE;
tsr_status tsr_traffic_read(struct tsr_arena *arena, const char *path,
                            const struct tsr_yaml_node *node, struct tsr_traffic_list *out,
                            bool *ok) TSR_MUST_USE;
tsr_status tsr_traffic_format(const struct tsr_traffic_list *traffic, char *out,
                              size_t size) TSR_MUST_USE;

/* The key model.tree. A tree is printed in one line; where that does not fit, as a digest of it,
 * which two trees only share if they are alike. */
extern const char *const tsr_tree_allowed;
tsr_status tsr_tree_store(const char *path, const struct tsr_yaml_node *node,
                          struct tsr_tree_value *out, bool *ok) TSR_MUST_USE;
tsr_status tsr_tree_format(const struct tsr_tree_value *tree, char *out, size_t size) TSR_MUST_USE;

/* A list of {modules, group, reshard_after_forward}. *ok false: the caller says what is allowed. */
tsr_status tsr_wrap_read(struct tsr_arena *arena, const char *path,
                         const struct tsr_yaml_node *node, struct tsr_wrap_value *out,
                         bool *ok) TSR_MUST_USE;
tsr_status tsr_wrap_format(const struct tsr_wrap_value *wrap, char *out, size_t size) TSR_MUST_USE;

#endif
