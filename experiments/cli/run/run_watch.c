/* run_watch.c: the checker and the profile beside a rank that trains. */
#include "experiments/cli/run/run_watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/cli/inspect/check_run.h"
#include "experiments/study/base/files.h"
#include "experiments/study/html/html.h"
#include "experiments/study/report/report.h"
#include "experiments/study/simulate/simulate.h"

/* ---- --check --------------------------------------------------------------------------------- */

tsr_status tsr_run_check_job(const struct tsr_job *job)
{
    const struct tsr_check_source source = tsr_check_job(job);
    char finding[900];
    TSR_TRY(tsr_check_quietly(&source, finding, sizeof finding));
    return *finding ? tsr_fail(TSR_EDEFECT, "--check: %s; see tessera check", finding) : TSR_OK;
}

static tsr_status watch_for_check(struct tsr_executor *x, const struct tsr_instr *instr)
{
    struct tsr_run_check *c = (struct tsr_run_check *)x;
    if (tsr_instr_is_work(instr)) {
        struct tsr_exec_record record = tsr_exec_record_of(instr);
        tsr_exec_record_done(&c->told, &record);
    }
    return c->checks->ops->submit(c->checks, instr);
}

static const struct tsr_executor_ops check_ops = {.size = sizeof(struct tsr_executor_ops),
                                                  .version = TSR_EXECUTOR_VERSION,
                                                  .name = "check",
                                                  .submit = watch_for_check};

tsr_status tsr_run_check_init(struct tsr_run_check *c, uint32_t rank, uint32_t world,
                              struct tsr_executor *next)
{
    const struct tsr_checker_config config = {.world = world, .stop = true};
    *c = (struct tsr_run_check){.base = {.ops = &check_ops}, .rank = rank};
    tsr_exec_hash_init(&c->told);
    TSR_TRY(tsr_checker_create(&config, &c->checker));
    return tsr_checker_rank(c->checker, rank, NULL, next, &c->checks);
}

void tsr_run_check_fini(struct tsr_run_check *c)
{
    tsr_checker_destroy(c->checker); /* with its executors */
    *c = (struct tsr_run_check){.checker = NULL};
}

void tsr_run_check_tables(struct tsr_run_check *c, const struct tsr_tables *tables)
{
    tsr_checker_set_tables(c->checker, c->rank, tables);
}

tsr_status tsr_run_check_step(void *user, struct tsr_executor *executor, uint64_t step)
{
    const struct tsr_run_check *c = user;
    TSR_TRY(executor->ops->drain(executor));
    uint64_t told = tsr_exec_hash_value(&c->told), did = tsr_exec_hash(executor);
    if (told == did)
        return TSR_OK;
    return tsr_fail(TSR_EDEFECT,
                    "--check: step %llu: the streams did not do what they were told: executed "
                    "hash %016llx, the program's %016llx",
                    (unsigned long long)step, (unsigned long long)did, (unsigned long long)told);
}

/* ---- --profile ------------------------------------------------------------------------------- */

/* ---- recording ------------------------------------------------------------------------------- */

static tsr_status next_program(struct tsr_run_profile *p, int iteration)
{
    struct tsr_program *program = malloc(sizeof *program);
    if (!program)
        return tsr_no_memory("the profile");
    tsr_program_init(program, p->tables);
    program->iteration = iteration;
    p->first_number[p->n] = p->count;
    p->programs[p->n++] = program;
    return TSR_OK;
}

/* Tasks note their times when they end, so they end first. */
static tsr_status stop(struct tsr_run_profile *p)
{
    p->over = true;
    TSR_TRY(p->of->ops->drain(p->of));
    return tsr_exec_set_profile(p->of, false);
}

/* A program begins with the mark of its iteration; what lies between two iterations (an evaluation,
 * a checkpoint) is one of its own. */
static tsr_status record(struct tsr_run_profile *p, const struct tsr_instr *instr)
{
    bool begins = instr->kind == TSR_MARK && instr->mark == TSR_MARK_ITERATION;
    bool ends = instr->kind == TSR_MARK && instr->mark == TSR_MARK_ITERATION_END;
    bool full = p->n == TSR_MAX_ITERATIONS && (begins || p->between);
    if (full || (begins && p->done == p->wanted))
        return stop(p);
    if (begins)
        TSR_TRY(next_program(p, (int)p->done));
    else if (p->between)
        TSR_TRY(next_program(p, TSR_PROGRAM_EVAL));
    p->between = ends;
    p->done += ends;
    return tsr_program_append(p->programs[p->n - 1], instr);
}

