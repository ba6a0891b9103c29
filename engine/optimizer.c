/* optimizer.c: clipping by global norm and the optimizer variants (operators.md, sections 12, 13).
 * States are made by the first step, all of them before its first temporary.
 *
 * States in another dtype than their parameter's (step.state_dtype): each kernel is taken to load
 * and store them in theirs and to compute in the parameter's, as a fused kernel can; so there is
 * no cast copy of them, and foreach's temporaries, which begin as the root of a state, have the
 * state's dtype. Nothing of this was recorded.
 */
#include "outside_step.h"
#include "tensor_parallel.h"

struct tsr_storage *tsr__param_grad(const struct tsr_param *p)
{
    if (p->fsdp)
        return p->fsdp->grad;
    if (p->full_grad)
        return p->full_grad->storage;
    return p->value && p->value->grad ? p->value->grad->storage : NULL;
}

uint64_t tsr__param_grad_offset(const struct tsr_param *p)
{
    if (p->fsdp)
        return p->fsdp->grad_offset;
    if (p->full_grad)
        return p->full_grad->offset;
    return p->value && p->value->grad ? p->value->grad->offset : 0;
}

uint64_t tsr__param_local_numel(const struct tsr_param *p)
{
    return p->fsdp ? p->fsdp->local_numel : p->numel;
}

struct tsr_storage *tsr__param_storage(const struct tsr_param *p)
{
    return p->fsdp ? p->fsdp->sharded : p->master;
}

tsr_dtype tsr__state_dtype(const struct tsr_engine *e, const struct tsr_param *p)
{
    return e->step.state_dtype == TSR_DTYPE_NONE ? p->dtype : e->step.state_dtype;
}

int tsr__n_opt_states(enum tsr_optimizer optimizer)
{
    switch (optimizer) {
    case TSR_OPT_ADAMW_FOREACH:
    case TSR_OPT_ADAMW_FUSED:
    case TSR_OPT_ADAMW_LOOP:
        return 2;
    case TSR_OPT_SGD_MOMENTUM:
        return 1;
    case TSR_OPT_SGD:
    case TSR_OPT_NONE:
        break;
    }
    return 0;
}

static bool offloaded(const struct tsr_param *p)
{
    return p->fsdp && p->fsdp->group->offload != TSR_OFFLOAD_NONE;
}

/* A parameter that this step updates on this rank. */
static bool steps(const struct tsr_param *p)
{
    return tsr__param_grad(p) && tsr__param_local_numel(p) > 0;
}

struct step {
    struct tsr_engine *e;
    struct tsr_param *const *params;
    size_t n;
    int n_states;         /* per parameter: Adam 2, momentum 1 */
    bool host;            /* offloaded parameters step on the host */
    uint64_t bytes;       /* local bytes of the parameters that step */
    uint64_t state_bytes; /* of one of their states */
    uint64_t numel;
};

static uint64_t state_bytes(const struct step *s, const struct tsr_param *p)
{
    return tsr__param_local_numel(p) * tsr_dtype_bytes(tsr__state_dtype(s->e, p));
}

static void make_states(struct step *s)
{
    for (size_t i = 0; i < s->n && tsr__ok(s->e); i++) {
        struct tsr_param *p = s->params[i];
        if (s->e->step.optimizer == TSR_OPT_ADAMW_FUSED && tsr__param_grad(p) && !offloaded(p) &&
            !p->step_count) /* the step lies on the device, also of empty shards */
            tsr__fill(s->e, p->step_count = tsr__storage_new(s->e, 4, TSR_CAT_OPT_STATE));
        if (!steps(p))
            continue;
        uint64_t bytes = state_bytes(s, p);
        for (int k = 0; k < s->n_states; k++) {
            if (p->opt_state[k])
                continue;
            p->opt_state[k] =
                offloaded(p) ? tsr__storage_empty(s->e, bytes, TSR_CAT_OPT_STATE, TSR_SPACE_HOST)
                             : tsr__storage_new(s->e, bytes, TSR_CAT_OPT_STATE);
            tsr__fill(s->e, p->opt_state[k]);
        }
    }
}

