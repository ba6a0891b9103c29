/* safetensors.c: opening a file, the rules of its header, reading its tensors, comparing them
 * with their checksums.
 */
#include "exec/files/safetensors.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "exec/files/safetensors_impl.h"
#include "sim/base/files.h"
#include "sim/base/json_load.h"
#include "sim/base/text.h"

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
    TSR_TRY(tsr_file_read_at(f->fd, f->path, 0, length, 8));
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
    TSR_GOTO(end, tsr_file_read_at(f->fd, f->path, 8, text + 8, n));
    TSR_GOTO(end, tsr__st_parse(f->path, text + 8, (size_t)n, f->bytes - f->data_at, &f->header));
    f->header_hash = XXH64(text, (size_t)n + 8, 0);
end:
    free(text);
    return status;
}

static tsr_status open_file(const struct tsr_folder *in, const char *name,
                            struct tsr_safetensors *f)
{
    const char *why;
    f->fd = tsr_file_open(in, name, TSR_OPEN_READ, &f->bytes, &why);
    if (f->fd < 0 && errno == EINVAL)
        return tsr_fail(TSR_ECONFIG, "%s: not a file: %s", f->path, why);
    if (f->fd < 0)
        return tsr_fail(TSR_EIO, "%s: open: %s", f->path, why);
    if (f->bytes == UINT64_MAX) /* its tensors are read in any order */
        return tsr_fail(TSR_ECONFIG, "%s: not a file: is a stream", f->path);
    return read_header(f);
}

tsr_status tsr_safetensors_open_in(const struct tsr_folder *in, const char *name,
                                   struct tsr_safetensors **out)
{
    struct tsr_safetensors *f = calloc(1, sizeof *f);
    *out = NULL;
    if (f) {
        f->fd = -1;
        f->path = strdup(tsr_place(in, name).text);
        atomic_init(&f->bytes_read, 0);
    }
    tsr_status status = f && f->path ? open_file(in, name, f) : tsr_no_memory(NULL);
    if (status == TSR_OK)
        *out = f;
    else
        tsr_safetensors_close(f);
    return status;
}

tsr_status tsr_safetensors_open(const char *path, struct tsr_safetensors **out)
{
    return tsr_safetensors_open_in(NULL, path, out);
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
    TSR_TRY(tsr_file_read_at(f->fd, f->path, f->data_at + t->offset + offset, out, bytes));
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
        TSR_GOTO(end, tsr_file_read_at(f->fd, f->path, f->data_at + t->offset + at, chunk, n));
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

/* ---- the header ------------------------------------------------------------------------------ */

/* The rules of the header, each with its own line (safetensors.h). */

static const struct tsr_st_type types[] = {{"BOOL", TSR_DTYPE_NONE, 8},
                                           {"F4", TSR_DTYPE_NONE, 4},
                                           {"F6_E2M3", TSR_DTYPE_NONE, 6},
                                           {"F6_E3M2", TSR_DTYPE_NONE, 6},
                                           {"U8", TSR_U8, 8},
                                           {"I8", TSR_DTYPE_NONE, 8},
                                           {"F8_E5M2", TSR_DTYPE_NONE, 8},
                                           {"F8_E4M3", TSR_DTYPE_NONE, 8},
                                           {"F8_E8M0", TSR_DTYPE_NONE, 8},
                                           {"I16", TSR_DTYPE_NONE, 16},
                                           {"U16", TSR_DTYPE_NONE, 16},
                                           {"F16", TSR_F16, 16},
                                           {"BF16", TSR_BF16, 16},
                                           {"I32", TSR_DTYPE_NONE, 32},
                                           {"U32", TSR_DTYPE_NONE, 32},
                                           {"F32", TSR_F32, 32},
                                           {"C64", TSR_DTYPE_NONE, 64},
                                           {"F64", TSR_F64, 64},
                                           {"I64", TSR_I64, 64},
                                           {"U64", TSR_DTYPE_NONE, 64}};

/* NULL: unknown. */
static const struct tsr_st_type *type_of(const char *name)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].name, name))
            return &types[i];
    return NULL;
}

const char *tsr_safetensors_type(tsr_dtype dtype)
{
    for (size_t i = 0; dtype != TSR_DTYPE_NONE && i < sizeof types / sizeof *types; i++)
        if (types[i].dtype == dtype)
            return types[i].name;
    return NULL;
}

/* Where we are in a file, for the text of an error. */
struct place {
    const char *path;
    const char *name; /* of the tensor */
};

