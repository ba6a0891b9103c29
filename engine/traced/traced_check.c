/* traced_check.c: is a description of a traced model one that can be played? Its indices are in
 * range, marks come in order, and every free and gradient finds its storage when the iterations are
 * gone through as the player does: the first one, and the steady one twice. On the way it is noted
 * which allocations become gradients, so that they have their category from birth.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/traced/traced.h"

/* ---- indices --------------------------------------------------------------------------------- */

static tsr_status check_places(const struct tsr_traced_model *m, size_t at)
{
    const struct tsr_traced_module *module = &m->modules[at];
    for (size_t i = 0; i < module->n_params; i++)
        if (module->params[i].index >= m->n_params)
            return tsr_fail(TSR_EVALUE, "module %zu: parameter %u of %zu does not exist", at,
                            module->params[i].index, m->n_params);
    for (size_t i = 0; i < module->n_children; i++)
        if (module->children[i].index >= m->n_modules || module->children[i].index == 0)
            return tsr_fail(TSR_EVALUE, "module %zu: child %u of %zu modules", at,
                            module->children[i].index, m->n_modules);
    return TSR_OK;
}

/* ---- names ----------------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Checks that the parameters and children of a module have different names. */
static tsr_status check_attributes(const struct tsr_traced_model *m, size_t at)
{
    const struct tsr_traced_module *module = &m->modules[at];
    size_t n = 0;
    const char **names = calloc(module->n_params + module->n_children + 1, sizeof *names);
    if (!names)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < module->n_params; i++)
        names[n++] = module->params[i].name;
    for (size_t i = 0; i < module->n_children; i++)
        names[n++] = module->children[i].name;
    qsort(names, n, sizeof *names, by_text);
    const char *twice = NULL;
    for (size_t i = 1; i < n && !twice; i++)
        twice = strcmp(names[i - 1], names[i]) ? NULL : names[i];
    tsr_status status =
        twice ? tsr_fail(TSR_EVALUE, "module %zu: attribute %.64s is there twice", at, twice)
              : TSR_OK;
    free(names);
    return status;
}

/* Returns whether `name` is the full name of an attribute of a module: "layers.0" and "weight" make
 * "layers.0.weight". */
static bool is_below(const char *name, const char *module, const char *attribute)
{
    size_t n = strlen(module);
    if (strncmp(name, module, n) != 0 || (n && name[n++] != '.'))
        return false;
    return !strcmp(name + n, attribute);
}

/* ---- modules --------------------------------------------------------------------------------- */

enum { UNSEEN, OPEN, DONE };
enum { MOST_PATHS = 100000 };

/* `paths`: ways from a module to those below it; initialisation goes through a module with each of
 * its parents. */
struct tree {
    const struct tsr_traced_model *m;
    uint8_t *seen, *placed; /* placed: parameters */
    uint64_t *paths;
    size_t next;
};

/* Checks that each parameter is named after the first of its places. */
static tsr_status check_params(struct tree *t, size_t at)
{
    const struct tsr_traced_module *module = &t->m->modules[at];
    for (size_t i = 0; i < module->n_params; i++) {
        const struct tsr_traced_place *place = &module->params[i];
        const char *name = t->m->params[place->index].name;
        if (!t->placed[place->index] && !is_below(name, module->name, place->name))
            return tsr_fail(TSR_EVALUE,
                            "parameter %u: its name is not that of its place, %.64s of "
                            "module %zu",
                            place->index, place->name, at);
        t->placed[place->index] = 1;
    }
    return TSR_OK;
}

/* Pre-order: a module that is met for the first time has the next index. */
static tsr_status check_tree(struct tree *t, size_t at, size_t depth)
{
    const struct tsr_traced_module *module = &t->m->modules[at];
    if (depth > TSR__TRACED_NESTING)
        return tsr_fail(TSR_EVALUE, "modules nest deeper than %d", TSR__TRACED_NESTING);
    TSR_TRY(check_places(t->m, at));
    TSR_TRY(check_attributes(t->m, at));
    TSR_TRY(check_params(t, at));
    t->seen[at] = OPEN;
    t->paths[at] = 1;
    for (size_t i = 0; i < module->n_children; i++) {
        size_t child = module->children[i].index;
        if (t->seen[child] == OPEN)
            return tsr_fail(TSR_EVALUE, "module %zu is a child of its own", child);
        if (t->seen[child] == UNSEEN && child != t->next)
            return tsr_fail(TSR_EVALUE, "module %zu is met where module %zu comes in pre-order",
                            child, t->next);
        if (t->seen[child] == UNSEEN) {
            if (!is_below(t->m->modules[child].name, module->name, module->children[i].name))
                return tsr_fail(
                    TSR_EVALUE,
                    "module %zu: its name is not that of its place, %.64s of module %zu", child,
                    module->children[i].name, at);
            t->next++;
            TSR_TRY(check_tree(t, child, depth + 1));
        }
        t->paths[at] += t->paths[child];
        if (t->paths[at] > MOST_PATHS)
            return tsr_fail(TSR_EVALUE, "modules are shared in more than %d ways", MOST_PATHS);
    }
    t->seen[at] = DONE;
    return TSR_OK;
}