static tsr_status watch_for_profile(struct tsr_executor *x, const struct tsr_instr *instr)
{
    struct tsr_run_profile *p = (struct tsr_run_profile *)x;
    tsr_status status = p->over ? TSR_OK : record(p, instr);
    p->count++;
    return status;
}

static const struct tsr_executor_ops profile_ops = {.size = sizeof(struct tsr_executor_ops),
                                                    .version = TSR_EXECUTOR_VERSION,
                                                    .name = "profile",
                                                    .submit = watch_for_profile};

tsr_status tsr_run_profile_init(struct tsr_run_profile *p, uint32_t iterations)
{
    *p = (struct tsr_run_profile){.base = {.ops = &profile_ops}, .wanted = iterations};
    return next_program(p, TSR_PROGRAM_INIT);
}

void tsr_run_profile_fini(struct tsr_run_profile *p)
{
    for (uint32_t i = 0; i < p->n; i++) {
        tsr_program_fini(p->programs[i]);
        free(p->programs[i]);
    }
    p->n = 0;
}

/* ---- times ----------------------------------------------------------------------------------- */

struct timeline {
    struct tsr_exec_span *spans;
    size_t n_spans;
    struct tsr_sim_span *by_program[TSR_MAX_ITERATIONS];
    double end[TSR_MAX_ITERATIONS];
};

static tsr_status place_spans(const struct tsr_run_profile *p, struct timeline *t)
{
    size_t n_issues, next = 0;
    const double *issues = tsr_exec_issue_times(p->of, &n_issues);
    double latest = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct tsr_program *program = p->programs[i];
        struct tsr_sim_span *out = calloc(program->n_instrs + 1, sizeof *out);
        if (!out)
            return tsr_no_memory("the profile");
        t->by_program[i] = out;
        for (size_t k = 0; k < program->n_instrs; k++) {
            uint64_t number = p->first_number[i] + k;
            double issue = number < n_issues ? issues[number] : latest;
            out[k] = (struct tsr_sim_span){issue, issue, issue};
            while (next < t->n_spans && t->spans[next].number < number)
                next++;
            if (next < t->n_spans && t->spans[next].number == number) {
                out[k].start = t->spans[next].begin;
                out[k].end = t->spans[next].end;
            }
            latest = out[k].end > latest ? out[k].end : latest;
        }
        t->end[i] = latest;
    }
    return TSR_OK;
}

/* ---- as a simulation's result ---------------------------------------------------------------- */

struct measured {
    struct tsr_emission emission;
    struct tsr_emitted_class class;
    const struct tsr_program *const *programs[1];
    struct tsr_sim_job job;
    struct tsr_sim_rank rank;
    struct tsr_sim_result result;
    uint64_t hashes[TSR_MAX_ITERATIONS], none[TSR_MAX_ITERATIONS];
};

static tsr_status arrange(const struct tsr_run_profile *p, const struct tsr_job *job,
                          struct tsr_engine *engine, struct timeline *t, struct measured *m)
{
    uint32_t *class_of = calloc(job->world, sizeof *class_of), first = p->n, steady = p->n;
    if (!class_of)
        return tsr_no_memory("the profile");
    for (uint32_t i = 0; i < p->n; i++)
        if (p->programs[i]->iteration >= 0) {
            first = first == p->n ? i : first;
            steady = i;
        }
    m->class.engine = engine;
    for (uint32_t i = 0; i < p->n; i++)
        m->class.programs[i] = p->programs[i];
    m->emission = (struct tsr_emission){.world = job->world,
                                        .n_classes = 1,
                                        .n_iterations = p->n,
                                        .first = first,
                                        .steady = steady,
                                        .class_of = class_of,
                                        .classes = &m->class};
    m->programs[0] = (const struct tsr_program *const *)m->class.programs;
    m->job = (struct tsr_sim_job){job->world, 1, p->n, class_of, m->programs};
    m->rank = (struct tsr_sim_rank){.weight = job->world,
                                    .spans = t->by_program,
                                    .exec_hash = m->hashes,
                                    .sent_intra = m->none,
                                    .sent_inter = m->none};
    m->result = (struct tsr_sim_result){
        .n_ranks = 1, .n_iterations = p->n, .ranks = &m->rank, .iteration_end = t->end};
    return first < p->n ? TSR_OK : tsr_fail(TSR_ECONFIG, "--profile: found no whole step to time");
}

