/* module_tree.h: modules and their parameters, changes to them before wrapping, models of one's
 * own, recomputation.
 *
 * Modules, parameters and their names belong to the engine. A module's FQN is its path from the
 * root ("" for the root itself, "layers.0.wq"); a parameter's that of its first place in module
 * order. Patterns: '*' stands for anything inside one component of an FQN, '**' for anything at
 * all, "" matches the root.
 */
#ifndef TSR_ENGINE_MODULE_TREE_H
#define TSR_ENGINE_MODULE_TREE_H

#include "engine/program/program.h"

struct tsr_engine;
struct tsr_module;
struct tsr_param;
struct tsr_tensor;

/* ---- looking at a model ---------------------------------------------------------------------- */

/* NULL as long as there is no model. */
struct tsr_module *tsr_module_root(struct tsr_engine *engine);
/* By FQN; a shared module under each of its names. NULL if there is none. */
struct tsr_module *tsr_module_find(struct tsr_engine *engine, const char *fqn);
/* Modules that match any of the n_patterns patterns, each once, in module order (pre-order). `out`
 * has room for *n of them; *n becomes the number of matches, which may be larger than the room. */
void tsr_module_match(struct tsr_engine *engine, const char *const *patterns, size_t n_patterns,
                      struct tsr_module **out, size_t *n);
/* Of a shared module: its first one. */
const char *tsr_module_fqn(const struct tsr_module *module);
/* The class: "Linear", "LlamaDecoderLayer" ...; "Module" for those of tsr_module_add(). */
const char *tsr_module_type_name(const struct tsr_module *module);
/* Children in order of registration; i < tsr_module_n_children(). */
size_t tsr_module_n_children(const struct tsr_module *module);
struct tsr_module *tsr_module_child(const struct tsr_module *module, size_t i);
/* Parameters that the module owns itself, tied ones at each place; i < tsr_module_n_params(). */
size_t tsr_module_n_params(const struct tsr_module *module);
struct tsr_param *tsr_module_param(const struct tsr_module *module, size_t i);
/* Its name there: "weight". */
const char *tsr_module_param_name(const struct tsr_module *module, size_t i);

struct tsr_param_info {
    const char *fqn;
    int n_dims;
    uint64_t shape[TSR_MAX_DIMS]; /* global: what all ranks hold together */
    uint64_t numel;               /* product of the shape */
    tsr_dtype dtype;              /* before a policy casts it */
    bool requires_grad;
    bool is_alias; /* tied: counted under its first name */
};
/* owner: the module that it was found in, which tells whether this is its first place. */
struct tsr_param_info tsr_param_info(const struct tsr_param *param, const struct tsr_module *owner);
/* Elements of all parameters, tied ones once. */
uint64_t tsr_model_n_params(struct tsr_engine *engine);

/* ---- changes, after a model is built and before it is wrapped -------------------------------- */

/* The place `fqn` holds the parameter of the place `source` from now on; its own is gone (R3, R4).
 * Errors: TSR_EVALUE if either is not there or their sizes differ. */
tsr_status tsr_param_tie(struct tsr_engine *engine, const char *fqn,
                         const char *source) TSR_MUST_USE;
/* What follows changes every parameter that matches the pattern; none is no error. */
/* requires_grad = False. Also between steps: the next unshard follows (R107). */
tsr_status tsr_param_freeze(struct tsr_engine *engine, const char *pattern) TSR_MUST_USE;
tsr_status tsr_param_set_dtype(struct tsr_engine *engine, const char *pattern,
                               tsr_dtype dtype) TSR_MUST_USE;
/* Stored transposed: fully_shard refuses it (R16). */
tsr_status tsr_param_set_noncontiguous(struct tsr_engine *engine, const char *pattern) TSR_MUST_USE;
/* true: all parameters stay on the meta device, and the first forward refuses them (R77). */
void tsr_model_set_meta(struct tsr_engine *engine, bool meta);

/* ---- models of one's own --------------------------------------------------------------------- */

/* Runs a module `self`: reads `in` (borrowed), leaves a new reference in *out. impl: as given to
 * tsr_module_add(). Use tsr_call() for children, so that their hooks run, and the tsr_op_...()
 * functions of engine/ops/ops.h for work. NULL tensors come back once the engine has failed; all
 * of these functions take them and do nothing, so no checks are needed. */
typedef void (*tsr_forward_fn)(struct tsr_engine *engine, struct tsr_module *self, void *impl,
                               struct tsr_tensor *in, struct tsr_tensor **out);
/* Adds a child called `name` to `parent`; parent NULL: the root. forward NULL: a container, which
 * cannot be wrapped (R14). `impl` is borrowed while the engine lives. NULL on failure: a second
 * root, or no memory. */
struct tsr_module *tsr_module_add(struct tsr_engine *engine, struct tsr_module *parent,
                                  const char *name, tsr_forward_fn forward, void *impl);
/* shape: n_dims (at most TSR_MAX_DIMS) sizes. NULL on failure: too large, or no memory; the engine
 * has failed then. */
struct tsr_param *tsr_param_add(struct tsr_engine *engine, struct tsr_module *module,
                                const char *name, int n_dims, const uint64_t *shape,
                                tsr_dtype dtype);
/* Before the first step, of a tree that is built by hand: the root is called with (T, width) f32,
 * and the loss is the mean square of its output. T tokens: batch times sequence. */
void tsr_model_set_float_input(struct tsr_engine *engine, uint64_t width);

/* Calls a module with all its hooks: a new reference to its output; NULL once the engine has
 * failed. `in` is borrowed. */
struct tsr_tensor *tsr_call(struct tsr_engine *engine, struct tsr_module *module,
                            struct tsr_tensor *in);
/* One more reference to the tensor, which is returned; NULL stays NULL. */
struct tsr_tensor *tsr_retain(struct tsr_tensor *tensor);
/* One reference less: with the last one goes the memory, unless backward needs it. NULL is fine. */
void tsr_release(struct tsr_engine *engine, struct tsr_tensor *tensor);
/* Elements times their size; 0 for NULL. */
uint64_t tsr_tensor_bytes(const struct tsr_tensor *tensor);

/* ---- recomputation --------------------------------------------------------------------------- */

/* Activation checkpointing (non-reentrant) of a module's calls (R185-R188). outside: around its
 * hooks, which run again in the recomputation; else only around its forward. early_stop: the
 * recomputation ends with the last tensor that is needed. Errors: TSR_EVALUE for a container, or
 * inside a module that is checkpointed already. */
tsr_status tsr_checkpoint(struct tsr_engine *engine, struct tsr_module *module, bool outside,
                          bool early_stop) TSR_MUST_USE;
/* torchtitan's selective checkpointing by operator: the results of attention kernels and of every
 * second matrix product of the module (the 1st, 3rd, ...) are kept, and what tensor-parallel
 * reduce-scatters returned; the rest is recomputed. Errors as above. */
tsr_status tsr_checkpoint_selective(struct tsr_engine *engine,
                                    struct tsr_module *module) TSR_MUST_USE;

#endif
