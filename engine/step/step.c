/* step.c: what an iteration does, in order: inputs, zero_grad, per micro-batch forward, loss and
 * backward, clipping, optimizer, end. And the materialisation of parameters before the first one.
 */
#include <string.h>

#include "engine/ddp/ddp.h"
#include "engine/ddp/reducer.h"
#include "engine/fsdp1/fsdp1.h"
#include "engine/layout/tensor_parallel.h"
#include "engine/ops/ops_fused.h"
#include "engine/step/step_impl.h"

tsr_status tsr_step_configure(struct tsr_engine *e, const struct tsr_step_config *config)
{
    if (config->n_micro < 1 || config->n_micro > TSR_MAX_MICRO)
        return tsr_fail(TSR_EVALUE, "%u micro-batches; allowed: 1 to %d", config->n_micro,
                        TSR_MAX_MICRO);
    if (config->batch == 0 || config->seq == 0)
        return tsr_fail(TSR_EVALUE, "batch and sequence must be at least 1");
    uint64_t tokens, bytes;
    if (!tsr_mul_u64(config->batch, config->seq, &tokens) || !tsr_mul_u64(tokens, 64, &bytes) ||
        tokens > UINT64_C(1) << 40)
        return tsr_fail(TSR_EVALUE,
                        "batch x sequence (%llu x %llu) is too large; allowed: 2^40 tokens",
                        (unsigned long long)config->batch, (unsigned long long)config->seq);
    if (config->loss_chunks > tokens)
        return tsr_fail(TSR_EVALUE, "a loss in %llu chunks of %llu tokens; allowed: up to %llu",
                        (unsigned long long)config->loss_chunks, (unsigned long long)tokens,
                        (unsigned long long)tokens);
    if (config->metrics > TSR_MAX_METRICS)
        return tsr_fail(TSR_EVALUE, "%u metrics; allowed: 0 to %d", config->metrics,
                        TSR_MAX_METRICS);
    e->step->config = *config;
    e->shape = (struct tsr_step_shape){config->batch, config->seq, config->n_micro};
    e->ops->loss_chunks = config->loss_chunks;
    e->ops->loss_inplace = config->loss_kernel == TSR_LOSS_FLASH_INPLACE;
    e->fsdp->optimizer_reads_any = config->optimizer == TSR_OPT_ADAMW_FUSED;
    e->fsdp->clips = config->clip;
    return e->tree.root ? tsr__check_loss(e) : TSR_OK;
}

/* ---- initialisation -------------------------------------------------------------------------- */
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
        for (int i = 0; i < 4; i++)
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

/* A shard as `to_empty` makes it: without padding, and anew at every place of a tied parameter. */
static void init_shard(struct tsr_engine *e, struct tsr_fsdp_param *f, bool tied)
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
    bool stays = f->local_numel == f->shard_numel && (!tied || f->sharded);
    struct tsr_storage *before = f->sharded;
    f->sharded =
        tsr__storage_new(e, f->local_numel * item, stays ? TSR_CAT_SHARDED_PARAM : TSR_CAT_INIT);
    tsr__storage_release(e, &before);
    if (f->local_numel == f->shard_numel)
        init_values(e, f->param, f->sharded);
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

static bool is_tied(const struct tsr_param *p)
{
    return p->fsdp && p->fsdp->n_aliases > 0;
}

static void init_own_params(struct tsr_engine *e, struct tsr_module *m)
{
    e->origin.module = m->id;
    for (size_t i = 0; i < m->n_params && tsr__ok(e); i++) {
        struct tsr_param *p = m->params[i].param;
        if (p->meta || p->flat) /* lazy init refuses it; the flat parameter has it */
            continue;
        if (p->fsdp)
            init_shard(e, p->fsdp, is_tied(p));
        else
            init_full(e, p);
    }
    for (int i = 0; i < 2 && tsr__ok(e); i++)
        if (m->buffer_bytes[i] && !m->buffers[i]) {
            m->buffers[i] = tsr__storage_new(e, m->buffer_bytes[i], TSR_CAT_BUFFER);
            init_buffer(e, m, m->buffers[i]);
        }
}

