/* explain_cmd.c: `tessera explain`: where the peak of a strategy comes from, and what would lower
 * it.
 */
#include <stdio.h>
#include <string.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/page.h"
#include "experiments/cli/inspect/inspect.h"
#include "experiments/cli/studies/text.h"
#include "experiments/study/base/json.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/validated.h"
#include "experiments/study/study.h"

/* ---- the instant ----------------------------------------------------------------------------- */

/* "backward, micro-batch 1, lm_head, hook pre_backward, recomputing: mm" */
void tsr_explain_print_place(FILE *out, const json_t *place)
{
    fprintf(out, "%s", tsr_json_text(place, "phase"));
    if (tsr_json_int(place, "micro_batch"))
        fprintf(out, ", micro-batch %" JSON_INTEGER_FORMAT, tsr_json_int(place, "micro_batch"));
    fprintf(out, ", %s", tsr_json_text(place, "module"));
    if (*tsr_json_text(place, "hook"))
        fprintf(out, ", hook %s", tsr_json_text(place, "hook"));
    if (tsr_json_flag(place, "recompute"))
        fprintf(out, ", recomputing");
    if (*tsr_json_text(place, "operation"))
        fprintf(out, ", for %s", tsr_json_text(place, "operation"));
}

static json_int_t steady_bytes(const json_t *iterations)
{
    size_t i;
    json_t *row;
    json_array_foreach(iterations, i, row)
    {
        if (!strcmp(tsr_json_text(row, "iteration"), "steady"))
            return tsr_json_int(row, "allocated_bytes");
    }
    return 0;
}

static void print_iterations(FILE *out, const json_t *iterations)
{
    size_t i;
    json_t *row;
    json_int_t steady = steady_bytes(iterations);
    fprintf(out, "  by iteration:");
    json_array_foreach(iterations, i, row)
    {
        char bytes[TSR_JSON_BYTES_TEXT];
        const char *name = tsr_json_text(row, "iteration");
        bool is_between = !strcmp(name, "early") || !strcmp(name, "step2");
        /* Those between the first and the steady one are worth a word if they go higher. */
        if (!is_between || tsr_json_int(row, "allocated_bytes") > steady)
            fprintf(out, "%s %s %s", i ? "," : "", name,
                    tsr_json_bytes(row, "allocated_bytes", bytes));
    }
    fprintf(out, "\n");
}

/* "0.51 GiB", or "?" for null. */
static const char *known_bytes(const json_t *object, const char *key,
                               char text[TSR_JSON_BYTES_TEXT])
{
    return json_is_integer(json_object_get(object, key)) ? tsr_json_bytes(object, key, text) : "?";
}

/* The verdict, with by how much. */
static const char *verdict_words(const json_t *card, char *out, size_t size)
{
    const char *verdict = tsr_json_text(card, "verdict");
    char bytes[TSR_JSON_BYTES_TEXT];
    double retries = json_number_value(json_object_get(card, "alloc_retries_per_step"));
    tsr_json_bytes(card, "short_of_bytes", bytes);
    if (!strcmp(verdict, "yes"))
        snprintf(out, size, "fits");
    else if (!strcmp(verdict, "retries") && retries <= 0)
        snprintf(out, size,
                 "fits; in the first steps the allocator frees its cache and asks again");
    else if (!strcmp(verdict, "retries"))
        snprintf(out, size, "fits, but the allocator frees its cache and asks again %.3g x a step",
                 retries);
    else if (!strcmp(verdict, "no"))
        snprintf(out, size, "does NOT fit");
    else if (tsr_json_int(card, "short_of_bytes"))
        snprintf(out, size, "may fit: what is not known may be %s more than what is left", bytes);
    else
        snprintf(out, size, "may fit, not all is known");
    return out;
}

static void print_card(FILE *out, const json_t *card)
{
    char need[TSR_JSON_BYTES_TEXT], reserved[TSR_JSON_BYTES_TEXT], context[TSR_JSON_BYTES_TEXT],
        libraries[TSR_JSON_BYTES_TEXT];
    char nccl[TSR_JSON_BYTES_TEXT], usable[TSR_JSON_BYTES_TEXT], words[160];
    fprintf(out,
            "  card: needs %s (%s reserved at most, context %s, libraries %s, NCCL %s); the card "
            "has %s: %s\n",
            tsr_json_bytes(card, "needed_bytes", need),
            tsr_json_bytes(card, "most_reserved_bytes", reserved),
            known_bytes(card, "context_bytes", context),
            known_bytes(card, "library_bytes", libraries), known_bytes(card, "nccl_bytes", nccl),
            known_bytes(card, "usable_bytes", usable), verdict_words(card, words, sizeof words));
}

