/* methods.h: the methods of a wrapped module (section 4.3), under their names in PyTorch where C
 * has no better one.
 *
 * `module` is one that fully_shard or replicate was called with: on any other they fail with
 * TSR_EATTRIBUTE, unless said. recurse: also for every wrapped module below it. They hold from
 * when they are called, so also between two parts of a step. [2.15]: PyTorch 2.11 has it not.
 */
#ifndef TSR_ENGINE_METHODS_H
#define TSR_ENGINE_METHODS_H

#include "engine/fsdp/custom_comm.h"
#include "engine/graph/module_tree.h"
#include "engine/graph/user_emit.h"

struct tsr_engine;
struct tsr_module;
struct tsr_param;
struct tsr_tensor;

/* True for what fully_shard, replicate or FSDP1 was called with; false for modules below. */
bool tsr_module_is_wrapped(const struct tsr_module *module);

/* ---- gathering and freeing ------------------------------------------------------------------- */

/* Gathers the module's own parameters; nothing without a group, or if they are there (R8, R90).
 * async_op: the copy-out comes with tsr_wait_unshard_handle() or the next use (R95). */
tsr_status tsr_unshard(struct tsr_engine *engine, struct tsr_module *module,
                       bool async_op) TSR_MUST_USE;
/* wait() of the handle of the latest asynchronous unshard; a second one does nothing (R108). */
tsr_status tsr_wait_unshard_handle(struct tsr_engine *engine,
                                   struct tsr_module *module) TSR_MUST_USE;
/* Frees them (R113). Does not recurse. */
tsr_status tsr_reshard(struct tsr_engine *engine, struct tsr_module *module) TSR_MUST_USE;
/* Cancels the root's automatic False, too (R76). TSR_EASSERT on replicated modules (R205). */
tsr_status tsr_set_reshard_after_forward(struct tsr_engine *engine, struct tsr_module *module,
                                         bool value, bool recurse) TSR_MUST_USE;
/* false: parameters stay unsharded for the next micro-batch (R181). */
tsr_status tsr_set_reshard_after_backward(struct tsr_engine *engine, struct tsr_module *module,
                                          bool value, bool recurse) TSR_MUST_USE;
/* false: no gathers of this group in backward, prefetches included (R136). */
tsr_status tsr_set_unshard_in_backward(struct tsr_engine *engine, struct tsr_module *module,
                                       bool value) TSR_MUST_USE;
/* _set_unshard_async_op, for all wrapped modules below, too: with true gathers run on the current
 * stream (R95) and are not deferred (R102, R199). */
tsr_status tsr_set_unshard_async_op(struct tsr_engine *engine, struct tsr_module *module,
                                    bool value) TSR_MUST_USE;
/* The n wrapped modules that forward (R124) or backward (R128-R130) of this one gathers ahead, in
 * this order; the list is copied and replaces the one before. n 0 in backward: the implicit
 * prefetch again. TSR_EVALUE if one of them is not wrapped (R135). */
tsr_status tsr_set_forward_prefetch(struct tsr_engine *engine, struct tsr_module *module,
                                    struct tsr_module *const *list, size_t n) TSR_MUST_USE;
tsr_status tsr_set_backward_prefetch(struct tsr_engine *engine, struct tsr_module *module,
                                     struct tsr_module *const *list, size_t n) TSR_MUST_USE;

/* All-gather extension (section 2.11): what travels is not the shard itself (fp8 data and scales).
 */
struct tsr_gather_input {
    uint64_t numel;
    tsr_dtype dtype;
};
struct tsr_gather_extension {
    /* What one rank contributes for a shard of `numel` elements: up to 4 inputs, returned is their
     * number. An unevenly cut parameter needs inputs of exactly the padded shard size. */
    int (*pre)(void *user, uint64_t numel, struct tsr_gather_input out[4]);
    /* Name of the kernel that makes the unsharded parameter from the gathered inputs. NULL beside
     * a pre(): AssertionError. */
    const char *post;
    bool free_after_post; /* [2.15] the gathered inputs die when post has run */
    void *user;
};
/* For all sharded parameters whose FQN matches; TSR_EVALUE if there is none. `extension` is
 * borrowed while the engine lives; NULL: none again. */
