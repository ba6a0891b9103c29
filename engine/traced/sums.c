/* sums.c: finds the storages that are added up to a gradient: autograd sums the gradients of a
 * parameter that several modules use before it is complete.
 *
 * A sum is a kernel "add" of two tensors of equal shape. Its parts are the storages of the result's
 * size that are freed directly behind it. The result is the storage that was allocated directly
 * before it; else one of the two, and the sum belongs to the next gradient of that shape which its
 * segment completes.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/traced/traced.h"

static bool has_shape(const struct tsr_traced_op *op, int n_dims, const uint64_t *dims)
{
    const struct tsr_traced_shape *shape = &op->shapes[0];
    return shape->n_dims == n_dims && !memcmp(shape->dims, dims, (size_t)n_dims * sizeof *dims);
}

static bool is_sum(const struct tsr_traced_op *op)
{
    bool adds = !strcmp(op->name, "aten.add.Tensor") || !strcmp(op->name, "aten.add_.Tensor");
    return adds && op->n_shapes == 2 && has_shape(op, op->shapes[1].n_dims, op->shapes[1].dims);
}

static tsr_status begin_sum(struct tsr__sums *sums, const struct tsr_traced_model *m,
                            const struct tsr_traced_segment *s, struct tsr__instance *running,
                            size_t at)
{
    const struct tsr_traced_event *before = at ? &s->events[at - 1] : NULL;
    struct tsr__sum sum = {.op = &m->ops[s->events[at].n],
                           .step = running->step,
                           .result = TSR_NO_ID,
                           .param = TSR_NO_ID,
                           .into = TSR_NO_ID};
    sums->open = is_sum(sum.op);
    if (!sums->open)
        return TSR_OK;
    if (before && before->kind == TSR_TRACED_ALLOC) {
        sum.result_step = running->step;
        sum.result = before->n;
        sum.bytes = before->bytes;
        running->slots[before->n].sum = (uint32_t)sums->n + 1;
    }
    return TSR_PUSH(sums->items, sums->n, sums->cap, sum) ? TSR_OK : tsr_no_memory(NULL);
}

/* The sum that a storage is the result of, or NULL. Storages that live from one list to the next
 * have the numbers of the former's sums. */
static struct tsr__sum *made_by(const struct tsr__sums *sums, const struct tsr__instance *owner,
                                uint32_t n)
{
    uint32_t at = owner->slots[n].sum - 1;
    struct tsr__sum *sum = at < sums->n ? &sums->items[at] : NULL;
    return sum && sum->result == n && sum->result_step == owner->step ? sum : NULL;
}

static void add_part(struct tsr__sums *sums, struct tsr__instance *owner, uint32_t n)
{
    struct tsr__sum *sum = &sums->items[sums->n - 1];
    uint64_t bytes = owner->slots[n].bytes;
    if (!sum->bytes)
        sum->bytes = bytes;
    if (bytes != sum->bytes || sum->n_parts == 2)
        return;
    sum->parts[sum->n_parts].step = owner->step;
    sum->parts[sum->n_parts++].n = n;
    struct tsr__sum *from = made_by(sums, owner, n);
    if (from)
        from->into = (uint32_t)sums->n - 1;
}

/* A gradient is complete: sums of this segment that were in place may have been its own. */
static void complete(struct tsr__sums *sums, const struct tsr_traced_model *m, uint32_t step,
                     uint32_t param, uint64_t bytes)
{
    const struct tsr_traced_param *p = &m->params[param];
    for (size_t i = sums->n; i-- > 0 && sums->items[i].step == step;) {
        struct tsr__sum *sum = &sums->items[i];
        if (sum->result == TSR_NO_ID && sum->param == TSR_NO_ID && sum->bytes == bytes &&
            has_shape(sum->op, p->n_dims, p->shape))
            sum->param = param;
    }
}

tsr_status tsr__sums_event(struct tsr__sums *sums, const struct tsr_traced_model *m,
                           const struct tsr_traced_steps *list, struct tsr__instance *running,
                           size_t at, struct tsr__instance *owner)
{
    const struct tsr_traced_step *step = &list->steps[running->step];
    const struct tsr_traced_segment *s = &m->segments[step->segment];
    const struct tsr_traced_event *ev = &s->events[at];
    switch (ev->kind) {
    case TSR_TRACED_KERNEL:
        return begin_sum(sums, m, s, running, at);
    case TSR_TRACED_FREE:
        if (sums->open)
            add_part(sums, owner, ev->n);
        return TSR_OK;
    case TSR_TRACED_GRAD:
        complete(sums, m, running->step, step->base + ev->param, owner->slots[ev->n].bytes);
        return TSR_OK;
    default:
        running->slots[ev->n].sum = 0;
        running->slots[ev->n].bytes = ev->bytes;
        sums->open = false;
        return TSR_OK;
    }
}

/* ---- what is given --------------------------------------------------------------------------- */

static int by_step(const void *a, const void *b)
{
    const struct tsr__give *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return (x->n > y->n) - (x->n < y->n);
}

void tsr__gives_sort(struct tsr__gives *gives)
{
    if (gives->n)
        qsort(gives->items, gives->n, sizeof *gives->items, by_step);
}

bool tsr__gives_push(struct tsr__gives *g, struct tsr_arena *arena, struct tsr__give give)
{
    if (g->n == g->cap) {
        size_t cap = g->cap ? 2 * g->cap : 64;
        struct tsr__give *items = tsr_arena_alloc(arena, cap * sizeof *items);
        if (!items)
            return false;
        if (g->n)
            memcpy(items, g->items, g->n * sizeof *items);
        g->items = items;
        g->cap = cap;
    }
    g->items[g->n++] = give;
    return true;
}

/* Among the first n, which are sorted. */
static const struct tsr__give *find(const struct tsr__gives *gives, size_t n, uint32_t step,
                                    uint32_t storage)
{
    const struct tsr__give key = {.step = step, .n = storage};
    return n ? bsearch(&key, gives->items, n, sizeof *gives->items, by_step) : NULL;
}

/* A sum is of the gradient that its result becomes, or that the sum is of which takes it in; that
 * one comes later. */
static tsr_status give_parts(struct tsr__sums *sums, size_t at, size_t n, struct tsr_arena *arena,
                             struct tsr__gives *gives)
{
    struct tsr__sum *sum = &sums->items[at];
    const struct tsr__give *result =
        sum->result == TSR_NO_ID ? NULL : find(gives, n, sum->result_step, sum->result);
    if (result)
        sum->param = result->param;
    else if (sum->into != TSR_NO_ID)
        sum->param = sums->items[sum->into].param;
    if (sum->param == TSR_NO_ID)
        return TSR_OK;
    for (uint32_t i = 0; i < sum->n_parts; i++) {
        struct tsr__give part = {sum->parts[i].step, sum->parts[i].n, sum->param, true};
        if (!find(gives, n, part.step, part.n) && !tsr__gives_push(gives, arena, part))
            return tsr_no_memory(NULL);
    }
    return TSR_OK;
}

tsr_status tsr__sums_give(struct tsr__sums *sums, struct tsr_arena *arena, struct tsr__gives *gives)
{
    size_t n = gives->n;
    for (size_t i = sums->n; i-- > 0;)
        TSR_TRY(give_parts(sums, i, n, arena, gives));
    tsr__gives_sort(gives);
    return TSR_OK;
}

void tsr__sums_fini(struct tsr__sums *sums)
{
    free(sums->items);
    *sums = (struct tsr__sums){0};
}
