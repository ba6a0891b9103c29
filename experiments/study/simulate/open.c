/* open.c: opens an experiment for simulation, and its folder for what that leaves; simulates its
 * strategies. */
#include "experiments/study/simulate/open.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "experiments/study/base/exit_status.h"
#include "experiments/study/base/files.h"
#include "experiments/study/base/interrupt.h"
#include "experiments/study/base/listener.h"
#include "experiments/study/base/pool.h"
#include "experiments/study/html/html.h"
#include "experiments/study/job/build.h"
#include "experiments/study/job/job.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/validated.h"
#include "experiments/study/simulate/simulate.h"
#include "sim/base/text.h"

#define RESOLVED_FILE "experiment.yaml" /* in the output folder */

enum { MAX_NOTES = 16 };

static tsr_status choose(struct tsr_study *study)
{
    struct tsr_experiment *e = &study->experiment;
    const struct tsr_strategy *one = NULL;
    if (study->request.only)
        TSR_TRY(tsr_experiment_only(e, study->request.only));
    if (!study->request.strategy)
        return TSR_OK;
    TSR_TRY(tsr_experiment_find(e, study->request.strategy, &one));
    struct tsr_strategy copy = *one;
    e->strategies[0] = copy;
    e->n = 1;
    return TSR_OK;
}

tsr_status tsr_study_read(const struct tsr_study_request *request, struct tsr_study *out)
{
    *out = (struct tsr_study){.request = *request};
    TSR_TRY(tsr_experiment_open(request, &out->experiment));
    tsr_status status = choose(out);
    if (status != TSR_OK)
        tsr_study_fini(out);
    return status;
}

/* The file whose strategies were simulated: with --set and an output folder that is the resolved
 * one. */
static const char *name_config(struct tsr_study *study)
{
    const char *path = NULL;
    if (study->request.n_sets && study->request.out)
        path = tsr_arena_printf(&study->experiment.doc.arena, "%s/%s", study->request.out,
                                RESOLVED_FILE);
    return path ? path : study->experiment.path;
}

/* What is given besides the file: sets, but of sweeps only what they picked. A sweep of the file
 * itself, and the file that a study writes, has the names of its strategies. */
static tsr_status name_run(struct tsr_study *study, const struct tsr_strategy *strategy,
                           struct tsr_run_words *out)
{
    const struct tsr_study_request *request = &study->request;
    bool resolved = request->n_sets && request->out, named = study->experiment.has_sweeps;
    size_t n = 0, n_sets = resolved ? 0 : request->n_sets;
    const char **set = tsr_arena_alloc(&study->experiment.doc.arena,
                                       (n_sets + strategy->n_picked + 1) * sizeof *set);
    if (!set)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < n_sets; i++)
        if (named || strncmp(request->sets[i], "sweeps", sizeof "sweeps" - 1) != 0)
            set[n++] = request->sets[i];
    named |= resolved;
    for (size_t i = 0; !named && i < strategy->n_picked; i++)
        set[n++] = strategy->picked[i];
    *out = (struct tsr_run_words){strategy->name, named ? strategy->name : strategy->base, set, n};
    return TSR_OK;
}

static tsr_status name_runs(struct tsr_study *study)
{
    const struct tsr_experiment *e = &study->experiment;
    struct tsr_run_words *runs = tsr_arena_alloc(&study->experiment.doc.arena, e->n * sizeof *runs);
    if (!runs)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < e->n; i++)
        TSR_TRY(name_run(study, &e->strategies[i], &runs[i]));
    study->info.runs = runs;
    study->info.n_runs = e->n;
    return TSR_OK;
}

static const char *model_of(const struct tsr_job *job)
{
    return job->model.name;
}

static const char *cluster_of(const struct tsr_job *job)
{
    return job->cluster.name;
}

static const char *device_of(const struct tsr_job *job)
{
    return job->cluster.gpu.path;
}

static const char *gpu_of(const struct tsr_job *job)
{
    return job->cluster.gpu.name;
}

/* The name of all jobs, or their names; NULL: no memory. */
static const char *join_names(const struct tsr_study *study, struct tsr_arena *arena,
                              const char *(*name_of)(const struct tsr_job *), const char *many)
{
    enum { SHOWN = 3 };
    const char *text = NULL;
    size_t n = 0;
    for (size_t i = 0; i < study->n; i++) {
        const char *name = name_of(&study->jobs[i]);
        bool seen = false;
        for (size_t k = 0; k < i && !seen; k++)
            seen = !strcmp(name, name_of(&study->jobs[k]));
        n += !seen;
        if (seen || n > SHOWN)
            continue;
        text = text ? tsr_arena_printf(arena, "%s, %s", text, name) : name;
        if (!text)
            return NULL;
    }
    return n > SHOWN ? tsr_arena_printf(arena, "%zu %s", n, many) : text;
}