tsr_status tsr_set_gather_extension(struct tsr_engine *engine, const char *pattern,
                                    const struct tsr_gather_extension *extension) TSR_MUST_USE;

/* ---- gradients ------------------------------------------------------------------------------- */

/* no_sync: with false gradients are neither reduced nor all-reduced, but kept unsharded
 * (R176-R183).
 */
tsr_status tsr_set_requires_gradient_sync(struct tsr_engine *engine, struct tsr_module *module,
                                          bool value, bool recurse) TSR_MUST_USE;
/* HSDP: with false the all-reduce is left out, and partial sums are kept (R167, R168). */
tsr_status tsr_set_requires_all_reduce(struct tsr_engine *engine, struct tsr_module *module,
                                       bool value, bool recurse) TSR_MUST_USE;
/* false: the end of a backward waits for and clears nothing (R147); of the whole tree (R252). */
tsr_status tsr_set_is_last_backward(struct tsr_engine *engine, struct tsr_module *module,
                                    bool value) TSR_MUST_USE;
/* Gradients are divided by `factor` in place of the number of ranks (R162), in this module only
 * (R165); 0: that number again. TSR_EVALUE while folded gradients (tsr_wrap_options.folds) wait. */
tsr_status tsr_set_gradient_divide_factor(struct tsr_engine *engine, struct tsr_module *module,
                                          double factor) TSR_MUST_USE;
/* Reductions are sums, divided once afterwards, in this module only (R163). */
tsr_status tsr_set_force_sum(struct tsr_engine *engine, struct tsr_module *module,
                             bool value) TSR_MUST_USE;
/* Runs after the sharded gradient of a parameter is set, once per reduction (R152). */
typedef void (*tsr_grad_hook)(struct tsr_engine *engine, struct tsr_param *param, void *user);
/* For all sharded parameters whose FQN matches; TSR_EVALUE if there is none. hook NULL: none. */
tsr_status tsr_register_post_accumulate_grad_hook(struct tsr_engine *engine, const char *pattern,
                                                  tsr_grad_hook hook, void *user) TSR_MUST_USE;
/* Runs after the reduction (R169). hook NULL: it is only traced. own_stream: on a stream of its
 * own; with HSDP that is a TSR_EVALUE, although the hook is set (R170). */
tsr_status tsr_set_all_reduce_hook(struct tsr_engine *engine, struct tsr_module *module,
                                   tsr_all_reduce_hook hook, void *user,
                                   bool own_stream) TSR_MUST_USE;
/* [2.15] `k` reductions of a group may be in flight at once (R158); TSR_EVALUE unless 1 <= k <= 16.
 */
tsr_status tsr_set_reduce_scatter_max_input_buffers(struct tsr_engine *engine,
                                                    struct tsr_module *module, int64_t k,
                                                    bool recurse) TSR_MUST_USE;
/* [2.15] Reduce-scatter on a communicator of its own (R200); TSR_EASSERT on replicated modules. */
tsr_status tsr_set_separate_reduce_scatter_group(struct tsr_engine *engine,
                                                 struct tsr_module *module, bool value,
                                                 bool recurse) TSR_MUST_USE;
/* [2.15] Unused trainable parameters enter the reduction with zeros (R175). */
tsr_status tsr_set_reduce_scatter_unused_params(struct tsr_engine *engine,
                                                struct tsr_module *module, bool value,
                                                bool recurse) TSR_MUST_USE;
/* [2.15] Root only, else TSR_ERUNTIME: the caller ends each backward with tsr_finalize_backward()
 * (R202). TSR_ERUNTIME, too, while a backward is not finalized. */
