/* overlap_cmd.c: `tessera overlap`: which collectives of a step are exposed, why, and what would
 * hide them.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/page.h"
#include "experiments/cli/inspect/inspect.h"
#include "experiments/cli/studies/text.h"
#include "experiments/study/base/files.h"
#include "experiments/study/base/json.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/validated.h"
#include "experiments/study/simulate/open.h"
#include "experiments/study/study.h"
#include "sim/base/text.h"
#include "sim/figures/overlap.h"

/* ---- as text --------------------------------------------------------------------------------- */

enum { TEXT_BYTES = 32 };

static double seconds(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static double ms(const json_t *object, const char *key)
{
    return 1e3 * seconds(object, key);
}

/* ---- sums -------------------------------------------------------------------------------- */

/* The slow GPU if another rank is shown, which then waits for it; else -1. */
static json_int_t awaited_gpu(const json_t *report)
{
    const json_t *slow = json_object_get(report, "slow_rank");
    return json_is_integer(slow) && seconds(report, "slow_factor") > 1 &&
                   json_integer_value(slow) != tsr_json_int(report, "rank")
               ? json_integer_value(slow)
               : -1;
}

enum { REASON_BYTES = 48 };

/* "bandwidth", or "waits for GPU 3" for other ranks of which one is slow. */
static const char *reason_text(const json_t *report, int reason, char out[REASON_BYTES])
{
    json_int_t awaited = awaited_gpu(report);
    if (reason != TSR_EXPOSED_RANKS || awaited < 0)
        return tsr_exposure_name(reason);
    snprintf(out, REASON_BYTES, "waits for GPU %" JSON_INTEGER_FORMAT, awaited);
    return out;
}

static void print_slow_gpu(FILE *out, const json_t *report)
{
    const json_t *slow = json_object_get(report, "slow_rank");
    if (!json_is_integer(slow))
        return;
    fprintf(out,
            "GPU %" JSON_INTEGER_FORMAT " takes %.4g times as long for its kernels "
            "(sim.slow_factor). Shown: rank %" JSON_INTEGER_FORMAT ".\n",
            json_integer_value(slow), seconds(report, "slow_factor"), tsr_json_int(report, "rank"));
    if (awaited_gpu(report) < 0 && seconds(report, "slow_factor") > 1)
        fprintf(out, "The other ranks wait for it: --rank %d shows one of them.\n",
                json_integer_value(slow) == 0);
}

static void print_head(FILE *out, const json_t *report)
{
    fprintf(out, "%s (%s)\n", tsr_json_text(report, "title"),
            tsr_json_flag(report, "measured") ? "measured" : "simulated");
    double waits = ms(report, "host_bound_s") - ms(report, "unlaunched_s");
    fprintf(out,
            "step %.2f ms: compute %.2f, exposed communication %.2f (%.1f %%), waiting for the "
            "host %.2f, other waits %.2f\n",
            ms(report, "step_s"), ms(report, "compute_s"), ms(report, "exposed_s"),
            100 * seconds(report, "exposed_share"), ms(report, "unlaunched_s"),
            waits > 0 ? waits : 0.0);
    print_slow_gpu(out, report);
    if (seconds(report, "unlaunched_s") > 0.05 * seconds(report, "step_s") &&
        seconds(report, "unlaunched_s") > seconds(report, "exposed_s"))
        fprintf(out, "The step is bound by the host: the device waits for launches.\n");
}

/* "all-gather, forward" of "all_gather_forward". */
static const char *kind_text(const char *key)
{
    for (int i = 0; i < TSR_N_OVERLAP_KINDS; i++)
        if (!strcmp(key, tsr_overlap_kind_key(i)))
            return tsr_overlap_kind_name(i);
    return "all";
}

static void print_total(FILE *out, const json_t *total)
{
    char bytes[TEXT_BYTES];
    fprintf(out, "  %-20s %5" JSON_INTEGER_FORMAT " %11s %9.2f %9.2f %9.2f\n",
            kind_text(tsr_json_text(total, "kind")), tsr_json_int(total, "collectives"),
            tsr_bytes_text((double)tsr_json_int(total, "bytes"), bytes), ms(total, "seconds"),
            ms(total, "hidden_s"), ms(total, "exposed_s"));
}

static double reason_ms(const json_t *total, int reason)
{
    char key[64];
    snprintf(key, sizeof key, "%s_s", tsr_exposure_key(reason));
    return ms(json_object_get(total, "why"), key);
}

/* Why a kind is exposed: a column for each reason of the set. */
static void print_reasons(FILE *out, const json_t *total, unsigned reasons)
{
    fprintf(out, "  %-20s", kind_text(tsr_json_text(total, "kind")));
    for (int i = 0; i < TSR_N_EXPOSURES; i++)
        if (reasons >> i & 1)
            fprintf(out, " | %*.2f", (int)strlen(tsr_exposure_name(i)), reason_ms(total, i));
    fprintf(out, "\n");
}

/* The reasons that have a column: those that occur, unless there is room for all. */
static unsigned shown_reasons(const json_t *total, bool wide)
{
    unsigned reasons = 0;
    for (int i = 0; i < TSR_N_EXPOSURES; i++)
        if (wide || reason_ms(total, i) >= 0.005)
            reasons |= 1U << i;
    return reasons;
}

static void print_all_reasons(FILE *out, const json_t *report, bool wide)
{
    const json_t *total = json_object_get(report, "total");
    unsigned reasons = shown_reasons(total, wide);
    size_t i;
    json_t *kind;
    if (!reasons)
        return;
    fprintf(out, "\n  %-20s", "exposed because, ms");
    for (int k = 0; k < TSR_N_EXPOSURES; k++)
        if (reasons >> k & 1)
            fprintf(out, " | %s", tsr_exposure_name(k));
    fprintf(out, "\n");
    json_array_foreach(json_object_get(report, "kinds"), i, kind)
    {
        print_reasons(out, kind, reasons);
    }
    print_reasons(out, total, reasons);
}

static void print_totals(FILE *out, FILE *notes, const json_t *report, bool wide)
{
    size_t i;
    json_t *kind;
    fprintf(out, "\n  %-20s %5s %11s %9s %9s %9s\n", "ms of the step", "n", "bytes", "running",
            "hidden", "exposed");
    json_array_foreach(json_object_get(report, "kinds"), i, kind) print_total(out, kind);
    print_total(out, json_object_get(report, "total"));
    /* One reason is said with each collective. */
    unsigned reasons = shown_reasons(json_object_get(report, "total"), wide);
    print_all_reasons(reasons & (reasons - 1) ? out : notes, report, wide);
    double beside = ms(json_object_get(report, "total"), "beside_s");
    if (beside >= 0.005)
        fprintf(out, "  %.2f ms more are exposed beside another collective, which is charged\n",
                beside);
}

/* ---- collectives ------------------------------------------------------------------------- */

static int by_exposed(const void *a, const void *b)
{
    const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
    double more = seconds(y, "exposed_s") - seconds(x, "exposed_s");
    double sooner = seconds(x, "start_s") - seconds(y, "start_s");
    return more != 0 ? (more > 0) - (more < 0) : (sooner > 0) - (sooner < 0);
}

/* "bandwidth 4.93, host late 0.24" */
static void print_why(FILE *out, const json_t *report, const json_t *why)
{
    char name[REASON_BYTES];
    bool any = false;
    for (int i = 0; i < TSR_N_EXPOSURES; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s_s", tsr_exposure_key(i));
        if (ms(why, key) < 0.005)
            continue;
        fprintf(out, "%s%s %.2f", any ? ", " : "", reason_text(report, i, name), ms(why, key));
        any = true;
    }
    fprintf(out, "\n");
}

/* `wide`: also how much is hidden, and when it was issued and ended. */
static void print_collective(FILE *out, const json_t *report, const json_t *row, bool wide)
{
    char bytes[TEXT_BYTES], name[200];
    snprintf(name, sizeof name, "%s (%s)", tsr_json_text(row, "name"), tsr_json_text(row, "phase"));
    fprintf(out, "  %8.2f", ms(row, "exposed_s"));
    if (wide)
        fprintf(out, " %8.2f %9.2f", ms(row, "hidden_s"), ms(row, "issue_s"));
    fprintf(out, " %9.2f", ms(row, "start_s"));
    if (wide)
        fprintf(out, " %9.2f", ms(row, "end_s"));
    fprintf(out, " %11s  %-28s ", tsr_bytes_text((double)tsr_json_int(row, "bytes"), bytes), name);
    print_why(out, report, json_object_get(row, "why"));
}

static void print_collectives(FILE *out, const json_t *report, size_t top, bool wide)
{
    const json_t *rows = json_object_get(report, "collectives");
    size_t n = json_array_size(rows), shown = 0;
    const json_t **sorted = malloc((n + 1) * sizeof(const json_t *));
    if (!sorted)
        return;
    for (size_t i = 0; i < n; i++)
        sorted[i] = json_array_get(rows, i);
    if (n > 1)
        qsort(sorted, n, sizeof(const json_t *), by_exposed);
    fprintf(out, "\nThe most exposed of %zu collectives (ms of the step)\n", n);
    if (wide)
        fprintf(out, "  %8s %8s %9s %9s %9s", "exposed", "hidden", "issue", "start", "end");
    else
        fprintf(out, "  %8s %9s", "exposed", "start");
    fprintf(out, " %11s  %-28s %s\n", "bytes", "collective", "why");
    while (shown < n && shown < top && ms(sorted[shown], "exposed_s") >= 0.005)
        print_collective(out, report, sorted[shown++], wide);
    size_t more = shown;
    while (more < n && seconds(sorted[more], "exposed_s") > 0)
        more++;
    if (!shown)
        fprintf(out, "  none: all communication is hidden\n");
    else if (more > shown)
        fprintf(out, "  and %zu more\n", more - shown);
    free(sorted);
}

/* ---- what would hide it ------------------------------------------------------------------ */

static const char *effect_text(const json_t *row)
{
    const char *effect = tsr_json_text(row, "effect");
    if (!strcmp(effect, "numbers"))
        return "  (other numbers)";
    if (!strcmp(effect, "imagined"))
        return "  (no setting: a bound)";
    return !strcmp(effect, "batch") ? "  (more tokens a step)" : "";
}

static void print_change(FILE *out, const json_t *row)
{
    if (!json_is_null(json_object_get(row, "failure"))) {
        fprintf(out, "  %9s %11s %11s  %-36s not possible: %s\n", "-", "-", "-",
                tsr_json_text(row, "words"), tsr_json_text(row, "failure"));
        return;
    }
    fprintf(out, "  %+8.1f%% %11.2f %11.2f  %-36s", 100 * seconds(row, "gain_share"),
            ms(row, "step_s"), ms(row, "exposed_s"), tsr_json_text(row, "words"));
    size_t i;
    json_t *set;
    json_array_foreach(json_object_get(row, "set"), i, set)
        fprintf(out, " %s", json_string_value(set));
    fprintf(out, "%s%s\n", effect_text(row), tsr_verdict_remark(row));
}

/* Neither the step nor its exposed communication is another one that the table would show. */
static bool has_no_effect(const json_t *row, const json_t *what_if)
{
    return json_is_null(json_object_get(row, "failure")) &&
           fabs(seconds(row, "gain_share")) < 5e-4 &&
           fabs(ms(row, "exposed_s") - ms(what_if, "exposed_s")) < 0.005;
}

/* The changes without effect in a few lines. */
static void print_no_effect(FILE *out, const json_t *what_if)
{
    size_t i, column = 0;
    json_t *row;
    json_array_foreach(json_object_get(what_if, "rows"), i, row)
    {
        const char *words = tsr_json_text(row, "words");
        if (!has_no_effect(row, what_if))
            continue;
        if (column == 0)
            column = (size_t)fprintf(out, "  no effect: %s", words);
        else if (column + strlen(words) + 2 > 100)
            column = (size_t)fprintf(out, ",\n    %s", words) - 2;
        else
            column += (size_t)fprintf(out, ", %s", words);
    }
    if (column)
        fprintf(out, "\n");
}

/* It is faster, fits, and changes neither numbers nor the batch. */
static const json_t *first_change(const json_t *what_if)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(what_if, "rows"), i, row)
    {
        if (json_is_null(json_object_get(row, "failure")) && !*effect_text(row) &&
            seconds(row, "gain_share") >= 5e-4 && json_is_true(json_object_get(row, "fits")))
            return row;
    }
    return NULL;
}

