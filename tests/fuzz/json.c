/* json.c: targets that read JSON through jansson: hardware, scenarios, rows, runs; and XML. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/study/report/report.h"
#include "fuzz/fuzz.h"
#include "sim/base/json_load.h"
#include "sim/cluster/cluster.h"
#include "sim/input/xml_doc.h"
#include "tests/player/memory/memory_scenario.h"

/* ---- hardware -------------------------------------------------------------------------------- */

static const char clusters[] = "experiments/clusters";

/* A device of the tree with other tables of kernels: none, or the target's. */
static bool put_gpu(const char *from, const char *to, const char *kernels)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/%s", TSR_SOURCE_DIR, clusters, from);
    json_t *gpu = json_load_file(path, 0, NULL);
    json_object_del(gpu, "kernels");
    if (kernels)
        json_object_set_new(gpu, "kernels", json_pack("[s]", kernels));
    char *text = gpu ? json_dumps(gpu, 0) : NULL;
    if (text)
        (void)tsr_fuzz_text_file(to, text);
    json_decref(gpu);
    free(text);
    return text != NULL;
}

static bool begin_cluster(void)
{
    return tsr_fuzz_copy(clusters, "-dgx-h100.json") && tsr_fuzz_copy(clusters, "-l40s-8.json") &&
           tsr_fuzz_copy(clusters, "leaf-spine.xml") &&
           put_gpu("gpu-h100-sxm5-80g.json", "gpu-h100-sxm5-80g.json", NULL) &&
           put_gpu("gpu-l40s.json", "gpu-l40s.json", NULL);
}

static void cluster(const uint8_t *data, size_t n)
{
    static struct tsr_cluster out;
    struct tsr_kernel_store store = {0};
    if (tsr_cluster_load(tsr_fuzz_file("cluster-fuzz.json", data, n), NULL, &store, &out) == TSR_OK)
        (void)out.node_name;
    tsr_kernel_store_fini(&store);
}

static bool begin_device(void)
{
    return tsr_fuzz_text_file("kernels-sm90.json", "{}") != NULL;
}

static void device(const uint8_t *data, size_t n)
{
    static struct tsr_gpu out;
    struct tsr_kernel_store store = {0};
    if (tsr_gpu_load(tsr_fuzz_file("gpu-fuzz.json", data, n), NULL, &store, &out) == TSR_OK)
        (void)out.name;
    tsr_kernel_store_fini(&store);
}

static bool begin_kernels(void)
{
    return put_gpu("gpu-h100-sxm5-80g.json", "gpu-fuzz.json", "fuzz");
}

static void kernels(const uint8_t *data, size_t n)
{
    static struct tsr_gpu out;
    struct tsr_kernel_store store = {0};
    char path[4096];
    snprintf(path, sizeof path, "%s", tsr_fuzz_file("kernels-fuzz.json", data, n));
    memcpy(strrchr(path, '/') + 1, "gpu-fuzz.json", sizeof "gpu-fuzz.json");
    if (tsr_gpu_load(path, NULL, &store, &out) == TSR_OK)
        (void)out.name;
    tsr_kernel_store_fini(&store);
}

static void xml(const uint8_t *data, size_t n)
{
    struct tsr__xml doc;
    double value;
    if (tsr__xml_open(tsr_fuzz_file("fuzz.xml", data, n), &doc) != TSR_OK)
        return;
    for (uint32_t i = 0; i < doc.n; i++)
        if (tsr__xml_number(&doc, i, "speed", 0, 1e9, &value) != TSR_OK)
            (void)tsr__xml_attribute(&doc.items[i], "id");
    tsr__xml_close(&doc);
}

/* A topology of NCCL. Platforms of SimGrid are another target, since SimGrid reads them itself. */
static void nccl_topology(const uint8_t *data, size_t n)
{
    static struct tsr_cluster out;
    char gpu[64], *text = tsr_fuzz_string(data, n);
    if (!strstr(text, "<platform") &&
        tsr_cluster_load_xml(tsr_fuzz_file("nccl.xml", data, n), 2, 0, &out, gpu) == TSR_OK)
        (void)out.node_name;
    free(text);
}

static void platform(const uint8_t *data, size_t n)
{
    static struct tsr_cluster out;
    char gpu[64];
    if (tsr_cluster_load_xml(tsr_fuzz_file("platform.xml", data, n), 2, 4, &out, gpu) == TSR_OK)
        (void)out.node_name;
}

/* ---- what players and studies read ----------------------------------------------------------- */

static void memory(const uint8_t *data, size_t n)
{
    struct tsr_memory_scenario scenario;
    if (tsr_memory_scenario_load(tsr_fuzz_file("memory.json", data, n), NULL, &scenario) == TSR_OK)
        tsr_memory_scenario_fini(&scenario);
}

/* A row of summary.json, as compare --measured reads it. */
static void row(const uint8_t *data, size_t n)
{
    static struct tsr_row out;
    json_t *root = tsr_json_loadb((const char *)data, n, TSR_TEXT_VALUES, NULL);
    const json_t *first = json_array_get(json_object_get(root, "rows"), 0);
    if (first)
        tsr__row_of_json(first, &out);
    json_decref(root);
}

/* run.json of a folder that is exported; its checkpoints are another target. */
static void run_json(const uint8_t *data, size_t n)
{
    char path[4096];
    int success = 0;
    snprintf(path, sizeof path, "%s", tsr_fuzz_file("run.json", data, n));
    *strrchr(path, '/') = 0;
    static struct tsr_args args;
    static const struct tsr_usage usage = {.name = "export"};
    args = (struct tsr_args){.file = path, .out = path};
    if (tsr_cmd_export(&usage, &args, &success) == TSR_OK)
        abort(); /* there is no checkpoint */
}

const struct tsr_fuzz_target tsr_fuzz_json[] = {
    {.name = "cluster", .run = cluster, .dictionary = "json", .begin = begin_cluster},
    {.name = "device", .run = device, .dictionary = "json", .begin = begin_device},
    {.name = "kernels", .run = kernels, .dictionary = "json", .begin = begin_kernels},
    {.name = "xml", .run = xml, .dictionary = "xml"},
    {.name = "nccl_topology", .run = nccl_topology, .dictionary = "xml"},
    {.name = "platform", .run = platform, .dictionary = "xml"},
    {.name = "memory", .run = memory, .dictionary = "json"},
    {.name = "row", .run = row, .dictionary = "json"},
    {.name = "run_json", .run = run_json, .dictionary = "json"},
    {.name = NULL},
};