tsr_status tsr_set_manual_backward_finalization(struct tsr_engine *engine,
                                                struct tsr_module *module, bool value) TSR_MUST_USE;
/* Nothing before the first forward; TSR_ERUNTIME on another module than the root, outside manual
 * mode, or while the backward runs. */
tsr_status tsr_finalize_backward(struct tsr_engine *engine, struct tsr_module *module) TSR_MUST_USE;
/* [2.15] After a failed step: drops all gradients, reshards, clears trackers; the next iteration
 * starts clean (R201). Root only, else TSR_ERUNTIME. */
tsr_status tsr_reset_iter_state(struct tsr_engine *engine, struct tsr_module *module) TSR_MUST_USE;

/* ---- collectives and streams ----------------------------------------------------------------- */

/* NULL: the default again. `comm` is borrowed while the engine lives. TSR_EVALUE if the module has
 * several groups (R195, R196). */
tsr_status tsr_set_custom_all_gather(struct tsr_engine *engine, struct tsr_module *module,
                                     const struct tsr_custom_comm *comm) TSR_MUST_USE;
tsr_status tsr_set_custom_reduce_scatter(struct tsr_engine *engine, struct tsr_module *module,
                                         const struct tsr_custom_comm *comm) TSR_MUST_USE;
/* Buffers of collectives come from the process group's own allocator. TSR_EASSERT with a custom
 * collective (R197). */
tsr_status tsr_set_allocate_from_process_group(struct tsr_engine *engine, struct tsr_module *module,
                                               bool value) TSR_MUST_USE;
/* Records an event on the current stream: the root's next gathers wait for it in place of the whole
 * stream (R85), once (R86). */
tsr_status tsr_set_post_optim_event(struct tsr_engine *engine,
                                    struct tsr_module *module) TSR_MUST_USE;
/* Orders that PyTorch lacks, and a program as well as it does what PyTorch does. */
enum tsr_race {
    TSR_RACE_STALE_EVENT,
    TSR_RACE_HOOKED_OUTPUT,
    TSR_RACE_STRAY_GATHER,
    TSR_RACE_STUCK_ROOT,
    TSR_RACE_OTHER_ROOT,
    TSR_N_RACES
};
/* One line, the rule and why, if what was emitted so far has the race; else NULL. */
const char *tsr_inherited_race(const struct tsr_engine *engine, enum tsr_race race);
/* The n wrapped modules of the list share the streams of its first one (R198). TSR_EVALUE if one of
 * them is not wrapped. */
tsr_status tsr_share_comm_ctx(struct tsr_engine *engine, struct tsr_module *const *list,
                              size_t n) TSR_MUST_USE;

/* ---- the module as an object ----------------------------------------------------------------- */

/* state_dict() of any module: groups that own parameters of it become sharded first (R221). Its
 * layout: engine/layout/sharded_state.h. */
tsr_status tsr_state_dict(struct tsr_engine *engine, struct tsr_module *module) TSR_MUST_USE;
/* A wrapped module cannot be copied: TSR_EASSERT (R20). Any other: TSR_OK. */
tsr_status tsr_deepcopy(struct tsr_engine *engine, struct tsr_module *module) TSR_MUST_USE;
/* A second way to run any module, beside its forward. Errors: TSR_ENOMEM. */
tsr_status tsr_module_add_method(struct tsr_engine *engine, struct tsr_module *module,
                                 const char *name, tsr_forward_fn method) TSR_MUST_USE;
/* Makes another method of the module run its forward hooks (R122); nothing on a module that is not
 * wrapped, TSR_EVALUE for a method that is not there (R123). */
tsr_status tsr_register_forward_method(struct tsr_engine *engine, struct tsr_module *module,
                                       const char *name) TSR_MUST_USE;
/* Runs it; its hooks run only if it was registered. `in` is borrowed. A new reference; NULL on
 * failure. */
struct tsr_tensor *tsr_call_method(struct tsr_engine *engine, struct tsr_module *module,
                                   const char *name, struct tsr_tensor *in);

#endif
