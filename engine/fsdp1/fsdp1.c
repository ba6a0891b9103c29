/* fsdp1.c: FSDP1's forward: lazy initialisation, hooks, unshard and reshard, the rate limiter,
 * prefetch (FSDP1.md, F8 to F21).
 *
 * [Note: streams] The cast of a shard runs on pre_unshard, allocation of the unsharded parameter
 * and its all-gather on unshard, reductions on post_backward, and the all-reduce of hybrid sharding
 * on all_reduce. A process group has one more stream of its own, NCCL's: all-gathers and
 * reduce-scatters of one group run there one after the other, in the order in which they were
 * issued. The caller's stream waits for it.
 */
#include "engine/fsdp1/fsdp1.h"

#include <string.h>

/* ---- collectives ----------------------------------------------------------------------------- */

/* What c10d does by itself; not among the events of FSDP1. */
static void order(struct tsr_engine *e, uint16_t from, uint16_t to)
{
    uint32_t event = tsr__new_event(e);
    struct tsr_instr record = {
        .kind = TSR_RECORD, .stream = from, .comm = UINT16_MAX, .event = event};
    struct tsr_instr wait = {.kind = TSR_WAIT, .stream = to, .comm = UINT16_MAX, .event = event};
    tsr__emit(e, &record);
    tsr__emit(e, &wait);
}

void tsr__fsdp1_collective(struct tsr_engine *e, uint16_t wire, struct tsr_instr *instr,
                           struct tsr_storage *in, struct tsr_storage *out)
{
    order(e, e->stream, wire);
    if (in)
        tsr__operand_storage(e, in, TSR_READ, (tsr_dtype)instr->dtype);
    tsr__operand_storage(e, out, in ? TSR_WRITE : TSR_READ_WRITE, (tsr_dtype)instr->dtype);
    instr->stream = wire;
    tsr__emit(e, instr);
    order(e, wire, e->stream);
}

/* ---- lazy initialisation --------------------------------------------------------------------- */

static bool adopt(void *user, struct tsr_module *m)
{
    struct tsr_engine *e = m->engine;
    struct tsr_fsdp1 *all = user;
    if (!m->state || !m->state->flat)
        return true;
    return TSR__ARENA_PUSH(e, all->flats, all->n_flats, all->cap_flats, m->state->flat);
}

static void create_streams(struct tsr_engine *e, struct tsr_fsdp1 *all)
{
    int8_t high = all->hybrid && !all->options.no_limit ? -1 : 0;
    all->unshard = tsr__stream_add(e, "unshard", TSR_ROLE_ALL_GATHER, high);
    all->post_backward = tsr__stream_add(e, "post_backward", TSR_ROLE_REDUCE_SCATTER, high);
    all->pre_unshard = tsr__stream_add(e, "pre_unshard", TSR_ROLE_COPY_IN, high);
    all->all_reduce =
        all->hybrid ? tsr__stream_add(e, "all_reduce", TSR_ROLE_ALL_REDUCE, 0) : e->stream;
    if (all->shard_comm != UINT16_MAX)
        all->shard_wire = tsr__stream_add(e, "nccl_shard", TSR_ROLE_ALL_GATHER, 0);
    if (all->replicate_comm != UINT16_MAX)
        all->replicate_wire = tsr__stream_add(e, "nccl_replicate", TSR_ROLE_ALL_REDUCE, 0);
    tsr__deferral_begin(e, all->as_checked ? UINT64_MAX : TSR__LAUNCH_QUEUE);
}

static struct tsr_storage *unbacked(struct tsr_engine *e, uint64_t numel, tsr_dtype dtype,
                                    enum tsr_category category)
{
    return tsr__storage_empty(e, numel * tsr_dtype_bytes(dtype), category, TSR_SPACE_DEVICE);
}

