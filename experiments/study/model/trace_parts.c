/* trace_parts.c: modules, parameters, kernels and segments of a trace. */
#include <string.h>

#include "experiments/study/model/trace_file.h"
#include "experiments/study/model/trace_json.h"

/* 2^53: what JSON's numbers hold in every reader. */
#define MOST_BYTES ((UINT64_C(1) << 53) - 1)
enum { MOST_ITEMS = 1000000, MOST_SHAPES = 64 };

struct part {
    const struct tsr__trace_reader *r;
    struct tsr_traced_model *model;
    uint64_t n_events; /* of all segments */
};

static struct tsr__trace_at item_at(const struct part *p, const char *list, const json_t *items,
                                    size_t i)
{
    return (struct tsr__trace_at){p->r, json_array_get(items, i), list, i};
}

static tsr_status read_list(const struct tsr__trace_reader *r, const json_t *root, const char *key,
                            size_t least, const json_t **out)
{
    struct tsr__trace_at at = {r, root, key, SIZE_MAX};
    *out = json_object_get(root, key);
    return tsr__trace_list_of(&at, *out, least, MOST_ITEMS);
}

/* ---- parameters ------------------------------------------------------------------------------ */

static tsr_status read_param(const struct tsr__trace_at *at, struct tsr_traced_param *out)
{
    const char *dtype = NULL;
    TSR_TRY(tsr__trace_list_of(at, at->value, 4, 4));
    TSR_TRY(tsr__trace_text(at, json_array_get(at->value, 0), false, &out->name));
    TSR_TRY(tsr__trace_shape(at, json_array_get(at->value, 1), &out->n_dims, out->shape));
    TSR_TRY(tsr__trace_text(at, json_array_get(at->value, 2), false, &dtype));
    TSR_TRY(tsr__trace_bool(at, json_array_get(at->value, 3), &out->trainable));
    out->dtype = tsr_dtype_parse(dtype);
    if (out->dtype == TSR_DTYPE_NONE)
        return tsr__trace_wrong(at, at->value,
                                "parameters in float32, bfloat16, float16, int64 or uint8");
    return TSR_OK;
}

static tsr_status read_params(struct part *p, const json_t *items)
{
    struct tsr_traced_param *params =
        tsr__trace_memory(p->r, json_array_size(items), sizeof *params);
    if (!params)
        return tsr_no_memory(p->r->path);
    uint64_t total = 0;
    for (size_t i = 0; i < json_array_size(items); i++) {
        struct tsr__trace_at at = item_at(p, "params", items, i);
        TSR_TRY(read_param(&at, &params[i]));
        uint64_t n = 1;
        for (int k = 0; k < params[i].n_dims; k++)
            if (!tsr_mul_u64(n, params[i].shape[k], &n) || n > MOST_BYTES / 64)
                return tsr__trace_wrong(&at, at.value, "up to 2^47 elements");
        total += n;
        if (total > MOST_BYTES / 64)
            return tsr__trace_wrong(&at, at.value, "up to 2^47 elements together");
    }
    p->model->params = params;
    p->model->n_params = json_array_size(items);
    p->r->trace->n_elements = total;
    return TSR_OK;
}

/* ---- modules --------------------------------------------------------------------------------- */

static tsr_status read_places(const struct tsr__trace_at *at, const json_t *items, size_t limit,
                              const struct tsr_traced_place **out, size_t *n)
{
    TSR_TRY(tsr__trace_list_of(at, items, 0, MOST_ITEMS));
    *n = json_array_size(items);
    struct tsr_traced_place *places = tsr__trace_memory(at->r, *n, sizeof *places);
    if (!places)
        return tsr_no_memory(at->r->path);
    for (size_t i = 0; i < *n; i++) {
        const json_t *pair = json_array_get(items, i);
        TSR_TRY(tsr__trace_list_of(at, pair, 2, 2));
        TSR_TRY(tsr__trace_text(at, json_array_get(pair, 0), false, &places[i].name));
        if (!*places[i].name || strchr(places[i].name, '.'))
            return tsr__trace_wrong(at, pair, "names without dots");
        TSR_TRY(
            tsr__trace_u32(at, json_array_get(pair, 1), limit ? limit - 1 : 0, &places[i].index));
        if (places[i].index >= limit)
            return tsr__trace_wrong(at, pair, "one that is there");
    }
    *out = places;
    return TSR_OK;
}

