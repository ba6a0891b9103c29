/* goodput_month.c: a month of a job that fails now and then.
 *
 * What a step and a checkpoint take is simulated from the strategy's programs; the month is then
 * sim/figures/goodput.c. Bytes are those that the engine's save program copies to hosts.
 */
#include "experiments/study/goodput/goodput_page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "experiments/study/job/emit.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"

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

static tsr_status simulate_step(const struct tsr_job *job, const struct tsr_emission *e,
                                struct tsr_month *m)
{
    struct tsr_sim_job run;
    struct tsr_sim_result *result = NULL;
    struct tsr_metrics metrics;
    uint32_t save = 0;
    for (uint32_t i = 1; i < e->n_iterations; i++)
        save = tsr_section_of(e, i) == TSR_SECTION_SAVE ? i : save;
    if (!save)
        return tsr_node_error(tsr_job_at(job, TSR_K_PHASES),
                              "phases: found a list without save; allowed: with save, or null");
    TSR_TRY(tsr_sim_job_of(e, &run));
    tsr_status status = tsr_sim_run(&job->cluster, &run, &job->settings->sim, &result);
    TSR_GOTO(done, status == TSR_ECONFIG ? tsr_at_sim_key(job, status) : status);
    TSR_GOTO(done, tsr_metrics_of(&run, result, e->steady, &metrics, NULL));
    m->step_s = metrics.step_s;
    m->save_s = tsr_section_added(e, result->iteration_end, save, metrics.step_s);
    m->checkpoint_bytes = written_bytes(job, e, save);
done:
    tsr_sim_result_destroy(result);
    tsr_sim_job_fini(&run);
    return status;
}

/* ---- the month --------------------------------------------------------------------------- */