static tsr_status fill_info(struct tsr_study *study)
{
    const struct tsr_job *first = &study->jobs[0];
    struct tsr_arena *arena = &study->experiment.doc.arena;
    study->info =
        (struct tsr_study_info){.title = study->experiment.title,
                                .model_name = join_names(study, arena, model_of, "models"),
                                .cluster_name = join_names(study, arena, cluster_of, "clusters"),
                                .device_file = join_names(study, arena, device_of, "device files"),
                                .gpu_name = join_names(study, arena, gpu_of, "types of GPU"),
                                .config_path = name_config(study),
                                .sets = study->request.sets,
                                .n_sets = study->request.out ? 0 : study->request.n_sets,
                                .resolved_yaml = study->resolved_yaml,
                                .world = first->world,
                                .most_world = first->world,
                                .no_traces = study->request.no_traces,
                                .gpus_here = study->request.gpus_here};
    struct tsr_study_info *info = &study->info;
    if (!info->model_name || !info->cluster_name || !info->device_file || !info->gpu_name)
        return tsr_no_memory(NULL);
    for (size_t i = 1; i < study->n; i++) {
        uint32_t world = study->jobs[i].world;
        info->world = world < info->world ? world : info->world;
        info->most_world = world > info->most_world ? world : info->most_world;
    }
    TSR_TRY(name_runs(study));
    TSR_TRY(tsr_time_sources(first, arena, &study->info.time_sources));
    TSR_TRY(tsr_measured_open(study->experiment.path, &study->measured));
    study->experiment.measured = study->measured;
    return tsr_validated_of(study->jobs, study->n, arena, &study->info.validated,
                            &study->info.n_validated);
}

static void drop_jobs(struct tsr_study *study)
{
    for (size_t i = 0; i < study->n; i++)
        tsr_job_close(&study->jobs[i]);
    free(study->jobs);
    free(study->resolved_yaml);
    tsr_measured_close(study->measured);
    study->n = 0;
    study->jobs = NULL;
    study->resolved_yaml = NULL;
    study->measured = NULL;
    study->experiment.measured = NULL;
}

/* The strategy that others are held against: the first one that has the numbers and the hardware
 * of the file's own keys; if there is none, of all but the number of GPUs; else the first one. */
static tsr_status find_reference(const struct tsr_study *study, const struct tsr_job **out)
{
    const struct tsr_settings *top = &study->experiment.top;
    const struct tsr_job *other_world = NULL;
    for (size_t i = 0; i < study->n; i++) {
        const struct tsr_job *job = &study->jobs[i];
        const struct tsr_cluster *cluster = &job->cluster;
        struct tsr_changes changes;
        TSR_TRY(tsr_changes_of(job->settings, job->world, top, job->world, &changes));
        if (changes.kinds)
            continue;
        *out = job;
        if (job->world ==
            (top->world ? top->world : (uint64_t)cluster->nodes * cluster->gpus_per_node))
            return TSR_OK;
        other_world = other_world ? other_world : job;
    }
    *out = other_world ? other_world : &study->jobs[0];
    return TSR_OK;
}

/* What each strategy changes beside its speed. */
static tsr_status find_changes(struct tsr_study *study)
{
    const struct tsr_job *reference;
    TSR_TRY(find_reference(study, &reference));
    for (size_t i = 0; i < study->n; i++) {
        struct tsr_job *job = &study->jobs[i];
        TSR_TRY(tsr_changes_of(job->settings, job->world, reference->settings, reference->world,
                               &job->changes));
    }
    return TSR_OK;
}

static tsr_status open_jobs(struct tsr_study *study)
{
    struct tsr_experiment *e = &study->experiment;
    study->jobs = calloc(e->n, sizeof(*study->jobs));
    if (!study->jobs)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < e->n; i++) {
        TSR_TRY(tsr_job_open(e, &e->strategies[i], TSR_NEEDS_ALL, &study->jobs[i]));
        study->n++;
        TSR_TRY(tsr_build_check(&study->jobs[i]));
    }
    TSR_TRY(find_changes(study));
    TSR_TRY(tsr_experiment_print(e, &study->resolved_yaml));
    return fill_info(study);
}