static void count(struct step *s)
{
    s->bytes = s->state_bytes = s->numel = 0;
    for (size_t i = 0; i < s->n; i++)
        if (steps(s->params[i]) && offloaded(s->params[i]) == s->host) {
            s->numel += tsr__param_local_numel(s->params[i]);
            s->bytes += tsr__param_local_numel(s->params[i]) * tsr_dtype_bytes(s->params[i]->dtype);
            s->state_bytes += state_bytes(s, s->params[i]);
        }
}

enum { GRAD = 1, STATE0 = 2, STATE1 = 4, PARAM = 8, TEMP_READ = 16 };
enum { SLOT_TEMP = 4, SLOT_EXTRA = 5, SLOT_NORMS = 6 }; /* KERNELS.md */

/* PyTorch decays what it is given; many recipes leave out biases and weights of norms. */
static bool decays(const struct tsr_engine *e, const struct tsr_param *p)
{
    return !e->step.decay_matrices_only || p->n_dims > 1;
}

/* What a kernel touches of one parameter; bit k of reads and writes: gradient, first and second
 * state, parameter. */
static void param_operands(struct tsr_engine *e, const struct tsr_param *p, unsigned reads,
                           unsigned writes, const struct tsr_storage *temp)
{
    tsr_dtype states = tsr__state_dtype(e, p);
    struct tsr_storage *part[4] = {tsr__param_grad(p), p->opt_state[0], p->opt_state[1],
                                   tsr__param_storage(p)};
    for (unsigned k = 0; k < 4; k++) {
        uint8_t access =
            (uint8_t)((reads >> k & 1 ? TSR_READ : 0) | (writes >> k & 1 ? TSR_WRITE : 0));
        tsr_dtype dtype = k == 1 || k == 2 ? states : p->dtype;
        uint64_t bytes = tsr__param_local_numel(p) * tsr_dtype_bytes(dtype);
        tsr__slot(e, k);
        if (access && part[k])
            tsr__operand(e, part[k], k == 0 ? tsr__param_grad_offset(p) : 0, bytes, access, dtype);
    }
    tsr__slot(e, SLOT_TEMP);
    tsr__operand_storage(e, temp, reads & TEMP_READ ? TSR_READ_WRITE : TSR_WRITE, states);
}

/* One kernel over all parameters. Reads and writes say which of grad, states, parameter it touches.
 */
static void foreach_kernel(struct step *s, const char *name, unsigned reads, unsigned writes,
                           struct tsr_storage *const *temps, double flops_per_element)
{
    struct tsr_engine *e = s->e;
    uint64_t read = 0, written = 0;
    for (size_t i = 0; i < s->n && tsr__ok(e); i++) {
        struct tsr_param *p = s->params[i];
        if (!steps(p) || offloaded(p) != s->host)
            continue;
        param_operands(e, p, reads, writes, temps ? temps[i] : NULL);
        tsr__push_arg(e, decays(e, p));
    }
    for (int k = 0; k < 4; k++) {
        uint64_t bytes = 1U << k & (STATE0 | STATE1) ? s->state_bytes : s->bytes;
        read += reads >> k & 1 ? bytes : 0;
        written += writes >> k & 1 ? bytes : 0;
    }
    uint64_t temp_bytes = temps ? s->state_bytes : 0;
    struct tsr_work work = {.op = TSR_OP_OPTIMIZER,
                            .dtype = TSR_F32,
                            .name = name,
                            .flops = flops_per_element * (double)s->numel,
                            .bytes_read = read + temp_bytes,
                            .bytes_written = written + temp_bytes};
    struct tsr_instr instr = {.kind = s->host ? TSR_HOST_OP : TSR_OP,
                              .dtype = TSR_F32,
                              .comm = UINT16_MAX,
                              .scalar = 1,
                              .work = &work};
    tsr__emit(e, &instr);
}

