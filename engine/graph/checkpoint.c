/* checkpoint.c: activation checkpointing, non-reentrant (section 3.9).
 *
 * The forward of a checkpointed call makes its graph as usual, but what nodes save goes into
 * numbered slots of a region and is not kept. The first slot that backward asks for recomputes the
 * call from its input; the k-th save of the recomputation fills slot k. With early stop it ends as
 * soon as the last slot is filled.
 */
#include "engine/graph/engine.h"

#include <string.h>

tsr_status tsr_checkpoint(struct tsr_engine *e, struct tsr_module *m, bool outside, bool early_stop)
{
    (void)e;
    if (m->no_forward)
        return tsr_fail(TSR_EVALUE, "checkpoint: '%s' is a container without forward", m->fqn);
    for (struct tsr_module *up = m->parent; up; up = up->parent)
        if (up->checkpoint.inside || up->checkpoint.outside)
            return tsr_fail(TSR_EVALUE, "checkpoint: '%s' lies inside '%s', which has one already",
                            m->fqn, up->fqn);
    m->checkpoint.inside = !outside;
    m->checkpoint.outside = outside;
    m->checkpoint.early_stop = early_stop;
    return TSR_OK;
}

tsr_status tsr_checkpoint_selective(struct tsr_engine *e, struct tsr_module *m)
{
    TSR_TRY(tsr_checkpoint(e, m, false, true));
    m->checkpoint.selective = true;
    return TSR_OK;
}

/* ---- regions --------------------------------------------------------------------------------- */

static struct tsr_region *region_new(struct tsr_engine *e, struct tsr_module *m, bool outside,
                                     struct tsr_tensor *in)
{
    struct tsr_region *r = e->autograd.free_regions;
    if (r)
        e->autograd.free_regions = r->next_free;
    else
        r = tsr_arena_alloc(&e->arena, sizeof *r);
    if (!r) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
        return NULL;
    }
    r->refs = 1;
    r->module = m;
    r->outside = outside;
    r->early_stop = m->checkpoint.early_stop;
    r->input = tsr_retain(in);
    for (int i = 0; i < TSR_N_ARGS; i++)
        r->args[i] = tsr_retain(e->autograd.args[i]);
    r->selective = m->checkpoint.selective;
    r->n_products = r->next_kept = 0;
    r->n_kept = 0;
    r->n_slots = 0;
    r->next_slot = 0;
    r->done = false;
    return r;
}

void tsr__region_release(struct tsr_engine *e, struct tsr_region *r)
{
    if (!r || --r->refs > 0)
        return;
    tsr_release(e, r->input);
    r->input = NULL;
    for (int i = 0; i < TSR_N_ARGS; i++)
        tsr_release(e, r->args[i]);
    for (size_t i = 0; i < r->n_kept; i++) /* what the recomputation did not reach */
        tsr_release(e, r->kept[i]);
    r->next_free = e->autograd.free_regions;
    e->autograd.free_regions = r;
}

struct tsr_saved tsr__region_pack(struct tsr_engine *e, struct tsr_tensor *t)
{
    struct tsr_region *r = e->autograd.packing;
    if (r) {
        if (!TSR__ARENA_PUSH(e, r->recomputed, r->n_slots, r->cap_slots, NULL))
            return (struct tsr_saved){0};
        r->refs++;
        return (struct tsr_saved){.region = r, .slot = (uint32_t)r->n_slots - 1};
    }
    r = e->autograd.unpacking;
    if (r) {
        TSR_CHECK(r->next_slot < r->n_slots);
        r->recomputed[r->next_slot++] = tsr_retain(t);
        if (r->early_stop && r->next_slot == r->n_slots)
            e->stopped = true;
        return (struct tsr_saved){0};
    }
    return (struct tsr_saved){.tensor = tsr_retain(t)};
}

/* ---- selective ------------------------------------------------------------------------------- */

static struct tsr_region *selective_region(const struct tsr_engine *e)
{
    struct tsr_region *r = e->autograd.packing ? e->autograd.packing : e->autograd.unpacking;
    return r && r->selective ? r : NULL;
}

bool tsr__selective_keeps(struct tsr_engine *e, bool product)
{
    struct tsr_region *r = selective_region(e);
    if (!r || !tsr__ok(e))
        return false;
    return !product || ++r->n_products % 2 == 1; /* 1st, 3rd, ... */
}

