/* explain_what_if_text.c: the what-ifs of `tessera explain` as text. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/inspect/inspect.h"
#include "experiments/cli/studies/text.h"
#include "experiments/study/base/literals.h"

enum { TEXT_BYTES = 32, HOST_BYTES = 64 };

/* Changes of the step time below it are shown as zero. */
static const double LEAST_STEP_S = 0.05e-3;

static void changes_text(const json_t *row, char *out, size_t size)
{
    size_t i;
    json_t *change;
    out[0] = '\0';
    json_array_foreach(json_object_get(row, "set"), i, change)
    {
        size_t used = strlen(out);
        snprintf(out + used, size - used, "%s%s", i ? " " : "", json_string_value(change));
    }
}

/* "-12.40 GiB", "+1.00 MiB", "0" */
static const char *change_text(json_int_t saving, char text[TEXT_BYTES + 1])
{
    if (saving == 0)
        return "0";
    text[0] = saving > 0 ? '-' : '+';
    tsr_bytes_text(saving > 0 ? (double)saving : -(double)saving, text + 1);
    return text;
}

static const char *effect_text(const json_t *row)
{
    const char *effect = tsr_json_text(row, "effect");
    if (!strcmp(effect, "numbers"))
        return "  (other numbers)";
    return !strcmp(effect, "gpus") ? "  (more GPUs)" : "";
}

/* Returns the mark of a change that needs software which the strategy does not use: the `+` of
 * compare. */
static const char *needs_text(const json_t *row)
{
    return *tsr_json_text(row, "needs") ? "  (needs other software)" : "";
}

static json_int_t host_bytes(const json_t *row)
{
    return tsr_json_int(row, "host_bytes") + tsr_json_int(row, "pinned_bytes");
}

/* "  (+11.22 GiB on the host)", "" */
static const char *host_text(const json_t *row, const json_t *base, char text[HOST_BYTES])
{
    char change[TEXT_BYTES + 1];
    json_int_t less = host_bytes(base) - host_bytes(row);
    snprintf(text, HOST_BYTES, less ? "  (%s on the host)" : "", change_text(less, change));
    return text;
}

/* How long the tokens of the strategy's own step take in a row: rows are alike by time per token
 * and GPU, however many a step of theirs has. */
static double comparable_s(const json_t *row, const json_t *base)
{
    double step = json_real_value(json_object_get(row, "step_s"));
    json_int_t tokens = tsr_json_int(row, "tokens_per_gpu_and_step");
    json_int_t of_base = tsr_json_int(base, "tokens_per_gpu_and_step");
    return tokens && of_base ? step / (double)tokens * (double)of_base : step;
}

static void print_change(FILE *out, const json_t *row, const json_t *base)
{
    char allocated[TEXT_BYTES + 1], reserved[TEXT_BYTES + 1], peak[TEXT_BYTES], changes[256];
    char host[HOST_BYTES];
    const json_t *step = json_object_get(row, "step_s"), *was = json_object_get(base, "step_s");
    changes_text(row, changes, sizeof changes);
    fprintf(out, "  %11s %11s %11s",
            change_text(tsr_json_int(row, "saves_allocated_bytes"), allocated),
            change_text(tsr_json_int(row, "saves_reserved_bytes"), reserved),
            tsr_bytes_text((double)tsr_json_int(row, "allocated_bytes"), peak));
    if (json_is_real(was) && json_is_real(step))
        fprintf(out, " %+8.1f ms", 1e3 * (comparable_s(row, base) - json_real_value(was)));
    else if (json_is_real(was))
        fprintf(out, " %11s", "?");
    fprintf(out, "  %s%s%s%s%s\n", changes, needs_text(row), effect_text(row),
            host_text(row, base, host), tsr_verdict_remark(row));
}

static bool is_already_set(const json_t *row, const json_t *base)
{
    (void)base;
    return tsr_json_flag(row, "already_set");
}

/* Nothing that the table would show differs from the strategy itself. */
static bool has_no_effect(const json_t *row, const json_t *base)
{
    if (!json_is_null(json_object_get(row, "failure")) || tsr_json_flag(row, "already_set"))
        return false;
    if (tsr_json_int(row, "saves_allocated_bytes") || tsr_json_int(row, "saves_reserved_bytes") ||
        host_bytes(row) != host_bytes(base))
        return false;
    return json_equal(json_object_get(row, "verdict"), json_object_get(base, "verdict")) &&
           fabs(comparable_s(row, base) - comparable_s(base, base)) < LEAST_STEP_S;
}

/* It needs more than the card has, and saves nothing either. */
static bool only_larger(const json_t *row, const json_t *base)
{
    (void)base;
    return json_is_null(json_object_get(row, "failure")) && !tsr_json_flag(row, "already_set") &&
           json_is_false(json_object_get(row, "fits")) &&
           tsr_json_int(row, "saves_allocated_bytes") <= 0 &&
           tsr_json_int(row, "saves_reserved_bytes") <= 0 && !has_no_effect(row, base);
}