static struct tsr_storage **make_temps(struct step *s)
{
    struct tsr_engine *e = s->e;
    if (!e->opt_temps)
        e->opt_temps = tsr_arena_alloc(&e->arena, (s->n + 1) * sizeof *e->opt_temps);
    if (!e->opt_temps) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory");
        return NULL;
    }
    for (size_t i = 0; i < s->n && tsr__ok(e); i++)
        if (steps(s->params[i]) && !offloaded(s->params[i]))
            e->opt_temps[i] = tsr__storage_new(e, state_bytes(s, s->params[i]), TSR_CAT_OPT_TEMP);
    return e->opt_temps;
}

static void drop_temps(struct step *s)
{
    for (size_t i = 0; i < s->n && s->e->opt_temps; i++)
        tsr__storage_release(s->e, &s->e->opt_temps[i]);
}

/* The temporaries of the host are not counted, so there the quotient is made from the second state.
 */
static void adamw_host(struct step *s)
{
    foreach_kernel(s, "foreach_mul_weight_decay", PARAM, PARAM, NULL, 1);
    foreach_kernel(s, "foreach_lerp_exp_avg", GRAD | STATE0, STATE0, NULL, 3);
    foreach_kernel(s, "foreach_mul_exp_avg_sq", STATE1, STATE1, NULL, 1);
    foreach_kernel(s, "foreach_addcmul_exp_avg_sq", GRAD | STATE1, STATE1, NULL, 3);
    foreach_kernel(s, "foreach_addcdiv", STATE0 | STATE1 | PARAM, PARAM, NULL, 6);
}

/* torch.optim.AdamW(foreach=True): multi-tensor kernels, one temporary copy of all parameters. */
static void adamw_foreach(struct step *s)
{
    if (s->host) {
        adamw_host(s);
        return;
    }
    foreach_kernel(s, "foreach_mul_weight_decay", PARAM, PARAM, NULL, 1);
    foreach_kernel(s, "foreach_lerp_exp_avg", GRAD | STATE0, STATE0, NULL, 3);
    foreach_kernel(s, "foreach_mul_exp_avg_sq", STATE1, STATE1, NULL, 1);
    foreach_kernel(s, "foreach_addcmul_exp_avg_sq", GRAD | STATE1, STATE1, NULL, 3);
    struct tsr_storage **temps = make_temps(s);
    foreach_kernel(s, "foreach_sqrt", STATE1, 0, temps, 1);
    foreach_kernel(s, "foreach_div_bias_correction", TEMP_READ, 0, temps, 1);
    foreach_kernel(s, "foreach_add_eps", TEMP_READ, 0, temps, 1);
    foreach_kernel(s, "foreach_addcdiv", STATE0 | PARAM | TEMP_READ, PARAM, temps, 3);
    drop_temps(s);
}

/* One parameter after the other, eight kernels each. */
static void adamw_loop(struct step *s)
{
    struct step one = *s;
    struct tsr_storage *previous = NULL;
    one.n = 1;
    for (size_t i = 0; i < s->n && tsr__ok(s->e); i++) {
        one.params = s->params + i;
        if (!tsr__param_grad(s->params[i]) || offloaded(s->params[i]) != s->host)
            continue;
        if (!steps(s->params[i])) { /* an empty shard's quotient takes the variable, not memory */
            tsr__storage_release(s->e, &previous);
            continue;
        }
        count(&one);
        foreach_kernel(&one, "mul_weight_decay", PARAM, PARAM, NULL, 1);
        foreach_kernel(&one, "lerp_exp_avg", GRAD | STATE0, STATE0, NULL, 3);
        foreach_kernel(&one, "mul_exp_avg_sq", STATE1, STATE1, NULL, 1);
        foreach_kernel(&one, "addcmul_exp_avg_sq", GRAD | STATE1, STATE1, NULL, 3);
        struct tsr_storage *root = NULL, *quotient = NULL;
        if (!s->host) {
            root = tsr__storage_new(s->e, one.state_bytes, TSR_CAT_OPT_TEMP);
            foreach_kernel(&one, "sqrt", STATE1, 0, &root, 1);
            quotient = tsr__storage_new(s->e, one.state_bytes, TSR_CAT_OPT_TEMP);
            tsr__slot(s->e, SLOT_EXTRA);
            tsr__operand_storage(s->e, root, TSR_READ, tsr__state_dtype(s->e, s->params[i]));
            foreach_kernel(&one, "div_bias_correction", 0, 0, &quotient, 1);
            tsr__storage_release(s->e, &root);
            tsr__storage_release(s->e, &previous);
        }
        if (quotient)
            foreach_kernel(&one, "addcdiv", STATE0 | PARAM | TEMP_READ, PARAM, &quotient, 3);
        else
            foreach_kernel(&one, "addcdiv", STATE0 | STATE1 | PARAM, PARAM, NULL, 6);
        previous = quotient;
    }
    tsr__storage_release(s->e, &previous);
}

