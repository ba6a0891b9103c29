/* checkpoint_commit.c: COMMIT, and which folders are complete checkpoints (checkpoint_impl.h).
 *
 *   tessera checkpoint 1
 *   step 1000 world 8
 *   3ac5d4b2a1907f66        5120 meta.json
 *   ...                          one line for each file: checksum, bytes, name
 *   xxh64 0f3b...                of all lines above
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "exec/files/checkpoint_impl.h"

enum {
    COMMIT_LINE = 128, /* at most */
    COMMIT_MAX_BYTES = 1 << 30,
    META_MAX_BYTES = 1 << 30,
    SUM_LINE = sizeof "xxh64 \n" - 1 + 16 /* the last one */
};

/* ---- names ----------------------------------------------------------------------------------- */

void tsr__rank_file(char out[TSR_RANK_FILE_BYTES], uint32_t rank, uint32_t world)
{
    snprintf(out, TSR_RANK_FILE_BYTES, "rank_%05u-of-%05u.safetensors", rank, world);
}

const char *tsr__part_name(enum tsr_checkpoint_part part)
{
    static const char *const names[] = {"param", "state0", "state1"};
    return names[part];
}

uint32_t tsr__first_holder(const struct tsr_dtensor *t, uint32_t rank)
{
    uint32_t first = 0;
    for (int i = 0; i < t->n_mesh; i++)
        if (t->place[i].kind != TSR_PLACE_REPLICATE)
            first += rank / t->mesh[i].stride % t->mesh[i].size * t->mesh[i].stride;
    return first;
}

bool tsr__entry_by_hash(const struct tsr_state_dict *s, uint64_t name, size_t *entry)
{
    for (size_t i = 0; i < s->n; i++) {
        const char *fqn = s->entries[i].fqn;
        if (tsr_hash_bytes(TSR_HASH_INIT, fqn, strlen(fqn)) != name)
            continue;
        *entry = s->entries[i].alias_of;
        return true;
    }
    return false;
}

bool tsr__is_piece_of(const struct tsr_dtensor *t, uint32_t rank, const struct tsr_piece *piece)
{
    uint64_t start[TSR_DT_MAX_DIMS], size[TSR_DT_MAX_DIMS];
    bool same = piece->n_dims == t->n_dims && tsr_dtensor_box(t, rank, start, size);
    bool empty = same && tsr_dtensor_local_numel(t, rank) == 0; /* its place means nothing */
    for (int i = 0; same && i < t->n_dims; i++)
        same = piece->shape[i] == t->shape[i] && piece->size[i] == size[i] &&
               (empty || piece->start[i] == start[i]);
    return same;
}

static void file_name(char out[TSR_RANK_FILE_BYTES], const struct tsr_commit *c, size_t i)
{
    if (i == 0)
        snprintf(out, TSR_RANK_FILE_BYTES, "meta.json");
    else
        tsr__rank_file(out, (uint32_t)(i - 1), c->world);
}

/* ---- COMMIT ---------------------------------------------------------------------------------- */

tsr_status tsr__commit_write(const struct tsr_commit *c, char **out)
{
    char name[TSR_RANK_FILE_BYTES];
    size_t room = ((size_t)c->world + 5) * COMMIT_LINE, n = 0;
    char *text = *out = malloc(room);
    if (!text)
        return tsr_no_memory(NULL);
    n += (size_t)snprintf(text, room, "tessera checkpoint 1\nstep %llu world %u\n",
                          (unsigned long long)c->step, c->world);
    for (size_t i = 0; i <= c->world; i++) {
        file_name(name, c, i);
        n += (size_t)snprintf(text + n, room - n, "%016llx %20llu %s\n",
                              (unsigned long long)c->files[i].hash,
                              (unsigned long long)c->files[i].bytes, name);
    }
    snprintf(text + n, room - n, "xxh64 %016llx\n", (unsigned long long)XXH64(text, n, 0));
    return TSR_OK;
}

/* The last line is right: what is above it is as it was written. */
static tsr_status check_sum(const char *path, const char *text, size_t n)
{
    char expected[SUM_LINE + 1];
    if (n < SUM_LINE)
        return tsr_fail(TSR_ECONFIG, "%s: %zu bytes: not complete", path, n);
    snprintf(expected, sizeof expected, "xxh64 %016llx\n",
             (unsigned long long)XXH64(text, n - SUM_LINE, 0));
    if (memcmp(text + n - SUM_LINE, expected, SUM_LINE) != 0)
        return tsr_fail(TSR_ECONFIG, "%s: its last line is not the checksum of those above", path);
    return TSR_OK;
}

/* The next line without its end, in `line`: sscanf() looks at all of a text, which for one line
 * after the other of a large world takes minutes. "" at the end, or if it is too long. */
