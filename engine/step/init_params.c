/* init_params.c: the materialisation of parameters before the first step: what Module.to_empty()
 * and the model's own initialisation allocate and write, in their order.
 */
#include <string.h>

#include "engine/ddp/reducer.h"
#include "engine/layout/tensor_parallel.h"
#include "engine/step/step_impl.h"
#include "engine/traced/traced.h"

/* Which piece of which parameter an instruction is about: args of KERNELS.md. */
void tsr__piece_args(struct tsr_engine *e, const struct tsr_param *p, unsigned what, uint64_t name)
{
    struct tsr_param_dtensor where;
    uint64_t start[TSR_DT_MAX_DIMS] = {0}, size[TSR_DT_MAX_DIMS] = {0};
    tsr_status status = tsr__param_dtensor(e, p, &where);
    if (status != TSR_OK) {
        tsr__set_error(e, status);
        return;
    }
    tsr_dtensor_box(&where.layout, e->config.rank, start, size);
    const uint64_t *lists[3] = {where.layout.shape, start, size};
    tsr__push_arg(e, what);
    tsr__push_arg(e, name);
    tsr__push_arg(e, (uint64_t)p->n_dims);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 4 || i < p->n_dims; i++)
            tsr__push_arg(e, i < p->n_dims ? lists[k][i] : 1);
}

static uint64_t name_hash(const char *fqn)
{
    return tsr_hash_bytes(TSR_HASH_INIT, fqn, strlen(fqn));
}

uint64_t tsr__param_hash(const struct tsr_param *p)
{
    return name_hash(p->fqn);
}

/* Initial values of what this rank holds of the parameter; what is behind it, padding, is 0. A copy
 * that a broken tie left has the values of the parameter that it was. */
static void init_values(struct tsr_engine *e, const struct tsr_param *p, struct tsr_storage *s)
{
    uint64_t bytes = tsr__local_bytes(p);
    if (!s)
        return;
    if (s->bytes > bytes)
        tsr__fill(e, s);
    if (bytes == 0 || !tsr__ok(e))
        return;
    const struct tsr_param *source = p->untied_from ? p->untied_from : p;
    tsr__operand(e, s, 0, bytes, TSR_WRITE, p->dtype);
    tsr__piece_args(e, p, p->init, tsr__param_hash(source));
    bool normal = p->init == TSR_INIT_NORMAL && p->init_constant == 0;
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)p->dtype,
                            .name = "init_param",
                            .bytes_written = bytes,
                            .constants = {normal ? e->model->init_std : p->init_constant}};
    struct tsr_instr instr = {.kind = s->space == TSR_SPACE_DEVICE ? TSR_OP : TSR_HOST_OP,
                              .dtype = (uint8_t)p->dtype,
                              .comm = UINT16_MAX,
                              .work = &work};
    tsr__emit(e, &instr);
}

/* A shard as `to_empty` makes it: without padding, and anew at every place of a tied parameter. The
 * shard of an earlier place goes into *held, where Module._apply() has it in a variable: until the
 * module's next shard is there, or the module is done. */
static void init_shard(struct tsr_engine *e, struct tsr_fsdp_param *f, struct tsr_storage **held)
{
    uint64_t item = tsr_dtype_bytes(f->param->dtype);
    enum tsr_offload offload = f->group->offload;
    if (offload != TSR_OFFLOAD_NONE) {
        if (f->sharded)
            return;
        f->sharded = tsr__storage_empty(e, f->shard_numel * item, TSR_CAT_SHARDED_PARAM,
                                        offload == TSR_OFFLOAD_CPU_PINNED ? TSR_SPACE_PINNED
                                                                          : TSR_SPACE_HOST);
        init_values(e, f->param, f->sharded);
        return;
    }
    bool stays = f->local_numel == f->shard_numel && f->n_made + 1 == f->n_applied;
    struct tsr_storage *before = f->sharded;
    f->n_made++;
    f->sharded =
        tsr__storage_new(e, f->local_numel * item, stays ? TSR_CAT_SHARDED_PARAM : TSR_CAT_INIT);
    tsr__storage_release(e, held);
    if (f->is_registered)
        f->registered = before;
    else
        *held = before;
    if (f->local_numel == f->shard_numel)
        init_values(e, f->param, f->sharded);
}

