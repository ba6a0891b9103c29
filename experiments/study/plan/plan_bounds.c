/* plan_bounds.c: what is known of configurations that nobody emitted, from others that differ in
 * such settings only as do not change it. README.md says why each is a bound; --exhaustive checks
 * them.
 */
#include <stdlib.h>
#include <string.h>

#include "experiments/study/plan/plan.h"

/* A sum of doubles is not exact; a bound must not be above what it bounds. */
static const double ROUNDING = 1.0 - 1e-9;

/* They say how parameters are cut and when they are gathered: what the modules themselves compute,
 * and keep for backward, is the same. */
static const char *const not_of_model[] = {"mesh",
                                           "mesh.replicate",
                                           "mesh.shard",
                                           "reshard_after_forward",
                                           "forward_prefetch",
                                           "backward_prefetch",
                                           "wrap",
                                           "precision.reduce",
                                           "offload",
                                           NULL};
/* They change nothing of parameters' shards, the optimizer's states and its kernels. */
static const char *const not_of_state[] = {"batch",
                                           "seq",
                                           "checkpoint.every",
                                           "loss.chunks",
                                           "reshard_after_forward",
                                           "forward_prefetch",
                                           "backward_prefetch",
                                           "wrap",
                                           NULL};

static bool is_one_of(const char *key, const char *const *list)
{
    while (*list && strcmp(key, *list) != 0)
        list++;
    return *list != NULL;
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
    if (!b->models || !b->states)
        return tsr_no_memory(NULL);
    for (size_t k = 0; k < space->n_axes; k++) {
        const char *key = space->axes[k].key;
        space->axes[k].moves_model = !holds || !is_one_of(key, not_of_model);
        space->axes[k].moves_state = !holds || !is_one_of(key, not_of_state);
    }
    return TSR_OK;
}

void tsr_plan_bounds_destroy(struct tsr_plan_bounds *bounds)
{
    if (!bounds)
        return;
    free(bounds->models);
    free(bounds->states);
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

void tsr_plan_learn(struct tsr_plan *plan, size_t i)
{
    const struct tsr_plan_point *point = &plan->points[i];
    if (!tsr_plan_is_emitted(point))
        return;
    const struct tsr_plan_measure *m = point->m;
    struct tsr_plan_model *model = &plan->bounds->models[model_of(&plan->space, i)];
    struct tsr_plan_kept *state = &plan->bounds->states[state_of(&plan->space, i)];
    if (!model->known || (m->bound.known && model->seconds <= 0))
        *model = (struct tsr_plan_model){.known = true,
                                         .seconds = m->bound.model_s,
                                         .tokens = (double)m->row.tokens_per_rank,
                                         .saved = m->saved};
    if (!state->known)
        *state = (struct tsr_plan_kept){.known = true,
                                        .ends = m->bound.known,
                                        .optimizer_s = m->bound.optimizer_s,
                                        .bytes = m->kept};
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
    return model->known && state->known && state->ends
               ? (model->seconds + state->optimizer_s) * ROUNDING
               : 0;
}

double tsr_plan_least_step(const struct tsr_plan *plan, size_t i)
{
    if (tsr_plan_is_emitted(&plan->points[i]))
        return plan->points[i].m->bound.step_s * ROUNDING;
    return tsr_plan_learned_step(plan, i);
}

/* What a smaller batch or seq keeps is the least that is kept. */
static uint64_t saved_of(const struct tsr_plan *plan, size_t i)
{
    const struct tsr_plan_space *space = &plan->space;
    const struct tsr_plan_model *model = &plan->bounds->models[model_of(space, i)];
    uint64_t most = model->known ? model->saved : 0;
    for (size_t k = 0; k < space->n_axes && !model->known; k++) {
        const struct tsr_plan_axis *axis = &space->axes[k];
        size_t mine = axis->is_size ? axis->values[tsr_plan_pick(space, i, k)].rank : 0;
        for (size_t v = 0; v < axis->n && mine; v++)
            if (axis->values[v].rank + 1 == mine)
                most = tsr_max_u64(most, saved_of(plan, tsr_plan_with(space, i, k, v)));
    }
    return most;
}

uint64_t tsr_plan_learned_need(const struct tsr_plan *plan, size_t i)
{
    const struct tsr_plan_kept *state = &plan->bounds->states[state_of(&plan->space, i)];
    return saved_of(plan, i) + (state->known ? state->bytes : 0);
}

uint64_t tsr_plan_least_need(const struct tsr_plan *plan, size_t i)
{
    if (tsr_plan_is_emitted(&plan->points[i]))
        return plan->points[i].need;
    return tsr_plan_learned_need(plan, i);
}
