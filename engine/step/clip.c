/* clip.c: clipping by the global norm (operators.md, section 13), over lists of gradients and, as
 * FSDP1 does it, gradient by gradient.
 */
#include "engine/graph/wrapper.h"
#include "engine/step/step_impl.h"

/* Norms add up over the ranks that hold different pieces: one all-reduce per mesh dimension that
 * shards (R230), tensor parallelism included. */
static bool reduces_norms(const struct tsr_engine *e, uint16_t comm)
{
    bool shards = e->tp->size > 1 && e->tp->comm == comm;
    TSR__EACH_WRAPPER (e, w, shards_over)
        shards |= w->ops->shards_over(w, comm);
    return shards && e->emit.comms[comm].size > 1;
}

static bool is_cut_over(const struct tsr_engine *e, const struct tsr_param *p, uint16_t comm)
{
    if (p->fsdp && tsr__is_cut(p) && p->fsdp->group->shard_comm == comm)
        return true;
    return p->tp && e->tp->comm == comm && tsr__tp_is_sharded(p);
}

/* How many ranks of the reductions hold the same piece: each would count it. */
static uint64_t n_holders(const struct tsr_engine *e, const struct tsr_param *p)
{
    uint64_t n = 1;
    for (uint16_t c = 0; c < e->emit.n_comms; c++)
        if (reduces_norms(e, c) && !is_cut_over(e, p, c))
            n *= e->emit.comms[c].size;
    return n;
}

/* A norm has the dtype of its gradient, as torch._foreach_norm() returns it, and so have their sum
 * and the factor. Gradients of several dtypes are stacked in one that holds them all. */
static void tsr__clip_begin(struct tsr_engine *e, const struct tsr__step *s)
{
    e->step->clip_dtype = s->n ? s->params[0]->dtype : TSR_F32;
    for (size_t i = 1; i < s->n; i++)
        if (s->params[i]->dtype != e->step->clip_dtype)
            e->step->clip_dtype = s->params[i]->dtype == TSR_F64 || e->step->clip_dtype == TSR_F64
                                      ? TSR_F64
                                      : TSR_F32;
}

static uint64_t item(const struct tsr_engine *e)
{
    return tsr_dtype_bytes(e->step->clip_dtype);
}

/* The sum over the ranks that hold other pieces: one all-reduce per mesh dimension that shards. */
static void tsr__reduce_norms(struct tsr_engine *e, struct tsr_storage *norms)
{
    for (uint16_t c = 0; c < e->emit.n_comms; c++) {
        if (!reduces_norms(e, c))
            continue;
        struct tsr_instr instr = {.kind = TSR_ALL_REDUCE,
                                  .dtype = e->step->clip_dtype,
                                  .reduce_op = TSR_REDUCE_SUM,
                                  .comm = c,
                                  .bytes = norms->bytes};
        tsr__operand_storage(e, norms, TSR_READ_WRITE, e->step->clip_dtype);
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
    return tsr__param_grad(p) && !tsr__is_offloaded(p);
}

/* One multi-tensor kernel over chunks of 65536 elements, then a scalar for each parameter; empty
 * shards get theirs from a second operation. */
static void each_norm(struct clip *c, const struct tsr__step *s)
{
    uint64_t n = 0, chunks = 0, empty = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (!on_device(s->params[i]))
            continue;
        n++;
        chunks = tsr_max_u64(chunks, tsr_ceil_div(tsr__param_local_numel(s->params[i]), 65536));
    }
    if (!c->e->step->clip_norms)
        c->e->step->clip_norms = tsr_arena_alloc(&c->e->arena, (2 * s->n + 1) * sizeof *c->each);
    c->each = c->e->step->clip_norms;
    if (!c->each) {
        TSR__RAISE(c->e, TSR_ENOMEM, "out of memory");
        return;
    }
    struct tsr_storage **unused = c->each + s->n;
    struct tsr_storage *partial =
        chunks ? tsr__storage_new(c->e, tsr_max_u64(item(c->e), 4) * n * chunks, TSR_CAT_WORKSPACE)
               : NULL;
    for (size_t i = 0; i < s->n && tsr__ok(c->e); i++)
        if (on_device(s->params[i]) && tsr__param_local_numel(s->params[i]) > 0)
            c->each[c->n_each++] = temp(c->e, item(c->e));
    for (size_t i = 0; i < s->n && tsr__ok(c->e); i++)
        if (on_device(s->params[i]) && tsr__param_local_numel(s->params[i]) == 0)
            unused[empty++] = tsr__storage_new(c->e, item(c->e), TSR_CAT_WORKSPACE);
    for (uint64_t i = 0; i < empty && tsr__ok(c->e); i++)
        c->each[c->n_each++] = temp(c->e, item(c->e));
    drop_storages(c->e, unused, empty);
    tsr__storage_release(c->e, &partial);
}