/* Memory that comes and goes at once: it leaves a segment behind. */
static void touch(struct tsr_engine *e, uint64_t numel, tsr_dtype dtype)
{
    struct tsr_storage *s = tsr__storage_new(e, numel * tsr_dtype_bytes(dtype), TSR_CAT_TEMP);
    tsr__storage_release(e, &s);
}

/* init_flat_param_attributes(): each storage is allocated on the compute stream and freed again,
 * also the one for gathers in full precision, which training does not use. */
static void make_storages(struct tsr_engine *e, struct tsr_flat *f)
{
    uint64_t numel = f->param->numel;
    bool casts = f->compute != f->param->dtype;
    if (casts) {
        f->low = unbacked(e, f->shard->shard_numel, f->compute,
                          f->sharded ? TSR_CAT_ALL_GATHER_INPUT : TSR_CAT_UNSHARDED_PARAM);
        touch(e, f->shard->shard_numel, f->compute);
    }
    if (!f->sharded)
        return;
    f->full = unbacked(e, numel, f->compute, TSR_CAT_ALL_GATHER);
    touch(e, numel, f->compute);
    if (casts)
        touch(e, numel, f->param->dtype);
}

static void lazy_init(struct tsr_engine *e, struct tsr_flat *f)
{
    struct tsr_fsdp1 *all = f->all;
    if (all->lazy_done)
        return;
    if (f->state->modules[0] != e->tree.root) {
        TSR__RAISE(e, TSR_ERUNTIME, "fsdp1: the first forward must run through the root module");
        return;
    }
    all->lazy_done = true;
    all->root = f;
    tsr__module_walk(e->tree.root, adopt, all);
    create_streams(e, all);
    for (size_t i = 0; i < all->n_flats && tsr__ok(e); i++)
        if (all->flats[i]->group)
            make_storages(e, all->flats[i]);
}

/* ---- unshard --------------------------------------------------------------------------------- */

static bool needs_unshard(const struct tsr_flat *f)
{
    return f->sharded && !f->full->live;
}

/* On pre_unshard: the shard in the compute dtype. */
static bool pre_unshard(struct tsr_engine *e, struct tsr_flat *f)
{
    if (!f->low || (f->sharded && !needs_unshard(f)))
        return false;
    uint16_t current = e->stream;
    e->stream = f->all->pre_unshard;
    tsr__storage_back(e, f->low);
    if (tsr__ok(e)) {
        tsr__operand_storage(e, f->shard->sharded, TSR_READ, f->param->dtype);
        tsr__operand_storage(e, f->low, TSR_WRITE, f->compute);
        tsr__emit_copy(e, f->compute, f->shard->sharded->bytes, f->low->bytes, "all_gather_cast");
    }
    e->stream = current;
    return true;
}

/* The rate limiter: with two frees on their way the host waits for the older one. */
static void limit(struct tsr_engine *e, struct tsr_fsdp1 *all)
{
    if (all->options.no_limit || all->n_free_events < TSR__FSDP1_IN_FLIGHT)
        return;
    uint32_t event = all->free_events[0];
    memmove(all->free_events, all->free_events + 1,
            --all->n_free_events * sizeof *all->free_events);
    tsr__host_wait_event(e, event);
}

static void all_gather(struct tsr_engine *e, struct tsr_flat *f)
{
    tsr__storage_back(e, f->full);
    if (!tsr__ok(e))
        return;
    struct tsr_instr instr = {.kind = TSR_ALL_GATHER,
                              .dtype = (uint8_t)f->compute,
                              .comm = f->all->shard_comm,
                              .bytes = f->full->bytes};
    tsr__fsdp1_collective(e, f->all->shard_wire, &instr, f->low ? f->low : f->shard->sharded,
                          f->full);
}