/* The order of Module.to_empty(): children before the module's own parameters and buffers. */
static void init_module(struct tsr_engine *e, struct tsr_module *m)
{
    const struct tsr_flat *flat = m->state ? m->state->flat : NULL;
    if (m->visited == e->tree.walk_stamp) /* the same module under another name */
        return;
    m->visited = e->tree.walk_stamp;
    for (size_t i = 0; i < m->n_children && tsr__ok(e); i++)
        init_module(e, m->children[i]);
    init_own_params(e, m);
    e->origin.module = m->id;
    if (flat && flat->group && !flat->shard->sharded)
        init_shard(e, flat->shard, false);
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
    tsr__set_phase(e, TSR_PHASE_INIT, 0);
    tsr__init_unsharded(e);
    if (e->fsdp->n_states > 0 && !offloads(e) && !is_all_meta(e))
        init_scalars(e);
    e->tree.walk_stamp++;
    init_module(e, e->tree.root);
    tsr__mirrors_are_stale(e);
    if (e->reducer && tsr__ok(e))
        tsr__reducer_init_params(e);
    e->tree.params_ready = true;
    return e->status;
}

/* ---- parts of an iteration ------------------------------------------------------------------- */
static void drop(struct tsr_engine *e, struct tsr_tensor **t)
{
    tsr_release(e, *t);
    *t = NULL;
}

/* The host writes a batch into pinned memory, from where it is copied. */
static void read_batch(struct tsr_engine *e, const struct tsr_storage *host, tsr_dtype dtype,
                       uint32_t micro, bool labels)
{
    tsr__operand_storage(e, host, TSR_WRITE, dtype);
    tsr__push_arg(e, micro);
    tsr__push_arg(e, labels);
    tsr__push_arg(e, e->origin.phase == TSR_PHASE_EVAL);
    tsr__host_work(e, "read_batch", dtype, 0, host ? host->bytes : 0);
}

static struct tsr_tensor *input(struct tsr_engine *e, tsr_dtype dtype, int n_dims,
                                const uint64_t *dims, uint32_t micro, bool labels)
{
    struct tsr_tensor *t = tsr__tensor_new(e, dtype, n_dims, dims, TSR_CAT_INPUTS);
    if (!t)
        return NULL;
    struct tsr_storage *host =
        tsr__storage_empty(e, tsr__tensor_bytes(t), TSR_CAT_INPUTS, TSR_SPACE_PINNED);
    read_batch(e, host, dtype, micro, labels);
    tsr__operand_storage(e, host, TSR_READ, dtype);
    tsr__operand_tensor(e, t, TSR_WRITE);
    tsr__emit_copy(e, dtype, tsr__tensor_bytes(t), tsr__tensor_bytes(t), "h2d_input");
    tsr__storage_release(e, &host);
    return t;
}

static struct tsr_tensor *make_input(struct tsr_engine *e, uint32_t m)
{
    uint64_t tokens = e->step->config.batch * e->step->config.seq;
    if (e->model->int_input)
        return input(e, TSR_I64, 1, &tokens, m, false);
    return input(e, TSR_F32, 2, (uint64_t[]){tokens, e->model->in_dim}, m, false);
}

static struct tsr_tensor *make_labels(struct tsr_engine *e, uint32_t m)
{
    uint64_t tokens = e->step->config.batch * e->step->config.seq;
    if (!e->model->loss_mse)
        return input(e, TSR_I64, 1, &tokens, m, true);
    if (e->model->target_dim == 0)
        return NULL;
    return input(e, TSR_F32, 2, (uint64_t[]){tokens, e->model->target_dim}, m, true);
}

/* The pinned memory of the batch is written again when these copies are over: the next batch waits
 * for `input_event`, which by then has long come. */