static tsr_status check_modules(const struct tsr_traced_model *m)
{
    struct tree t = {.m = m, .next = 1};
    t.seen = calloc(m->n_modules + 1, 1);
    t.placed = calloc(m->n_params + 1, 1);
    t.paths = calloc(m->n_modules + 1, sizeof *t.paths);
    tsr_status status = !t.seen || !t.placed || !t.paths ? tsr_no_memory(NULL)
                        : m->n_modules == 0 ? tsr_fail(TSR_EVALUE, "there is no module")
                        : *m->modules[0].name
                            ? tsr_fail(TSR_EVALUE, "module 0 has a name, which the root has not")
                            : check_tree(&t, 0, 0);
    free(t.seen);
    free(t.placed);
    free(t.paths);
    if (status == TSR_OK && t.next != m->n_modules)
        return tsr_fail(TSR_EVALUE, "module %zu has no parent", t.next);
    return status;
}

static bool same_allocations(const struct tsr_traced_segment *a, const struct tsr_traced_segment *b)
{
    size_t i = 0, k = 0;
    if (a->n_storages != b->n_storages)
        return false;
    for (uint32_t n = 0; n < a->n_storages; n++, i++, k++) {
        while (a->events[i].kind != TSR_TRACED_ALLOC)
            i++;
        while (b->events[k].kind != TSR_TRACED_ALLOC)
            k++;
        if (a->events[i].bytes != b->events[k].bytes || a->events[i].use != b->events[k].use)
            return false;
    }
    return true;
}

static tsr_status check_event(const struct tsr_traced_model *m, size_t segment, size_t at,
                              uint32_t allocated)
{
    const struct tsr_traced_event *ev = &m->segments[segment].events[at];
    bool own = ev->of == TSR_NO_ID;
    if (ev->kind == TSR_TRACED_ALLOC && ev->n == allocated && ev->bytes > 0)
        return TSR_OK;
    if (ev->kind == TSR_TRACED_KERNEL && ev->n < m->n_ops)
        return TSR_OK;
    bool refers = ev->kind == TSR_TRACED_FREE || ev->kind == TSR_TRACED_GRAD;
    bool found = own                      ? ev->n < allocated
                 : ev->of < m->n_segments ? m->segments[ev->of].class_of == ev->of &&
                                                ev->n < m->segments[ev->of].n_storages
                                          : false;
    if (refers && found)
        return TSR_OK;
    return tsr_fail(TSR_EVALUE, "segment %zu, event %zu: names what is not there", segment, at);
}

static bool is_repeated(const struct tsr_traced_segment *s, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (s->events[i].kind == TSR_TRACED_GRAD && s->events[i].param == s->events[at].param)
            return true;
    return false;
}

static tsr_status check_segment(const struct tsr_traced_model *m, size_t at)
{
    const struct tsr_traced_segment *s = &m->segments[at];
    uint32_t allocated = 0;
    for (size_t i = 0; i < s->n_events; i++) {
        TSR_TRY(check_event(m, at, i, allocated));
        if (s->events[i].kind == TSR_TRACED_GRAD && is_repeated(s, i))
            return tsr_fail(TSR_EVALUE, "segment %zu, event %zu: a gradient that was complete", at,
                            i);
        allocated += s->events[i].kind == TSR_TRACED_ALLOC;
    }
    if (allocated != s->n_storages || s->class_of > at ||
        !same_allocations(s, &m->segments[s->class_of]))
        return tsr_fail(TSR_EVALUE, "segment %zu: class %u has other allocations", at, s->class_of);
    return TSR_OK;
}

/* ---- marks ----------------------------------------------------------------------------------- */

struct marks {
    const struct tsr_traced_model *m;
    int phase;
    uint32_t stack[TSR__TRACED_NESTING];
    size_t depth;
};

