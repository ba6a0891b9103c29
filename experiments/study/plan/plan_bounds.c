/* plan_bounds.c: what is known of configurations that nobody emitted, from others that differ in
 * such settings only as do not change it. README.md says why each is a bound; --exhaustive checks
 * them.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/plan/plan.h"

/* A sum of doubles is not exact; a bound must not be above what it bounds. */
static const double ROUNDING = 1.0 - 1e-9;

/* What the values of an axis leave as it is: a set of enum tsr_preserved. */
static unsigned preserved_by(const char *axis)
{
    const char *name = tsr_key_shorthand(axis);
    size_t key = tsr_key_find(name ? name : axis);
    return key < TSR_N_KEYS ? tsr_keys[key].preserves : 0;
}

tsr_status tsr_plan_bounds_create(struct tsr_plan *plan)
{
    struct tsr_plan_space *space = &plan->space;
    bool holds = plan->job.settings->api == TSR_API_FULLY_SHARD;
    struct tsr_plan_bounds *b = plan->bounds = calloc(1, sizeof *b);
    if (!b)
        return tsr_no_memory(NULL);
    b->models = calloc(space->n, sizeof *b->models);
    b->states = calloc(space->n, sizeof *b->states);
    b->hooks = calloc(space->n, sizeof *b->hooks);
    if (!b->models || !b->states || !b->hooks)
        return tsr_no_memory(NULL);
    for (size_t k = 0; k < space->n_axes; k++) {
        unsigned preserved = holds ? preserved_by(space->axes[k].key) : 0;
        space->axes[k].moves_model = !(preserved & TSR_PRESERVES_MODEL);
        space->axes[k].moves_state = !(preserved & TSR_PRESERVES_STATE);
        space->axes[k].moves_hooks = !(preserved & TSR_PRESERVES_HOOKS);
    }
    return TSR_OK;
}

void tsr_plan_bounds_destroy(struct tsr_plan_bounds *bounds)
{
    if (!bounds)
        return;
    free(bounds->models);
    free(bounds->states);
    free(bounds->hooks);
    free(bounds);
}

/* The combination with the same values where it matters, the first ones elsewhere. */
static size_t model_of(const struct tsr_plan_space *space, size_t i)
{
    for (size_t k = 0; k < space->n_axes; k++)
        i = space->axes[k].moves_model ? i : tsr_plan_with(space, i, k, 0);
    return i;
}

static size_t state_of(const struct tsr_plan_space *space, size_t i)
{
    for (size_t k = 0; k < space->n_axes; k++)
        i = space->axes[k].moves_state ? i : tsr_plan_with(space, i, k, 0);
    return i;
}

static size_t hooks_of(const struct tsr_plan_space *space, size_t i)
{
    for (size_t k = 0; k < space->n_axes; k++)
        i = space->axes[k].moves_hooks ? i : tsr_plan_with(space, i, k, 0);
    return i;
}

void tsr_plan_learn(struct tsr_plan *plan, size_t i)
{
    const struct tsr_plan_point *point = &plan->points[i];
    if (!tsr_plan_is_emitted(point))
        return;
    const struct tsr_plan_measure *m = point->m;
    struct tsr_plan_model *model = &plan->bounds->models[model_of(&plan->space, i)];
    struct tsr_plan_kept *state = &plan->bounds->states[state_of(&plan->space, i)];
    struct tsr_plan_hooks *hooks = &plan->bounds->hooks[hooks_of(&plan->space, i)];
    if (!model->known || (m->bound.known && model->seconds <= 0))
        *model = (struct tsr_plan_model){.known = true,
                                         .seconds = m->bound.model_s,
                                         .kernels_s = m->bound.model_kernels_s,
                                         .tokens = (double)m->row.tokens_per_rank,
                                         .saved = m->saved,
                                         .saved_at_loss = m->saved_at_loss};
    if (!state->known)
        *state = (struct tsr_plan_kept){.known = true,
                                        .ends = m->bound.known,
                                        .optimizer_s = m->bound.optimizer_s,
                                        .kernels_s = m->bound.optimizer_kernels_s,
                                        .bytes = m->kept};
    if (!hooks->known)
        *hooks = (struct tsr_plan_hooks){.known = true,
                                         .kernels_s = m->bound.hooks_s,
                                         .wires_s = m->bound.wires_s,
                                         .gathered_at_loss = m->gathered_at_loss};
}

