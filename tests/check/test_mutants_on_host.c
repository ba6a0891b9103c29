/* test_mutants_on_host.c: a planted defect that the study (study/verdict.h) calls harmless changes
 * nothing: the programs of the families run on the host, all ranks, with delays at random before
 * every task and NaN in memory that nobody has; with one order less in the third iteration of rank
 * 0 they leave the same parameters, gradients and states, bit for bit, as undisturbed. Mutants that
 * are caught are run the same way: many must show, or this test would see nothing.
 *
 *   check_test_mutants_on_host --print    says of every mutant that was run what came out
 *
 * All families run. Of the caught mutants only those do whose race stays in memory that the host
 * has: not those where the host itself waits less, or where pageable memory (so the family
 * "offload" has none) or segments are given back; nor a wait for an event that is never recorded,
 * which hangs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/check/replay_testing.h"
#include "tests/check/study/verdict.h"
#include "tests/thorough.h"

/* Under a sanitizer the code matters, and the order under ThreadSanitizer, which takes real races
 * for what they are. */
#if defined(__SANITIZE_THREAD__)
enum { EVERY = 9, MUTANTS = 12, CAUGHT_EACH = 0, SHOW = 1 };
#elif defined(__SANITIZE_ADDRESS__)
enum { EVERY = 5, MUTANTS = 24, CAUGHT_EACH = 1, SHOW = 1 };
#else
enum { EVERY = 1, MUTANTS = 100, CAUGHT_EACH = 1, SHOW = 7 };
#endif
/* The short form without a sanitizer does what the address sanitizer's does. */
enum { QUICK_EVERY = 5, QUICK_MUTANTS = 24, QUICK_SHOW = 1 };

static bool is_short(void)
{
    return EVERY == 1 && !tests_are_thorough();
}

/* CAUGHT_SEEDS: runs of a mutant that is caught; the first that differs says it. SHOW, above: how
 * many caught mutants differ at least; most do, as a rule, but what delays do is chance. */
enum { MOST = 16, CAUGHT_SEEDS = 3, JITTER_US = 150, LONG_JITTER_US = 400 };

struct tries {
    size_t mutants, differ;
};

static struct {
    bool print;
    size_t families, cannot;
    struct tries as_they_are, harmless, caught;
    struct tries kinds[2][N_MUTATION_KINDS]; /* harmless, caught */
} report;

/* ---- drawing mutants ------------------------------------------------------------------------- */

/* A mutant and its runs: one if it is harmless, else CAUGHT_SEEDS. */
struct drawn {
    struct mutation what;
    struct mutant mutant;
    bool caught;
    size_t n_runs;
    struct replay runs[CAUGHT_SEEDS];
};

struct draw {
    const struct recorded *r;
    struct reach *reach;
    struct mutation *all;
    size_t n_all;
    uint64_t random;
    size_t n;
    struct drawn drawn[MOST];
};

/* xorshift64* */
static size_t random_below(struct draw *d, size_t n)
{
    d->random ^= d->random >> 12;
    d->random ^= d->random << 25;
    d->random ^= d->random >> 27;
    return (d->random * UINT64_C(2685821657736338717) >> 33) % n;
}

/* A mutation of a kind; NULL: there is none. */
static const struct mutation *one_of(struct draw *d, enum mutation_kind kind)
{
    size_t n = 0, k;
    for (size_t i = 0; i < d->n_all; i++)
        n += d->all[i].kind == kind;
    if (n == 0)
        return NULL;
    k = random_below(d, n);
    for (size_t i = 0;; i++)
        if (d->all[i].kind == kind && k-- == 0)
            return &d->all[i];
}

static size_t count_kind(const struct sequence *s, uint8_t kind)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        n += s->v[i].kind == kind;
    return n;
}