static tsr_status wrong(const struct place *p, const char *field, const char *what)
{
    return tsr_fail(TSR_ECONFIG, "%s: tensor \"%s\": %s: %s", p->path, tsr_show(p->name).text,
                    field, what);
}

/* ---- fields of a tensor ---------------------------------------------------------------------- */

static bool unsigned_integer(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static tsr_status read_shape(const struct place *p, const json_t *shape, struct tsr_st_tensor *t)
{
    if (!json_is_array(shape))
        return wrong(p, "shape", shape ? "not a list" : "missing");
    if (json_array_size(shape) > TSR_ST_MAX_DIMS)
        return tsr_fail(TSR_ECONFIG, "%s: tensor \"%s\": shape: %zu dimensions; allowed: up to %d",
                        p->path, tsr_show(p->name).text, json_array_size(shape), TSR_ST_MAX_DIMS);
    t->n_dims = (int)json_array_size(shape);
    for (int i = 0; i < t->n_dims; i++)
        if (!unsigned_integer(json_array_get(shape, (size_t)i), &t->shape[i]))
            return wrong(p, "shape", "a size is not an integer of 0 or more");
    return TSR_OK;
}

static tsr_status read_offsets(const struct place *p, const json_t *offsets, uint64_t data_bytes,
                               struct tsr_st_tensor *t)
{
    uint64_t end = 0;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2)
        return wrong(p, "data_offsets", offsets ? "not a list of two" : "missing");
    if (!unsigned_integer(json_array_get(offsets, 0), &t->offset) ||
        !unsigned_integer(json_array_get(offsets, 1), &end))
        return wrong(p, "data_offsets", "not integers of 0 or more");
    if (end < t->offset || end > data_bytes)
        return tsr_fail(TSR_ECONFIG,
                        "%s: tensor \"%s\": data_offsets: [%llu, %llu], but the file has %llu "
                        "bytes of data",
                        p->path, tsr_show(p->name).text, (unsigned long long)t->offset,
                        (unsigned long long)end, (unsigned long long)data_bytes);
    t->bytes = end - t->offset;
    return TSR_OK;
}

static tsr_status check_size(const struct place *p, const struct tsr_st_tensor *t, unsigned bits)
{
    uint64_t size = bits;
    for (int i = 0; i < t->n_dims; i++)
        if (!tsr_mul_u64(size, t->shape[i], &size))
            return wrong(p, "shape", "the product of its sizes is too large");
    if (size % 8 != 0 || size / 8 != t->bytes)
        return tsr_fail(TSR_ECONFIG,
                        "%s: tensor \"%s\": data_offsets: %llu bytes, but shape and dtype %s make "
                        "%llu",
                        p->path, tsr_show(p->name).text, (unsigned long long)t->bytes, t->type,
                        (unsigned long long)(size / 8));
    return TSR_OK;
}

static tsr_status read_tensor(const struct place *p, const json_t *entry, uint64_t data_bytes,
                              struct tsr_st_tensor *t)
{
    if (!json_is_object(entry))
        return wrong(p, "entry", "not an object with dtype, shape and data_offsets");
    const json_t *dtype = json_object_get(entry, "dtype");
    if (!json_is_string(dtype))
        return wrong(p, "dtype", dtype ? "not a string" : "missing");
    const struct tsr_st_type *type = type_of(json_string_value(dtype));
    if (!type)
        return tsr_fail(TSR_ECONFIG,
                        "%s: tensor \"%s\": dtype: \"%s\" is unknown; allowed: F32, BF16, F16, "
                        "F64, I64, U8 and the other types of safetensors",
                        p->path, tsr_show(p->name).text, tsr_show(json_string_value(dtype)).text);
    t->type = type->name;
    t->dtype = type->dtype;
    TSR_TRY(read_shape(p, json_object_get(entry, "shape"), t));
    TSR_TRY(read_offsets(p, json_object_get(entry, "data_offsets"), data_bytes, t));
    return check_size(p, t, type->bits);
}

/* ---- the table ------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tsr_st_tensor *)a)->name, ((const struct tsr_st_tensor *)b)->name);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct tsr_st_pair *)a)->key, ((const struct tsr_st_pair *)b)->key);
}

static int by_place(const void *a, const void *b)
{
    const struct tsr_st_tensor *x = *(const struct tsr_st_tensor *const *)a;
    const struct tsr_st_tensor *y = *(const struct tsr_st_tensor *const *)b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Every byte of data belongs to one tensor. */
