/* collectives.c: predicts collectives, one by one on an idle cluster. */
#include "experiments/study/goodput/collectives.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/paths.h"
#include "experiments/study/config/settings.h"
#include "sim/predict.h"

enum { FIRST_SIZE = 1024, LAST_DOUBLING = 24 };
static const double DIFFERS = 0.01; /* more than what rounding in a simulation could make */

const char *const tsr_collectives_names[TSR_COLLECTIVES_KINDS + 1] = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", NULL};
static const uint8_t kinds[TSR_COLLECTIVES_KINDS] = {
    TSR_ALL_REDUCE, TSR_ALL_GATHER, TSR_REDUCE_SCATTER, TSR_ALL_TO_ALL, TSR_BROADCAST};

/* The keys of --set over the defaults. */
static tsr_status read_sets(const struct tsr_collectives_options *options, struct tsr_doc *doc,
                            struct tsr_settings *out)
{
    struct tsr_yaml_node root = {.kind = TSR_NODE_MAP, .text = "", .file = "--set"};
    doc->root = &root;
    tsr_settings_default(out);
    for (size_t i = 0; i < options->n_sets; i++)
        TSR_TRY(tsr_doc_set(doc, options->sets[i]));
    return tsr_settings_apply(&doc->arena, doc->root, "", NULL, out);
}

static void choose_sizes(const struct tsr_collectives_options *options, struct tsr_collectives *out)
{
    TSR_CHECK(options->n_bytes <= TSR_COLLECTIVES_SIZES);
    for (size_t i = 0; i < options->n_bytes; i++)
        out->bytes[out->n++] = options->bytes[i];
    for (uint64_t i = 0; !options->n_bytes && i <= LAST_DOUBLING; i++)
        out->bytes[out->n++] = (uint64_t)FIRST_SIZE << i;
}

static tsr_status choose_ranks(const struct tsr_cluster *cluster, uint64_t asked,
                               struct tsr_collectives *out)
{
    uint64_t all = (uint64_t)cluster->nodes * cluster->gpus_per_node;
    uint64_t ranks = asked ? asked : all;
    if (ranks < 2 || ranks > all)
        return tsr_fail(TSR_ECONFIG, "--ranks: found %llu, allowed 2 to %llu, the cluster's GPUs",
                        (unsigned long long)ranks, (unsigned long long)all);
    out->ranks = (uint32_t)ranks;
    out->nodes = (uint32_t)tsr_ceil_div(ranks, cluster->gpus_per_node);
    return TSR_OK;
}

static tsr_status predict(const struct tsr_cluster *cluster, const struct tsr_sim_options *sim,
                          struct tsr_collectives *out)
{
    for (int k = 0; k < TSR_COLLECTIVES_KINDS; k++) {
        struct tsr_collective_query what = {kinds[k], out->ranks, out->nodes};
        double factor = tsr_bus_factor(kinds[k], out->ranks);
        if (!(out->kinds >> k & 1))
            continue;
        TSR_TRY(tsr_predict_collective(cluster, sim, &what, out->bytes, out->n, out->seconds[k]));
        for (size_t i = 0; i < out->n; i++) {
            double seconds = out->seconds[k][i];
            out->busbw[k][i] = seconds > 0.0 ? (double)out->bytes[i] * factor / seconds : 0.0;
        }
    }
    return TSR_OK;
}

/* What rings would reach where NCCL takes something else. Of two nodes that is a tree, which sends
 * less through the adapters than the bus bandwidth counts: it may exceed what they carry. */
static tsr_status predict_rings(const struct tsr_cluster *cluster,
                                const struct tsr_sim_options *sim, struct tsr_collectives *out)
{
    enum { ALL_REDUCE }; /* its index */
    const struct tsr_collective_query what = {TSR_ALL_REDUCE, out->ranks, out->nodes};
    struct tsr_sim_options rings = *sim;
    size_t last = out->n - 1;
    double seconds;
    if (!(out->kinds >> ALL_REDUCE & 1) || sim->algorithm != TSR_ALGO_AUTO)
        return TSR_OK;
    for (size_t i = 0; i < out->n; i++)
        last = out->bytes[i] > out->bytes[last] ? i : last;
    rings.algorithm = TSR_ALGO_RING;
    TSR_TRY(tsr_predict_collective(cluster, &rings, &what, &out->bytes[last], 1, &seconds));
    if (seconds > out->seconds[ALL_REDUCE][last] * (1 + DIFFERS))
        out->ring_busbw = out->busbw[ALL_REDUCE][last] * out->seconds[ALL_REDUCE][last] / seconds;
    return TSR_OK;
}

static tsr_status with_settings(const struct tsr_collectives_options *options,
                                const struct tsr_settings *settings, struct tsr_collectives *out)
{
    struct tsr_yaml_node at = {.file = "collectives"};
    char path[TSR_FILE_BYTES];
    struct tsr_kernel_store kernels = {0};
    struct tsr_cluster *cluster = calloc(1, sizeof *cluster);
    if (!cluster)
        return tsr_no_memory(NULL);
    tsr_status status = TSR_OK;
    TSR_GOTO(done, tsr_find_cluster(options->cluster, &at, ".", path));
    TSR_GOTO(done,
             tsr_cluster_load(path, tsr_cluster_folders(&(struct tsr_data_folders){.beside = ""}),
                              &kernels, cluster));
    tsr_calibration_override(&cluster->gpu.calibration, settings->calibration, "--set");
    snprintf(out->cluster, sizeof out->cluster, "%s", cluster->name);
    snprintf(out->gpu, sizeof out->gpu, "%s", cluster->gpu.name);
    choose_sizes(options, out);
    TSR_GOTO(done, choose_ranks(cluster, options->ranks, out));
    TSR_GOTO(done, predict(cluster, &settings->sim, out));
    TSR_GOTO(done, predict_rings(cluster, &settings->sim, out));
done:
    tsr_kernel_store_fini(&kernels);
    free(cluster);
    return status;
}

tsr_status tsr_collectives_predict(const struct tsr_collectives_options *options,
                                   struct tsr_collectives *out)
{
    struct tsr_doc doc = {0};
    memset(out, 0, sizeof *out);
    out->kinds = options->kinds ? options->kinds : (1u << TSR_COLLECTIVES_KINDS) - 1;
    struct tsr_settings *settings = calloc(1, sizeof *settings);
    if (!settings)
        return tsr_no_memory(NULL);
    tsr_arena_init(&doc.arena);
    tsr_status status = read_sets(options, &doc, settings);
    if (status == TSR_OK)
        status = with_settings(options, settings, out);
    doc.root = NULL;
    tsr_doc_fini(&doc);
    free(settings);
    return status;
}
