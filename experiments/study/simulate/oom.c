/* oom.c: explains TSR_EOOM from the programs that were recorded up to the request that failed. */
#include "experiments/study/simulate/oom.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/program/memory.h"
#include "experiments/study/base/files.h"
#include "experiments/study/job/owner.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/simulate/simulate.h"

enum { MAX_OWNERS = 20, OWNER_BYTES = 192 };

/* What lives, by owner: modules that differ in numbers only ("layers.*.mlp") are one. */
struct owner {
    char name[OWNER_BYTES];
    uint8_t category;
    uint64_t bytes;
    uint32_t n_buffers;
};

struct scene {
    const struct tsr_job *job;
    const struct tsr_row *row;
    const struct tsr_emitted_class *class; /* the one that ran out */
    uint32_t n;                            /* programs, with the one that was cut off */
    size_t n_last;                         /* instructions of that one before the request */
    struct tsr_oom oom;
    uint64_t by_category[TSR_N_CATEGORIES];
    struct owner *owners; /* the largest first */
    size_t n_owners, cap_owners;
    const char *where; /* owner of the request; may be owner_buffer */
    char owner_buffer[32];
};

/* ---- the moment --------------------------------------------------------------------------- */

/* A failed step still frees what it holds: those FREEs are behind the request. */
static size_t before_unwinding(const struct tsr_program *program, uint64_t at_end,
                               uint64_t at_request)
{
    size_t n = program->n_instrs;
    while (n > 0 && at_end < at_request && program->instrs[n - 1].kind == TSR_FREE)
        at_end += program->instrs[--n].block_bytes;
    return n;
}

/* Up to n_last instructions of the program that was cut off. */
static tsr_status replay(const struct scene *scene, size_t n_last, struct tsr_memory **out)
{
    TSR_TRY(tsr_memory_create(out));
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < scene->n && status == TSR_OK; i++)
        status = tsr_memory_replay_part(*out, scene->class->programs[i], 0,
                                        i + 1 == scene->n ? n_last : SIZE_MAX);
    if (status == TSR_OK)
        return TSR_OK;
    tsr_memory_destroy(*out);
    *out = NULL;
    return status;
}

/* ---- owners ------------------------------------------------------------------------------- */

static tsr_status add_to_owner(struct scene *scene, const struct tsr_tables *tables,
                               const struct tsr_instr *alloc)
{
    struct owner new = {.category = alloc->category, .bytes = alloc->block_bytes, .n_buffers = 1};
    char buffer[32];
    tsr_owner_pattern(tsr_owner_of(tables, &alloc->origin, buffer), new.name, sizeof new.name);
    for (size_t i = 0; i < scene->n_owners; i++) {
        struct owner *owner = &scene->owners[i];
        if (owner->category != new.category || strcmp(owner->name, new.name) != 0)
            continue;
        owner->bytes += new.bytes;
        owner->n_buffers++;
        return TSR_OK;
    }
    if (!TSR_PUSH(scene->owners, scene->n_owners, scene->cap_owners, new))
        return tsr_no_memory(NULL);
    return TSR_OK;
}

static int larger_first(const void *a, const void *b)
{
    const struct owner *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    int order = strcmp(x->name, y->name);
    return order ? order : (int)x->category - (int)y->category;
}

static tsr_status find_owners(struct scene *scene, const struct tsr_memory *memory)
{
    const struct tsr_tables *tables = scene->class->programs[scene->n - 1]->tables;
    struct tsr_memory_level level = tsr_memory_level_of(memory);
    const struct tsr_instr **live = NULL;
    size_t n = 0;
    memcpy(scene->by_category, level.by_category, sizeof scene->by_category);
    scene->where = tsr_owner_of(tables, &scene->oom.origin, scene->owner_buffer);
    tsr_status status = tsr_memory_live(memory, &live, &n);
    for (size_t i = 0; i < n && status == TSR_OK; i++)
        status = add_to_owner(scene, tables, live[i]);
    free(live);
    if (scene->n_owners)
        qsort(scene->owners, scene->n_owners, sizeof *scene->owners, larger_first);
    return status;
}

static tsr_status look(struct scene *scene)
{
    const struct tsr_program *last = scene->class->programs[scene->n - 1];
    struct tsr_memory *memory = NULL;
    TSR_TRY(replay(scene, last->n_instrs, &memory));
    scene->n_last =
        before_unwinding(last, tsr_memory_level_of(memory).total, scene->oom.memory.allocated);
    tsr_memory_destroy(memory);
    TSR_TRY(replay(scene, scene->n_last, &memory));
    tsr_status status = find_owners(scene, memory);
    tsr_memory_destroy(memory);
    return status;
}

