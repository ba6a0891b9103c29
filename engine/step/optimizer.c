/* optimizer.c: the optimizer variants (operators.md, section 12).
 * States are made by the first step, all of them before its first temporary.
 *
 * States in another dtype than their parameter's (step.state_dtype): each kernel is taken to load
 * and store them in theirs and to compute in the parameter's, as a fused kernel can; so there is
 * no cast copy of them, and foreach's temporaries, which begin as the root of a state, have the
 * state's dtype. Nothing of this was recorded.
 */
#include <string.h>

#include "engine/fsdp1/fsdp1.h"
#include "engine/graph/wrapper.h"
#include "engine/step/step_impl.h"
#include "engine/step/values.h"

/* ---- the variants ---------------------------------------------------------------------------- */

struct tsr_storage *tsr__param_grad(const struct tsr_param *p)
{
    if (tsr__is_piece(p))
        return p->flat->shard->grad;
    if (p->fsdp)
        return p->fsdp->grad;
    if (p->full_grad)
        return p->full_grad->storage;
    return p->value && p->value->grad ? p->value->grad->storage : NULL;
}

/* Bytes into it. */
static uint64_t grad_offset_of(const struct tsr_param *p)
{
    if (p->fsdp)
        return p->fsdp->grad_offset;
    if (p->full_grad)
        return p->full_grad->offset;
    return p->value && p->value->grad ? p->value->grad->offset : 0;
}

static tsr_dtype grad_dtype_of(const struct tsr_param *p)
{
    const struct tsr_fsdp_param *f = p->fsdp;
    bool narrow = f && f->grad && f->kept_grad && f->param_dtype != TSR_DTYPE_NONE;
    return narrow ? f->param_dtype : p->dtype;
}

uint64_t tsr__param_local_numel(const struct tsr_param *p)
{
    return p->fsdp ? p->fsdp->local_numel : p->numel;
}

struct tsr_storage *tsr__param_storage(const struct tsr_param *p)
{
    if (tsr__is_piece(p))
        return p->flat->shard->sharded;
    return p->fsdp ? p->fsdp->sharded : p->master;
}

static uint64_t storage_offset(const struct tsr_param *p)
{
    return tsr__is_piece(p) ? p->fsdp->grad_offset : 0;
}

tsr_dtype tsr__state_dtype(const struct tsr_engine *e, const struct tsr_param *p)
{
    return e->step->config.state_dtype == TSR_DTYPE_NONE ? p->dtype : e->step->config.state_dtype;
}

int tsr__n_opt_states(const struct tsr_step_config *config)
{
    switch (config->optimizer) {
    case TSR_OPT_ADAMW_FOREACH:
    case TSR_OPT_ADAMW_FUSED:
    case TSR_OPT_ADAMW_LOOP:
        return config->amsgrad ? 3 : 2;
    case TSR_OPT_DECOUPLED:
    case TSR_OPT_DECOUPLED_READ:
        return 2;
    case TSR_OPT_SGD_MOMENTUM:
        return 1;
    case TSR_OPT_SGD:
    case TSR_OPT_NONE:
        break;
    }
    return 0;
}

bool tsr__is_offloaded(const struct tsr_param *p)
{
    return p->fsdp && p->fsdp->group->offload != TSR_OFFLOAD_NONE;
}

/* A parameter that this step updates on this rank. */
bool tsr__is_stepped(const struct tsr_param *p)
{
    return tsr__param_grad(p) && tsr__param_local_numel(p) > 0;
}

bool tsr__decays(const struct tsr_engine *e, const struct tsr_param *p)
{
    return !e->step->config.decay_matrices_only || p->n_dims > 1;
}

bool tsr__takes(const struct tsr__step *s, const struct tsr_param *p)
{
    return tsr__is_stepped(p) && tsr__is_offloaded(p) == s->host &&
           (s->dtype == TSR_DTYPE_NONE || s->dtype == p->dtype) &&
           (!s->groups || s->decaying == tsr__decays(s->e, p));
}

