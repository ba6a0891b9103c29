/* trace_bucket.c: scenarios of kind `bucket`: the bucket assignment rule alone. */
#include <stdlib.h>

#include "engine/ddp/bucket.h"
#include "experiments/cli/player/trace/trace_kinds.h"

static tsr_status read_item(const struct tsr_yaml_node *node, struct tsr_bucket_item *out)
{
    uint64_t shape[TSR_DT_MAX_DIMS];
    int n = 0;
    out->dtype = tsr_dtype_parse(tsr_text_or(node, "dtype", NULL));
    if (out->dtype == TSR_DTYPE_NONE)
        return tsr_node_error(node, "dtype: found %s; allowed: f32, bf16, f16, f64, i64, u8",
                              tsr_text_or(node, "dtype", "nothing"));
    const struct tsr_yaml_node *sizes = tsr_node_get(node, "shape");
    if (sizes && sizes->kind == TSR_NODE_SEQ && sizes->n > 0) /* else a scalar */
        TSR_TRY(tsr_sizes_read(node, "shape", 0, TSR_DT_MAX_DIMS, shape, &n));
    out->bytes = tsr_dtype_bytes(out->dtype);
    for (int i = 0; i < n; i++)
        if (!tsr_mul_u64(out->bytes, shape[i], &out->bytes))
            return tsr_node_error(node, "shape: the tensor does not fit into 64 bits");
    return TSR_OK;
}

static tsr_status add_plan(const struct tsr_bucket_plan *plan, json_t *o)
{
    json_t *buckets = json_array(), *limits = json_array();
    for (size_t b = 0; b < plan->n_buckets; b++) {
        json_t *items = json_array();
        for (size_t i = plan->first[b]; i < plan->first[b + 1]; i++)
            json_array_append_new(items, json_integer((json_int_t)plan->items[i]));
        json_array_append_new(buckets, items);
        json_array_append_new(limits, json_integer((json_int_t)plan->limits[b]));
    }
    bool bad = json_object_set_new(o, "buckets", buckets) != 0;
    bad |= json_object_set_new(o, "bucket_limits", limits) != 0;
    return bad ? tsr_fail(TSR_ENOMEM, "out of memory") : TSR_OK;
}

static tsr_status assign(const struct tsr_yaml_node *node, struct tsr_bucket_item *items, size_t n,
                         json_t *o)
{
    const struct tsr_yaml_node *tensors = tsr_node_get(node, "tensors");
    uint64_t limits[64];
    int n_limits;
    struct tsr_bucket_plan plan;
    TSR_TRY(tsr_sizes_read(node, "limits", 0, 64, limits, &n_limits));
    for (size_t i = 0; i < n; i++)
        TSR_TRY(read_item(tensors->items[i], &items[i]));
    TSR_TRY(tsr_bucket_assign(items, n, limits, (size_t)n_limits, &plan));
    tsr_status status = tsr_bucket_sort(&plan);
    if (status == TSR_OK)
        status = add_plan(&plan, o);
    tsr_bucket_plan_fini(&plan);
    return status;
}

tsr_status tsr_trace_bucket(const struct tsr_scenario *s, json_t *result)
{
    const struct tsr_yaml_node *cases = tsr_node_get(s->doc.root, "cases");
    json_t *list = json_array();
    json_object_set_new(result, "cases", list);
    for (size_t i = 0; cases && i < cases->n; i++) {
        const struct tsr_yaml_node *tensors = tsr_node_get(cases->items[i], "tensors");
        size_t n = tensors && tensors->kind == TSR_NODE_SEQ ? tensors->n : 0;
        struct tsr_bucket_item *items = calloc(n + 1, sizeof *items);
        json_t *o = tsr_case_json(cases->items[i]);
        json_array_append_new(list, o);
        tsr_status status =
            items ? assign(cases->items[i], items, n, o) : tsr_fail(TSR_ENOMEM, "out of memory");
        free(items);
        TSR_TRY(status);
    }
    return TSR_OK;
}
