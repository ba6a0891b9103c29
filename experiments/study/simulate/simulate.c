/* simulate.c: emits a strategy, replays its memory, runs the simulator, derives the figures. */
#include "experiments/study/simulate/simulate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/graph/host_memory.h"
#include "experiments/study/base/exit_status.h"
#include "experiments/study/html/html.h"
#include "experiments/study/job/emit.h"
#include "experiments/study/job/owner.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/validated.h"
#include "experiments/study/simulate/oom.h"
#include "sim/base/quantile.h"

/* ---- the row ----------------------------------------------------------------------------- */

void tsr_row_begin(struct tsr_row *row, const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    memset(row, 0, sizeof(*row));
    snprintf(row->strategy, sizeof row->strategy, "%s", job->strategy->name);
    tsr_strategy_words(s, row->summary, sizeof row->summary);
    row->changes = job->changes;
    row->world = job->world;
    snprintf(row->device, sizeof row->device, "%s", job->cluster.gpu.name);
    row->trains = s->run.train != NULL;
    row->tokens_per_rank = tsr_job_tokens(job);
    row->usable_bytes = job->cluster.gpu.visible_bytes;
    row->mfu = -1;
    row->fits = TSR_FITS_UNKNOWN;
    row->retry_s = -1;
    row->context_bytes = row->library_bytes = row->nccl_bytes = -1;
    tsr_time_error_of(job, &row->time_error);
}

void tsr_row_fail(struct tsr_row *row, tsr_status status)
{
    snprintf(row->failure, sizeof row->failure, "%s", tsr_error_text());
    row->failure_status = tsr_exit_status(status);
    if (status == TSR_EOOM)
        row->fits = TSR_FITS_NO;
}

/* Whether the FLOP of a kernel are those of products, which run at the peak of their dtype. */
static bool has_products(const struct tsr_work *work)
{
    return work->op == TSR_OP_GEMM || work->op == TSR_OP_ATTENTION ||
           work->op == TSR_OP_ATTENTION_BWD || work->op == TSR_OP_GENERIC;
}

/* Whether what was asked for may make kernels faster than the device file says. */
static bool is_sped_up(const struct tsr_sim_options *sim)
{
    return tsr_is_noisy(&sim->conditions) || (sim->slow_factor > 0 && sim->slow_factor < 1);
}

/* Sets row->mfu: the time that the model's FLOP would take at the peak of the dtype in which each
 * kernel runs, over the time of the step. Unknown where one of these peaks is, or noise makes
 * kernels faster than the card. With causal attention, which counts in full, it may exceed 1. The
 * executed FLOP may not: then the device file contradicts itself. */
static tsr_status set_mfu(const struct tsr_job *job, const struct tsr_program *program,
                          struct tsr_row *row)
{
    const struct tsr_kernel_choice *choice = &job->settings->sim.kernels;
    double counted_s = 0, executed_s = 0;
    for (size_t i = 0; i < program->n_instrs; i++) {
        const struct tsr_work *work = program->instrs[i].work;
        if (!work || program->instrs[i].kind == TSR_HOST_OP ||
            !(has_products(work) && work->flops > 0))
            continue;
        double peak = tsr_work_peak(&job->cluster.gpu, choice, work);
        if (peak <= 0)
            return TSR_OK;
        counted_s += work->model_flops / peak;
        executed_s += work->flops / peak;
    }
    if (row->steady.step_s <= 0)
        return TSR_OK;
    if (executed_s > row->steady.step_s && is_sped_up(&job->settings->sim))
        return TSR_OK;
    if (executed_s > row->steady.step_s)
        return tsr_fail(TSR_ECONFIG,
                        "%s: key \"peak_dense_flop_per_s\": the products of a step take %.4g s at "
                        "these peaks, the step only %.4g s: a peak is too small, or a time of a "
                        "kernel table too short",
                        job->cluster.gpu.path, executed_s, row->steady.step_s);
    row->mfu = counted_s / row->steady.step_s;
    return TSR_OK;
}

/* ---- time -------------------------------------------------------------------------------- */

struct run {
    struct tsr_sim_job job;
    struct tsr_sim_result *result;
};

static tsr_status open_run(const struct tsr_emission *emission, struct run *run)
{
    memset(run, 0, sizeof(*run));
    return tsr_sim_job_of(emission, &run->job);
}

static void close_run(struct run *run)
{
    tsr_sim_result_destroy(run->result);
    tsr_sim_job_fini(&run->job);
}