/* Also called for a parameter that is there already: the limiter and the views are for it, too. */
void tsr__fsdp1_unshard(struct tsr_engine *e, struct tsr_flat *f)
{
    struct tsr_fsdp1 *all = f->all;
    uint32_t group = e->origin.group;
    if (!tsr__ok(e))
        return;
    e->origin.group = f->group->id;
    if (pre_unshard(e, f))
        tsr__wait_stream(e, all->unshard, all->pre_unshard);
    limit(e, all);
    uint16_t current = e->stream;
    e->stream = all->unshard;
    if (needs_unshard(f))
        all_gather(e, f);
    tsr__fsdp1_use_views(e, f);
    if (f->low && f->sharded)
        tsr__storage_unback_after(e, f->low, all->unshard);
    e->stream = current;
    e->origin.group = group;
}

/* `frees`: the unsharded parameter goes. Else it stays, and is there for the next unshard. */
void tsr__fsdp1_reshard(struct tsr_engine *e, struct tsr_flat *f, bool frees)
{
    struct tsr_fsdp1 *all = f->all;
    bool keeps_views = e->grad_enabled && f->training == TSR_FORWARD && !f->reshards_after_forward;
    if (!keeps_views)
        tsr__fsdp1_drop_views(f);
    if (frees)
        tsr__storage_unback_after(e, f->full, e->stream);
    if (frees && !all->options.no_limit) {
        uint32_t event = tsr__record_event(e, e->stream);
        TSR__ARENA_PUSH(e, all->free_events, all->n_free_events, all->cap_free_events, event);
    }
    if (f->low && !f->sharded)
        tsr__storage_unback_after(e, f->low, e->stream);
    f->prefetched = false;
}

/* ---- prefetch -------------------------------------------------------------------------------- */

static struct tsr_flat *at(struct tsr_flat *const *order, size_t n, int64_t i)
{
    return i >= 0 && (size_t)i < n ? order[i] : NULL;
}

static struct tsr_flat *target(const struct tsr_flat *f)
{
    const struct tsr_fsdp1 *all = f->all;
    enum tsr_fsdp1_prefetch when = all->options.backward_prefetch;
    struct tsr_flat *t = NULL;
    if (f->training == TSR_FORWARD) {
        if (all->options.forward_prefetch && f->pre_index >= 0)
            t = at(all->pre_order, all->n_pre_order, f->pre_index + 1);
        return t && t->needs_pre_forward && !t->prefetched ? t : NULL;
    }
    if ((f->training == TSR_PRE_BACKWARD && when == TSR_FSDP1_BACKWARD_PRE) ||
        (f->training == TSR_POST_BACKWARD && when == TSR_FSDP1_BACKWARD_POST))
        t = at(all->post_order, all->n_post_order, f->post_index - 1);
    return t && t->needs_pre_backward && !t->prefetched ? t : NULL;
}

void tsr__fsdp1_prefetch(struct tsr_engine *e, struct tsr_flat *f)
{
    struct tsr_flat *t = target(f);
    if (!t || !tsr__ok(e))
        return;
    enum tsr_training_state before = t->training;
    t->training = f->training == TSR_FORWARD ? TSR_FORWARD : TSR_PRE_BACKWARD;
    tsr__fsdp1_unshard(e, t);
    t->training = before;
    t->prefetched = true;
}

/* ---- forward hooks --------------------------------------------------------------------------- */

static void enter(struct tsr_engine *e, const struct tsr_flat *f, enum tsr_hook hook,
                  enum tsr_mark mark)
{
    e->origin.hook = (uint8_t)hook;
    e->origin.group = f->group ? f->group->id : TSR_NO_ID;
    tsr__emit_mark(e, mark, 0);
    if (f->group)
        tsr__emit_mark(e, TSR_MARK_GROUP_BEGIN, hook);
}

static void leave(struct tsr_engine *e, const struct tsr_flat *f)
{
    if (f->group)
        tsr__emit_mark(e, TSR_MARK_GROUP_END, e->origin.hook);
    e->origin.hook = TSR_HOOK_NONE;
    e->origin.group = TSR_NO_ID;
}

