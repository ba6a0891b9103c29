/* optimizer.c: updates of lists of parameters. */
#include "exec/kernels/call/call.h"
#include "exec/kernels/call/table.h"
#include "exec/kernels/grid/grid_optimizer.h"

TSR_CODE(optimizer, tsr_grid_optimizer, struct tsr_optimizer);
TSR_CODE(optimizer_fused, tsr_grid_optimizer_fused, struct tsr_optimizer);

/* Which operands a kernel takes of a parameter; W of what it writes. */
enum { G = 1, M = 2, V = 4, P = 8, T = 16, OLD = 32 };

struct kernel {
    const char *name; /* without "foreach_" */
    uint8_t step, reads, writes;
    bool flags; /* args say which parameters decay */
    bool finds; /* a gradient, where it is (enum tsr_optimizer_from) */
    uint8_t from;
    bool first;
};

static const struct kernel kernels[] = {
    {"mul_weight_decay", TSR_STEP_DECAY, P, P, .flags = true},
    {"lerp_exp_avg", TSR_STEP_LERP, M, M, .finds = true},
    {"mul_exp_avg_sq", TSR_STEP_MUL_V, V, V, .flags = false},
    {"addcmul_exp_avg_sq", TSR_STEP_ADDCMUL_V, V, V, .finds = true},
    {"maximum", TSR_STEP_MAXIMUM, M | V, M, .flags = false},
    {"sqrt", TSR_STEP_SQRT, V, T, .flags = false},
    {"foreach_div_bias_correction", TSR_STEP_DIV_ROOT, T, T, .flags = false},
    {"add_eps", TSR_STEP_ADD_EPS, T, T, .flags = false},
    {"div_bias_correction", TSR_STEP_DIV_AND_EPS, OLD, T, .flags = false},
    {"addcdiv", TSR_STEP_ADDCDIV, M | P | T, P, .flags = false},
    {"fused_adamw", TSR_STEP_FUSED, G | M | V | P, M | V | P, .flags = true},
    {"add_step", TSR_STEP_COUNT, T, T, .flags = false},
    {"neg_grad", TSR_STEP_NEG, G, T, .flags = false},
    {"add_decay", TSR_STEP_ADD_DECAY, P, T, .finds = true},
    {"clone_momentum", TSR_STEP_CLONE, 0, M, .finds = true},
    {"mul_momentum", TSR_STEP_MUL_M, M, M, .flags = false},
    {"add_momentum", TSR_STEP_ADD_M, M, M, .finds = true},
    {"add_nesterov", TSR_STEP_ADD_NESTEROV, M, T, .finds = true},
    {"add_sgd", TSR_STEP_SGD, P, P, .finds = true},
    {"fused_sgd", TSR_STEP_FUSED_SGD, G | P, P, .flags = true},
    {"fused_sgd_nesterov", TSR_STEP_FUSED_NESTEROV, G | P, P, .flags = true}};

static const struct kernel *kernel_of(const char *name)
{
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
            if (strcmp(kernels[i].name, name) == 0)
                return &kernels[i];
        if (strncmp(name, "foreach_", 8) == 0)
            name += 8;
    }
    return NULL;
}

/* The gradient's place: a temporary that is read, one of before, the momentum, or its own. */
static void find_gradient(const struct tsr_kernel_call *call, struct kernel *k)
{
    const struct tsr_view *t = tsr_slot(call, 4);
    if (t && t->access & TSR_READ) {
        k->reads |= T;
        k->from = TSR_FROM_T;
    } else if (tsr_slot(call, 5)) {
        k->reads |= OLD;
        k->from = TSR_FROM_T;
    } else if (k->step == TSR_STEP_SGD && tsr_slot(call, 1)) {
        k->reads |= M;
        k->from = TSR_FROM_M;
    } else {
        k->reads |= G;
    }
    if (k->step == TSR_STEP_ADD_NESTEROV && !t)
        k->writes = G;
}

/* A kernel as this call has it: what is not given for any parameter is made otherwise. */
static tsr_status variant_of(const struct tsr_kernel_call *call, struct kernel *k)
{
    const struct kernel *known = kernel_of(call->work->name);
    if (!known)
        return tsr__defect(call, "no such step of an optimizer");
    *k = *known;
    if (k->step == TSR_STEP_ADDCDIV && !tsr_slot(call, 4)) {
        k->step = TSR_STEP_ADDCDIV_V;
        k->reads = M | V | P;
    }
    if (k->step == TSR_STEP_FUSED && tsr_slot(call, 4)) {
        k->reads |= T;
        k->writes |= T;
    }
    if (k->finds)
        find_gradient(call, k);
    const struct tsr_view *m = tsr_slot(call, 1);
    if (m && (k->step == TSR_STEP_FUSED_SGD || k->step == TSR_STEP_FUSED_NESTEROV)) {
        k->first = !(m->access & TSR_READ);
        k->reads |= k->first ? 0 : M;
        k->writes |= M;
    }
    return TSR_OK;
}

