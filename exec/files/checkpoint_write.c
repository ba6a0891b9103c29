/* checkpoint_write.c: what each rank writes, and how all of it becomes a checkpoint at once. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "exec/files/checkpoint_impl.h"
#include "exec/files/safetensors.h"

/* What a rank tells the others. */
struct report {
    uint32_t status; /* tsr_status */
    uint64_t bytes, hash;
    char text[232];
};

/* Everything lies in `part` until all ranks have said that theirs is on the disk; then rank 0
 * writes COMMIT, which names every file with its checksum, and renames the folder to `final`: a
 * reader sees all of a checkpoint or none. What fails on one rank is found by agree() on all, at
 * the next step that they take together; nobody goes on alone, or the others would wait. */
struct tsr_checkpoint_writer {
    struct tsr_checkpoint_config config;
    struct tsr_disk disk;
    struct tsr_checkpoint_layout layout;
    uint64_t step;
    struct tsr_folder dir, part; /* the folder of all of them, and what becomes this one */
    char part_name[TSR_STEP_NAME_BYTES], final_name[TSR_STEP_NAME_BYTES];
    struct tsr_safetensors_writer *file;
    struct report *reports; /* [world] */
    struct report own;
    bool is_finished, is_committed, has_trouble;
    char trouble[512];
    pthread_mutex_t mutex; /* of failure */
    struct report failure; /* of the first put that failed */
};

/* ---- together -------------------------------------------------------------------------------- */

static const struct report *first_failure(const struct tsr_checkpoint_writer *w)
{
    for (uint32_t r = 0; r < w->config.world; r++)
        if (w->reports[r].status != TSR_OK)
            return &w->reports[r];
    return NULL;
}

/* All ranks learn how it went everywhere; the first failure is everybody's. After a failure the
 * ranks meet once more: a rank that left before the others have heard of it would end their
 * exchange, and they would report that rank instead of the failure. */
static tsr_status agree(struct tsr_checkpoint_writer *w, tsr_status status)
{
    w->own.status = (uint32_t)status;
    if (status != TSR_OK)
        snprintf(w->own.text, sizeof w->own.text, "%s", tsr_error_text());
    if (!w->config.exchange) {
        w->reports[0] = w->own;
        return status;
    }
    TSR_TRY(w->config.exchange(w->config.user, &w->own, w->reports, sizeof w->own));
    const struct report *failed = first_failure(w);
    if (!failed)
        return TSR_OK;
    const struct report told = *failed;
    uint32_t rank = (uint32_t)(failed - w->reports);
    (void)!w->config.exchange(w->config.user, &w->own, w->reports, sizeof w->own);
    if (rank == w->config.rank)
        return tsr_fail((tsr_status)told.status, "%.*s", (int)sizeof told.text, told.text);
    return tsr_fail((tsr_status)told.status, "rank %u: %.*s", rank, (int)sizeof told.text,
                    told.text);
}

/* ---- begin ----------------------------------------------------------------------------------- */

tsr_dtype tsr_checkpoint_dtype(const struct tsr_checkpoint_layout *layout,
                               enum tsr_checkpoint_part part, size_t entry)
{
    tsr_dtype dtype = layout->params->entries[entry].dtype;
    if (part == TSR_PART_PARAM)
        return dtype;
    if ((int)part > layout->n_states || (layout->stateless && layout->stateless[entry]))
        return TSR_DTYPE_NONE;
    return layout->state_dtype != TSR_DTYPE_NONE ? layout->state_dtype : dtype;
}

static const struct tsr_dtensor *layout_of(const struct tsr_checkpoint_writer *w, size_t entry)
{
    return &w->layout.params->layouts[w->layout.params->entries[entry].layout];
}

static bool is_mine(const struct tsr_checkpoint_writer *w, size_t entry)
{
    return tsr__first_holder(layout_of(w, entry), w->config.rank) == w->config.rank;
}

/* For people and other programs: "shape=16,8 start=4,0". Without a start if it is not one box. */
static void describe(const struct tsr_dtensor *t, uint32_t rank, char *out, size_t room)
{
    uint64_t start[TSR_DT_MAX_DIMS], size[TSR_DT_MAX_DIMS];
    size_t n = 0;
    bool box = tsr_dtensor_box(t, rank, start, size);
    for (int pass = 0; pass < (box ? 2 : 1); pass++)
        for (int i = 0; i < t->n_dims; i++)
            n += (size_t)snprintf(out + n, room - n, "%s%llu",
                                  i      ? ","
                                  : pass ? " start="
                                         : "shape=",
                                  (unsigned long long)(pass ? start[i] : t->shape[i]));
    out[n] = '\0';
}

