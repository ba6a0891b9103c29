/* grid_optimizer_real.h: template of grid_optimizer.h. */
#include "exec/kernels/tensor/real.h"

struct TSR_R(tsr_optimizer_numbers) {
    struct TSR_R(tsr_adamw) adamw;
    TSR_REAL lr, weight_decay, momentum, fresh, clip; /* fresh: 1 - dampening */
    TSR_REAL count;                                   /* steps of the parameter */
    uint32_t missed; /* for a parameter that missed so many steps */
    uint8_t step;    /* enum tsr_optimizer_step */
    uint8_t from;    /* enum tsr_optimizer_from */
    bool first;      /* m is not read */
};

/* In f64, rounded once. */
TSR_ANYWHERE struct TSR_R(tsr_optimizer_numbers)
    TSR_R(tsr_optimizer_numbers_of)(const struct tsr_optimizer *o, uint32_t missed)
{
    const double *s = o->scalars_at ? o->scalars_at : o->scalars;
    double lr = s[TSR_SCALAR_LR], beta1 = s[TSR_SCALAR_BETA1], beta2 = s[TSR_SCALAR_BETA2];
    uint64_t step = (uint64_t)s[TSR_SCALAR_STEP] - missed;
    struct TSR_R(tsr_optimizer_numbers) k;
    k.missed = missed;
    k.adamw.decay = (TSR_REAL)(1 - tsr_rounded_product(lr, s[TSR_SCALAR_WEIGHT_DECAY]));
    k.adamw.lerp = (TSR_REAL)(1 - beta1);
    k.adamw.beta2 = (TSR_REAL)beta2;
    k.adamw.rest = (TSR_REAL)(1 - beta2);
    k.adamw.root = (TSR_REAL)sqrt(1 - tsr_whole_power(beta2, step));
    k.adamw.eps = (TSR_REAL)s[TSR_SCALAR_EPS];
    k.adamw.size = (TSR_REAL)(lr / (1 - tsr_whole_power(beta1, step)));
    k.lr = (TSR_REAL)lr;
    k.weight_decay = (TSR_REAL)s[TSR_SCALAR_WEIGHT_DECAY];
    k.momentum = (TSR_REAL)s[TSR_SCALAR_MOMENTUM];
    k.fresh = (TSR_REAL)(1 - s[TSR_SCALAR_DAMPENING]);
    k.count = (TSR_REAL)step;
    TSR_REAL clip[TSR_BLOCK] = {1};
    if (o->factor.data)
        TSR_R(tsr_load)(&o->factor, 0, 1, clip);
    k.clip = clip[0];
    k.step = o->step;
    k.from = o->from;
    k.first = o->first || o->step == TSR_STEP_CLONE;
    return k;
}

/* A block of every operand that a step uses. */
struct TSR_R(tsr_optimizer_block) {
    TSR_REAL g[TSR_BLOCK], m[TSR_BLOCK], v[TSR_BLOCK], p[TSR_BLOCK], t[TSR_BLOCK];
};

/* Returns the larger value as torch.maximum does: a NaN stays. */
TSR_ANYWHERE TSR_REAL TSR_R(tsr_larger)(TSR_REAL a, TSR_REAL b)
{
    return a >= b || a != a ? a : b;
}

#define TSR_EACH(place, value) \
    TSR_LANES (i, n)           \
        b->place[i] = (value); \
    break

TSR_ANYWHERE void TSR_R(tsr_fused_block)(const struct tsr_optimizer_work *w,
                                         const struct TSR_R(tsr_optimizer_numbers) * numbers,
                                         unsigned n, struct TSR_R(tsr_optimizer_block) * b)
{
    const struct TSR_R(tsr_adamw) *k = &numbers->adamw;
    TSR_REAL decay = w->decays ? k->decay : 1;
    bool amsgrad = w->t.data != NULL;
    TSR_LANES (i, n) {
        TSR_REAL g = b->g[i] * (TSR_REAL)w->scale * numbers->clip;
        b->m[i] = TSR_R(tsr_adamw_m)(k, b->m[i], g);
        b->v[i] = TSR_R(tsr_adamw_v)(k, b->v[i] * k->beta2, g);
        if (amsgrad)
            b->t[i] = TSR_R(tsr_larger)(b->t[i], b->v[i]);
        TSR_REAL t = TSR_R(tsr_adamw_t)(k, amsgrad ? b->t[i] : b->v[i]);
        b->p[i] = TSR_R(tsr_adamw_p)(k, b->p[i] * decay, b->m[i], t);
    }
}