static void init_flat(struct tsr_engine *e, struct tsr_fsdp_param *shard)
{
    struct tsr_storage *held = NULL;
    init_shard(e, shard, &held);
    tsr__storage_release(e, &held);
}

/* After a wrapped module is materialised its uneven shards move into padded ones. */
static void pad_shards(struct tsr_engine *e, const struct tsr_module *m)
{
    const struct tsr_state *s = m->state;
    for (size_t k = 0; s && k < s->n_groups; k++)
        for (size_t i = 0; i < s->groups[k]->n_params && tsr__ok(e); i++) {
            struct tsr_fsdp_param *f = s->groups[k]->params[i];
            uint64_t bytes = f->shard_numel * tsr_dtype_bytes(f->param->dtype);
            struct tsr_storage *before = f->sharded;
            f->is_registered = true;
            tsr__storage_release(e, &f->registered);
            if (!before || before->space != TSR_SPACE_DEVICE || before->bytes == bytes)
                continue;
            f->sharded = tsr__storage_new(e, bytes, TSR_CAT_SHARDED_PARAM);
            tsr__storage_release(e, &before);
            init_values(e, f->param, f->sharded);
        }
}

/* Outside every group: the module computes with the parameter itself. */
static void init_full(struct tsr_engine *e, struct tsr_param *p)
{
    if (p->value || p->meta)
        return;
    p->master = tsr__storage_new(e, p->numel * tsr_dtype_bytes(p->dtype), TSR_CAT_SHARDED_PARAM);
    p->value = tsr__tensor_view(e, p->master, p->dtype, p->n_dims, p->shape);
    if (!p->value)
        return;
    p->value->param = p;
    p->value->requires_grad = p->requires_grad;
    init_values(e, p, p->master);
}

/* The table of rotary angles of a model of plain modules; other buffers are zero. */
static void init_buffer(struct tsr_engine *e, const struct tsr_module *m, struct tsr_storage *s)
{
    const struct tsr_rope *rope = &e->model->rope;
    uint64_t half = e->model->llama ? e->model->llama->head_dim / 2 : 0;
    if (m != e->tree.root || half == 0 || !tsr__ok(e)) {
        tsr__emit_fill(e, s, TSR_F32, 0);
        return;
    }
    tsr__operand_storage(e, s, TSR_WRITE, TSR_F32);
    tsr__push_arg(e, rope->other ? 3 : rope->llama3); /* 3: no kernel has it */
    if (rope->llama3) {
        tsr__push_arg(e, rope->factor);
        tsr__push_arg(e, rope->low_freq_factor);
        tsr__push_arg(e, rope->high_freq_factor);
        tsr__push_arg(e, rope->original_positions);
    }
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = TSR_F32,
                            .name = "rotary_table",
                            .bytes_written = s->bytes,
                            .dims = {s->bytes / 8 / half, half},
                            .constants = {rope->theta > 0 ? rope->theta : 10000}};
    tsr__emit_op(e, &work);
}

static void init_own_params(struct tsr_engine *e, struct tsr_module *m)
{
    struct tsr_storage *held = NULL;
    e->origin.module = m->id;
    for (size_t i = 0; i < m->n_params && tsr__ok(e); i++) {
        struct tsr_param *p = m->params[i].param;
        if (p->meta || p->flat) /* lazy init refuses it; the flat parameter has it */
            continue;
        if (p->fsdp)
            init_shard(e, p->fsdp, &held);
        else
            init_full(e, p);
    }
    bool stays = ++m->n_made == m->n_applied;
    for (size_t i = 0; i < m->n_buffers && tsr__ok(e); i++)
        if (m->buffers[i].bytes) {
            struct tsr_storage *before = m->buffers[i].storage;
            m->buffers[i].storage =
                tsr__storage_new(e, m->buffers[i].bytes, stays ? TSR_CAT_BUFFER : TSR_CAT_INIT);
            tsr__storage_release(e, &before);
            init_buffer(e, m, m->buffers[i].storage);
        }
    tsr__storage_release(e, &held);
}

