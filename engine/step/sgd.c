/* sgd.c: torch.optim.SGD: foreach, fused, loop, with weight decay, momentum, dampening, Nesterov's
 * momentum, against the gradient (maximize).
 *
 * The gradient that a step goes down is first the parameter's own. PyTorch makes a copy where it is
 * negated or decayed, which lives until it is the momentum's turn, or, with Nesterov's, to the end;
 * without a copy Nesterov's momentum is added to the gradient itself. A momentum begins as a clone
 * of that gradient, in the parameter's first step, when the copy is there already.
 *
 * Where some parameters decay and others do not, a recipe has two lists of parameters, and PyTorch
 * makes the step of the first, then of the second.
 */
#include "engine/step/step_impl.h"

/* Where the gradient that a step goes down lies: bits of what a kernel reads. */
enum { OWN = TSR__GRAD, COPY = TSR__TEMP_READ | TSR__TEMP_KEPT, MOMENTUM = TSR__STATE0 };

static bool has_momentum(const struct tsr__step *s)
{
    return s->e->step->config.optimizer == TSR_OPT_SGD_MOMENTUM;
}

static bool decays(const struct tsr__step *s)
{
    return s->e->step->config.sgd_decay && s->decaying;
}

/* It has no momentum yet. */
static bool starts(const struct tsr_param *p)
{
    return p->starts || (!p->opt_state[0] && tsr__is_stepped(p));
}

static void make_momentum(struct tsr__step *s, struct tsr_param *p)
{
    if (!p->opt_state[0] && tsr__takes(s, p))
        p->opt_state[0] = tsr__step_storage(s, p, TSR_CAT_OPT_STATE);
}

/* ---- foreach --------------------------------------------------------------------------------- */

static bool any_starts(const struct tsr__step *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (tsr__takes(s, s->params[i]) && starts(s->params[i]))
            return true;
    return false;
}

/* Where one has no momentum yet, there are kernels for each parameter. */
static void one_momentum_each(struct tsr__step *s, unsigned from, struct tsr_storage **temps)
{
    struct tsr__step one = *s;
    one.n = 1;
    for (size_t i = 0; i < s->n && tsr__ok(s->e); i++) {
        struct tsr_param *p = s->params[i];
        struct tsr_storage **temp = temps ? temps + i : NULL;
        if (!tsr__takes(s, p))
            continue;
        one.params = s->params + i;
        tsr__step_count(&one);
        if (starts(p)) {
            make_momentum(s, p);
            tsr__foreach_kernel(&one, "clone_momentum", from, TSR__STATE0, temp, 0);
        } else {
            tsr__foreach_kernel(&one, "mul_momentum", TSR__STATE0, TSR__STATE0, NULL, 1);
            tsr__foreach_kernel(&one, "add_momentum", from | TSR__STATE0, TSR__STATE0, temp, 2);
        }
    }
}

static void foreach(struct tsr__step *s)
{
    const struct tsr_step_config *config = &s->e->step->config;
    struct tsr_storage **temps = NULL;
    unsigned from = OWN;
    if (config->maximize) {
        temps = tsr__make_temps(s);
        tsr__foreach_kernel(s, "foreach_neg_grad", TSR__GRAD | TSR__TEMP_NEW, 0, temps, 1);
    }
    if (decays(s) && temps) {
        tsr__foreach_kernel(s, "foreach_add_decay", TSR__PARAM | TSR__TEMP_READ, 0, temps, 2);
    } else if (decays(s)) {
        temps = tsr__make_temps(s);
        tsr__foreach_kernel(s, "foreach_add_decay", TSR__GRAD | TSR__PARAM | TSR__TEMP_NEW, 0,
                            temps, 2);
    }
    if (temps)
        from = COPY;
    if (has_momentum(s)) {
        if (any_starts(s)) {
            one_momentum_each(s, from, temps);
        } else {
            tsr__foreach_kernel(s, "foreach_mul_momentum", TSR__STATE0, TSR__STATE0, NULL, 1);
            tsr__foreach_kernel(s, "foreach_add_momentum", from | TSR__STATE0, TSR__STATE0, temps,
                                2);
        }
        if (!config->nesterov) {
            tsr__drop_temps(s);
            temps = NULL;
            from = MOMENTUM;
        } else {
            tsr__foreach_kernel(s, "foreach_add_nesterov",
                                TSR__STATE0 | (temps ? TSR__TEMP_READ : TSR__GRAD),
                                temps ? 0 : TSR__GRAD, temps, 2);
        }
    }
    tsr__foreach_kernel(s, "foreach_add_sgd", from | TSR__PARAM, TSR__PARAM, temps, 2);
    tsr__drop_temps(s);
}

/* ---- loop ------------------------------------------------------------------------------------ */

/* `grad` of PyTorch's loop: a copy, or, while that is NULL, what `from` says. */
struct loop {
    struct tsr__step *one; /* of the parameter that it is about */
    struct tsr_storage *grad;
    unsigned from;
};

