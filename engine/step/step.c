/* step.c: what an iteration does, in order: inputs, zero_grad, per micro-batch forward, loss and
 * backward, clipping, optimizer, end.
 */
#include <string.h>

#include "engine/graph/wrapper.h"
#include "engine/layout/tensor_parallel.h"
#include "engine/ops/ops_fused.h"
#include "engine/step/step_impl.h"
#include "engine/traced/traced.h"

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
    if (config->nesterov && config->optimizer != TSR_OPT_SGD_MOMENTUM)
        return tsr_fail(TSR_EVALUE, "Nesterov's momentum without SGD's momentum");
    if (config->maximize &&
        (config->optimizer == TSR_OPT_DECOUPLED || config->optimizer == TSR_OPT_DECOUPLED_READ))
        return tsr_fail(TSR_EVALUE, "maximize: DecoupledAdamW has none");
    if (config->amsgrad && config->optimizer != TSR_OPT_ADAMW_FOREACH &&
        config->optimizer != TSR_OPT_ADAMW_FUSED && config->optimizer != TSR_OPT_ADAMW_LOOP)
        return tsr_fail(TSR_EVALUE, "amsgrad: only AdamW of torch.optim has it");
    e->step->config = *config;
    e->shape = (struct tsr_step_shape){config->batch, config->seq, config->n_micro};
    if (e->traced &&
        (config->loss_chunks > 1 || config->metrics || config->loss_kernel != TSR_LOSS_EAGER))
        return tsr_fail(TSR_EUNSUPPORTED, "a traced model has its own loss: not in chunks, not "
                                          "flash-attn's or compiled, and without metrics");
    e->ops->loss_chunks = config->loss_chunks;
    e->ops->loss_kernel = config->loss_kernel;
    TSR__EACH_WRAPPER (e, w, configured)
        w->ops->configured(e, w, config);
    return e->tree.root ? tsr__check_loss(e) : TSR_OK;
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
    uint64_t rows = e->step->config.batch * (e->model->per_sequence ? 1 : e->step->config.seq);
    if (!e->model->loss_mse)
        return input(e, TSR_I64, 1, &rows, m, true);
    if (e->model->target_dim == 0)
        return NULL;
    return input(e, TSR_F32, 2, (uint64_t[]){rows, e->model->target_dim}, m, true);
}

/* The pinned memory of the batch is written again when these copies are over: the next batch waits
 * for `input_event`, which by then has long come. */
void tsr__make_inputs(struct tsr_engine *e, uint32_t n_micro)
{
    for (uint32_t m = 0; m < TSR_MAX_MICRO; m++) { /* of a step that failed */
        drop(e, &e->step->inputs[m]);
        drop(e, &e->step->labels[m]);
    }
    for (uint32_t m = 0; m < n_micro && tsr__ok(e); m++) {
        if (e->traced) {
            tsr__traced_inputs(e, m);
            continue;
        }
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
        if (p->wrapper && p->wrapper->ops->zero_grad) {
            p->wrapper->ops->zero_grad(e, p->wrapper, p);
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
    switch (e->step->config.loss_kernel) {
    case TSR_LOSS_EAGER:
        return tsr_op_cross_entropy(e, logits, labels);
    case TSR_LOSS_COMPILED:
        return tsr__op_compiled_cross_entropy(e, logits, labels);
    case TSR_LOSS_FLASH:
    case TSR_LOSS_FLASH_INPLACE:
        break;
    }
    return tsr__op_flash_cross_entropy(e, logits, labels);
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
    struct tsr_tensor *loss = NULL;
    if (!e->traced)
        loss = tsr__forward_loss(e, entry, micro);
    else if (entry || no_grad)
        return tsr_fail(TSR_EUNSUPPORTED, "of a traced model only whole training steps are known");
    else
        tsr__traced_forward(e, micro);
    e->grad_enabled = true;
    if (e->step->config.sync == TSR_SYNC_LOSS && !no_grad)
        read_loss(e);
    drop(e, &e->step->losses[micro]);
    e->step->losses[micro] = loss;
    if (no_grad || !tsr__ok(e)) /* nothing goes back from it */
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
    if (!e->traced)
        tsr__backward(e, losses, k);
    else if (n == 1)
        tsr__traced_backward(e, micros[0]);
    else
        return tsr_fail(TSR_EUNSUPPORTED,
                        "a backward of a traced model is that of one micro-batch");
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
    if (tsr__leaves_grads_unscaled(e) &&
        (!fused || (config->clip && config->clip_how != TSR_CLIP_FOREACH)))
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
        TSR__EACH_WRAPPER (e, w, clip_begin)
            w->ops->clip_begin(e, w);
        bool by_wrapper = false;
        TSR__EACH_WRAPPER (e, w, clips_own_grads)
            by_wrapper |= w->ops->clips_own_grads(w);
        if (e->step->config.clip_how != TSR_CLIP_FOREACH || by_wrapper)
            tsr__clip_loop(e);
        else
            tsr__clip(e);
    }
    tsr__set_phase(e, TSR_PHASE_OPTIMIZER, 0);
    tsr__optimizer_step(e);
    if (e->step->config.optimizer != TSR_OPT_NONE)
        TSR__EACH_WRAPPER (e, w, after_optimizer)
            w->ops->after_optimizer(e, w);
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
    if (e->traced)
        tsr__traced_end(e, e->step->config.n_micro);
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
static tsr_status begin_micro_batch(struct tsr_engine *e, bool is_last)
{
    const struct tsr_step_config *config = &e->step->config;
    if (config->n_micro == 1 || config->accumulate == TSR_ACCUM_REDUCE_EACH)
        return TSR_OK;
    TSR__EACH_WRAPPER (e, w, begin_micro_batch)
        TSR_TRY(w->ops->begin_micro_batch(e, w, config->accumulate, is_last));
    return TSR_OK;
}

tsr_status tsr_step_run(struct tsr_engine *e, uint32_t iteration)
{
    TSR_TRY(tsr_step_begin(e, iteration));
    for (uint32_t m = 0; m < e->step->config.n_micro; m++) {
        TSR_TRY(begin_micro_batch(e, m + 1 == e->step->config.n_micro));
        TSR_TRY(tsr_step_forward(e, m, NULL, false));
        TSR_TRY(tsr_step_backward(e, &m, 1));
    }
    TSR_TRY(tsr_step_optimizer(e));
    return tsr_step_end(e);
}