tsr_status tsr_study_build(struct tsr_study *study)
{
    if (study->jobs)
        return TSR_OK;
    tsr_status status = open_jobs(study);
    if (status != TSR_OK)
        drop_jobs(study);
    return status;
}

void tsr_study_fini(struct tsr_study *study)
{
    drop_jobs(study);
    tsr_experiment_fini(&study->experiment);
    memset(study, 0, sizeof(*study));
}

/* A full disk is the machine's failure; a folder that cannot be made or written is the user's. */
static tsr_status unusable(const char *dir, int error)
{
    if (error == ENOSPC || error == EDQUOT || error == EIO || error == EFBIG || error == EMFILE ||
        error == ENFILE)
        return tsr_fail(TSR_EIO, "--out %s: %s; nothing was written", dir, strerror(error));
    return tsr_fail(TSR_ECONFIG,
                    "--out: found %s, which cannot be written: %s; allowed: a folder "
                    "that can be made or written",
                    dir, strerror(error));
}

/* The part of a path that is there and is no folder; false if there is none. */
static bool blocked_by(const char *dir, char *out, size_t size)
{
    for (const char *c = dir; *c; c++) {
        struct stat info;
        if ((c[1] != '/' && c[1]) || (size_t)(c - dir) + 2 > size)
            continue;
        snprintf(out, size, "%.*s", (int)(c - dir) + 1, dir);
        if (stat(out, &info) == 0 && !S_ISDIR(info.st_mode))
            return true;
    }
    return false;
}

tsr_status tsr_prepare_out(const char *dir)
{
    char path[1200];
    if (!*dir || strlen(dir) > 1000)
        return unusable(dir, *dir ? ENAMETOOLONG : ENOENT);
    if (blocked_by(dir, path, sizeof path))
        return tsr_fail(TSR_ECONFIG,
                        "--out: found %s, but %s is not a folder; allowed: a folder "
                        "that can be made or written",
                        dir, path);
    errno = 0;
    if (tsr_make_folder(dir) != TSR_OK)
        return unusable(dir, errno ? errno : EACCES);
    struct tsr_folder folder;
    if (tsr_folder_open(dir, &folder) != TSR_OK)
        return unusable(dir, errno);
    snprintf(path, sizeof path, ".tessera-%ld", (long)getpid());
    tsr_file_remove(&folder, path); /* of a process that was killed */
    int probe = tsr_interrupt_create(&folder, path);
    int error = errno;
    bool ok = probe >= 0;
    if (ok) {
        errno = ENOSPC; /* if less is written and nothing is said */
        ok = write(probe, "probe\n", 6) == 6;
        error = errno;
        ok = close(probe) == 0 && ok;
        tsr_file_remove(&folder, path);
        tsr_interrupt_keep(path);
    }
    tsr_folder_close(&folder);
    return ok ? TSR_OK : unusable(dir, error);
}

tsr_status tsr_prepare_file(const char *option, const char *path)
{
    char folder[1200];
    struct stat info;
    if (!path)
        return TSR_OK;
    const char *slash = strrchr(path, '/');
    bool there = stat(path, &info) == 0;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    if (there && S_ISDIR(info.st_mode))
        errno = EISDIR;
    else if (access(there && !S_ISREG(info.st_mode) ? path : folder, W_OK) == 0)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: found %s, which cannot be written: %s; allowed: a file in a folder that "
                    "there is",
                    option, path, strerror(errno));
}

tsr_status tsr_study_files(const struct tsr_study *study, const char *dir,
                           const struct tsr_row *rows, size_t n)
{
    bool skipped = false;
    TSR_TRY(tsr_write_in(dir, RESOLVED_FILE, tsr_put_text, study->resolved_yaml));
    TSR_TRY(tsr_report_study(dir, &study->info, rows, n));
    TSR_TRY(tsr_html_study(dir, &study->info, study->request.only, rows, n));
    return tsr_report_plots(dir, rows, n, study->request.pictures, &skipped);
}

void tsr_study_notes(const struct tsr_study *study)
{
    char said[MAX_NOTES][256];
    size_t n = 0;
    tsr_tell_unread(&study->experiment, NULL);
    for (size_t i = 0; i < study->n; i++) {
        char notes[4][256];
        size_t found = tsr_job_notes(&study->jobs[i], notes, 4);
        for (size_t k = 0; k < found; k++) {
            bool known = n == MAX_NOTES;
            for (size_t j = 0; j < n && !known; j++)
                known = !strcmp(said[j], notes[k]);
            if (known)
                continue;
            memcpy(said[n++], notes[k], sizeof said[0]);
            tsr_tell("note: %s", notes[k]);
        }
    }
}