/* grad = a kernel of the old one. */
static void assign(struct loop *l, const char *name, unsigned reads, double flops)
{
    struct tsr__step *one = l->one;
    struct tsr_param *p = one->params[0];
    struct tsr_storage *next = tsr__step_storage(one, p, TSR_CAT_OPT_TEMP);
    bool from_copy = l->from == COPY;
    if (from_copy) {
        tsr__slot(one->e, TSR__SLOT_EXTRA);
        tsr__operand_storage(one->e, l->grad, TSR_READ, p->dtype);
    }
    tsr__foreach_kernel(one, name, reads | (from_copy ? 0 : TSR__GRAD | TSR__TEMP_NEW), 0, &next,
                        flops);
    tsr__storage_release(one->e, &l->grad);
    l->grad = next;
    l->from = COPY;
}

static void momentum(struct loop *l)
{
    struct tsr__step *one = l->one;
    struct tsr_storage **temp = l->from == COPY ? &l->grad : NULL;
    one_momentum_each(one, l->from, temp);
    if (one->e->step->config.nesterov) {
        assign(l, "add_nesterov", TSR__STATE0, 2);
        return;
    }
    tsr__storage_release(one->e, &l->grad);
    l->from = MOMENTUM;
}

/* With maximize the new copy is made before the last parameter's is dropped. */
static void begin(struct loop *l)
{
    l->from = OWN;
    if (l->one->e->step->config.maximize)
        assign(l, "neg_grad", 0, 1);
    else
        tsr__storage_release(l->one->e, &l->grad);
}

/* One of the list of which this rank has nothing. */
static bool is_empty(const struct tsr__step *s, const struct tsr_param *p)
{
    return tsr__param_grad(p) && tsr__param_local_numel(p) == 0 &&
           tsr__is_offloaded(p) == s->host && (!s->groups || s->decaying == tsr__decays(s->e, p));
}

static void loop(struct tsr__step *s)
{
    struct tsr__step one = *s;
    struct loop l = {.one = &one};
    one.n = 1;
    for (size_t i = 0; i < s->n && tsr__ok(s->e); i++) {
        one.params = s->params + i;
        if (is_empty(s, s->params[i])) /* it takes the variable, not memory */
            tsr__storage_release(s->e, &l.grad);
        if (!tsr__takes(s, s->params[i]))
            continue;
        tsr__step_count(&one);
        begin(&l);
        if (decays(s))
            assign(&l, "add_decay", TSR__PARAM, 2);
        if (has_momentum(s))
            momentum(&l);
        tsr__foreach_kernel(&one, "add_sgd", l.from | TSR__PARAM, TSR__PARAM,
                            l.from == COPY ? &l.grad : NULL, 2);
    }
    tsr__storage_release(s->e, &l.grad);
}

/* ---- fused ----------------------------------------------------------------------------------- */

/* One kernel. In the first step it writes momentums without reading them; PyTorch has no way to do
 * so for some parameters and not for others. */
static void fused(struct tsr__step *s)
{
    const struct tsr_step_config *config = &s->e->step->config;
    unsigned reads = TSR__GRAD | TSR__PARAM | TSR__SCALED, writes = TSR__PARAM;
    if (has_momentum(s)) {
        bool first = any_starts(s);
        for (size_t i = 0; i < s->n && first; i++) {
            if (tsr__takes(s, s->params[i]) && !starts(s->params[i]))
                TSR__RAISE(s->e, TSR_EUNSUPPORTED,
                           "%s: the fused SGD of parameters of which only some have a momentum",
                           s->params[i]->fqn);
            make_momentum(s, s->params[i]);
        }
        reads |= first ? 0U : TSR__STATE0;
        writes |= TSR__STATE0;
    }
    s->negated = config->maximize;
    tsr__foreach_kernel(s, config->nesterov ? "fused_sgd_nesterov" : "fused_sgd", reads, writes,
                        NULL, 6);
    s->negated = false;
}

/* ---- what all have --------------------------------------------------------------------------- */

static void of_group(struct tsr__step *s)
{
    tsr__step_count(s);
    if (s->numel == 0)
        return;
    switch (s->e->step->config.sgd) {
    case TSR_SGD_FOREACH:
        foreach(s);
        break;
    case TSR_SGD_FUSED:
        fused(s);
        break;
    case TSR_SGD_LOOP:
        loop(s);
        break;
    }
}

void tsr__sgd(struct tsr__step *s)
{
    const struct tsr_step_config *config = &s->e->step->config;
    s->like_grads = true;
    s->groups = config->sgd_decay && config->decay_matrices_only;
    s->decaying = true;
    of_group(s);
    s->decaying = false;
    if (s->groups && tsr__ok(s->e))
        of_group(s);
    s->groups = s->like_grads = false;
}