/* Would a race stay inside memory that there is, and end? */
static bool is_safe(const struct recorded *r, const struct mutation *what,
                    const struct sequence *mutant)
{
    const struct sequence *s = &r->sequences[0];
    if (what->kind == EARLY_FREE && s->v[what->at].kind != TSR_FREE)
        return false;
    for (size_t i = 0; i < s->n; i++)
        if (s->v[i].kind == TSR_SEGMENT_FREE ||
            (s->v[i].kind == TSR_HOST_FREE && s->v[i].space == TSR_SPACE_HOST))
            return false;
    return count_kind(s, TSR_HOST_WAIT) == count_kind(mutant, TSR_HOST_WAIT) &&
           count_kind(s, TSR_HOST_READ) == count_kind(mutant, TSR_HOST_READ);
}

static bool is_new(const struct draw *d, const struct mutation *m)
{
    for (size_t i = 0; i < d->n; i++) {
        const struct mutation *old = &d->drawn[i].what;
        if (old->kind == m->kind && old->at == m->at && old->second == m->second)
            return false;
    }
    return true;
}

/* Both opinions, which test_mutation.c finds to be one, are asked. */
static bool is_wanted(struct draw *d, const struct mutation *what, bool caught, struct mutant *m)
{
    char why[256];
    if (!is_new(d, what) || !mutate(d->r, what, m))
        return false;
    bool found = checker_finds(d->r, &m->sequence, false, NULL, 0);
    assert_int_equal(found, reach_hazard(d->reach, &m->sequence, why, sizeof why));
    return found == caught && (!caught || is_safe(d->r, what, &m->sequence));
}

/* Up to n mutants more, their kinds in turn. */
static void draw(struct draw *d, bool caught, size_t n)
{
    static const enum mutation_kind kinds[] = {
        DROP_WAIT, EARLY_FREE, DROP_EVENT, DROP_HOST_WAIT, DROP_NUMBER, EARLY_RECORD, DROP_RECORD};
    enum { N_KINDS = sizeof kinds / sizeof *kinds, TRIES = 1000 };
    size_t end = d->n + n;
    for (size_t i = random_below(d, N_KINDS), t = 0; d->n < end && d->n < MOST && t < TRIES; t++) {
        struct drawn *slot = &d->drawn[d->n];
        const struct mutation *what = one_of(d, kinds[i % N_KINDS]);
        bool hangs = caught && kinds[i % N_KINDS] == DROP_RECORD;
        if (!what || hangs || !is_wanted(d, what, caught, &slot->mutant)) {
            i += t % 20 == 0; /* a kind that has none */
            continue;
        }
        slot->what = *what;
        slot->caught = caught;
        slot->n_runs = caught ? CAUGHT_SEEDS : 1;
        d->n++;
        i++;
    }
}

/* ---- running them ---------------------------------------------------------------------------- */

static void count(struct tries *t, bool differs)
{
    t->mutants++;
    t->differ += differs;
}

static void start(struct draw *d)
{
    for (size_t i = 0; i < d->n; i++)
        for (size_t k = 0; k < d->drawn[i].n_runs; k++) {
            d->drawn[i].runs[k] =
                (struct replay){.r = d->r,
                                .first = &d->drawn[i].mutant.sequence,
                                .jitter_us = d->drawn[i].caught ? LONG_JITTER_US : JITTER_US,
                                .seed = 1000 * k + i};
            replay_start(&d->drawn[i].runs[k]);
        }
}

static void judge(const struct draw *d, const struct drawn *m, const struct replay *reference)
{
    char why[512] = "the same";
    bool differs = false;
    for (size_t k = 0; k < m->n_runs && !differs; k++)
        differs = !replay_same(reference, &m->runs[k], why, sizeof why);
    count(m->caught ? &report.caught : &report.harmless, differs);
    count(&report.kinds[m->caught][m->what.kind], differs);
    if (report.print || (differs && !m->caught))
        fprintf(stderr, "%s, %s at %zu (%zu), %s: %s\n", d->r->name, mutation_name(m->what.kind),
                m->what.at, m->what.second, m->caught ? "caught" : "harmless", why);
}

