/* plan_cmd.c: `tessera plan`: the fastest strategies that fit, or the largest size that does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/page.h"
#include "experiments/cli/gpu/gpus.h"
#include "experiments/study/base/files.h"
#include "experiments/study/plan/plan.h"
#include "experiments/study/study.h"

static const char *const formats[] = {"md", "csv", "json", NULL};
static const char *const sizes[] = {
    [TSR_PLAN_BATCH] = "batch", [TSR_PLAN_SEQ] = "seq", [TSR_PLAN_LAYERS] = "layers"};
/* The exit status is this and the signal, as of a program that the signal ends: what was printed is
 * not all. */
enum { BY_SIGNAL = 128 };
enum { N_SIZES = sizeof sizes / sizeof *sizes };

static tsr_status print_plan(const struct tsr_args *args, const struct tsr_plan *plan, int *success)
{
    struct tsr_plan_counts c;
    size_t space = 0;
    struct tsr_page page;
    TSR_TRY(tsr_page_begin(args, &page));
    const struct tsr_plan_view view = {.commands = args->commands, .gpus = tsr_gpus_here()};
    TSR_TRY(tsr_page_end(
        &page, tsr_plan_report(page.out, page.notes, plan, tsr_page_format(args), &view)));
    tsr_plan_counts_of(plan, &space, &c);
    fprintf(stderr,
            "tessera: note: %zu configurations: %zu emitted in %.2f s, %zu simulated in %.2f s\n",
            space, c.emitted, c.emit_s, c.simulated, c.sim_s);
    if (c.taken)
        fprintf(stderr, "tessera: note: %zu results were taken from the interrupted search\n",
                c.taken);
    *success = c.interrupted ? BY_SIGNAL + c.interrupted : *success;
    if (c.interrupted)
        fprintf(stderr, args->out
                            ? "tessera: note: interrupted; --resume goes on with the rest\n"
                            : "tessera: note: interrupted; with --out DIR, --resume could go on\n");
    return TSR_OK;
}

/* --write N FILE, of the ranks that were found. */
static tsr_status write_row(const struct tsr_args *args, const struct tsr_plan *plan)
{
    size_t n = tsr_plan_n(plan);
    unsigned long long rank = strtoull(args->write[0], NULL, 10);
    if (rank > n)
        return tsr_fail(TSR_ECONFIG, "--write: found %s; allowed: 1 to %zu, the rows of this plan",
                        args->write[0], n);
    return tsr_plan_experiment(plan, (size_t)rank - 1, args->write[1]);
}

static tsr_status search(const struct tsr_args *args, struct tsr_study *study,
                         const struct tsr_plan_options *options, int *success)
{
    struct tsr_plan *plan = NULL;
    if (args->emit[0])
        TSR_TRY(tsr_code_prepare(args->emit[0], args->emit[1]));
    TSR_TRY(tsr_study_plan(study, options, &plan));
    tsr_status status = print_plan(args, plan, success);
    if (status == TSR_OK && args->emit[0])
        status = tsr_plan_code(plan, args->emit[0], args->emit[1]);
    if (status == TSR_OK && args->write[0])
        status = write_row(args, plan);
    tsr_plan_free(plan);
    return status;
}

static tsr_status solve(const struct tsr_args *args, struct tsr_study *study,
                        const struct tsr_plan_options *options, enum tsr_plan_size size)
{
    struct tsr_plan *plan = NULL;
    struct tsr_plan_largest *largest = malloc(sizeof *largest); /* its rows are large */
    if (!largest)
        return tsr_no_memory(NULL);
    struct tsr_page page;
    tsr_status status;
    TSR_GOTO(done, tsr_study_largest(study, options, size, &plan, largest));
    TSR_GOTO(done, tsr_page_begin(args, &page));
    status = tsr_page_end(&page, tsr_plan_largest_report(page.out, plan, largest, args->format));
done:
    tsr_plan_free(plan);
    free(largest);
    return status;
}

static tsr_status check_args(const struct tsr_usage *usage, struct tsr_args *args, int *size)
{
    *size = 0;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    if (args->max && args->exhaustive)
        return tsr_fail(TSR_ECONFIG, "plan: found --exhaustive beside --max; allowed: one of them");
    if (args->max && (args->emit[0] || args->write[0]))
        return tsr_fail(TSR_ECONFIG, "plan: found --%s beside --max; allowed: one of them",
                        args->emit[0] ? "emit" : "write");
    if (args->write[0] && (strspn(args->write[0], "0123456789") != strlen(args->write[0]) ||
                           !strtoull(args->write[0], NULL, 10)))
        return tsr_fail(TSR_ECONFIG, "--write: found %s; allowed: the number of a row, and a file",
                        args->write[0]);
    if (args->go_on && (args->max || !args->out))
        return tsr_fail(TSR_ECONFIG,
                        "plan: found --resume %s; allowed: with --out DIR, where the "
                        "search was interrupted",
                        args->max ? "beside --max" : "without --out");
    while (args->max && *size < N_SIZES && strcmp(args->max, sizes[*size]) != 0)
        ++*size;
    return *size < N_SIZES
               ? TSR_OK
               : tsr_fail(TSR_ECONFIG, "--max: found %s; allowed: batch, seq or layers", args->max);
}

tsr_status tsr_cmd_plan(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    struct tsr_study *study = NULL;
    int size = 0;
    TSR_TRY(check_args(usage, args, &size));
    struct tsr_study_request request = tsr_args_request(args);
    const struct tsr_plan_options options = {.strategy = args->strategy,
                                             .jobs = args->jobs,
                                             .top = args->top,
                                             .exhaustive = args->exhaustive,
                                             .resume = args->go_on,
                                             .dir = args->out};
    request.strategy = NULL; /* a name of the file without its sweeps */
    TSR_TRY(tsr_study_open(&request, &study));
    tsr_status status = args->max ? solve(args, study, &options, (enum tsr_plan_size)size)
                                  : search(args, study, &options, success);
    tsr_study_close(study);
    return status;
}
