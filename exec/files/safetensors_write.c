/* safetensors_write.c: a file whose tensors come in any order.
 *
 * The length of the header is known before the data: checksums in it have a fixed width. So the
 * data have their places from the beginning, and the header is written over a gap at the end.
 */
#include "exec/files/safetensors.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "exec/files/safetensors_impl.h"
#include "sim/base/text.h"

struct tensor {
    struct tsr_st_tensor info;
    const char *note; /* NULL: none */
    uint64_t sum;
    atomic_bool is_put;
};

struct tsr_safetensors_writer {
    struct tsr_disk disk;
    bool checksums, is_begun;
    struct tsr_arena text;
    struct tsr_out_file file;    /* name NULL: not open */
    const struct tsr_folder *in; /* borrowed; NULL: `name` is a path */
    char *name, *path;           /* path: for texts */
    size_t n, cap, n_metadata, cap_metadata;
    struct tsr_st_tensor *declared; /* until the begin */
    const char **notes;
    size_t cap_notes;
    struct tensor *tensors; /* by name */
    struct tensor **order;  /* as they lie in the file */
    struct tsr_st_pair *metadata;
    size_t header_bytes; /* without the length */
    uint64_t data_bytes, hash;
};

tsr_status tsr_safetensors_create(const char *name, const struct tsr_st_writer_options *options,
                                  struct tsr_safetensors_writer **out)
{
    struct tsr_safetensors_writer *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w)
        return tsr_no_memory(NULL);
    w->disk = options && options->disk ? *options->disk : tsr_disk_posix;
    w->checksums = options && options->checksums;
    tsr_arena_init(&w->text);
    w->in = options ? options->in : NULL;
    w->name = tsr_arena_strdup(&w->text, name);
    w->path = tsr_arena_strdup(&w->text, tsr_place(w->in, name).text);
    if (!w->name || !w->path) {
        tsr_safetensors_destroy(w);
        return tsr_no_memory(NULL);
    }
    *out = w;
    return TSR_OK;
}

void tsr_safetensors_destroy(struct tsr_safetensors_writer *w)
{
    if (!w)
        return;
    tsr_out_abandon(&w->file);
    free(w->declared);
    free(w->notes);
    free(w->metadata);
    free(w->order);
    free(w->tensors);
    tsr_arena_fini(&w->text);
    free(w);
}

/* ---- declarations ---------------------------------------------------------------------------- */

tsr_status tsr_safetensors_declare(struct tsr_safetensors_writer *w, const char *name,
                                   tsr_dtype dtype, int n_dims, const uint64_t *shape,
                                   const char *note)
{
    const uint64_t most = UINT64_C(1) << 60;
    const char *type = tsr_safetensors_type(dtype);
    struct tsr_st_tensor t = {.type = type, .dtype = dtype, .n_dims = n_dims};
    if (w->is_begun || !type || n_dims < 0 || n_dims > TSR_ST_MAX_DIMS ||
        !strcmp(name, "__metadata__"))
        return tsr_fail(TSR_EVALUE,
                        "%s: tensor \"%s\": dtype %s and %d dimensions cannot be "
                        "written",
                        w->path, tsr_show(name).text, tsr_dtype_name(dtype), n_dims);
    t.bytes = tsr_dtype_bytes(dtype);
    for (int i = 0; i < n_dims; i++) {
        t.shape[i] = shape[i];
        if (!tsr_mul_u64(t.bytes, shape[i], &t.bytes) || t.bytes > most)
            return tsr_fail(TSR_EVALUE, "%s: tensor \"%s\" is larger than 2^60 bytes", w->path,
                            tsr_show(name).text);
    }
    t.name = tsr_arena_strdup(&w->text, name);
    const char *own_note = note ? tsr_arena_strdup(&w->text, note) : NULL;
    if (!t.name || (note && !own_note) ||
        !tsr_grow(&w->notes, w->n, &w->cap_notes, sizeof *w->notes) ||
        !TSR_PUSH(w->declared, w->n, w->cap, t))
        return tsr_no_memory(NULL);
    w->notes[w->n - 1] = own_note;
    return TSR_OK;
}

