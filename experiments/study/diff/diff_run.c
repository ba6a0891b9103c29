/* diff_run.c: what a run is read from, the loader of strategies, and collectives whose exposure
 * differs between two runs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/program/memory.h"
#include "experiments/study/diff/diff_parts.h"
#include "experiments/study/job/emit.h"
#include "experiments/study/job/job.h"
#include "experiments/study/job/owner.h"
#include "experiments/study/overlap/overlap.h"
#include "experiments/study/simulate/simulate.h"

void tsr_diff_run_fini(struct tsr_diff_run *run)
{
    free(run->points);
    free(run->owners);
    free(run->blocks);
    free(run->of_point);
    if (run->has_overlap)
        tsr_overlap_table_fini(&run->overlap);
    tsr_arena_fini(&run->arena);
    memset(run, 0, sizeof(*run));
}

tsr_status tsr_diff_add_point(struct tsr_diff_run *run, const struct tsr_diff_point *point)
{
    if (TSR_PUSH(run->points, run->n, run->cap, *point))
        return TSR_OK;
    return tsr_fail(TSR_ENOMEM, "out of memory: %zu levels of a run", run->n);
}

void tsr_diff_find_peak(struct tsr_diff_run *run)
{
    run->peak = 0;
    for (size_t i = 0; i < run->n; i++)
        if (run->points[i].total > run->points[run->peak].total)
            run->peak = i;
}

tsr_status tsr_diff_add_owner(struct tsr_diff_run *run, uint8_t category, const char *module,
                              uint64_t bytes)
{
    char pattern[256];
    tsr_owner_block_pattern(module, pattern, sizeof pattern);
    for (size_t i = 0; i < run->n_owners; i++) {
        struct tsr_diff_owner *known = &run->owners[i];
        if (known->category == category && !strcmp(known->name, pattern)) {
            known->bytes += bytes;
            return TSR_OK;
        }
    }
    struct tsr_diff_owner owner = {category, tsr_arena_strdup(&run->arena, pattern), bytes};
    if (owner.name && TSR_PUSH(run->owners, run->n_owners, run->cap_owners, owner))
        return TSR_OK;
    return tsr_no_memory("owners of a run");
}

size_t tsr_diff_unit_length(const struct tsr_diff_point *point)
{
    size_t block = tsr_owner_block_length(point->module);
    return block ? block : strlen(point->module);
}

/* ---- a strategy ------------------------------------------------------------------------------ */

struct collector {
    struct tsr_diff_run *run;
    const struct tsr_program *program;
    tsr_status status;
};

/* Programs die with their emission: texts are copied, the same ones once. */
static const char *keep_text(struct tsr_diff_run *run, const char *text, const char *before)
{
    return before && !strcmp(before, text) ? before : tsr_arena_strdup(&run->arena, text);
}

static void collect(void *user, const struct tsr_memory_sample *sample)
{
    struct collector *c = user;
    const struct tsr_instr *instr = &c->program->instrs[sample->instr];
    const struct tsr_diff_point *last = c->run->n ? &c->run->points[c->run->n - 1] : NULL;
    const struct tsr_tables *tables = c->program->tables;
    char buffer[32];
    const char *module = tsr_owner_of(tables, &instr->origin, buffer);
    const char *operation = "";
    if (instr->kind == TSR_ALLOC) {
        size_t work = tsr_work_of_alloc(c->program, sample->instr);
        operation = work < c->program->n_instrs ? tsr_work_name(&c->program->instrs[work]) : "";
    }
    struct tsr_diff_point point = {
        .phase = tsr_phase_name(instr->origin.phase),
        .module = keep_text(c->run, module, last ? last->module : NULL),
        .hook = instr->origin.hook ? tsr_hook_name(instr->origin.hook) : "",
        .operation = keep_text(c->run, operation, last ? last->operation : NULL),
        .micro = instr->origin.micro,
        .total = sample->total,
        .reserved = sample->reserved};
    memcpy(point.by_category, sample->by_category, sizeof sample->by_category);
    if (c->status == TSR_OK && (!point.module || !point.operation))
        c->status = tsr_no_memory("places of a run");
    if (c->status == TSR_OK)
        c->status = tsr_diff_add_point(c->run, &point);
}