/* It is a setting, and fits. */
static bool is_possible(const json_t *row)
{
    return strcmp(tsr_json_text(row, "effect"), "imagined") != 0 &&
           !json_is_false(json_object_get(row, "fits"));
}

/* The first `top` changes that are possible; 0: all, and those without effect. */
static void print_what_if(FILE *out, const json_t *what_if, size_t top)
{
    size_t i, shown = 0, more = 0;
    json_t *row;
    fprintf(out, "\nWhat would hide it: each change simulated, most tokens per second first\n");
    fprintf(out, "  %9s %11s %11s  %s\n", "tokens/s", "step ms", "exposed ms", "change");
    json_array_foreach(json_object_get(what_if, "rows"), i, row)
    {
        if (has_no_effect(row, what_if))
            continue;
        if (top && (shown == top || !is_possible(row))) {
            more++;
            continue;
        }
        print_change(out, row);
        shown++;
    }
    if (more)
        fprintf(out, "  and %zu more, bounds and what does not fit among them: --notes\n", more);
    if (!top)
        print_no_effect(out, what_if);
}

static void tsr_overlap_print(FILE *out, FILE *notes, const json_t *report, size_t top, bool wide)
{
    const json_t *what_if = json_object_get(report, "what_if");
    print_head(out, report);
    print_totals(out, notes, report, wide);
    print_collectives(out, report, top, wide);
    if (!what_if)
        return;
    print_what_if(out, what_if, top);
    print_what_if(notes, what_if, 0);
}