static uint64_t state_bytes(const struct tsr__step *s, const struct tsr_param *p)
{
    return tsr__param_local_numel(p) * tsr_dtype_bytes(tsr__state_dtype(s->e, p));
}

static bool counts_on_device(const struct tsr_engine *e)
{
    return e->step->config.optimizer == TSR_OPT_ADAMW_FUSED ||
           e->step->config.optimizer == TSR_OPT_DECOUPLED_READ;
}

/* SGD makes its momentums as they begin (sgd.c). */
static void make_states(struct tsr__step *s)
{
    if (s->e->step->config.optimizer == TSR_OPT_SGD_MOMENTUM)
        return;
    for (size_t i = 0; i < s->n && tsr__ok(s->e); i++) {
        struct tsr_param *p = s->params[i];
        if (counts_on_device(s->e) && tsr__param_grad(p) && !tsr__is_offloaded(p) &&
            !p->step_count) /* the step lies on the device, also of empty shards */
            tsr__fill(s->e, p->step_count = tsr__storage_new(s->e, 4, TSR_CAT_OPT_STATE));
        if (!tsr__is_stepped(p))
            continue;
        uint64_t bytes = state_bytes(s, p);
        for (int k = 0; k < s->n_states; k++) {
            if (p->opt_state[k])
                continue;
            p->opt_state[k] =
                tsr__is_offloaded(p)
                    ? tsr__storage_empty(s->e, bytes, TSR_CAT_OPT_STATE, TSR_SPACE_HOST)
                    : tsr__storage_new(s->e, bytes, TSR_CAT_OPT_STATE);
            tsr__fill(s->e, p->opt_state[k]);
        }
    }
}

void tsr__step_count(struct tsr__step *s)
{
    s->bytes = s->grad_bytes = s->state_bytes = s->numel = 0;
    for (size_t i = 0; i < s->n; i++)
        if (tsr__takes(s, s->params[i])) {
            s->numel += tsr__param_local_numel(s->params[i]);
            s->bytes += tsr__param_local_numel(s->params[i]) * tsr_dtype_bytes(s->params[i]->dtype);
            s->grad_bytes +=
                tsr__param_local_numel(s->params[i]) * tsr_dtype_bytes(grad_dtype_of(s->params[i]));
            s->state_bytes += state_bytes(s, s->params[i]);
        }
}

/* What a kernel touches of one parameter; bit k of reads and writes: gradient, first and second
 * state, parameter. */
static void param_operands(struct tsr__step *s, const struct tsr_param *p, unsigned reads,
                           unsigned writes, const struct tsr_storage *temp)
{
    struct tsr_engine *e = s->e;
    tsr_dtype states = tsr__state_dtype(e, p);
    struct tsr_storage *part[4] = {tsr__param_grad(p), p->opt_state[0], p->opt_state[1],
                                   tsr__param_storage(p)};
    if (s->max_slot == 1 || s->max_slot == 2)
        part[s->max_slot] = p->opt_state[2];
    const uint64_t offset[4] = {grad_offset_of(p), 0, 0, storage_offset(p)};
    for (unsigned k = 0; k < 4; k++) {
        uint8_t access =
            (uint8_t)((reads >> k & 1 ? TSR_READ : 0) | (writes >> k & 1 ? TSR_WRITE : 0));
        tsr_dtype dtype = k == 0 ? grad_dtype_of(p) : k == 3 ? p->dtype : states;
        uint64_t bytes = tsr__param_local_numel(p) * tsr_dtype_bytes(dtype);
        tsr__slot(e, k);
        if (access && part[k])
            tsr__operand(e, part[k], offset[k], bytes, access, dtype);
    }
    tsr__slot(e, TSR__SLOT_TEMP);
    if (s->max_slot == TSR__SLOT_TEMP)
        tsr__operand_storage(e, p->opt_state[2], TSR_READ_WRITE, states);
    tsr__operand_storage(e, temp,
                         reads & TSR__TEMP_KEPT   ? TSR_READ
                         : reads & TSR__TEMP_READ ? TSR_READ_WRITE
                                                  : TSR_WRITE,
                         s->like_grads ? p->dtype : states);
}