static void print_host(FILE *out, const json_t *host)
{
    char pageable[TSR_JSON_BYTES_TEXT], pinned[TSR_JSON_BYTES_TEXT];
    if (tsr_json_int(host, "host_bytes") || tsr_json_int(host, "pinned_bytes"))
        fprintf(out, "  host: %s pageable, %s pinned at most\n",
                tsr_json_bytes(host, "host_bytes", pageable),
                tsr_json_bytes(host, "pinned_bytes", pinned));
    const json_t *node = json_object_get(host, "node");
    char needs[TSR_JSON_BYTES_TEXT], has[TSR_JSON_BYTES_TEXT], rank[TSR_JSON_BYTES_TEXT];
    const char *verdict = tsr_json_text(node, "verdict");
    if (!tsr_json_int(node, "required_bytes"))
        return;
    fprintf(out,
            "  node: its %" JSON_INTEGER_FORMAT " ranks need %s of the host in %s (rank "
            "%" JSON_INTEGER_FORMAT " %s); the host has %s%s\n",
            tsr_json_int(node, "ranks"), tsr_json_bytes(node, "required_bytes", needs),
            tsr_json_text(node, "phase"), tsr_json_int(node, "rank"),
            tsr_json_bytes(node, "rank_bytes", rank), known_bytes(node, "memory_bytes", has),
            !strcmp(verdict, "no")    ? ": does NOT fit"
            : !strcmp(verdict, "yes") ? ": fits"
                                      : "");
}

/* "steady iteration, "; nothing where the phase says it: "save, lm_head, for all_gather". */
static void print_when(FILE *out, const json_t *peak)
{
    const char *iteration = tsr_json_text(peak, "iteration");
    if (strcmp(iteration, tsr_json_text(peak, "phase")) != 0)
        fprintf(out, "%s%s, ", iteration,
                tsr_json_int(peak, "iteration_number") >= 0 ? " iteration" : "");
    tsr_explain_print_place(out, peak);
}

static void print_sections(FILE *out, const json_t *sections)
{
    size_t i;
    json_t *row;
    fprintf(out, "\nPeak of each part of the run (allocated, reserved, host, pinned)\n");
    json_array_foreach(sections, i, row)
    {
        char allocated[TSR_JSON_BYTES_TEXT], reserved[TSR_JSON_BYTES_TEXT],
            host[TSR_JSON_BYTES_TEXT], pinned[TSR_JSON_BYTES_TEXT];
        fprintf(out, "  %-6s %10s %10s %10s %10s  %s, %s\n", tsr_json_text(row, "section"),
                tsr_json_bytes(row, "allocated_bytes", allocated),
                tsr_json_bytes(row, "reserved_bytes", reserved),
                tsr_json_bytes(row, "host_bytes", host),
                tsr_json_bytes(row, "pinned_bytes", pinned), tsr_json_text(row, "phase"),
                tsr_json_text(row, "module"));
    }
}

/* The host's lines belong to the answer if it decides, or holds more than inputs and losses. */
static bool host_matters(const json_t *host)
{
    const json_t *node = json_object_get(host, "node");
    return !strcmp(tsr_json_text(node, "verdict"), "no") ||
           tsr_json_int(host, "host_bytes") + tsr_json_int(host, "pinned_bytes") >=
               TSR_EXPLAIN_LEAST_HOST_BYTES;
}

