/* cluster_collectives.c: collectives between the ranks of one node, as `tessera calibrate` timed
 * them. In a node file:
 *
 *   "collectives": [{"kind": "all_gather", "ranks": 2, "source": "...",
 *                    "runs": [[BYTES, MICROSECONDS], ...]}, ...]
 *
 * BYTES as everywhere: an all-gather's output, a reduce-scatter's input, the buffer of the others.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/program/program.h"
#include "sim/cluster/cluster_read.h"

static const double MAX_BYTES = 1e15, MAX_US = 1e9;

static tsr_status read_kind(const struct tsr__doc *doc, uint8_t *out)
{
    static const uint8_t kinds[] = {TSR_ALL_GATHER, TSR_REDUCE_SCATTER, TSR_ALL_REDUCE,
                                    TSR_BROADCAST, TSR_ALL_TO_ALL};
    char name[32];
    TSR_TRY(tsr__doc_string(doc, "kind", TSR__REQUIRED, name, sizeof name));
    for (size_t i = 0; i < sizeof kinds; i++)
        if (!strcmp(name, tsr_instr_kind_name(kinds[i]))) {
            *out = kinds[i];
            return TSR_OK;
        }
    return tsr__doc_fail(doc, "kind", tsr__doc_find(doc, "kind"),
                         "all_gather, reduce_scatter, all_reduce, broadcast or all_to_all");
}

static tsr_status read_run(const struct tsr__doc *doc, const json_t *run,
                           struct tsr_measured_collective *out)
{
    double bytes = json_number_value(json_array_get(run, 0));
    double us = json_number_value(json_array_get(run, 1));
    bool grows = out->n == 0 || log(bytes) > (double)out->bytes[out->n - 1];
    if (json_array_size(run) != 2 || !(bytes >= 1 && bytes <= MAX_BYTES) ||
        !(us > 0 && us <= MAX_US) || !grows)
        return tsr__doc_fail(doc, "runs", run, "lists [bytes, microseconds], bytes growing");
    out->bytes[out->n] = (float)log(bytes);
    out->seconds[out->n++] = (float)log(us * 1e-6);
    return TSR_OK;
}

static tsr_status read_one(const struct tsr__doc *doc, struct tsr_measured_collective *out)
{
    const json_t *runs = tsr__doc_find(doc, "runs");
    size_t n = json_array_size(runs);
    uint64_t ranks;
    *out = (struct tsr_measured_collective){0};
    TSR_TRY(read_kind(doc, &out->kind));
    TSR_TRY(tsr__doc_count(doc, "ranks", TSR__REQUIRED, TSR__MAX_GPUS_PER_NODE, &ranks));
    out->ranks = (uint32_t)ranks;
    if (!n || n > TSR_COLLECTIVE_SIZES)
        return tsr__doc_fail(doc, "runs", runs, "a list of 1 to 12 lists [bytes, microseconds]");
    for (size_t i = 0; i < n; i++)
        TSR_TRY(read_run(doc, json_array_get(runs, i), out));
    return TSR_OK;
}

tsr_status tsr__read_collectives(const struct tsr__doc *doc, struct tsr_cluster *out)
{
    const json_t *list = tsr__doc_find(doc, "collectives");
    size_t n = json_array_size(list);
    char text[640];
    if (list && (!json_is_array(list) || n > TSR_MAX_COLLECTIVES))
        return tsr__doc_fail(doc, "collectives", list, "a list of at most 40 objects");
    for (size_t i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%s: collectives[%zu]", doc->path, i);
        struct tsr__doc item = {.path = text, .root = json_array_get(list, i)};
        if (!json_is_object(item.root))
            return tsr__doc_fail(doc, "collectives", item.root, "objects");
        TSR_TRY(read_one(&item, &out->collectives[out->n_collectives++]));
    }
    return TSR_OK;
}