static tsr_status read_buffer(const struct tsr__trace_at *at, const json_t *item,
                              struct tsr_traced_buffer *out)
{
    uint64_t dims[TSR_TRACED_DIMS];
    const char *dtype = NULL;
    int n_dims = 0;
    bool persistent;
    TSR_TRY(tsr__trace_list_of(at, item, 4, 4));
    TSR_TRY(tsr__trace_text(at, json_array_get(item, 0), false, &out->name));
    TSR_TRY(tsr__trace_shape(at, json_array_get(item, 1), &n_dims, dims));
    TSR_TRY(tsr__trace_text(at, json_array_get(item, 2), false, &dtype));
    TSR_TRY(tsr__trace_bool(at, json_array_get(item, 3), &persistent));
    out->bytes = tsr__torch_dtype_bytes(dtype);
    if (out->bytes == 0)
        return tsr__trace_wrong(at, item, "a dtype of torch");
    out->dtype = tsr_dtype_parse(dtype);
    if (out->dtype == TSR_DTYPE_NONE)
        out->dtype = TSR_U8;
    for (int k = 0; k < n_dims; k++)
        if (!tsr_mul_u64(out->bytes, dims[k], &out->bytes) || out->bytes > MOST_BYTES)
            return tsr__trace_wrong(at, item, "up to 2^53 bytes");
    return TSR_OK;
}

static tsr_status read_module(const struct part *p, const struct tsr__trace_at *at, size_t n,
                              struct tsr_traced_module *out)
{
    const json_t *v = at->value;
    TSR_TRY(tsr__trace_list_of(at, v, 5, 5));
    TSR_TRY(tsr__trace_text(at, json_array_get(v, 0), false, &out->name));
    TSR_TRY(tsr__trace_text(at, json_array_get(v, 1), false, &out->type));
    TSR_TRY(
        read_places(at, json_array_get(v, 2), p->model->n_params, &out->params, &out->n_params));
    TSR_TRY(read_places(at, json_array_get(v, 4), n, &out->children, &out->n_children));
    const json_t *list = json_array_get(v, 3);
    TSR_TRY(tsr__trace_list_of(at, list, 0, MOST_ITEMS));
    out->n_buffers = json_array_size(list);
    struct tsr_traced_buffer *buffers =
        tsr__trace_memory(p->r, out->n_buffers, sizeof *out->buffers);
    if (!buffers)
        return tsr_no_memory(p->r->path);
    for (size_t i = 0; i < out->n_buffers; i++)
        TSR_TRY(read_buffer(at, json_array_get(list, i), &buffers[i]));
    out->buffers = buffers;
    out->is_container = !strcmp(out->type, "ModuleList") || !strcmp(out->type, "ModuleDict");
    return TSR_OK;
}

