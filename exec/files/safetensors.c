/* safetensors.c: opening a file, reading its tensors, comparing them with their checksums. */
#include "exec/files/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "exec/files/safetensors_impl.h"

/* ---- opening --------------------------------------------------------------------------------- */

static uint64_t little_endian(const unsigned char *at)
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static tsr_status read_header(struct tsr_safetensors *f)
{
    unsigned char length[8];
    if (f->bytes < 8)
        return tsr_fail(TSR_ECONFIG, "%s: %llu bytes are too few for a safetensors file", f->path,
                        (unsigned long long)f->bytes);
    TSR_TRY(tsr_disk_read(f->fd, f->path, 0, length, 8));
    uint64_t n = little_endian(length);
    if (n > TSR_ST_MAX_HEADER)
        return tsr_fail(TSR_ECONFIG, "%s: header length: %llu; allowed: up to %d", f->path,
                        (unsigned long long)n, TSR_ST_MAX_HEADER);
    if (n > f->bytes - 8)
        return tsr_fail(TSR_ECONFIG, "%s: header length: %llu, but the file has %llu bytes",
                        f->path, (unsigned long long)n, (unsigned long long)f->bytes);
    char *text = malloc((size_t)n + 8);
    if (!text)
        return tsr_no_memory(NULL);
    memcpy(text, length, 8);
    f->data_at = 8 + n;
    tsr_status status;
    TSR_GOTO(end, tsr_disk_read(f->fd, f->path, 8, text + 8, n));
    TSR_GOTO(end, tsr__st_parse(f->path, text + 8, (size_t)n, f->bytes - f->data_at, &f->header));
    f->header_hash = XXH64(text, (size_t)n + 8, 0);
end:
    free(text);
    return status;
}

static tsr_status open_file(struct tsr_safetensors *f)
{
    struct stat info;
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0)
        return tsr_fail(TSR_EIO, "%s: open: %s", f->path, strerror(errno));
    if (fstat(f->fd, &info) != 0)
        return tsr_fail(TSR_EIO, "%s: stat: %s", f->path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return tsr_fail(TSR_ECONFIG, "%s: not a file", f->path);
    f->bytes = (uint64_t)info.st_size;
    return read_header(f);
}

tsr_status tsr_safetensors_open(const char *path, struct tsr_safetensors **out)
{
    struct tsr_safetensors *f = calloc(1, sizeof *f);
    *out = NULL;
    if (f) {
        f->fd = -1;
        f->path = strdup(path);
        atomic_init(&f->bytes_read, 0);
    }
    tsr_status status = f && f->path ? open_file(f) : tsr_no_memory(NULL);
    if (status == TSR_OK)
        *out = f;
    else
        tsr_safetensors_close(f);
    return status;
}

void tsr_safetensors_close(struct tsr_safetensors *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    tsr__st_header_fini(&f->header);
    free(f->path);
    free(f);
}

/* ---- questions ------------------------------------------------------------------------------- */

const char *tsr_safetensors_path(const struct tsr_safetensors *f)
{
    return f->path;
}

uint64_t tsr_safetensors_bytes(const struct tsr_safetensors *f)
{
    return f->bytes;
}

size_t tsr_safetensors_count(const struct tsr_safetensors *f)
{
    return f->header.n;
}

const struct tsr_st_tensor *tsr_safetensors_tensor(const struct tsr_safetensors *f, size_t i)
{
    return &f->header.tensors[i];
}

static int name_against(const void *name, const void *tensor)
{
    return strcmp(name, ((const struct tsr_st_tensor *)tensor)->name);
}

const struct tsr_st_tensor *tsr_safetensors_find(const struct tsr_safetensors *f, const char *name)
{
    if (f->header.n == 0)
        return NULL;
    return bsearch(name, f->header.tensors, f->header.n, sizeof *f->header.tensors, name_against);
}

static int key_against(const void *key, const void *pair)
{
    return strcmp(key, ((const struct tsr_st_pair *)pair)->key);
}

const char *tsr_safetensors_metadata(const struct tsr_safetensors *f, const char *key)
{
    if (f->header.n_metadata == 0)
        return NULL;
    const struct tsr_st_pair *pair = bsearch(key, f->header.metadata, f->header.n_metadata,
                                             sizeof *f->header.metadata, key_against);
    return pair ? pair->value : NULL;
}

uint64_t tsr_safetensors_header_hash(const struct tsr_safetensors *f)
{
    return f->header_hash;
}

/* ---- data ------------------------------------------------------------------------------------ */

tsr_status tsr_safetensors_read(struct tsr_safetensors *f, const struct tsr_st_tensor *t,
                                uint64_t offset, void *out, uint64_t bytes)
{
    if (offset > t->bytes || bytes > t->bytes - offset)
        return tsr_fail(TSR_EVALUE, "%s: tensor \"%s\": [%llu, +%llu) is not inside its %llu bytes",
                        f->path, tsr_show(t->name).text, (unsigned long long)offset,
                        (unsigned long long)bytes, (unsigned long long)t->bytes);
    TSR_TRY(tsr_disk_read(f->fd, f->path, f->data_at + t->offset + offset, out, bytes));
    atomic_fetch_add(&f->bytes_read, bytes);
    return TSR_OK;
}

/* The checksum that the file itself names; false: none. */
static bool stated_sum(const struct tsr_safetensors *f, const char *name, uint64_t *sum)
{
    const char *note = tsr_safetensors_metadata(f, name);
    const char *at = note ? strstr(note, TSR_ST_SUM_MARK) : NULL;
    char *end = NULL;
    if (!at)
        return false;
    at += strlen(TSR_ST_SUM_MARK);
    *sum = strtoull(at, &end, 16);
    return end == at + TSR_ST_SUM_DIGITS && *end == '\0';
}

static tsr_status sum_of(struct tsr_safetensors *f, const struct tsr_st_tensor *t, uint64_t *sum)
{
    enum { CHUNK = 1 << 20 };
    XXH64_state_t *state = XXH64_createState();
    char *chunk = malloc(CHUNK);
    tsr_status status;
    TSR_GOTO(end, state && chunk ? TSR_OK : tsr_no_memory(NULL));
    XXH64_reset(state, 0);
    for (uint64_t at = 0, n; at < t->bytes; at += n) {
        n = tsr_min_u64(CHUNK, t->bytes - at);
        TSR_GOTO(end, tsr_disk_read(f->fd, f->path, f->data_at + t->offset + at, chunk, n));
        XXH64_update(state, chunk, (size_t)n);
    }
    *sum = XXH64_digest(state);
end:
    XXH64_freeState(state);
    free(chunk);
    return status;
}

tsr_status tsr_safetensors_verify(struct tsr_safetensors *f, const struct tsr_st_tensor *t)
{
    uint64_t stated = 0, found = 0;
    if (!stated_sum(f, t->name, &stated))
        return tsr_fail(TSR_ECONFIG, "%s: tensor \"%s\": __metadata__ has no checksum of it",
                        f->path, tsr_show(t->name).text);
    TSR_TRY(sum_of(f, t, &found));
    if (found != stated)
        return tsr_fail(TSR_EIO,
                        "%s: tensor \"%s\": its data are damaged (xxh64 %016llx, written was "
                        "%016llx)",
                        f->path, tsr_show(t->name).text, (unsigned long long)found,
                        (unsigned long long)stated);
    return TSR_OK;
}
