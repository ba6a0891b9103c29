/* goodput_cmd.c: `tessera goodput`: a month of a job that fails now and then.
 *
 * What a step and a checkpoint take is simulated from the strategy's programs; the month is then
 * sim/figures/goodput.c. Bytes are those that the engine's save program copies to hosts.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/study/base/out_file.h"
#include "experiments/study/goodput/goodput_month.h"
#include "experiments/study/job/sim_job.h"
#include "experiments/study/report/report_rows.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/simulate/open.h"

static const char *const formats[] = {"md", "csv", "json", NULL};

enum { SEARCH_RUNS = 50 }; /* of each interval that is tried */

/* ---- what a checkpoint is ---------------------------------------------------------------- */

/* Bytes that a program copies from the device to host memory. */
static double staged_bytes(const struct tsr_program *program)
{
    double bytes = 0;
    for (size_t i = 0; i < program->n_instrs; i++) {
        const struct tsr_instr *instr = &program->instrs[i];
        bool from_device = false, into_host = false;
        for (uint32_t k = 0; instr->kind == TSR_COPY && k < instr->n_operands; k++) {
            const struct tsr_operand *o = &instr->operands[k];
            from_device = from_device || ((o->access & TSR_READ) && o->space == TSR_SPACE_DEVICE);
            into_host = into_host || ((o->access & TSR_WRITE) && o->space != TSR_SPACE_DEVICE);
        }
        bytes += from_device && into_host ? (double)instr->bytes : 0;
    }
    return bytes;
}

/* Replicas stage the same shards, each of which is written once. */
static double written_bytes(const struct tsr_job *job, const struct tsr_emission *e, uint32_t save)
{
    const struct tsr_mesh *mesh = &job->mesh;
    double bytes = 0;
    uint32_t copies = 1;
    for (uint32_t i = 0; i < e->world; i++)
        bytes += staged_bytes(e->classes[e->class_of[i]].programs[save]);
    bool sharded = tsr_save_is_sharded((enum tsr_save)job->settings->save);
    for (int d = 0; d < mesh->n_dims && sharded; d++)
        if (!strcmp(mesh->name[d], "replicate"))
            copies *= mesh->shape[d];
    return bytes / copies;
}

static tsr_status measure(const struct tsr_job *job, const struct tsr_emission *e,
                          struct tsr_month *m)
{
    struct tsr_sim_job run;
    struct tsr_sim_result *result = NULL;
    struct tsr_metrics metrics;
    uint32_t save = 0;
    for (uint32_t i = 1; i < e->n_iterations; i++)
        save = tsr_section_of(e, i) == TSR_SECTION_SAVE ? i : save;
    if (!save)
        return tsr_node_error(tsr_job_at(job, "phases"),
                              "phases: found a list without save; allowed: with save, or null");
    TSR_TRY(tsr_sim_job_of(e, &run));
    tsr_status status = tsr_sim_run(&job->cluster, &run, &job->settings->sim, &result);
    if (status == TSR_ECONFIG)
        status = tsr_at_sim_key(job, status);
    if (status == TSR_OK)
        status = tsr_metrics_of(&run, result, e->steady, &metrics, NULL);
    if (status == TSR_OK) {
        m->step_s = metrics.step_s;
        m->save_s = tsr_section_added(e, result->iteration_end, save, metrics.step_s);
        m->checkpoint_bytes = written_bytes(job, e, save);
    }
    tsr_sim_result_destroy(result);
    tsr_sim_job_fini(&run);
    return status;
}

/* ---- the month --------------------------------------------------------------------------- */

static void describe(struct tsr_month *m)
{
    const struct tsr_goodput_settings *g = &m->job->settings->goodput;
    uint32_t per_node = m->job->cluster.gpus_per_node;
    m->nodes = (m->job->world + per_node - 1) / per_node;
    m->transfer_s = m->checkpoint_bytes / (g->storage_bw * m->nodes);
    m->best_in = (struct tsr_goodput_input){
        .mtbf_s = g->node_mtbf_s / m->nodes,
        .stall_s = m->save_s + (g->asynchronous ? 0 : m->transfer_s),
        .write_s = g->asynchronous ? m->transfer_s : 0,
        .restart_s = g->restart_s + m->transfer_s,
        .horizon_s = g->days * 86400,
        .seed = m->job->settings->sim.conditions.seed,
        .runs = (uint32_t)g->runs,
    };
    m->asked = m->best_in;
    m->has_asked = g->interval_s > 0;
}

