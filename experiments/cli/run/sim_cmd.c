/* sim_cmd.c: `tessera sim` and `tessera run`: one strategy. */
#include <stdio.h>
#include <string.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/page.h"
#include "experiments/cli/run/run.h"
#include "experiments/study/base/files.h"
#include "experiments/study/report/report.h"
#include "experiments/study/simulate/oom.h"
#include "experiments/study/simulate/open.h"
#include "experiments/study/simulate/simulate.h"
#include "experiments/study/study.h"
#include "sim/base/text.h"

static const char *const formats[] = {"md", "csv", "json", NULL};

static tsr_status report(const struct tsr_args *args, const struct tsr_study *study,
                         const struct tsr_row *row)
{
    struct tsr_page page;
    TSR_TRY(tsr_page_begin(args, &page));
    TSR_TRY(tsr_page_end(&page, tsr_report_table(page.out, page.notes, tsr_page_format_narrow(args),
                                                 &study->info, row, 1)));
    tsr_study_notes(study);
    if (args->out)
        TSR_TRY(tsr_study_files(study, args->out, row, 1));
    struct tsr_row one = *row;
    return args->emit[0] ? tsr_study_code(study, &(struct tsr_comparison){.n = 1, .rows = &one},
                                          args->emit[0], args->emit[1])
                         : TSR_OK;
}

static tsr_status tell_what_would_fit(const struct tsr_job *job, struct tsr_row *row)
{
    TSR_TRY(tsr_oom_remedy(job, row));
    fprintf(stderr, "tessera: %s: %s; %s\n", tsr_show(row->strategy).text,
            tsr_show_line(row->failure).text, tsr_show_line(row->remedy).text);
    return TSR_OK;
}

/* A strategy that the allocator could not serve has a row too: the table says what was missing. */
static tsr_status sim(const struct tsr_args *args, struct tsr_study *study, bool *fits)
{
    struct tsr_row row;
    TSR_TRY(tsr_study_check(study));
    if (args->out)
        TSR_TRY(tsr_prepare_out(args->out));
    if (args->emit[0])
        TSR_TRY(tsr_code_prepare(args->emit[0], args->emit[1]));
    tsr_status status = tsr_simulate(&study->jobs[0], &study->info, args->out, &row);
    if (status != TSR_OK && status != TSR_EOOM)
        return status;
    if (status == TSR_EOOM)
        TSR_TRY(tell_what_would_fit(&study->jobs[0], &row));
    *fits = row.fits != 0;
    return report(args, study, &row);
}

static tsr_status check_target(const struct tsr_args *args)
{
    static const char *const targets[] = {"sim", "host", "cuda"};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        if (!args->on || !strcmp(args->on, targets[i]))
            return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "run: --on: found %s; allowed: sim, host or cuda", args->on);
}

struct given {
    bool given;
    const char *name;
};

static tsr_status none_of(const struct given *options, size_t n, const char *target)
{
    for (size_t i = 0; i < n; i++)
        if (options[i].given)
            return tsr_fail(TSR_ECONFIG, "run: %s: found without %s; allowed: with it",
                            options[i].name, target);
    return TSR_OK;
}

static tsr_status only_on_gpus(const struct tsr_args *args)
{
    const struct given options[] = {
        {args->has_gpu, "--gpu"},           {args->comm != NULL, "--comm"},
        {args->force_nccl, "--force-nccl"}, {args->deterministic, "--deterministic"},
        {args->graphs != NULL, "--graphs"}, {args->allow_slow != NULL, "--allow-slow"}};
    return none_of(options, sizeof options / sizeof *options, "--on cuda");
}

static tsr_status only_in_earnest(const struct tsr_args *args)
{
    const struct given options[] = {{args->ranks != 0, "--ranks"},
                                    {args->nproc != 0, "--nproc"},
                                    {args->timeout != 0, "--timeout"},
                                    {args->transport != NULL, "--transport"},
                                    {args->resume != NULL, "--resume"},
                                    {args->profile, "--profile"},
                                    {args->check, "--check"},
                                    {args->serial, "--serial"},
                                    {args->verify, "--verify-operands"},
                                    {args->async_save, "--async-save"}};
    return none_of(options, sizeof options / sizeof *options, "--on host or cuda");
}

static tsr_status run_in_earnest(const struct tsr_args *args, int *success)
{
    const struct tsr_gpu_ops *gpus = NULL;
    if (!strcmp(args->on, "cuda"))
        TSR_TRY(tsr_gpu_program(args->argv, &gpus));
    else
        TSR_TRY(only_on_gpus(args));
    return tsr_run_train(args, gpus, success);
}

/* `run --on sim` is `sim`, whose options cannot ask for another target. */
tsr_status tsr_cmd_run(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    bool fits = true;
    struct tsr_study *study = NULL;
    const struct tsr_strategy *one = NULL;
    TSR_TRY(check_target(args));
    TSR_TRY(tsr_args_need_file(usage, args));
    if (args->on && strcmp(args->on, "sim") != 0 && args->format)
        return tsr_fail(TSR_ECONFIG,
                        "run: --format: found %s with --on %s; allowed: with --on sim (a run in "
                        "earnest leaves metrics.jsonl in its --out)",
                        args->format, args->on);
    if ((args->wide || args->notes) && args->on && strcmp(args->on, "sim") != 0)
        return tsr_fail(TSR_ECONFIG, "run: --%s: found with --on %s; allowed: with --on sim",
                        args->wide ? "wide" : "notes", args->on);
    TSR_TRY(tsr_args_format(args, formats));
    if (args->print_config)
        return tsr_print_config(args);
    if (args->on && strcmp(args->on, "sim") != 0)
        return run_in_earnest(args, success);
    TSR_TRY(only_on_gpus(args));
    TSR_TRY(only_in_earnest(args));
    if (!args->strategy) { /* only a file with a single strategy needs no --strategy */
        struct tsr_experiment experiment;
        TSR_TRY(tsr_experiment_load(args->file, args->sets, args->n_sets, &experiment));
        tsr_status status = tsr_experiment_find(&experiment, NULL, &one);
        tsr_experiment_fini(&experiment);
        TSR_TRY(status);
    }
    TSR_TRY(tsr_args_open(args, &study));
    tsr_status status = sim(args, study, &fits);
    tsr_study_close(study);
    *success = fits ? TSR_EXIT_OK : TSR_EXIT_UNFIT;
    return status;
}

tsr_status tsr_cmd_sim(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    return tsr_cmd_run(usage, args, success);
}