tsr_status tsr_safetensors_add_metadata(struct tsr_safetensors_writer *w, const char *key,
                                        const char *value)
{
    struct tsr_st_pair pair = {tsr_arena_strdup(&w->text, key), tsr_arena_strdup(&w->text, value)};
    if (w->is_begun)
        return tsr_fail(TSR_EVALUE, "%s: metadata after the declarations have ended", w->path);
    if (!pair.key || !pair.value || !TSR_PUSH(w->metadata, w->n_metadata, w->cap_metadata, pair))
        return tsr_no_memory(NULL);
    return TSR_OK;
}

/* ---- header ---------------------------------------------------------------------------------- */

/* Place among the types of the reference writer, which puts the last of them first. */
static int type_order(tsr_dtype dtype)
{
    static const tsr_dtype order[] = {TSR_U8, TSR_F16, TSR_BF16, TSR_F32, TSR_F64, TSR_I64};
    int i = 0;
    while (order[i] != dtype)
        i++;
    return i;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->info.name, ((const struct tensor *)b)->info.name);
}

static int by_type_and_name(const void *a, const void *b)
{
    const struct tensor *x = *(struct tensor *const *)a, *y = *(struct tensor *const *)b;
    int m = type_order(x->info.dtype), n = type_order(y->info.dtype);
    return m != n ? n - m : strcmp(x->info.name, y->info.name);
}

static json_t *tensor_entry(const struct tsr_st_tensor *t)
{
    json_t *shape = json_array();
    for (int i = 0; i < t->n_dims; i++)
        json_array_append_new(shape, json_integer((json_int_t)t->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->type, "shape", shape, "data_offsets",
                     (json_int_t)t->offset, (json_int_t)(t->offset + t->bytes));
}

static json_t *metadata_entry(const struct tsr_safetensors_writer *w)
{
    json_t *all = json_object();
    for (size_t i = 0; i < w->n_metadata; i++)
        json_object_set_new(all, w->metadata[i].key, json_string(w->metadata[i].value));
    for (size_t i = 0; w->checksums && i < w->n; i++) {
        const struct tensor *t = w->order[i];
        json_object_set_new(all, t->info.name,
                            json_sprintf("%s%s" TSR_ST_SUM_MARK "%016llx", t->note ? t->note : "",
                                         t->note ? " " : "", (unsigned long long)t->sum));
    }
    return all;
}

/* Length and header as they are in the file; *bytes is the header's. To be freed. */
static char *make_header(const struct tsr_safetensors_writer *w, size_t *bytes)
{
    json_t *root = json_object(), *metadata = metadata_entry(w);
    bool ok = root && metadata;
    if (json_object_size(metadata) > 0)
        json_object_set(root, "__metadata__", metadata);
    for (size_t i = 0; i < w->n; i++)
        json_object_set_new(root, w->order[i]->info.name, tensor_entry(&w->order[i]->info));
    ok = ok && json_object_size(root) == w->n + (json_object_size(metadata) > 0);
    size_t n = ok ? json_dumpb(root, NULL, 0, JSON_COMPACT) : 0;
    *bytes = (size_t)tsr_round_up(n, 8);
    char *header = n ? malloc(8 + *bytes) : NULL;
    if (header) {
        for (int i = 0; i < 8; i++)
            header[i] = (char)(*bytes >> 8 * i & 255);
        memset(header + 8, ' ', *bytes);
        json_dumpb(root, header + 8, n, JSON_COMPACT);
    }
    json_decref(metadata);
    json_decref(root);
    return header;
}

static tsr_status sort_tensors(struct tsr_safetensors_writer *w)
{
    w->tensors = calloc(w->n + 1, sizeof *w->tensors);
    w->order = calloc(w->n + 1, sizeof *w->order);
    if (!w->tensors || !w->order)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < w->n; i++) {
        w->tensors[i].info = w->declared[i];
        w->tensors[i].note = w->notes[i];
        w->tensors[i].sum = XXH64("", 0, 0);
    }
    qsort(w->tensors, w->n, sizeof *w->tensors, by_name);
    for (size_t i = 0; i < w->n; i++) {
        if (i > 0 && !by_name(&w->tensors[i - 1], &w->tensors[i]))
            return tsr_fail(TSR_EVALUE, "%s: tensor \"%s\" is declared twice", w->path,
                            tsr_show(w->tensors[i].info.name).text);
        atomic_init(&w->tensors[i].is_put, false);
        w->order[i] = &w->tensors[i];
    }
    qsort(w->order, w->n, sizeof *w->order, by_type_and_name);
    for (size_t i = 0; i < w->n; i++) {
        w->order[i]->info.offset = w->data_bytes;
        if (!tsr_add_u64(w->data_bytes, w->order[i]->info.bytes, &w->data_bytes))
            return tsr_fail(TSR_EVALUE, "%s: too large", w->path);
    }
    return TSR_OK;
}

