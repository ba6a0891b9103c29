/* check_run.c: lets all ranks of a source emit into the schedule checker, and prints what it found.
 */
#include "experiments/cli/inspect/check_run.h"

#include <stdio.h>
#include <stdlib.h>

#include "experiments/cli/args/page.h"
#include "sim/base/text.h"

/* The engines are kept because findings point into them. */
struct run {
    const struct tsr_check_source *source;
    struct tsr_checker *checker;
    struct tsr_engine **engines; /* [world]; NULL: the rank is like another */
    bool *is_open;               /* [world]; what close() has to end */
};

/* ---- ranks ----------------------------------------------------------------------------------- */

static tsr_status check_rank(struct run *run, uint32_t rank)
{
    const struct tsr_check_source *s = run->source;
    struct tsr_executor *executor = NULL;
    TSR_TRY(tsr_checker_rank(run->checker, rank, NULL, NULL, &executor));
    run->is_open[rank] = true;
    TSR_TRY(s->open(s->user, rank, executor, &run->engines[rank]));
    tsr_checker_set_tables(run->checker, rank, tsr_engine_tables(run->engines[rank]));
    return s->emit(s->user, rank, run->checker, run->engines[rank]);
}

/* Ranks that do what an earlier one does are not emitted. Rank 0's engine knows them; what it says
 * is in `class_of`. */
static tsr_status check_classes(struct run *run, uint32_t *class_of, uint32_t *first_of)
{
    uint32_t n = 0, world = run->source->world;
    TSR_TRY(check_rank(run, 0));
    TSR_TRY(tsr_engine_rank_classes(run->engines[0], class_of, first_of, &n));
    for (uint32_t k = 0; k < n; k++)
        first_of[k] = world;
    if (!run->source->rank_0_alone)
        first_of[class_of[0]] = 0;
    for (uint32_t rank = 1; rank < world; rank++) {
        uint32_t *first = &first_of[class_of[rank]];
        if (*first == world) {
            *first = rank;
            TSR_TRY(check_rank(run, rank));
        } else {
            TSR_TRY(tsr_checker_same(run->checker, rank, *first));
        }
    }
    return TSR_OK;
}

static tsr_status check_all(struct run *run)
{
    uint32_t world = run->source->world;
    if (world <= TSR_CHECK_ALL_RANKS) {
        for (uint32_t rank = 0; rank < world; rank++)
            TSR_TRY(check_rank(run, rank));
        return TSR_OK;
    }
    uint32_t *class_of = calloc(world, sizeof *class_of);
    uint32_t *first_of = calloc(world, sizeof *first_of);
    tsr_status status =
        class_of && first_of ? check_classes(run, class_of, first_of) : tsr_no_memory(NULL);
    free(class_of);
    free(first_of);
    return status;
}

static tsr_status open_run(const struct tsr_check_source *source, struct run *run)
{
    struct tsr_checker_config config = {.world = source->world};
    *run = (struct run){.source = source,
                        .engines = calloc(source->world + 1UL, sizeof(struct tsr_engine *)),
                        .is_open = calloc(source->world + 1UL, sizeof(bool))};
    if (!run->engines || !run->is_open)
        return tsr_no_memory(NULL);
    TSR_TRY(tsr_checker_create(&config, &run->checker));
    TSR_TRY(check_all(run));
    return tsr_checker_finish(run->checker);
}

static void close_run(struct run *run)
{
    tsr_checker_destroy(run->checker);
    for (uint32_t i = 0; run->engines && run->is_open && i < run->source->world; i++)
        if (run->is_open[i])
            run->source->close(run->source->user, i, run->engines[i]);
    free(run->engines);
    free(run->is_open);
}

/* ---- what was found -------------------------------------------------------------------------- */

static void print_findings(FILE *out, const struct tsr_checker *checker)
{
    for (size_t i = 0; i < tsr_checker_n_findings(checker); i++) {
        const struct tsr_finding *f = tsr_checker_finding(checker, i);
        fprintf(out, "  %s", tsr_show_line(f->headline).text);
        if (f->times > 1)
            fprintf(out, " (%llu times)", (unsigned long long)f->times);
        fputc('\n', out);
        tsr_text_put_lines(out, f->details);
    }
}

static void print(FILE *out, const char *name, const struct run *run)
{
    struct tsr_checker_counts c = tsr_checker_counts(run->checker);
    fprintf(out, "%s: ", tsr_show_line(name).text);
    if (c.findings == 0)
        fputs("nothing", out);
    else
        fprintf(out, "%llu", (unsigned long long)c.findings);
    fprintf(out,
            " found in %llu instructions, %llu collective calls; %u of %u ranks have programs of "
            "their own\n",
            (unsigned long long)c.instrs, (unsigned long long)c.collectives, c.n_programs,
            run->source->world);
    if (!c.peers_compared)
        fprintf(out,
                "  note: send and recv were not matched; they are in worlds of up to %d ranks\n",
                TSR_CHECK_ALL_RANKS);
    print_findings(out, run->checker);
}

static tsr_status report(const char *name, const struct run *run, struct tsr_check_verdict *verdict)
{
    struct tsr_checker_counts c = tsr_checker_counts(run->checker);
    struct tsr_page page;
    TSR_TRY(tsr_page_begin(NULL, &page));
    print(page.out, name, run);
    TSR_TRY(tsr_page_end(&page, TSR_OK));
    if (c.findings > 0 && verdict->findings == 0)
        snprintf(verdict->first, sizeof verdict->first, "%s: %s", name,
                 tsr_checker_finding(run->checker, 0)->headline);
    verdict->findings += c.findings;
    return TSR_OK;
}

void tsr_note_races(const char *name, struct tsr_engine *const *engines, size_t n)
{
    for (int race = 0; race < TSR_N_RACES; race++) {
        const char *text = NULL;
        for (size_t i = 0; i < n && !text; i++)
            text = engines[i] ? tsr_inherited_race(engines[i], (enum tsr_race)race) : NULL;
        if (text)
            fprintf(stderr, "tessera: note: %s: %s\n", name, text);
    }
}

tsr_status tsr_check_print(const char *name, const struct tsr_check_source *source,
                           struct tsr_check_verdict *verdict)
{
    struct run run;
    tsr_status status = open_run(source, &run);
    if (status == TSR_OK)
        status = report(name, &run, verdict);
    if (status == TSR_OK && tsr_checker_counts(run.checker).findings > 0)
        tsr_note_races(name, run.engines, source->world);
    close_run(&run);
    return status;
}

tsr_status tsr_check_quietly(const struct tsr_check_source *source, char *finding, size_t size)
{
    struct run run;
    tsr_status status = open_run(source, &run);
    bool any = status == TSR_OK && tsr_checker_n_findings(run.checker) > 0;
    (void)snprintf(finding, size, "%s", any ? tsr_checker_finding(run.checker, 0)->headline : "");
    close_run(&run);
    return status;
}

tsr_status tsr_check_end(const char *file, const struct tsr_check_verdict *verdict)
{
    if (verdict->findings == 0)
        return TSR_OK;
    if (verdict->findings == 1)
        return tsr_fail(TSR_EDEFECT, "%s: %s", file, verdict->first);
    return tsr_fail(TSR_EDEFECT, "%s: %llu defects; the first: %s", file,
                    (unsigned long long)verdict->findings, verdict->first);
}
