/* verdict.c: mutants and what is said of them (verdict.h). */
#include "tests/check/study/verdict.h"

#include <stdlib.h>
#include <string.h>

#include "engine/check/check.h"

static void feed(struct tsr_checker *checker, uint32_t rank, const struct sequence *s)
{
    struct tsr_executor *x;
    if (tsr_checker_rank(checker, rank, s->tables, NULL, &x) != TSR_OK)
        abort();
    for (size_t i = 0; i < s->n; i++) {
        tsr_status status = x->ops->submit(x, &s->v[i]);
        if (status == TSR_EDEFECT)
            break;
        if (status != TSR_OK)
            abort();
    }
}

bool checker_finds(const struct recorded *r, const struct sequence *s, bool all_ranks,
                   char *headline, size_t size)
{
    struct tsr_checker *checker;
    struct tsr_checker_config config = {.world = r->world, .stop = true};
    if (tsr_checker_create(&config, &checker) != TSR_OK)
        abort();
    feed(checker, 0, s);
    for (uint32_t rank = 1; all_ranks && rank < r->world; rank++)
        feed(checker, rank, &r->sequences[rank]);
    if (tsr_checker_finish(checker) != TSR_OK)
        abort();
    size_t n = tsr_checker_n_findings(checker);
    if (headline)
        snprintf(headline, size, "%s", n ? tsr_checker_finding(checker, 0)->headline : "nothing");
    tsr_checker_destroy(checker);
    return n > 0;
}

static bool second_opinion(struct reach *reach, const struct recorded *r, const struct sequence *s,
                           bool all_ranks, char *why, size_t size)
{
    struct sequence ranks[FAMILY_RANKS];
    if (reach_hazard(reach, s, why, size))
        return true;
    if (!all_ranks)
        return false;
    memcpy(ranks, r->sequences, sizeof ranks);
    ranks[0] = *s;
    return reach_ranks_differ(ranks, r->world, why, size);
}

static void count(struct tally *t, bool caught)
{
    t->mutants++;
    t->caught += caught;
    t->harmless += !caught;
}

static void count_all(struct report *out, const struct recorded *r, const struct mutation *m,
                      bool caught)
{
    size_t f = out->n_families;
    count(&out->kinds[m->kind], caught);
    count(&out->families[f], caught);
    if (m->kind == DROP_NUMBER)
        count(&out->numbers[m->second], caught);
    if (m->kind != DROP_WAIT && m->kind != DROP_HOST_WAIT)
        return;
    count(&out->family_waits[f], caught);
    count(&out->waits[wait_number(&r->sequences[0], m->at)], caught);
}

static void study_mutant(struct report *out, struct reach *reach, const struct recorded *r,
                         const struct mutation *m, struct mutant *mutant)
{
    char says[1024], why[256] = "nothing";
    if (!mutate(r, m, mutant))
        return;
    bool all_ranks = m->kind == SWAPPED_CALLS || m->kind == DROP_CALL || m->kind == SIZED_CALL;
    bool caught = checker_finds(r, &mutant->sequence, all_ranks, says, sizeof says);
    bool hazard = second_opinion(reach, r, &mutant->sequence, all_ranks, why, sizeof why);
    /* The graph knows no kernels: of sizes the host has the second opinion (test_operands.c). */
    hazard |= m->kind == SHORT_OPERAND && strstr(says, "do not fit");
    if (caught != hazard) {
        fprintf(stderr, "%s, %s at %zu (%zu): the checker says: %s; the graph says: %s\n", r->name,
                mutation_name(m->kind), m->at, m->second, says, why);
        out->undecided++;
    }
    count_all(out, r, m, caught);
}

static void study_family(struct report *out, const struct recorded *r, size_t every)
{
    char says[1024], why[256] = "nothing";
    size_t n;
    struct mutant mutant = {0};
    struct reach *reach = reach_open(&r->sequences[0]);
    bool dirty = checker_finds(r, &r->sequences[0], true, says, sizeof says);
    if (second_opinion(reach, r, &r->sequences[0], true, why, sizeof why) || dirty) {
        fprintf(stderr, "%s, as it is: the checker says: %s; the graph says: %s\n", r->name, says,
                why);
        out->undecided++;
    }
    struct mutation *mutations = mutations_of(r, false, &n);
    for (size_t i = 0; i < n; i += every)
        study_mutant(out, reach, r, &mutations[i], &mutant);
    free(mutations);
    mutant_fini(&mutant);
    reach_close(reach);
}

void study(struct report *out, size_t every)
{
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < family_count(); i++) {
        struct recorded r;
        family_record(i, &r);
        study_family(out, &r, every);
        family_close(&r);
        out->n_families++;
    }
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void row(FILE *out, const char *name, const struct tally *t)
{
    fprintf(out, "| %s | %zu | %zu | %zu |\n", name, t->mutants, t->caught, t->harmless);
}

static void head(FILE *out, const char *name)
{
    fprintf(out, "| %s | mutants | caught | harmless |\n| --- | ---: | ---: | ---: |\n", name);
}

void report_print(const struct report *report, FILE *out)
{
    struct tally all = {0};
    head(out, "change");
    for (int k = 0; k < N_STUDIED_KINDS; k++) {
        row(out, mutation_name(k), &report->kinds[k]);
        all.mutants += report->kinds[k].mutants;
        all.caught += report->kinds[k].caught;
        all.harmless += report->kinds[k].harmless;
    }
    row(out, "all", &all);
    fprintf(out, "\n");
    fprintf(out, "| wait | one dropped | caught | harmless | families: all dropped | caught | "
                 "harmless |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n");
    for (int k = 1; k < N_WAITS; k++) {
        const struct tally *w = &report->waits[k], *f = &report->numbers[k];
        fprintf(out, "| W%d | %zu | %zu | %zu | %zu | %zu | %zu |\n", k, w->mutants, w->caught,
                w->harmless, f->mutants, f->caught, f->harmless);
    }
    const struct tally *others = &report->waits[0];
    fprintf(out, "| others | %zu | %zu | %zu | | | |\n", others->mutants, others->caught,
            others->harmless);
    fprintf(out, "\n| family | waits | caught | harmless | all mutants | caught | harmless |\n"
                 "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n");
    for (size_t i = 0; i < report->n_families; i++) {
        struct recorded r;
        family_record(i, &r);
        const struct tally *w = &report->family_waits[i], *t = &report->families[i];
        fprintf(out, "| %s | %zu | %zu | %zu | %zu | %zu | %zu |\n", r.name, w->mutants, w->caught,
                w->harmless, t->mutants, t->caught, t->harmless);
        family_close(&r);
    }
}