static tsr_status check_cover(const char *path, const struct tsr_st_tensor *const *sorted, size_t n,
                              uint64_t data_bytes)
{
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const struct tsr_st_tensor *t = sorted[i];
        if (t->offset < at)
            return tsr_fail(TSR_ECONFIG,
                            "%s: tensor \"%s\": data_offsets: begins at %llu, inside \"%s\"", path,
                            tsr_show(t->name).text, (unsigned long long)t->offset,
                            tsr_show(sorted[i - 1]->name).text);
        if (t->offset > at)
            return tsr_fail(TSR_ECONFIG,
                            "%s: tensor \"%s\": data_offsets: bytes %llu to %llu before it belong "
                            "to no tensor",
                            path, tsr_show(t->name).text, (unsigned long long)at,
                            (unsigned long long)t->offset);
        at += t->bytes;
    }
    if (at != data_bytes)
        return tsr_fail(TSR_ECONFIG,
                        "%s: header: its tensors have %llu bytes, but the file has %llu bytes of "
                        "data",
                        path, (unsigned long long)at, (unsigned long long)data_bytes);
    return TSR_OK;
}

static tsr_status check_places(const char *path, const struct tsr_st_header *h, uint64_t data_bytes)
{
    const struct tsr_st_tensor **sorted = calloc(h->n + 1, sizeof *sorted);
    if (!sorted)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < h->n; i++)
        sorted[i] = &h->tensors[i];
    qsort(sorted, h->n, sizeof *sorted, by_place);
    tsr_status status = check_cover(path, sorted, h->n, data_bytes);
    free(sorted);
    return status;
}

static tsr_status read_metadata(const char *path, const json_t *metadata, struct tsr_st_header *h)
{
    const char *key;
    const json_t *value;
    if (!json_is_object(metadata))
        return tsr_fail(TSR_ECONFIG, "%s: __metadata__: not an object of strings", path);
    h->metadata = tsr_arena_alloc(&h->text, (json_object_size(metadata) + 1) * sizeof *h->metadata);
    if (!h->metadata)
        return tsr_no_memory(NULL);
    json_object_foreach((json_t *)metadata, key, value)
    {
        if (!json_is_string(value))
            return tsr_fail(TSR_ECONFIG, "%s: __metadata__: \"%s\" is not a string", path,
                            tsr_show(key).text);
        struct tsr_st_pair *pair = &h->metadata[h->n_metadata++];
        pair->key = tsr_arena_strdup(&h->text, key);
        pair->value = tsr_arena_strdup(&h->text, json_string_value(value));
        if (!pair->key || !pair->value)
            return tsr_no_memory(NULL);
    }
    qsort(h->metadata, h->n_metadata, sizeof *h->metadata, by_key);
    return TSR_OK;
}

static tsr_status read_entries(const char *path, json_t *root, uint64_t data_bytes,
                               struct tsr_st_header *h)
{
    const char *key;
    json_t *value;
    h->tensors = tsr_arena_alloc(&h->text, (json_object_size(root) + 1) * sizeof *h->tensors);
    if (!h->tensors)
        return tsr_no_memory(NULL);
    json_object_foreach(root, key, value)
    {
        if (!strcmp(key, "__metadata__")) {
            TSR_TRY(read_metadata(path, value, h));
            continue;
        }
        struct tsr_st_tensor *t = &h->tensors[h->n++];
        struct place place = {path, key};
        t->name = tsr_arena_strdup(&h->text, key);
        if (!t->name)
            return tsr_no_memory(NULL);
        TSR_TRY(read_tensor(&place, value, data_bytes, t));
    }
    qsort(h->tensors, h->n, sizeof *h->tensors, by_name);
    return check_places(path, h, data_bytes);
}

tsr_status tsr__st_parse(const char *path, const char *header, size_t n, uint64_t data_bytes,
                         struct tsr_st_header *out)
{
    json_error_t error;
    *out = (struct tsr_st_header){0};
    if (n == 0 || header[0] != '{')
        return tsr_fail(TSR_ECONFIG, "%s: header: does not begin with '{'", path);
    json_t *root = tsr_json_loadb(header, n, TSR_TEXT_MANY_VALUES, &error);
    if (!root)
        return tsr_fail(TSR_ECONFIG, "%s: header: %s (byte %d)", path, tsr_show(error.text).text,
                        error.position + 8);
    tsr_arena_init(&out->text);
    tsr_status status = read_entries(path, root, data_bytes, out);
    json_decref(root);
    if (status != TSR_OK)
        tsr__st_header_fini(out);
    return status;
}

void tsr__st_header_fini(struct tsr_st_header *h)
{
    tsr_arena_fini(&h->text);
    *h = (struct tsr_st_header){0};
}
