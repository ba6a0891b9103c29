/* program_cmd.c: `tessera program`: the step program of one rank, and its hashes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/study/job/emit.h"
#include "experiments/study/job/job.h"
#include "sim/base/text.h"

static void write_text(void *user, const char *text)
{
    tsr_text_put_lines(user, text);
}

static const struct {
    const char *name;
    uint32_t until;
    int iteration; /* of the program */
} parts[] = {{"init", TSR_UNTIL_INIT, TSR_PROGRAM_INIT},
             {"load", TSR_UNTIL_LOAD, TSR_PROGRAM_LOAD},
             {"eval", TSR_UNTIL_EVAL, TSR_PROGRAM_EVAL},
             {"save", TSR_UNTIL_SAVE, TSR_PROGRAM_SAVE}};
enum { N_PARTS = sizeof parts / sizeof *parts };

static tsr_status read_iteration(const char *text, uint32_t *until)
{
    *until = TSR_UNTIL_STEADY;
    if (!text)
        return TSR_OK;
    for (int i = 0; i < N_PARTS; i++)
        if (!strcmp(text, parts[i].name)) {
            *until = parts[i].until;
            return TSR_OK;
        }
    if (*text && strlen(text) <= 2 && strspn(text, "0123456789") == strlen(text)) {
        *until = (uint32_t)strtoul(text, NULL, 10) + 1;
        if (*until < 64)
            return TSR_OK;
    }
    return tsr_fail(TSR_ECONFIG,
                    "--iteration: found %s; allowed: init, load, eval, save, or an integer from 0 "
                    "to 62",
                    text);
}

static void print_head(const struct tsr_job *job, const struct tsr_program *program, uint32_t rank)
{
    const struct tsr_tables *tables = program->tables;
    printf("# strategy %s, rank %u of %u, iteration ", tsr_show(job->strategy->name).text, rank,
           job->world);
    for (int i = 0; i < N_PARTS; i++)
        if (parts[i].iteration == program->iteration)
            printf("%s\n", parts[i].name);
    if (program->iteration >= 0)
        printf("%d\n", program->iteration);
    printf("# instructions %zu\n", program->n_instrs);
    printf("# program hash %016llx\n", (unsigned long long)tsr_program_hash(program));
    printf("# offsets hash %016llx\n", (unsigned long long)tsr_program_offsets_hash(program));
    for (uint16_t i = 0; i < tables->n_comms; i++)
        printf("# communicator %u %s: %u ranks, stride %u\n", i, tables->comms[i].name,
               tables->comms[i].size, tables->comms[i].stride);
}

static tsr_status print_program(const struct tsr_args *args, const struct tsr_job *job)
{
    struct tsr_emission emission;
    uint32_t until = 0;
    TSR_TRY(read_iteration(args->iteration, &until));
    if (args->rank >= job->world)
        return tsr_fail(TSR_ECONFIG,
                        "--rank: found %llu; allowed: 0 to %u, the ranks of strategy "
                        "%s",
                        (unsigned long long)args->rank, job->world - 1, job->strategy->name);
    TSR_TRY(tsr_emit_rank(job, (uint32_t)args->rank, until, &emission));
    uint32_t shown = until == TSR_UNTIL_STEADY ? emission.steady : emission.n_iterations - 1;
    const struct tsr_program *program = emission.classes[0].programs[shown];
    print_head(job, program, (uint32_t)args->rank);
    tsr_program_dump(program, write_text, stdout);
    tsr_emission_fini(&emission);
    return TSR_OK;
}

tsr_status tsr_cmd_program(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    struct tsr_experiment experiment;
    struct tsr_job job;
    const struct tsr_strategy *strategy = NULL;
    TSR_TRY(tsr_args_need_file(usage, args));
    if (args->print_config)
        return tsr_print_config(args);
    TSR_TRY(tsr_experiment_load(args->file, args->sets, args->n_sets, &experiment));
    tsr_status status;
    TSR_GOTO(done, tsr_experiment_find(&experiment, args->strategy, &strategy));
    TSR_GOTO(done, tsr_job_open(&experiment, strategy, TSR_MAY_LACK_CLUSTER, &job));
    status = print_program(args, &job);
    if (status == TSR_OK)
        tsr_tell_unread(&experiment, strategy);
    tsr_job_close(&job);
done:
    tsr_experiment_fini(&experiment);
    return status;
}
