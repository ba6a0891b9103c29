/* what_if_sets.c: single what-ifs, then pairs and triples of those that save, and the best of each.
 *
 * The best is the one with the lowest allocated peak, then the lowest reserved one. A second best
 * is kept among those that change neither numbers nor hardware.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/exit_status.h"
#include "experiments/study/explain/what_if.h"
#include "experiments/study/job/job.h"

/* Bounds of the pairs and triples that are emitted; MAX_WORK counts micro-batches, in units of
 * those that the strategy has, since an emission takes as long as it has micro-batches. */
enum { MAX_COMBINED = 600, MAX_TRIPLES = 600, MAX_WORK = 400 };

/* Indices of what-ifs, rising. */
struct combination {
    size_t n;
    uint32_t of[TSR_MAX_SETS_OF];
    struct tsr_variant variant;
    struct tsr_what_if_result result;
};

struct study {
    struct tsr_experiment *experiment;
    const struct tsr_job *job;
    uint64_t jobs;
    bool simulate;
    struct tsr_what_if *what; /* [n] */
    size_t n, n_useful, n_emitted;
    uint32_t useful[TSR_MAX_WHAT_IFS];
    struct tsr_arena *arena;     /* texts of the rows */
    struct combination *singles; /* [n + 1]; the last one changes nothing: the base */
};

/* ---- combinations ---------------------------------------------------------------------------- */

static bool combine(const struct study *study, const uint32_t *of, size_t n,
                    struct combination *out)
{
    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < n; i++) {
        const struct tsr_what_if *what = &study->what[of[i]];
        for (size_t k = 0; k < i; k++)
            if (of[k] == of[i] || study->what[of[k]].dimension == what->dimension)
                return false;
        if (out->variant.n + what->variant.n > TSR_MAX_CHANGES)
            return false;
        for (size_t k = 0; k < what->variant.n; k++)
            out->variant.set[out->variant.n++] = what->variant.set[k];
        out->of[out->n++] = of[i];
    }
    return true;
}

/* Emits them, or with `simulate` simulates them. */
static tsr_status run(struct study *study, struct combination *items, size_t n, bool simulate)
{
    const struct tsr_variant **variants = calloc(n + 1, sizeof(const struct tsr_variant *));
    struct tsr_what_if_result *results = calloc(n + 1, sizeof *results);
    tsr_status status = variants && results ? TSR_OK : tsr_no_memory(NULL);
    for (size_t i = 0; i < n && status == TSR_OK; i++)
        variants[i] = &items[i].variant;
    if (status == TSR_OK)
        status = tsr_what_if_run(study->experiment, study->job->strategy, variants, n, study->jobs,
                                 simulate, results);
    for (size_t i = 0; i < n && status == TSR_OK; i++)
        items[i].result = results[i];
    study->n_emitted += n;
    free(variants);
    free(results);
    return status;
}

static bool better(const struct combination *a, const struct combination *b)
{
    if (a->result.status || b->result.status)
        return !a->result.status && b->result.status;
    if (a->result.allocated != b->result.allocated)
        return a->result.allocated < b->result.allocated;
    return a->result.reserved < b->result.reserved;
}

static bool keeps_training(const struct study *study, const struct combination *c)
{
    for (size_t i = 0; i < c->n; i++)
        if (study->what[c->of[i]].effect != TSR_EFFECT_NONE)
            return false;
    return true;
}

/* ---- as rows --------------------------------------------------------------------------------- */

static enum tsr_what_if_effect effect_of(const struct study *study, const struct combination *c)
{
    enum tsr_what_if_effect effect = TSR_EFFECT_NONE;
    for (size_t i = 0; i < c->n; i++)
        if (study->what[c->of[i]].effect > effect)
            effect = study->what[c->of[i]].effect;
    return effect;
}

static unsigned needs_of(const struct study *study, const struct combination *c)
{
    unsigned needs = 0;
    for (size_t i = 0; i < c->n; i++)
        needs |= study->what[c->of[i]].needs;
    return needs;
}

static tsr_status row_of(const struct study *study, const struct combination *c, bool is_set,
                         struct tsr_what_if_row *out)
{
    const struct tsr_what_if_result *r = &c->result, *base = &study->singles[study->n].result;
    *out = (struct tsr_what_if_row){.effect = effect_of(study, c),
                                    .needs = needs_of(study, c),
                                    .already_set = is_set,
                                    .failed = r->status != 0,
                                    .out_of_memory = r->status == TSR_EXIT_UNFIT,
                                    .allocated = r->allocated,
                                    .reserved = r->reserved,
                                    .needed = r->needed,
                                    .host = r->host,
                                    .pinned = r->pinned,
                                    .node_host = r->node_host,
                                    .host_verdict = r->host_verdict,
                                    .fits = r->fits,
                                    .saves_allocated = (int64_t)(base->allocated - r->allocated),
                                    .saves_reserved = (int64_t)(base->reserved - r->reserved),
                                    .tokens = r->tokens_per_rank,
                                    .step_s = r->step_s};
    out->failure = tsr_arena_strdup(study->arena, r->failure);
    if (!out->failure)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < c->variant.n; i++) {
        const char *set =
            tsr_arena_printf(study->arena, "%s=%s", c->variant.set[i].key, c->variant.set[i].value);
        if (!set)
            return tsr_no_memory(NULL);
        out->sets[out->n_sets++] = set;
    }
    return TSR_OK;
}

