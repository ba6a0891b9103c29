/* model.h: what a model file says: a Hugging Face config.json, a module tree, or a trace. */
#ifndef TSR_STUDY_MODEL_H
#define TSR_STUDY_MODEL_H

#include "engine/tessera.h"
#include "experiments/study/base/yaml.h"

enum tsr_family {
    TSR_FAMILY_LLAMA,
    TSR_FAMILY_GPT2,
    TSR_FAMILY_MPT,
    TSR_FAMILY_TREE,
    TSR_FAMILY_MOE,
    TSR_FAMILY_TRACED
};

/* Exact numbers of parameters; the columns of models/counts.tsv. */
struct tsr_param_counts {
    uint64_t embed, layer, dense_layer, head, final_norm, total, active;
    uint64_t n_layers, n_dense_layers; /* dense: the first ones of a mixture-of-experts model */
};

/* Mixture of experts, with or without latent attention: only counted, not modelled. */
struct tsr_moe_config {
    uint64_t n_experts, n_per_token, n_shared, expert_size, first_dense, sparse_step;
    uint64_t kv_lora, q_lora, nope, rope, v_head; /* 0 without latent attention */
    uint64_t n_dense_extra; /* dense layers beyond the first ones (mlp_only_layers, sparse step) */
    bool latent, router_bias;
};

/* Parameters that a tree file ties, freezes or keeps in another dtype. */
struct tsr_tree_extras {
    size_t n_ties, n_frozen, n_dtypes;
    const char *(*ties)[2]; /* FQN, source FQN */
    const char **frozen;
    const char **dtype_patterns;
    tsr_dtype *dtypes;
};

/* Owns its document, into which trees and texts point. Of the configurations only the family's is
 * filled (MOE: llama, too). */
struct tsr_model {
    struct tsr_doc doc; /* owns the texts */
    char name[96];      /* file name without .json */
    char path[1024];
    const char *type;             /* model_type; "tree" */
    struct tsr_asked_keys *asked; /* while a config.json is read (hf_keys.h) */
    enum tsr_family family;
    struct tsr_llama_config llama; /* also the dense part of MOE */
    struct tsr_gpt2_config gpt2;
    struct tsr_mpt_config mpt;
    struct tsr_moe_config moe;
    struct tsr_tree_config tree;
    struct tsr_tree_extras extras;
    struct tsr_traced_file *trace;           /* owned; NULL: of another family */
    const struct tsr_trace_variant *variant; /* of the trace, once a job has chosen it */
    uint64_t max_positions;                  /* 0: none known */
    bool positions_are_hard;                 /* a learned table: no position beyond it */
    uint64_t sliding_window;                 /* 0: none */
    struct tsr_param_counts counts;          /* of a tree: total and active only */
};

/* Reads a config.json. Errors: TSR_ECONFIG with file, line, key, value, what is allowed. */
tsr_status tsr_model_load_hf(const char *path, struct tsr_model *out) TSR_MUST_USE;
/* The same from a mapping that is part of another document, which must outlive *out. type: the
 * model_type where the mapping has none; it stays. */
tsr_status tsr_model_read_hf_node(const struct tsr_yaml_node *root, const char *type,
                                  struct tsr_model *out) TSR_MUST_USE;
/* Reads a tree file (experiments/own-model/tree.yaml). */
tsr_status tsr_model_load_tree(const char *path, struct tsr_model *out) TSR_MUST_USE;
/* A tree that stands in the experiment `path`, whose document must outlive *out. Errors: as above.
 */
tsr_status tsr_model_load_tree_node(const struct tsr_yaml_node *root, const char *path,
                                    struct tsr_model *out) TSR_MUST_USE;
/* The same of a recorded scenario. */
tsr_status tsr_model_read_tree_node(const struct tsr_yaml_node *root,
                                    struct tsr_model *out) TSR_MUST_USE;
/* Reads a trace (trace_file.h). */
tsr_status tsr_model_load_trace(const char *path, struct tsr_model *out) TSR_MUST_USE;
void tsr_model_fini(struct tsr_model *model);

/* The model is called as the file, without folder and ending. */
void tsr__model_name_after(const char *path, struct tsr_model *out);
/* Fills model->counts of a family that is counted by formula. Errors: TSR_ECONFIG if they do not
 * fit into 63 bits. */
tsr_status tsr_model_count(struct tsr_model *model) TSR_MUST_USE;
/* The head's weight is the embedding's. Trees say so themselves (`ref`): false. */
bool tsr_model_is_tied(const struct tsr_model *model);
/* Fails with TSR_EUNSUPPORTED if the model can be counted but not run. */
tsr_status tsr_model_require_runnable(const struct tsr_model *model) TSR_MUST_USE;

#endif