/* Module.children() has a child once, under whichever names; other parents have it again. */
static bool is_first_child(const struct tsr_module *m, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (m->children[i] == m->children[at])
            return false;
    return true;
}

/* How often each shard and buffer will be made. */
static void count_applied(struct tsr_module *m)
{
    m->n_applied++;
    for (size_t i = 0; i < m->n_children; i++)
        if (is_first_child(m, i))
            count_applied(m->children[i]);
    for (size_t i = 0; i < m->n_params; i++)
        if (m->params[i].param->fsdp)
            m->params[i].param->fsdp->n_applied++;
}

/* The order of Module.to_empty(): children before the module's own parameters and buffers; a module
 * that several parents have comes with each of them. */
static void init_module(struct tsr_engine *e, struct tsr_module *m)
{
    const struct tsr_flat *flat = m->state ? m->state->flat : NULL;
    for (size_t i = 0; i < m->n_children && tsr__ok(e); i++)
        if (is_first_child(m, i))
            init_module(e, m->children[i]);
    init_own_params(e, m);
    e->origin.module = m->id;
    if (flat && flat->group && !flat->shard->sharded)
        init_flat(e, flat->shard);
    else
        pad_shards(e, m);
}

/* Two scalars that come and go while the module is built. */
static void init_scalars(struct tsr_engine *e)
{
    for (int i = 0; i < 2; i++) {
        struct tsr_storage *scalar = tsr__storage_new(e, 4, TSR_CAT_INIT);
        tsr__storage_release(e, &scalar);
    }
}

static bool is_all_meta(const struct tsr_engine *e)
{
    for (size_t i = 0; i < e->tree.n_params; i++)
        if (!e->tree.params[i]->meta)
            return false;
    return true;
}

static bool offloads(const struct tsr_engine *e)
{
    for (size_t i = 0; i < e->fsdp->n_states; i++)
        for (size_t k = 0; k < e->fsdp->states[i]->n_groups; k++)
            if (e->fsdp->states[i]->groups[k]->offload != TSR_OFFLOAD_NONE)
                return true;
    return false;
}

/* Steps of a model with tensor-parallel parameters are modelled for whole plans: else there is only
 * their layout. */
static tsr_status check_tensor_parallel(const struct tsr_engine *e)
{
    if (!e->tp->mesh_dims)
        return TSR_OK;
    for (size_t i = 0; i < e->tree.n_params; i++) {
        const struct tsr_param *p = e->tree.params[i];
        const struct tsr_group *g = p && p->tp && p->fsdp ? p->fsdp->group : NULL;
        if (g && g->post_forward_size > 0 && g->post_forward_size < g->shard_size)
            return tsr_fail(TSR_ENOTIMPL,
                            "resharding after forward to %u ranks does not support tensor "
                            "parallelism: %s",
                            g->post_forward_size, p->fqn);
    }
    if (e->tp->size > 1 && e->shape.seq % e->tp->size != 0)
        return tsr_fail(TSR_EVALUE,
                        "a sequence of %llu cannot be cut among %u tensor-parallel ranks",
                        (unsigned long long)e->shape.seq, e->tp->size);
    if (e->tp->size > 0)
        return TSR_OK;
    return tsr_fail(TSR_EUNSUPPORTED,
                    "steps are modelled for a whole model's plan only (tsr_tensor_parallel_model)");
}

tsr_status tsr_engine_init_params(struct tsr_engine *e)
{
    if (!e->tree.root)
        return tsr_fail(TSR_EVALUE, "the engine has no model");
    TSR_TRY(check_tensor_parallel(e));
    TSR_TRY(tsr__check_loss(e));
    TSR_TRY(tsr_traced_check_wrapping(e));
    tsr__set_phase(e, TSR_PHASE_INIT, 0);
    tsr__init_unsharded(e);
    if (e->fsdp->n_states > 0 && !offloads(e) && !is_all_meta(e))
        init_scalars(e);
    count_applied(e->tree.root);
    init_module(e, e->tree.root);
    tsr__mirrors_are_stale(e);
    if (e->reducer && tsr__ok(e))
        tsr__reducer_init_params(e);
    e->tree.params_ready = true;
    return e->status;
}