/* Bits of args[i]; from MISSED on, in 30 of them, how many of the optimizer's steps it has missed.
 */
enum { DECAYS = 1, MIRRORED = 2, MISSED = 2 };
enum { SLOT_CLIP = 5, SLOT_MIRROR = 7 };

struct cursor {
    uint32_t next[SLOT_MIRROR + 1]; /* by slot */
};

static tsr_status operands(const struct tsr_kernel_call *call, const struct kernel *k,
                           struct cursor *c, struct tsr_optimizer_work *w)
{
    struct tsr_elems *const place[6] = {&w->g, &w->m, &w->v, &w->p, &w->t, &w->old};
    w->numel = TSR_ANY_NUMBER;
    for (unsigned slot = 0; slot < 6; slot++) {
        bool reads = k->reads >> slot & 1, writes = k->writes >> slot & 1;
        if (!reads && !writes)
            continue;
        unsigned access = (reads ? TSR_READ : 0u) | (writes ? TSR_WRITE : 0u);
        TSR_TRY(tsr__take(call, slot, &c->next[slot], access, w->numel, place[slot]));
        w->numel = place[slot]->n;
    }
    if (!w->mirrored)
        return TSR_OK;
    return tsr__take(call, SLOT_MIRROR, &c->next[SLOT_MIRROR], TSR_WRITE, w->numel, &w->mirror);
}

/* Every parameter; `run` false: only checks. */
static tsr_status parameters(const struct tsr_kernel_call *call, const struct kernel *k, uint32_t n,
                             bool run)
{
    struct cursor c = {{0}};
    struct tsr_optimizer o = {
        .step = k->step, .from = k->from, .first = k->first, .scalars_at = call->scalars_at};
    const struct tsr_code *code =
        k->step == TSR_STEP_FUSED ? &code_optimizer_fused : &code_optimizer;
    if (k->step == TSR_STEP_FUSED && tsr_slot(call, SLOT_CLIP))
        TSR_TRY(tsr__in(call, SLOT_CLIP, TSR_OPERAND_FLOAT, 1, &o.factor));
    uint64_t blocks = 0;
    memcpy(o.scalars, call->scalars, sizeof o.scalars);
    for (uint32_t i = 0; i < n; i++) {
        struct tsr_optimizer_work *w = &o.works[o.n++];
        uint32_t arg = i < call->work->n_args ? (uint32_t)call->work->args[i] : 0;
        *w = (struct tsr_optimizer_work){.decays = k->flags && (arg & DECAYS)};
        w->scale = tsr__gradient_scale(call, i);
        w->mirrored = k->step == TSR_STEP_FUSED && (arg & MIRRORED);
        w->missed = arg >> MISSED;
        if (w->missed > 0 && w->missed >= call->scalars[TSR_SCALAR_STEP])
            return tsr__defect(call, "a parameter missed more steps than there were");
        TSR_TRY(operands(call, k, &c, w));
        blocks += tsr_grid_blocks(w->numel);
        if (o.n < TSR_OPTIMIZER_LIST && i + 1 < n)
            continue;
        if (run)
            TSR_TRY(tsr__run(call, code, &o, blocks * TSR_BLOCK));
        o.n = 0;
        blocks = 0;
    }
    return TSR_OK;
}

tsr_status tsr__optimizer(const struct tsr_kernel_call *call)
{
    struct kernel k = {.name = NULL};
    TSR_TRY(tsr__need_scalars(call));
    TSR_TRY(variant_of(call, &k));
    uint32_t n = 0;
    for (unsigned slot = 0; slot < 6; slot++)
        if ((k.reads | k.writes) >> slot & 1)
            n = (uint32_t)tsr_max_u64(n, tsr__count(call, slot));
    if (n == 0)
        return tsr__defect(call, "no parameters");
    if (k.flags)
        TSR_TRY(tsr__need_args(call, n));
    TSR_TRY(parameters(call, &k, n, false));
    return parameters(call, &k, n, true);
}