/* A kernel that makes the mirrors of the parameters that it updates. */
static bool writes_mirror(const struct tsr_param *p, unsigned writes)
{
    return writes & TSR__MIRROR && p->fsdp && !tsr__is_piece(p) && tsr__is_mirrored(p->fsdp) &&
           p->fsdp->group->mirror;
}

static uint64_t mirror_operand(struct tsr_engine *e, const struct tsr_param *p)
{
    const struct tsr_fsdp_param *f = p->fsdp;
    uint64_t bytes = f->local_numel * tsr_dtype_bytes(f->param_dtype);
    tsr__slot(e, TSR__SLOT_MIRROR);
    tsr__operand(e, f->group->mirror, f->mirror_offset, bytes, TSR_WRITE, f->param_dtype);
    return bytes;
}

/* KERNELS.md: in the upper half, as f32; 0: nothing is left to do. */
static uint64_t scale_bits(const struct tsr__step *s, const struct tsr_param *p)
{
    float scale = (float)tsr__folded_scale(p) * (s->negated ? -1.0F : 1.0F);
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    return scale == 1 ? 0 : (uint64_t)bits << 32;
}

void tsr__foreach_kernel(struct tsr__step *s, const char *name, unsigned reads, unsigned writes,
                         struct tsr_storage *const *temps, double flops_per_element)
{
    struct tsr_engine *e = s->e;
    uint64_t read = 0, written = 0;
    for (size_t i = 0; i < s->n && tsr__ok(e); i++) {
        struct tsr_param *p = s->params[i];
        if (!tsr__takes(s, p))
            continue;
        param_operands(s, p, reads, writes, temps ? temps[i] : NULL);
        bool mirrored = writes_mirror(p, writes);
        if (mirrored)
            written += mirror_operand(e, p);
        tsr__push_arg(e, (tsr__decays(e, p) ? 1U : 0U) | (mirrored ? 2U : 0U) |
                             tsr__missed_bits(s, p) | (reads & TSR__SCALED ? scale_bits(s, p) : 0));
    }
    for (int k = 0; k < 4; k++) {
        uint64_t bytes = k == 0 ? s->grad_bytes : k == 3 ? s->bytes : s->state_bytes;
        read += reads >> k & 1 ? bytes : 0;
        written += writes >> k & 1 ? bytes : 0;
    }
    uint64_t temp_bytes = !temps ? 0 : s->like_grads ? s->bytes : s->state_bytes;
    temp_bytes += s->max_slot == TSR__SLOT_TEMP ? s->state_bytes : 0;
    struct tsr_work work = {.op = TSR_OP_OPTIMIZER,
                            .dtype = TSR_F32,
                            .name = name,
                            .flops = flops_per_element * (double)s->numel,
                            .bytes_read = read + (reads & TSR__TEMP_NEW ? 0 : temp_bytes),
                            .bytes_written = written + (reads & TSR__TEMP_KEPT ? 0 : temp_bytes)};
    struct tsr_instr instr = {.kind = s->host ? TSR_HOST_OP : TSR_OP,
                              .dtype = TSR_F32,
                              .comm = UINT16_MAX,
                              .scalar = 1,
                              .work = &work};
    tsr__emit(e, &instr);
}

/* What the moments read: gradients, or their negatives in temporaries. */
static unsigned gradient_of(const struct tsr__step *s)
{
    return s->e->step->config.maximize ? (unsigned)TSR__TEMP_READ | TSR__TEMP_KEPT
                                       : (unsigned)TSR__GRAD;
}

/* AMSGrad: the largest of all second states takes the place of the second state. What follows, up
 * to the end of the update, reads it in the second state's slot. */