bool tsr__selective_reuses(const struct tsr_engine *e)
{
    return !e->autograd.packing && e->autograd.unpacking && e->autograd.unpacking->selective;
}

void tsr__selective_put(struct tsr_engine *e, const struct tsr_tensor *result)
{
    struct tsr_region *r = e->autograd.packing;
    if (!r || !result)
        return;
    struct tsr_tensor *same = tsr__tensor_view(e, result->storage, (tsr_dtype)result->dtype,
                                               result->n_dims, result->dims);
    if (same && !TSR__ARENA_PUSH(e, r->kept, r->n_kept, r->cap_kept, same))
        tsr_release(e, same);
}

struct tsr_tensor *tsr__selective_take(struct tsr_engine *e)
{
    struct tsr_region *r = e->autograd.unpacking;
    if (!tsr__ok(e) || !r)
        return NULL;
    TSR_CHECK(r->next_kept < r->n_kept);
    struct tsr_tensor *t = r->kept[r->next_kept];
    r->kept[r->next_kept++] = NULL;
    return t;
}

/* ---- calls ----------------------------------------------------------------------------------- */

struct tsr_tensor *tsr__checkpoint_call(struct tsr_engine *e, struct tsr_module *m,
                                        struct tsr_tensor *in, bool outside)
{
    if (!tsr__ok(e))
        return NULL;
    if (!e->grad_enabled)
        return outside ? tsr__call_hooks(e, m, in) : tsr__call_body(e, m, in);
    struct tsr_region *r = region_new(e, m, outside, in);
    if (!r)
        return NULL;
    struct tsr_region *packing = e->autograd.packing, *unpacking = e->autograd.unpacking;
    e->autograd.packing = r;
    e->autograd.unpacking = NULL;
    struct tsr_tensor *out = outside ? tsr__call_hooks(e, m, in) : tsr__call_body(e, m, in);
    e->autograd.packing = packing;
    e->autograd.unpacking = unpacking;
    tsr__region_release(e, r);
    return out;
}

/* The input as the recomputation sees it: the same storage, cut off from the graph. */
static struct tsr_tensor *detach(struct tsr_engine *e, struct tsr_tensor *t)
{
    struct tsr_tensor *d = tsr__tensor_view(e, t->storage, (tsr_dtype)t->dtype, t->n_dims, t->dims);
    if (d) {
        d->offset = t->offset;
        d->requires_grad = t->requires_grad;
    }
    return d;
}

void tsr__region_recompute(struct tsr_engine *e, struct tsr_region *r)
{
    if (r->done || !tsr__ok(e))
        return;
    r->done = true;
    r->n_products = 0;
    struct tsr_region *packing = e->autograd.packing, *unpacking = e->autograd.unpacking;
    struct tsr_origin origin = e->origin;
    bool grad = e->grad_enabled;
    e->autograd.packing = NULL;
    e->autograd.unpacking = r;
    e->grad_enabled = true;
    e->autograd.recompute_depth++;
    e->origin.recompute = 1;
    e->origin.module = r->module->id;
    struct tsr_tensor *args[TSR_N_ARGS];
    memcpy(args, e->autograd.args, sizeof args);
    memcpy(e->autograd.args, r->args, sizeof e->autograd.args);
    struct tsr_tensor *in = detach(e, r->input);
    struct tsr_tensor *out =
        r->outside ? tsr__call_hooks(e, r->module, in) : tsr__call_body(e, r->module, in);
    e->stopped = false;
    tsr_release(e, r->module->aux_output); /* of a body: nobody took it */
    r->module->aux_output = NULL;
    tsr_release(e, out);
    tsr_release(e, in);
    e->autograd.recompute_depth--;
    e->autograd.packing = packing;
    e->autograd.unpacking = unpacking;
    e->grad_enabled = grad;
    e->origin = origin;
    memcpy(e->autograd.args, args, sizeof e->autograd.args);
    if (e->status == TSR_OK && r->next_slot != r->n_slots)
        TSR__RAISE(e, TSR_ERUNTIME,
                   "checkpoint of %s: the recomputation saved %u tensors, the forward %zu",
                   r->module->fqn, r->next_slot, r->n_slots);
}
