/* runs.c: finds what repeats in a list of calls, and writes it as loops (runs.h). */
#include "experiments/study/code/runs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A name around one number in it: "model.layers" 3 "mlp" of "model.layers.3.mlp". */
struct place {
    size_t list; /* length of what stands before the number's dot */
    uint64_t index;
    const char *rest; /* behind the number: "" or ".mlp" */
};

/* The first or the last number of a name that is a component of its own; false: it has none. */
static bool find_place(const char *fqn, bool last, struct place *out)
{
    bool found = false;
    for (const char *at = fqn; *at;) {
        size_t n = strcspn(at, ".");
        if (at > fqn && n < 10 && strspn(at, "0123456789") >= n && !(found && !last)) {
            *out = (struct place){(size_t)(at - fqn) - 1, strtoull(at, NULL, 10), at + n};
            found = true;
        }
        at += n + (at[n] == '.');
    }
    return found;
}

/* Is the name one of child `index` of the list? *rest: what follows. */
static bool is_of(const char *fqn, const char *list, uint64_t index, const char **rest)
{
    size_t n = strlen(list);
    char *end;
    if (strncmp(fqn, list, n) != 0 || fqn[n] != '.' || fqn[n + 1] < '0' || fqn[n + 1] > '9')
        return false;
    uint64_t found = strtoull(fqn + n + 1, &end, 10);
    *rest = end;
    return found == index && (*end == '\0' || *end == '.');
}

static bool call_is_of(const struct tsr_code_call *call, const char *list, uint64_t index)
{
    const char *rest;
    for (size_t i = 0; i < call->modules.n; i++)
        if (!is_of(tsr_module_fqn(call->modules.items[i]), list, index, &rest))
            return false;
    return call->modules.n > 0;
}

/* The same call on another child. */
static bool is_same_on(const struct tsr_code_call *a, uint64_t of_a, const struct tsr_code_call *b,
                       uint64_t of_b, const char *list)
{
    const char *rest_a = "", *rest_b = "";
    if (a->modules.n != b->modules.n || strcmp(a->more, b->more) != 0)
        return false;
    for (size_t i = 0; i < a->modules.n; i++)
        if (!is_of(tsr_module_fqn(a->modules.items[i]), list, of_a, &rest_a) ||
            !is_of(tsr_module_fqn(b->modules.items[i]), list, of_b, &rest_b) ||
            strcmp(rest_a, rest_b) != 0)
            return false;
    return true;
}

static bool repeats_at(const struct tsr_code_run *run, const struct tsr_code_call *calls, size_t n,
                       size_t at, uint64_t index)
{
    for (size_t k = 0; k < run->body; k++)
        if (at + k >= n ||
            !is_same_on(&calls[run->begin + k], run->first, &calls[at + k], index, run->list))
            return false;
    return true;
}

/* How far the child goes on whose call begins at `at`: the index of the next one in the list. */
static bool next_index(const struct tsr_code_run *run, const struct tsr_code_call *calls, size_t n,
                       size_t at, bool last, uint64_t *out)
{
    struct place place;
    if (at >= n || !calls[at].modules.n)
        return false;
    const char *fqn = tsr_module_fqn(calls[at].modules.items[0]);
    if (!find_place(fqn, last, &place) || place.list != strlen(run->list) ||
        strncmp(fqn, run->list, place.list) != 0)
        return false;
    *out = place.index;
    return true;
}

static bool grow(struct tsr_code_run *run, struct tsr_engine *engine,
                 const struct tsr_code_call *calls, size_t n, bool last)
{
    struct place place;
    uint64_t index;
    const char *fqn = tsr_module_fqn(calls[run->begin].modules.items[0]);
    if (!find_place(fqn, last, &place) || place.list >= sizeof run->list)
        return false;
    memcpy(run->list, fqn, place.list);
    run->list[place.list] = '\0';
    run->first = place.index;
    run->body = 0;
    while (run->begin + run->body < n &&
           call_is_of(&calls[run->begin + run->body], run->list, run->first))
        run->body++;
    size_t at = run->begin + run->body;
    if (!run->body || !next_index(run, calls, n, at, last, &index) || index <= run->first)
        return false;
    run->step = index - run->first;
    run->repeats = 1;
    while (repeats_at(run, calls, n, at, run->first + run->repeats * run->step)) {
        at += run->body;
        run->repeats++;
    }
    const struct tsr_module *list = tsr_module_find(engine, run->list);
    run->children = list ? tsr_module_n_children(list) : 0;
    run->whole = list && run->first == 0 && run->step == 1 && run->repeats == run->children;
    return run->repeats > 1;
}

struct tsr_code_run tsr_code_run_at(struct tsr_engine *engine, const struct tsr_code_call *calls,
                                    size_t n, size_t i)
{
    struct tsr_code_run run = {.begin = i};
    if (calls[i].modules.n &&
        (grow(&run, engine, calls, n, false) || grow(&run, engine, calls, n, true)))
        return run;
    return (struct tsr_code_run){.begin = i, .body = 1, .repeats = 1};
}