void tsr__make_inputs(struct tsr_engine *e, uint32_t n_micro)
{
    for (uint32_t m = 0; m < n_micro && tsr__ok(e); m++) {
        e->step->inputs[m] = make_input(e, m);
        e->step->labels[m] = make_labels(e, m);
    }
    e->step->input_event = tsr__new_event(e);
    struct tsr_instr record = {
        .kind = TSR_RECORD, .stream = e->stream, .comm = UINT16_MAX, .event = e->step->input_event};
    tsr__emit(e, &record);
}

void tsr__settle_inputs(struct tsr_engine *e)
{
    if (e->step->input_event) {
        struct tsr_instr wait = {
            .kind = TSR_HOST_WAIT, .comm = UINT16_MAX, .event = e->step->input_event};
        tsr__emit(e, &wait);
    }
    e->step->input_event = 0;
    tsr__pinned_settle(e);
}

void tsr__zero_grad(struct tsr_engine *e)
{
    size_t n;
    struct tsr_param *const *params = tsr__params_in_order(e, &n);
    for (size_t i = 0; i < n; i++) {
        struct tsr_param *p = params[i];
        if (p->flat) {
            tsr__fsdp1_zero_grad(p->flat);
        } else if (p->fsdp) {
            tsr__storage_release(e, &p->fsdp->grad);
        } else {
            drop(e, &p->full_grad);
            if (p->value)
                drop(e, &p->value->grad);
        }
    }
}

tsr_status tsr_step_begin(struct tsr_engine *e, uint32_t iteration)
{
    if (!e->tree.params_ready)
        return tsr_fail(TSR_EVALUE, "tsr_engine_init_params() comes before the first step");
    e->iteration = iteration;
    e->origin.iteration = (uint16_t)iteration;
    tsr__emit_mark(e, TSR_MARK_ITERATION, iteration);
    tsr__set_phase(e, TSR_PHASE_INPUTS, 0);
    tsr__settle_inputs(e);
    tsr__make_inputs(e, e->step->config.n_micro);
    tsr__set_phase(e, TSR_PHASE_ZERO_GRAD, 0);
    tsr__zero_grad(e);
    return e->status;
}

static struct tsr_tensor *cross_entropy(struct tsr_engine *e, struct tsr_tensor *logits,
                                        struct tsr_tensor *labels)
{
    if (tsr__is_fused(e) && e->tp->size <= 1)
        return tsr__op_fused_cross_entropy(e, logits, labels);
    return e->step->config.loss_kernel == TSR_LOSS_EAGER
               ? tsr_op_cross_entropy(e, logits, labels)
               : tsr__op_flash_cross_entropy(e, logits, labels);
}

/* A head that makes the loss in chunks returns it; else the loss is a phase of its own. */
static struct tsr_tensor *forward_loss(struct tsr_engine *e, struct tsr_module *entry,
                                       uint32_t micro)
{
    bool chunked = e->step->config.loss_chunks > 1 && entry == e->tree.root;
    e->ops->head_labels = chunked ? e->step->labels[micro] : NULL;
    struct tsr_tensor *out = tsr_call(e, entry, e->step->inputs[micro]), *loss;
    if (e->origin.phase == TSR_PHASE_FORWARD) {
        tsr__keep_logits(e, out);
        tsr__set_phase(e, TSR_PHASE_LOSS, micro);
    }
    if (chunked)
        return out;
    if (entry != e->tree.root)
        loss = tsr_op_mean_square(e, out);
    else if (e->model->loss_mse)
        loss = tsr__mean_square(e, out, e->step->labels[micro]);
    else
        loss = cross_entropy(e, out, e->step->labels[micro]);
    tsr_release(e, out);
    return loss;
}

struct tsr_tensor *tsr__forward_loss(struct tsr_engine *e, struct tsr_module *entry, uint32_t micro)
{
    struct tsr_tensor *loss = forward_loss(e, entry ? entry : e->tree.root, micro);
    if (loss)
        tsr__report_value(e, TSR_REPORT_LOSS, micro, loss->storage, (tsr_dtype)loss->dtype);
    return loss;
}

/* ---- what the host is told ------------------------------------------------------------------- */