/* A reduction of a few numbers, on the device or by the host. */
static void emit_small(struct tsr_engine *e, uint8_t kind, const char *name,
                       struct tsr_storage *from, struct tsr_storage *to)
{
    if (!from || !to || !tsr__ok(e))
        return;
    tsr__operand_storage(e, from, TSR_READ, e->step->clip_dtype);
    tsr__operand_storage(e, to, TSR_WRITE, e->step->clip_dtype);
    struct tsr_work work = {.op = TSR_OP_REDUCTION,
                            .dtype = e->step->clip_dtype,
                            .name = name,
                            .bytes_read = from->bytes,
                            .bytes_written = to->bytes,
                            .dims = {1, from->bytes / item(e)}};
    struct tsr_instr instr = {.kind = kind,
                              .dtype = e->step->clip_dtype,
                              .stream = kind == TSR_OP ? e->stream : 0,
                              .comm = UINT16_MAX,
                              .scalar = 1,
                              .work = &work};
    tsr__emit(e, &instr);
}

/* A kernel over a few numbers. */
static void tsr__small_kernel(struct tsr_engine *e, const char *name, struct tsr_storage *from,
                              struct tsr_storage *to)
{
    emit_small(e, TSR_OP, name, from, to);
}

static void host_kernel(struct tsr_engine *e, const char *name, struct tsr_storage *from,
                        struct tsr_storage *to)
{
    emit_small(e, TSR_HOST_OP, name, from, to);
}

static bool shards_over_ranks(const struct tsr_engine *e)
{
    for (uint16_t c = 0; c < e->emit.n_comms; c++)
        if (reduces_norms(e, c))
            return true;
    return false;
}

/* In the order of the norms: parameters with elements here, then those without. */
static void holder_args(struct tsr_engine *e, const struct tsr__step *s,
                        bool (*is)(const struct tsr_param *))
{
    for (int empty = 0; empty < 2; empty++)
        for (size_t i = 0; i < s->n; i++)
            if (is(s->params[i]) && (tsr__param_local_numel(s->params[i]) == 0) == empty)
                tsr__push_arg(e, n_holders(e, s->params[i]));
}

/* n numbers side by side in one new storage. */
static struct tsr_storage *tsr__stack_norms(struct tsr_engine *e, struct tsr_storage *const *each,
                                            size_t n)
{
    struct tsr_storage *all = temp(e, item(e) * n);
    for (size_t i = 0; i < n; i++) {
        tsr__slot(e, 0);
        tsr__operand_storage(e, each[i], TSR_READ, e->step->clip_dtype);
    }
    tsr__slot(e, 1);
    tsr__operand_storage(e, all, TSR_WRITE, e->step->clip_dtype);
    struct tsr_work stack = {.op = TSR_OP_POINTWISE,
                             .dtype = e->step->clip_dtype,
                             .name = "stack",
                             .bytes_read = item(e) * n,
                             .bytes_written = item(e) * n};
    tsr__emit_op(e, &stack);
    return all;
}

