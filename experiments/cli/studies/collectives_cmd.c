/* collectives_cmd.c: `tessera collectives`: what nccl-tests would print on a cluster. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/study/base/paths.h"
#include "experiments/study/config/settings.h"
#include "sim/predict.h"

static const char *const formats[] = {"md", "csv", NULL};

enum { MAX_SIZES = 64, N_KINDS = 5, FIRST_SIZE = 1024, LAST_DOUBLING = 24 };
static const struct {
    uint8_t kind;
    const char *name;
} kinds[N_KINDS] = {{TSR_ALL_REDUCE, "all_reduce"},
                    {TSR_ALL_GATHER, "all_gather"},
                    {TSR_REDUCE_SCATTER, "reduce_scatter"},
                    {TSR_ALL_TO_ALL, "all_to_all"},
                    {TSR_BROADCAST, "broadcast"}};

struct table {
    struct tsr_cluster cluster;
    struct tsr_settings settings;
    uint32_t ranks, nodes, n;
    bool wanted[N_KINDS];
    uint64_t bytes[MAX_SIZES];
    double seconds[N_KINDS][MAX_SIZES];
};

/* The keys of --set over the defaults. */
static tsr_status read_sets(const struct tsr_args *args, struct tsr_doc *doc,
                            struct tsr_settings *out)
{
    struct tsr_yaml_node root = {.kind = TSR_NODE_MAP, .text = "", .file = "--set"};
    doc->root = &root;
    tsr_settings_default(out);
    for (size_t i = 0; i < args->n_sets; i++)
        TSR_TRY(tsr_doc_set(doc, args->sets[i]));
    return tsr_settings_apply(&doc->arena, doc->root, "", NULL, out);
}

static tsr_status read_sizes(const char *text, struct table *table)
{
    table->n = 0;
    for (uint64_t i = 0; !text && i <= LAST_DOUBLING; i++)
        table->bytes[table->n++] = (uint64_t)FIRST_SIZE << i;
    while (text && *text) {
        char *end = NULL;
        errno = 0;
        unsigned long long bytes = strtoull(text, &end, 10);
        bool ok = end != text && errno == 0 && *text >= '1' && *text <= '9' && bytes <= 1ull << 50;
        if (!ok || (*end && (*end != ',' || !end[1])) || table->n == MAX_SIZES)
            return tsr_fail(TSR_ECONFIG,
                            "--sizes: found \"%s\", allowed up to %d numbers of bytes between "
                            "commas, up to 2^50 each",
                            text, (int)MAX_SIZES);
        table->bytes[table->n++] = bytes;
        text = *end ? end + 1 : end;
    }
    return TSR_OK;
}

/* --only all_reduce,all_gather; NULL: all. */
static tsr_status read_kinds(const char *text, struct table *table)
{
    for (int k = 0; k < N_KINDS; k++)
        table->wanted[k] = !text;
    while (text && *text) {
        size_t n = strcspn(text, ",");
        int k = 0;
        while (k < N_KINDS && (strlen(kinds[k].name) != n || strncmp(kinds[k].name, text, n) != 0))
            k++;
        if (k == N_KINDS)
            return tsr_fail(TSR_ECONFIG,
                            "--only: found \"%.*s\", allowed all_reduce, all_gather, "
                            "reduce_scatter, all_to_all, broadcast",
                            (int)n, text);
        table->wanted[k] = true;
        text += n + (text[n] == ',');
    }
    return TSR_OK;
}

static tsr_status prepare(const struct tsr_args *args, struct table *table)
{
    struct tsr_yaml_node at = {.file = "collectives"};
    char path[TSR_FILE_BYTES];
    TSR_TRY(read_sizes(args->sizes, table));
    TSR_TRY(read_kinds(args->only, table));
    TSR_TRY(tsr_find_cluster(args->file, &at, ".", path));
    TSR_TRY(tsr_cluster_load(path, &table->cluster));
    tsr_calibration_override(&table->cluster.gpu.calibration, table->settings.calibration, "--set");
    uint64_t all = (uint64_t)table->cluster.nodes * table->cluster.gpus_per_node;
    uint64_t ranks = args->ranks ? args->ranks : all;
    if (ranks < 2 || ranks > all)
        return tsr_fail(TSR_ECONFIG, "--ranks: found %llu, allowed 2 to %llu, the cluster's GPUs",
                        (unsigned long long)ranks, (unsigned long long)all);
    table->ranks = (uint32_t)ranks;
    table->nodes = (uint32_t)tsr_ceil_div(ranks, table->cluster.gpus_per_node);
    return TSR_OK;
}

static tsr_status predict(struct table *table)
{
    for (int i = 0; i < N_KINDS; i++) {
        struct tsr_collective_query what = {kinds[i].kind, table->ranks, table->nodes};
        if (table->wanted[i])
            TSR_TRY(tsr_predict_collective(&table->cluster, &table->settings.sim, &what,
                                           table->bytes, table->n, table->seconds[i]));
    }
    return TSR_OK;
}

static double bus_GBps(const struct table *table, int kind, uint32_t i)
{
    double seconds = table->seconds[kind][i];
    double factor = tsr_bus_factor(kinds[kind].kind, table->ranks);
    return seconds > 0.0 ? (double)table->bytes[i] * factor / seconds * 1e-9 : 0.0;
}

static void print_csv(const struct table *table)
{
    printf("collective,gpu,n_gpus,n_nodes,size_bytes,time_us,busbw_GBps\n");
    for (int k = 0; k < N_KINDS; k++)
        for (uint32_t i = 0; i < table->n && table->wanted[k]; i++)
            printf("%s,%s,%u,%u,%llu,%.6g,%.6g\n", kinds[k].name, table->cluster.gpu.name,
                   table->ranks, table->nodes, (unsigned long long)table->bytes[i],
                   table->seconds[k][i] * 1e6, bus_GBps(table, k, i));
}

static void print_md(const struct table *table)
{
    printf("%u GPUs (%s) on %u nodes of %s: microseconds (bus GB/s)\n\n| bytes |", table->ranks,
           table->cluster.gpu.name, table->nodes, table->cluster.name);
    for (int k = 0; k < N_KINDS; k++)
        if (table->wanted[k])
            printf(" %s |", kinds[k].name);
    printf("\n|---:|");
    for (int k = 0; k < N_KINDS; k++)
        printf("%s", table->wanted[k] ? "---:|" : "");
    printf("\n");
    for (uint32_t i = 0; i < table->n; i++) {
        printf("| %llu |", (unsigned long long)table->bytes[i]);
        for (int k = 0; k < N_KINDS; k++)
            if (table->wanted[k])
                printf(" %.1f (%.1f) |", table->seconds[k][i] * 1e6, bus_GBps(table, k, i));
        printf("\n");
    }
}

static tsr_status run_with(const struct tsr_args *args, struct table *table)
{
    TSR_TRY(prepare(args, table));
    TSR_TRY(predict(table));
    if (!strcmp(args->format, "csv"))
        print_csv(table);
    else
        print_md(table);
    return TSR_OK;
}

tsr_status tsr_cmd_collectives(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    struct tsr_doc doc = {0};
    (void)success;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    struct table *table = calloc(1, sizeof *table);
    if (!table)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    tsr_arena_init(&doc.arena);
    tsr_status status = read_sets(args, &doc, &table->settings);
    if (status == TSR_OK)
        status = run_with(args, table);
    doc.root = NULL;
    tsr_doc_fini(&doc);
    free(table);
    return status;
}