static void copy_report(struct tsr_engine *e, struct tsr_storage *s, struct tsr_storage *host,
                        tsr_dtype dtype)
{
    uint64_t bytes = tsr_dtype_bytes(dtype);
    tsr__operand(e, s, 0, bytes, TSR_READ, dtype);
    tsr__operand_storage(e, host, TSR_WRITE, dtype);
    if (s->space == TSR_SPACE_DEVICE)
        tsr__emit_copy(e, dtype, bytes, bytes, "d2h_report");
    else
        tsr__host_work(e, "copy", dtype, bytes, bytes);
}

void tsr__report_value(struct tsr_engine *e, uint8_t what, uint32_t micro, struct tsr_storage *s,
                       tsr_dtype dtype)
{
    if (!e->step->config.report || !s || !tsr__ok(e) || e->step->n_reports == TSR__MAX_REPORTS)
        return;
    struct tsr_storage *host =
        tsr__storage_empty(e, tsr_dtype_bytes(dtype), TSR_CAT_TEMP, TSR_SPACE_PINNED);
    if (!host)
        return;
    copy_report(e, s, host, dtype);
    e->step->reports[e->step->n_reports++] =
        (struct tsr_pending_report){host, what, (uint8_t)dtype, micro};
    e->step->report_event = tsr__new_event(e);
    struct tsr_instr record = {.kind = TSR_RECORD,
                               .stream = e->stream,
                               .comm = UINT16_MAX,
                               .event = e->step->report_event};
    tsr__emit(e, &record);
}

void tsr__deliver_reports(struct tsr_engine *e)
{
    if (e->step->n_reports > 0) {
        struct tsr_instr wait = {
            .kind = TSR_HOST_WAIT, .comm = UINT16_MAX, .event = e->step->report_event};
        tsr__emit(e, &wait);
    }
    for (size_t i = 0; i < e->step->n_reports; i++) {
        struct tsr_pending_report *r = &e->step->reports[i];
        tsr__operand_storage(e, r->host, TSR_READ, (tsr_dtype)r->dtype);
        tsr__push_arg(e, r->what);
        tsr__push_arg(e, r->micro);
        tsr__host_work(e, "report", (tsr_dtype)r->dtype, tsr_dtype_bytes((tsr_dtype)r->dtype), 0);
        tsr__storage_release(e, &r->host);
    }
    e->step->n_reports = 0;
}

static void read_loss(struct tsr_engine *e)
{
    struct tsr_instr read = {.kind = TSR_HOST_READ, .stream = e->stream, .comm = UINT16_MAX};
    tsr__emit(e, &read);
}

tsr_status tsr_step_forward(struct tsr_engine *e, uint32_t micro, struct tsr_module *entry,
                            bool no_grad)
{
    if (micro >= e->step->config.n_micro)
        return tsr_fail(TSR_EVALUE, "micro-batch %u of %u does not exist", micro,
                        e->step->config.n_micro);
    e->grad_enabled = !no_grad;
    tsr__set_phase(e, TSR_PHASE_FORWARD, micro);
    struct tsr_tensor *loss = tsr__forward_loss(e, entry, micro);
    e->grad_enabled = true;
    if (e->step->config.sync == TSR_SYNC_LOSS && !no_grad)
        read_loss(e);
    drop(e, &e->step->losses[micro]);
    e->step->losses[micro] = loss;
    if (no_grad)
        drop(e, &e->step->losses[micro]);
    return e->status;
}

tsr_status tsr_step_backward(struct tsr_engine *e, const uint32_t *micros, size_t n)
{
    struct tsr_tensor *losses[TSR_MAX_MICRO];
    size_t k = 0;
    for (size_t i = 0; i < n && i < TSR_MAX_MICRO; i++)
        if (e->step->losses[micros[i]] && e->step->losses[micros[i]]->requires_grad)
            losses[k++] = e->step->losses[micros[i]];
    tsr__set_phase(e, TSR_PHASE_BACKWARD, n ? micros[0] : 0);
    tsr__backward(e, losses, k);
    for (size_t i = 0; i < n; i++)
        drop(e, &e->step->losses[micros[i]]);
    if (n > 0)
        tsr__run_metrics(e, micros[n - 1]);
    return e->status;
}

