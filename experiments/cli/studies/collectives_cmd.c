/* collectives_cmd.c: `tessera collectives`: what nccl-tests would print on a cluster. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/page.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/study.h"
#include "sim/base/text.h"

static const char *const formats[] = {"md", "csv", NULL};

enum { N_KINDS = TSR_COLLECTIVES_KINDS };

/* "1024,4096"; NULL: none are given. */
static tsr_status read_sizes(const char *text, uint64_t bytes[TSR_COLLECTIVES_SIZES], size_t *n)
{
    *n = 0;
    while (text && *text) {
        char *end = NULL;
        errno = 0;
        unsigned long long size = strtoull(text, &end, 10);
        bool ok = end != text && errno == 0 && *text >= '1' && *text <= '9' && size <= 1ull << 50;
        if (!ok || (*end && (*end != ',' || !end[1])) || *n == TSR_COLLECTIVES_SIZES)
            return tsr_fail(TSR_ECONFIG,
                            "--sizes: found \"%s\", allowed up to %d numbers of bytes between "
                            "commas, up to 2^50 each",
                            text, (int)TSR_COLLECTIVES_SIZES);
        bytes[(*n)++] = size;
        text = *end ? end + 1 : end;
    }
    return TSR_OK;
}

/* --only all_reduce,all_gather; NULL: all, which is 0. */
static tsr_status read_kinds(const char *text, unsigned *out)
{
    *out = 0;
    while (text && *text) {
        size_t n = strcspn(text, ",");
        int k = 0;
        while (k < N_KINDS && (strlen(tsr_collectives_names[k]) != n ||
                               strncmp(tsr_collectives_names[k], text, n) != 0))
            k++;
        if (k == N_KINDS)
            return tsr_fail(TSR_ECONFIG,
                            "--only: found \"%.*s\", allowed all_reduce, all_gather, "
                            "reduce_scatter, all_to_all, broadcast",
                            (int)n, text);
        *out |= 1u << k;
        text += n + (text[n] == ',');
    }
    return TSR_OK;
}

static void print_csv(const struct tsr_collectives *table)
{
    printf("collective,gpu,n_gpus,n_nodes,size_bytes,time_us,busbw_GBps\n");
    for (int k = 0; k < N_KINDS; k++)
        for (size_t i = 0; i < table->n && table->kinds >> k & 1; i++) {
            printf("%s,", tsr_collectives_names[k]);
            tsr__put_csv(stdout, table->gpu);
            printf(",%u,%u,%llu,%.6g,%.6g\n", table->ranks, table->nodes,
                   (unsigned long long)table->bytes[i], table->seconds[k][i] * 1e6,
                   table->busbw[k][i] * 1e-9);
        }
}

static void print_md(FILE *out, const struct tsr_collectives *table)
{
    fprintf(out, "%u GPUs (%s) on %u nodes of %s: microseconds (bus GB/s)\n\n| bytes |",
            table->ranks, tsr_show(table->gpu).text, table->nodes,
            tsr_show_line(table->cluster).text);
    for (int k = 0; k < N_KINDS; k++)
        if (table->kinds >> k & 1)
            fprintf(out, " %s |", tsr_collectives_names[k]);
    fprintf(out, "\n|---:|");
    for (int k = 0; k < N_KINDS; k++)
        fprintf(out, "%s", table->kinds >> k & 1 ? "---:|" : "");
    fprintf(out, "\n");
    for (size_t i = 0; i < table->n; i++) {
        fprintf(out, "| %llu |", (unsigned long long)table->bytes[i]);
        for (int k = 0; k < N_KINDS; k++)
            if (table->kinds >> k & 1)
                fprintf(out, " %.*f (%.1f) |", table->seconds[k][i] < 0.01,
                        table->seconds[k][i] * 1e6, table->busbw[k][i] * 1e-9);
        fprintf(out, "\n");
    }
    if (table->ring_busbw > 0.0)
        fprintf(out,
                "\nNCCL's choice for large all-reduces is no ring here, so their bus bandwidth is "
                "not what adapters or ports carry; as a ring (NCCL_ALGO=Ring, --set "
                "sim.algorithm=ring) the largest reaches %.1f GB/s.\n",
                table->ring_busbw * 1e-9);
}

tsr_status tsr_cmd_collectives(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    uint64_t bytes[TSR_COLLECTIVES_SIZES];
    struct tsr_collectives table;
    (void)success;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    struct tsr_collectives_options options = {.cluster = args->file,
                                              .sets = args->sets,
                                              .n_sets = args->n_sets,
                                              .ranks = args->ranks,
                                              .bytes = bytes};
    TSR_TRY(read_sizes(args->sizes, bytes, &options.n_bytes));
    TSR_TRY(read_kinds(args->only, &options.kinds));
    TSR_TRY(tsr_collectives_predict(&options, &table));
    struct tsr_page page;
    TSR_TRY(tsr_page_begin(args, &page));
    if (!strcmp(args->format, "csv"))
        print_csv(&table);
    else
        print_md(page.out, &table);
    return tsr_page_end(&page, TSR_OK);
}