size_t tsr_plan_unknown_model(const struct tsr_plan *plan, size_t i)
{
    size_t at = model_of(&plan->space, i);
    return plan->bounds->models[at].known ? SIZE_MAX : at;
}

size_t tsr_plan_unknown_state(const struct tsr_plan *plan, size_t i)
{
    size_t at = state_of(&plan->space, i);
    return plan->bounds->states[at].known ? SIZE_MAX : at;
}

size_t tsr_plan_unknown_hooks(const struct tsr_plan *plan, size_t i)
{
    size_t at = hooks_of(&plan->space, i);
    return plan->bounds->hooks[at].known ? SIZE_MAX : at;
}

double tsr_plan_tokens(const struct tsr_plan *plan, size_t i)
{
    if (tsr_plan_is_emitted(&plan->points[i]))
        return (double)plan->points[i].m->row.tokens_per_rank;
    return plan->bounds->models[model_of(&plan->space, i)].tokens;
}

double tsr_plan_learned_step(const struct tsr_plan *plan, size_t i)
{
    const struct tsr_plan_model *model = &plan->bounds->models[model_of(&plan->space, i)];
    const struct tsr_plan_kept *state = &plan->bounds->states[state_of(&plan->space, i)];
    const struct tsr_plan_hooks *hooks = &plan->bounds->hooks[hooks_of(&plan->space, i)];
    if (!model->known || !state->known || !state->ends || model->seconds <= 0)
        return 0;
    double chain = model->seconds + state->optimizer_s;
    double kernels = model->kernels_s + state->kernels_s + hooks->kernels_s;
    return fmax(fmax(chain, kernels), hooks->wires_s) * ROUNDING;
}

double tsr_plan_least_step(const struct tsr_plan *plan, size_t i)
{
    if (tsr_plan_is_emitted(&plan->points[i]))
        return plan->points[i].m->bound.step_s * ROUNDING;
    return tsr_plan_learned_step(plan, i);
}

/* What a model keeps at least, with so much of the parameters gathered while the loss is computed.
 */
static uint64_t saved_of(const struct tsr_plan *plan, size_t i, uint64_t gathered)
{
    const struct tsr_plan_space *space = &plan->space;
    const struct tsr_plan_model *model = &plan->bounds->models[model_of(space, i)];
    uint64_t most = gathered;
    if (model->known)
        return tsr_max_u64(model->saved, model->saved_at_loss + gathered);
    for (size_t k = 0; k < space->n_axes; k++) { /* at least what a smaller batch or seq keeps */
        const struct tsr_plan_axis *axis = &space->axes[k];
        size_t mine = axis->is_size ? axis->values[tsr_plan_pick(space, i, k)].rank : 0;
        for (size_t v = 0; v < axis->n && mine; v++)
            if (axis->values[v].rank + 1 == mine)
                most = tsr_max_u64(most, saved_of(plan, tsr_plan_with(space, i, k, v), gathered));
    }
    return most;
}

uint64_t tsr_plan_learned_need(const struct tsr_plan *plan, size_t i)
{
    const struct tsr_plan_kept *state = &plan->bounds->states[state_of(&plan->space, i)];
    const struct tsr_plan_hooks *hooks = &plan->bounds->hooks[hooks_of(&plan->space, i)];
    const struct tsr_gpu *gpu = &plan->job.cluster.gpu;
    return saved_of(plan, i, hooks->known ? hooks->gathered_at_loss : 0) +
           (state->known ? state->bytes : 0) + gpu->context_bytes + gpu->library_bytes;
}

uint64_t tsr_plan_least_need(const struct tsr_plan *plan, size_t i)
{
    if (tsr_plan_is_emitted(&plan->points[i]))
        return plan->points[i].need;
    return tsr_plan_learned_need(plan, i);
}