/* Raises if this step has no kernel that scales what it reads; true if all is well. */
static bool check_folded(struct tsr_engine *e)
{
    const struct tsr_step_config *config = &e->step->config;
    bool fused = config->optimizer == TSR_OPT_ADAMW_FUSED || config->optimizer == TSR_OPT_NONE;
    if (tsr__folds(e) && (!fused || (config->clip && config->clip_how != TSR_CLIP_FOREACH)))
        TSR__RAISE(
            e, TSR_EUNSUPPORTED,
            "gradients that stay sums need the fused AdamW, and clipping over all gradients");
    return tsr__ok(e);
}

tsr_status tsr_step_optimizer(struct tsr_engine *e)
{
    if (!check_folded(e))
        return e->status;
    if (e->step->config.clip) {
        tsr__set_phase(e, TSR_PHASE_CLIP, 0);
        bool by_wrapper = e->fsdp1 && e->fsdp1->shard_comm != UINT16_MAX;
        if (e->step->config.clip_how != TSR_CLIP_FOREACH || by_wrapper)
            tsr__clip_loop(e);
        else
            tsr__clip(e);
    }
    tsr__set_phase(e, TSR_PHASE_OPTIMIZER, 0);
    tsr__optimizer_step(e);
    if (e->step->config.optimizer != TSR_OPT_NONE)
        tsr__events_are_stale(e);
    e->step->optimizer_ran = true;
    return e->status;
}

tsr_status tsr_step_end(struct tsr_engine *e)
{
    tsr__set_phase(e, TSR_PHASE_END, 0);
    tsr__save_hand_over(e);
    tsr__deliver_reports(e);
    if (e->step->config.reads_loss)
        tsr__host_waits(e);
    if (e->step->config.sync == TSR_SYNC_STEP)
        tsr__host_wait_all(e);
    e->ops->head_labels = NULL;
    for (uint32_t m = 0; m < TSR_MAX_MICRO; m++) {
        drop(e, &e->step->losses[m]);
        drop(e, &e->step->inputs[m]);
        drop(e, &e->step->labels[m]);
    }
    tsr__deferral_end_iteration(e);
    tsr__emit_mark(e, TSR_MARK_ITERATION_END, e->iteration);
    return e->status;
}

/* ---- the plain iteration --------------------------------------------------------------------- */
/* Section 3.12: what differs between the last micro-batch and the ones before it. */
static tsr_status set_accumulation(struct tsr_engine *e, bool last)
{
    struct tsr_module *root = e->tree.root;
    if (e->step->config.n_micro == 1 || e->step->config.accumulate == TSR_ACCUM_REDUCE_EACH)
        return TSR_OK;
    if (e->reducer)
        return tsr_ddp_set_sync(e, last);
    if (e->fsdp1)
        return tsr_fsdp1_set_sync(e, last);
    if (!root->state)
        return TSR_OK;
    if (e->step->config.accumulate == TSR_ACCUM_NO_ALL_REDUCE)
        TSR_TRY(tsr_set_requires_all_reduce(e, root, last, true));
    else
        TSR_TRY(tsr_set_requires_gradient_sync(e, root, last, true));
    if (e->step->config.accumulate == TSR_ACCUM_NO_REDUCE_NO_RESHARD)
        TSR_TRY(tsr_set_reshard_after_backward(e, root, last, true));
    return tsr_set_is_last_backward(e, root, last);
}

tsr_status tsr_step_run(struct tsr_engine *e, uint32_t iteration)
{
    TSR_TRY(tsr_step_begin(e, iteration));
    for (uint32_t m = 0; m < e->step->config.n_micro; m++) {
        TSR_TRY(set_accumulation(e, m + 1 == e->step->config.n_micro));
        TSR_TRY(tsr_step_forward(e, m, NULL, false));
        TSR_TRY(tsr_step_backward(e, &m, 1));
    }
    TSR_TRY(tsr_step_optimizer(e));
    return tsr_step_end(e);
}