static void next_line(const char **text, const char *end, char line[COMMIT_LINE])
{
    const char *newline = memchr(*text, '\n', (size_t)(end - *text));
    size_t n = newline && newline - *text < COMMIT_LINE ? (size_t)(newline - *text) : 0;
    memcpy(line, *text, n);
    line[n] = '\0';
    *text = newline ? newline + 1 : end;
}

tsr_status tsr__commit_read(const char *path, const char *text, size_t n, struct tsr_commit *out)
{
    unsigned long long step = 0, hash = 0, bytes = 0;
    unsigned version = 0, world = 0;
    char name[TSR_RANK_FILE_BYTES], expected[TSR_RANK_FILE_BYTES], line[COMMIT_LINE];
    const char *end = text + n;
    *out = (struct tsr_commit){0};
    TSR_TRY(check_sum(path, text, n));
    next_line(&text, end, line);
    bool known = sscanf(line, "tessera checkpoint %u", &version) == 1 && version == 1;
    next_line(&text, end, line);
    known = known && sscanf(line, "step %llu world %u", &step, &world) == 2;
    if (!known || world == 0 || world > n)
        return tsr_fail(TSR_ECONFIG, "%s: not a COMMIT that this build reads", path);
    out->step = step;
    out->world = world;
    out->files = calloc((size_t)world + 1, sizeof *out->files);
    if (!out->files)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i <= world; i++) {
        next_line(&text, end, line);
        file_name(expected, out, i);
        if (sscanf(line, "%llx %llu %63s", &hash, &bytes, name) != 3 ||
            strcmp(name, expected) != 0) {
            tsr__commit_fini(out);
            return tsr_fail(TSR_ECONFIG, "%s: no line for %s", path, expected);
        }
        out->files[i] = (struct tsr_commit_file){bytes, hash};
    }
    return TSR_OK;
}

void tsr__commit_fini(struct tsr_commit *c)
{
    free(c->files);
    *c = (struct tsr_commit){0};
}

/* ---- a folder -------------------------------------------------------------------------------- */

static tsr_status check_sizes(const char *dir, const struct tsr_commit *c)
{
    char name[TSR_RANK_FILE_BYTES], path[TSR_PATH_BYTES];
    struct stat info;
    for (size_t i = 0; i <= c->world; i++) {
        file_name(name, c, i);
        TSR_TRY(tsr_path(path, "%s/%s", dir, name));
        if (stat(path, &info) != 0)
            return tsr_fail(errno == ENOENT ? TSR_ECONFIG : TSR_EIO, "%s: %s", path,
                            strerror(errno));
        if ((uint64_t)info.st_size != c->files[i].bytes)
            return tsr_fail(TSR_ECONFIG, "%s: %lld bytes, but %llu were committed", path,
                            (long long)info.st_size, (unsigned long long)c->files[i].bytes);
    }
    return TSR_OK;
}

static tsr_status read_commit(const char *dir, struct tsr_commit *commit)
{
    char path[TSR_PATH_BYTES], *text = NULL;
    size_t n = 0;
    TSR_TRY(tsr_path(path, "%s/COMMIT", dir));
    TSR_TRY(tsr_disk_read_file(path, COMMIT_MAX_BYTES, &text, &n));
    tsr_status status = tsr__commit_read(path, text, n, commit);
    free(text);
    return status;
}

static tsr_status read_meta(const char *dir, const struct tsr_commit *commit, struct tsr_meta *meta)
{
    char path[TSR_PATH_BYTES], *text = NULL;
    size_t n = 0;
    TSR_TRY(tsr_path(path, "%s/meta.json", dir));
    TSR_TRY(tsr_disk_read_file(path, META_MAX_BYTES, &text, &n));
    tsr_status status = TSR_OK;
    if (XXH64(text, n, 0) != commit->files[0].hash)
        status = tsr_fail(TSR_EIO, "%s: damaged: its checksum is not the committed one", path);
    else
        status = tsr__meta_read(path, text, n, meta);
    free(text);
    if (status != TSR_OK)
        return status;
    if (meta->step == commit->step && meta->params.world == commit->world)
        return TSR_OK;
    tsr__meta_fini(meta);
    return tsr_fail(TSR_ECONFIG, "%s: step or world is not that of COMMIT", path);
}

tsr_status tsr__checkpoint_check(const char *dir, struct tsr_commit *commit, struct tsr_meta *meta)
{
    tsr_status status;
    TSR_TRY(read_commit(dir, commit));
    TSR_GOTO(failed, check_sizes(dir, commit));
    TSR_GOTO(failed, read_meta(dir, commit, meta));
    return TSR_OK;
failed:
    tsr__commit_fini(commit);
    return status;
}