static void keep_maximum(struct tsr__step *s, const char *name)
{
    if (!s->e->step->config.amsgrad)
        return;
    s->max_slot = 1;
    tsr__foreach_kernel(s, name, TSR__STATE0 | TSR__STATE1, TSR__STATE0, NULL, 1);
    s->max_slot = 2;
}

/* torch.optim.AdamW(foreach=True): multi-tensor kernels. With maximize there is a negative copy of
 * all gradients until the moments have them, then, on the device, one of all parameters. The host's
 * quotient is not counted, so there it is made from the second state. */
static void adamw_foreach(struct tsr__step *s)
{
    struct tsr_storage **temps = NULL;
    unsigned gradient = gradient_of(s);
    s->like_grads = true;
    if (s->e->step->config.maximize) {
        temps = tsr__make_temps(s);
        tsr__foreach_kernel(s, "foreach_neg_grad", TSR__GRAD | TSR__TEMP_NEW, 0, temps, 1);
    }
    tsr__foreach_kernel(s, "foreach_mul_weight_decay", TSR__PARAM, TSR__PARAM, NULL, 1);
    tsr__foreach_kernel(s, "foreach_lerp_exp_avg", gradient | TSR__STATE0, TSR__STATE0, temps, 3);
    tsr__foreach_kernel(s, "foreach_mul_exp_avg_sq", TSR__STATE1, TSR__STATE1, NULL, 1);
    tsr__foreach_kernel(s, "foreach_addcmul_exp_avg_sq", gradient | TSR__STATE1, TSR__STATE1, temps,
                        3);
    tsr__drop_temps(s);
    s->like_grads = false;
    keep_maximum(s, "foreach_maximum");
    if (s->host) {
        tsr__foreach_kernel(s, "foreach_addcdiv", TSR__STATE0 | TSR__STATE1 | TSR__PARAM,
                            TSR__PARAM, NULL, 6);
        s->max_slot = 0;
        return;
    }
    temps = tsr__make_temps(s);
    tsr__foreach_kernel(s, "foreach_sqrt", TSR__STATE1 | TSR__TEMP_NEW, 0, temps, 1);
    s->max_slot = 0;
    tsr__foreach_kernel(s, "foreach_div_bias_correction", TSR__TEMP_READ, 0, temps, 1);
    tsr__foreach_kernel(s, "foreach_add_eps", TSR__TEMP_READ, 0, temps, 1);
    tsr__foreach_kernel(s, "foreach_addcdiv",
                        TSR__STATE0 | TSR__PARAM | TSR__TEMP_READ | TSR__TEMP_KEPT, TSR__PARAM,
                        temps, 3);
    tsr__drop_temps(s);
}

/* *negative: a variable of the loop, which keeps the last parameter's until the next one's is
 * there.
 */
static void loop_moments(struct tsr__step *one, struct tsr_storage **negative)
{
    unsigned gradient = gradient_of(one);
    one->like_grads = true;
    if (one->e->step->config.maximize) {
        struct tsr_storage *next = tsr__step_storage(one, one->params[0], TSR_CAT_OPT_TEMP);
        tsr__foreach_kernel(one, "neg_grad", TSR__GRAD | TSR__TEMP_NEW, 0, &next, 1);
        tsr__storage_release(one->e, negative);
        *negative = next;
    }
    struct tsr_storage **temp = *negative ? negative : NULL;
    tsr__foreach_kernel(one, "mul_weight_decay", TSR__PARAM, TSR__PARAM, NULL, 1);
    tsr__foreach_kernel(one, "lerp_exp_avg", gradient | TSR__STATE0, TSR__STATE0, temp, 3);
    tsr__foreach_kernel(one, "mul_exp_avg_sq", TSR__STATE1, TSR__STATE1, NULL, 1);
    tsr__foreach_kernel(one, "addcmul_exp_avg_sq", gradient | TSR__STATE1, TSR__STATE1, temp, 3);
    one->like_grads = false;
    keep_maximum(one, "maximum");
}