static void print_peak(FILE *out, FILE *notes, const json_t *report)
{
    const json_t *peak = json_object_get(report, "peak"), *host = json_object_get(report, "host");
    char allocated[TSR_JSON_BYTES_TEXT], reserved[TSR_JSON_BYTES_TEXT],
        requested[TSR_JSON_BYTES_TEXT];
    fprintf(out, "%s", tsr_json_text(report, "model"));
    if (*tsr_json_text(report, "cluster"))
        fprintf(out, " on %s", tsr_json_text(report, "cluster"));
    fprintf(out, ", %" JSON_INTEGER_FORMAT " GPUs, strategy %s: %s\n\n",
            tsr_json_int(report, "world"), tsr_json_text(report, "strategy"),
            tsr_json_text(report, "summary"));
    fprintf(out, "Peak: %s allocated, %s reserved\n",
            tsr_json_bytes(peak, "allocated_bytes", allocated),
            tsr_json_bytes(peak, "reserved_bytes", reserved));
    fprintf(out, "  when: ");
    print_when(out, peak);
    fputc('\n', out);
    fprintf(notes, "The peak\n  what: %s, %s requested (instruction %" JSON_INTEGER_FORMAT ")\n",
            *tsr_json_text(peak, "category") ? tsr_json_text(peak, "category")
                                             : "the level at the start",
            tsr_json_bytes(peak, "requested_bytes", requested), tsr_json_int(peak, "instruction"));
    fprintf(notes,
            "  whose: rank %" JSON_INTEGER_FORMAT ", class %" JSON_INTEGER_FORMAT
            " of %" JSON_INTEGER_FORMAT "\n",
            tsr_json_int(peak, "rank"), tsr_json_int(peak, "rank_class") + 1,
            tsr_json_int(peak, "rank_classes"));
    print_iterations(notes, json_object_get(report, "iterations"));
    print_card(out, json_object_get(report, "card"));
    print_host(host_matters(host) ? out : notes, host);
}

/* ---- other peaks ----------------------------------------------------------------------------- */

static void print_phases(FILE *out, const json_t *phases)
{
    size_t i;
    json_t *row;
    fprintf(out, "\nPeak of each phase (allocated, reserved)\n");
    json_array_foreach(phases, i, row)
    {
        char allocated[TSR_JSON_BYTES_TEXT], reserved[TSR_JSON_BYTES_TEXT];
        fprintf(out, "  %10s  %10s  ", tsr_json_bytes(row, "allocated_bytes", allocated),
                tsr_json_bytes(row, "reserved_bytes", reserved));
        if (tsr_json_flag(row, "level_at_start"))
            fprintf(out, "%s: the level at its start\n", tsr_json_text(row, "phase"));
        else {
            tsr_explain_print_place(out, row);
            fprintf(out, "\n");
        }
    }
}

static void print_next(FILE *out, const json_t *next, size_t top)
{
    size_t i;
    json_t *row, *category;
    fprintf(out, "\nNext-highest peaks\n");
    if (!json_array_size(next))
        fprintf(out, "  none: the curve has one summit\n");
    json_array_foreach(next, i, row)
    {
        char bytes[TSR_JSON_BYTES_TEXT];
        size_t k;
        if (i == top)
            break;
        fprintf(out, "  %10s  ", tsr_json_bytes(row, "allocated_bytes", bytes));
        tsr_explain_print_place(out, row);
        fprintf(out, "\n%14s", "");
        json_array_foreach(json_object_get(json_object_get(row, "alive"), "by_category"), k,
                           category)
        {
            if (k == 5)
                break;
            fprintf(out, "%s%s %s", k ? ", " : "", tsr_json_text(category, "category"),
                    tsr_json_bytes(category, "bytes", bytes));
        }
        fprintf(out, "\n");
    }
}

/* ---- the allocator --------------------------------------------------------------------------- */

static void print_allocator(FILE *out, const json_t *a)
{
    size_t i;
    json_t *pool;
    char bytes[TSR_JSON_BYTES_TEXT], used[TSR_JSON_BYTES_TEXT], cached[TSR_JSON_BYTES_TEXT],
        inactive[TSR_JSON_BYTES_TEXT];
    fprintf(out, "\nAllocated against reserved at the peak\n");
    fprintf(out, "  %10s  requested\n", tsr_json_bytes(a, "requested_bytes", bytes));
    fprintf(out, "  %10s  rounding\n", tsr_json_bytes(a, "rounding_bytes", bytes));
    fprintf(out, "  %10s  allocated\n", tsr_json_bytes(a, "allocated_bytes", bytes));
    fprintf(out, "  %10s  free in segments that are in use (inactive split)\n",
            tsr_json_bytes(a, "inactive_split_bytes", bytes));
    fprintf(out, "  %10s  cached: segments that are free as a whole\n",
            tsr_json_bytes(a, "cached_bytes", bytes));
    fprintf(out, "  %10s  reserved\n", tsr_json_bytes(a, "reserved_bytes", bytes));
    int width = (int)strlen("stream's pool");
    json_array_foreach(json_object_get(a, "pools"), i, pool)
    {
        tsr_widen(&width, tsr_json_text(pool, "stream"));
    }
    fprintf(out, "  %-*s  %10s  %10s  %14s  %10s  %8s\n", width, "stream's pool", "reserved",
            "allocated", "inactive split", "cached", "segments");
    json_array_foreach(json_object_get(a, "pools"), i, pool)
    {
        fprintf(out, "  %-*s  %10s  %10s  %14s  %10s  %8" JSON_INTEGER_FORMAT "\n", width,
                tsr_json_text(pool, "stream"), tsr_json_bytes(pool, "reserved_bytes", bytes),
                tsr_json_bytes(pool, "allocated_bytes", used),
                tsr_json_bytes(pool, "inactive_split_bytes", inactive),
                tsr_json_bytes(pool, "cached_bytes", cached), tsr_json_int(pool, "segments"));
    }
}

