/* player.c: plays a step of a traced model: at marks the hooks of whatever wraps the module, in
 * between the allocations, frees and kernels that were recorded.
 *
 * What the recorded run knew and a wrapper decides anew is left out: who frees gradients, and the
 * optimizer.
 */
#include <string.h>

#include "engine/fsdp/fsdp.h"
#include "engine/fsdp1/fsdp1.h"
#include "engine/traced/traced.h"

/* ---- whose work it is ------------------------------------------------------------------------ */

static void set_module(struct tsr_engine *e)
{
    const struct tsr_traced *t = e->traced;
    e->origin.module = t->depth > 0 ? t->stack[t->depth - 1]->id : TSR_NO_ID;
}

static void enter(struct tsr_engine *e, struct tsr_module *m)
{
    struct tsr_traced *t = e->traced;
    bool is_top = t->depth > 0 && t->stack[t->depth - 1] == m;
    if (!is_top && t->depth < TSR__TRACED_NESTING)
        t->stack[t->depth++] = m;
    set_module(e);
}

/* With everything inside of it that did not say that it is over. */
static void leave(struct tsr_engine *e, const struct tsr_module *m)
{
    struct tsr_traced *t = e->traced;
    size_t at = t->depth;
    while (at > 0 && t->stack[at - 1] != m)
        at--;
    if (at > 0)
        t->depth = at - 1;
    set_module(e);
}

/* ---- marks ----------------------------------------------------------------------------------- */

static void pre_forward(struct tsr_engine *e, struct tsr_module *m)
{
    enter(e, m);
    if (m->hooks)
        tsr_release(e, m->hooks->pre_forward(e, m, NULL));
}

/* True if an output of the module needed a gradient. */
static bool has_backward(const struct tsr_traced_steps *list, uint32_t module)
{
    for (uint32_t i = 0; i < list->n; i++)
        if (list->steps[i].mark == TSR_TRACED_PRE_BACKWARD && list->steps[i].module == module)
            return true;
    return false;
}

static void post_forward(struct tsr_engine *e, struct tsr_module *m,
                         const struct tsr_traced_steps *list, uint32_t module)
{
    if (m->hooks && m->hooks->post_forward)
        tsr_release(e, m->hooks->post_forward(e, m, NULL));
    if (m->state && m->state->flat && has_backward(list, module))
        tsr__fsdp1_expect_backward(m->state->flat);
    leave(e, m);
}

/* Every hooked module was traced with hooks of its own. Of several modules in one call FSDP2 hooks
 * the outputs of the one that ran last and puts its node on the inputs of the one that ran first;
 * the marks of the others are not the call's. */
static void pre_backward(struct tsr_engine *e, struct tsr_module *m)
{
    enter(e, m);
    if (m->state && m->state->flat)
        tsr__fsdp1_pre_backward(e, m->state->flat);
    else if (m->state && m->state->last_run == m)
        tsr__state_pre_backward(e, m->state);
    set_module(e);
}

static void post_backward(struct tsr_engine *e, struct tsr_module *m)
{
    bool is_first = m->state && m->state->first_run == m && !m->state->flat;
    const struct tsr_state *s = is_first ? m->state : NULL;
    for (size_t i = 0; s && i < s->n_groups; i++)
        tsr__group_post_backward(e, s->groups[i], TSR_BY_POST_BACKWARD);
    if (m->state && m->state->flat)
        tsr__fsdp1_run_splits(e, m->state->flat);
    leave(e, m);
}

static void finish_backward(struct tsr_engine *e)
{
    if (e->traced->finished)
        return;
    e->traced->finished = true;
    e->traced->depth = 0;
    if (e->fsdp1)
        tsr__fsdp1_run_splits(e, NULL);
    tsr__backward_finish(e);
    set_module(e);
}