/* ---- one line ----------------------------------------------------------------------------- */

static void put_bytes(char *out, size_t size, uint64_t bytes)
{
    if (bytes >= UINT64_C(1) << 30)
        (void)snprintf(out, size, "%.2f GiB", (double)bytes / TSR__GIB);
    else if (bytes >= UINT64_C(1) << 20)
        (void)snprintf(out, size, "%.2f MiB", (double)bytes / (double)(UINT64_C(1) << 20));
    else
        (void)snprintf(out, size, "%" PRIu64 " bytes", bytes);
}

/* The largest category not yet named in `named`; TSR_N_CATEGORIES: none. */
static int next_category(const struct scene *scene, const bool *named)
{
    int best = TSR_N_CATEGORIES;
    for (int c = 0; c < TSR_N_CATEGORIES; c++) {
        if (!named[c] && scene->by_category[c] &&
            (best == TSR_N_CATEGORIES || scene->by_category[c] > scene->by_category[best]))
            best = c;
    }
    return best;
}

static void put_most(const struct scene *scene, char *out, size_t size)
{
    bool named[TSR_N_CATEGORIES] = {false};
    size_t n = 0;
    *out = '\0';
    for (int i = 0; i < 3 && n < size; i++) {
        int c = next_category(scene, named);
        char bytes[48];
        if (c == TSR_N_CATEGORIES)
            return;
        named[c] = true;
        put_bytes(bytes, sizeof bytes, scene->by_category[c]);
        n += (size_t)snprintf(out + n, size - n, "%s%s %s", i ? ", " : "", tsr_category_name(c),
                              bytes);
    }
}

static void put_line(const struct scene *scene, char *out, size_t size)
{
    const struct tsr_oom *oom = &scene->oom;
    const struct tsr_program *program = scene->class->programs[scene->n - 1];
    char step[32], bytes[24], free_bytes[24], cached[24], hole[24], usable[24], most[160];
    bool in_step = program->iteration >= 0;
    (void)snprintf(step, sizeof step, in_step ? "iteration %d, " : "", program->iteration);
    put_bytes(bytes, sizeof bytes, oom->memory.requested);
    put_bytes(free_bytes, sizeof free_bytes, oom->memory.free);
    put_bytes(cached, sizeof cached, oom->memory.cached);
    put_bytes(hole, sizeof hole, oom->memory.largest_cached);
    put_bytes(usable, sizeof usable, oom->memory.largest_usable);
    put_most(scene, most, sizeof most);
    (void)snprintf(
        out, size,
        "out of memory: rank %" PRIu32 ", %s%s, %.120s: %s for %s do not fit; free: %s "
        "on the device, %s cached (largest block %s, on its stream %s); allocated %.2f of %.2f GiB "
        "reserved, the card less its context and NCCL %.2f GiB; most: %s",
        scene->class->rank, step, tsr_phase_name(oom->origin.phase), scene->where, bytes,
        tsr_category_name(oom->category), free_bytes, cached, hole, usable,
        (double)oom->memory.allocated / TSR__GIB, (double)oom->memory.reserved / TSR__GIB,
        (double)oom->memory.limit / TSR__GIB, most);
}

/* ---- what would have fitted ---------------------------------------------------------------- */

struct search {
    const struct tsr_job *job;
    bool is_batch; /* else sequences of batch 1 */
};

/* By the measure of the table: with what lies outside the allocator. */
static tsr_status fits(const void *user, uint64_t value, bool *out)
{
    const struct search *search = user;
    struct tsr_settings settings = *search->job->settings;
    struct tsr_job smaller = *search->job;
    struct tsr_row row;
    settings.batch = search->is_batch ? value : 1;
    settings.seq = search->is_batch ? settings.seq : value;
    smaller.settings = &settings;
    smaller.is_trial = true;
    tsr_status status = tsr_peak_measure(&smaller, &row);
    *out = status == TSR_OK && row.fits != 0;
    return status == TSR_ENOMEM ? status : TSR_OK; /* what cannot be run does not fit either */
}

tsr_status tsr_oom_largest(tsr_fits_fn does, const void *user, uint64_t unit, uint64_t least,
                           uint64_t above, uint64_t *out)
{
    uint64_t low = least / unit, high = tsr_ceil_div(above, unit); /* low fits, high does not */
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        bool fit = false;
        TSR_TRY(does(user, middle * unit, &fit));
        if (fit)
            low = middle;
        else
            high = middle;
    }
    *out = low * unit;
    return TSR_OK;
}

