/* ties.c: a parameter that modules share is untied when a call of fully_shard() holds only some of
 * its places (section 2.1, Q7).
 */
#include "engine/fsdp/fsdp.h"

#include <string.h>

struct tie_walk {
    struct tsr_engine *e;
    struct tsr_param *param, *copy;
    struct tsr_module *const *targets;
    size_t n_targets;
    bool inside;             /* whether modules below the targets or the others are wanted */
    struct tsr_place *first; /* first wanted place */
    struct tsr_module *first_module;
};

static bool is_below_targets(const struct tie_walk *w, const struct tsr_module *m)
{
    for (size_t i = 0; i < w->n_targets; i++)
        if (tsr__module_contains(w->targets[i], m))
            return true;
    return false;
}

/* Finds the first place of the parameter on the wanted side; gives all of them the copy, if any. */
static bool visit_tied(void *user, struct tsr_module *m)
{
    struct tie_walk *w = user;
    for (size_t i = 0; i < m->n_params; i++) {
        if (m->params[i].param != w->param || is_below_targets(w, m) != w->inside)
            continue;
        if (!w->first) {
            w->first = &m->params[i];
            w->first_module = m;
        }
        if (w->copy)
            m->params[i].param = w->copy;
    }
    return true;
}

static const char *place_fqn(const struct tie_walk *w)
{
    return *w->first_module->fqn
               ? tsr_arena_printf(&w->e->arena, "%s.%s", w->first_module->fqn, w->first->name)
               : w->first->name;
}

/* Only the places inside the call's modules get the group's parameter. What is tied to it outside
 * stays a parameter of its own; whichever side does not hold the first name gets a copy. */
tsr_status tsr__break_tie(struct tsr_engine *e, struct tsr_module *const *targets, size_t n_targets,
                          struct tsr_param **param)
{
    struct tsr_param *p = *param;
    if (p->n_places == 1) /* the walk would see the whole model, once for each parameter */
        return e->status;
    struct tie_walk in = {e, p, NULL, targets, n_targets, true, NULL, NULL};
    struct tie_walk out = in;
    out.inside = false;
    tsr__module_walk(e->tree.root, visit_tied, &out);
    if (!out.first)
        return e->status; /* not tied, or only inside */
    tsr__module_walk(e->tree.root, visit_tied, &in);
    const char *name = place_fqn(&in);
    bool keeps = name && strcmp(name, p->fqn) == 0;
    struct tie_walk *side = keeps ? &out : &in;
    struct tsr_param *copy = tsr_arena_alloc(&e->arena, sizeof *copy);
    if (!copy || !name)
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    *copy = *p;
    copy->untied_from = p->untied_from ? p->untied_from : p;
    copy->value = NULL;
    copy->id = (uint32_t)e->tree.n_params;
    copy->fqn = tsr_arena_strdup(&e->arena, place_fqn(side));
    if (!copy->fqn || !TSR_PUSH(e->tree.params, e->tree.n_params, e->tree.cap_params, copy))
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    side->copy = copy;
    tsr__module_walk(e->tree.root, visit_tied, side);
    if (!keeps)
        *param = copy;
    return e->status;
}