static tsr_status read_modules(struct part *p, const json_t *items)
{
    size_t n = json_array_size(items);
    struct tsr_traced_module *modules = tsr__trace_memory(p->r, n, sizeof *modules);
    if (!modules)
        return tsr_no_memory(p->r->path);
    for (size_t i = 0; i < n; i++) {
        struct tsr__trace_at at = item_at(p, "modules", items, i);
        TSR_TRY(read_module(p, &at, n, &modules[i]));
    }
    p->model->modules = modules;
    p->model->n_modules = n;
    return TSR_OK;
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* "aten.mm.default", or with " causal" behind it. */
static void split_name(struct tsr_traced_op *op, char *name)
{
    char *space = strrchr(name, ' ');
    op->causal = space && !strcmp(space, " causal");
    if (op->causal)
        *space = 0;
    op->name = name;
}

/* A shape of more dimensions than are kept counts as one list of elements. */
static tsr_status read_op_shape(const struct tsr__trace_at *at, const json_t *shape,
                                struct tsr_traced_shape *out)
{
    uint64_t dims[16];
    size_t n = json_array_size(shape);
    TSR_TRY(tsr__trace_list_of(at, shape, 0, sizeof dims / sizeof dims[0]));
    uint64_t numel = 1;
    for (size_t i = 0; i < n; i++) {
        TSR_TRY(tsr__trace_u64(at, json_array_get(shape, i), 0, UINT64_C(1) << 40, &dims[i]));
        if (!tsr_mul_u64(numel, dims[i] ? dims[i] : 1, &numel) || numel > MOST_BYTES)
            return tsr__trace_wrong(at, shape, "up to 2^53 elements");
    }
    out->n_dims = n <= TSR_TRACED_DIMS ? (uint8_t)n : 1;
    if (n <= TSR_TRACED_DIMS)
        memcpy(out->dims, dims, n * sizeof *dims);
    else
        out->dims[0] = numel;
    return TSR_OK;
}

/* Reads the bytes that an operator reads and writes. Files of 2026-11 and before have their sum
 * alone, half of which counts as read. */
static tsr_status read_op_bytes(const struct tsr__trace_at *at, struct tsr_traced_op *out)
{
    TSR_TRY(tsr__trace_u64(at, json_array_get(at->value, 4), 0, MOST_BYTES, &out->bytes_read));
    if (json_array_size(at->value) > 5)
        return tsr__trace_u64(at, json_array_get(at->value, 5), 0, MOST_BYTES, &out->bytes_written);
    out->bytes_written = out->bytes_read / 2;
    out->bytes_read -= out->bytes_written;
    return TSR_OK;
}

static tsr_status read_op(const struct tsr__trace_at *at, struct tsr_traced_op *out)
{
    const char *name = NULL, *dtype = NULL;
    TSR_TRY(tsr__trace_list_of(at, at->value, 5, 6));
    TSR_TRY(tsr__trace_text(at, json_array_get(at->value, 0), false, &name));
    split_name(out, (char *)(uintptr_t)name);
    const json_t *shapes = json_array_get(at->value, 1);
    TSR_TRY(tsr__trace_list_of(at, shapes, 0, MOST_ITEMS));
    for (size_t i = 0; i < json_array_size(shapes) && i < TSR_TRACED_SHAPES; i++)
        TSR_TRY(read_op_shape(at, json_array_get(shapes, i), &out->shapes[out->n_shapes++]));
    TSR_TRY(tsr__trace_text(at, json_array_get(at->value, 2), false, &dtype));
    out->dtype = tsr_dtype_parse(dtype);
    if (out->dtype == TSR_DTYPE_NONE)
        out->dtype = TSR_F32; /* of integers and others no table of rates speaks */
    const json_t *flops = json_array_get(at->value, 3);
    if (!json_is_integer(flops) || json_integer_value(flops) < -1)
        return tsr__trace_wrong(at, flops, "FLOP, or -1: not known");
    out->flops = (double)json_integer_value(flops);
    return read_op_bytes(at, out);
}

static tsr_status read_ops(struct part *p, const json_t *items)
{
    struct tsr_traced_op *ops = tsr__trace_memory(p->r, json_array_size(items), sizeof *ops);
    if (!ops)
        return tsr_no_memory(p->r->path);
    for (size_t i = 0; i < json_array_size(items); i++) {
        struct tsr__trace_at at = item_at(p, "ops", items, i);
        TSR_TRY(read_op(&at, &ops[i]));
    }
    p->model->ops = ops;
    p->model->n_ops = json_array_size(items);
    return TSR_OK;
}

/* ---- segments -------------------------------------------------------------------------------- */

enum { ALLOC, FREE, KERNEL, GRAD };

/* [0, bytes], [0, bytes, stream], [0, bytes, stream, "w" or "a"] */
static tsr_status read_alloc(const struct tsr__trace_at *at, const json_t *v,
                             struct tsr_traced_segment *s, struct tsr_traced_event *out)
{
    uint64_t stream = 0;
    const char *use = NULL;
    TSR_TRY(tsr__trace_list_of(at, v, 2, 4));
    TSR_TRY(tsr__trace_u64(at, json_array_get(v, 1), 1, MOST_BYTES, &out->bytes));
    if (json_array_size(v) > 2)
        TSR_TRY(tsr__trace_u64(at, json_array_get(v, 2), 0, 0, &stream));
    if (json_array_size(v) > 3)
        use = json_string_value(json_array_get(v, 3));
    if (json_array_size(v) > 3 && (!use || (strcmp(use, "w") && strcmp(use, "a"))))
        return tsr__trace_wrong(at, v, "\"w\" or \"a\" behind the stream");
    out->kind = TSR_TRACED_ALLOC;
    out->use = !use ? TSR_TRACED_PLAIN : *use == 'w' ? TSR_TRACED_WORKSPACE : TSR_TRACED_RECOMPUTED;
    out->n = s->n_storages++;
    return TSR_OK;
}

/* [..., n], [..., n, class], [..., n, class, k] from index `i` on */
static tsr_status read_storage(const struct tsr__trace_at *at, const json_t *v, size_t i,
                               size_t n_segments, struct tsr_traced_event *out)
{
    TSR_TRY(tsr__trace_list_of(at, v, i + 1, i + 3));
    out->of = TSR_NO_ID;
    TSR_TRY(tsr__trace_u32(at, json_array_get(v, i), MOST_ITEMS, &out->n));
    if (json_array_size(v) > i + 1)
        TSR_TRY(tsr__trace_u32(at, json_array_get(v, i + 1), n_segments - 1, &out->of));
    if (json_array_size(v) > i + 2)
        TSR_TRY(tsr__trace_u32(at, json_array_get(v, i + 2), MOST_ITEMS, &out->back));
    return TSR_OK;
}

/* [2, op], [2, op, [r, ...]] */
static tsr_status read_kernel(const struct tsr__trace_at *at, const json_t *v, size_t n_ops,
                              uint32_t *reads, size_t *n_reads, struct tsr_traced_event *out)
{
    TSR_TRY(tsr__trace_list_of(at, v, 2, 3));
    out->kind = TSR_TRACED_KERNEL;
    TSR_TRY(tsr__trace_u32(at, json_array_get(v, 1), MOST_ITEMS, &out->n));
    if (out->n >= n_ops)
        return tsr__trace_wrong(at, v, "a kernel of \"ops\"");
    out->param = (uint32_t)*n_reads;
    const json_t *list = json_array_get(v, 2);
    if (!list)
        return TSR_OK;
    TSR_TRY(tsr__trace_list_of(at, list, 0, MOST_ITEMS));
    out->n_reads = (uint32_t)json_array_size(list);
    for (size_t i = 0; i < out->n_reads; i++)
        TSR_TRY(tsr__trace_u32(at, json_array_get(list, i), MOST_ITEMS, &reads[(*n_reads)++]));
    return TSR_OK;
}

static size_t count_reads(const json_t *events)
{
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(events); i++)
        n += json_array_size(json_array_get(json_array_get(events, i), 2));
    return n;
}