static tsr_status replay_before(const struct tsr_emitted_class *class, uint32_t n,
                                struct tsr_memory **out)
{
    TSR_TRY(tsr_memory_create(out));
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < n && status == TSR_OK; i++)
        status = tsr_memory_replay_part(*out, class->programs[i], 0, SIZE_MAX);
    if (status != TSR_OK)
        tsr_memory_destroy(*out);
    return status;
}

static tsr_status collect_points(const struct tsr_emitted_class *class, uint32_t steady,
                                 struct tsr_diff_run *run, size_t *peak_instr)
{
    struct tsr_memory *memory = NULL;
    struct tsr_memory_peak peak;
    struct collector c = {run, class->programs[steady], TSR_OK};
    TSR_TRY(replay_before(class, steady, &memory));
    struct tsr_memory_level level = tsr_memory_level_of(memory);
    struct tsr_diff_point start = {.phase = "",
                                   .module = "",
                                   .hook = "",
                                   .operation = "",
                                   .total = level.total,
                                   .reserved = level.reserved};
    memcpy(start.by_category, level.by_category, sizeof level.by_category);
    tsr_status status = tsr_diff_add_point(run, &start);
    if (status == TSR_OK)
        status = tsr_memory_replay(memory, c.program, collect, &c, &peak);
    tsr_memory_destroy(memory);
    *peak_instr = status == TSR_OK ? peak.instr : 0;
    return status == TSR_OK ? c.status : status;
}

static tsr_status collect_owners(const struct tsr_emitted_class *class, uint32_t steady,
                                 size_t peak_instr, struct tsr_diff_run *run)
{
    struct tsr_memory *memory = NULL;
    const struct tsr_instr **live = NULL;
    size_t n = 0;
    TSR_TRY(replay_before(class, steady, &memory));
    tsr_status status =
        tsr_memory_replay_part(memory, class->programs[steady], 0, run->peak ? peak_instr + 1 : 0);
    if (status == TSR_OK)
        status = tsr_memory_live(memory, &live, &n);
    for (size_t i = 0; i < n && status == TSR_OK; i++) {
        char buffer[32];
        const char *owner = tsr_owner_of(class->programs[steady]->tables, &live[i]->origin, buffer);
        status = tsr_diff_add_owner(run, live[i]->category, owner, live[i]->block_bytes);
    }
    free(live);
    tsr_memory_destroy(memory);
    run->has_owners = true;
    return status;
}

/* What lives before the step. */
static tsr_status collect_start(const struct tsr_emitted_class *class, uint32_t steady,
                                struct tsr_diff_run *run)
{
    struct tsr_memory *memory = NULL;
    const struct tsr_instr **live = NULL;
    size_t n = 0;
    TSR_TRY(replay_before(class, steady, &memory));
    tsr_status status = tsr_memory_live(memory, &live, &n);
    for (size_t i = 0; i < n && status == TSR_OK; i++) {
        char buffer[32];
        const char *owner = tsr_owner_of(class->programs[steady]->tables, &live[i]->origin, buffer);
        struct tsr_diff_block block = {live[i]->block_bytes, live[i]->category,
                                       tsr_arena_strdup(&run->arena, owner)};
        if (!block.owner || !TSR_PUSH(run->blocks, run->n_blocks, run->cap_blocks, block))
            status = tsr_no_memory("blocks of a run");
    }
    run->n_start = run->n_blocks;
    free(live);
    tsr_memory_destroy(memory);
    return status;
}

static tsr_status largest_class(const struct tsr_emission *emission,
                                const struct tsr_emitted_class **out)
{
    uint64_t most = 0;
    *out = &emission->classes[0];
    for (uint32_t i = 0; i < emission->n_classes; i++) {
        const struct tsr_emitted_class *class = &emission->classes[i];
        struct tsr_memory *memory = NULL;
        struct tsr_memory_peak peak;
        uint32_t steady = emission->steady;
        TSR_TRY(replay_before(class, steady, &memory));
        tsr_status status = tsr_memory_replay(memory, class->programs[steady], NULL, NULL, &peak);
        tsr_memory_destroy(memory);
        TSR_TRY(status);
        if (peak.allocated > most) {
            most = peak.allocated;
            *out = class;
        }
    }
    return TSR_OK;
}