/* ---- all strategies -------------------------------------------------------------------------- */

/* A few at a time in child processes. */

/* Traces and snapshots are ten times the rest: 8 of 12 strategies of the flagship were 78 of 105
 * MB.
 */
enum { MAX_TRACES = 2 };

struct strategies {
    const struct tsr_study *study;
    const char *dir;
    const struct tsr_pool_hooks *hooks; /* NULL: none */
    const size_t *wanted;               /* [work item]: strategy */
    struct tsr_row *rows;
};

static void run_strategy(void *user, size_t item, void *result)
{
    const struct strategies *s = user;
    const struct tsr_job *job = &s->study->jobs[s->wanted[item]];
    struct tsr_study_info info = s->study->info; /* its files say what is true of it alone */
    info.model_name = model_of(job);
    info.cluster_name = cluster_of(job);
    info.device_file = device_of(job);
    info.gpu_name = gpu_of(job);
    info.world = info.most_world = job->world;
    info.no_traces = info.no_traces || (s->study->n > MAX_TRACES && !s->study->request.traces);
    tsr_status status = tsr_simulate(job, &info, s->dir, result);
    (void)status; /* the row says it */
}

/* Mistakes and failures of the machine end a comparison; what does not fit is a result. */
static tsr_status verdict(const struct tsr_row *row)
{
    if (!row->failure[0] || row->failure_status == TSR_EXIT_UNFIT)
        return TSR_OK;
    tsr_status status = row->failure_status == TSR_EXIT_MACHINE ? TSR_EBACKEND : TSR_ECONFIG;
    return tsr_fail(status, "%s", row->failure);
}

static tsr_status take_strategy(void *user, size_t work, const void *result, const char *end)
{
    const struct strategies *s = user;
    size_t item = s->wanted[work];
    struct tsr_row *row = &s->rows[item];
    if (!end) {
        memcpy(row, result, sizeof(*row));
        TSR_TRY(verdict(row));
        return s->hooks ? s->hooks->done(s->hooks->user, item, row) : TSR_OK;
    }
    tsr_row_begin(row, &s->study->jobs[item]);
    snprintf(row->failure, sizeof row->failure, "the simulation of %s ended by %s", row->strategy,
             end);
    row->failure_status = TSR_EXIT_MACHINE;
    return verdict(row);
}

static const char *name_strategy(void *user, size_t item)
{
    const struct strategies *s = user;
    return s->study->experiment.strategies[s->wanted[item]].name;
}

/* Says what an interruption leaves of a comparison. Cuts a long name of the folder. */
static void put_kept(const char *dir, bool goes_on, char *out, size_t n)
{
    if (dir)
        snprintf(out, n, "strategies are complete in %.300s; %s", tsr_show_line(dir).text,
                 goes_on ? "the same command goes on"
                         : "summary.csv and report.html are written at the end");
    else
        snprintf(out, n, "strategies were simulated; nothing is kept without --out DIR");
}

tsr_status tsr_pool_run(const struct tsr_study *study, const char *dir, uint64_t jobs,
                        const struct tsr_pool_hooks *hooks, struct tsr_row *rows)
{
    size_t *wanted = calloc(study->n + 1, sizeof *wanted);
    if (!wanted)
        return tsr_no_memory(NULL);
    struct strategies s = {study, dir, hooks, wanted, rows};
    char kept[400];
    put_kept(dir, hooks != NULL, kept, sizeof kept);
    struct tsr_pool_work work = {.result_bytes = sizeof(struct tsr_row),
                                 .user = &s,
                                 .run = run_strategy,
                                 .take = take_strategy,
                                 .name = name_strategy,
                                 .kept = kept};
    for (size_t i = 0; i < study->n; i++)
        if (!hooks || hooks->wants(hooks->user, i))
            wanted[work.n++] = i;
    if (dir && study->n > MAX_TRACES && !study->info.no_traces && !study->request.traces)
        tsr_tell(
            "note: no traces and snapshots of %zu strategies, which are large; --traces writes "
            "them, or --only of up to %d",
            study->n, (int)MAX_TRACES);
    tsr_sim_prepare();
    tsr_status status = tsr_pool_each(&work, jobs);
    free(wanted);
    return status;
}
