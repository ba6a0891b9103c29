/* report_detail.c: the files of one strategy. */
#include "experiments/study/detail/report_detail.h"

#include "experiments/study/base/files.h"
#include "experiments/study/base/gz.h"
#include "experiments/study/detail/report_overlap.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"

#include <inttypes.h>
#include <stdlib.h>

/* The iteration numbered 0: the detail may begin with the initialisation. */
static uint32_t first_iteration(const struct tsr_detail *detail)
{
    uint32_t i = 0;
    while (i < detail->steady && detail->programs[i]->iteration < 0)
        i++;
    return i;
}

void tsr__put_title(FILE *out, const struct tsr__page *page)
{
    char title[480], machine[64];
    (void)snprintf(title, sizeof title, "%s · %s · %s · %s", page->info->model_name,
                   page->info->cluster_name, tsr__machine_text(page->info, machine),
                   page->view->detail->row->strategy);
    tsr__put_plain(out, title);
}

static tsr_status write_overlap(const char *folder, const struct tsr__page *page)
{
    struct tsr_overlap_table table;
    TSR_TRY(tsr_overlap_table_of(page->info, page->view->detail, &table));
    tsr_status status = tsr_overlap_table_write(folder, &table);
    tsr_overlap_table_fini(&table);
    return status;
}

static tsr_status write_all(const char *folder, const struct tsr__page *pages, size_t n)
{
    const struct tsr__page *steady = &pages[n - 1];
    struct tsr__pages both = {pages, n};
    TSR_TRY(tsr_make_own_folder(folder));
    TSR_TRY((steady->info->no_traces ? tsr_gz_write_in : tsr_write_in)(folder, "memory.csv",
                                                                       tsr__write_memory, steady));
    TSR_TRY(tsr_write_in(folder, "memory-plot.csv", tsr__write_memory_plot, steady));
    TSR_TRY(tsr_write_in(folder, "in-use-plot.csv", tsr__write_in_use_plot, steady));
    TSR_TRY(tsr_write_in(folder, "phases.csv", tsr__write_phases, steady));
    TSR_TRY(tsr_write_in(folder, "peak.csv", tsr__write_peak, steady));
    TSR_TRY(tsr_write_in(folder, "streams.csv", tsr__write_streams, steady));
    TSR_TRY(tsr_write_in(folder, "timeline.csv", tsr__write_timeline, steady));
    TSR_TRY(write_overlap(folder, steady));
    if (steady->view->detail->shown) {
        TSR_TRY(tsr_write_in(folder, "run.csv", tsr__write_run, steady));
        TSR_TRY(tsr_write_in(folder, "run-plot.csv", tsr__write_run_plot, steady));
        TSR_TRY(tsr_write_in(folder, "run-peaks.csv", tsr__write_run_peaks, steady));
    }
    if (steady->info->no_traces)
        return TSR_OK;
    TSR_TRY(tsr_write_in(folder, "trace.json", tsr__write_trace, &both));
    const struct tsr_detail *detail = steady->view->detail;
    struct tsr_history history = {.programs = detail->programs,
                                  .n = detail->steady + 1,
                                  .n_last = detail->programs[detail->steady]->n_instrs,
                                  .spans = detail->spans,
                                  .allocator = detail->allocator};
    return tsr_report_snapshot(folder, &history);
}

/* One iteration: what its pages refer to. */
struct part {
    struct tsr__view view;
    struct tsr__curve curve;
    struct tsr__in_use in_use;
};

static tsr_status part_init(struct part *part, const struct tsr_detail *detail, uint32_t iteration)
{
    TSR_TRY(tsr__view_init(&part->view, detail, iteration));
    tsr_status status = tsr__curve_init(&part->curve, detail, iteration);
    if (status == TSR_OK) {
        status = tsr__in_use_init(&part->in_use, &part->view);
        if (status != TSR_OK)
            tsr__curve_fini(&part->curve);
    }
    if (status != TSR_OK)
        tsr__view_fini(&part->view);
    return status;
}

static void part_fini(struct part *part)
{
    tsr__view_fini(&part->view);
    tsr__curve_fini(&part->curve);
    tsr__in_use_fini(&part->in_use);
}

tsr_status tsr_report_detail(const char *dir, const struct tsr_study_info *info,
                             const struct tsr_detail *detail)
{
    struct part parts[2];
    struct tsr__page pages[2];
    uint32_t iterations[2] = {first_iteration(detail), detail->steady};
    size_t wanted = iterations[0] == iterations[1] ? 1 : 2, n = 0;
    tsr_status status = TSR_OK;
    while (status == TSR_OK && n < wanted) {
        status = part_init(&parts[n], detail, iterations[n]);
        if (status != TSR_OK)
            break;
        pages[n] = (struct tsr__page){info, &parts[n].view, &parts[n].curve, &parts[n].in_use};
        n++;
    }
    char name[128];
    tsr__folder_name(detail->row->strategy, name, sizeof name);
    char *folder = status == TSR_OK ? tsr_path_join(dir, name) : NULL;
    if (status == TSR_OK)
        status = folder ? write_all(folder, pages, n) : TSR_ENOMEM;
    free(folder);
    for (size_t i = 0; i < n; i++)
        part_fini(&parts[i]);
    return status;
}