/* The norms of all parameters in one tensor, over the ranks; then their norm. */
static struct tsr_storage *total_norm(struct clip *c, const struct tsr__step *s)
{
    struct tsr_engine *e = c->e;
    uint64_t bytes = item(e) * c->n_each;
    c->norms[0] = tsr__stack_norms(e, c->each, c->n_each);
    struct tsr_storage *all = c->norms[0];
    if (shards_over_ranks(e)) {
        c->norms[1] = temp(e, bytes);
        holder_args(e, s, on_device);
        tsr__small_kernel(e, "norm_power", c->norms[0], c->norms[1]);
        c->norms[2] = temp(e, bytes);
        tsr__small_kernel(e, "copy", c->norms[1], c->norms[2]);
        tsr__reduce_norms(e, c->norms[2]);
        all = c->norms[3] = temp(e, bytes);
        tsr__small_kernel(e, "root", c->norms[2], c->norms[3]);
        tsr__storage_release(e, &c->norms[1]);
        tsr__storage_release(e, &c->norms[2]);
    }
    struct tsr_storage *total = temp(e, item(e));
    tsr__small_kernel(e, "total_norm", all, total);
    drop_storages(e, c->norms, 4);
    drop_storages(e, c->each, c->n_each);
    return total;
}

/* max_norm / (norm + 1e-6), at most 1. */
static struct tsr_storage *tsr__clip_factor(struct tsr_engine *e, struct tsr_storage *total)
{
    struct tsr_storage *shifted = temp(e, item(e));
    tsr__small_kernel(e, "add_eps", total, shifted);
    struct tsr_storage *inverse = temp(e, item(e));
    tsr__small_kernel(e, "reciprocal", shifted, inverse);
    struct tsr_storage *scaled = temp(e, item(e));
    tsr__small_kernel(e, "mul_max_norm", inverse, scaled);
    tsr__storage_release(e, &shifted);
    tsr__storage_release(e, &inverse);
    struct tsr_storage *factor = temp(e, item(e));
    tsr__small_kernel(e, "clamp", scaled, factor);
    tsr__storage_release(e, &scaled);
    return factor;
}

/* ---- gradients in host memory ---------------------------------------------------------------- */

/* As clip_grad_norm_ does it for offloaded parameters: all on the host, but for the reduction,
 * whose numbers lie in page-locked memory. */
struct host_clip {
    struct tsr__step s;
    struct tsr_storage *norms, *powers, *total;
    uint64_t n;
};

static bool is_on_host(const struct tsr_param *p)
{
    return tsr__param_grad(p) && tsr__is_offloaded(p);
}

static struct tsr_storage *pinned(struct tsr_engine *e, uint64_t bytes)
{
    return tsr__storage_empty(e, bytes, TSR_CAT_TEMP, TSR_SPACE_PINNED);
}

/* Gradients of empty shards have a norm, too: it is 0, and other ranks have theirs in its place. */
static void host_norms(struct tsr_engine *e, struct host_clip *c)
{
    if (c->s.numel == 0) {
        tsr__fill(e, c->norms);
        return;
    }
    for (uint64_t i = 0; i < c->n; i++) {
        tsr__slot(e, TSR__SLOT_NORMS);
        tsr__operand(e, c->norms, item(e) * i, item(e), TSR_WRITE, e->step->clip_dtype);
    }
    tsr__foreach_kernel(&c->s, "foreach_norm", TSR__GRAD, 0, NULL, 2);
}

static void host_total(struct tsr_engine *e, struct host_clip *c)
{
    if (shards_over_ranks(e)) {
        holder_args(e, &c->s, is_on_host);
        host_kernel(e, "norm_power", c->norms, c->powers);
        tsr__reduce_norms(e, c->powers);
        struct tsr_instr read = {.kind = TSR_HOST_READ, .stream = e->stream, .comm = UINT16_MAX};
        tsr__emit(e, &read);
        host_kernel(e, "root", c->powers, c->norms);
    }
    host_kernel(e, "total_norm", c->norms, c->total);
}