static tsr_status wrong_mark(size_t at, const char *why)
{
    return tsr_fail(TSR_EVALUE, "step %zu: %s", at, why);
}

static bool needs_backward(uint8_t mark)
{
    return mark == TSR_TRACED_RECOMPUTE || mark == TSR_TRACED_PRE_BACKWARD ||
           mark == TSR_TRACED_POST_BACKWARD || mark == TSR_TRACED_FINAL;
}

static tsr_status check_mark(struct marks *k, size_t at, const struct tsr_traced_step *s)
{
    bool is_phase = s->mark <= TSR_TRACED_END;
    bool of_module = s->mark >= TSR_TRACED_PRE_FORWARD && s->mark != TSR_TRACED_FINAL;
    if (s->mark >= TSR_TRACED_N_MARKS || s->segment >= k->m->n_segments)
        return wrong_mark(at, "names what is not there");
    if (of_module ? s->module >= k->m->n_modules || !k->m->hooked[s->module]
                  : s->module != TSR_NO_ID)
        return wrong_mark(at, "a mark of a module without hooks");
    if (is_phase && (s->mark != k->phase + 1 || k->depth > 0))
        return wrong_mark(at, "phases that do not follow each other");
    if (is_phase)
        k->phase = s->mark;
    bool backward = k->phase == TSR_TRACED_BACKWARD;
    bool runs = backward || k->phase == TSR_TRACED_FORWARD || k->phase == TSR_TRACED_LOSS;
    if ((!is_phase && !runs) || (needs_backward(s->mark) && !backward))
        return wrong_mark(at, "a mark of another phase");
    if (s->mark == TSR_TRACED_PRE_FORWARD || s->mark == TSR_TRACED_RECOMPUTE) {
        if (k->depth == TSR__TRACED_NESTING)
            return wrong_mark(at, "calls nest too deep");
        k->stack[k->depth++] = s->module;
    }
    if (s->mark == TSR_TRACED_POST_FORWARD && (k->depth == 0 || k->stack[--k->depth] != s->module))
        return wrong_mark(at, "the end of a call that does not run");
    return TSR_OK;
}

static tsr_status check_marks(const struct tsr_traced_model *m, const struct tsr_traced_steps *list)
{
    struct marks k = {.m = m, .phase = -1};
    for (size_t i = 0; i < list->n; i++)
        TSR_TRY(check_mark(&k, i, &list->steps[i]));
    return k.phase == TSR_TRACED_END ? TSR_OK : wrong_mark(list->n, "phases are missing");
}

/* ---- going through --------------------------------------------------------------------------- */

struct walker {
    const struct tsr_traced_model *m;
    const struct tsr_traced_steps *list;
    struct tsr_arena *arena;
    struct tsr__instances instances;
    struct tsr__gives *gives; /* NULL: not asked for */
    struct tsr__sums sums;    /* of the list; empty where no gives are asked for */
};

static tsr_status lost(const struct walker *w, uint32_t step, size_t event, const char *what)
{
    return tsr_fail(TSR_EVALUE, "step %u (segment %u), event %zu: %s", step,
                    w->list->steps[step].segment, event, what);
}

/* Notes an event that was checked, before what it frees is gone. */
static tsr_status note(struct walker *w, struct tsr__instance *running, size_t at,
                       struct tsr__instance *owner)
{
    return w->gives ? tsr__sums_event(&w->sums, w->m, w->list, running, at, owner) : TSR_OK;
}

static tsr_status give(struct walker *w, uint32_t step, size_t at,
                       const struct tsr_traced_segment *s, struct tsr__instance *running)
{
    const struct tsr_traced_event *ev = &s->events[at];
    uint64_t param = (uint64_t)w->list->steps[step].base + ev->param;
    if (param >= w->m->n_params || !w->m->params[param].trainable)
        return lost(w, step, at, "a gradient of a parameter that has none");
    struct tsr__instance *owner;
    struct tsr__slot *slot = tsr__instance_find(&w->instances, running, ev, &owner);
    if (!slot || (slot->state == TSR__SLOT_GIVEN && owner != running && ev->of != TSR_NO_ID))
        return lost(w, step, at, "a gradient in a storage that is gone");
    slot->state = TSR__SLOT_GIVEN;
    /* of an earlier iteration: its category is settled */
    struct tsr__give made = {owner->step, ev->n, (uint32_t)param, false};
    if (w->gives && !tsr__gives_push(w->gives, w->arena, made))
        return tsr_no_memory(NULL);
    return note(w, running, at, owner);
}