static void describe(const struct tsr_job *job, struct tsr_month *m)
{
    const struct tsr_settings *s = job->settings;
    const struct tsr_goodput_settings *g = &s->goodput;
    uint32_t per_node = job->cluster.gpus_per_node;
    m->nodes = (job->world + per_node - 1) / per_node;
    m->node_mtbf_s = g->node_mtbf_s;
    uint64_t tokens_of_a_rank = tsr_job_tokens(job);
    m->tokens_per_step = (double)tokens_of_a_rank * job->world;
    m->transfer_s = m->checkpoint_bytes / (g->storage_bw * m->nodes);
    m->best_in = (struct tsr_goodput_input){
        .mtbf_s = g->node_mtbf_s / m->nodes,
        .stall_s = m->save_s + (g->asynchronous ? 0 : m->transfer_s),
        .write_s = g->asynchronous ? m->transfer_s : 0,
        .restart_s = g->restart_s + m->transfer_s,
        .horizon_s = g->days * 86400,
        .seed = s->sim.conditions.seed,
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

static tsr_status simulate_month(const struct tsr_job *job, struct tsr_month *m)
{
    const struct tsr_goodput_settings *g = &job->settings->goodput;
    describe(job, m);
    /* Never more than an event each second: a month has 2.6 million. */
    double low = m->step_s > 1 ? m->step_s : 1, high = m->best_in.horizon_s;
    high = high < 10 * m->best_in.mtbf_s ? high : 10 * m->best_in.mtbf_s;
    low = low > m->best_in.stall_s / 4 ? low : m->best_in.stall_s / 4;
    if (high < low)
        return tsr_node_error(
            tsr_job_at(job, TSR_K_GOODPUT_NODE_MTBF_HOURS),
            "goodput.node_mtbf_hours: found %g of each of %u nodes: the job fails "
            "before a step and a checkpoint are over; allowed: more",
            g->node_mtbf_s / 3600, m->nodes);
    struct tsr_goodput_input search = m->best_in;
    search.runs = search.runs < SEARCH_RUNS ? search.runs : SEARCH_RUNS;
    m->try_runs = search.runs;
    m->low_s = low;
    m->high_s = high;
    TSR_TRY(tsr_goodput_best(&search, low, high, &m->best_in.interval_s, &m->best));
    search.interval_s = m->best_in.interval_s;
    TSR_TRY(tsr_goodput_flat(&search, low, high, TSR_FLAT_LOSS, &m->flat));
    m->flat.from_s = whole_steps(m, m->flat.from_s);
    m->flat.to_s = whole_steps(m, m->flat.to_s);
    m->best_in.interval_s = whole_steps(m, m->best_in.interval_s);
    TSR_TRY(tsr_goodput_simulate(&m->best_in, &m->best));
    if (!m->has_asked)
        return TSR_OK;
    m->asked.interval_s = whole_steps(m, g->interval_s);
    return tsr_goodput_simulate(&m->asked, &m->got);
}

tsr_status tsr_month_of(const struct tsr_job *job, struct tsr_month *out)
{
    struct tsr_emission emission;
    *out = (struct tsr_month){.strategy = job->strategy->name, .world = job->world};
    TSR_TRY(tsr_emit(job, &emission));
    tsr_status status = simulate_step(job, &emission, out);
    tsr_emission_fini(&emission);
    TSR_TRY(status);
    return simulate_month(job, out);
}

struct tsr_shown tsr_hours(double seconds)
{
    struct tsr_shown shown;
    bool days = seconds >= TSR_DAYS_FROM_S;
    (void)snprintf(shown.text, sizeof shown.text, days ? "%.2f days" : "%.2f h",
                   seconds / (days ? 86400 : 3600));
    return shown;
}

struct tsr_shown tsr_interval(double seconds)
{
    struct tsr_shown shown;
    if (seconds >= 4 * 3600.0)
        return tsr_hours(seconds);
    (void)snprintf(shown.text, sizeof shown.text, "%.1f min", seconds / 60);
    return shown;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* What `tessera goodput --out` leaves behind. */

enum { N_POINTS = 48 };

struct curve {
    const struct tsr_month *month;
    const struct tsr_study_info *info;
    double interval_s[N_POINTS];
    struct tsr_goodput at[N_POINTS];
};

/* A decade below and above the best interval and what is as good, as far as intervals were tried.
 */
static tsr_status draw_curve(struct curve *c)
{
    const struct tsr_month *m = c->month;
    double low = fmax(m->low_s, fmin(m->flat.from_s, m->best_in.interval_s / 16));
    double high = fmin(m->high_s, fmax(m->flat.to_s, m->best_in.interval_s * 16));
    struct tsr_goodput_input in = m->best_in;
    in.runs = m->try_runs;
    for (int i = 0; i < N_POINTS; i++) {
        in.interval_s = c->interval_s[i] = low * pow(high / low, (double)i / (N_POINTS - 1));
        TSR_TRY(tsr_goodput_simulate(&in, &c->at[i]));
    }
    return TSR_OK;
}

static tsr_status write_curve(FILE *out, const void *user)
{
    const struct curve *c = user;
    tsr__put_provenance(out, c->info, c->month->strategy,
                        "shares of the time, by the work between two checkpoints");
    fputs("interval_s,useful,useful_p5,useful_p95,lost,checkpoint,restart\n", out);
    for (int i = 0; i < N_POINTS; i++) {
        const struct tsr_goodput *g = &c->at[i];
        fprintf(out, "%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g\n", c->interval_s[i], g->useful,
                g->useful_p5, g->useful_p95, g->lost, g->checkpoint, g->restart);
    }
    return TSR_OK;
}

static tsr_status write_frame(FILE *out, const void *user)
{
    const struct curve *c = user;
    const struct tsr_month *m = c->month;
    char head[512];
    snprintf(head, sizeof head, "%s · %s · %u GPUs · strategy %s", c->info->model_name,
             c->info->cluster_name, m->world, m->strategy);
    tsr__put_provenance(out, c->info, m->strategy,
                        "what the picture of goodput.csv says beside it");
    fputs("best_s,best,asked_s,asked,mtbf_s,stall_s,restart_s,days,head,flat_from_s,flat_to_s,"
          "flat_loss\n",
          out);
    fprintf(out, "%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,", m->best_in.interval_s, m->best.useful,
            m->has_asked ? m->asked.interval_s : 0.0, m->has_asked ? m->got.useful : 0.0,
            m->best_in.mtbf_s, m->best_in.stall_s, m->best_in.restart_s,
            m->best_in.horizon_s / 86400);
    tsr__put_plain(out, head);
    fprintf(out, ",%.9g,%.9g,%.9g\n", m->flat.from_s, m->flat.to_s, TSR_FLAT_LOSS);
    return TSR_OK;
}

static tsr_status write_resolved(FILE *out, const void *user)
{
    const struct curve *c = user;
    fputs(c->info->resolved_yaml, out);
    return TSR_OK;
}

tsr_status tsr_month_write(const struct tsr_month *month, const struct tsr_study_info *info,
                           const char *dir)
{
    static const struct tsr_named_write files[] = {{"experiment.yaml", write_resolved},
                                                   {"goodput.csv", write_curve},
                                                   {"goodput-frame.csv", write_frame}};
    struct curve *c = calloc(1, sizeof *c);
    if (!c)
        return tsr_no_memory(NULL);
    c->month = month;
    c->info = info;
    tsr_status status;
    TSR_GOTO(done, draw_curve(c));
    TSR_GOTO(done, tsr_write_each(dir, files, sizeof files / sizeof *files, c));
    const struct tsr_month_curve points = {c->interval_s, c->at, N_POINTS};
    TSR_GOTO(done, tsr_month_page(month, info, &points, dir));
    status = tsr_report_picture(dir, "goodput");
done:
    free(c);
    return status;
}