/* One parameter after the other, eight kernels each. */
static void adamw_loop(struct tsr__step *s)
{
    struct tsr__step one = *s;
    struct tsr_storage *previous = NULL, *negative = NULL;
    one.n = 1;
    for (size_t i = 0; i < s->n && tsr__ok(s->e); i++) {
        one.params = s->params + i;
        if (!tsr__param_grad(s->params[i]) || tsr__is_offloaded(s->params[i]) != s->host)
            continue;
        if (!tsr__is_stepped(s->params[i])) { /* an empty shard's take the variables, not memory */
            tsr__storage_release(s->e, &previous);
            tsr__storage_release(s->e, &negative);
            continue;
        }
        tsr__step_count(&one);
        loop_moments(&one, &negative);
        struct tsr_storage *root = NULL, *quotient = NULL;
        if (!s->host) {
            root = tsr__storage_new(s->e, one.state_bytes, TSR_CAT_OPT_TEMP);
            tsr__foreach_kernel(&one, "sqrt", TSR__STATE1 | TSR__TEMP_NEW, 0, &root, 1);
            quotient = tsr__storage_new(s->e, one.state_bytes, TSR_CAT_OPT_TEMP);
            tsr__slot(s->e, TSR__SLOT_EXTRA);
            tsr__operand_storage(s->e, root, TSR_READ, tsr__state_dtype(s->e, s->params[i]));
            tsr__foreach_kernel(&one, "div_bias_correction", 0, 0, &quotient, 1);
            tsr__storage_release(s->e, &root);
            tsr__storage_release(s->e, &previous);
        }
        if (quotient)
            tsr__foreach_kernel(&one, "addcdiv",
                                TSR__STATE0 | TSR__PARAM | TSR__TEMP_READ | TSR__TEMP_KEPT,
                                TSR__PARAM, &quotient, 3);
        else
            tsr__foreach_kernel(&one, "addcdiv", TSR__STATE0 | TSR__STATE1 | TSR__PARAM, TSR__PARAM,
                                NULL, 6);
        one.max_slot = 0;
        previous = quotient;
    }
    tsr__storage_release(s->e, &previous);
    tsr__storage_release(s->e, &negative);
}

/* One kernel for all parameters behind that of their counters; it clips, too, where clip.c left
 * that to it. */
static void adamw_fused(struct tsr__step *s)
{
    struct tsr_engine *e = s->e;
    if (e->step->clip_factor && !s->host) {
        tsr__slot(e, TSR__SLOT_EXTRA);
        tsr__operand_storage(e, e->step->clip_factor, TSR_READ, e->step->clip_dtype);
    }
    s->negated = e->step->config.maximize;
    s->max_slot = e->step->config.amsgrad ? TSR__SLOT_TEMP : 0;
    tsr__foreach_kernel(s, "fused_adamw",
                        TSR__GRAD | TSR__STATE0 | TSR__STATE1 | TSR__PARAM | TSR__SCALED,
                        TSR__STATE0 | TSR__STATE1 | TSR__PARAM | TSR__MIRROR, NULL, 12);
    s->negated = false;
    s->max_slot = 0;
}

static void run_variant(struct tsr__step *s)
{
    enum tsr_optimizer optimizer = s->e->step->config.optimizer;
    if (optimizer == TSR_OPT_ADAMW_FUSED && !s->host)
        tsr__add_steps(s); /* also where all shards are of nothing */
    tsr__step_count(s);
    if (s->numel == 0)
        return;
    switch (optimizer) {
    case TSR_OPT_ADAMW_FOREACH:
        adamw_foreach(s);
        break;
    case TSR_OPT_ADAMW_FUSED:
        adamw_fused(s);
        break;
    case TSR_OPT_ADAMW_LOOP:
        adamw_loop(s);
        break;
    case TSR_OPT_DECOUPLED:
    case TSR_OPT_DECOUPLED_READ:
        tsr__adamw_decoupled(s);
        break;
    case TSR_OPT_SGD:
    case TSR_OPT_SGD_MOMENTUM:
        tsr__sgd(s);
        break;
    case TSR_OPT_NONE:
        break;
    }
}