TSR_ANYWHERE void TSR_R(tsr_fused_sgd_block)(const struct tsr_optimizer_work *w,
                                             const struct TSR_R(tsr_optimizer_numbers) * k,
                                             unsigned n, struct TSR_R(tsr_optimizer_block) * b)
{
    TSR_REAL decay = w->decays ? k->weight_decay : 0;
    bool keeps = w->m.data != NULL, nesterov = k->step == TSR_STEP_FUSED_NESTEROV;
    TSR_LANES (i, n) {
        TSR_REAL g = b->g[i] * (TSR_REAL)w->scale;
        if (w->decays)
            g += decay * b->p[i];
        if (keeps)
            b->m[i] = k->first ? g : k->momentum * b->m[i] + k->fresh * g;
        if (keeps)
            g = nesterov ? g + k->momentum * b->m[i] : b->m[i];
        b->p[i] -= k->lr * g;
    }
}

/* from: the gradient, where the step finds it. */
TSR_ANYWHERE void TSR_R(tsr_sgd_block)(const struct tsr_optimizer_work *w,
                                       const struct TSR_R(tsr_optimizer_numbers) * k, unsigned n,
                                       const TSR_REAL *from, struct TSR_R(tsr_optimizer_block) * b)
{
    switch (k->step) {
    case TSR_STEP_COUNT:
        TSR_EACH(t, k->count);
    case TSR_STEP_NEG:
        TSR_EACH(t, -b->g[i]);
    case TSR_STEP_ADD_DECAY:
        TSR_EACH(t, from[i] + k->weight_decay * b->p[i]);
    case TSR_STEP_CLONE:
        TSR_EACH(m, from[i]);
    case TSR_STEP_MUL_M:
        TSR_EACH(m, k->momentum * b->m[i]);
    case TSR_STEP_ADD_M:
        TSR_EACH(m, b->m[i] + k->fresh * from[i]);
    case TSR_STEP_ADD_NESTEROV:
        TSR_EACH(t, from[i] + k->momentum * b->m[i]);
    case TSR_STEP_SGD:
        TSR_EACH(p, b->p[i] - k->lr * from[i]);
    default:
        TSR_R(tsr_fused_sgd_block)(w, k, n, b);
    }
}

TSR_ANYWHERE void TSR_R(tsr_optimizer_step)(const struct tsr_optimizer_work *w,
                                            const struct TSR_R(tsr_optimizer_numbers) * numbers,
                                            unsigned n, struct TSR_R(tsr_optimizer_block) * b)
{
    const struct TSR_R(tsr_adamw) *k = &numbers->adamw;
    /* A pointer to one of the three would keep all of them out of a GPU's registers. */
    TSR_REAL from[TSR_BLOCK];
    TSR_LANES (i, n)
        from[i] = numbers->from == TSR_FROM_T   ? b->t[i]
                  : numbers->from == TSR_FROM_M ? b->m[i]
                                                : b->g[i];
    switch (numbers->step) {
    case TSR_STEP_DECAY:
        TSR_EACH(p, w->decays ? b->p[i] * k->decay : b->p[i]);
    case TSR_STEP_LERP:
        TSR_EACH(m, TSR_R(tsr_adamw_m)(k, b->m[i], from[i]));
    case TSR_STEP_MUL_V:
        TSR_EACH(v, b->v[i] * k->beta2);
    case TSR_STEP_ADDCMUL_V:
        TSR_EACH(v, TSR_R(tsr_adamw_v)(k, b->v[i], from[i]));
    case TSR_STEP_MAXIMUM:
        TSR_EACH(m, TSR_R(tsr_larger)(b->m[i], b->v[i]));
    case TSR_STEP_SQRT:
        TSR_EACH(t, TSR_M(sqrt)(b->v[i]));
    case TSR_STEP_DIV_ROOT:
        TSR_EACH(t, b->t[i] / k->root);
    case TSR_STEP_ADD_EPS:
        TSR_EACH(t, b->t[i] + k->eps);
    case TSR_STEP_DIV_AND_EPS:
        TSR_EACH(t, b->t[i] / k->root + k->eps);
    case TSR_STEP_ADDCDIV:
        TSR_EACH(p, TSR_R(tsr_adamw_p)(k, b->p[i], b->m[i], b->t[i]));
    case TSR_STEP_ADDCDIV_V:
        TSR_EACH(p, TSR_R(tsr_adamw_p)(k, b->p[i], b->m[i], TSR_R(tsr_adamw_t)(k, b->v[i])));
    case TSR_STEP_FUSED:
        TSR_R(tsr_fused_block)(w, numbers, n, b);
        break;
    default:
        TSR_R(tsr_sgd_block)(w, numbers, n, from, b);
    }
}
#undef TSR_EACH