static tsr_status declare(struct tsr_checkpoint_writer *w, size_t entry)
{
    const struct tsr_dtensor *t = layout_of(w, entry);
    uint64_t shape[TSR_DT_MAX_DIMS];
    char note[512], name[TSR_PATH_BYTES];
    tsr_dtensor_local_shape(t, w->config.rank, shape);
    describe(t, w->config.rank, note, sizeof note);
    for (int part = 0; part < TSR_N_PARTS; part++) {
        tsr_dtype dtype = tsr_checkpoint_dtype(&w->layout, (enum tsr_checkpoint_part)part, entry);
        if (dtype == TSR_DTYPE_NONE)
            continue;
        TSR_TRY(tsr_path(name, "%s.%s", tsr__part_name((enum tsr_checkpoint_part)part),
                         w->layout.params->entries[entry].fqn));
        TSR_TRY(tsr_safetensors_declare(w->file, name, dtype, t->n_dims, shape, note));
    }
    return TSR_OK;
}

static tsr_status open_rank_file(struct tsr_checkpoint_writer *w)
{
    char name[TSR_RANK_FILE_BYTES];
    const struct tsr_st_writer_options options = {
        .disk = &w->disk, .checksums = true, .in = &w->part};
    if (w->dir.fd < 0)
        TSR_TRY(tsr_folder_open_own(w->config.dir, &w->dir));
    TSR_TRY(tsr_folder_enter(&w->dir, w->part_name, &w->part));
    tsr__rank_file(name, w->config.rank, w->config.world);
    TSR_TRY(tsr_safetensors_create(name, &options, &w->file));
    for (size_t i = 0; i < w->layout.params->n; i++)
        if (w->layout.params->entries[i].alias_of == i && is_mine(w, i))
            TSR_TRY(declare(w, i));
    return tsr_safetensors_begin(w->file);
}

static void keep_trouble(struct tsr_checkpoint_writer *w)
{
    if (w->has_trouble)
        return;
    w->has_trouble = true;
    snprintf(w->trouble, sizeof w->trouble, "%s", tsr_error_text());
}

/* What others put into an unfinished checkpoint is in the way of this step only. */
static tsr_status make_folder(struct tsr_checkpoint_writer *w)
{
    TSR_TRY(tsr_disk_make_dirs(&w->disk, w->config.dir));
    TSR_TRY(tsr_folder_open_own(w->config.dir, &w->dir));
    tsr_status status = tsr__remove_parts(&w->disk, &w->dir);
    if (status == TSR_ECONFIG && tsr_kind_of(&w->dir, w->part_name) == TSR_KIND_NONE)
        keep_trouble(w);
    else
        TSR_TRY(status);
    return tsr_disk_make_dir(&w->disk, &w->dir, w->part_name);
}

static tsr_status check_config(const struct tsr_checkpoint_config *c,
                               const struct tsr_checkpoint_layout *l)
{
    if (c->rank >= c->world || l->params->world != c->world || (c->world > 1 && !c->exchange))
        return tsr_fail(TSR_EVALUE, "checkpoint: rank %u of %u, and a state of %u ranks", c->rank,
                        c->world, l->params->world);
    if (l->n_states < 0 || l->n_states >= TSR_N_PARTS)
        return tsr_fail(TSR_EVALUE, "checkpoint: %d optimizer states; allowed: 0 to %d",
                        l->n_states, TSR_N_PARTS - 1);
    return TSR_OK;
}

static tsr_status fill_writer(struct tsr_checkpoint_writer *w)
{
    w->reports = calloc(w->config.world, sizeof *w->reports);
    if (!w->reports)
        return tsr_no_memory(NULL);
    tsr__step_name(w->final_name, &(struct tsr_step_dir){.step = w->step});
    tsr__step_name(w->part_name, &(struct tsr_step_dir){.step = w->step, .is_part = true});
    return TSR_OK;
}