/* ---- output ------------------------------------------------------------------------------ */

static const char *const formats[] = {"text", "json", "csv", NULL};

/* What the times rest on, and what is not known. */
static void put_trust(const struct tsr_page *page, const struct tsr_study_info *info)
{
    struct tsr_study_info errors = *info;
    errors.time_sources = NULL; /* a note */
    fprintf(page->out, "\nSimulated, not run: a replay for the device file %s.\n",
            tsr_show_line(info->device_file).text);
    tsr_put_validated(page->out, page->notes, &errors);
    fputs("Not known: other traffic on the links (sim.traffic), the time of loading data.\n",
          page->out);
    if (info->time_sources)
        fprintf(page->notes, "Times come from %s.\n", info->time_sources);
}

static tsr_status put(const struct tsr_args *args, const struct tsr_study_info *info,
                      const struct tsr_page *page, json_t *report)
{
    if (!strcmp(args->format, "json"))
        return tsr_print_report(page->out, report);
    if (!tsr_json_show(report))
        return tsr_no_memory("the report");
    tsr_overlap_print(page->out, page->notes, report, (size_t)args->top, args->wide);
    if (info)
        put_trust(page, info);
    if (args->strategy)
        tsr_print_change_next(page->out, args, args->strategy,
                              first_change(json_object_get(report, "what_if")));
    return TSR_OK;
}