static void run_mark(struct tsr_engine *e, const struct tsr_traced_steps *list,
                     const struct tsr_traced_step *step)
{
    struct tsr_module *m = step->module == TSR_NO_ID ? NULL : e->traced->modules[step->module];
    switch (step->mark) {
    case TSR_TRACED_PRE_FORWARD:
    case TSR_TRACED_RECOMPUTE:
        pre_forward(e, m);
        break;
    case TSR_TRACED_POST_FORWARD:
        post_forward(e, m, list, step->module);
        break;
    case TSR_TRACED_PRE_BACKWARD:
        pre_backward(e, m);
        break;
    case TSR_TRACED_POST_BACKWARD:
        post_backward(e, m);
        break;
    case TSR_TRACED_FINAL:
        finish_backward(e);
        break;
    default:
        break;
    }
}

/* ---- events ---------------------------------------------------------------------------------- */

/* A segment that is played. */
struct playing {
    struct tsr_engine *e;
    struct tsr_traced *t;
    const struct tsr_traced_segment *segment;
    const struct tsr_traced_step *step;
    const struct tsr__gives *gives;
    size_t next_give; /* of this step or later */
    struct tsr__instance *running;
};

static const struct tsr__give *give_of(const struct playing *p, uint32_t n)
{
    for (size_t i = p->next_give; i < p->gives->n && p->gives->items[i].step == p->running->step;
         i++)
        if (p->gives->items[i].n == n)
            return &p->gives->items[i];
    return NULL;
}

static bool dies_here(const struct playing *p, uint32_t n)
{
    for (size_t i = 0; i < p->segment->n_events; i++) {
        const struct tsr_traced_event *ev = &p->segment->events[i];
        if (ev->kind == TSR_TRACED_FREE && ev->of == TSR_NO_ID && ev->n == n)
            return true;
    }
    return false;
}

/* A gradient that is added to another one is a temporary (operators.md, section 14). */
static enum tsr_category category_of(const struct playing *p, const struct tsr_traced_event *ev)
{
    if (ev->use == TSR_TRACED_WORKSPACE)
        return TSR_CAT_WORKSPACE;
    if (p->step->mark == TSR_TRACED_INPUTS)
        return dies_here(p, ev->n) ? TSR_CAT_ACTIVATION : TSR_CAT_INPUTS;
    if (!p->e->autograd.in_backward || ev->use == TSR_TRACED_RECOMPUTED)
        return TSR_CAT_ACTIVATION;
    const struct tsr__give *give = give_of(p, ev->n);
    if (!give || give->is_part)
        return TSR_CAT_TEMP;
    const struct tsr_tensor *leaf = p->t->params[give->param]->value;
    return leaf && leaf->grad ? TSR_CAT_TEMP : TSR_CAT_UNSHARDED_GRAD;
}

static void set_recompute(struct tsr_engine *e, bool recomputes)
{
    e->autograd.recompute_depth = recomputes;
    e->origin.recompute = recomputes;
}

/* The batch comes from memory of the host, which a loader has written. */
static void copy_batch(struct tsr_engine *e, const struct tsr_storage *s)
{
    struct tsr_storage *host = tsr__storage_empty(e, s->bytes, TSR_CAT_INPUTS, TSR_SPACE_PINNED);
    if (!host)
        return;
    struct tsr_work load = {
        .op = TSR_OP_POINTWISE, .dtype = TSR_U8, .name = "read_batch", .bytes_written = s->bytes};
    struct tsr_instr read = {.kind = TSR_HOST_OP, .comm = UINT16_MAX, .work = &load};
    tsr__operand_storage(e, host, TSR_WRITE, TSR_U8);
    tsr__emit(e, &read);
    tsr__operand_storage(e, host, TSR_READ, TSR_U8);
    tsr__operand_storage(e, s, TSR_WRITE, TSR_U8);
    tsr__emit_copy(e, TSR_U8, s->bytes, s->bytes, "h2d_input");
    tsr__storage_release(e, &host);
}