tsr_status tsr_checkpoint_begin(const struct tsr_checkpoint_config *config, uint64_t step,
                                const struct tsr_checkpoint_layout *layout,
                                struct tsr_checkpoint_writer **out)
{
    *out = NULL;
    TSR_TRY(check_config(config, layout));
    struct tsr_checkpoint_writer *w = calloc(1, sizeof *w);
    if (!w)
        return tsr_no_memory(NULL);
    w->config = *config;
    w->layout = *layout;
    w->disk = config->disk ? *config->disk : tsr_disk_posix;
    w->step = step;
    w->dir.fd = w->part.fd = -1;
    pthread_mutex_init(&w->mutex, NULL);
    tsr_status status;
    TSR_GOTO(failed, fill_writer(w));
    TSR_GOTO(failed, agree(w, config->rank == 0 ? make_folder(w) : TSR_OK));
    TSR_GOTO(failed, agree(w, open_rank_file(w)));
    w->config.dir = NULL; /* borrowed until here */
    *out = w;
    return TSR_OK;
failed:
    tsr_checkpoint_writer_destroy(w);
    return status;
}

/* ---- put ------------------------------------------------------------------------------------- */

static tsr_status put(struct tsr_checkpoint_writer *w, enum tsr_checkpoint_part part, size_t entry,
                      const void *local, uint64_t bytes)
{
    char name[TSR_PATH_BYTES];
    const struct tsr_state_dict *params = w->layout.params;
    if (entry >= params->n || (unsigned)part >= TSR_N_PARTS ||
        tsr_checkpoint_dtype(&w->layout, part, params->entries[entry].alias_of) == TSR_DTYPE_NONE)
        return tsr_fail(TSR_EVALUE, "checkpoint: no part %d of entry %zu", (int)part, entry);
    entry = params->entries[entry].alias_of;
    if (!is_mine(w, entry))
        return TSR_OK;
    TSR_TRY(tsr_path(name, "%s.%s", tsr__part_name(part), params->entries[entry].fqn));
    return tsr_safetensors_put(w->file, name, local, bytes);
}

/* The first one is what commit tells. */
static tsr_status keep_failure(struct tsr_checkpoint_writer *w, tsr_status status)
{
    if (status == TSR_OK)
        return TSR_OK;
    pthread_mutex_lock(&w->mutex);
    if (w->failure.status == TSR_OK) {
        w->failure.status = (uint32_t)status;
        snprintf(w->failure.text, sizeof w->failure.text, "%s", tsr_error_text());
    }
    pthread_mutex_unlock(&w->mutex);
    return status;
}

tsr_status tsr_checkpoint_put(struct tsr_checkpoint_writer *w, enum tsr_checkpoint_part part,
                              size_t entry, const void *local, uint64_t bytes)
{
    return keep_failure(w, put(w, part, entry, local, bytes));
}

tsr_status tsr_checkpoint_put_piece(struct tsr_checkpoint_writer *w, const struct tsr_piece *piece,
                                    const void *local)
{
    size_t entry = 0;
    enum tsr_checkpoint_part part = (enum tsr_checkpoint_part)piece->what;
    if (piece->what >= TSR_N_PARTS || !tsr__entry_by_hash(w->layout.params, piece->name, &entry) ||
        !tsr__is_piece_of(layout_of(w, entry), w->config.rank, piece) ||
        tsr_checkpoint_dtype(&w->layout, part, entry) != piece->dtype)
        return tsr_fail(TSR_EDEFECT,
                        "checkpoint: piece %016llx, part %d, is not one of rank %u's state",
                        (unsigned long long)piece->name, (int)piece->what, w->config.rank);
    uint64_t bytes = tsr_dtensor_local_numel(layout_of(w, entry), w->config.rank) *
                     tsr_dtype_bytes((tsr_dtype)piece->dtype);
    return tsr_checkpoint_put(w, part, entry, local, bytes);
}

/* ---- commit ---------------------------------------------------------------------------------- */

static tsr_status finish_rank_file(struct tsr_checkpoint_writer *w)
{
    pthread_mutex_lock(&w->mutex);
    struct report failure = w->failure;
    pthread_mutex_unlock(&w->mutex);
    if (failure.status != TSR_OK)
        return tsr_fail((tsr_status)failure.status, "%s", failure.text);
    if (w->is_finished)
        return TSR_OK;
    TSR_TRY(tsr_safetensors_finish(w->file));
    w->is_finished = true;
    w->own.bytes = tsr_safetensors_written_bytes(w->file);
    w->own.hash = tsr_safetensors_written_hash(w->file);
    return TSR_OK;
}

tsr_status tsr_checkpoint_finish(struct tsr_checkpoint_writer *w)
{
    return keep_failure(w, finish_rank_file(w));
}