/* ---- times --------------------------------------------------------------------------------- */

struct timed {
    const struct tsr_job *job;
    struct tsr_diff_run *run;
};

static tsr_status take_overlap(void *user, const struct tsr_detail *detail)
{
    const struct timed *timed = user;
    const struct tsr_study_info info = {.model_name = timed->job->model.name,
                                        .cluster_name = timed->job->cluster.name,
                                        .world = timed->job->world};
    TSR_TRY(tsr_overlap_table_of(&info, detail, &timed->run->overlap));
    timed->run->has_overlap = true;
    return TSR_OK;
}

/* Without a cluster, a simulator, or a figure that it needs there is memory alone to compare. */
static tsr_status take_times(const struct tsr_job *job, const struct tsr_emission *emission,
                             struct tsr_diff_run *run)
{
    struct timed timed = {job, run};
    struct tsr_row row;
    if (!*job->cluster.name)
        return TSR_OK;
    tsr_row_begin(&row, job);
    tsr_status status =
        tsr_simulate_times(job, emission, &row, TSR_SLOWEST_RANK, take_overlap, &timed);
    return status == TSR_ECONFIG || status == TSR_EUNSUPPORTED ? TSR_OK : status;
}

static tsr_status take_strategy(const struct tsr_experiment *experiment,
                                const struct tsr_strategy *strategy, struct tsr_diff_run *run)
{
    struct tsr_job job;
    struct tsr_emission emission;
    const struct tsr_emitted_class *class = NULL;
    size_t peak_instr = 0;
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_job_open(experiment, strategy, TSR_MAY_LACK_CLUSTER, &job));
    TSR_GOTO(no_emission, tsr_emit(&job, &emission));
    TSR_GOTO(done, take_times(&job, &emission, run));
    TSR_GOTO(done, largest_class(&emission, &class));
    TSR_GOTO(done, collect_points(class, emission.steady, run, &peak_instr));
    TSR_GOTO(done, collect_start(class, emission.steady, run));
    tsr_diff_find_peak(run);
    TSR_GOTO(done, collect_owners(class, emission.steady, peak_instr, run));
done:
    tsr_emission_fini(&emission);
no_emission:
    tsr_job_close(&job);
    return status;
}

/* The one strategy that `request` names; NULL: the only one. */
static tsr_status load_strategy(const struct tsr_study_request *request, struct tsr_diff_run *run)
{
    struct tsr_experiment experiment;
    const struct tsr_strategy *strategy = NULL;
    TSR_TRY(tsr_experiment_open(request, &experiment));
    run->kind = "strategy";
    tsr_status status = tsr_experiment_find(&experiment, request->strategy, &strategy);
    if (status == TSR_OK)
        status = take_strategy(&experiment, strategy, run);
    if (status == TSR_OK)
        tsr_tell_unread(&experiment, strategy);
    tsr_experiment_fini(&experiment);
    return status;
}

/* ---- what an operand is ---------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n >= k && !strcmp(text + n - k, end);
}

static tsr_status load_split(const struct tsr_study_request *request, struct tsr_diff_run *run)
{
    struct tsr_study_request split = *request;
    const char *text = request->path, *colon = strrchr(text, ':');
    struct stat info;
    char file[1024] = "";
    if (colon)
        snprintf(file, sizeof file, "%.*s", (int)(colon - text), text);
    if (!colon || !colon[1] || stat(file, &info) != 0 || !S_ISREG(info.st_mode))
        return tsr_fail(TSR_ECONFIG,
                        "diff: found %s; allowed: FILE:STRATEGY, the folder of a strategy that "
                        "compare or sim wrote, its memory.csv, NAME.timeline.json[.gz], or "
                        "NAME.pickle[.gz]",
                        text);
    split.path = file;
    split.strategy = colon + 1;
    return load_strategy(&split, run);
}

static tsr_status load(const struct tsr_study_request *request, struct tsr_diff_run *run)
{
    struct stat info;
    const char *path = request->path;
    if (request->text)
        return load_strategy(request, run);
    if (stat(path, &info) != 0)
        return load_split(request, run);
    if (S_ISDIR(info.st_mode))
        return tsr_diff_load_folder(path, run);
    if (ends_with(path, ".csv"))
        return tsr_diff_load_csv(path, run);
    if (ends_with(path, ".pickle") || ends_with(path, ".pickle.gz") || ends_with(path, ".pkl"))
        return tsr_diff_load_snapshot(path, run);
    if (ends_with(path, ".timeline.json") || ends_with(path, ".gz"))
        return tsr_diff_load_recording(path, run);
    return load_strategy(request, run);
}

tsr_status tsr_diff_load(const struct tsr_study_request *request, struct tsr_diff_run *out)
{
    memset(out, 0, sizeof(*out));
    tsr_arena_init(&out->arena);
    snprintf(out->label, sizeof out->label, "%s", request->text ? TSR_TEXT_NAME : request->path);
    tsr_status status = load(request, out);
    if (status != TSR_OK)
        tsr_diff_run_fini(out);
    return status;
}

/* ---- exposed communication ------------------------------------------------------------------- */

