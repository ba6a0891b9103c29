/* weights.c: pieces of parameters out of Hugging Face's files: found by name, cut, cast, turned;
 * and which files a model has.
 */
#include "exec/files/weights.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/base/convert.h"
#include "exec/files/checkpoint_impl.h"
#include "sim/base/files.h"
#include "sim/base/json_load.h"
#include "sim/base/text.h"

/* tensor NULL: none. */
static struct tsr_weight tsr__weight_find(const struct tsr_weights *w, const char *name);

enum { CHUNK_BYTES = 1 << 20, TILE_ROWS = 32 };

/* ---- which tensor ---------------------------------------------------------------------------- */

/* Under its name, or without the prefix that a file of the bare model leaves out. */
static struct tsr_weight find_name(const struct tsr_weights *w, const char *name,
                                   const char *prefix)
{
    struct tsr_weight found = tsr__weight_find(w, name);
    if (!found.tensor && prefix && !strncmp(name, prefix, strlen(prefix)))
        found = tsr__weight_find(w, name + strlen(prefix));
    return found;
}

static tsr_status find(const struct tsr_weights *w, const struct tsr_hf_model *model,
                       const char *fqn, struct tsr_hf_name *hf, struct tsr_weight *out)
{
    TSR_TRY(tsr_hf_name(model, fqn, hf));
    *out = find_name(w, hf->name, hf->prefix);
    if (!out->tensor && model->tied && !strcmp(hf->name, "lm_head.weight") &&
        tsr_hf_embedding(model->family))
        *out = find_name(w, tsr_hf_embedding(model->family), hf->prefix);
    if (!out->tensor)
        return tsr_fail(TSR_ECONFIG, "%s: no tensor \"%s\" (the model's %s)", w->path,
                        tsr_show(hf->name).text, tsr_show(fqn).text);
    return TSR_OK;
}

static void print_shape(char *out, size_t room, int n_dims, const uint64_t *shape, bool turned)
{
    size_t n = (size_t)snprintf(out, room, "[");
    for (int i = 0; i < n_dims && n < room; i++)
        n += (size_t)snprintf(out + n, room - n, "%s%llu", i ? ", " : "",
                              (unsigned long long)shape[turned ? n_dims - 1 - i : i]);
    if (n < room)
        snprintf(out + n, room - n, "]");
}

static tsr_status check_tensor(const struct tsr_weight *t, const struct tsr_hf_name *hf,
                               const char *fqn, int n_dims, const uint64_t *shape)
{
    char found[256], expected[256];
    bool turned = hf->transposed && n_dims == 2;
    print_shape(found, sizeof found, t->tensor->n_dims, t->tensor->shape, false);
    print_shape(expected, sizeof expected, n_dims, shape, turned);
    if (strcmp(found, expected) != 0)
        return tsr_fail(TSR_ECONFIG, "%s: tensor \"%s\": shape %s, but %s of the model needs %s",
                        tsr_safetensors_path(t->file), tsr_show(t->tensor->name).text, found,
                        tsr_show(fqn).text, expected);
    if (hf->head_dim && (n_dims == 0 || shape[0] % hf->head_dim != 0 || hf->head_dim % 2 != 0))
        return tsr_fail(TSR_ECONFIG, "%s: tensor \"%s\": shape %s is not one of heads of %llu",
                        tsr_safetensors_path(t->file), tsr_show(t->tensor->name).text, found,
                        (unsigned long long)hf->head_dim);
    return TSR_OK;
}

/* ---- a box ----------------------------------------------------------------------------------- */

struct box {
    struct tsr_weight from;
    tsr_dtype dtype; /* wanted */
    int n_dims;
    uint64_t start[TSR_PIECE_DIMS], size[TSR_PIECE_DIMS]; /* in the file's dimensions */
    uint64_t stride[TSR_PIECE_DIMS];                      /* in elements */
    int last;          /* dimensions behind it are whole: a run is contiguous from here on */
    uint64_t head_dim; /* rows are permuted */
    char *chunk;       /* [CHUNK_BYTES] */
};

/* n contiguous elements at element `at`, converted. */
static tsr_status read_run(const struct box *b, uint64_t at, uint64_t n, char *out)
{
    unsigned from = tsr_dtype_bytes(b->from.tensor->dtype), to = tsr_dtype_bytes(b->dtype);
    if (b->from.tensor->dtype == b->dtype)
        return tsr_safetensors_read(b->from.file, b->from.tensor, at * from, out, n * from);
    while (n > 0) {
        uint64_t m = tsr_min_u64(n, CHUNK_BYTES / from);
        TSR_TRY(tsr_safetensors_read(b->from.file, b->from.tensor, at * from, b->chunk, m * from));
        tsr_convert(b->from.tensor->dtype, b->chunk, b->dtype, out, m);
        at += m;
        n -= m;
        out += m * to;
    }
    return TSR_OK;
}

