/* train_resume.c: from which checkpoint a run goes on. Rank 0 proposes one after the other, newest
 * first. All ranks look at it together, each at its share of the files, to the last byte: what one
 * of them finds damaged is passed over by all, before anything of it is loaded.
 */
#include <stdlib.h>
#include <string.h>

#include "exec/files/checkpoint_impl.h"
#include "exec/files/safetensors.h"
#include "exec/train/train_impl.h"

enum candidate_kind { END, NAMED, OF_FOLDER };

struct candidate {
    enum candidate_kind kind;
    struct tsr_step_dir step; /* OF_FOLDER */
};

/* ---- looking at one -------------------------------------------------------------------------- */

static tsr_status check_tensors(struct tsr_safetensors *file, const struct tsr_commit_file *commit)
{
    if (tsr_safetensors_bytes(file) != commit->bytes ||
        tsr_safetensors_header_hash(file) != commit->hash)
        return tsr_fail(TSR_EIO, "%s: damaged: its header is not the committed one",
                        tsr_safetensors_path(file));
    for (size_t i = 0; i < tsr_safetensors_count(file); i++)
        TSR_TRY(tsr_safetensors_verify(file, tsr_safetensors_tensor(file, i)));
    return TSR_OK;
}

static tsr_status check_file(const struct tsr_folder *dir, const struct tsr_commit *commit,
                             uint32_t rank)
{
    char name[TSR_RANK_FILE_BYTES];
    struct tsr_safetensors *file = NULL;
    tsr__rank_file(name, rank, commit->world);
    TSR_TRY(tsr_safetensors_open_in(dir, name, &file));
    tsr_status status = check_tensors(file, &commit->files[rank + 1]);
    tsr_safetensors_close(file);
    return status;
}

/* COMMIT and meta.json; every `size`th file of a rank. */
static tsr_status check_share(const struct tsr_train *t, const struct tsr_folder *dir)
{
    uint32_t size = t->config.world ? t->config.size : 1;
    struct tsr_commit commit;
    struct tsr_meta meta;
    TSR_TRY(tsr__checkpoint_check(dir, &commit, &meta));
    tsr__meta_fini(&meta);
    tsr_status status = TSR_OK;
    for (uint32_t r = t->config.rank; r < commit.world && status == TSR_OK; r += size)
        status = check_file(dir, &commit, r);
    tsr__commit_fini(&commit);
    return status;
}

/* The folder of all checkpoints of a run. */
static tsr_status open_all(const struct tsr_train *t, struct tsr_folder *out)
{
    char path[TSR_PATH_BYTES];
    out->fd = -1;
    TSR_TRY(tsr_path(path, "%s/checkpoints", t->config.resume_from));
    return tsr_folder_open_own(path, out);
}

static tsr_status open_one(const struct tsr_train *t, const struct candidate *c,
                           struct tsr_folder *out)
{
    char name[TSR_STEP_NAME_BYTES];
    struct tsr_folder all;
    out->fd = -1;
    if (c->kind == NAMED)
        return tsr_folder_open(t->config.resume_from, out);
    TSR_TRY(open_all(t, &all));
    tsr__step_name(name, &c->step);
    tsr_status status = tsr_folder_enter(&all, name, out);
    tsr_folder_close(&all);
    return status;
}

/* All ranks alike. On success it is open. TSR_ECONFIG: it is not whole. */
static tsr_status try_one(struct tsr_train *t, const struct candidate *c)
{
    struct tsr_folder folder;
    tsr_status status;
    TSR_GOTO(agree, open_one(t, c, &folder));
    TSR_GOTO(agree, check_share(t, &folder));
    TSR_GOTO(agree, tsr__checkpoint_open(&folder, false, &t->from));
agree:
    tsr_folder_close(&folder);
    if (status == TSR_EIO) /* what is damaged, or cannot be read: the fault of no rank */
        status = tsr_fail(TSR_ECONFIG, "%s", tsr_error_text());
    status = tsr_world_agree(t->config.world, status);
    if (status != TSR_OK) {
        tsr_checkpoint_close(t->from);
        t->from = NULL;
    }
    return status;
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* Of rank 0: what there is to choose from, newest first. */
static tsr_status list(const struct tsr_train *t, struct tsr_step_dirs *steps)
{
    struct tsr_folder all;
    size_t n = 0;
    tsr_status status = open_all(t, &all);
    if (status == TSR_OK)
        status = tsr__list_steps(&all, steps);
    tsr_folder_close(&all);
    if (status != TSR_OK && status != TSR_ECONFIG) /* no such folder: nothing to choose from */
        return status;
    for (size_t i = 0; i < steps->n; i++)
        if (!steps->items[i].is_part)
            steps->items[n++] = steps->items[i];
    steps->n = n;
    return n ? TSR_OK
             : tsr_fail(TSR_ECONFIG,
                        "%s: found no checkpoint to resume from; allowed: the folder of a run that "
                        "saved one",
                        t->config.resume_from);
}

/* What rank 0 says, on all ranks. */
static tsr_status tell_all(struct tsr_train *t, struct candidate *c)
{
    struct tsr_world *world = t->config.world;
    struct candidate *all = world ? calloc(world->size, sizeof *all) : c;
    if (!all)
        return tsr_no_memory("a checkpoint");
    tsr_status status = world ? world->ops->exchange(world, c, all, sizeof *c) : TSR_OK;
    *c = all[0];
    if (world)
        free(all);
    return status;
}

static tsr_status choose(struct tsr_train *t, const struct tsr_step_dirs *steps)
{
    char newest[512] = "", all[2048] = "";
    for (size_t i = 0;; i++) {
        struct candidate c = {.kind = i < steps->n ? OF_FOLDER : END};
        if (i < steps->n)
            c.step = steps->items[i];
        TSR_TRY(tell_all(t, &c));
        if (c.kind == END)
            return tsr_world_agree(
                t->config.world,
                tsr_fail(TSR_ECONFIG,
                         "%s: found no checkpoint that is whole among %zu; the newest: %s",
                         t->config.resume_from, i, newest));
        tsr_status status = try_one(t, &c);
        if (status == TSR_OK && i > 0)
            tsr_train_note(t, "passed over %s: %s",
                           i == 1 ? "a damaged checkpoint" : "damaged checkpoints", all);
        if (status != TSR_ECONFIG)
            return status;
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", i ? "; " : "", tsr_error_text());
        if (i == 0)
            snprintf(newest, sizeof newest, "%s", tsr_error_text());
    }
}

static tsr_status choose_any(struct tsr_train *t)
{
    struct tsr_step_dirs steps = {0};
    struct candidate c = {.kind = tsr__is_checkpoint(t->config.resume_from) ? NAMED : OF_FOLDER};
    TSR_TRY(tell_all(t, &c));
    if (c.kind == NAMED)
        return try_one(t, &c);
    tsr_status status = t->config.rank == 0 ? list(t, &steps) : TSR_OK;
    status = tsr_world_agree(t->config.world, status);
    if (status == TSR_OK)
        status = choose(t, &steps);
    free(steps.items);
    return status;
}

tsr_status tsr_train_open_checkpoint(struct tsr_train *t)
{
    TSR_TRY(choose_any(t));
    snprintf(t->saved, sizeof t->saved, "%s", tsr_checkpoint_path(t->from));
    return TSR_OK;
}
