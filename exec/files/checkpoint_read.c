/* checkpoint_read.c: byte ranges of a checkpoint for any other layout: which ranks' files have
 * them, and a few of those open at a time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/files/checkpoint_impl.h"
#include "exec/files/safetensors.h"
#include "sim/base/text.h"

/* ---- opening --------------------------------------------------------------------------------- */

tsr_status tsr__checkpoint_open(struct tsr_folder *folder, bool verify, struct tsr_checkpoint **out)
{
    *out = NULL;
    struct tsr_checkpoint *c = calloc(1, sizeof *c);
    if (!c) {
        tsr_folder_close(folder);
        return tsr_no_memory(NULL);
    }
    c->folder = *folder;
    c->verify = verify;
    atomic_init(&c->bytes_read, 0);
    folder->fd = -1;
    tsr_status status = tsr__checkpoint_check(&c->folder, &c->commit, &c->meta);
    if (status != TSR_OK) {
        tsr_folder_close(&c->folder);
        free(c);
        return status;
    }
    pthread_mutex_init(&c->mutex, NULL);
    *out = c;
    return TSR_OK;
}

tsr_status tsr_checkpoint_open(const char *path, bool verify, struct tsr_checkpoint **out)
{
    struct tsr_folder folder;
    *out = NULL;
    TSR_TRY(tsr__is_checkpoint(path) ? tsr_folder_open(path, &folder)
                                     : tsr__open_latest(path, &folder, NULL));
    return tsr__checkpoint_open(&folder, verify, out);
}

static void close_open(struct tsr_open_file *f)
{
    tsr_safetensors_close(f->file);
    free(f->verified);
    *f = (struct tsr_open_file){0};
}

void tsr_checkpoint_close(struct tsr_checkpoint *c)
{
    if (!c)
        return;
    for (int i = 0; i < TSR_OPEN_FILES; i++)
        close_open(&c->open[i]);
    pthread_mutex_destroy(&c->mutex);
    tsr__commit_fini(&c->commit);
    tsr__meta_fini(&c->meta);
    tsr_folder_close(&c->folder);
    free(c);
}

/* ---- questions ------------------------------------------------------------------------------- */

const char *tsr_checkpoint_path(const struct tsr_checkpoint *c)
{
    return c->folder.path;
}

uint64_t tsr_checkpoint_step(const struct tsr_checkpoint *c)
{
    return c->meta.step;
}

const struct tsr_checkpoint_layout *tsr_checkpoint_layout(const struct tsr_checkpoint *c)
{
    return &c->meta.layout;
}

const struct tsr_checkpoint_info *tsr_checkpoint_info(const struct tsr_checkpoint *c)
{
    return &c->meta.info;
}

bool tsr_checkpoint_scalar(const struct tsr_checkpoint *c, const char *name, double *value)
{
    const struct tsr_checkpoint_info *info = &c->meta.info;
    for (size_t i = 0; i < info->n_scalars; i++) {
        if (strcmp(info->scalars[i].name, name) != 0)
            continue;
        *value = info->scalars[i].value;
        return true;
    }
    return false;
}

/* ---- files ----------------------------------------------------------------------------------- */

static tsr_status open_rank(struct tsr_checkpoint *c, uint32_t rank, struct tsr_open_file *f)
{
    char name[TSR_RANK_FILE_BYTES];
    tsr__rank_file(name, rank, c->commit.world);
    TSR_TRY(tsr_safetensors_open_in(&c->folder, name, &f->file));
    f->rank = rank;
    const struct tsr_commit_file *committed = &c->commit.files[rank + 1];
    if (tsr_safetensors_bytes(f->file) != committed->bytes ||
        tsr_safetensors_header_hash(f->file) != committed->hash)
        return tsr_fail(TSR_EIO, "%s: damaged: its header is not the committed one",
                        tsr_safetensors_path(f->file));
    f->verified = calloc(tsr_safetensors_count(f->file) + 1, sizeof *f->verified);
    return f->verified ? TSR_OK : tsr_no_memory(NULL);
}

static tsr_status file_of(struct tsr_checkpoint *c, uint32_t rank, struct tsr_open_file **out)
{
    struct tsr_open_file *oldest = &c->open[0];
    if (rank >= c->commit.world)
        return tsr_fail(TSR_ECONFIG, "%s/meta.json: a layout has rank %u of %u", c->folder.path,
                        rank, c->commit.world);
    for (int i = 0; i < TSR_OPEN_FILES; i++) {
        struct tsr_open_file *f = &c->open[i];
        if (f->file && f->rank == rank) {
            f->last_used = ++c->clock;
            *out = f;
            return TSR_OK;
        }
        if (oldest->file && (!f->file || f->last_used < oldest->last_used))
            oldest = f;
    }
    close_open(oldest);
    tsr_status status = open_rank(c, rank, oldest);
    oldest->last_used = ++c->clock;
    *out = oldest;
    if (status != TSR_OK)
        close_open(oldest);
    return status;
}

/* ---- tensors --------------------------------------------------------------------------------- */

struct read_ctx {
    struct tsr_checkpoint *c;
    const struct tsr_dtensor *from;
    const char *name; /* in the files */
    char *out;
    uint64_t bytes; /* of all of it */
};