/* As it is, task by task and with delays: the same, and numbers. */
static void run_as_it_is(const struct recorded *r, struct replay *reference)
{
    char why[512];
    struct replay delayed = {.r = r, .first = &r->sequences[0], .jitter_us = JITTER_US, .seed = 5};
    *reference = (struct replay){.r = r, .first = &r->sequences[0]};
    replay_start(reference);
    replay_start(&delayed);
    replay_join(reference);
    replay_join(&delayed);
    bool same = replay_same(reference, &delayed, why, sizeof why);
    count(&report.as_they_are, !same);
    if (!same)
        fprintf(stderr, "%s, as it is: %s\n", r->name, why);
    for (uint32_t i = 0; i < r->world; i++) {
        assert_true(reference->ranks[i].n_words > 0);
        assert_int_equal(reference->ranks[i].n_nan, 0);
    }
}

static void run_family(const struct recorded *r, size_t family, size_t harmless, size_t caught)
{
    struct replay reference;
    struct draw *d = calloc(1, sizeof *d);
    assert_non_null(d);
    d->r = r;
    d->random = (family + 1) * UINT64_C(0x9e3779b97f4a7c15);
    d->reach = reach_open(&r->sequences[0]);
    d->all = mutations_of(r, false, &d->n_all);
    draw(d, false, harmless);
    draw(d, true, caught);
    run_as_it_is(r, &reference);
    start(d);
    for (size_t i = 0; i < d->n; i++)
        for (size_t k = 0; k < d->drawn[i].n_runs; k++)
            replay_join(&d->drawn[i].runs[k]);
    for (size_t i = 0; i < d->n; i++)
        judge(d, &d->drawn[i], &reference);
    for (size_t i = 0; i < MOST; i++)
        mutant_fini(&d->drawn[i].mutant);
    free(d->all);
    reach_close(d->reach);
    free(d);
}

static int run_families(void **state)
{
    const char *why = "";
    const size_t every = is_short() ? QUICK_EVERY : EVERY,
                 mutants = is_short() ? QUICK_MUTANTS : MUTANTS;
    (void)state;
    for (size_t i = 0; i < family_count(); i += every) {
        struct recorded r;
        size_t left = (family_count() - i + every - 1) / every;
        family_record(i, &r);
        if (replay_can(&r, &why)) {
            run_family(&r, i, (mutants - report.harmless.mutants + left - 1) / left, CAUGHT_EACH);
            report.families++;
        } else {
            fprintf(stderr, "%s: %s\n", r.name, why);
            report.cannot++;
        }
        family_close(&r);
    }
    print_message("%zu families as they are (%zu the host cannot), %zu harmless mutants: %zu "
                  "differ; %zu caught mutants: %zu differ\n",
                  report.families, report.cannot, report.harmless.mutants, report.harmless.differ,
                  report.caught.mutants, report.caught.differ);
    for (int k = 0; k < N_STUDIED_KINDS && report.print; k++)
        print_message("%s: harmless %zu, caught %zu, of which %zu differ\n", mutation_name(k),
                      report.kinds[0][k].mutants, report.kinds[1][k].mutants,
                      report.kinds[1][k].differ);
    return 0;
}

/* ---- what came out --------------------------------------------------------------------------- */

static void delays_change_nothing(void **state)
{
    (void)state;
    assert_int_equal(report.cannot, 0);
    assert_true(report.as_they_are.mutants > 0);
    assert_int_equal(report.as_they_are.differ, 0);
}

static void harmless_mutants_change_nothing(void **state)
{
    (void)state;
    assert_int_equal(report.harmless.mutants, is_short() ? QUICK_MUTANTS : MUTANTS);
    assert_int_equal(report.harmless.differ, 0);
}

static void caught_mutants_show(void **state)
{
    (void)state;
    if (CAUGHT_EACH == 0)
        skip();
    assert_true(report.caught.mutants >= 20 / (is_short() ? QUICK_EVERY : EVERY));
    assert_true(report.caught.differ >= (is_short() ? QUICK_SHOW : SHOW));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(delays_change_nothing),
                                       cmocka_unit_test(harmless_mutants_change_nothing),
                                       cmocka_unit_test(caught_mutants_show)};
    report.print = argc > 1 && !strcmp(argv[1], "--print");
    return cmocka_run_group_tests(tests, run_families, NULL);
}