static tsr_status read_dim(const struct box *b, int dim, uint64_t base, char **out)
{
    unsigned bytes = tsr_dtype_bytes(b->dtype);
    if (dim >= b->last) {
        uint64_t n = b->size[dim] * b->stride[dim];
        TSR_TRY(read_run(b, base + b->start[dim] * b->stride[dim], n, *out));
        *out += n * bytes;
        return TSR_OK;
    }
    for (uint64_t i = 0; i < b->size[dim]; i++) {
        uint64_t row = dim == 0 ? tsr_hf_row(b->head_dim, b->start[0] + i) : b->start[dim] + i;
        TSR_TRY(read_dim(b, dim + 1, base + row * b->stride[dim], out));
    }
    return TSR_OK;
}

/* A row of one dimension, permuted. */
static tsr_status read_permuted(const struct box *b, char *out)
{
    unsigned bytes = tsr_dtype_bytes(b->dtype);
    for (uint64_t i = 0; i < b->size[0]; i++)
        TSR_TRY(
            read_run(b, tsr_hf_row(b->head_dim, b->start[0] + i), 1, out + (size_t)(i * bytes)));
    return TSR_OK;
}

/* A matrix that is wanted as [columns, rows] of the file: some rows of it at a time. */
static tsr_status read_transposed(const struct box *b, char *out)
{
    unsigned bytes = tsr_dtype_bytes(b->dtype);
    uint64_t rows = b->size[0], columns = b->size[1];
    char *tile = malloc((size_t)(TILE_ROWS * columns * bytes) + 1);
    char *turned = malloc((size_t)(TILE_ROWS * columns * bytes) + 1);
    tsr_status status = tile && turned ? TSR_OK : tsr_no_memory(NULL);
    for (uint64_t r = 0; status == TSR_OK && r < rows; r += TILE_ROWS) {
        uint64_t n = tsr_min_u64(TILE_ROWS, rows - r);
        struct box some = *b;
        char *at = tile;
        some.start[0] += r;
        some.size[0] = n;
        status = read_dim(&some, 0, 0, &at);
        if (status != TSR_OK)
            break;
        tsr_transpose(tile, n, columns, bytes, turned);
        for (uint64_t c = 0; c < columns; c++)
            memcpy(out + (c * rows + r) * bytes, turned + c * n * bytes, (size_t)(n * bytes));
    }
    free(tile);
    free(turned);
    return status;
}

static void lay_out(struct box *b, const struct tsr_piece *piece, bool transposed)
{
    uint64_t stride = 1;
    b->n_dims = piece->n_dims;
    b->last = 0;
    for (int i = b->n_dims - 1; i >= 0; i--) {
        int from = transposed ? b->n_dims - 1 - i : i;
        b->start[i] = piece->start[from];
        b->size[i] = piece->size[from];
        b->stride[i] = stride;
        stride *= piece->shape[from];
    }
    for (int i = b->n_dims - 1; i > 0 && b->last == 0; i--)
        if (b->size[i] != b->from.tensor->shape[i])
            b->last = i;
    if (b->head_dim && b->last == 0 && b->n_dims > 1)
        b->last = 1;
}

static tsr_status read_box(struct tsr_weight from, const struct tsr_hf_name *hf,
                           const struct tsr_piece *piece, char *out)
{
    struct box b = {.from = from, .dtype = (tsr_dtype)piece->dtype, .head_dim = hf->head_dim};
    bool transposed = hf->transposed && piece->n_dims == 2;
    lay_out(&b, piece, transposed);
    b.chunk = malloc(CHUNK_BYTES);
    if (!b.chunk)
        return tsr_no_memory(NULL);
    tsr_status status;
    if (piece->n_dims == 0)
        status = read_run(&b, 0, 1, out);
    else if (transposed)
        status = read_transposed(&b, out);
    else if (b.head_dim && piece->n_dims == 1)
        status = read_permuted(&b, out);
    else
        status = read_dim(&b, 0, 0, &out);
    free(b.chunk);
    return status;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* False: the piece is malformed. *numel: its elements. */
static bool check_piece(const struct tsr_piece *p, uint64_t *numel)
{
    *numel = 1;
    if (p->n_dims < 0 || p->n_dims > TSR_PIECE_DIMS)
        return false;
    for (int i = 0; i < p->n_dims; i++) {
        if (p->start[i] > p->shape[i] || p->size[i] > p->shape[i] - p->start[i])
            return false;
        *numel *= p->size[i];
    }
    return true;
}

static tsr_status check_dtype(const struct tsr_weight *from, const char *fqn, tsr_dtype dtype)
{
    if (tsr_can_convert(from->tensor->dtype, dtype))
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "%s: tensor \"%s\": dtype %s; %s of the model is %s",
                    tsr_safetensors_path(from->file), tsr_show(from->tensor->name).text,
                    from->tensor->type, tsr_show(fqn).text, tsr_dtype_name(dtype));
}