static tsr_status go_through_segment(struct walker *w, uint32_t step, bool is_end)
{
    const struct tsr_traced_segment *s = &w->m->segments[w->list->steps[step].segment];
    struct tsr__instance *owner,
        *running = tsr__instance_begin(&w->instances, s, step,
                                       w->list->steps[step].mark == TSR_TRACED_INPUTS);
    if (!running)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < s->n_events; i++) {
        const struct tsr_traced_event *ev = &s->events[i];
        struct tsr__slot *slot;
        uint64_t base = w->list->steps[step].base;
        switch (ev->kind) {
        case TSR_TRACED_ALLOC:
            running->slots[ev->n].state = TSR__SLOT_LIVE;
            running->n_used++;
            TSR_TRY(note(w, running, i, running));
            break;
        case TSR_TRACED_FREE:
            slot = tsr__instance_find(&w->instances, running, ev, &owner);
            if (!slot)
                return lost(w, step, i, "a free of a storage that is gone");
            TSR_TRY(note(w, running, i, owner));
            tsr__slot_drop(&w->instances, owner, slot);
            break;
        case TSR_TRACED_GRAD:
            if (is_end)
                return lost(w, step, i, "a gradient outside of backward");
            TSR_TRY(give(w, step, i, s, running));
            break;
        default:
            for (uint32_t k = 0; k < ev->n_reads; k++)
                if (base + s->reads[ev->param + k] >= w->m->n_params)
                    return lost(w, step, i, "a parameter that does not exist");
            TSR_TRY(note(w, running, i, NULL));
            break;
        }
    }
    tsr__instance_end(&w->instances, running);
    return TSR_OK;
}

static tsr_status go_through(struct walker *w)
{
    for (uint32_t i = 0; i < w->list->n; i++) {
        uint8_t mark = w->list->steps[i].mark;
        if (mark == TSR_TRACED_FORWARD)
            tsr__drop_given(&w->instances);
        if (mark == TSR_TRACED_ZERO_GRAD || mark == TSR_TRACED_OPTIMIZER)
            continue;
        TSR_TRY(go_through_segment(w, i, mark == TSR_TRACED_END || mark == TSR_TRACED_INPUTS));
    }
    tsr__drop_batches(&w->instances, NULL);
    return TSR_OK;
}

/* One pass over a list; what becomes of its storages, in w->gives. */
static tsr_status go_through_list(struct walker *w)
{
    tsr_status status = go_through(w);
    if (status == TSR_OK && w->gives) {
        tsr__gives_sort(w->gives);
        status = tsr__sums_give(&w->sums, w->arena, w->gives);
    }
    tsr__sums_fini(&w->sums);
    return status;
}

tsr_status tsr__traced_resolve(const struct tsr_traced_model *m,
                               const struct tsr_traced_steps lists[TSR_TRACED_LISTS],
                               struct tsr_arena *arena, struct tsr__gives gives[TSR_TRACED_LISTS])
{
    struct walker w = {.m = m, .arena = arena};
    if (!tsr__instances_init(&w.instances, arena, m->n_segments))
        return tsr_no_memory(NULL);
    /* the last list twice, since what it leaves must be what it needs */
    for (int i = 0; i <= TSR_TRACED_LISTS; i++) {
        int k = i < TSR_TRACED_LISTS ? i : TSR_TRACED_LISTS - 1;
        w.list = &lists[k == 2 && !lists[2].n ? 1 : k];
        w.gives = gives && i < TSR_TRACED_LISTS ? &gives[k] : NULL;
        if (i < TSR_TRACED_LISTS)
            TSR_TRY(check_marks(m, w.list));
        TSR_TRY(go_through_list(&w));
    }
    return TSR_OK;
}

static tsr_status check_all(const struct tsr_traced_model *m, struct tsr_arena *arena)
{
    TSR_TRY(check_modules(m));
    for (size_t i = 0; i < m->n_segments; i++)
        TSR_TRY(check_segment(m, i));
    TSR_TRY(tsr__traced_resolve(m, m->plain, arena, NULL));
    if (m->instrumented[0].n)
        TSR_TRY(tsr__traced_resolve(m, m->instrumented, arena, NULL));
    return TSR_OK;
}

tsr_status tsr_traced_check(const struct tsr_traced_model *model)
{
    struct tsr_arena arena;
    tsr_arena_init(&arena);
    tsr_status status = check_all(model, &arena);
    tsr_arena_fini(&arena);
    return status;
}
