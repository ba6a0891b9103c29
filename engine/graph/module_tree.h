/* module_tree.h: modules, their parameters, and models of one's own. Private structures: module.h.
 */
#ifndef TSR_MODULE_TREE_H
#define TSR_MODULE_TREE_H

#include "engine/program/base.h"

struct tsr_engine;
struct tsr_module;
struct tsr_param;
struct tsr_tensor;

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
struct tsr_tensor *tsr_retain(struct tsr_tensor *tensor);
void tsr_release(struct tsr_engine *e, struct tsr_tensor *tensor);
uint64_t tsr_tensor_bytes(const struct tsr_tensor *t);

/* ---- recomputation --------------------------------------------------------------------------- */

/* Activation checkpointing (non-reentrant). outside: hooks run again in the recomputation. */
tsr_status tsr_checkpoint(struct tsr_engine *engine, struct tsr_module *module, bool outside,
                          bool early_stop) TSR_MUST_USE;
/* torchtitan's selective checkpointing by operator: the results of attention kernels and of every
 * second matrix product of the module (the 1st, 3rd, ...) are kept, and what tensor-parallel
 * reduce-scatters returned; the rest is recomputed. */
tsr_status tsr_checkpoint_selective(struct tsr_engine *engine,
                                    struct tsr_module *module) TSR_MUST_USE;

#endif