/* Puts the key of a phase outside the step to the value that needs least; what was put, NULL if it
 * had that. */
static const char *choose_least(uint8_t phase, struct tsr_settings *s)
{
    const struct tsr_settings before = *s;
    switch (phase) {
    case TSR_PHASE_INIT:
        s->init = TSR_INIT_META;
        return before.init == s->init ? NULL : "init=meta";
    case TSR_PHASE_LOAD:
        s->load = TSR_LOAD_SHARDED;
        return before.load == s->load ? NULL : "load=sharded";
    case TSR_PHASE_SAVE:
        s->save = TSR_SAVE_SHARDED;
        return before.save == s->save ? NULL : "save=sharded";
    default:
        return NULL;
    }
}

/* The largest batch, else the longest sequence of batch 1; "" if none fits. */
static tsr_status find_smaller(const struct tsr_job *job, char *out, size_t size)
{
    const struct tsr_settings *s = job->settings;
    struct search batches = {.job = job, .is_batch = true}, sequences = {.job = job};
    uint64_t batch = 0, seq = 0, unit = 64 * s->tp;
    *out = '\0';
    TSR_TRY(tsr_oom_largest(fits, &batches, 1, 0, s->batch, &batch));
    if (!batch)
        TSR_TRY(tsr_oom_largest(fits, &sequences, unit, 0, s->seq, &seq));
    if (batch)
        (void)snprintf(out, size, "batch %" PRIu64, batch);
    else if (seq)
        (void)snprintf(out, size, "batch 1 with seq %" PRIu64, seq);
    return TSR_OK;
}

/* First what the phase of the request can do without, then a smaller step. */
tsr_status tsr_oom_remedy(const struct tsr_job *job, struct tsr_row *row)
{
    struct tsr_settings least = *job->settings;
    const char *key = choose_least(row->oom_phase, &least);
    struct tsr_job with_least = *job;
    struct search as_it_is = {.job = &with_least, .is_batch = true};
    char smaller[64] = "";
    bool fit = false;
    if (row->remedy[0])
        return TSR_OK;
    with_least.settings = &least;
    if (key)
        TSR_TRY(fits(&as_it_is, least.batch, &fit));
    if (!fit)
        TSR_TRY(find_smaller(&with_least, smaller, sizeof smaller));
    if (fit || *smaller)
        (void)snprintf(row->remedy, sizeof row->remedy, "%s%s%s would fit", key ? key : "",
                       key && *smaller ? " with " : "", smaller);
    else
        (void)snprintf(row->remedy, sizeof row->remedy,
                       "no batch or sequence would fit: the model itself is too large");
    return TSR_OK;
}

/* ---- oom.json ----------------------------------------------------------------------------- */

static void put_key_text(FILE *out, const char *key, const char *text)
{
    fprintf(out, "  \"%s\": ", key);
    tsr__put_json(out, text);
    fputs(",\n", out);
}

static void put_key_bytes(FILE *out, const char *key, uint64_t bytes)
{
    fprintf(out, "  \"%s\": %" PRIu64 ",\n", key, bytes);
}

static void put_request(FILE *out, const struct scene *scene)
{
    const struct tsr_oom *oom = &scene->oom;
    const struct tsr_program *program = scene->class->programs[scene->n - 1];
    put_key_text(out, "strategy", scene->row->strategy);
    put_key_text(out, "failure", scene->row->failure);
    put_key_text(out, "remedy", scene->row->remedy);
    fprintf(out, "  \"rank\": %" PRIu32 ",\n  \"iteration\": %d,\n", scene->class->rank,
            program->iteration);
    put_key_text(out, "phase", tsr_phase_name(oom->origin.phase));
    fprintf(out, "  \"micro_batch\": %u,\n", oom->origin.micro);
    put_key_text(out, "hook", tsr_hook_name(oom->origin.hook));
    put_key_text(out, "module", scene->where);
    put_key_text(out, "category", tsr_category_name(oom->category));
    put_key_text(out, "stream",
                 oom->memory.stream < program->tables->n_streams
                     ? program->tables->streams[oom->memory.stream].name
                     : "");
    put_key_bytes(out, "requested_bytes", oom->memory.requested);
    put_key_bytes(out, "device_bytes", oom->memory.limit);
    put_key_bytes(out, "device_free_bytes", oom->memory.free);
    put_key_bytes(out, "reserved_bytes", oom->memory.reserved);
    put_key_bytes(out, "allocated_bytes", oom->memory.allocated);
    put_key_bytes(out, "cached_bytes", oom->memory.cached);
    put_key_bytes(out, "largest_free_block_bytes", oom->memory.largest_cached);
    put_key_bytes(out, "largest_usable_block_bytes", oom->memory.largest_usable);
}