/* The file has the head of a tied model a second time: the same values, or it is another model. */
static tsr_status compare_head(struct tsr_weight head, const struct tsr_hf_name *hf,
                               const char *fqn, const struct tsr_piece *piece, const void *values,
                               uint64_t bytes)
{
    TSR_TRY(check_tensor(&head, hf, "the tied head", piece->n_dims, piece->shape));
    TSR_TRY(check_dtype(&head, fqn, (tsr_dtype)piece->dtype));
    char *other = malloc((size_t)bytes);
    tsr_status status = other ? read_box(head, hf, piece, other) : tsr_no_memory(NULL);
    if (status == TSR_OK && memcmp(other, values, (size_t)bytes) != 0)
        status = tsr_fail(TSR_ECONFIG,
                          "%s: tensor \"lm_head.weight\": is not equal to %s, but the model ties "
                          "them",
                          tsr_safetensors_path(head.file), tsr_show(fqn).text);
    free(other);
    return status;
}

tsr_status tsr_weights_read(struct tsr_weights *w, const struct tsr_hf_model *model,
                            const char *fqn, const struct tsr_piece *piece, void *out)
{
    struct tsr_hf_name hf;
    struct tsr_weight from;
    uint64_t numel = 0;
    TSR_TRY(find(w, model, fqn, &hf, &from));
    TSR_TRY(check_tensor(&from, &hf, fqn, piece->n_dims, piece->shape));
    if (!check_piece(piece, &numel))
        return tsr_fail(TSR_EDEFECT, "weights: a piece of %s is not inside of it", fqn);
    TSR_TRY(check_dtype(&from, fqn, (tsr_dtype)piece->dtype));
    if (numel == 0)
        return TSR_OK;
    TSR_TRY(read_box(from, &hf, piece, out));
    const char *embedding = tsr_hf_embedding(model->family);
    struct tsr_weight head = tsr__weight_find(w, "lm_head.weight");
    if (!model->tied || !embedding || strcmp(hf.name, embedding) != 0 || !head.tensor)
        return TSR_OK;
    return compare_head(head, &hf, fqn, piece, out,
                        numel * tsr_dtype_bytes((tsr_dtype)piece->dtype));
}

tsr_status tsr_weights_read_piece(struct tsr_weights *w, const struct tsr_hf_model *model,
                                  const struct tsr_state_dict *params,
                                  const struct tsr_piece *piece, void *out)
{
    size_t entry = 0;
    if (piece->what != TSR_PART_PARAM || !tsr__entry_by_hash(params, piece->name, &entry))
        return tsr_fail(TSR_EDEFECT, "weights: piece %016llx, part %d, is not a parameter",
                        (unsigned long long)piece->name, (int)piece->what);
    return tsr_weights_read(w, model, params->entries[entry].fqn, piece, out);
}

/* ---- all of a model -------------------------------------------------------------------------- */

/* Marks what the model uses. */
static tsr_status check_params(const struct tsr_weights *w, const struct tsr_hf_model *model,
                               const struct tsr_state_dict *params, bool *used)
{
    for (size_t i = 0; i < params->n; i++) {
        const struct tsr_state_entry *e = &params->entries[i];
        const struct tsr_dtensor *t = &params->layouts[e->layout];
        struct tsr_hf_name hf;
        struct tsr_weight from;
        if (e->alias_of != i)
            continue;
        TSR_TRY(find(w, model, e->fqn, &hf, &from));
        TSR_TRY(check_tensor(&from, &hf, e->fqn, t->n_dims, t->shape));
        for (size_t k = 0; k < w->n; k++)
            used[k] = used[k] || w->tensors[k].tensor == from.tensor;
    }
    return TSR_OK;
}

