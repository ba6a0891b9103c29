/* diff_cmd.c: `tessera diff`: where the memory of two strategies or recorded runs parts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/page.h"
#include "experiments/cli/inspect/inspect.h"
#include "experiments/cli/studies/text.h"
#include "experiments/study/base/json.h"
#include "experiments/study/report/report.h"
#include "experiments/study/study.h"
#include "sim/figures/overlap.h"

/* ---- as text --------------------------------------------------------------------------------- */

enum { TEXT_BYTES = 33 };

/* "-": not known. */
static const char *bytes_of(const json_t *object, const char *key, char text[TEXT_BYTES])
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) ? tsr_bytes_text((double)json_integer_value(value), text) : "-";
}

/* "+3.00 GiB", "0" */
static const char *change_of(const json_t *object, const char *key, char text[TEXT_BYTES])
{
    const json_t *value = json_object_get(object, key);
    json_int_t change = json_integer_value(value);
    if (!json_is_integer(value))
        return "-";
    if (change == 0)
        return "0";
    text[0] = change < 0 ? '-' : '+';
    tsr_bytes_text(change < 0 ? -(double)change : (double)change, text + 1);
    return text;
}

static void print_place(FILE *out, const json_t *place)
{
    fprintf(out, "%s", tsr_json_text(place, "phase"));
    if (tsr_json_int(place, "micro_batch"))
        fprintf(out, " %" JSON_INTEGER_FORMAT, tsr_json_int(place, "micro_batch"));
    if (*tsr_json_text(place, "module"))
        fprintf(out, ", %s", tsr_json_text(place, "module"));
    if (*tsr_json_text(place, "hook"))
        fprintf(out, ", hook %s", tsr_json_text(place, "hook"));
    if (*tsr_json_text(place, "operation"))
        fprintf(out, ", for %s", tsr_json_text(place, "operation"));
}

static void print_run(FILE *out, const char *name, const json_t *run)
{
    char allocated[TEXT_BYTES], reserved[TEXT_BYTES];
    const json_t *peak = json_object_get(run, "peak");
    fprintf(out, "%s: %s (%s)\n   peak %s allocated, %s reserved: ", name,
            tsr_json_text(run, "run"), tsr_json_text(run, "kind"),
            bytes_of(peak, "allocated_bytes", allocated),
            bytes_of(run, "peak_reserved_bytes", reserved));
    print_place(out, peak);
    fprintf(out, "\n");
    if (json_is_integer(json_object_get(run, "changes_found")) &&
        tsr_json_int(run, "changes_found"))
        fprintf(out,
                "   %" JSON_INTEGER_FORMAT " of its %" JSON_INTEGER_FORMAT
                " changes are the other run's, in the same order\n",
                tsr_json_int(run, "changes_found"), tsr_json_int(run, "changes"));
}

static void print_side(FILE *out, const char *name, const json_t *change)
{
    char bytes[TEXT_BYTES];
    fprintf(out, "  %s: ", name);
    if (json_is_null(change)) {
        fprintf(out, "nothing more happens\n");
        return;
    }
    print_place(out, change);
    fprintf(out, ": %s %s\n", change_of(change, "change_bytes", bytes),
            tsr_json_text(change, "category"));
}

static void print_part(FILE *out, const json_t *report)
{
    const json_t *part = json_object_get(report, "part_first");
    const json_t *start = json_object_get(report, "start");
    char a[TEXT_BYTES], b[TEXT_BYTES], change[TEXT_BYTES];
    fprintf(out, "\nLevel at the start of the step: %s and %s (%s)\n",
            bytes_of(start, "a_bytes", a), bytes_of(start, "b_bytes", b),
            change_of(start, "difference_bytes", change));
    if (json_is_null(part)) {
        fprintf(out, "The curves never part: every change of the step is the same\n");
        return;
    }
    fprintf(out, "The curves part first at change %" JSON_INTEGER_FORMAT " of the step\n",
            tsr_json_int(part, "change"));
    print_side(out, "A", json_object_get(part, "a"));
    print_side(out, "B", json_object_get(part, "b"));
}