static tsr_status best_of(const struct study *study, const struct combination *items, size_t n,
                          bool training, bool *has, struct tsr_what_if_row *out)
{
    const struct combination *best = NULL;
    for (size_t i = 0; i < n; i++) {
        if (items[i].result.status || (training && !keeps_training(study, &items[i])))
            continue;
        if (!best || better(&items[i], best))
            best = &items[i];
    }
    *has = best != NULL;
    return best ? row_of(study, best, false, out) : TSR_OK;
}

static tsr_status sets_of(const struct study *study, const struct combination *items, size_t n,
                          size_t possible, struct tsr_what_if_sets *out)
{
    *out = (struct tsr_what_if_sets){.possible = possible, .emitted = n};
    TSR_TRY(best_of(study, items, n, false, &out->has_best, &out->best));
    return best_of(study, items, n, true, &out->has_same, &out->same);
}

/* ---- singles --------------------------------------------------------------------------------- */

static int by_saving(const void *a, const void *b)
{
    const struct combination *x = *(const struct combination *const *)a;
    const struct combination *y = *(const struct combination *const *)b;
    if (better(x, y) != better(y, x))
        return better(x, y) ? -1 : 1;
    return (x > y) - (x < y);
}

static void find_useful(struct study *study)
{
    const struct tsr_what_if_result *base = &study->singles[study->n].result;
    for (uint32_t i = 0; i < study->n; i++) {
        const struct tsr_what_if_result *r = &study->singles[i].result;
        bool saves = r->allocated < base->allocated ||
                     (r->allocated == base->allocated && r->reserved < base->reserved);
        if (!study->what[i].is_set && r->status == 0 && saves)
            study->useful[study->n_useful++] = i;
    }
}

/* The strategy was emitted before: only its simulation can fail. */
static tsr_status base_failed(const struct tsr_what_if_result *base)
{
    static const tsr_status of_exit[] = {[2] = TSR_ECONFIG, [3] = TSR_EOOM, [4] = TSR_EDEFECT};
    bool known = base->status >= 2 && base->status <= 4;
    return tsr_fail(known ? of_exit[base->status] : TSR_EBACKEND, "%s", base->failure);
}

static tsr_status add_singles(struct study *study, struct tsr_what_ifs *out)
{
    const struct combination *order[TSR_MAX_WHAT_IFS];
    for (uint32_t i = 0; i < study->n; i++)
        combine(study, &i, 1, &study->singles[i]);
    TSR_TRY(run(study, study->singles, study->n + 1, study->simulate));
    const struct tsr_what_if_result *base = &study->singles[study->n].result;
    if (base->status)
        return base_failed(base);
    TSR_TRY(row_of(study, &study->singles[study->n], true, &out->base));
    out->rows = tsr_arena_alloc(study->arena, (study->n + 1) * sizeof *out->rows);
    if (!out->rows)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < study->n; i++)
        order[i] = &study->singles[i];
    qsort(order, study->n, sizeof order[0], by_saving);
    for (size_t i = 0; i < study->n; i++)
        TSR_TRY(row_of(study, order[i], study->what[order[i]->of[0]].is_set, &out->rows[out->n++]));
    find_useful(study);
    return TSR_OK;
}

/* ---- pairs and triples ----------------------------------------------------------------------- */

static size_t list_pairs(const struct study *study, struct combination *out, size_t *possible)
{
    size_t n = 0;
    *possible = 0;
    for (size_t i = 0; i < study->n_useful; i++) {
        for (size_t k = i + 1; k < study->n_useful; k++) {
            uint32_t of[] = {study->useful[i], study->useful[k]};
            struct combination pair;
            if (!combine(study, of, 2, &pair))
                continue;
            ++*possible;
            if (n < MAX_COMBINED)
                out[n++] = pair;
        }
    }
    return n;
}

static bool is_listed(const struct combination *items, size_t n, const struct combination *c)
{
    for (size_t i = 0; i < n; i++)
        if (!memcmp(items[i].of, c->of, sizeof c->of))
            return true;
    return false;
}

static void sort_three(uint32_t of[3])
{
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 2; k++) {
            if (of[k] > of[k + 1]) {
                uint32_t t = of[k];
                of[k] = of[k + 1];
                of[k + 1] = t;
            }
        }
    }
}