tsr_status tsr_weights_check(const struct tsr_weights *w, const struct tsr_hf_model *model,
                             const struct tsr_state_dict *params)
{
    bool *used = calloc(w->n + 1, sizeof *used);
    if (!used)
        return tsr_no_memory(NULL);
    tsr_status status = check_params(w, model, params, used);
    for (size_t i = 0; i < w->n && status == TSR_OK; i++) {
        const char *name = w->tensors[i].tensor->name;
        bool head = model->tied && !strcmp(name, "lm_head.weight");
        if (!used[i] && !head && !tsr_hf_is_buffer(name))
            status = tsr_fail(TSR_ECONFIG, "%s: tensor \"%s\" has no place in the model",
                              tsr_safetensors_path(w->tensors[i].file), tsr_show(name).text);
    }
    free(used);
    return status;
}

/* ---- the files of a model -------------------------------------------------------------------- */

/* Which files a model has, and which tensors are in them. */

enum { INDEX_MAX_BYTES = 100000000, NAMED = 8 };

/* ---- lists in error lines -------------------------------------------------------------------- */

/* "a, b, c and 12 more" */
struct list {
    char text[700];
    size_t used, n;
};

static void add_name(struct list *l, const char *name)
{
    if (l->n++ < NAMED && l->used < sizeof l->text - 80)
        l->used += (size_t)snprintf(l->text + l->used, sizeof l->text - l->used, "%s%.70s",
                                    l->used ? ", " : "", tsr_show(name).text);
    else
        snprintf(l->text + l->used, sizeof l->text - l->used, " and more, %zu in all", l->n);
}

/* ---- opening --------------------------------------------------------------------------------- */

static tsr_status add_file(struct tsr_weights *w, const char *path, struct tsr_safetensors **out)
{
    TSR_TRY(tsr_safetensors_open(path, out));
    if (TSR_PUSH(w->files, w->n_files, w->cap_files, *out))
        return TSR_OK;
    tsr_safetensors_close(*out);
    return tsr_no_memory(NULL);
}

static tsr_status open_single(struct tsr_weights *w, const char *path)
{
    struct tsr_safetensors *file = NULL;
    TSR_TRY(add_file(w, path, &file));
    for (size_t i = 0; i < tsr_safetensors_count(file); i++) {
        struct tsr_weight weight = {file, tsr_safetensors_tensor(file, i)};
        if (!TSR_PUSH(w->tensors, w->n, w->cap, weight))
            return tsr_no_memory(NULL);
    }
    return TSR_OK;
}

struct index {
    struct tsr_weights *w;
    const char *path; /* of the index */
    char folder[TSR_PATH_BYTES];
    struct list missing_files, missing_tensors;
};

static struct tsr_safetensors *opened(const struct tsr_weights *w, const char *path)
{
    for (size_t i = 0; i < w->n_files; i++)
        if (!strcmp(tsr_safetensors_path(w->files[i]), path))
            return w->files[i];
    return NULL;
}

static tsr_status check_entry(const struct index *x, const char *tensor, const json_t *value)
{
    const char *file = json_string_value(value);
    if (!file || !*file || strchr(file, '/'))
        return tsr_fail(TSR_ECONFIG, "%s: weight_map: \"%s\": not the name of a file beside it",
                        x->path, tsr_show(tensor).text);
    return TSR_OK;
}

static tsr_status open_indexed_files(struct index *x, json_t *map)
{
    const char *name;
    const json_t *value;
    char path[TSR_PATH_BYTES];
    json_t *seen = json_object();
    tsr_status status;
    TSR_GOTO(end, seen ? TSR_OK : tsr_no_memory(NULL));
    json_object_foreach(map, name, value)
    {
        struct tsr_safetensors *file = NULL;
        TSR_GOTO(end, check_entry(x, name, value));
        if (json_object_get(seen, json_string_value(value)))
            continue;
        json_object_set_new(seen, json_string_value(value), json_true());
        TSR_GOTO(end, tsr_path(path, "%s/%s", x->folder, json_string_value(value)));
        if (tsr_kind_of(NULL, path) == TSR_KIND_NONE)
            add_name(&x->missing_files, json_string_value(value));
        else
            TSR_GOTO(end, add_file(x->w, path, &file));
    }
end:
    json_decref(seen);
    return status;
}

