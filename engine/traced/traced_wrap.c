/* traced_wrap.c: does what wraps a traced model go with its trace? The trace has the kernels of one
 * dtype of parameters, and marks at the modules that were hooked when it was made.
 */
#include "engine/fsdp/fsdp.h"
#include "engine/fsdp1/fsdp1.h"
#include "engine/layout/layout.h"
#include "engine/ops/ops_common.h"
#include "engine/traced/traced.h"

static const char *dtype_name(tsr_dtype dtype)
{
    return dtype == TSR_DTYPE_NONE ? "their own dtype" : tsr_dtype_name(dtype);
}

/* What the modules compute with. */
static tsr_dtype compute_dtype(const struct tsr_param *p)
{
    tsr_dtype policy = p->flat ? p->flat->compute : TSR_DTYPE_NONE;
    if (p->fsdp && !p->flat)
        policy = p->fsdp->group->mp.param;
    if (policy == TSR_DTYPE_NONE && p->value)
        policy = (tsr_dtype)p->value->dtype;
    return policy == TSR_DTYPE_NONE ? p->dtype : policy;
}

static tsr_status check_param(const struct tsr_traced *t, const struct tsr_param *p)
{
    tsr_dtype traced = t->model->compute == TSR_DTYPE_NONE ? p->dtype : t->model->compute;
    if (p->untied_from)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "%s is tied, and its places are in several groups, which breaks the tie: "
                        "wrap what has both places",
                        p->fqn);
    bool is_managed = p->fsdp || p->flat;
    if (!is_managed || p == (p->flat ? p->flat->param : NULL) || compute_dtype(p) == traced)
        return TSR_OK;
    return tsr_fail(TSR_EUNSUPPORTED,
                    "%s computes in %s, and the model was traced with parameters in %s", p->fqn,
                    dtype_name(compute_dtype(p)), dtype_name(t->model->compute));
}

/* Returns true if the modules that share the state `s` are those that were traced in one call with
 * `module`. */
static bool has_its_group(const struct tsr_traced *t, uint32_t module, const struct tsr_state *s)
{
    const uint32_t *groups = t->model->groups;
    size_t traced = 0, wrapped = 0;
    for (uint32_t i = 0; i < t->model->n_modules; i++) {
        bool is_traced = groups && groups[i] && groups[i] == groups[module];
        bool is_wrapped = t->modules[i]->state == s;
        traced += is_traced;
        wrapped += is_traced && is_wrapped;
    }
    return traced == s->n_modules && wrapped == traced;
}

static tsr_status check_group(const struct tsr_traced *t, uint32_t module, bool needed)
{
    const struct tsr_module *m = t->modules[module];
    bool is_traced = t->model->groups && t->model->groups[module];
    if (is_traced && m->hooks && (!m->state || m->state->flat))
        return tsr_fail(TSR_EUNSUPPORTED,
                        "'%s' is wrapped by fsdp1, and was traced in one call with others", m->fqn);
    if (!m->state || !(is_traced || (needed && m->state->n_modules > 1)) ||
        has_its_group(t, module, m->state))
        return TSR_OK;
    if (is_traced)
        return tsr_fail(TSR_EUNSUPPORTED, "'%s' was traced in one call with others than it has now",
                        m->fqn);
    return tsr_fail(TSR_EUNSUPPORTED,
                    "'%s' is wrapped together with others, and its own hooks changed what "
                    "the traced run allocated",
                    m->fqn);
}

static tsr_status check_hooks(const struct tsr_traced *t)
{
    for (size_t i = 0; i < t->model->n_modules; i++) {
        const struct tsr_module *m = t->modules[i];
        bool asks = m->state ? m->state->n_groups > 0 : m->hooks != NULL;
        if (asks && !t->model->hooked[i])
            return tsr_fail(TSR_EUNSUPPORTED,
                            "'%s' is wrapped, and had no hooks when the model was traced", m->fqn);
        bool needed = t->model->needs && t->model->needs[i];
        if (needed && !m->hooks)
            return tsr_fail(
                TSR_EUNSUPPORTED,
                "'%s' is not wrapped, and its hooks changed what the traced run allocated", m->fqn);
        TSR_TRY(check_group(t, (uint32_t)i, needed));
        if (asks && t->model->cannot && t->model->cannot[i])
            return tsr_fail(TSR_EUNSUPPORTED, "'%s' cannot be wrapped: %s", m->fqn,
                            t->model->cannot[i]);
        if (t->model->casts && t->model->casts[i] && t->model->hooked[i] != (m->hooks != NULL))
            return tsr_fail(TSR_EUNSUPPORTED,
                            "'%s' is %s: it takes inputs of another dtype, which its hooks cast, "
                            "and was %shooked when the model was traced",
                            m->fqn, m->hooks ? "wrapped" : "not wrapped",
                            t->model->hooked[i] ? "" : "not ");
        if (m->checkpoint.inside || m->checkpoint.outside)
            return tsr_fail(TSR_EUNSUPPORTED,
                            "'%s': which modules are recomputed was decided by the trace", m->fqn);
    }
    return TSR_OK;
}

/* Returns how many forwards of a module the iteration has. */
static size_t n_forwards(const struct tsr_traced *t, uint32_t module)
{
    size_t n = 0;
    for (uint32_t i = 0; i < t->lists[1].n; i++)
        n += t->lists[1].steps[i].mark == TSR_TRACED_PRE_FORWARD &&
             t->lists[1].steps[i].module == module;
    return n;
}

/* FSDP1 has no node at a module's inputs and casts those of the root alone, and a module that runs
 * twice has two splits, whose gradients a trace, made of modules with parameters of their own, has
 * as one. */
static tsr_status check_fsdp1(const struct tsr_traced *t)
{
    for (uint32_t i = 0; i < t->model->n_modules; i++) {
        const struct tsr_module *m = t->modules[i];
        bool is_wrapped = m->state != NULL;
        if (t->model->needs && t->model->needs[i])
            return tsr_fail(
                TSR_EUNSUPPORTED,
                "'%s': the hooks of fully_shard, which fsdp1 does not have, changed what "
                "the traced run allocated",
                m->fqn);
        if (i > 0 && t->model->hooked[i] && t->model->casts && t->model->casts[i])
            return tsr_fail(
                TSR_EUNSUPPORTED,
                "'%s': its inputs were cast by hooks of fully_shard; fsdp1 casts those of "
                "the model alone",
                m->fqn);
        if (is_wrapped && n_forwards(t, i) > 1)
            return tsr_fail(
                TSR_EUNSUPPORTED,
                "'%s' runs more than once in a forward, which a trace does not have for "
                "fsdp1: wrap what is around it",
                m->fqn);
    }
    return TSR_OK;
}

tsr_status tsr_traced_check_wrapping(const struct tsr_engine *e)
{
    if (!e->traced)
        return TSR_OK;
    if (e->fsdp1)
        TSR_TRY(check_fsdp1(e->traced));
    if (e->tp->mesh_dims)
        return tsr_fail(TSR_EUNSUPPORTED, "a traced model has no tensor parallelism");
    TSR_TRY(check_hooks(e->traced));
    for (size_t i = 0; i < e->tree.n_params; i++)
        if (e->tree.params[i])
            TSR_TRY(check_param(e->traced, e->tree.params[i]));
    return TSR_OK;
}