/* How many times the work of the strategy itself an emission is. */
static size_t work_of(const struct study *study, const struct combination *c)
{
    for (size_t i = 0; i < c->variant.n; i++)
        if (!strcmp(c->variant.set[i].key, tsr_keys[TSR_K_ACCUMULATION_STEPS].name))
            return (size_t)(strtoull(c->variant.set[i].value, NULL, 10) /
                            study->job->settings->accum_steps);
    return 1;
}

/* Lists as many as there is room for; *work is that of all. */
static size_t all_triples(const struct study *study, struct combination *out, size_t *possible,
                          size_t *work)
{
    size_t n = 0, u = study->n_useful;
    *possible = *work = 0;
    for (size_t i = 0; i < u; i++) {
        for (size_t k = i + 1; k < u; k++) {
            for (size_t m = k + 1; m < u; m++) {
                uint32_t of[] = {study->useful[i], study->useful[k], study->useful[m]};
                struct combination triple;
                if (!combine(study, of, 3, &triple))
                    continue;
                ++*possible;
                *work += work_of(study, &triple);
                if (n < MAX_TRIPLES)
                    out[n++] = triple;
            }
        }
    }
    return n;
}

struct triples {
    struct combination *items; /* [MAX_TRIPLES + 1] */
    size_t n, work;
};

/* Adds the extensions of the best pairs while the work is within a limit. */
static void extend_pairs(const struct study *study, const struct combination *const *pairs,
                         size_t n_pairs, bool training, size_t limit, struct triples *out)
{
    for (size_t p = 0; p < n_pairs; p++) {
        if (training && !keeps_training(study, pairs[p]))
            continue;
        for (size_t i = 0; i < study->n_useful && out->n < MAX_TRIPLES; i++) {
            uint32_t of[] = {pairs[p]->of[0], pairs[p]->of[1], study->useful[i]};
            struct combination *triple = &out->items[out->n];
            sort_three(of);
            if (!combine(study, of, 3, triple) || (training && !keeps_training(study, triple)) ||
                is_listed(out->items, out->n, triple) || out->work + work_of(study, triple) > limit)
                continue;
            out->work += work_of(study, triple);
            out->n++;
        }
    }
}

/* All triples, or, if there are too many, those that grow from the best pairs: half of them from
 * the best ones that keep the training as it is. */
static size_t list_triples(const struct study *study, const struct combination *pairs,
                           size_t n_pairs, struct combination *out, size_t *possible)
{
    const struct combination *order[MAX_COMBINED];
    struct triples triples = {.items = out};
    size_t work = 0, n = all_triples(study, out, possible, &work);
    if (*possible <= MAX_TRIPLES && work <= MAX_WORK)
        return n;
    for (size_t i = 0; i < n_pairs; i++)
        order[i] = &pairs[i];
    qsort(order, n_pairs, sizeof order[0], by_saving);
    extend_pairs(study, order, n_pairs, true, MAX_WORK / 2, &triples);
    extend_pairs(study, order, n_pairs, false, MAX_WORK, &triples);
    return triples.n;
}

static tsr_status add_sets(struct study *study, struct tsr_what_ifs *out)
{
    struct combination *pairs = calloc(MAX_COMBINED, sizeof *pairs);
    struct combination *triples = calloc(MAX_TRIPLES + 1, sizeof *triples);
    size_t possible = 0, n_pairs = 0, n_triples = 0;
    tsr_status status = TSR_OK;
    if (!pairs || !triples)
        TSR_GOTO(done, tsr_no_memory(NULL));
    n_pairs = list_pairs(study, pairs, &possible);
    TSR_GOTO(done, run(study, pairs, n_pairs, false));
    TSR_GOTO(done, sets_of(study, pairs, n_pairs, possible, &out->pairs));
    n_triples = list_triples(study, pairs, n_pairs, triples, &possible);
    TSR_GOTO(done, run(study, triples, n_triples, false));
    TSR_GOTO(done, sets_of(study, triples, n_triples, possible, &out->triples));
done:
    free(pairs);
    free(triples);
    return status;
}

tsr_status tsr_what_if(struct tsr_experiment *experiment, const struct tsr_job *job,
                       const struct tsr_what_if_options *options, struct tsr_explanation *out)
{
    struct study study = {.experiment = experiment,
                          .job = job,
                          .jobs = options->jobs,
                          .simulate = options->simulate,
                          .arena = &out->arena};
    tsr_status status = TSR_OK;
    study.what = calloc(TSR_MAX_WHAT_IFS, sizeof *study.what);
    study.singles = calloc(TSR_MAX_WHAT_IFS + 1, sizeof *study.singles);
    if (!study.what || !study.singles)
        TSR_GOTO(done, tsr_no_memory(NULL));
    study.n = tsr_what_if_list(job, experiment, study.what);
    TSR_GOTO(done, add_singles(&study, &out->what_if));
    if (options->sets)
        TSR_GOTO(done, add_sets(&study, &out->what_if));
    out->what_if.n_useful = study.n_useful;
    out->what_if.n_emitted = study.n_emitted;
    out->has_what_if = true;
done:
    free(study.what);
    free(study.singles);
    return status;
}
