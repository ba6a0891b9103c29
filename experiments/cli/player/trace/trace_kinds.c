/* trace_kinds.c: reading and writing that the layout kinds share. */
#include "experiments/cli/player/trace/trace_kinds.h"

json_t *tsr_case_json(const struct tsr_yaml_node *node)
{
    bool flag;
    int64_t integer;
    double real;
    if (tsr_node_is_null(node))
        return json_null();
    if (node->kind == TSR_NODE_SEQ || node->kind == TSR_NODE_MAP) {
        bool map = node->kind == TSR_NODE_MAP;
        json_t *out = map ? json_object() : json_array();
        for (size_t i = 0; i < node->n; i++)
            if (map)
                json_object_set_new(out, node->items[i]->key, tsr_case_json(node->items[i]));
            else
                json_array_append_new(out, tsr_case_json(node->items[i]));
        return out;
    }
    if (tsr_node_bool(node, &flag))
        return json_boolean(flag);
    if (tsr_node_i64(node, &integer))
        return json_integer(integer);
    if (tsr_node_double(node, &real))
        return json_real(real);
    return json_string(node->text);
}

json_t *tsr_sizes_json(int n, const uint64_t *sizes)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer((json_int_t)sizes[i]));
    return list;
}

static json_t *placement_json(const struct tsr_placement *p)
{
    switch (p->kind) {
    case TSR_PLACE_REPLICATE:
        return json_pack("[s]", "replicate");
    case TSR_PLACE_SHARD:
        return json_pack("[s, i]", "shard", p->dim);
    case TSR_PLACE_STRIDED_SHARD:
        break;
    }
    return json_pack("[s, i, I]", "strided_shard", p->dim, (json_int_t)p->split);
}

json_t *tsr_placements_json(int n, const struct tsr_placement *placements)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, placement_json(&placements[i]));
    return list;
}

json_t *tsr_runs_json(const struct tsr_dtensor *t, uint64_t rank)
{
    struct tsr_runs runs;
    if (tsr_dtensor_runs(t, rank, &runs) != TSR_OK)
        return NULL;
    json_t *list = json_array();
    for (size_t i = 0; i < runs.n; i++)
        json_array_append_new(list, json_pack("[I, I]", (json_int_t)runs.items[i].start,
                                              (json_int_t)runs.items[i].length));
    tsr_runs_fini(&runs);
    return list;
}

tsr_status tsr_sizes_read(const struct tsr_yaml_node *map, const char *key, uint64_t least,
                          int room, uint64_t *sizes, int *n)
{
    const struct tsr_yaml_node *list = tsr_node_get(map, key);
    if (!list || list->kind != TSR_NODE_SEQ || list->n < 1 || list->n > (size_t)room)
        return tsr_node_error(list ? list : map, "%s: found %s; allowed: a list of 1 to %d sizes",
                              key, tsr_node_show(list), room);
    *n = (int)list->n;
    for (size_t i = 0; i < list->n; i++)
        if (!tsr_node_u64(list->items[i], &sizes[i]) || sizes[i] < least ||
            sizes[i] > UINT64_C(1) << 60)
            return tsr_node_error(list->items[i], "%s: found %s; allowed: %llu to 2^60", key,
                                  tsr_node_show(list->items[i]), (unsigned long long)least);
    return TSR_OK;
}
