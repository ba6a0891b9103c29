/* weights.c: pieces of parameters out of Hugging Face's files: found by name, cut, cast, turned. */
#include "exec/files/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/base/convert.h"
#include "exec/files/checkpoint_impl.h"
#include "exec/files/weights_impl.h"

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