/* Leaves out what was compared with the card of the file's cluster, which is not the device that
 * ran: that the run fits there is no finding. */
static void forget_card(struct tsr_row *row)
{
    row->usable_bytes = 0;
    row->context_bytes = row->library_bytes = row->nccl_bytes = -1;
    row->needed = row->most_reserved;
    row->fit = (struct tsr_fit){.verdict = TSR_FITS_UNKNOWN};
    row->fits = TSR_FITS_UNKNOWN;
}

static tsr_status row_of(const struct tsr_job *job, const char *gpu, struct measured *m,
                         struct tsr_row *row)
{
    const struct tsr_emission *e = &m->emission;
    const struct tsr_program *steady = m->class.programs[e->steady];
    tsr_row_begin(row, job);
    snprintf(row->strategy, sizeof row->strategy, "%s-measured", job->strategy->name);
    TSR_TRY(tsr_peak_of(job, e, row));
    TSR_TRY(tsr_metrics_of(&m->job, &m->result, e->first, &row->first, NULL));
    TSR_TRY(tsr_metrics_of(&m->job, &m->result, e->steady, &row->steady, NULL));
    row->measured = true;
    snprintf(row->device, sizeof row->device, "%s", gpu ? gpu : TSR_HOST_DEVICE);
    forget_card(row);
    row->mfu = -1; /* of a card that was not there */
    row->program_hash = tsr_program_hash(steady);
    row->expected_exec_hash = row->exec_hash = tsr_program_expected_exec_hash(steady);
    row->n_instructions = steady->n_instrs;
    row->n_iterations = e->steady - e->first + 1;
    row->n_rank_classes = row->n_simulated_ranks = 1;
    return TSR_OK;
}

static uint32_t cores_of_this_machine(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

static tsr_status write_files(const struct tsr_job *job, struct measured *m, struct timeline *t,
                              const char *dir, const char *gpu)
{
    char folder[4096];
    struct tsr_row row;
    const struct tsr_study_info info = {.title = job->experiment->title,
                                        .model_name = job->model.name,
                                        .cluster_name = "this machine",
                                        .device_file = "",
                                        .gpu_name = gpu ? gpu : TSR_HOST_DEVICE,
                                        .cores = gpu ? 0 : cores_of_this_machine(),
                                        .config_path = job->experiment->path,
                                        .resolved_yaml = "",
                                        .world = job->world,
                                        .measured = true};
    snprintf(folder, sizeof folder, "%s/measured", dir);
    TSR_TRY(tsr_make_own_folder(folder));
    TSR_TRY(row_of(job, gpu, m, &row));
    const struct tsr_detail detail = {.row = &row,
                                      .programs = m->programs[0],
                                      .spans = t->by_program,
                                      .iteration_end = t->end,
                                      .n_iterations = m->emission.n_iterations,
                                      .steady = m->emission.steady,
                                      .allocator = &job->settings->allocator};
    TSR_TRY(tsr_report_detail(folder, &info, &detail));
    bool skipped = false;
    TSR_TRY(tsr_html_view(folder, &info, &detail));
    TSR_TRY(tsr_report_study(folder, &info, &row, 1));
    TSR_TRY(tsr_html_study(folder, &info, NULL, &row, 1));
    return tsr_report_plots(folder, &row, 1, TSR_PICTURES_ALL, &skipped);
}

tsr_status tsr_run_profile_write(struct tsr_run_profile *p, const struct tsr_job *job,
                                 struct tsr_engine *engine, const char *dir, const char *gpu)
{
    struct timeline t = {0};
    struct measured m = {0};
    for (uint32_t i = 0; i < p->n; i++)
        p->programs[i]->tables = tsr_engine_tables(engine);
    tsr_status status;
    TSR_GOTO(done, tsr_exec_take_spans(p->of, &t.spans, &t.n_spans));
    TSR_GOTO(done, place_spans(p, &t));
    TSR_GOTO(done, arrange(p, job, engine, &t, &m));
    TSR_GOTO(done, write_files(job, &m, &t, dir, gpu));

done:
    free(m.emission.class_of);
    for (uint32_t i = 0; i < p->n; i++)
        free(t.by_program[i]);
    free(t.spans);
    return status;
}