/* ---- writing --------------------------------------------------------------------------------- */

static void add_module(struct tsr_code_text *to, const struct tsr_code_run *run,
                       const struct tsr_module *module)
{
    const char *fqn = tsr_module_fqn(module), *rest;
    if (run && run->repeats > 1 && is_of(fqn, run->list, run->first, &rest))
        tsr_code_add_module(to, "block", rest + (*rest == '.'));
    else
        tsr_code_add_module(to, "model", fqn);
}

void tsr_code_add_modules(struct tsr_code_text *to, const struct tsr_code_run *run,
                          const struct tsr_code_call *call)
{
    bool several = call->modules.n != 1;
    tsr_code_add(to, "%s", several ? "[" : "");
    for (size_t i = 0; i < call->modules.n; i++) {
        tsr_code_add(to, "%s", i ? ", " : "");
        add_module(to, run, call->modules.items[i]);
    }
    tsr_code_add(to, "%s", several ? "]" : "");
}

uint64_t tsr_code_range_end(uint64_t last, uint64_t step, uint64_t children)
{
    return children > last && children <= last + step ? children : last + 1;
}

/* "range(1, 32, 2)" */
static void add_range(struct tsr_code_text *to, const struct tsr_code_run *run)
{
    uint64_t end =
        tsr_code_range_end(run->first + (run->repeats - 1) * run->step, run->step, run->children);
    tsr_code_add(to, "range(");
    if (run->first || run->step > 1)
        tsr_code_add(to, "%" PRIu64 ", ", run->first);
    tsr_code_add(to, "%" PRIu64, end);
    if (run->step > 1)
        tsr_code_add(to, ", %" PRIu64, run->step);
    tsr_code_add(to, ")");
}

/* "block in model.layers.children()", or of some of them. */
static void add_blocks(struct tsr_code_text *to, const struct tsr_code_run *run)
{
    tsr_code_add(to, "block in ");
    if (run->whole) {
        tsr_code_add_module(to, "model", run->list);
        tsr_code_add(to, ".children()");
        return;
    }
    tsr_code_add(to, "[");
    tsr_code_add_module(to, "model", run->list);
    tsr_code_add(to, ".get_submodule(str(i)) for i in ");
    add_range(to, run);
    tsr_code_add(to, "]");
}

void tsr_code_calls(struct tsr_code_text *to, int indent, struct tsr_engine *engine,
                    const char *name, const struct tsr_code_call *calls, size_t n)
{
    for (size_t i = 0; i < n;) {
        struct tsr_code_run run = tsr_code_run_at(engine, calls, n, i);
        bool loops = run.repeats > 1;
        struct tsr_code_text head = {.s = NULL};
        if (loops) {
            add_blocks(&head, &run);
            tsr_code_statement(to, indent, "for %s:", tsr_code_str(&head));
        }
        for (size_t k = 0; k < run.body; k++) {
            struct tsr_code_text modules = {.s = NULL};
            tsr_code_add_modules(&modules, &run, &calls[i + k]);
            tsr_code_statement(to, indent + (loops ? 4 : 0), "%s(%s%s)", name,
                               tsr_code_str(&modules), calls[i + k].more);
            to->failed |= modules.failed;
            tsr_code_text_fini(&modules);
        }
        to->failed |= head.failed;
        tsr_code_text_fini(&head);
        i += run.body * run.repeats;
    }
}

/* "*model.layers.children()"; with several calls each "*(m for block in ... for m in (...))". */
static void add_run(struct tsr_code_text *to, const struct tsr_code_run *run,
                    const struct tsr_code_call *calls)
{
    const char *rest;
    bool plain =
        run->body == 1 && run->whole &&
        is_of(tsr_module_fqn(calls[run->begin].modules.items[0]), run->list, run->first, &rest) &&
        !*rest;
    if (plain) {
        tsr_code_add(to, "*");
        tsr_code_add_module(to, "model", run->list);
        tsr_code_add(to, ".children()");
        return;
    }
    bool several = run->body > 1;
    tsr_code_add(to, several ? "*(unit for " : "*(");
    if (!several) {
        add_module(to, run, calls[run->begin].modules.items[0]);
        tsr_code_add(to, " for ");
    }
    add_blocks(to, run);
    for (size_t k = 0; k < run->body && several; k++) {
        tsr_code_add(to, k ? ", " : " for unit in (");
        add_module(to, run, calls[run->begin + k].modules.items[0]);
    }
    tsr_code_add(to, several ? "))" : ")");
}

void tsr_code_add_list(struct tsr_code_text *to, struct tsr_engine *engine,
                       const struct tsr_code_call *calls, size_t n)
{
    tsr_code_add(to, "[");
    for (size_t i = 0; i < n;) {
        struct tsr_code_run run = tsr_code_run_at(engine, calls, n, i);
        tsr_code_add(to, "%s", i ? ", " : "");
        if (run.repeats > 1)
            add_run(to, &run, calls);
        else
            add_module(to, NULL, calls[i].modules.items[0]);
        i += run.body * run.repeats;
    }
    tsr_code_add(to, "]");
}