static void run_variant(struct step *s)
{
    count(s);
    if (s->numel == 0)
        return;
    switch (s->e->step.optimizer) {
    case TSR_OPT_ADAMW_FOREACH:
        adamw_foreach(s);
        break;
    case TSR_OPT_ADAMW_FUSED:
        foreach_kernel(s, "fused_adamw", GRAD | STATE0 | STATE1 | PARAM, STATE0 | STATE1 | PARAM,
                       NULL, 12);
        break;
    case TSR_OPT_ADAMW_LOOP:
        adamw_loop(s);
        break;
    case TSR_OPT_SGD:
        foreach_kernel(s, "foreach_add_sgd", GRAD | PARAM, PARAM, NULL, 2);
        break;
    case TSR_OPT_SGD_MOMENTUM:
        foreach_kernel(s, "foreach_momentum",
                       GRAD | STATE0 | (s->e->step.sgd_decay ? (unsigned)PARAM : 0), STATE0, NULL,
                       2);
        foreach_kernel(s, "foreach_add_sgd", STATE0 | PARAM, PARAM, NULL, 2);
        break;
    case TSR_OPT_NONE:
        break;
    }
}

void tsr__optimizer_step(struct tsr_engine *e)
{
    struct step s = {.e = e, .n_states = tsr__n_opt_states(e->step.optimizer)};
    s.params = tsr__params_in_order(e, &s.n);
    if (e->step.optimizer == TSR_OPT_NONE)
        return;
    make_states(&s);
    run_variant(&s);
    s.host = true;
    run_variant(&s);
}

/* ---- clipping -------------------------------------------------------------------------------- */
/* Norms add up over the ranks that hold different pieces: one all-reduce per mesh dimension that
 * shards (R230), tensor parallelism included. */
static bool reduces_norms(const struct tsr_engine *e, uint16_t comm)
{
    bool shards = e->tp.size > 1 && e->tp.comm == comm;
    for (size_t i = 0; i < e->n_states; i++)
        for (size_t k = 0; k < e->states[i]->n_groups; k++)
            shards |= e->states[i]->groups[k]->shard_comm == comm;
    return shards && e->comms[comm].size > 1;
}

static bool is_cut_over(const struct tsr_engine *e, const struct tsr_param *p, uint16_t comm)
{
    if (p->fsdp && tsr__is_cut(p) && p->fsdp->group->shard_comm == comm)
        return true;
    return p->tp && e->tp.comm == comm && tsr__tp_is_sharded(p);
}

/* How many ranks of the reductions hold the same piece: each would count it. */
static uint64_t n_holders(const struct tsr_engine *e, const struct tsr_param *p)
{
    uint64_t n = 1;
    for (uint16_t c = 0; c < e->n_comms; c++)
        if (reduces_norms(e, c) && !is_cut_over(e, p, c))
            n *= e->comms[c].size;
    return n;
}