static void print_gap(FILE *out, const json_t *gap, size_t top)
{
    size_t i;
    json_t *row;
    if (!json_array_size(gap))
        return;
    fprintf(out, "\nWhere the gap (B minus A) opens and closes\n");
    json_array_foreach(gap, i, row)
    {
        char change[TEXT_BYTES];
        if (i == top) {
            fprintf(out, "  and %zu more places\n", json_array_size(gap) - top);
            break;
        }
        fprintf(out, "  %11s  ", change_of(row, "change_bytes", change));
        print_place(out, row);
        if (tsr_json_int(row, "places") > 1)
            fprintf(out, " (in %" JSON_INTEGER_FORMAT " places)", tsr_json_int(row, "places"));
        fprintf(out, "\n");
    }
}

static void print_table_row(FILE *out, const json_t *row, const char *indent, const char *name)
{
    char a[TEXT_BYTES], b[TEXT_BYTES], change[TEXT_BYTES];
    fprintf(out, "  %11s %11s %11s  %s%s\n", bytes_of(row, "a_bytes", a),
            bytes_of(row, "b_bytes", b), change_of(row, "difference_bytes", change), indent, name);
}

static void print_owners(FILE *out, const json_t *owners, const char *category, size_t top)
{
    size_t i, shown = 0;
    json_t *row;
    json_array_foreach(owners, i, row)
    {
        if (!strcmp(tsr_json_text(row, "category"), category) &&
            tsr_json_int(row, "difference_bytes") && shown++ < top)
            print_table_row(out, row, "  ", tsr_json_text(row, "owner"));
    }
}

static void print_peaks(FILE *out, const json_t *report, size_t top)
{
    const json_t *owners = json_object_get(report, "owners");
    size_t i;
    json_t *row;
    fprintf(out, "\nAlive at the peaks, by category%s\n",
            json_is_null(owners) ? " (memory.csv has no owners)" : " and owner");
    fprintf(out, "  %11s %11s %11s\n", "A", "B", "B - A");
    json_array_foreach(json_object_get(report, "categories"), i, row)
    {
        print_table_row(out, row, "", tsr_json_text(row, "category"));
        print_owners(out, owners, tsr_json_text(row, "category"), top);
    }
    char a[TEXT_BYTES], b[TEXT_BYTES], change[TEXT_BYTES];
    fprintf(out, "  %11s %11s %11s  total\n",
            bytes_of(json_object_get(json_object_get(report, "a"), "peak"), "allocated_bytes", a),
            bytes_of(json_object_get(json_object_get(report, "b"), "peak"), "allocated_bytes", b),
            change_of(json_object_get(report, "total"), "allocated_difference_bytes", change));
}

static void print_phases(FILE *out, const json_t *phases)
{
    size_t i;
    json_t *row;
    fprintf(out, "\nPeak of each phase\n");
    fprintf(out, "  %11s %11s %11s  %11s %11s\n", "A", "B", "B - A", "A reserved", "B reserved");
    json_array_foreach(phases, i, row)
    {
        char text[5][TEXT_BYTES];
        fprintf(out, "  %11s %11s %11s  %11s %11s  ", bytes_of(row, "a_allocated_bytes", text[0]),
                bytes_of(row, "b_allocated_bytes", text[1]),
                change_of(row, "difference_bytes", text[2]),
                bytes_of(row, "a_reserved_bytes", text[3]),
                bytes_of(row, "b_reserved_bytes", text[4]));
        print_place(out, row);
        fprintf(out, "\n");
    }
}

/* ---- exposed communication ------------------------------------------------------------------ */

static double ms(const json_t *object, const char *key)
{
    return 1e3 * json_number_value(json_object_get(object, key));
}

/* "same communicator" of "same_communicator". */
static const char *reason_text(const json_t *row, const char *key, const char *count)
{
    const char *reason = tsr_json_text(row, key);
    if (!tsr_json_int(row, count))
        return "absent";
    for (int i = 0; i < TSR_N_EXPOSURES; i++)
        if (!strcmp(reason, tsr_exposure_key(i)))
            return tsr_exposure_name(i);
    return "hidden";
}

