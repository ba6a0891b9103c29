/* init_params.c: the materialisation of parameters before the first step: what Module.to_empty()
 * and the model's own initialisation allocate and write, in their order.
 */
#include "engine/graph/wrapper.h"
#include "engine/layout/tensor_parallel.h"
#include "engine/step/step_impl.h"
#include "engine/traced/traced.h"

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
    tsr__init_values(e, p, p->master, tsr__local_bytes(p));
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
        if (p->meta) /* lazy initialisation refuses it */
            continue;
        if (!p->wrapper)
            init_full(e, p);
        else if (p->wrapper->ops->init_param)
            p->wrapper->ops->init_param(e, p->wrapper, p, &held);
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
        m->params[i].param->n_applied++;
}

/* The order of Module.to_empty(): children before the module's own parameters and buffers; a module
 * that several parents have comes with each of them. */
static void init_module(struct tsr_engine *e, struct tsr_module *m)
{
    for (size_t i = 0; i < m->n_children && tsr__ok(e); i++)
        if (is_first_child(m, i))
            init_module(e, m->children[i]);
    init_own_params(e, m);
    e->origin.module = m->id;
    if (m->wrapper && m->wrapper->ops->init_module)
        m->wrapper->ops->init_module(e, m->wrapper, m);
}

/* Steps of a model with tensor-parallel parameters are modelled for whole plans: else there is only
 * their layout. */
static tsr_status check_tensor_parallel(const struct tsr_engine *e)
{
    if (!e->tp->mesh_dims)
        return TSR_OK;
    TSR__EACH_WRAPPER (e, w, check_tensor_parallel)
        TSR_TRY(w->ops->check_tensor_parallel(e, w));
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
    TSR__EACH_WRAPPER (e, w, configured)
        w->ops->configured(e, w, &e->step->config);
    TSR__EACH_WRAPPER (e, w, init_begin)
        w->ops->init_begin(e, w);
    count_applied(e->tree.root);
    init_module(e, e->tree.root);
    tsr__values_changed(e);
    TSR__EACH_WRAPPER (e, w, init_end)
        if (tsr__ok(e))
            w->ops->init_end(e, w);
    e->tree.params_ready = true;
    return e->status;
}