static const struct tsr_sim_rank *find_rank(const struct tsr_sim_result *result, uint32_t rank)
{
    return &result->ranks[result->class_of[rank]];
}

/* Simulated = programmed: the hash that the simulator made of what it did must be the program's. */
static tsr_status check_hashes(const struct tsr_emission *emission,
                               const struct tsr_sim_result *result)
{
    for (uint32_t r = 0; r < result->n_ranks; r++) {
        const struct tsr_sim_rank *rank = &result->ranks[r];
        for (uint32_t i = 0; i < result->n_iterations; i++) {
            const struct tsr_program *program = emission->classes[rank->layout].programs[i];
            if (rank->exec_hash[i] != tsr_program_expected_exec_hash(program))
                return tsr_fail(TSR_EDEFECT,
                                "defect: rank %u, iteration %d: the simulator did not execute the "
                                "program (hash %016llx, expected %016llx)",
                                rank->rank, program->iteration,
                                (unsigned long long)rank->exec_hash[i],
                                (unsigned long long)tsr_program_expected_exec_hash(program));
        }
    }
    return TSR_OK;
}

/* A save that goes on beside the next step adds what that step takes longer. */
static void take_sections(const struct tsr_emission *emission, const struct tsr_sim_result *result,
                          struct tsr_row *row)
{
    for (uint32_t i = 0; i < emission->n_iterations; i++) {
        enum tsr_section section = tsr_section_of(emission, i);
        if (section < TSR_N_SECTIONS)
            row->sections[section].added_s =
                tsr_section_added(emission, result->iteration_end, i, row->steady.step_s);
    }
}

/* Kernels that no rule of engine/traced/traced_ops.c knows. */
static tsr_status take_unknown(const struct tsr_job *job, const struct tsr_program *program,
                               struct tsr_row *row)
{
    row->unknown_s = 0;
    for (size_t i = 0; job->model.trace && i < program->n_instrs; i++) {
        const struct tsr_instr *instr = &program->instrs[i];
        double seconds = 0;
        if (instr->kind != TSR_OP || instr->work->op != TSR_OP_GENERIC)
            continue;
        TSR_TRY(
            tsr_cost_kernel(&job->cluster.gpu, &job->settings->sim.kernels, instr->work, &seconds));
        row->unknown_s += seconds;
    }
    return TSR_OK;
}

static tsr_status take_times(const struct tsr_job *job, const struct tsr_emission *emission,
                             const struct run *run, struct tsr_row *row, uint32_t *shown)
{
    uint32_t last = emission->steady;
    TSR_TRY(tsr_metrics_of(&run->job, run->result, emission->first, &row->first, NULL));
    TSR_TRY(tsr_metrics_of(&run->job, run->result, last, &row->steady, shown));
    take_sections(emission, run->result, row);
    const struct tsr_sim_rank *rank = find_rank(run->result, *shown);
    const struct tsr_program *program = emission->classes[rank->layout].programs[last];
    row->program_hash = tsr_program_hash(program);
    TSR_TRY(take_unknown(job, program, row));
    row->expected_exec_hash = tsr_program_expected_exec_hash(program);
    row->exec_hash = rank->exec_hash[last];
    row->n_instructions = program->n_instrs;
    row->n_activities = run->result->n_activities;
    row->n_iterations = emission->steady - emission->first + 1;
    row->n_rank_classes = emission->n_classes;
    row->n_simulated_ranks = run->result->n_ranks;
    row->emit_s = emission->seconds;
    row->sim_s = run->result->wall_s;
    return set_mfu(job, program, row);
}

/* ---- samples ----------------------------------------------------------------------------- */

static tsr_status check_samples(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    if (s->samples == 1 || tsr_is_noisy(&s->sim.conditions))
        return TSR_OK;
    return tsr_node_error(tsr_job_at(job, TSR_K_SIM_SAMPLES),
                          "sim.samples: found %llu without noise: all samples are equal; allowed: "
                          "1, or with sim.jitter_kernel or sim.jitter_gpu above 0",
                          (unsigned long long)s->samples);
}

static tsr_status one_step(const struct tsr_job *job, const struct tsr_sim_job *run,
                           uint64_t number, uint32_t iteration, double *step)
{
    struct tsr_sim_options options = job->settings->sim;
    struct tsr_sim_result *result;
    struct tsr_metrics metrics;
    options.conditions.seed += number;
    TSR_TRY(tsr_sim_run(&job->cluster, run, &options, &result));
    tsr_status status = tsr_metrics_of(run, result, iteration, &metrics, NULL);
    *step = metrics.step_s;
    tsr_sim_result_destroy(result);
    return status;
}