static bool has_dtype(const struct tsr__step *s, tsr_dtype dtype)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->params[i]->dtype == dtype && tsr__param_grad(s->params[i]))
            return true;
    return false;
}

/* Kernels over lists are over those of one device and dtype. */
static void run_groups(struct tsr__step *s)
{
    enum tsr_optimizer o = s->e->step->config.optimizer;
    bool lists =
        o == TSR_OPT_ADAMW_FOREACH || o == TSR_OPT_ADAMW_FUSED ||
        ((o == TSR_OPT_SGD || o == TSR_OPT_SGD_MOMENTUM) && s->e->step->config.sgd != TSR_SGD_LOOP);
    if (!lists) {
        run_variant(s);
        return;
    }
    for (int dtype = TSR_DTYPE_NONE + 1; dtype < TSR_N_DTYPES && tsr__ok(s->e); dtype++) {
        s->dtype = (tsr_dtype)dtype;
        if (has_dtype(s, s->dtype))
            run_variant(s);
    }
    s->dtype = TSR_DTYPE_NONE;
}

static void run(struct tsr_engine *e, bool counts)
{
    struct tsr__step s = {
        .e = e, .n_states = tsr__n_opt_states(&e->step->config), .counts = counts};
    s.params = tsr__params_to_step(e, &s.n);
    if (e->step->config.optimizer == TSR_OPT_NONE)
        return;
    for (size_t i = 0; i < s.n; i++)
        s.params[i]->starts = tsr__param_grad(s.params[i]) && !s.params[i]->is_stepped;
    if (counts)
        tsr__count_steps(&s);
    make_states(&s);
    if (e->step->config.optimizer != TSR_OPT_ADAMW_FUSED)
        tsr__values_changed(e);
    tsr__save_guard(e);
    run_groups(&s);
    s.host = true;
    run_groups(&s);
    tsr__storage_release(e, &e->step->clip_factor);
}

void tsr__optimizer_step(struct tsr_engine *e)
{
    run(e, true);
}

void tsr__optimizer_init(struct tsr_engine *e)
{
    size_t n;
    struct tsr_param *const *params = tsr__params_to_step(e, &n);
    run(e, false);
    for (size_t i = 0; i < n; i++)
        params[i]->is_stepped |= tsr__param_grad(params[i]) && !params[i]->is_stateless;
}

/* ---- where values lie ------------------------------------------------------------------------ */

static bool in_storage(const struct tsr_storage *s, uint64_t offset, tsr_dtype dtype,
                       uint64_t numel, struct tsr_values *out)
{
    if (!s || !s->live || numel == 0)
        return false;
    *out = (struct tsr_values){s->buffer, s->space, dtype, offset, numel};
    return true;
}

bool tsr_param_values(struct tsr_engine *e, size_t i, enum tsr_param_part part,
                      struct tsr_values *out)
{
    size_t n;
    struct tsr_param *const *params = tsr__params_in_order(e, &n);
    if (i >= n)
        return false;
    const struct tsr_param *p = params[i];
    uint64_t numel = tsr__param_local_numel(p);
    switch (part) {
    case TSR_PARAM_VALUE:
        return in_storage(tsr__param_storage(p), 0, p->dtype, numel, out);
    case TSR_PARAM_GRAD:
        return in_storage(tsr__param_grad(p), grad_offset_of(p), grad_dtype_of(p), numel, out);
    case TSR_PARAM_STATE0:
    case TSR_PARAM_STATE1:
    case TSR_PARAM_STATE2:
        break;
    }
    return in_storage(p->opt_state[part - TSR_PARAM_STATE0], 0, tsr__state_dtype(e, p), numel, out);
}
