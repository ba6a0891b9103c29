/* trace_tensors.c: the tensors of a recorded scenario, initial parameters and data, as a source for
 * an executor: each rank gets its part of a parameter, and its batches.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/base/numeric.h"
#include "tests/player/events/trace.h"

/* ---- files of tensors ------------------------------------------------------------------------ */

/* scenarios/NAME.json names files relative to the folder above it. */
static tsr_status open_beside(const char *path, const char *name, struct tsr_safetensors **out)
{
    char full[4096];
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) : 1;
    snprintf(full, sizeof full, "%.*s/../%s", folder, slash ? path : ".", name);
    return tsr_safetensors_open(full, out);
}

void tsr_trace_tensors_close(struct tsr_trace_tensors *t)
{
    tsr_safetensors_close(t->init);
    tsr_safetensors_close(t->data);
    *t = (struct tsr_trace_tensors){0};
}

tsr_status tsr_trace_tensors_open(const struct tsr_scenario *s, const char *path,
                                  struct tsr_trace_tensors *out)
{
    const struct tsr_yaml_node *tensors = tsr_node_get(s->doc.root, "tensors");
    const char *init = tsr_text_or(tensors, "init", NULL);
    const char *data = tsr_text_or(tensors, "data", NULL);
    const struct tsr_yaml_node *model = tsr_node_get(s->doc.root, "model");
    *out =
        (struct tsr_trace_tensors){.shifts = strcmp(tsr_text_or(model, "kind", ""), "tree") != 0,
                                   .seq = tsr_u64_or(tsr_node_get(s->doc.root, "train"), "seq", 1)};
    if (!init || !data)
        return tsr_node_error(tensors ? tensors : s->doc.root,
                              "tensors: found no init or data; allowed: the names of two files");
    tsr_status status = open_beside(path, init, &out->init);
    if (status == TSR_OK)
        status = open_beside(path, data, &out->data);
    if (status != TSR_OK)
        tsr_trace_tensors_close(out);
    return status;
}

/* ---- initial values -------------------------------------------------------------------------- */

static const struct tsr_st_tensor *find_hashed(const struct tsr_safetensors *file, uint64_t hash)
{
    for (size_t i = 0; i < tsr_safetensors_count(file); i++) {
        const struct tsr_st_tensor *t = tsr_safetensors_tensor(file, i);
        if (tsr_hash_bytes(TSR_HASH_INIT, t->name, strlen(t->name)) == hash)
            return t;
    }
    return NULL;
}

static void store(void *out, tsr_dtype dtype, size_t i, float value)
{
    switch (dtype) {
    case TSR_BF16:
        ((uint16_t *)out)[i] = tsr_to_bf16(value);
        break;
    case TSR_F16:
        ((uint16_t *)out)[i] = tsr_to_f16(value);
        break;
    case TSR_F64:
        ((double *)out)[i] = value;
        break;
    default:
        ((float *)out)[i] = value;
        break;
    }
}

/* The box of a row-major tensor, rounded to the parameter's dtype. */
static void take_box(const struct tsr_piece *p, const float *whole, void *out)
{
    uint64_t stride[TSR_PIECE_DIMS], at[TSR_PIECE_DIMS] = {0}, n = 1, step = 1;
    for (int d = TSR_PIECE_DIMS - 1; d >= 0; d--) {
        stride[d] = step;
        step *= p->shape[d];
        n *= p->size[d];
    }
    for (uint64_t i = 0; i < n; i++) {
        uint64_t from = 0;
        for (int d = 0; d < TSR_PIECE_DIMS; d++)
            from += (d < p->n_dims ? p->start[d] + at[d] : 0) * stride[d];
        store(out, (tsr_dtype)p->dtype, i, whole[from]);
        for (int d = TSR_PIECE_DIMS - 1; d >= 0 && ++at[d] == p->size[d]; d--)
            at[d] = 0;
    }
}

static tsr_status init(void *user, const struct tsr_piece *piece, void *out)
{
    struct tsr_trace_reader *r = user;
    const struct tsr_st_tensor *t = find_hashed(r->tensors->init, piece->name);
    uint64_t numel = 1;
    for (int d = 0; d < TSR_PIECE_DIMS; d++)
        numel *= piece->shape[d];
    if (!t || t->dtype != TSR_F32 || t->bytes != 4 * numel)
        return tsr_fail(TSR_ECONFIG, "%s: tensor %s: found no f32 tensor of %" PRIu64 " elements",
                        tsr_safetensors_path(r->tensors->init), t ? t->name : "of a parameter",
                        numel);
    float *whole = malloc(t->bytes + 1);
    if (!whole)
        return tsr_no_memory(NULL);
    tsr_status status = tsr_safetensors_read(r->tensors->init, t, 0, whole, t->bytes);
    if (status == TSR_OK)
        take_box(piece, whole, out);
    free(whole);
    return status;
}

/* ---- batches --------------------------------------------------------------------------------- */

/* The last token of a sequence has no successor. */
static void shift_tokens(int64_t *tokens, uint64_t n, uint64_t seq)
{
    for (uint64_t i = 0; i < n; i++)
        tokens[i] = i % seq + 1 < seq ? tokens[i + 1] : -100;
}

static tsr_status batch(void *user, uint32_t iteration, uint32_t micro, enum tsr_batch_part part,
                        bool eval, tsr_dtype dtype, void *out, uint64_t bytes)
{
    struct tsr_trace_reader *r = user;
    bool shifts = part == TSR_BATCH_LABELS && r->tensors->shifts;
    char name[64];
    (void)eval;
    snprintf(name, sizeof name, "%s.%u.%u", part == TSR_BATCH_INPUT || shifts ? "input" : "target",
             iteration, micro);
    const struct tsr_st_tensor *t = tsr_safetensors_find(r->tensors->data, name);
    if (!t || t->dtype != dtype || t->bytes != bytes * r->world)
        return tsr_fail(TSR_ECONFIG,
                        "%s: tensor %s: found %" PRIu64 " bytes; needed: %" PRIu64 " of %s",
                        tsr_safetensors_path(r->tensors->data), name, t ? t->bytes : 0,
                        bytes * r->world, tsr_dtype_name(dtype));
    TSR_TRY(tsr_safetensors_read(r->tensors->data, t, bytes * r->rank, out, bytes));
    if (shifts)
        shift_tokens(out, bytes / sizeof(int64_t), r->tensors->seq);
    return TSR_OK;
}

struct tsr_source tsr_trace_source(struct tsr_trace_reader *reader)
{
    return (struct tsr_source){.user = reader, .init = init, .batch = batch};
}