static void reduce_norms(struct tsr_engine *e, struct tsr_storage *norms)
{
    for (uint16_t c = 0; c < e->n_comms; c++) {
        if (!reduces_norms(e, c))
            continue;
        struct tsr_instr instr = {.kind = TSR_ALL_REDUCE,
                                  .dtype = TSR_F32,
                                  .reduce_op = TSR_REDUCE_SUM,
                                  .comm = c,
                                  .bytes = norms->bytes};
        tsr__operand_storage(e, norms, TSR_READ_WRITE, TSR_F32);
        tsr__emit(e, &instr);
    }
}

/* What clip_grad_norm_(foreach=True) allocates on the device (operators.md, section 13). */
struct clip {
    struct tsr_engine *e;
    struct tsr_storage *norms[4]; /* stacked; their power, the all-reduced, the root */
    struct tsr_storage **each;    /* norm of each parameter's gradient */
    size_t n_each;
};

static struct tsr_storage *temp(struct tsr_engine *e, uint64_t bytes)
{
    return tsr__storage_new(e, bytes, TSR_CAT_TEMP);
}

static void drop_storages(struct tsr_engine *e, struct tsr_storage **list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tsr__storage_release(e, &list[i]);
}

static bool on_device(const struct tsr_param *p)
{
    return tsr__param_grad(p) && !offloaded(p);
}

/* One multi-tensor kernel over chunks of 65536 elements, then a scalar for each parameter; empty
 * shards get theirs from a second operation. */
static void each_norm(struct clip *c, const struct step *s)
{
    uint64_t n = 0, chunks = 0, empty = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (!on_device(s->params[i]))
            continue;
        n++;
        chunks = tsr_max_u64(chunks, tsr_ceil_div(tsr__param_local_numel(s->params[i]), 65536));
    }
    if (!c->e->clip_norms)
        c->e->clip_norms = tsr_arena_alloc(&c->e->arena, (2 * s->n + 1) * sizeof *c->each);
    c->each = c->e->clip_norms;
    if (!c->each) {
        TSR__RAISE(c->e, TSR_ENOMEM, "out of memory");
        return;
    }
    struct tsr_storage **unused = c->each + s->n;
    struct tsr_storage *partial =
        chunks ? tsr__storage_new(c->e, 4 * n * chunks, TSR_CAT_WORKSPACE) : NULL;
    for (size_t i = 0; i < s->n && tsr__ok(c->e); i++)
        if (on_device(s->params[i]) && tsr__param_local_numel(s->params[i]) > 0)
            c->each[c->n_each++] = temp(c->e, 4);
    for (size_t i = 0; i < s->n && tsr__ok(c->e); i++)
        if (on_device(s->params[i]) && tsr__param_local_numel(s->params[i]) == 0)
            unused[empty++] = tsr__storage_new(c->e, 4, TSR_CAT_WORKSPACE);
    for (uint64_t i = 0; i < empty && tsr__ok(c->e); i++)
        c->each[c->n_each++] = temp(c->e, 4);
    drop_storages(c->e, unused, empty);
    tsr__storage_release(c->e, &partial);
}

static void small_kernel(struct tsr_engine *e, const char *name, struct tsr_storage *from,
                         struct tsr_storage *to)
{
    if (!from || !to || !tsr__ok(e))
        return;
    tsr__operand_storage(e, from, TSR_READ, TSR_F32);
    tsr__operand_storage(e, to, TSR_WRITE, TSR_F32);
    struct tsr_work work = {.op = TSR_OP_REDUCTION,
                            .dtype = TSR_F32,
                            .name = name,
                            .bytes_read = from->bytes,
                            .bytes_written = to->bytes,
                            .dims = {1, from->bytes / 4}};
    struct tsr_instr instr = {.kind = TSR_OP,
                              .dtype = TSR_F32,
                              .stream = e->stream,
                              .comm = UINT16_MAX,
                              .scalar = 1,
                              .work = &work};
    tsr__emit(e, &instr);
}

static bool shards_over_ranks(const struct tsr_engine *e)
{
    for (uint16_t c = 0; c < e->n_comms; c++)
        if (reduces_norms(e, c))
            return true;
    return false;
}