/* Simulates the run with the seeds that follow the strategy's, whose sample is row->steady. */
static tsr_status take_samples(const struct tsr_job *job, const struct tsr_sim_job *run,
                               uint32_t iteration, struct tsr_row *row)
{
    size_t n = job->settings->samples;
    tsr_status status = TSR_OK;
    if (n <= 1)
        return TSR_OK;
    double *steps = calloc(n, sizeof *steps);
    if (!steps)
        return tsr_no_memory(NULL);
    steps[0] = row->steady.step_s;
    for (size_t i = 1; i < n; i++)
        TSR_GOTO(done, one_step(job, run, i, iteration, &steps[i]));
    tsr_sort_ascending(steps, n);
    struct tsr_samples *s = &row->samples;
    s->n = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        s->mean_s += steps[i] / (double)n;
    s->p5_s = tsr_quantile(steps, n, 0.05);
    s->p50_s = tsr_quantile(steps, n, 0.50);
    s->p95_s = tsr_quantile(steps, n, 0.95);
done:
    free(steps);
    return status;
}

/* ---- all of it --------------------------------------------------------------------------- */

static tsr_status show_detail(const struct tsr_job *job, const struct tsr_emission *emission,
                              const struct run *run, uint32_t shown, const struct tsr_row *row,
                              tsr_look_fn look, void *user)
{
    const struct tsr_sim_rank *rank = find_rank(run->result, shown);
    unsigned phases = job->settings->phases;
    char sections[TSR_MAX_ITERATIONS] = {0};
    for (uint32_t i = 0; i < emission->n_iterations; i++) {
        enum tsr_section section = tsr_section_of(emission, i);
        if (section < TSR_N_SECTIONS && phases >> section & 1)
            sections[i] = (char)(1 + (int)section);
    }
    struct tsr_detail detail = {.row = row,
                                .programs = run->job.programs[rank->layout],
                                .spans = rank->spans,
                                .joined = rank->joined,
                                .iteration_end = run->result->iteration_end,
                                .n_iterations = emission->n_iterations,
                                .steady = emission->steady,
                                .shown = phases ? sections : NULL,
                                .rank = shown,
                                .slow_rank = job->settings->sim.slow_rank,
                                .slow_factor = job->settings->sim.slow_factor,
                                .allocator = &job->settings->allocator};
    return look(user, &detail);
}

tsr_status tsr_simulate_times(const struct tsr_job *job, const struct tsr_emission *emission,
                              struct tsr_row *row, uint32_t rank, tsr_look_fn look, void *user)
{
    struct run run;
    uint32_t shown = 0;
    if (rank != TSR_SLOWEST_RANK && rank >= job->world)
        return tsr_fail(TSR_ECONFIG, "--rank: found %u; allowed: 0 to %u, the ranks of strategy %s",
                        rank, job->world - 1, job->strategy->name);
    TSR_TRY(check_samples(job));
    TSR_TRY(open_run(emission, &run));
    tsr_status status = tsr_sim_run(&job->cluster, &run.job, &job->settings->sim, &run.result);
    TSR_GOTO(done, status == TSR_ECONFIG ? tsr_at_sim_key(job, status) : status);
    TSR_GOTO(done, check_hashes(emission, run.result));
    TSR_GOTO(done, take_times(job, emission, &run, row, &shown));
    TSR_GOTO(done, take_samples(job, &run.job, emission->steady, row));
    if (rank != TSR_SLOWEST_RANK)
        shown = rank;
    else if (tsr_rank_0_differs(job->settings))
        shown = 0;
    if (look)
        TSR_GOTO(done, show_detail(job, emission, &run, shown, row, look, user));
done:
    close_run(&run);
    return status;
}

struct files {
    const struct tsr_study_info *info;
    const char *dir;
};

static tsr_status write_files(void *user, const struct tsr_detail *detail)
{
    const struct files *files = user;
    TSR_TRY(tsr_report_detail(files->dir, files->info, detail));
    return tsr_html_view(files->dir, files->info, detail);
}

/* The device is too small: the row says what did not fit, and so do files. */
static tsr_status run_out(const struct tsr_job *job, struct tsr_emission *emission, const char *dir,
                          struct tsr_row *row)
{
    tsr_status status = tsr_oom_fail(job, emission, dir, row);
    tsr_emission_fini(emission);
    return status;
}