static tsr_status add_indexed_tensors(struct index *x, json_t *map)
{
    const char *name;
    const json_t *value;
    char path[TSR_PATH_BYTES];
    json_object_foreach(map, name, value)
    {
        TSR_TRY(tsr_path(path, "%s/%s", x->folder, json_string_value(value)));
        struct tsr_safetensors *file = opened(x->w, path);
        struct tsr_weight weight = {file, file ? tsr_safetensors_find(file, name) : NULL};
        if (!weight.tensor)
            add_name(&x->missing_tensors, name);
        else if (!TSR_PUSH(x->w->tensors, x->w->n, x->w->cap, weight))
            return tsr_no_memory(NULL);
    }
    return TSR_OK;
}

static tsr_status read_index(struct index *x, json_t *map)
{
    if (!json_is_object(map))
        return tsr_fail(TSR_ECONFIG, "%s: weight_map: missing or not an object", x->path);
    TSR_TRY(open_indexed_files(x, map));
    if (x->missing_files.n)
        return tsr_fail(TSR_ECONFIG, "%s: weight_map: files that are not there: %s", x->path,
                        x->missing_files.text);
    TSR_TRY(add_indexed_tensors(x, map));
    if (x->missing_tensors.n)
        return tsr_fail(TSR_ECONFIG, "%s: weight_map: tensors that are not in their files: %s",
                        x->path, x->missing_tensors.text);
    return TSR_OK;
}

static tsr_status open_index(struct tsr_weights *w, const char *path)
{
    struct index x = {.w = w, .path = path};
    const char *slash = strrchr(path, '/');
    char *text = NULL;
    size_t n = 0;
    json_error_t error;
    TSR_TRY(tsr_path(x.folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : "."));
    TSR_TRY(tsr_file_read(NULL, path, INDEX_MAX_BYTES, &text, &n));
    json_t *root = tsr_json_loadb(text, n, TSR_TEXT_MANY_VALUES, &error);
    free(text);
    if (!root)
        return tsr_fail(TSR_ECONFIG, "%s:%d: %s", path, error.line, tsr_show(error.text).text);
    tsr_status status = read_index(&x, json_object_get(root, "weight_map"));
    json_decref(root);
    return status;
}

static bool ends(const char *text, const char *with)
{
    size_t n = strlen(text), m = strlen(with);
    return n >= m && !strcmp(text + n - m, with);
}

static tsr_status open_path(struct tsr_weights *w)
{
    char path[TSR_PATH_BYTES];
    if (ends(w->path, ".json"))
        return open_index(w, w->path);
    if (tsr_kind_of(NULL, w->path) != TSR_KIND_FOLDER)
        return open_single(w, w->path);
    TSR_TRY(tsr_path(path, "%s/model.safetensors", w->path));
    if (tsr_kind_of(NULL, path) != TSR_KIND_NONE)
        return open_single(w, path);
    TSR_TRY(tsr_path(path, "%s/model.safetensors.index.json", w->path));
    if (tsr_kind_of(NULL, path) != TSR_KIND_NONE)
        return open_index(w, path);
    return tsr_fail(TSR_ECONFIG,
                    "%s: has neither model.safetensors nor model.safetensors.index.json", w->path);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tsr_weight *)a)->tensor->name,
                  ((const struct tsr_weight *)b)->tensor->name);
}

tsr_status tsr_weights_open(const char *path, struct tsr_weights **out)
{
    struct tsr_weights *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w)
        return tsr_no_memory(NULL);
    tsr_status status = tsr_path(w->path, "%s", path);
    if (status == TSR_OK)
        status = open_path(w);
    if (status != TSR_OK) {
        tsr_weights_close(w);
        return status;
    }
    if (w->n)
        qsort(w->tensors, w->n, sizeof *w->tensors, by_name);
    *out = w;
    return TSR_OK;
}

void tsr_weights_close(struct tsr_weights *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->n_files; i++)
        tsr_safetensors_close(w->files[i]);
    free(w->files);
    free(w->tensors);
    free(w);
}

/* ---- questions ------------------------------------------------------------------------------- */

static int name_against(const void *name, const void *weight)
{
    return strcmp(name, ((const struct tsr_weight *)weight)->tensor->name);
}

static struct tsr_weight tsr__weight_find(const struct tsr_weights *w, const char *name)
{
    const struct tsr_weight *found =
        w->n ? bsearch(name, w->tensors, w->n, sizeof *w->tensors, name_against) : NULL;
    return found ? *found : (struct tsr_weight){0};
}