static tsr_status write_json(FILE *out, const void *user)
{
    const struct scene *scene = user;
    bool comma = false;
    fputs("{\n", out);
    put_request(out, scene);
    fputs("  \"by_category\": {", out);
    for (int c = 0; c < TSR_N_CATEGORIES; c++) {
        if (!scene->by_category[c])
            continue;
        fprintf(out, "%s\n    \"%s\": %" PRIu64, comma ? "," : "", tsr_category_name(c),
                scene->by_category[c]);
        comma = true;
    }
    fputs("\n  },\n  \"owners\": [", out);
    for (size_t i = 0; i < scene->n_owners && i < MAX_OWNERS; i++) {
        const struct owner *owner = &scene->owners[i];
        fprintf(out, "%s\n    {\"owner\": ", i ? "," : "");
        tsr__put_json(out, owner->name);
        fprintf(out, ", \"category\": \"%s\", \"bytes\": %" PRIu64 ", \"buffers\": %" PRIu32 "}",
                tsr_category_name(owner->category), owner->bytes, owner->n_buffers);
    }
    fputs("\n  ]\n}\n", out);
    return TSR_OK;
}

static tsr_status write_files(const struct scene *scene, const char *dir)
{
    char name[128];
    tsr__folder_name(scene->row->strategy, name, sizeof name);
    char *folder = tsr_path_join(dir, name);
    struct tsr_history history = {.programs =
                                      (const struct tsr_program *const *)scene->class->programs,
                                  .n = scene->n,
                                  .n_last = scene->n_last,
                                  .allocator = &scene->job->settings->allocator,
                                  .oom = &scene->oom};
    tsr_status status;
    TSR_GOTO(done, folder ? tsr_make_own_folder(folder) : TSR_ENOMEM);
    TSR_GOTO(done, tsr_write_in(folder, "oom.json", write_json, scene));
    TSR_GOTO(done, tsr_report_snapshot(folder, &history));
done:
    free(folder);
    return status;
}

/* ---- all of it ---------------------------------------------------------------------------- */

static bool find_class(const struct tsr_emission *emission, struct scene *scene)
{
    for (uint32_t i = 0; i < emission->n_classes; i++) {
        const struct tsr_emitted_class *class = &emission->classes[i];
        if (!class->engine || !tsr_engine_oom(class->engine, &scene->oom))
            continue;
        scene->class = class;
        scene->n = emission->n_iterations + 1;
        return true;
    }
    return false;
}

tsr_status tsr_oom_report(const struct tsr_job *job, const struct tsr_emission *emission,
                          const char *dir, struct tsr_row *row)
{
    struct scene scene = {.job = job, .row = row};
    row->oom_phase = TSR_N_PHASES;
    if (!find_class(emission, &scene))
        return TSR_OK; /* the allocator's own words must do */
    row->oom_phase = scene.oom.origin.phase;
    tsr_status status = TSR_OK;
    TSR_GOTO(done, look(&scene));
    put_line(&scene, row->failure, sizeof row->failure);
    if (dir) {
        TSR_GOTO(done, tsr_oom_remedy(job, row));
        TSR_GOTO(done, write_files(&scene, dir));
    }
done:
    free(scene.owners);
    return status;
}

tsr_status tsr_oom_fail(const struct tsr_job *job, const struct tsr_emission *emission,
                        const char *dir, struct tsr_row *row)
{
    tsr_row_fail(row, TSR_EOOM);
    tsr_status status = tsr_oom_report(job, emission, dir, row);
    if (status != TSR_OK)
        tsr_row_fail(row, status);
    return status == TSR_OK ? tsr_fail(TSR_EOOM, "%s", row->failure) : status;
}

tsr_status tsr_with_programs(const struct tsr_job *job, struct tsr_row *row, tsr_programs_fn use,
                             void *user)
{
    struct tsr_emission emission;
    tsr_row_begin(row, job);
    tsr_status status = tsr_emit_or_keep(job, &emission);
    if (status != TSR_OK && status != TSR_EOOM)
        return status;
    status = status == TSR_EOOM ? tsr_oom_fail(job, &emission, NULL, row)
                                : use(user, job, &emission, row);
    tsr_emission_fini(&emission);
    return status;
}
