/* checkpoint_commit.c: COMMIT, and which folders are complete checkpoints (checkpoint_impl.h).
 *
 *   tessera checkpoint 1
 *   step 1000 world 8
 *   3ac5d4b2a1907f66        5120 meta.json
 *   ...                          one line for each file: checksum, bytes, name
 *   xxh64 0f3b...                of all lines above
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "exec/files/checkpoint_impl.h"
#include "sim/base/files.h"

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
    static const char *const names[] = {"param", "state0", "state1", "state2"};
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

static tsr_status check_sizes(const struct tsr_folder *dir, const struct tsr_commit *c)
{
    char name[TSR_RANK_FILE_BYTES];
    for (size_t i = 0; i <= c->world; i++) {
        uint64_t bytes = 0;
        const char *why;
        file_name(name, c, i);
        int fd = tsr_file_open(dir, name, TSR_OPEN_READ, &bytes, &why);
        if (fd < 0)
            return tsr_fail(errno == ENOENT || errno == EINVAL ? TSR_ECONFIG : TSR_EIO, "%s/%s: %s",
                            dir->path, name, why);
        (void)close(fd);
        if (bytes != c->files[i].bytes)
            return tsr_fail(TSR_ECONFIG, "%s/%s: %llu bytes, but %llu were committed", dir->path,
                            name, (unsigned long long)bytes, (unsigned long long)c->files[i].bytes);
    }
    return TSR_OK;
}

static tsr_status read_commit(const struct tsr_folder *dir, struct tsr_commit *commit)
{
    char *text = NULL;
    size_t n = 0;
    struct tsr_place_text place = tsr_place(dir, "COMMIT");
    TSR_TRY(tsr_file_read(dir, "COMMIT", COMMIT_MAX_BYTES, &text, &n));
    tsr_status status = tsr__commit_read(place.text, text, n, commit);
    free(text);
    return status;
}

static tsr_status read_meta(const struct tsr_folder *dir, const struct tsr_commit *commit,
                            struct tsr_meta *meta)
{
    char *text = NULL;
    size_t n = 0;
    struct tsr_place_text place = tsr_place(dir, "meta.json");
    TSR_TRY(tsr_file_read(dir, "meta.json", META_MAX_BYTES, &text, &n));
    tsr_status status = TSR_OK;
    if (XXH64(text, n, 0) != commit->files[0].hash)
        status =
            tsr_fail(TSR_EIO, "%s: damaged: its checksum is not the committed one", place.text);
    else
        status = tsr__meta_read(place.text, text, n, meta);
    free(text);
    if (status != TSR_OK)
        return status;
    if (meta->step == commit->step && meta->params.world == commit->world)
        return TSR_OK;
    tsr__meta_fini(meta);
    return tsr_fail(TSR_ECONFIG, "%s: step or world is not that of COMMIT", place.text);
}

tsr_status tsr__checkpoint_check(const struct tsr_folder *dir, struct tsr_commit *commit,
                                 struct tsr_meta *meta)
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

bool tsr__is_checkpoint(const char *path)
{
    char name[TSR_PATH_BYTES];
    return (tsr_path(name, "%s/COMMIT", path) == TSR_OK &&
            tsr_kind_of(NULL, name) != TSR_KIND_NONE) ||
           (tsr_path(name, "%s/meta.json", path) == TSR_OK &&
            tsr_kind_of(NULL, name) != TSR_KIND_NONE);
}

/* ---- folders --------------------------------------------------------------------------------- */

