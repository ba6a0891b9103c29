/* check_cmd.c: `tessera check`: looks for races, early frees, leaks, ranks that differ and
 * deadlocks in the programs of a strategy or a scenario, without running them.
 */
#include <stdio.h>
#include <string.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/page.h"
#include "experiments/cli/inspect/check_run.h"
#include "experiments/study/job/job.h"
#include "sim/base/json_load.h"
#include "sim/base/text.h"

/* What the strategies of one call had in common to say at the end. */
struct verdict {
    uint64_t findings;
    char first[900]; /* where and what */
};

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

static void print(FILE *out, const char *name, const struct tsr_check_run *run)
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
            run->world);
    if (!c.peers_compared)
        fprintf(out,
                "  note: send and recv were not matched; they are in worlds of up to %d ranks\n",
                TSR_CHECK_ALL_RANKS);
    print_findings(out, run->checker);
}

static tsr_status report(const char *name, const struct tsr_check_run *run, struct verdict *verdict)
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

static tsr_status check_source(const char *name, const struct tsr_check_source *source,
                               struct verdict *verdict)
{
    struct tsr_check_run run;
    tsr_status status = tsr_check_run(source, &run);
    if (status == TSR_OK)
        status = report(name, &run, verdict);
    if (status == TSR_OK && tsr_checker_counts(run.checker).findings > 0)
        tsr_trace_note_races(name, run.engines, run.world);
    tsr_check_run_close(&run);
    return status;
}

/* ---- what a file can be ---------------------------------------------------------------------- */

static tsr_status check_strategies(const struct tsr_args *args,
                                   const struct tsr_experiment *experiment, struct verdict *verdict)
{
    const struct tsr_strategy *one = NULL;
    if (args->strategy)
        TSR_TRY(tsr_experiment_find(experiment, args->strategy, &one));
    for (size_t i = 0; i < experiment->n; i++) {
        struct tsr_job job;
        const struct tsr_strategy *strategy = &experiment->strategies[i];
        if (one && one != strategy)
            continue;
        TSR_TRY(tsr_job_open(experiment, strategy, TSR_MAY_LACK_CLUSTER, &job));
        struct tsr_check_source source = {.job = &job};
        tsr_status status = check_source(strategy->name, &source, verdict);
        tsr_job_close(&job);
        TSR_TRY(status);
    }
    return TSR_OK;
}

static tsr_status check_experiment(const struct tsr_args *args, struct verdict *verdict)
{
    struct tsr_experiment experiment;
    TSR_TRY(tsr_experiment_load(args->file, args->sets, args->n_sets, &experiment));
    tsr_status status = check_strategies(args, &experiment, verdict);
    if (status == TSR_OK)
        tsr_tell_unread(&experiment, NULL);
    tsr_experiment_fini(&experiment);
    return status;
}

static tsr_status check_recorded_run(const char *path, struct verdict *verdict)
{
    struct tsr_scenario s;
    TSR_TRY(tsr_scenario_load(path, &s));
    struct tsr_check_source source = {.scenario = &s};
    tsr_status status;
    if (strcmp(s.kind, "train") != 0 && strcmp(s.kind, "ddp") != 0)
        TSR_GOTO(done, tsr_node_error(
                           tsr_node_get(s.doc.root, "kind"),
                           "kind: found %s; allowed: train, ddp (the others run no step)", s.kind));
    TSR_GOTO(done, tsr_scenario_mesh(&s));
    TSR_GOTO(done, check_source(s.name, &source, verdict));

done:
    tsr_scenario_fini(&s);
    return status;
}

static tsr_status check_memory_scenario(const char *path, struct verdict *verdict)
{
    struct tsr_memory_scenario s;
    TSR_TRY(tsr_memory_scenario_load(path, NULL, &s));
    struct tsr_check_source source = {.memory = &s};
    tsr_status status = check_source(s.name, &source, verdict);
    tsr_memory_scenario_fini(&s);
    return status;
}

/* Scenarios of recorded runs have a kind. */
static bool has_kind(const char *path)
{
    json_t *file;
    bool has = tsr_json_load(path, TSR_TEXT_VALUES, &file) == TSR_OK &&
               json_is_string(json_object_get(file, "kind"));
    json_decref(file);
    return has;
}

static bool is_json(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".json");
}

tsr_status tsr_cmd_check(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    struct verdict verdict = {0};
    TSR_TRY(tsr_args_need_file(usage, args));
    bool scenario = is_json(args->file);
    if (scenario && (args->strategy || args->n_sets || args->print_config))
        return tsr_fail(TSR_ECONFIG,
                        "%s: found a scenario and --strategy, --set or --print-config; allowed: "
                        "these with an experiment file",
                        args->file);
    if (args->print_config)
        return tsr_print_config(args);
    if (!scenario)
        TSR_TRY(check_experiment(args, &verdict));
    else if (has_kind(args->file))
        TSR_TRY(check_recorded_run(args->file, &verdict));
    else
        TSR_TRY(check_memory_scenario(args->file, &verdict));
    if (verdict.findings == 0)
        return TSR_OK;
    if (verdict.findings == 1)
        return tsr_fail(TSR_EDEFECT, "%s: %s", args->file, verdict.first);
    return tsr_fail(TSR_EDEFECT, "%s: %llu defects; the first: %s", args->file,
                    (unsigned long long)verdict.findings, verdict.first);
}