/* `info`: NULL of a run, a folder. */
static tsr_status print_report(const struct tsr_args *args, const struct tsr_study_info *info,
                               const struct tsr_overlap_result *overlap)
{
    tsr_status status = TSR_OK;
    json_t *report = tsr_overlap_json(args->file, overlap);
    if (report && info)
        json_object_set_new(report, "validated_error", tsr_validated_json(info));
    if (!report)
        return tsr_no_memory("the report, or a name in it is no UTF-8");
    struct tsr_page page;
    status = tsr_page_begin(args, &page);
    if (status == TSR_OK)
        status = tsr_page_end(&page, put(args, info, &page, report));
    json_decref(report);
    return status;
}

/* `info`: NULL of a run, a folder. */
static tsr_status finish(const struct tsr_args *args, const struct tsr_study_info *info,
                         const struct tsr_overlap_result *overlap)
{
    if (strcmp(args->format, "csv") != 0) {
        TSR_TRY(print_report(args, info, overlap));
    } else {
        if (info && info->n_validated)
            printf("# Error of the step's time: %s.\n",
                   tsr_time_error_word(&info->validated[0].first));
        tsr_overlap_table_print(stdout, &overlap->table);
        TSR_TRY(tsr_flush(stdout, "standard output"));
    }
    if (!args->out)
        return TSR_OK;
    TSR_TRY(tsr_overlap_table_write(args->out, &overlap->table));
    TSR_TRY(tsr_overlap_page(args->out, args->file, info, overlap));
    return tsr_report_picture(args->out, "overlap");
}

/* ---- the command ------------------------------------------------------------------------- */

static tsr_status overlap_of_folder(const struct tsr_args *args)
{
    struct tsr_overlap_result overlap;
    if (args->n_sets)
        return tsr_fail(TSR_ECONFIG,
                        "overlap: found --set beside %s, a run; allowed: beside an "
                        "experiment file",
                        args->file);
    if (args->has_rank)
        return tsr_fail(TSR_ECONFIG,
                        "overlap: found --rank beside %s, a run, whose files are of one rank; "
                        "allowed: beside an experiment file",
                        args->file);
    TSR_TRY(tsr_overlap_load(args->file, args->strategy, &overlap));
    tsr_status status = finish(args, NULL, &overlap);
    tsr_overlap_result_fini(&overlap);
    return status;
}

static tsr_status overlap_of_strategy(const struct tsr_args *args, struct tsr_study *study)
{
    const struct tsr_reason_options options = {.jobs = args->jobs,
                                               .has_rank = args->has_rank,
                                               .rank = (uint32_t)args->rank,
                                               .no_what_if = args->no_what_if ||
                                                             !strcmp(args->format, "csv")};
    struct tsr_overlap_result overlap;
    TSR_TRY(tsr_study_overlap(study, &options, &overlap));
    tsr_status status = finish(args, tsr_study_info(study), &overlap);
    if (status == TSR_OK)
        tsr_study_notes(study);
    tsr_overlap_result_fini(&overlap);
    return status;
}

tsr_status tsr_cmd_overlap(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    struct tsr_study *study = NULL;
    struct stat info;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    bool is_folder = stat(args->file, &info) == 0 && S_ISDIR(info.st_mode);
    if (args->print_config && !is_folder)
        return tsr_print_config(args);
    if (args->out)
        TSR_TRY(tsr_prepare_out(args->out));
    if (is_folder)
        return overlap_of_folder(args);
    TSR_TRY(tsr_args_open(args, &study));
    tsr_status status = overlap_of_strategy(args, study);
    tsr_study_close(study);
    return status;
}