static void play_alloc(struct playing *p, const struct tsr_traced_event *ev)
{
    struct tsr_engine *e = p->e;
    if (e->autograd.in_backward && ev->use != TSR_TRACED_WORKSPACE)
        set_recompute(e, ev->use == TSR_TRACED_RECOMPUTED);
    struct tsr__slot *slot = &p->running->slots[ev->n];
    const struct tsr__give *give = e->autograd.in_backward ? give_of(p, ev->n) : NULL;
    uint32_t module = e->origin.module;
    if (give) /* whatever module's hook was the latest: a gradient is of the one with the parameter
               */
        e->origin.module = p->t->owners[give->param]->id;
    slot->storage = tsr__storage_new(e, ev->bytes, category_of(p, ev));
    e->origin.module = module;
    slot->state = TSR__SLOT_LIVE;
    p->running->n_used++;
    if (!slot->storage)
        return;
    if (p->step->mark == TSR_TRACED_INPUTS) {
        if (slot->storage->category == TSR_CAT_INPUTS)
            copy_batch(e, slot->storage);
    } else {
        (void)TSR__ARENA_PUSH(e, p->t->fresh, p->t->n_fresh, p->t->cap_fresh, slot->storage);
    }
}

static void forget_fresh(struct tsr_traced *t, const struct tsr_storage *s)
{
    for (size_t i = t->n_fresh; i-- > 0;)
        if (t->fresh[i] == s)
            t->fresh[i] = t->fresh[--t->n_fresh];
}

static void free_slot(struct playing *p, struct tsr__instance *owner, struct tsr__slot *slot)
{
    struct tsr_storage *s = slot->state == TSR__SLOT_LIVE ? slot->storage : NULL;
    tsr__slot_drop(&p->t->instances, owner, slot);
    if (!s)
        return;
    forget_fresh(p->t, s);
    tsr__storage_release(p->e, &s);
}

/* What is not there any more is said when the model is made; a batch that goes at the end goes once
 * for each micro-batch, and what else goes there only once. */
static void play_free(struct playing *p, const struct tsr_traced_event *ev)
{
    struct tsr__instance *owner;
    struct tsr__slot *slot = tsr__instance_find(&p->t->instances, p->running, ev, &owner);
    TSR_CHECK(slot || p->step->mark == TSR_TRACED_END);
    if (slot)
        free_slot(p, owner, slot);
}

/* Ends a module's _post_forward(). Its cast of the output is the first kernel of the segment behind
 * the forward; without a kernel there was no cast. */
static void end_post_forward(struct playing *p)
{
    if (p->step->mark == TSR_TRACED_POST_FORWARD)
        tsr__state_end_post_forward(p->e, p->t->modules[p->step->module]->state);
}

static void play_kernel(struct playing *p, const struct tsr_traced_event *ev)
{
    struct tsr_engine *e = p->e;
    struct tsr_traced *t = p->t;
    if (p->step->mark == TSR_TRACED_INPUTS || p->step->mark == TSR_TRACED_END)
        return;
    if (tsr__traced_reads_back(&t->works[ev->n])) {
        struct tsr_instr read = {.kind = TSR_HOST_READ, .stream = e->stream, .comm = UINT16_MAX};
        tsr__emit(e, &read);
        return;
    }
    const uint32_t *reads = p->segment->reads + ev->param;
    TSR__EACH_WRAPPER (e, w, reads)
        for (uint32_t i = 0; i < ev->n_reads; i++)
            w->ops->reads(e, w, t->owners[p->step->base + reads[i]]);
    for (uint32_t i = 0; i < ev->n_reads; i++) {
        const struct tsr_param *param = t->params[p->step->base + reads[i]];
        tsr__slot(e, 0);
        if (param->value)
            tsr__operand_tensor(e, param->value, TSR_READ);
    }
    for (size_t i = 0; i < t->n_fresh; i++) {
        tsr__slot(e, 1);
        tsr__operand_storage(e, t->fresh[i], TSR_WRITE, TSR_DTYPE_NONE);
    }
    t->n_fresh = 0;
    tsr__push_arg(e, t->model->hash);
    tsr__emit_op(e, &t->works[ev->n]);
    end_post_forward(p);
}