/* What a step writes. */
TSR_ANYWHERE void TSR_R(tsr_optimizer_store)(const struct tsr_optimizer_work *w, unsigned step,
                                             uint64_t at, unsigned n,
                                             const struct TSR_R(tsr_optimizer_block) * b)
{
    bool fused = step == TSR_STEP_FUSED;
    bool sgd = step == TSR_STEP_FUSED_SGD || step == TSR_STEP_FUSED_NESTEROV;
    bool nesterov = step == TSR_STEP_ADD_NESTEROV;
    if (fused || (sgd && w->m.data) || step == TSR_STEP_LERP || step == TSR_STEP_MAXIMUM ||
        (step >= TSR_STEP_CLONE && step <= TSR_STEP_ADD_M))
        TSR_R(tsr_store)(&w->m, at, n, b->m);
    if (fused || step == TSR_STEP_MUL_V || step == TSR_STEP_ADDCMUL_V)
        TSR_R(tsr_store)(&w->v, at, n, b->v);
    if ((fused && w->t.data) || (step >= TSR_STEP_SQRT && step <= TSR_STEP_DIV_AND_EPS) ||
        (step >= TSR_STEP_COUNT && step <= TSR_STEP_ADD_DECAY) || nesterov)
        TSR_R(tsr_store)(nesterov && !w->t.data ? &w->g : &w->t, at, n, b->t);
    if (fused || sgd || step == TSR_STEP_DECAY || step == TSR_STEP_ADDCDIV ||
        step == TSR_STEP_ADDCDIV_V || step == TSR_STEP_SGD)
        TSR_R(tsr_store)(&w->p, at, n, b->p);
    if (w->mirrored)
        TSR_R(tsr_store)(&w->mirror, at, n, b->p);
}

/* What it reads in t was written before. */
TSR_ANYWHERE bool TSR_R(tsr_reads_t)(const struct TSR_R(tsr_optimizer_numbers) * k)
{
    return k->from == TSR_FROM_T || k->step == TSR_STEP_DIV_ROOT || k->step == TSR_STEP_ADD_EPS ||
           k->step == TSR_STEP_ADDCDIV || k->step == TSR_STEP_FUSED;
}

TSR_ANYWHERE void TSR_R(tsr_optimizer_update)(const struct tsr_optimizer_work *w,
                                              const struct TSR_R(tsr_optimizer_numbers) * k,
                                              uint64_t block)
{
    struct TSR_R(tsr_optimizer_block) b;
    uint64_t at = block * TSR_BLOCK, left = w->numel - at;
    unsigned n = left < TSR_BLOCK ? (unsigned)left : TSR_BLOCK;
    if (w->g.data)
        TSR_R(tsr_load)(&w->g, at, n, b.g);
    if (w->m.data && !k->first)
        TSR_R(tsr_load)(&w->m, at, n, b.m);
    if (w->v.data)
        TSR_R(tsr_load)(&w->v, at, n, b.v);
    if (w->p.data)
        TSR_R(tsr_load)(&w->p, at, n, b.p);
    if (w->old.data)
        TSR_R(tsr_load)(&w->old, at, n, b.t);
    else if (w->t.data && TSR_R(tsr_reads_t)(k))
        TSR_R(tsr_load)(&w->t, at, n, b.t);
    TSR_R(tsr_optimizer_step)(w, k, n, &b);
    TSR_R(tsr_optimizer_store)(w, k->step, at, n, &b);
}

