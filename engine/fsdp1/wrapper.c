/* wrapper.c: FSDP1 as the engine sees it: a table of functions (graph/wrapper.h). What its flat
 * parameters keep from step to step is not told, so that its steps are not replayed.
 */
#include "engine/fsdp1/fsdp1.h"

/* The flat parameter is made once, after the modules below; its original parameters have nothing of
 * their own. */
static void init_module(struct tsr_engine *e, struct tsr_wrapper *w, struct tsr_module *m)
{
    const struct tsr_flat *flat = m->state->flat;
    struct tsr_storage *replaced = NULL;
    (void)w;
    if (!flat->group || flat->shard->sharded) {
        tsr__pad_shards(e, m->state);
        return;
    }
    tsr__init_shard(e, flat->shard, &replaced);
    tsr__storage_release(e, &replaced);
}

static void zero_grad(struct tsr_engine *e, struct tsr_wrapper *w, struct tsr_param *p)
{
    (void)e;
    (void)w;
    p->flat->grads_are_none = true;
}

static tsr_status begin_micro_batch(struct tsr_engine *e, struct tsr_wrapper *w,
                                    enum tsr_accumulate rule, bool is_last)
{
    (void)w;
    (void)rule;
    return tsr_fsdp1_set_sync(e, is_last);
}

static bool clips_own_grads(const struct tsr_wrapper *w)
{
    return ((const struct tsr_fsdp1 *)w)->shard_comm != UINT16_MAX;
}

const struct tsr_wrapper_ops tsr__fsdp1_wrapper = {.name = "fsdp1",
                                                   .init_module = init_module,
                                                   .zero_grad = zero_grad,
                                                   .begin_micro_batch = begin_micro_batch,
                                                   .grad_ready = tsr__fsdp1_grad_ready,
                                                   .clips_own_grads = clips_own_grads};