static void clip_on_host(struct tsr_engine *e, struct host_clip *c)
{
    struct tsr_storage *factor = pinned(e, item(e));
    host_norms(e, c);
    host_total(e, c);
    tsr__report_value(e, TSR_REPORT_GRAD_NORM, 0, c->total, e->step->clip_dtype);
    host_kernel(e, "add_eps", c->total, factor);
    host_kernel(e, "reciprocal", factor, factor);
    host_kernel(e, "mul_max_norm", factor, factor);
    host_kernel(e, "clamp", factor, factor);
    if (tsr__ok(e) && c->s.numel > 0) {
        tsr__slot(e, TSR__SLOT_EXTRA);
        tsr__operand_storage(e, factor, TSR_READ, e->step->clip_dtype);
        tsr__foreach_kernel(&c->s, "foreach_mul_clip", TSR__GRAD, TSR__GRAD, NULL, 1);
    }
    tsr__storage_release(e, &factor);
}

static void clip_offloaded(struct tsr_engine *e, const struct tsr__step *all)
{
    struct host_clip c = {.s = *all};
    c.s.host = true;
    tsr__step_count(&c.s);
    for (size_t i = 0; i < all->n; i++)
        c.n += is_on_host(all->params[i]);
    if (c.n == 0 || !tsr__ok(e))
        return;
    c.norms = pinned(e, item(e) * c.n);
    c.powers = pinned(e, item(e) * c.n);
    c.total = pinned(e, item(e));
    if (c.norms && c.powers && c.total)
        clip_on_host(e, &c);
    tsr__storage_release(e, &c.norms);
    tsr__storage_release(e, &c.powers);
    tsr__storage_release(e, &c.total);
}

static bool any(const struct tsr__step *s, bool (*is)(const struct tsr_param *))
{
    for (size_t i = 0; i < s->n; i++)
        if (is(s->params[i]))
            return true;
    return false;
}

void tsr__clip(struct tsr_engine *e)
{
    struct tsr__step s = {.e = e};
    struct clip c = {.e = e};
    s.params = tsr__params_to_step(e, &s.n);
    tsr__clip_begin(e, &s);
    tsr__step_count(&s);
    if (any(&s, is_on_host) && any(&s, on_device))
        TSR__RAISE(e, TSR_EUNSUPPORTED,
                   "clipping by one norm of gradients in host and in device memory");
    clip_offloaded(e, &s);
    each_norm(&c, &s);
    if (c.n_each == 0 || !tsr__ok(e))
        return;
    for (size_t i = 0; i < c.n_each; i++) {
        tsr__slot(e, TSR__SLOT_NORMS);
        tsr__operand_storage(e, c.each[i], TSR_WRITE, e->step->clip_dtype);
    }
    tsr__foreach_kernel(&s, "foreach_norm", TSR__GRAD | TSR__SCALED, 0, NULL, 2);
    struct tsr_storage *total = total_norm(&c, &s), *factor = tsr__clip_factor(e, total);
    if (tsr__ok(e))
        tsr__report_value(e, TSR_REPORT_GRAD_NORM, 0, total, e->step->clip_dtype);
    if (tsr__ok(e) && tsr__leaves_grads_unscaled(e)) {
        e->step->clip_factor = factor;
        factor = NULL;
    } else if (tsr__ok(e)) {
        tsr__slot(e, TSR__SLOT_EXTRA);
        tsr__operand_storage(e, factor, TSR_READ, e->step->clip_dtype);
        tsr__foreach_kernel(&s, "foreach_mul_clip", TSR__GRAD, TSR__GRAD, NULL, 1);
    }
    tsr__storage_release(e, &factor);
    tsr__storage_release(e, &total);
}

/* ---- FSDP1's loop ---------------------------------------------------------------------------- */

/* Clipping as FSDP1's clip_grad_norm_() does it: a norm for each gradient that this
 * rank has a piece of, one number that all ranks sum, and a product for each gradient, one kernel
 * at a time. The host waits for nothing since "a tensor for zero is reused to avoid a GPU sync";
 * before (torch 2.1) the norm of parameters that are not sharded, 0, was made on the host and
 * copied, which waits for the stream (TSR_CLIP_LOOP_READ). */