/* ---- folders --------------------------------------------------------------------------------- */

tsr_status tsr__step_path(char out[TSR_PATH_BYTES], const char *dir,
                          const struct tsr_step_dir *step)
{
    return tsr_path(out, "%s/step_%08llu%s", dir, (unsigned long long)step->step,
                    step->is_part  ? ".tmp"
                    : step->is_old ? ".old"
                                   : "");
}

static bool parse_name(const char *name, struct tsr_step_dir *out)
{
    char again[64];
    char *end = NULL;
    if (strncmp(name, "step_", 5) != 0 || strlen(name) >= sizeof again)
        return false;
    out->step = strtoull(name + 5, &end, 10);
    out->is_part = !strcmp(end, ".tmp");
    out->is_old = !strcmp(end, ".old");
    snprintf(again, sizeof again, "step_%08llu%s", (unsigned long long)out->step, end);
    return !strcmp(name, again) && (*end == '\0' || out->is_part || out->is_old);
}

static int newest_first(const void *a, const void *b)
{
    const struct tsr_step_dir *x = a, *y = b;
    if (x->step != y->step)
        return x->step > y->step ? -1 : 1;
    return (int)x->is_old - (int)y->is_old;
}

tsr_status tsr__list_steps(const char *dir, struct tsr_step_dirs *out)
{
    *out = (struct tsr_step_dirs){0};
    DIR *d = opendir(dir);
    if (!d)
        return tsr_fail(errno == ENOENT || errno == ENOTDIR ? TSR_ECONFIG : TSR_EIO, "%s: %s", dir,
                        strerror(errno));
    bool ok = true;
    for (struct dirent *e; ok && (e = readdir(d)) != NULL;) {
        struct tsr_step_dir step;
        if (parse_name(e->d_name, &step))
            ok = TSR_PUSH(out->items, out->n, out->cap, step);
    }
    closedir(d);
    if (out->n)
        qsort(out->items, out->n, sizeof *out->items, newest_first);
    if (ok)
        return TSR_OK;
    free(out->items);
    return tsr_no_memory(NULL);
}

tsr_status tsr__remove_parts(const struct tsr_disk *disk, const char *dir)
{
    struct tsr_step_dirs steps;
    char path[TSR_PATH_BYTES];
    TSR_TRY(tsr__list_steps(dir, &steps));
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < steps.n; i++) {
        if (!steps.items[i].is_part)
            continue;
        TSR_GOTO(end, tsr__step_path(path, dir, &steps.items[i]));
        TSR_GOTO(end, tsr_disk_remove_dir(disk, path));
    }
end:
    free(steps.items);
    return status;
}

static bool is_complete(const char *path)
{
    struct tsr_commit commit;
    struct tsr_meta meta;
    if (tsr__checkpoint_check(path, &commit, &meta) != TSR_OK)
        return false;
    tsr__commit_fini(&commit);
    tsr__meta_fini(&meta);
    return true;
}

tsr_status tsr__remove_old(const struct tsr_disk *disk, const char *dir, uint64_t newest,
                           unsigned keep)
{
    struct tsr_step_dirs steps;
    char path[TSR_PATH_BYTES];
    unsigned kept = 0;
    TSR_TRY(tsr__list_steps(dir, &steps));
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < steps.n; i++) {
        const struct tsr_step_dir *s = &steps.items[i];
        if (s->is_part || s->step > newest)
            continue;
        TSR_GOTO(end, tsr__step_path(path, dir, s));
        if (s->is_old || (keep > 0 && kept >= keep))
            TSR_GOTO(end, tsr_disk_remove_dir(disk, path));
        else if (keep > 0) /* a damaged one counts for nothing: a whole one stays in its place */
            kept += s->step == newest || is_complete(path);
    }
end:
    free(steps.items);
    return status;
}

tsr_status tsr_checkpoint_latest(const char *dir, char path[TSR_PATH_BYTES], unsigned *skipped)
{
    struct tsr_step_dirs steps;
    unsigned damaged = 0;
    char why[512] = "";
    bool found = false;
    TSR_TRY(tsr__list_steps(dir, &steps));
    for (size_t i = 0; i < steps.n && !found; i++) {
        if (steps.items[i].is_part || tsr__step_path(path, dir, &steps.items[i]) != TSR_OK)
            continue;
        found = is_complete(path);
        if (!found && damaged++ == 0)
            snprintf(why, sizeof why, "%s", tsr_error_text());
    }
    free(steps.items);
    if (skipped)
        *skipped = damaged;
    if (found && damaged)
        (void)tsr_fail(TSR_OK, "%s", why);
    if (found)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "%s: no complete checkpoint%s%s", dir, damaged ? ": " : "", why);
}