static const char *kind_text(const json_t *row)
{
    for (int i = 0; i < TSR_N_OVERLAP_KINDS; i++)
        if (!strcmp(tsr_json_text(row, "kind"), tsr_overlap_kind_key(i)))
            return tsr_overlap_kind_name(i);
    return "";
}

static void print_overlap(FILE *out, const json_t *overlap, size_t top)
{
    size_t i;
    json_t *row;
    const json_t *a = json_object_get(overlap, "a"), *b = json_object_get(overlap, "b");
    const json_t *changed = json_object_get(overlap, "changed");
    if (!a || !b)
        return;
    fprintf(out, "\nStep time: %.2f and %.2f ms; exposed communication: %.2f and %.2f ms (%+.2f)\n",
            ms(a, "step_s"), ms(b, "step_s"), ms(a, "exposed_s"), ms(b, "exposed_s"),
            ms(overlap, "exposed_difference_s"));
    if (!json_array_size(changed)) {
        fprintf(out, "No collective is exposed more, or less\n");
        return;
    }
    fprintf(out, "  %9s %9s %9s  collectives whose exposure changed (ms)\n", "A", "B", "B - A");
    json_array_foreach(changed, i, row)
    {
        if (i == top) {
            fprintf(out, "  and %zu more\n", json_array_size(changed) - top);
            break;
        }
        fprintf(out, "  %9.2f %9.2f %+9.2f  %s (%s): %s, then %s\n", ms(row, "a_exposed_s"),
                ms(row, "b_exposed_s"), ms(row, "difference_s"), tsr_json_text(row, "name"),
                kind_text(row), reason_text(row, "a_reason", "a_collectives"),
                reason_text(row, "b_reason", "b_collectives"));
    }
}

static void tsr_diff_print(FILE *out, const json_t *report, size_t top)
{
    char allocated[TEXT_BYTES], reserved[TEXT_BYTES];
    const json_t *total = json_object_get(report, "total");
    print_run(out, "A", json_object_get(report, "a"));
    print_run(out, "B", json_object_get(report, "b"));
    fprintf(out, "B minus A: %s allocated, %s reserved\n",
            change_of(total, "allocated_difference_bytes", allocated),
            change_of(total, "reserved_difference_bytes", reserved));
    print_part(out, report);
    print_gap(out, json_object_get(report, "gap"), top);
    print_peaks(out, report, top);
    print_phases(out, json_object_get(report, "phases"));
    print_overlap(out, json_object_get(report, "overlap"), top);
}

/* ---- the command ----------------------------------------------------------------------------- */

static const char *const formats[] = {"text", "json", NULL};

static tsr_status put(const struct tsr_args *args, FILE *out, json_t *report)
{
    if (!strcmp(args->format, "json"))
        return tsr_print_report(out, report);
    if (!tsr_json_show(report))
        return tsr_no_memory("the report");
    tsr_diff_print(out, report, (size_t)args->top);
    return TSR_OK;
}

static tsr_status print(const struct tsr_args *args, const struct tsr_diff *diff)
{
    tsr_status status = TSR_OK;
    json_t *report = tsr_diff_json(diff);
    if (!report)
        return tsr_no_memory("the report, or a name in it is no UTF-8");
    struct tsr_page page;
    status = tsr_page_begin(args, &page);
    if (status == TSR_OK)
        status = tsr_page_end(&page, put(args, page.out, report));
    json_decref(report);
    return status;
}

tsr_status tsr_cmd_diff(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    struct tsr_diff diff;
    TSR_TRY(tsr_args_need_file(usage, args));
    if (!args->second_file)
        return tsr_fail(TSR_ECONFIG, "diff: found one run, %s; allowed: two", args->file);
    TSR_TRY(tsr_args_format(args, formats));
    struct tsr_study_request a = tsr_args_request(args), b = a;
    b.path = args->second_file;
    TSR_TRY(tsr_study_diff(&a, &b, &diff));
    tsr_status status = print(args, &diff);
    tsr_diff_fini(&diff);
    return status;
}