static bool has_piece(const struct tsr_param *p)
{
    return tsr__is_stepped(p) && !tsr__is_offloaded(p);
}

/* A kernel over the gradient of one parameter, with one number beside it. */
static void on_gradient(const struct tsr__step *s, size_t i, const char *name, bool scales,
                        struct tsr_storage *number)
{
    struct tsr__step one = *s;
    one.n = 1;
    one.params = s->params + i;
    tsr__step_count(&one);
    tsr__slot(s->e, scales ? TSR__SLOT_EXTRA : TSR__SLOT_NORMS);
    tsr__operand_storage(s->e, number, scales ? TSR_READ : TSR_WRITE, s->e->step->clip_dtype);
    tsr__foreach_kernel(&one, name, TSR__GRAD, scales ? TSR__GRAD : 0, NULL, scales ? 1 : 2);
}

/* sqrt of the sum of squares of this rank's pieces; 0 if it has none. */
static struct tsr_storage *local_norm(const struct tsr__step *s)
{
    struct tsr_engine *e = s->e;
    struct tsr_storage **each = e->step->clip_norms, *all = NULL;
    size_t n = 0;
    for (size_t i = 0; i < s->n && tsr__ok(e); i++) {
        if (!has_piece(s->params[i]))
            continue;
        each[n] = tsr__storage_new(e, tsr_dtype_bytes(e->step->clip_dtype), TSR_CAT_TEMP);
        on_gradient(s, i, "norm_of_gradient", false, each[n++]);
    }
    if (n > 0)
        all = tsr__stack_norms(e, each, n);
    for (size_t i = 0; i < n; i++)
        tsr__storage_release(e, &each[i]);
    struct tsr_storage *norm =
        tsr__storage_new(e, tsr_dtype_bytes(e->step->clip_dtype), TSR_CAT_TEMP);
    if (n > 0)
        tsr__small_kernel(e, "total_norm", all, norm);
    else if (norm)
        tsr__fill(e, norm);
    tsr__storage_release(e, &all);
    return norm;
}

/* f(value), in new memory. */
static struct tsr_storage *made_of(struct tsr_engine *e, const char *name,
                                   struct tsr_storage *value)
{
    struct tsr_storage *made =
        tsr__storage_new(e, tsr_dtype_bytes(e->step->clip_dtype), TSR_CAT_TEMP);
    tsr__small_kernel(e, name, value, made);
    return made;
}

void tsr__clip_loop(struct tsr_engine *e)
{
    struct tsr__step s = {.e = e};
    s.params = tsr__params_to_step(e, &s.n);
    tsr__clip_begin(e, &s);
    if (e->step->clip_dtype != TSR_F64)
        e->step->clip_dtype = TSR_F32; /* FSDP1 asks for it: vector_norm(dtype=torch.float32) */
    if (!e->step->clip_norms)
        e->step->clip_norms =
            tsr_arena_alloc(&e->arena, (2 * s.n + 1) * sizeof *e->step->clip_norms);
    if (!e->step->clip_norms) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory");
        return;
    }
    struct tsr_storage *own = local_norm(&s);
    if (e->step->config.clip_how == TSR_CLIP_LOOP_READ)
        tsr__host_waits(e);
    struct tsr_storage *power = made_of(e, "power", own);
    if (power)
        tsr__reduce_norms(e, power);
    struct tsr_storage *norm = made_of(e, "root", power);
    tsr__storage_release(e, &power);
    struct tsr_storage *factor = tsr__clip_factor(e, norm);
    tsr__report_value(e, TSR_REPORT_GRAD_NORM, 0, norm, e->step->clip_dtype);
    for (size_t i = 0; i < s.n && tsr__ok(e); i++)
        if (has_piece(s.params[i]))
            on_gradient(&s, i, "mul_clip", true, factor);
    tsr__storage_release(e, &own);
    tsr__storage_release(e, &norm);
    tsr__storage_release(e, &factor);
}
