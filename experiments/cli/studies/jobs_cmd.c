/* jobs_cmd.c: `tessera jobs`: what jobs that share a cluster take from each other. */
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/page.h"
#include "experiments/study/base/files.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/report/validated.h"
#include "experiments/study/simulate/open.h"
#include "experiments/study/study.h"
#include "sim/base/text.h"

static const char *const formats[] = {"md", "csv", "json", NULL};

/* "0-3,8": the nodes of a job, for people. */
static void nodes_text(const struct tsr_tenant *tenant, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < tenant->n_nodes && used + 1 < size;) {
        uint32_t k = i;
        while (k + 1 < tenant->n_nodes && tenant->nodes[k + 1] == tenant->nodes[k] + 1)
            k++;
        int n = k > i ? snprintf(out + used, size - used, "%s%u-%u", i ? "," : "", tenant->nodes[i],
                                 tenant->nodes[k])
                      : snprintf(out + used, size - used, "%s%u", i ? "," : "", tenant->nodes[i]);
        used += (size_t)(n > 0 ? n : 0);
        i = k + 1;
    }
}

static void put_markdown(FILE *out, const struct tsr_study_info *info, const struct tsr_tenants *t)
{
    char nodes[64];
    fprintf(out, "## %s\n\n%zu jobs on %s\n\n", tsr_show_line(info->title).text, t->n,
            tsr_show_line(info->cluster_name).text);
    fprintf(out, "| %-24s | %-16s | %5s | %10s | %10s | %8s |\n", "job", "nodes", "GPUs",
            "alone ms", "shared ms", "slowdown");
    fprintf(out, "|:%.25s|:%.17s|%.6s:|%.11s:|%.11s:|%.9s:|\n", "--------------------------",
            "--------------------------", "--------------------------",
            "--------------------------", "--------------------------",
            "--------------------------");
    for (size_t i = 0; i < t->n; i++) {
        const struct tsr_tenant *tenant = &t->items[i];
        nodes_text(tenant, nodes, sizeof nodes);
        fprintf(out, "| %-24s | %-16s | %5u | %10.2f | %10.2f | %8.3f |\n",
                tsr_show(tenant->name).text, nodes, tenant->world, tenant->alone_s * 1e3,
                tenant->shared_s * 1e3, tenant->slowdown);
    }
    fprintf(out,
            "\nMean step after the start-up: each job by itself in its place, and all at once. All "
            "times are simulated, for the device file %s.\n",
            tsr_show_line(info->device_file).text);
    tsr_put_validated(out, NULL, info);
}

static const char *error_word(const struct tsr_tenant *tenant)
{
    struct tsr_time_error error;
    tsr_time_error_of(tenant->job, &error);
    return tsr_time_error_word(&error);
}

static void put_csv(const struct tsr_tenants *t)
{
    char nodes[64];
    printf("job,nodes,world_size,alone_step_s,shared_step_s,slowdown,time_error\n");
    for (size_t i = 0; i < t->n; i++) {
        const struct tsr_tenant *tenant = &t->items[i];
        nodes_text(tenant, nodes, sizeof nodes);
        tsr__put_csv(stdout, tenant->name);
        printf(",\"%s\",%u,%.9g,%.9g,%.9g,", nodes, tenant->world, tenant->alone_s,
               tenant->shared_s, tenant->slowdown);
        tsr__put_csv(stdout, error_word(tenant));
        fputc('\n', stdout);
    }
}

static json_t *to_json(const struct tsr_tenants *t, const struct tsr_study_info *info)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < t->n; i++) {
        const struct tsr_tenant *tenant = &t->items[i];
        json_t *nodes = json_array();
        for (uint32_t k = 0; k < tenant->n_nodes; k++)
            json_array_append_new(nodes, json_integer((json_int_t)tenant->nodes[k]));
        json_array_append_new(rows, json_pack("{s:s, s:o, s:i, s:f, s:f, s:f, s:s}", "job",
                                              tenant->name, "nodes", nodes, "world_size",
                                              (int)tenant->world, "alone_step_s", tenant->alone_s,
                                              "shared_step_s", tenant->shared_s, "slowdown",
                                              tenant->slowdown, "time_error", error_word(tenant)));
    }
    return json_pack("{s:o, s:o}", "jobs", rows, "validated_error", tsr_validated_json(info));
}

static tsr_status report(const struct tsr_args *args, const struct tsr_study *study,
                         const struct tsr_tenants *tenants)
{
    struct tsr_page page;
    TSR_TRY(tsr_page_begin(args, &page));
    tsr_status status = TSR_OK;
    if (!strcmp(args->format, "md"))
        put_markdown(page.out, tsr_study_info(study), tenants);
    else if (!strcmp(args->format, "csv"))
        put_csv(tenants);
    else
        status = tsr_put_json(stdout, to_json(tenants, tsr_study_info(study)));
    return tsr_page_end(&page, status);
}

static tsr_status jobs(const struct tsr_args *args, struct tsr_study *study)
{
    struct tsr_tenants tenants;
    TSR_TRY(tsr_study_jobs(study, &tenants));
    tsr_status status = report(args, study, &tenants);
    tsr_tenants_fini(&tenants);
    if (status == TSR_OK)
        tsr_study_notes(study);
    return status;
}

tsr_status tsr_cmd_jobs(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    struct tsr_study *study = NULL;
    (void)success;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    TSR_TRY(tsr_args_open(args, &study));
    tsr_status status = jobs(args, study);
    tsr_study_close(study);
    return status;
}
