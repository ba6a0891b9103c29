/* sharded_grad.c: from the reduced buffer to gradients (section 3.8 i-m): division, cast, views of
 * the flat buffer or copies on the host, sums with gradients that are there, and the hooks that see
 * them.
 */
#include "engine/fsdp/collectives.h"

static void cast_result(struct tsr_engine *e, struct tsr__reduction *r)
{
    r->result = r->output;
    if (r->reduce == r->orig) {
        tsr__storage_retain(r->result);
        return;
    }
    uint64_t bytes = r->elems * tsr_dtype_bytes(r->orig);
    r->result = tsr__storage_new(e, bytes, TSR_CAT_SHARDED_GRAD);
    if (!r->result)
        return;
    tsr__operand_storage(e, r->output, TSR_READ, r->reduce);
    tsr__operand_storage(e, r->result, TSR_WRITE, r->orig);
    tsr__emit_copy(e, r->orig, r->output->bytes, bytes, "grad_cast");
}

/* The event that says that the copy is done, or the host waits for it here. */
static void settle_offload(struct tsr_engine *e, struct tsr_fsdp_param *p, bool blocks,
                           uint64_t bytes)
{
    struct tsr_instr read = {.kind = TSR_HOST_READ, .stream = e->stream, .comm = UINT16_MAX};
    if (!blocks)
        p->d2h_event = tsr__record_event(e, e->stream);
    else if (bytes > 0)
        tsr__emit(e, &read);
}

/* 3.8 j: to the host; non-blocking only into a fresh pinned gradient. copy_() of an empty shard
 * returns at once: nothing is copied, added or waited for, but the event is recorded. */
static void offload_grad(struct tsr_engine *e, struct tsr_group *g, const struct tsr__reduction *r,
                         struct tsr_fsdp_param *p, uint64_t offset)
{
    bool pinned = g->offload == TSR_OFFLOAD_CPU_PINNED;
    bool fresh = !p->grad;
    uint64_t bytes = p->local_numel * tsr_dtype_bytes(r->orig);
    uint8_t space = pinned ? TSR_SPACE_PINNED : TSR_SPACE_HOST;
    struct tsr_storage *host = tsr__storage_empty(e, bytes, TSR_CAT_SHARDED_GRAD, space);
    if (!host)
        return;
    if (bytes > 0) {
        tsr__operand(e, r->result, offset, bytes, TSR_READ, r->orig);
        tsr__operand_storage(e, host, TSR_WRITE, r->orig);
        tsr__emit_copy(e, r->orig, bytes, bytes, "d2h_grad");
    }
    /* [2.15] a hook reads the gradient: the copy blocks (R194) */
    bool hooked = p->grad_hook && e->config.version >= TSR_TORCH_2_15;
    settle_offload(e, p, !pinned || !fresh || hooked, bytes);
    if (fresh) {
        p->grad = host;
        return;
    }
    if (bytes == 0) {
        tsr__storage_release(e, &host);
        return;
    }
    tsr__operand_storage(e, host, TSR_READ, r->orig);
    tsr__operand_storage(e, p->grad, TSR_READ_WRITE, r->orig);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)r->orig,
                            .name = "host_add",
                            .bytes_read = 2 * bytes,
                            .bytes_written = bytes};
    struct tsr_instr add = {.kind = TSR_HOST_OP, .comm = UINT16_MAX, .work = &work};
    tsr__emit(e, &add);
    tsr__storage_release(e, &host);
}

/* A gradient that is there gets the new one added: one kernel over all such parameters. */
static void accumulate_operands(struct tsr_engine *e, const struct tsr__reduction *r,
                                const struct tsr_fsdp_param *p, uint64_t offset)
{
    uint64_t bytes = p->local_numel * tsr_dtype_bytes(r->orig);
    tsr__slot(e, 0);
    tsr__operand(e, r->result, offset, bytes, TSR_READ, r->orig);
    tsr__operand(e, p->grad, p->grad_offset, bytes, TSR_READ_WRITE, r->orig);
}

static void emit_accumulate(struct tsr_engine *e, const struct tsr__reduction *r, uint64_t bytes)
{
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)r->orig,
                            .name = "accumulate_sharded_grad",
                            .bytes_read = 2 * bytes,
                            .bytes_written = bytes};
    tsr__emit_op(e, &work);
}

/* Sharded gradients are views of one flat buffer at padded offsets (R159). */
static void set_sharded_grads(struct tsr_engine *e, struct tsr_group *g, struct tsr__reduction *r,
                              const char **accumulated, size_t *n_accumulated)
{
    bool offloads = g->offload != TSR_OFFLOAD_NONE, adds = false;
    uint64_t offset = 0, old_bytes = 0;
    *n_accumulated = 0;
    for (size_t i = 0; i < r->n && tsr__ok(e); i++) {
        struct tsr_fsdp_param *p = r->items[i].p;
        if (p->grad && p->kept_grad) {
            TSR__RAISE(e, TSR_EUNSUPPORTED,
                       "%s: a second gradient comes to one that stays as backward wrote it: the "
                       "step has one micro-batch, and mirror",
                       p->param->fqn);
            return;
        }
        if (p->grad)
            accumulated[(*n_accumulated)++] = p->param->fqn;
        if (offloads) {
            offload_grad(e, g, r, p, offset);
        } else if (p->grad) {
            if (p->local_numel > 0) /* nothing is launched for empty shards */
                accumulate_operands(e, r, p, offset);
            adds |= p->local_numel > 0;
            old_bytes += p->local_numel * tsr_dtype_bytes(r->orig);
        } else {
            p->grad = r->result;
            p->kept_grad = false;
            p->grad_offset = offset;
            tsr__storage_retain(r->result);
        }
        offset += p->shard_numel * tsr_dtype_bytes(r->orig);
    }
    if (adds)
        emit_accumulate(e, r, old_bytes);
}

void tsr__post_reduce(struct tsr_engine *e, struct tsr_group *g, struct tsr__reduction *r)
{
    size_t n_accumulated = 0;
    const char **accumulated = g->names;
    e->stream = r->post_stream;
    tsr__emit_scale(e, r->output, r->reduce, r->divide.post);
    cast_result(e, r);
    if (r->result)
        set_sharded_grads(e, g, r, accumulated, &n_accumulated);
    for (size_t k = 0; k < r->n && tsr__ok(e); k++)
        if (r->items[k].p->grad_hook)
            r->items[k].p->grad_hook(e, r->items[k].p->param, r->items[k].p->grad_hook_user);
    g->post_reduce_event = tsr__record_event(e, r->post_stream);
    if (!e->emit.has_trace)
        return;
    struct tsr_event ev;
    tsr__event_group(&ev, "sharded_grad", g);
    tsr__event_str(&ev, "dtype", tsr_dtype_name(r->orig));
    tsr__event_strs(&ev, "accumulate", accumulated, n_accumulated);
    tsr__event_bool(&ev, "offload", g->offload != TSR_OFFLOAD_NONE);
    tsr__event_send(e, &ev);
}