/* Differences are b minus a. */

/* Exposed seconds that differ by less are the same: a nanosecond. */
static const double LEAST_S = 1e-9;

/* The collectives of one kind and one pattern of names: "AG layers.*"; sums.name is set at the end.
 */
struct place {
    char name[160];
    struct tsr_diff_exposure sums;
};

struct places {
    struct place *items;
    size_t n, cap;
};

static struct place *find_place(struct places *places, const struct tsr_overlap_row *row)
{
    struct place place = {.sums.kind = row->kind};
    tsr_owner_pattern(row->name, place.name, sizeof place.name);
    for (size_t i = 0; i < places->n; i++)
        if (places->items[i].sums.kind == place.sums.kind &&
            !strcmp(places->items[i].name, place.name))
            return &places->items[i];
    return TSR_PUSH(places->items, places->n, places->cap, place) ? &places->items[places->n - 1]
                                                                  : NULL;
}

static tsr_status collect_places(const struct tsr_overlap_table *table, int side,
                                 struct places *places)
{
    for (size_t i = 0; i < table->n; i++) {
        const struct tsr_overlap_row *row = &table->rows[i];
        struct place *place = find_place(places, row);
        if (!place)
            return tsr_no_memory("collectives of two runs");
        place->sums.n[side]++;
        place->sums.exposed[side] += row->exposed;
        for (int k = 0; k < TSR_N_EXPOSURES; k++)
            place->sums.why[side][k] += row->why[k];
    }
    return TSR_OK;
}

static double change_of(const struct place *p)
{
    return fabs(p->sums.exposed[1] - p->sums.exposed[0]);
}

static int by_change(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    double p = change_of(x), q = change_of(y);
    return p != q ? (p < q) - (p > q) : strcmp(x->name, y->name);
}

static tsr_status keep(const struct places *places, struct tsr_diff *diff)
{
    diff->exposures = tsr_arena_alloc(&diff->arena, (places->n + 1) * sizeof *diff->exposures);
    if (!diff->exposures)
        return tsr_no_memory("the report");
    for (size_t i = 0; i < places->n; i++) {
        const struct place *place = &places->items[i];
        struct tsr_diff_exposure *to = &diff->exposures[diff->n_exposures];
        if (change_of(place) < LEAST_S)
            continue;
        *to = place->sums;
        to->name = tsr_arena_strdup(&diff->arena, place->name);
        if (!to->name)
            return tsr_no_memory("the report");
        diff->n_exposures++;
    }
    diff->has_exposures = true;
    return TSR_OK;
}

tsr_status tsr_diff_exposures(struct tsr_diff *diff)
{
    struct places places = {0};
    tsr_status status = TSR_OK;
    if (!diff->runs[0].has_overlap || !diff->runs[1].has_overlap)
        return TSR_OK;
    for (int side = 0; side < 2; side++)
        TSR_GOTO(done, collect_places(&diff->runs[side].overlap, side, &places));
    if (places.n)
        qsort(places.items, places.n, sizeof *places.items, by_change);
    TSR_GOTO(done, keep(&places, diff));
done:
    free(places.items);
    return status;
}