static tsr_status find_tensor(struct read_ctx *r, struct tsr_open_file *f,
                              const struct tsr_st_tensor **out)
{
    const struct tsr_st_tensor *t = *out = tsr_safetensors_find(f->file, r->name);
    if (!t)
        return tsr_fail(TSR_ECONFIG, "%s: no tensor \"%s\"", tsr_safetensors_path(f->file),
                        tsr_show(r->name).text);
    bool *verified = &f->verified[t - tsr_safetensors_tensor(f->file, 0)];
    if (!r->c->verify || *verified)
        return TSR_OK;
    TSR_TRY(tsr_safetensors_verify(f->file, t));
    *verified = true;
    return TSR_OK;
}

static tsr_status read_range(void *user, const struct tsr_byte_range *range)
{
    struct read_ctx *r = user;
    struct tsr_open_file *f = NULL;
    const struct tsr_st_tensor *t = NULL;
    if (range->to_offset > r->bytes || range->bytes > r->bytes - range->to_offset)
        return tsr_fail(TSR_EDEFECT, "checkpoint: a range outside the shard of %s", r->name);
    TSR_TRY(file_of(r->c, tsr__first_holder(r->from, range->from_rank), &f));
    TSR_TRY(find_tensor(r, f, &t));
    TSR_TRY(tsr_safetensors_read(f->file, t, range->from_offset, r->out + range->to_offset,
                                 range->bytes));
    atomic_fetch_add(&r->c->bytes_read, range->bytes);
    return TSR_OK;
}

static void print_shape(char *out, size_t room, const struct tsr_dtensor *t)
{
    size_t n = (size_t)snprintf(out, room, "[");
    for (int i = 0; i < t->n_dims && n < room; i++)
        n += (size_t)snprintf(out + n, room - n, "%s%llu", i ? ", " : "",
                              (unsigned long long)t->shape[i]);
    if (n < room)
        snprintf(out + n, room - n, "]");
}

static tsr_status check_tensor(const struct tsr_checkpoint *c, enum tsr_checkpoint_part part,
                               size_t entry, tsr_dtype dtype, const struct tsr_dtensor *to)
{
    const struct tsr_state_entry *e = &c->meta.params.entries[entry];
    const struct tsr_dtensor *from = &c->meta.params.layouts[e->layout];
    tsr_dtype saved = tsr_checkpoint_dtype(&c->meta.layout, part, entry);
    char a[256], b[256];
    TSR_TRY(tsr_dtensor_check(to));
    print_shape(a, sizeof a, from);
    print_shape(b, sizeof b, to);
    if (strcmp(a, b) != 0)
        return tsr_fail(TSR_ECONFIG, "%s: %s.%s: shape %s, but the model has %s", c->folder.path,
                        tsr__part_name(part), tsr_show(e->fqn).text, a, b);
    if (saved != dtype)
        return tsr_fail(TSR_ECONFIG, "%s: %s.%s: dtype %s, but %s is wanted", c->folder.path,
                        tsr__part_name(part), tsr_show(e->fqn).text, tsr_dtype_name(saved),
                        tsr_dtype_name(dtype));
    return TSR_OK;
}

tsr_status tsr_checkpoint_read(struct tsr_checkpoint *c, enum tsr_checkpoint_part part,
                               const char *fqn, tsr_dtype dtype, const struct tsr_dtensor *to,
                               uint32_t rank, void *out, uint64_t bytes)
{
    const struct tsr_state_dict *params = &c->meta.params;
    const struct tsr_state_entry *e = tsr_state_dict_find(params, fqn);
    char name[TSR_PATH_BYTES];
    if (!e || (unsigned)part >= TSR_N_PARTS)
        return tsr_fail(TSR_ECONFIG, "%s: no parameter \"%s\"", c->folder.path, tsr_show(fqn).text);
    size_t entry = e->alias_of;
    e = &params->entries[entry];
    TSR_TRY(check_tensor(c, part, entry, dtype, to));
    uint64_t expected = tsr_dtensor_local_numel(to, rank) * tsr_dtype_bytes(dtype);
    if (bytes != expected)
        return tsr_fail(TSR_EVALUE, "checkpoint: rank %u holds %llu bytes of %s, not %llu", rank,
                        (unsigned long long)expected, tsr_show(fqn).text,
                        (unsigned long long)bytes);
    if (bytes == 0)
        return TSR_OK;
    TSR_TRY(tsr_path(name, "%s.%s", tsr__part_name(part), e->fqn));
    struct read_ctx r = {c, &params->layouts[e->layout], name, out, bytes};
    pthread_mutex_lock(&c->mutex);
    tsr_status status =
        tsr_reshard_tensor(r.from, params->world, to, rank, tsr_dtype_bytes(dtype), read_range, &r);
    pthread_mutex_unlock(&c->mutex);
    return status;
}

tsr_status tsr_checkpoint_read_piece(struct tsr_checkpoint *c, const struct tsr_state_dict *to,
                                     uint32_t rank, const struct tsr_piece *piece, void *out)
{
    size_t entry = 0;
    if (!tsr__entry_by_hash(to, piece->name, &entry) || piece->what >= TSR_N_PARTS ||
        !tsr__is_piece_of(&to->layouts[to->entries[entry].layout], rank, piece))
        return tsr_fail(TSR_EDEFECT, "checkpoint: piece %016llx is not one of rank %u's state",
                        (unsigned long long)piece->name, rank);
    const struct tsr_state_entry *e = &to->entries[entry];
    const struct tsr_dtensor *layout = &to->layouts[e->layout];
    uint64_t bytes =
        tsr_dtensor_local_numel(layout, rank) * tsr_dtype_bytes((tsr_dtype)piece->dtype);
    return tsr_checkpoint_read(c, (enum tsr_checkpoint_part)piece->what, e->fqn,
                               (tsr_dtype)piece->dtype, layout, rank, out, bytes);
}
