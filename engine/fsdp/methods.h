/* methods.h: the methods of a wrapped module (section 4.3).
 */
#ifndef TSR_METHODS_H
#define TSR_METHODS_H

#include "engine/fsdp/custom_comm.h"
#include "engine/graph/module_tree.h"
#include "engine/graph/user_emit.h"

struct tsr_engine;
struct tsr_module;
struct tsr_param;
struct tsr_tensor;

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
tsr_status tsr_set_custom_all_gather(struct tsr_engine *e, struct tsr_module *m,
                                     const struct tsr_custom_comm *comm);
tsr_status tsr_set_custom_reduce_scatter(struct tsr_engine *e, struct tsr_module *m,
                                         const struct tsr_custom_comm *comm);

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

#endif