#if TSR_BLOCK == 8 && !TSR_REAL_F64
/* The fused step of spread eights (tensor.h), of states in f32. */
TSR_ANYWHERE bool tsr_fused_may_spread(const struct tsr_optimizer_work *w)
{
    return !w->t.data && w->m.dtype == TSR_F32 && w->v.dtype == TSR_F32 && w->p.dtype == TSR_F32 &&
           tsr_may_spread(&w->g, 0) && tsr_may_spread(&w->m, 0) && tsr_may_spread(&w->v, 0) &&
           tsr_may_spread(&w->p, 0) && (!w->mirrored || tsr_may_spread(&w->mirror, 0));
}

TSR_ANYWHERE void tsr_fused_spread(const struct tsr_optimizer_work *w,
                                   const struct tsr_optimizer_numbers_f32 *k, uint64_t block)
{
    struct tsr_optimizer_block_f32 b;
    uint64_t at = tsr_spread(block);
    uint32_t g[2][4], m[2][4], v[2][4], p[2][4];
    tsr_get_spread(w->g.data + w->g.item * at, w->g.item, g);
    tsr_get_spread(w->m.data + 4 * at, 4, m);
    tsr_get_spread(w->v.data + 4 * at, 4, v);
    tsr_get_spread(w->p.data + 4 * at, 4, p);
    tsr_of_spread(g, w->g.dtype, b.g);
    tsr_of_spread(m, TSR_F32, b.m);
    tsr_of_spread(v, TSR_F32, b.v);
    tsr_of_spread(p, TSR_F32, b.p);
    tsr_fused_block_f32(w, k, 8, &b);
    tsr_put_spread(w->m.data + 4 * at, TSR_F32, b.m);
    tsr_put_spread(w->v.data + 4 * at, TSR_F32, b.v);
    tsr_put_spread(w->p.data + 4 * at, TSR_F32, b.p);
    if (w->mirrored)
        tsr_put_spread(w->mirror.data + w->mirror.item * at, w->mirror.dtype, b.p);
}
#endif

/* Over the blocks of all parameters. fused: o->step is TSR_STEP_FUSED, which has code of its own.
 */
TSR_ANYWHERE void TSR_R(tsr_optimizer_blocks)(const struct tsr_optimizer *o, bool fused,
                                              uint64_t begin, uint64_t step)
{
    struct TSR_R(tsr_optimizer_numbers) k;
    uint64_t block = begin;
    for (uint32_t i = 0; i < o->n; i++) {
        uint64_t blocks = tsr_grid_blocks(o->works[i].numel);
        if (i == 0 || o->works[i].missed != k.missed)
            k = TSR_R(tsr_optimizer_numbers_of)(o, o->works[i].missed);
        if (fused)
            k.step = TSR_STEP_FUSED;
#if TSR_BLOCK == 8 && !TSR_REAL_F64
        if (fused && tsr_fused_may_spread(&o->works[i]))
            for (; block < tsr_spread_blocks(o->works[i].numel); block += step)
                tsr_fused_spread(&o->works[i], &k, block);
#endif
        for (; block < blocks; block += step)
            TSR_R(tsr_optimizer_update)(&o->works[i], &k, block);
        block -= blocks;
    }
}

TSR_ANYWHERE void TSR_R(tsr_grid_optimizer)(const struct tsr_optimizer *o, uint64_t begin,
                                            uint64_t step)
{
    TSR_R(tsr_optimizer_blocks)(o, false, begin, step);
}

TSR_ANYWHERE void TSR_R(tsr_grid_optimizer_fused)(const struct tsr_optimizer *o, uint64_t begin,
                                                  uint64_t step)
{
    TSR_R(tsr_optimizer_blocks)(o, true, begin, step);
}