/* What retries cost: the step beside that of an allocator without a limit. */
static tsr_status take_retry_cost(const struct tsr_job *job, struct tsr_row *row)
{
    struct tsr_job free = *job;
    struct tsr_emission emission;
    struct tsr_row other;
    free.limit_bytes = TSR_UNLIMITED;
    free.is_trial = true;
    tsr_row_begin(&other, &free);
    TSR_TRY(tsr_emit(&free, &emission));
    tsr_status status = tsr_simulate_times(&free, &emission, &other, TSR_SLOWEST_RANK, NULL, NULL);
    if (status == TSR_OK)
        row->retry_s = fmax(0, row->steady.step_s - other.steady.step_s);
    tsr_emission_fini(&emission);
    return status;
}

tsr_status tsr_simulate(const struct tsr_job *job, const struct tsr_study_info *info,
                        const char *dir, struct tsr_row *row)
{
    struct tsr_emission emission;
    struct files files = {info, dir};
    tsr_row_begin(row, job);
    tsr_status status = tsr_emit_or_keep(job, &emission);
    if (status == TSR_EOOM)
        return run_out(job, &emission, dir, row);
    if (status != TSR_OK) {
        if (status != TSR_ECONFIG && status != TSR_ENOMEM)
            status = tsr_node_wrap_error(job->strategy->at, status, row->strategy);
        tsr_row_fail(row, status);
        return status;
    }
    status = tsr_peak_of(job, &emission, row);
    if (status == TSR_OK)
        status = tsr_simulate_times(job, &emission, row, TSR_SLOWEST_RANK, dir ? write_files : NULL,
                                    &files);
    bool has_retries = row->fit.retries > 0 && row->fit.limit;
    tsr_emission_fini(&emission);
    if (status == TSR_OK && has_retries && info) /* searches do without */
        status = take_retry_cost(job, row);
    if (status != TSR_OK)
        tsr_row_fail(row, status);
    return status;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Replays the programs of every rank class and keeps the largest peaks, section by section;
 * and sets them against the card, together with what lies outside the allocator. */

static void put_owner(char *out, size_t size, const struct tsr_tables *tables,
                      const struct tsr_origin *origin)
{
    char buffer[32];
    snprintf(out, size, "%s", tsr_owner_of(tables, origin, buffer));
}

static void take_peak(struct tsr_row *row, const struct tsr_memory_peak *peak,
                      const struct tsr_program *program)
{
    row->peak_allocated = peak->allocated;
    memcpy(row->peak_by_category, peak->by_category, sizeof row->peak_by_category);
    put_owner(row->peak_module, sizeof row->peak_module, program->tables, &peak->origin);
    snprintf(row->peak_phase, sizeof row->peak_phase, "%s", tsr_phase_name(peak->origin.phase));
}

static void take_section(struct tsr_section_peak *s, const struct tsr_memory_peak *peak,
                         const struct tsr_host_peak *host, const struct tsr_program *program)
{
    if (!s->there || peak->allocated > s->allocated) {
        s->allocated = peak->allocated;
        put_owner(s->module, sizeof s->module, program->tables, &peak->origin);
        snprintf(s->phase, sizeof s->phase, "%s", tsr_phase_name(peak->origin.phase));
    }
    s->there = true;
    s->reserved = tsr_max_u64(s->reserved, peak->reserved);
    s->host = tsr_max_u64(s->host, host->most.host);
    s->pinned = tsr_max_u64(s->pinned, host->most.held);
}

/* One program of a class, after the ones before it. */
static void take_program(const struct tsr_emission *emission, uint32_t i,
                         const struct tsr_memory_peak *peak, const struct tsr_host_peak *host,
                         const struct tsr_program *program, struct tsr_row *row)
{
    enum tsr_section section = tsr_section_of(emission, i);
    row->most_reserved = tsr_max_u64(row->most_reserved, peak->reserved);
    row->most_requested = tsr_max_u64(row->most_requested, peak->requested);
    row->host_bytes = tsr_max_u64(row->host_bytes, host->most.host);
    row->pinned_bytes = tsr_max_u64(row->pinned_bytes, host->most.held);
    if (section < TSR_N_SECTIONS)
        take_section(&row->sections[section], peak, host, program);
    if (i == emission->first) {
        row->first_peak_allocated = tsr_max_u64(row->first_peak_allocated, peak->allocated);
        row->first_peak_reserved = tsr_max_u64(row->first_peak_reserved, peak->reserved);
    }
    if (i != emission->steady)
        return;
    row->peak_reserved = tsr_max_u64(row->peak_reserved, peak->reserved);
    if (peak->allocated > row->peak_allocated)
        take_peak(row, peak, program);
}

static tsr_status replay_class(const struct tsr_emission *emission,
                               const struct tsr_emitted_class *class, struct tsr_row *row)
{
    struct tsr_memory *memory = NULL;
    struct tsr_host_level level = {0};
    struct tsr_workspaces workspaces[2] = {{.bytes = 0}}; /* the second: deterministic */
    TSR_TRY(tsr_memory_create(&memory));
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < emission->n_iterations && status == TSR_OK; i++) {
        struct tsr_memory_peak peak;
        struct tsr_host_peak host;
        status = tsr_memory_replay(memory, class->programs[i], NULL, NULL, &peak);
        if (status == TSR_OK)
            status = tsr_host_replay(&level, class->programs[i], &host);
        if (status == TSR_OK)
            take_program(emission, i, &peak, &host, class->programs[i], row);
        for (size_t k = 0; k < class->programs[i]->n_instrs && status == TSR_OK; k++)
            for (int exact = 0; exact < 2; exact++)
                tsr_workspaces_take(&workspaces[exact], &class->programs[i]->instrs[k], exact);
    }
    row->run_workspace_bytes = tsr_max_u64(row->run_workspace_bytes, workspaces[0].bytes);
    row->run_workspace_deterministic_bytes =
        tsr_max_u64(row->run_workspace_deterministic_bytes, workspaces[1].bytes);
    tsr_memory_destroy(memory);
    return status;
}