static tsr_status read_segment(struct part *p, const struct tsr__trace_at *at, size_t n_segments,
                               struct tsr_traced_segment *out)
{
    TSR_TRY(tsr__trace_list_of(at, at->value, 0, MOST_ITEMS));
    size_t n = json_array_size(at->value), n_reads = 0;
    struct tsr_traced_event *events = tsr__trace_memory(p->r, n, sizeof *events);
    uint32_t *reads = tsr__trace_memory(p->r, count_reads(at->value), sizeof *reads);
    if (!events || !reads)
        return tsr_no_memory(p->r->path);
    p->n_events += n;
    if (p->n_events > MOST_ITEMS)
        return tsr__trace_wrong(at, NULL, "up to 1000000 events");
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(at->value, i), *kind = json_array_get(v, 0);
        struct tsr_traced_event *ev = &events[i];
        json_int_t k = json_is_integer(kind) ? json_integer_value(kind) : -1;
        if (k == ALLOC) {
            TSR_TRY(read_alloc(at, v, out, ev));
        } else if (k == FREE) {
            ev->kind = TSR_TRACED_FREE;
            TSR_TRY(read_storage(at, v, 1, n_segments, ev));
        } else if (k == KERNEL) {
            TSR_TRY(read_kernel(at, v, p->model->n_ops, reads, &n_reads, ev));
        } else if (k == GRAD) {
            ev->kind = TSR_TRACED_GRAD;
            TSR_TRY(tsr__trace_list_of(at, v, 3, 5));
            TSR_TRY(tsr__trace_u32(at, json_array_get(v, 1), MOST_ITEMS, &ev->param));
            TSR_TRY(read_storage(at, v, 2, n_segments, ev));
        } else {
            return tsr__trace_wrong(at, v, "[0 to 3, ...]");
        }
    }
    out->events = events;
    out->reads = reads;
    out->n_events = n;
    return TSR_OK;
}

static tsr_status read_segments(struct part *p, const json_t *items, const json_t *classes)
{
    size_t n = json_array_size(items);
    struct tsr__trace_at lists = {p->r, classes, "classes", SIZE_MAX};
    struct tsr_traced_segment *segments = tsr__trace_memory(p->r, n, sizeof *segments);
    if (!segments)
        return tsr_no_memory(p->r->path);
    TSR_TRY(tsr__trace_list_of(&lists, classes, n, n));
    for (size_t i = 0; i < n; i++) {
        struct tsr__trace_at at = item_at(p, "segments", items, i);
        struct tsr__trace_at class_at = item_at(p, "classes", classes, i);
        TSR_TRY(read_segment(p, &at, n, &segments[i]));
        TSR_TRY(tsr__trace_u32(&class_at, class_at.value, i, &segments[i].class_of));
    }
    p->model->segments = segments;
    p->model->n_segments = n;
    return TSR_OK;
}

tsr_status tsr__trace_read_parts(const struct tsr__trace_reader *r, const json_t *root)
{
    struct part p = {.r = r, .model = &r->trace->model};
    const json_t *params, *modules, *ops, *segments;
    TSR_TRY(read_list(r, root, "params", 0, &params));
    TSR_TRY(read_list(r, root, "modules", 1, &modules));
    TSR_TRY(read_list(r, root, "ops", 0, &ops));
    TSR_TRY(read_list(r, root, "segments", 1, &segments));
    TSR_TRY(read_params(&p, params));
    TSR_TRY(read_modules(&p, modules));
    TSR_TRY(read_ops(&p, ops));
    return read_segments(&p, segments, json_object_get(root, "classes"));
}