/* What the figures rest on, and what is not known. */
static void print_trust(FILE *out, const json_t *report)
{
    const json_t *card = json_object_get(report, "card");
    fputs(
        "\nPredicted, nothing ran: the step's program is emitted and PyTorch's allocator replayed "
        "on it.\n",
        out);
    if (!json_is_integer(json_object_get(card, "library_bytes")))
        fputs("Not known: the memory of CUDA's libraries outside the allocator (`libraries ?`).\n",
              out);
}

/* `top`: rows of each table at most. The answer goes to `out`, all else to `notes`. */
static void tsr_explain_print(FILE *out, FILE *notes, const json_t *report, size_t top)
{
    const json_t *sections = json_object_get(report, "sections");
    const json_t *what_if = json_object_get(report, "what_if");
    print_peak(out, notes, report);
    if (sections)
        print_sections(out, sections);
    tsr_explain_print_alive(out, json_object_get(report, "alive"));
    if (what_if)
        tsr_explain_print_what_if(out, what_if, top);
    print_trust(out, report);
    tsr_explain_print_owned(notes, "Alive at the peak", json_object_get(report, "alive"), top);
    tsr_explain_print_host_owners(notes, json_object_get(report, "host"), top);
    bool is_step = tsr_json_int(json_object_get(report, "peak"), "iteration_number") >= 0;
    tsr_explain_print_unsharded(notes, json_object_get(report, "unsharded"), is_step, top);
    tsr_explain_print_checkpointing(notes, json_object_get(report, "checkpointing"));
    print_phases(notes, json_object_get(report, "phases"));
    print_next(notes, json_object_get(report, "next_peaks"), top);
    print_allocator(notes, json_object_get(report, "allocator"));
    if (what_if)
        tsr_explain_print_what_if(notes, what_if, 0);
}

/* ---- the command ----------------------------------------------------------------------------- */

static const char *const formats[] = {"text", "json", NULL};

static tsr_status put(const struct tsr_args *args, const struct tsr_study_info *times,
                      const struct tsr_page *page, json_t *report)
{
    FILE *out = page->out;
    if (!strcmp(args->format, "json"))
        return tsr_print_report(out, report);
    if (!tsr_json_show(report))
        return tsr_no_memory("the report");
    tsr_explain_print(out, page->notes, report, (size_t)args->top);
    if (times->time_sources)
        tsr_put_validated(page->out, page->notes, times);
    tsr_print_change_next(out, args, tsr_json_text(report, "strategy"),
                          tsr_explain_first_change(json_object_get(report, "what_if")));
    return TSR_OK;
}

static tsr_status print(const struct tsr_args *args, const struct tsr_explanation *explanation)
{
    tsr_status status = TSR_OK;
    json_t *report = tsr_explain_json(explanation);
    if (!report)
        return tsr_no_memory("the report, or a name in it is no UTF-8");
    struct tsr_page page;
    status = tsr_page_begin(args, &page);
    if (status == TSR_OK)
        status = tsr_page_end(&page, put(args, &explanation->times, &page, report));
    json_decref(report);
    return status;
}

static tsr_status explain(const struct tsr_args *args, struct tsr_study *study)
{
    const struct tsr_reason_options options = {
        .jobs = args->jobs, .no_what_if = args->no_what_if, .deep = args->deep, .time = args->time};
    struct tsr_explanation explanation;
    TSR_TRY(tsr_study_explain(study, &options, &explanation));
    tsr_status status = print(args, &explanation);
    tsr_explanation_fini(&explanation);
    return status;
}

tsr_status tsr_cmd_explain(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    struct tsr_study *study = NULL;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    if (args->print_config)
        return tsr_print_config(args);
    TSR_TRY(tsr_args_open(args, &study));
    tsr_status status = explain(args, study);
    tsr_study_close(study);
    return status;
}