static tsr_status take_node_host(const struct tsr_job *job, const struct tsr_emission *emission,
                                 struct tsr_row *row)
{
    struct tsr_host_use use;
    TSR_TRY(tsr_host_use_of(job, emission, &use));
    for (uint32_t i = 0; i < emission->n_iterations; i++) {
        enum tsr_section section = tsr_section_of(emission, i);
        if (section < TSR_N_SECTIONS)
            row->sections[section].node_host = use.nodes[i].bytes;
    }
    tsr_host_fit_of(job, emission, &use, &row->node_host);
    tsr_host_use_fini(&use);
    return TSR_OK;
}

/* ---- memory against the card ----------------------------------------------------------------- */

static int64_t known_or_negative(uint64_t bytes)
{
    return bytes ? (int64_t)bytes : -1;
}

static uint64_t known(int64_t bytes)
{
    return bytes > 0 ? (uint64_t)bytes : 0;
}

static void take_outside(const struct tsr_job *job, struct tsr_row *row)
{
    const struct tsr_gpu *gpu = &job->cluster.gpu;
    row->context_bytes = known_or_negative(gpu->context_bytes);
    row->library_bytes = known_or_negative(gpu->library_bytes);
    row->nccl_bytes = row->fit.has_nccl ? (int64_t)row->fit.nccl : -1;
    row->needed = row->most_reserved + known(row->nccl_bytes) + known(row->context_bytes) +
                  known(row->library_bytes);
}

tsr_status tsr_peak_of(const struct tsr_job *job, const struct tsr_emission *emission,
                       struct tsr_row *row)
{
    for (uint32_t i = 0; i < emission->n_classes; i++)
        TSR_TRY(replay_class(emission, &emission->classes[i], row));
    if (emission->fit.is_known) /* a run leaves the programs of one rank */
        TSR_TRY(take_node_host(job, emission, row));
    row->fit = emission->fit;
    if (!row->fit.is_known) /* it ran: nobody emitted it */
        TSR_TRY(tsr_fit_measured(job, emission, row->most_reserved, &row->fit));
    row->fits = row->node_host.verdict == TSR_HOST_TOO_SMALL ? TSR_FITS_NO : row->fit.verdict;
    take_outside(job, row);
    row->show_sections = job->settings->phases;
    return TSR_OK;
}

tsr_status tsr_peak_measure(const struct tsr_job *job, struct tsr_row *row)
{
    struct tsr_emission emission;
    tsr_row_begin(row, job);
    tsr_status status = tsr_emit(job, &emission);
    if (status == TSR_OK) {
        status = tsr_peak_of(job, &emission, row);
        tsr_emission_fini(&emission);
    }
    if (status != TSR_OK)
        tsr_row_fail(row, status);
    return status;
}