/* Checkpoints come between steps. */
static double whole_steps(const struct tsr_month *m, double seconds)
{
    double steps = round(seconds / m->step_s);
    return (steps < 1 ? 1 : steps) * m->step_s;
}

static tsr_status simulate(struct tsr_month *m)
{
    const struct tsr_goodput_settings *g = &m->job->settings->goodput;
    describe(m);
    /* Never more than an event each second: a month has 2.6 million. */
    double low = m->step_s > 1 ? m->step_s : 1, high = m->best_in.horizon_s;
    high = high < 10 * m->best_in.mtbf_s ? high : 10 * m->best_in.mtbf_s;
    low = low > m->best_in.stall_s / 4 ? low : m->best_in.stall_s / 4;
    if (high < low)
        return tsr_node_error(
            tsr_job_at(m->job, "goodput.node_mtbf_hours"),
            "goodput.node_mtbf_hours: found %g of each of %u nodes: the job fails "
            "before a step and a checkpoint are over; allowed: more",
            g->node_mtbf_s / 3600, m->nodes);
    struct tsr_goodput_input search = m->best_in;
    search.runs = search.runs < SEARCH_RUNS ? search.runs : SEARCH_RUNS;
    m->try_runs = search.runs;
    m->low_s = low;
    m->high_s = high;
    TSR_TRY(tsr_goodput_best(&search, low, high, &m->best_in.interval_s, &m->best));
    m->best_in.interval_s = whole_steps(m, m->best_in.interval_s);
    TSR_TRY(tsr_goodput_simulate(&m->best_in, &m->best));
    if (!m->has_asked)
        return TSR_OK;
    m->asked.interval_s = whole_steps(m, g->interval_s);
    return tsr_goodput_simulate(&m->asked, &m->got);
}

/* ---- report ------------------------------------------------------------------------------ */

static double tokens_per_step(const struct tsr_month *m)
{
    const struct tsr_settings *s = m->job->settings;
    uint64_t per_rank = s->batch * s->seq * s->accum_steps / s->tp;
    return (double)per_rank * m->job->world;
}

static json_t *outcome(const struct tsr_month *m, const struct tsr_goodput_input *in,
                       const struct tsr_goodput *g)
{
    double per_s = tokens_per_step(m) / m->step_s;
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "interval_s",
                     in->interval_s, "goodput", g->useful, "goodput_p5", g->useful_p5,
                     "goodput_p50", g->useful_p50, "goodput_p95", g->useful_p95, "lost_work",
                     g->lost, "checkpoint", g->checkpoint, "restart", g->restart, "failures",
                     g->failures, "checkpoints", g->checkpoints, "tokens",
                     g->useful * in->horizon_s * per_s);
}

static json_t *to_json(const struct tsr_month *m)
{
    const struct tsr_goodput_input *in = &m->best_in;
    return json_pack("{s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:o, s:o}",
                     "strategy", m->job->strategy->name, "world_size", (int)m->job->world, "nodes",
                     (int)m->nodes, "step_time_s", m->step_s, "checkpoint_bytes",
                     m->checkpoint_bytes, "checkpoint_stall_s", in->stall_s, "checkpoint_write_s",
                     in->write_s, "restart_s", in->restart_s, "mean_time_between_failures_s",
                     in->mtbf_s, "horizon_s", in->horizon_s, "runs", (int)in->runs, "asked",
                     m->has_asked ? outcome(m, &m->asked, &m->got) : json_null(), "best",
                     outcome(m, in, &m->best));
}

static void put_column(const struct tsr_goodput *g, double horizon_s, double out[8])
{
    const double hours = horizon_s / 3600;
    out[0] = g->useful * 100;
    out[1] = g->useful_p5 * 100;
    out[2] = g->useful_p95 * 100;
    out[3] = g->lost * hours;
    out[4] = g->checkpoint * hours;
    out[5] = g->restart * hours;
    out[6] = g->failures;
    out[7] = g->checkpoints;
}

static void put_table(const struct tsr_month *m)
{
    static const char *const names[] = {
        "goodput %",          "p5 of the runs",       "p95 of the runs",
        "hours of work lost", "hours of checkpoints", "hours of restarts",
        "failures",           "checkpoints"};
    double columns[2][8];
    char heads[2][48];
    int n = 0;
    if (m->has_asked) {
        put_column(&m->got, m->asked.horizon_s, columns[n]);
        snprintf(heads[n++], sizeof *heads, "every %.1f min", m->asked.interval_s / 60);
    }
    put_column(&m->best, m->best_in.horizon_s, columns[n]);
    snprintf(heads[n++], sizeof *heads, "best: every %.1f min", m->best_in.interval_s / 60);
    printf("| %-20s ", "");
    for (int c = 0; c < n; c++)
        printf("| %20s ", heads[c]);
    printf("|\n|:---------------------");
    for (int c = 0; c < n; c++)
        printf("|---------------------:");
    printf("|\n");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        printf("| %-20s ", names[i]);
        for (int c = 0; c < n; c++)
            printf("| %20.2f ", columns[c][i]);
        printf("|\n");
    }
}

