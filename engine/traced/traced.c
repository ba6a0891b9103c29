/* traced.c: a traced model comes to be: modules, parameters, buffers, ties, and its kernels. */
#include <string.h>

#include "engine/ops/ops_common.h"
#include "engine/traced/traced.h"

/* Modules are called by their marks: nobody runs this. */
static void no_forward(struct tsr_engine *e, struct tsr_module *m, void *impl,
                       struct tsr_tensor *in, struct tsr_tensor **out)
{
    (void)impl, (void)in;
    *out = NULL;
    TSR__RAISE(e, TSR_EUNSUPPORTED, "'%s' of a traced model cannot be called by itself", m->fqn);
}

/* What the builder knows of the places that it has made. */
struct builder {
    struct tsr_engine *e;
    struct tsr_traced *t;
};

static bool add_params(struct builder *b, struct tsr_module *m,
                       const struct tsr_traced_module *from)
{
    for (size_t i = 0; i < from->n_params; i++) {
        const struct tsr_traced_place *place = &from->params[i];
        const struct tsr_traced_param *p = &b->t->model->params[place->index];
        struct tsr_param **made = &b->t->params[place->index];
        if (*made) {
            if (!tsr__param_place(b->e, m, place->name, *made))
                return false;
            continue;
        }
        *made = tsr__param_new(b->e, m, place->name, p->n_dims, p->shape, p->dtype);
        if (!*made)
            return false;
        (*made)->requires_grad = p->trainable;
        b->t->owners[place->index] = m;
    }
    return true;
}

static bool add_buffers(struct builder *b, struct tsr_module *m,
                        const struct tsr_traced_module *from)
{
    for (size_t i = 0; i < from->n_buffers; i++)
        if (!tsr__buffer_add(b->e, m, from->buffers[i].dtype, from->buffers[i].bytes))
            return false;
    return true;
}

static bool add_module(struct builder *b, struct tsr_module *parent, const char *name, size_t at)
{
    const struct tsr_traced_module *from = &b->t->model->modules[at];
    if (b->t->modules[at])
        return tsr__module_alias(b->e, parent, name, b->t->modules[at]);
    struct tsr_module *m = tsr__module_new(b->e, parent, name, from->type,
                                           from->is_container ? NULL : no_forward, NULL);
    b->t->modules[at] = m;
    if (!m || !add_params(b, m, from) || !add_buffers(b, m, from))
        return false;
    for (size_t i = 0; i < from->n_children; i++)
        if (!add_module(b, m, from->children[i].name, from->children[i].index))
            return false;
    return true;
}

static tsr_status make_works(struct tsr_engine *e, struct tsr_traced *t)
{
    for (size_t i = 0; i < t->model->n_ops; i++)
        if (!tsr__traced_work(&e->arena, &t->model->ops[i], &t->works[i]))
            return tsr_no_memory(NULL);
    return TSR_OK;
}

static tsr_status build(struct tsr_engine *e, struct tsr_traced *t)
{
    const struct tsr_traced_model *m = t->model;
    bool recorded = e->config.instrumented && m->instrumented[0].n > 0;
    memcpy(t->lists, recorded ? m->instrumented : m->plain, sizeof t->lists);
    t->steady = t->lists[2].n ? 2 : 1;
    t->modules = tsr_arena_alloc(&e->arena, (m->n_modules + 1) * sizeof(struct tsr_module *));
    t->params = tsr_arena_alloc(&e->arena, (m->n_params + 1) * sizeof(struct tsr_param *));
    t->owners = tsr_arena_alloc(&e->arena, (m->n_params + 1) * sizeof(struct tsr_module *));
    t->works = tsr_arena_alloc(&e->arena, (m->n_ops + 1) * sizeof *t->works);
    if (!t->modules || !t->params || !t->owners || !t->works ||
        !tsr__instances_init(&t->instances, &e->arena, m->n_segments))
        return tsr_no_memory(NULL);
    TSR_TRY(tsr__traced_resolve(m, t->lists, &e->arena, t->gives));
    TSR_TRY(make_works(e, t));
    struct builder b = {e, t};
    if (!add_module(&b, NULL, "", 0))
        return e->status != TSR_OK ? e->status : tsr_no_memory(NULL);
    for (size_t i = 0; i < m->n_params; i++)
        if (!t->params[i])
            return tsr_fail(TSR_EVALUE, "parameter %zu belongs to no module", i);
    return e->status;
}

tsr_status tsr_model_traced(struct tsr_engine *e, const struct tsr_traced_model *model)
{
    if (e->tree.root)
        return tsr_fail(TSR_EVALUE, "the engine has a model already");
    if (e->config.dialect != TSR_DIALECT_EAGER || e->config.linear != TSR_LINEAR_PLAIN)
        return tsr_fail(TSR_EUNSUPPORTED, "a traced model has the kernels that it was traced with: "
                                          "the dialect is eager, linear layers are plain");
    struct tsr_traced *t = tsr_arena_alloc(&e->arena, sizeof *t);
    if (!t)
        return tsr_no_memory(NULL);
    t->model = model;
    TSR_TRY(build(e, t));
    e->traced = t;
    return TSR_OK;
}