static struct tsr_tensor *root_pre_forward(struct tsr_engine *e, struct tsr_flat *f,
                                           struct tsr_tensor *in)
{
    struct tsr_fsdp1 *all = f->all;
    for (size_t i = 0; i < all->n_flats && all->options.forward_prefetch; i++) {
        all->flats[i]->needs_pre_forward = true;
        all->flats[i]->prefetched = false;
    }
    tsr__wait_stream(e, all->unshard, e->stream);
    tsr__wait_stream(e, all->pre_unshard, e->stream);
    tsr__fsdp1_reset_grads(e, all);
    tsr_dtype dtype = all->options.mp.param;
    if (!in || dtype == TSR_DTYPE_NONE || all->options.mp.no_cast_inputs ||
        !tsr_dtype_is_float((tsr_dtype)in->dtype) || in->dtype == dtype)
        return in;
    struct tsr_tensor *out = tsr_op_cast(e, in, dtype);
    tsr_release(e, in);
    return out;
}

/* Fixed by the first iteration, at the first use of each. */
static void record_pre_forward(struct tsr_engine *e, struct tsr_flat *f)
{
    struct tsr_fsdp1 *all = f->all;
    if (!all->first_iteration || f->pre_index >= 0)
        return;
    f->pre_index = (int64_t)all->n_pre_order;
    TSR__ARENA_PUSH(e, all->pre_order, all->n_pre_order, all->cap_pre_order, f);
}

/* Anew in every iteration. The first one, index 0, is recorded again if it is used again. */
static void record_post_forward(struct tsr_engine *e, struct tsr_flat *f)
{
    struct tsr_fsdp1 *all = f->all;
    if (f->post_index <= 0)
        f->post_index = (int64_t)all->n_post_order;
    TSR__ARENA_PUSH(e, all->post_order, all->n_post_order, all->cap_post_order, f);
}

static void pre_forward(struct tsr_engine *e, struct tsr_flat *f)
{
    record_pre_forward(e, f);
    f->training = TSR_FORWARD;
    if (!f->prefetched)
        tsr__fsdp1_unshard(e, f);
    f->needs_pre_forward = false;
    tsr__wait_stream(e, e->stream, f->all->unshard);
    tsr__fsdp1_prefetch(e, f);
}

static struct tsr_tensor *on_pre_forward(struct tsr_engine *e, struct tsr_module *m,
                                         struct tsr_tensor *in)
{
    struct tsr_flat *f = m->state->flat;
    if (tsr__ok(e))
        lazy_init(e, f);
    if (!tsr__ok(e) || f->training == TSR_PRE_BACKWARD) /* recomputation: nothing to do */
        return in;
    enter(e, f, TSR_HOOK_PRE_FORWARD, TSR_MARK_PRE_FORWARD);
    if (f == f->all->root) {
        f->all->n_splits = 0;
        in = root_pre_forward(e, f, in);
    }
    f->first_split = f->all->n_splits;
    if (f->group)
        pre_forward(e, f);
    leave(e, f);
    return in;
}

static struct tsr_tensor *on_post_forward(struct tsr_engine *e, struct tsr_module *m,
                                          struct tsr_tensor *out)
{
    struct tsr_flat *f = m->state->flat;
    if (!tsr__ok(e) || f->training == TSR_PRE_BACKWARD)
        return out;
    enter(e, f, TSR_HOOK_POST_FORWARD, TSR_MARK_POST_FORWARD);
    if (f->group) {
        record_post_forward(e, f);
        tsr__fsdp1_reshard(e, f, f != f->all->root && f->reshards_after_forward);
    }
    tsr__fsdp1_register_pre_backward(e, f, out, m->aux_output);
    f->training = TSR_IDLE;
    leave(e, f);
    return out;
}

const struct tsr_module_hooks tsr__fsdp1_hooks = {on_pre_forward, on_post_forward};
