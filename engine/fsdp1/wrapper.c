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

/* A trace has the cast of the model's inputs before the mark of its hooks, and in PyTorch gradients
 * go before the cast. */
static void forward_begin(struct tsr_engine *e, struct tsr_wrapper *w)
{
    tsr__fsdp1_reset_grads(e, (struct tsr_fsdp1 *)w);
}

/* Gradients of a flat parameter are summed on the stream of the views (F20). */
static uint16_t grad_stream(const struct tsr_engine *e, const struct tsr_wrapper *w,
                            const struct tsr_param *p)
{
    return p->flat ? ((const struct tsr_fsdp1 *)w)->unshard : e->stream;
}

/* The wrapper's first clipping makes torch.tensor(0.0, device=...) and keeps it: a copy from
 * pageable memory, for which the host waits (F29). */
static void clip_begin(struct tsr_engine *e, struct tsr_wrapper *w)
{
    struct tsr_fsdp1 *all = (struct tsr_fsdp1 *)w;
    struct tsr_instr read = {.kind = TSR_HOST_READ, .stream = e->stream, .comm = UINT16_MAX};
    if (all->zero)
        return;
    all->zero = tsr__storage_new(e, tsr_dtype_bytes(TSR_F32), TSR_CAT_OPT_STATE);
    if (!all->zero)
        return;
    tsr__emit_fill(e, all->zero, TSR_F32, 0);
    tsr__emit(e, &read);
}

static bool clips_own_grads(const struct tsr_wrapper *w)
{
    return ((const struct tsr_fsdp1 *)w)->shard_comm != UINT16_MAX;
}

const struct tsr_wrapper_ops tsr__fsdp1_wrapper = {.init_module = init_module,
                                                   .zero_grad = zero_grad,
                                                   .begin_micro_batch = begin_micro_batch,
                                                   .forward_begin = forward_begin,
                                                   .grad_stream = grad_stream,
                                                   .clip_begin = clip_begin,
                                                   .grad_ready = tsr__fsdp1_grad_ready,
                                                   .clips_own_grads = clips_own_grads};