/* Another gradient of the segment is in the same storage. */
static bool is_given_again(const struct playing *p, size_t at)
{
    const struct tsr_traced_event *ev = &p->segment->events[at];
    for (size_t i = at + 1; i < p->segment->n_events; i++) {
        const struct tsr_traced_event *later = &p->segment->events[i];
        if (later->kind == TSR_TRACED_GRAD && later->of == ev->of && later->n == ev->n &&
            later->back == ev->back)
            return true;
    }
    return false;
}

static struct tsr_tensor *view_grad(struct tsr_engine *e, const struct tsr_param *param,
                                    struct tsr_storage *s)
{
    const struct tsr_tensor *leaf = param->value;
    if (!leaf) {
        TSR__RAISE(e, TSR_ERUNTIME, "%s is sharded where its gradient comes", param->fqn);
        return NULL;
    }
    if (tsr__tensor_bytes(leaf) > s->bytes) {
        TSR__RAISE(e, TSR_EVALUE,
                   "%s: its gradient was traced in %llu bytes and has %llu: the model was traced "
                   "with another dtype of parameters",
                   param->fqn, (unsigned long long)s->bytes,
                   (unsigned long long)tsr__tensor_bytes(leaf));
        return NULL;
    }
    return tsr__tensor_view(e, s, (tsr_dtype)leaf->dtype, leaf->n_dims, leaf->dims);
}

static void play_grad(struct playing *p, size_t at)
{
    const struct tsr_traced_event *ev = &p->segment->events[at];
    struct tsr__instance *owner;
    struct tsr__slot *slot = tsr__instance_find(&p->t->instances, p->running, ev, &owner);
    TSR_CHECK(slot && slot->storage);
    struct tsr_param *param = p->t->params[p->step->base + ev->param];
    struct tsr_tensor *grad = view_grad(p->e, param, slot->storage);
    if (!is_given_again(p, at)) { /* the gradient alone holds it from now on */
        forget_fresh(p->t, slot->storage);
        slot->state = TSR__SLOT_GIVEN;
        tsr__storage_release(p->e, &slot->storage);
    }
    bool is_view = grad && param->flat;
    if (is_view)
        tsr__fsdp1_view_grad(p->e, param, grad);
    struct tsr_node *accumulator =
        grad && !is_view ? tsr__leaf_accumulator(p->e, param->value) : NULL;
    if (accumulator)
        tsr__accumulate(p->e, accumulator, &grad, NULL);
    tsr_release(p->e, grad);
}

static void play_events(struct playing *p)
{
    for (size_t i = 0; i < p->segment->n_events && tsr__ok(p->e); i++) {
        const struct tsr_traced_event *ev = &p->segment->events[i];
        switch (ev->kind) {
        case TSR_TRACED_ALLOC:
            play_alloc(p, ev);
            break;
        case TSR_TRACED_FREE:
            play_free(p, ev);
            break;
        case TSR_TRACED_KERNEL:
            play_kernel(p, ev);
            break;
        case TSR_TRACED_GRAD:
            play_grad(p, i);
            break;
        default:
            TSR_CHECK(false);
        }
    }
}

static size_t first_give(const struct tsr__gives *g, uint32_t step)
{
    size_t low = 0, high = g->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (g->items[mid].step < step)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* ---- parts of a step ------------------------------------------------------------------------- */

/* Which of the lists: the first micro-batch of all plays the first one. */
static int which(const struct tsr_traced *t, uint32_t micro)
{
    return (int)tsr_min_u64((uint64_t)t->played + micro, t->steady);
}

static void play_segment(struct tsr_engine *e, int list, uint32_t at)
{
    struct tsr_traced *t = e->traced;
    const struct tsr_traced_step *step = &t->lists[list].steps[at];
    struct playing p = {.e = e,
                        .t = t,
                        .segment = &t->model->segments[step->segment],
                        .step = step,
                        .gives = &t->gives[list],
                        .next_give = first_give(&t->gives[list], at)};
    p.running = tsr__instance_begin(&t->instances, p.segment, at, step->mark == TSR_TRACED_INPUTS);
    if (!p.running) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
        return;
    }
    play_events(&p);
    end_post_forward(&p);
    if (tsr__ok(e))
        tsr__instance_end(&t->instances, p.running);
}