static tsr_status write_meta(struct tsr_checkpoint_writer *w,
                             const struct tsr_checkpoint_info *info, struct tsr_commit_file *file)
{
    char *text = NULL;
    TSR_TRY(tsr__meta_write(w->step, &w->layout, info, &text));
    *file = (struct tsr_commit_file){strlen(text), XXH64(text, strlen(text), 0)};
    tsr_status status = tsr_disk_write_file(&w->disk, &w->part, "meta.json", text, strlen(text));
    free(text);
    return status;
}

/* Behind it all files of all ranks, and their names, are on the disk. */
static tsr_status write_commit(struct tsr_checkpoint_writer *w, const struct tsr_commit *commit)
{
    char *text = NULL;
    TSR_TRY(tsr__commit_write(commit, &text));
    tsr_status status = tsr_disk_write_file(&w->disk, &w->part, "COMMIT", text, strlen(text));
    free(text);
    TSR_TRY(status);
    return tsr_disk_sync_dir(&w->disk, &w->part);
}

/* A folder cannot be exchanged for another one at once: the one that is in the way is moved aside,
 * where readers still find it. */
static tsr_status clear_the_way(const struct tsr_checkpoint_writer *w)
{
    const struct tsr_step_dir there = {.step = w->step}, old = {.step = w->step, .is_old = true};
    char aside[TSR_STEP_NAME_BYTES];
    struct tsr_folder final;
    struct tsr_commit commit;
    struct tsr_meta meta;
    if (tsr_kind_of(&w->dir, w->final_name) == TSR_KIND_NONE)
        return TSR_OK;
    TSR_TRY(tsr_folder_enter(&w->dir, w->final_name, &final));
    tsr_status status = tsr__checkpoint_check(&final, &commit, &meta);
    tsr_folder_close(&final);
    if (status != TSR_OK)
        return tsr__remove_step(&w->disk, &w->dir, &there);
    tsr__commit_fini(&commit);
    tsr__meta_fini(&meta);
    tsr__step_name(aside, &old);
    TSR_TRY(tsr__remove_step(&w->disk, &w->dir, &old));
    return tsr_disk_move(&w->disk, &w->dir, w->final_name, aside);
}

static tsr_status complete(struct tsr_checkpoint_writer *w, const struct tsr_checkpoint_info *info)
{
    struct tsr_commit commit = {.step = w->step, .world = w->config.world};
    commit.files = calloc((size_t)commit.world + 1, sizeof *commit.files);
    if (!commit.files)
        return tsr_no_memory(NULL);
    for (uint32_t r = 0; r < commit.world; r++)
        commit.files[r + 1] = (struct tsr_commit_file){w->reports[r].bytes, w->reports[r].hash};
    tsr_status status;
    TSR_GOTO(end, write_meta(w, info, &commit.files[0]));
    TSR_GOTO(end, write_commit(w, &commit));
    TSR_GOTO(end, clear_the_way(w));
    status = tsr_disk_move(&w->disk, &w->dir, w->part_name, w->final_name);
end:
    tsr__commit_fini(&commit);
    return status;
}

tsr_status tsr_checkpoint_commit(struct tsr_checkpoint_writer *w,
                                 const struct tsr_checkpoint_info *info)
{
    TSR_TRY(agree(w, finish_rank_file(w)));
    TSR_TRY(agree(w, w->config.rank == 0 ? complete(w, info) : TSR_OK));
    w->is_committed = true;
    if (w->config.rank == 0 &&
        tsr__remove_old(&w->disk, &w->dir, w->step, w->config.keep) != TSR_OK)
        keep_trouble(w);
    return TSR_OK;
}

const char *tsr_checkpoint_trouble(const struct tsr_checkpoint_writer *w)
{
    return w->has_trouble ? w->trouble : NULL;
}

/* The error text is that of what went wrong before, not of cleaning up. */
void tsr_checkpoint_writer_destroy(struct tsr_checkpoint_writer *w)
{
    if (!w)
        return;
    char text[512];
    snprintf(text, sizeof text, "%s", tsr_error_text());
    tsr_safetensors_destroy(w->file);
    if (!w->is_committed && w->config.rank == 0 && w->dir.fd >= 0)
        (void)!tsr__remove_step(&w->disk, &w->dir,
                                &(struct tsr_step_dir){.step = w->step, .is_part = true});
    tsr_folder_close(&w->part);
    tsr_folder_close(&w->dir);
    pthread_mutex_destroy(&w->mutex);
    free(w->reports);
    free(w);
    (void)tsr_fail(TSR_OK, "%s", text);
}