tsr_status tsr_safetensors_begin(struct tsr_safetensors_writer *w)
{
    if (w->is_begun)
        return tsr_fail(TSR_EVALUE, "%s: begun already", w->path);
    w->is_begun = true;
    TSR_TRY(sort_tensors(w));
    char *header = make_header(w, &w->header_bytes);
    if (!header)
        return tsr_fail(TSR_EVALUE, "%s: its names are not UTF-8, or memory ran out", w->path);
    free(header);
    if (w->header_bytes > TSR_ST_MAX_HEADER)
        return tsr_fail(TSR_EVALUE, "%s: a header of %zu bytes; allowed: up to %d", w->path,
                        w->header_bytes, TSR_ST_MAX_HEADER);
    return tsr_out_create(&w->file, &w->disk, w->in, w->name);
}

/* ---- data ------------------------------------------------------------------------------------ */

tsr_status tsr_safetensors_put(struct tsr_safetensors_writer *w, const char *name, const void *data,
                               uint64_t bytes)
{
    struct tensor key = {.info = {.name = name}};
    struct tensor *t =
        w->n && w->file.name ? bsearch(&key, w->tensors, w->n, sizeof *w->tensors, by_name) : NULL;
    if (!t)
        return tsr_fail(TSR_EVALUE, "%s: tensor \"%s\" is not declared, or the file not open",
                        w->path, tsr_show(name).text);
    if (bytes != t->info.bytes)
        return tsr_fail(TSR_EVALUE, "%s: tensor \"%s\" has %llu bytes, not %llu", w->path,
                        tsr_show(name).text, (unsigned long long)t->info.bytes,
                        (unsigned long long)bytes);
    if (atomic_exchange(&t->is_put, true))
        return tsr_fail(TSR_EVALUE, "%s: tensor \"%s\" is written twice", w->path,
                        tsr_show(name).text);
    if (w->checksums && bytes)
        t->sum = XXH64(data, (size_t)bytes, 0);
    tsr_status status = tsr_out_write(&w->file, data, bytes, 8 + w->header_bytes + t->info.offset);
    if (status != TSR_OK)
        atomic_store(&t->is_put, false);
    return status;
}

static tsr_status check_complete(const struct tsr_safetensors_writer *w)
{
    if (!w->file.name)
        return tsr_fail(TSR_EVALUE, "%s: not open", w->path);
    for (size_t i = 0; i < w->n; i++)
        if (w->tensors[i].info.bytes && !atomic_load(&w->tensors[i].is_put))
            return tsr_fail(TSR_EVALUE, "%s: tensor \"%s\" was not written", w->path,
                            tsr_show(w->tensors[i].info.name).text);
    return TSR_OK;
}

tsr_status tsr_safetensors_finish(struct tsr_safetensors_writer *w)
{
    size_t n = 0;
    TSR_TRY(check_complete(w));
    char *header = make_header(w, &n);
    if (!header)
        return tsr_no_memory(NULL);
    TSR_CHECK(n == w->header_bytes);
    w->hash = XXH64(header, n + 8, 0);
    tsr_status status = tsr_out_write(&w->file, header, n + 8, 0);
    free(header);
    TSR_TRY(status);
    return tsr_out_finish(&w->file);
}

uint64_t tsr_safetensors_written_bytes(const struct tsr_safetensors_writer *w)
{
    return 8 + w->header_bytes + w->data_bytes;
}

uint64_t tsr_safetensors_written_hash(const struct tsr_safetensors_writer *w)
{
    return w->hash;
}