/* From a phase on, up to the mark `until`. */
static void play_phases(struct tsr_engine *e, uint32_t micro, uint8_t from, uint8_t until)
{
    int list = which(e->traced, micro);
    const struct tsr_traced_steps *steps = &e->traced->lists[list];
    uint32_t i = 0;
    while (i < steps->n && steps->steps[i].mark != from)
        i++;
    for (; i < steps->n && steps->steps[i].mark != until && tsr__ok(e); i++) {
        if (steps->steps[i].mark == TSR_TRACED_LOSS)
            tsr__set_phase(e, TSR_PHASE_LOSS, micro);
        run_mark(e, steps, &steps->steps[i]);
        if (tsr__ok(e))
            play_segment(e, list, i);
    }
}

void tsr__traced_inputs(struct tsr_engine *e, uint32_t micro)
{
    play_phases(e, micro, TSR_TRACED_INPUTS, TSR_TRACED_ZERO_GRAD);
}

void tsr__traced_forward(struct tsr_engine *e, uint32_t micro)
{
    tsr__drop_given(&e->traced->instances);
    e->traced->depth = 0;
    TSR__EACH_WRAPPER (e, w, forward_begin)
        w->ops->forward_begin(e, w);
    play_phases(e, micro, TSR_TRACED_FORWARD, TSR_TRACED_BACKWARD);
}

/* A wrapper asks which parameters the graph has (is_used() of the reducer). */
static void mark_leaves(struct tsr_engine *e, uint32_t micro)
{
    const struct tsr__gives *gives = &e->traced->gives[which(e->traced, micro)];
    e->autograd.backward_pass++;
    bool asks = false;
    TSR__EACH_WRAPPER (e, w, backward_begin)
        asks = true;
    for (size_t i = 0; i < gives->n && asks; i++) {
        struct tsr_tensor *leaf = e->traced->params[gives->items[i].param]->value;
        struct tsr_node *node = leaf ? tsr__leaf_accumulator(e, leaf) : NULL;
        if (node)
            node->mark = e->autograd.backward_pass;
    }
}

void tsr__traced_backward(struct tsr_engine *e, uint32_t micro)
{
    if (!tsr__ok(e))
        return;
    mark_leaves(e, micro);
    e->traced->depth = 0;
    e->traced->finished = false;
    tsr__backward_start(e);
    play_phases(e, micro, TSR_TRACED_BACKWARD, TSR_TRACED_OPTIMIZER);
    if (!tsr__ok(e))
        return;
    finish_backward(e);
    set_recompute(e, false);
    e->autograd.in_backward = false;
    e->traced->depth = 0;
    e->traced->n_fresh = 0;
}

void tsr__traced_end(struct tsr_engine *e, uint32_t n_micro)
{
    for (uint32_t m = 0; m < n_micro; m++)
        play_phases(e, m, TSR_TRACED_END, TSR_TRACED_N_MARKS);
    if (!tsr__ok(e))
        return;
    tsr__drop_batches(&e->traced->instances, e);
    tsr__drop_given(&e->traced->instances);
    e->traced->played = (uint32_t)which(e->traced, n_micro);
}

/* ---- the state between steps ----------------------------------------------------------------- */

void tsr__walk_traced(struct tsr_state_walk *w, const struct tsr_traced *t)
{
    tsr__walk_u64(w, t->model->hash);
    tsr__walk_u64(w, t->played);
    for (size_t c = 0; c < t->instances.n_classes; c++)
        for (struct tsr__instance *i = t->instances.latest[c]; i; i = i->older) {
            tsr__walk_u64(w, (uint64_t)c << 32 | i->n_used);
            for (uint32_t n = 0; n < i->n_slots; n++)
                if (i->slots[n].state != TSR__SLOT_DEAD) {
                    tsr__walk_u64(w, (uint64_t)n << 2 | i->slots[n].state);
                    tsr__walk_storage(w, i->slots[n].storage);
                }
        }
}