/* The rows of one kind in one list, folded. */
static void print_list(FILE *out, const char *title, const json_t *rows, const json_t *base,
                       bool (*is_in)(const json_t *row, const json_t *base))
{
    size_t i, column = 0;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        char changes[256];
        changes_text(row, changes, sizeof changes);
        if (!is_in(row, base))
            continue;
        bool folds = column && column + strlen(changes) + 3 > 100;
        if (column == 0)
            column = (size_t)fprintf(out, "  %s: %s", title, changes);
        else if (folds)
            column = (size_t)fprintf(out, ",\n    %s", changes) - 2;
        else
            column += (size_t)fprintf(out, ", %s", changes);
    }
    if (column)
        fprintf(out, "\n");
}

/* A row of the table, which lowers or raises something. */
static bool is_listed(const json_t *row, const json_t *base)
{
    return json_is_null(json_object_get(row, "failure")) && !tsr_json_flag(row, "already_set") &&
           !has_no_effect(row, base) && !only_larger(row, base);
}

/* Returns true if a change lowers the peak, fits, needs no other software, and changes neither
 * numbers nor the number of GPUs. */
static bool lowers(const json_t *row, const json_t *base)
{
    return is_listed(row, base) && tsr_json_int(row, "saves_allocated_bytes") > 0 &&
           !*effect_text(row) && !*needs_text(row) && !json_is_false(json_object_get(row, "fits"));
}

const json_t *tsr_explain_first_change(const json_t *what_if)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(what_if, "rows"), i, row)
    {
        if (lowers(row, json_object_get(what_if, "base")))
            return row;
    }
    return NULL;
}

/* The first `top` rows; 0: all, and the lists of what is in no row. */
static void print_rows(FILE *out, const json_t *what_if, size_t top)
{
    const json_t *rows = json_object_get(what_if, "rows"), *base = json_object_get(what_if, "base");
    size_t i;
    json_t *row;
    bool timed = json_is_real(json_object_get(base, "step_s"));
    fprintf(out, "  %11s %11s %11s%s  change\n", "allocated", "reserved", "then",
            timed ? "   step time" : "");
    size_t shown = 0, more = 0;
    json_array_foreach(rows, i, row)
    {
        if (!is_listed(row, base))
            continue;
        if (top && shown == top) {
            more++;
            continue;
        }
        print_change(out, row, base);
        shown++;
    }
    if (more)
        fprintf(out, "  and %zu more, and what has no effect: --notes\n", more);
    if (top)
        return;
    json_array_foreach(rows, i, row)
    {
        char changes[256];
        changes_text(row, changes, sizeof changes);
        if (tsr_json_flag(row, "out_of_memory"))
            fprintf(out, "  out of memory: %s\n", changes);
        else if (!json_is_null(json_object_get(row, "failure")))
            fprintf(out, "  not possible: %s (%s)\n", changes, tsr_json_text(row, "failure"));
    }
    print_list(out, "larger, and does not fit", rows, base, only_larger);
    print_list(out, "no effect", rows, base, has_no_effect);
    print_list(out, "already set", rows, base, is_already_set);
}

static void print_best(FILE *out, const json_t *what_if, const char *key, const char *name)
{
    const json_t *sets = json_object_get(what_if, key), *base = json_object_get(what_if, "base");
    const json_t *best = json_object_get(sets, "best");
    const json_t *same = json_object_get(sets, "best_same_training");
    if (!tsr_json_int(sets, "emitted"))
        return;
    fprintf(out,
            "Best %s%s, of %" JSON_INTEGER_FORMAT " emitted (%" JSON_INTEGER_FORMAT " possible)\n",
            tsr_json_int(sets, "emitted") < tsr_json_int(sets, "possible") ? "found " : "", name,
            tsr_json_int(sets, "emitted"), tsr_json_int(sets, "possible"));
    struct {
        const json_t *row;
        const char *what;
    } lines[] = {{best, ""}, {json_equal(best, same) ? NULL : same, "with the same training:\n"}};
    for (size_t i = 0; i < 2; i++) {
        if (!lines[i].row || json_is_null(lines[i].row))
            continue;
        fprintf(out, "%s%s", *lines[i].what ? "  " : "", lines[i].what);
        print_change(out, lines[i].row, base);
    }
}

void tsr_explain_print_what_if(FILE *out, const json_t *what_if, size_t top)
{
    fprintf(out,
            "\nWhat if: change of the steady peaks; each row is an emission of its own "
            "(%" JSON_INTEGER_FORMAT " in all)\n",
            tsr_json_int(what_if, "emissions"));
    print_rows(out, what_if, top);
    print_best(out, what_if, "pairs", "pair");
    print_best(out, what_if, "triples", "triple");
}

/* ---- what to do next ------------------------------------------------------------------------- */

void tsr_print_change_next(FILE *out, const struct tsr_args *args, const char *strategy,
                           const json_t *change)
{
    const json_t *sets = json_object_get(change, "set");
    size_t i;
    json_t *set;
    if (!change)
        return;
    fputs("Next, what", out);
    json_array_foreach(sets, i, set) fprintf(out, " %s", json_string_value(set));
    fputs(" changes in time and memory:\n\n    tessera compare ", out);
    tsr__put_word(out, args->file);
    fputs(" --only ", out);
    tsr__put_word(out, strategy);
    for (size_t k = 0; k < args->n_sets; k++) {
        fputs(" --set ", out);
        tsr__put_word(out, args->sets[k]);
    }
    json_array_foreach(sets, i, set)
    {
        fputs(" --set ", out);
        tsr__put_word(out, json_string_value(set));
    }
    fputc('\n', out);
}