static void put_markdown(const struct tsr_month *m, const struct tsr_study_info *info)
{
    const struct tsr_goodput_settings *g = &m->job->settings->goodput;
    const struct tsr_goodput_input *in = &m->best_in;
    printf("## %s\n\n%s on %s, strategy %s: %u x %s in %u nodes\n\n", info->title, info->model_name,
           info->cluster_name, m->job->strategy->name, m->job->world, info->gpu_name, m->nodes);
    printf("A failure every %.1f h (each node: every %.0f h). A step of %.1f ms; a checkpoint of "
           "%.1f GB\nstops it for %.1f s",
           in->mtbf_s / 3600, g->node_mtbf_s / 3600, m->step_s * 1e3, m->checkpoint_bytes / 1e9,
           in->stall_s);
    if (in->write_s > 0)
        printf(" and is complete %.1f s later", in->write_s);
    printf("; a restart takes %.1f min. %.0f days, mean of %u runs:\n\n", in->restart_s / 60,
           in->horizon_s / 86400, in->runs);
    put_table(m);
    printf("\nGoodput: work that counts, as a share of the time. Step and checkpoint times are "
           "simulated, for the\ndevice file %s; failure rate, storage rate and restart time are "
           "the keys goodput.*.\n",
           info->device_file);
}

static void put_csv(const struct tsr_month *m)
{
    const struct tsr_goodput_input *ins[] = {&m->asked, &m->best_in};
    const struct tsr_goodput *gots[] = {&m->got, &m->best};
    printf("strategy,which,interval_s,goodput,goodput_p5,goodput_p50,goodput_p95,lost_work,"
           "checkpoint,restart,failures,checkpoints,step_time_s,checkpoint_bytes\n");
    for (int i = m->has_asked ? 0 : 1; i < 2; i++) {
        const struct tsr_goodput *g = gots[i];
        printf("%s,%s,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.0f\n",
               m->job->strategy->name, i ? "best" : "asked", ins[i]->interval_s, g->useful,
               g->useful_p5, g->useful_p50, g->useful_p95, g->lost, g->checkpoint, g->restart,
               g->failures, g->checkpoints, m->step_s, m->checkpoint_bytes);
    }
}

static tsr_status report(const struct tsr_args *args, const struct tsr_study *study,
                         const struct tsr_month *m)
{
    if (!strcmp(args->format, "md")) {
        put_markdown(m, &study->info);
    } else if (!strcmp(args->format, "csv")) {
        put_csv(m);
    } else {
        TSR_TRY(tsr_put_json(stdout, to_json(m)));
    }
    return tsr_flush(stdout, "standard output");
}

/* ---- command ----------------------------------------------------------------------------- */

tsr_status tsr_cmd_goodput(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    struct tsr_study study;
    struct tsr_emission emission;
    *success = TSR_EXIT_OK;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    if (args->n_sets == TSR_MAX_SETS)
        return tsr_fail(TSR_ECONFIG, "--set: found %d; allowed: up to %d", TSR_MAX_SETS,
                        TSR_MAX_SETS - 1);
    args->sets[args->n_sets++] = "phases=[step1, step2, save]";
    if (args->print_config)
        return tsr_print_config(args);
    if (args->out)
        TSR_TRY(tsr_prepare_out(args->out));
    TSR_TRY(tsr_study_open(args, &study));
    struct tsr_month m = {.job = &study.jobs[0]};
    tsr_status status = TSR_OK;
    if (study.n != 1)
        status =
            tsr_fail(TSR_ECONFIG, "%s: --strategy: none given; allowed: the name of one of %zu",
                     args->file, study.n);
    if (status == TSR_OK)
        status = tsr_emit(m.job, &emission);
    if (status == TSR_OK) {
        status = measure(m.job, &emission, &m);
        tsr_emission_fini(&emission);
    }
    if (status == TSR_OK)
        status = simulate(&m);
    if (status == TSR_OK)
        status = report(args, &study, &m);
    if (status == TSR_OK && args->out)
        status = tsr_month_write(&m, &study.info, args->out);
    if (status == TSR_OK)
        tsr_study_notes(&study);
    tsr_study_fini(&study);
    return status;
}