void tsr__step_name(char out[TSR_STEP_NAME_BYTES], const struct tsr_step_dir *step)
{
    snprintf(out, TSR_STEP_NAME_BYTES, "step_%08llu%s", (unsigned long long)step->step,
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

static tsr_status take_step(void *user, const struct tsr_folder *in, const char *name)
{
    struct tsr_step_dirs *out = user;
    struct tsr_step_dir step;
    (void)in;
    if (!parse_name(name, &step) || TSR_PUSH(out->items, out->n, out->cap, step))
        return TSR_OK;
    return tsr_no_memory(NULL);
}

tsr_status tsr__list_steps(const struct tsr_folder *dir, struct tsr_step_dirs *out)
{
    *out = (struct tsr_step_dirs){0};
    tsr_status status = tsr_folder_visit(dir, take_step, out);
    if (status != TSR_OK) {
        free(out->items);
        *out = (struct tsr_step_dirs){0};
        return status;
    }
    if (out->n)
        qsort(out->items, out->n, sizeof *out->items, newest_first);
    return TSR_OK;
}

/* ---- removing -------------------------------------------------------------------------------- */

/* The names that a writer gives; of a rank's file, byte for byte as it was printed. */
static bool is_ours(const char *name)
{
    char again[TSR_RANK_FILE_BYTES];
    unsigned rank = 0, world = 0;
    if (!strcmp(name, "COMMIT") || !strcmp(name, "meta.json"))
        return true;
    if (sscanf(name, "rank_%u-of-%u.safetensors", &rank, &world) != 2 || rank >= world)
        return false;
    tsr__rank_file(again, rank, world);
    return !strcmp(name, again);
}

tsr_status tsr__remove_step(const struct tsr_disk *disk, const struct tsr_folder *dir,
                            const struct tsr_step_dir *step)
{
    char name[TSR_STEP_NAME_BYTES];
    tsr__step_name(name, step);
    return tsr_disk_remove_dir(disk, dir, name, is_ours);
}

/* Of several failures the first one, with its text. */
struct first_failure {
    tsr_status status;
    char text[512];
};

static void add_failure(struct first_failure *first, tsr_status status)
{
    if (status == TSR_OK || first->status != TSR_OK)
        return;
    first->status = status;
    snprintf(first->text, sizeof first->text, "%s", tsr_error_text());
}

static tsr_status result_of(const struct first_failure *first)
{
    return first->status == TSR_OK ? TSR_OK : tsr_fail(first->status, "%s", first->text);
}

tsr_status tsr__remove_parts(const struct tsr_disk *disk, const struct tsr_folder *dir)
{
    struct tsr_step_dirs steps;
    struct first_failure first = {TSR_OK, ""};
    TSR_TRY(tsr__list_steps(dir, &steps));
    for (size_t i = 0; i < steps.n; i++)
        if (steps.items[i].is_part)
            add_failure(&first, tsr__remove_step(disk, dir, &steps.items[i]));
    free(steps.items);
    return result_of(&first);
}

static bool is_complete(const struct tsr_folder *dir)
{
    struct tsr_commit commit;
    struct tsr_meta meta;
    if (tsr__checkpoint_check(dir, &commit, &meta) != TSR_OK)
        return false;
    tsr__commit_fini(&commit);
    tsr__meta_fini(&meta);
    return true;
}

static bool has_complete(const struct tsr_folder *dir, const struct tsr_step_dir *step)
{
    char name[TSR_STEP_NAME_BYTES];
    struct tsr_folder folder;
    tsr__step_name(name, step);
    bool complete = tsr_folder_enter(dir, name, &folder) == TSR_OK && is_complete(&folder);
    tsr_folder_close(&folder);
    return complete;
}

tsr_status tsr__remove_old(const struct tsr_disk *disk, const struct tsr_folder *dir,
                           uint64_t newest, unsigned keep)
{
    struct tsr_step_dirs steps;
    struct first_failure first = {TSR_OK, ""};
    unsigned kept = 0;
    TSR_TRY(tsr__list_steps(dir, &steps));
    for (size_t i = 0; i < steps.n; i++) {
        const struct tsr_step_dir *s = &steps.items[i];
        if (s->is_part || s->step > newest)
            continue;
        if (s->is_old || (keep > 0 && kept >= keep))
            add_failure(&first, tsr__remove_step(disk, dir, s));
        else if (keep > 0) /* a damaged one counts for nothing: a whole one stays in its place */
            kept += s->step == newest || has_complete(dir, s);
    }
    free(steps.items);
    return result_of(&first);
}

/* ---- the newest ------------------------------------------------------------------------------ */

static tsr_status find_latest(const struct tsr_folder *dir, struct tsr_folder *out,
                              unsigned *skipped)
{
    struct tsr_step_dirs steps;
    char name[TSR_STEP_NAME_BYTES], why[512] = "";
    unsigned damaged = 0;
    bool found = false;
    TSR_TRY(tsr__list_steps(dir, &steps));
    for (size_t i = 0; i < steps.n && !found; i++) {
        if (steps.items[i].is_part)
            continue;
        tsr__step_name(name, &steps.items[i]);
        found = tsr_folder_enter(dir, name, out) == TSR_OK && is_complete(out);
        if (found)
            continue;
        tsr_folder_close(out);
        if (damaged++ == 0)
            snprintf(why, sizeof why, "%s", tsr_error_text());
    }
    free(steps.items);
    if (skipped)
        *skipped = damaged;
    if (found && damaged)
        (void)tsr_fail(TSR_OK, "%s", why);
    if (found)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "%s: no complete checkpoint%s%s", dir->path, damaged ? ": " : "",
                    why);
}

tsr_status tsr__open_latest(const char *dir, struct tsr_folder *out, unsigned *skipped)
{
    struct tsr_folder folder;
    out->fd = -1;
    TSR_TRY(tsr_folder_open_own(dir, &folder));
    tsr_status status = find_latest(&folder, out, skipped);
    tsr_folder_close(&folder);
    return status;
}

tsr_status tsr_checkpoint_latest(const char *dir, char path[TSR_PATH_BYTES], unsigned *skipped)
{
    struct tsr_folder folder;
    TSR_TRY(tsr__open_latest(dir, &folder, skipped));
    tsr_folder_close(&folder);
    return tsr_path(path, "%s", folder.path);
}