/* In the order of the norms: parameters with elements here, then those without. */
static void holder_args(struct tsr_engine *e, const struct step *s)
{
    for (int empty = 0; empty < 2; empty++)
        for (size_t i = 0; i < s->n; i++)
            if (on_device(s->params[i]) && (tsr__param_local_numel(s->params[i]) == 0) == empty)
                tsr__push_arg(e, n_holders(e, s->params[i]));
}

/* The norms of all parameters in one tensor, over the ranks; then their norm. */
static struct tsr_storage *total_norm(struct clip *c, const struct step *s)
{
    struct tsr_engine *e = c->e;
    uint64_t bytes = 4 * c->n_each;
    c->norms[0] = temp(e, bytes);
    for (size_t i = 0; i < c->n_each; i++) {
        tsr__slot(e, 0);
        tsr__operand_storage(e, c->each[i], TSR_READ, TSR_F32);
    }
    tsr__slot(e, 1);
    tsr__operand_storage(e, c->norms[0], TSR_WRITE, TSR_F32);
    struct tsr_work stack = {.op = TSR_OP_POINTWISE,
                             .dtype = TSR_F32,
                             .name = "stack",
                             .bytes_read = bytes,
                             .bytes_written = bytes};
    tsr__emit_op(e, &stack);
    struct tsr_storage *all = c->norms[0];
    if (shards_over_ranks(e)) {
        c->norms[1] = temp(e, bytes);
        holder_args(e, s);
        small_kernel(e, "norm_power", c->norms[0], c->norms[1]);
        c->norms[2] = temp(e, bytes);
        small_kernel(e, "copy", c->norms[1], c->norms[2]);
        reduce_norms(e, c->norms[2]);
        all = c->norms[3] = temp(e, bytes);
        small_kernel(e, "root", c->norms[2], c->norms[3]);
        tsr__storage_release(e, &c->norms[1]);
        tsr__storage_release(e, &c->norms[2]);
    }
    struct tsr_storage *total = temp(e, 4);
    small_kernel(e, "total_norm", all, total);
    drop_storages(e, c->norms, 4);
    drop_storages(e, c->each, c->n_each);
    return total;
}

/* max_norm / (norm + 1e-6), at most 1. */
static struct tsr_storage *clip_factor(struct tsr_engine *e, struct tsr_storage *total)
{
    struct tsr_storage *shifted = temp(e, 4);
    small_kernel(e, "add_eps", total, shifted);
    struct tsr_storage *inverse = temp(e, 4);
    small_kernel(e, "reciprocal", shifted, inverse);
    struct tsr_storage *scaled = temp(e, 4);
    small_kernel(e, "mul_max_norm", inverse, scaled);
    tsr__storage_release(e, &shifted);
    tsr__storage_release(e, &inverse);
    struct tsr_storage *factor = temp(e, 4);
    small_kernel(e, "clamp", scaled, factor);
    tsr__storage_release(e, &scaled);
    return factor;
}

void tsr__clip(struct tsr_engine *e)
{
    struct step s = {.e = e};
    struct clip c = {.e = e};
    s.params = tsr__params_in_order(e, &s.n);
    count(&s);
    each_norm(&c, &s);
    if (c.n_each == 0 || !tsr__ok(e))
        return;
    for (size_t i = 0; i < c.n_each; i++) {
        tsr__slot(e, SLOT_NORMS);
        tsr__operand_storage(e, c.each[i], TSR_WRITE, TSR_F32);
    }
    foreach_kernel(&s, "foreach_norm", GRAD, 0, NULL, 2);
    struct tsr_storage *total = total_norm(&c, &s), *factor = clip_factor(e, total);
    if (tsr__ok(e)) {
        tsr__report_value(e, TSR_REPORT_GRAD_NORM, 0, total);
        tsr__slot(e, SLOT_EXTRA);
        tsr__operand_storage(e, factor, TSR_READ, TSR_F32);
        foreach_kernel(&s, "foreach_mul_clip", GRAD, GRAD, NULL, 1);
    }
    tsr__storage_release(e, &factor);
    tsr__storage_release(e, &total);
}
