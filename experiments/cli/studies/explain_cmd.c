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

/* ---- as text --------------------------------------------------------------------------------- */

enum { TEXT_BYTES = 32 };
enum { LEAST_HOST_BYTES = 1 << 20 }; /* every job pins a few bytes of inputs and losses */

/* Bytes of a key as text. */
static const char *bytes_of(const json_t *object, const char *key, char text[TEXT_BYTES])
{
    return tsr_bytes_text((double)tsr_json_int(object, key), text);
}

/* ---- the instant ----------------------------------------------------------------------------- */

/* "backward, micro-batch 1, lm_head, hook pre_backward, recomputing: mm" */
static void print_place(FILE *out, const json_t *place)
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
        char bytes[TEXT_BYTES];
        const char *name = tsr_json_text(row, "iteration");
        bool is_between = !strcmp(name, "early") || !strcmp(name, "step2");
        /* Those between the first and the steady one are worth a word if they go higher. */
        if (!is_between || tsr_json_int(row, "allocated_bytes") > steady)
            fprintf(out, "%s %s %s", i ? "," : "", name, bytes_of(row, "allocated_bytes", bytes));
    }
    fprintf(out, "\n");
}

/* "0.51 GiB", or "?" for null. */
static const char *known_bytes(const json_t *object, const char *key, char text[TEXT_BYTES])
{
    return json_is_integer(json_object_get(object, key)) ? bytes_of(object, key, text) : "?";
}

/* The verdict, with by how much. */
static const char *verdict_words(const json_t *card, char *out, size_t size)
{
    const char *verdict = tsr_json_text(card, "verdict");
    char bytes[TEXT_BYTES];
    double retries = json_number_value(json_object_get(card, "alloc_retries_per_step"));
    bytes_of(card, "short_of_bytes", bytes);
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
    char need[TEXT_BYTES], reserved[TEXT_BYTES], context[TEXT_BYTES], libraries[TEXT_BYTES];
    char nccl[TEXT_BYTES], usable[TEXT_BYTES], words[160];
    fprintf(out,
            "  card: needs %s (%s reserved at most, context %s, libraries %s, NCCL %s); the card "
            "has %s: %s\n",
            bytes_of(card, "needed_bytes", need), bytes_of(card, "most_reserved_bytes", reserved),
            known_bytes(card, "context_bytes", context),
            known_bytes(card, "library_bytes", libraries), known_bytes(card, "nccl_bytes", nccl),
            known_bytes(card, "usable_bytes", usable), verdict_words(card, words, sizeof words));
}

static void print_host(FILE *out, const json_t *host)
{
    char pageable[TEXT_BYTES], pinned[TEXT_BYTES];
    if (tsr_json_int(host, "host_bytes") || tsr_json_int(host, "pinned_bytes"))
        fprintf(out, "  host: %s pageable, %s pinned at most\n",
                bytes_of(host, "host_bytes", pageable), bytes_of(host, "pinned_bytes", pinned));
    const json_t *node = json_object_get(host, "node");
    char needs[TEXT_BYTES], has[TEXT_BYTES], rank[TEXT_BYTES];
    const char *verdict = tsr_json_text(node, "verdict");
    if (!tsr_json_int(node, "required_bytes"))
        return;
    fprintf(out,
            "  node: its %" JSON_INTEGER_FORMAT " ranks need %s of the host in %s (rank "
            "%" JSON_INTEGER_FORMAT " %s); the host has %s%s\n",
            tsr_json_int(node, "ranks"), bytes_of(node, "required_bytes", needs),
            tsr_json_text(node, "phase"), tsr_json_int(node, "rank"),
            bytes_of(node, "rank_bytes", rank), known_bytes(node, "memory_bytes", has),
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
    print_place(out, peak);
}

static void print_sections(FILE *out, const json_t *sections)
{
    size_t i;
    json_t *row;
    fprintf(out, "\nPeak of each part of the run (allocated, reserved, host, pinned)\n");
    json_array_foreach(sections, i, row)
    {
        char allocated[TEXT_BYTES], reserved[TEXT_BYTES], host[TEXT_BYTES], pinned[TEXT_BYTES];
        fprintf(out, "  %-6s %10s %10s %10s %10s  %s, %s\n", tsr_json_text(row, "section"),
                bytes_of(row, "allocated_bytes", allocated),
                bytes_of(row, "reserved_bytes", reserved), bytes_of(row, "host_bytes", host),
                bytes_of(row, "pinned_bytes", pinned), tsr_json_text(row, "phase"),
                tsr_json_text(row, "module"));
    }
}

/* The host's lines belong to the answer if it decides, or holds more than inputs and losses. */
static bool host_matters(const json_t *host)
{
    const json_t *node = json_object_get(host, "node");
    return !strcmp(tsr_json_text(node, "verdict"), "no") ||
           tsr_json_int(host, "host_bytes") + tsr_json_int(host, "pinned_bytes") >=
               LEAST_HOST_BYTES;
}

static void print_peak(FILE *out, FILE *notes, const json_t *report)
{
    const json_t *peak = json_object_get(report, "peak"), *host = json_object_get(report, "host");
    char allocated[TEXT_BYTES], reserved[TEXT_BYTES], requested[TEXT_BYTES];
    fprintf(out, "%s", tsr_json_text(report, "model"));
    if (*tsr_json_text(report, "cluster"))
        fprintf(out, " on %s", tsr_json_text(report, "cluster"));
    fprintf(out, ", %" JSON_INTEGER_FORMAT " GPUs, strategy %s: %s\n\n",
            tsr_json_int(report, "world"), tsr_json_text(report, "strategy"),
            tsr_json_text(report, "summary"));
    fprintf(out, "Peak: %s allocated, %s reserved\n", bytes_of(peak, "allocated_bytes", allocated),
            bytes_of(peak, "reserved_bytes", reserved));
    fprintf(out, "  when: ");
    print_when(out, peak);
    fputc('\n', out);
    fprintf(notes, "The peak\n  what: %s, %s requested (instruction %" JSON_INTEGER_FORMAT ")\n",
            *tsr_json_text(peak, "category") ? tsr_json_text(peak, "category")
                                             : "the level at the start",
            bytes_of(peak, "requested_bytes", requested), tsr_json_int(peak, "instruction"));
    fprintf(notes,
            "  whose: rank %" JSON_INTEGER_FORMAT ", class %" JSON_INTEGER_FORMAT
            " of %" JSON_INTEGER_FORMAT "\n",
            tsr_json_int(peak, "rank"), tsr_json_int(peak, "rank_class") + 1,
            tsr_json_int(peak, "rank_classes"));
    print_iterations(notes, json_object_get(report, "iterations"));
    print_card(out, json_object_get(report, "card"));
    print_host(host_matters(host) ? out : notes, host);
}

/* ---- what is alive --------------------------------------------------------------------------- */

/* "32 x 1.22 GiB", "32 x 1.00 to 1.22 GiB", "1.22 GiB" */
static void many_text(const json_t *row, const char *count, const char *least, const char *most,
                      char *out, size_t size)
{
    char low[TEXT_BYTES], high[TEXT_BYTES];
    json_int_t n = tsr_json_int(row, count);
    bytes_of(row, least, low);
    bytes_of(row, most, high);
    if (n == 1)
        snprintf(out, size, "%s", high);
    else if (tsr_json_int(row, least) == tsr_json_int(row, most))
        snprintf(out, size, "%" JSON_INTEGER_FORMAT " x %s", n, high);
    else
        snprintf(out, size, "%" JSON_INTEGER_FORMAT " x %s to %s", n, low, high);
}

/* Widths of the columns of owners. */
struct widths {
    int owner, many;
};

static void widen(int *width, const char *text)
{
    int n = (int)strlen(text);
    *width = n > *width ? n : *width;
}

static const char *owners_text(const json_t *row, char *out, size_t size)
{
    many_text(row, "owners", "smallest_owner_bytes", "largest_owner_bytes", out, size);
    return out;
}

static void print_owner(FILE *out, const json_t *row, const struct widths *widths)
{
    char bytes[TEXT_BYTES], many[96], when[64];
    snprintf(when, sizeof when, "%s%s%s", tsr_json_text(row, "allocated_in"),
             tsr_json_flag(row, "recomputed") ? ", recomputed" : "",
             tsr_json_flag(row, "earlier_iteration") ? ", earlier iteration" : "");
    fprintf(out, "    %10s  %-*s  %-*s  %s\n", bytes_of(row, "bytes", bytes), widths->owner,
            tsr_json_text(row, "owner"), widths->many, owners_text(row, many, sizeof many), when);
}

/* Those that print_owners() shows. */
static void measure_owners(const json_t *owners, const char *category, size_t top,
                           struct widths *widths)
{
    size_t i, shown = 0;
    json_t *row;
    json_array_foreach(owners, i, row)
    {
        char many[96];
        if (strcmp(tsr_json_text(row, "category"), category) != 0 || shown++ >= top)
            continue;
        widen(&widths->owner, tsr_json_text(row, "owner"));
        widen(&widths->many, owners_text(row, many, sizeof many));
    }
}

/* The first `top` owners of a category; the rest in one line. */
static void print_owners(FILE *out, const json_t *owners, const char *category, size_t top,
                         const struct widths *widths)
{
    size_t i, shown = 0, more = 0;
    json_int_t rest = 0;
    json_t *row;
    json_array_foreach(owners, i, row)
    {
        if (strcmp(tsr_json_text(row, "category"), category) != 0)
            continue;
        if (shown++ < top) {
            print_owner(out, row, widths);
            continue;
        }
        more++;
        rest += tsr_json_int(row, "bytes");
    }
    char bytes[TEXT_BYTES];
    if (more)
        fprintf(out, "    %10s  in %zu more\n", tsr_bytes_text((double)rest, bytes), more);
}

static void print_categories(FILE *out, const json_t *alive, size_t top,
                             const struct widths *widths)
{
    const json_t *owners = json_object_get(alive, "owners");
    size_t i;
    json_t *row;
    char bytes[TEXT_BYTES];
    json_array_foreach(json_object_get(alive, "by_category"), i, row)
    {
        fprintf(out, "  %10s  %-*s  %5.1f %%\n", bytes_of(row, "bytes", bytes), widths->owner + 2,
                tsr_json_text(row, "category"),
                100 * json_real_value(json_object_get(row, "share")));
        print_owners(out, owners, tsr_json_text(row, "category"), top, widths);
    }
}

/* `where`: the title of the table. */
static void print_owned(FILE *out, const char *where, const json_t *alive, size_t top)
{
    const json_t *modules = json_object_get(alive, "modules");
    struct widths widths = {0};
    size_t i;
    json_t *row;
    char bytes[TEXT_BYTES];
    json_array_foreach(json_object_get(alive, "by_category"), i, row)
    {
        widen(&widths.owner, tsr_json_text(row, "category"));
        measure_owners(json_object_get(alive, "owners"), tsr_json_text(row, "category"), top,
                       &widths);
    }
    measure_owners(modules, "Activation", 2 * top, &widths);
    fprintf(out,
            "\n%s: %s in %" JSON_INTEGER_FORMAT
            " buffers, by category and owner (with the phase that allocated)\n",
            where, bytes_of(alive, "bytes", bytes), tsr_json_int(alive, "buffers"));
    print_categories(out, alive, top, &widths);
    if (!json_array_size(modules))
        return;
    fprintf(out, "\nModules that own the activations\n");
    print_owners(out, modules, "Activation", 2 * top, &widths);
}

/* The first owner of a category: the largest. */
static const json_t *largest_owner(const json_t *alive, const char *category)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(alive, "owners"), i, row)
    {
        if (!strcmp(tsr_json_text(row, "category"), category))
            return row;
    }
    return NULL;
}

/* The categories that matter, each with its largest owner. */
static void print_alive(FILE *out, const json_t *alive)
{
    size_t i, n_more = 0;
    json_int_t more = 0;
    json_t *row;
    char bytes[TEXT_BYTES], part[TEXT_BYTES], many[96];
    fprintf(out, "\nAlive at the peak: %s, by category, with the largest owner\n",
            bytes_of(alive, "bytes", bytes));
    json_array_foreach(json_object_get(alive, "by_category"), i, row)
    {
        const char *category = tsr_json_text(row, "category");
        double share = json_real_value(json_object_get(row, "share"));
        const json_t *owner = largest_owner(alive, category);
        if (share < 0.01 || !owner) {
            more += tsr_json_int(row, "bytes");
            n_more++;
            continue;
        }
        owners_text(owner, many, sizeof many);
        fprintf(out, "  %10s  %4.1f %%  %-16s  %s", bytes_of(row, "bytes", bytes), 100 * share,
                category, tsr_json_text(owner, "owner"));
        if (tsr_json_int(owner, "owners") > 1)
            fprintf(out, ", %s", many);
        else if (tsr_json_int(owner, "bytes") < tsr_json_int(row, "bytes"))
            fprintf(out, ", %s", bytes_of(owner, "bytes", part));
        fputc('\n', out);
    }
    if (n_more)
        fprintf(out, "  %10s  in %zu more\n", tsr_bytes_text((double)more, bytes), n_more);
}

/* Shows what the fullest rank holds on its host. */
static void print_host_owners(FILE *out, const json_t *host, size_t top)
{
    const json_t *alive = json_object_get(host, "alive");
    char where[96], bytes[TEXT_BYTES];
    const char *verdict = tsr_json_text(json_object_get(host, "node"), "verdict");
    if (tsr_json_int(alive, "bytes") < LEAST_HOST_BYTES && strcmp(verdict, "no") != 0)
        return;
    snprintf(where, sizeof where,
             "On the host of rank %" JSON_INTEGER_FORMAT " at its peak there (%s)",
             tsr_json_int(host, "rank"), tsr_json_text(json_object_get(host, "peak"), "phase"));
    print_owned(out, where, alive, top);
    if (tsr_json_int(host, "cached_bytes"))
        fprintf(out, "  %10s  page-locked, and no buffer uses it\n",
                bytes_of(host, "cached_bytes", bytes));
}

/* ---- questions of debugging ------------------------------------------------------------------ */

static void print_unsharded(FILE *out, const json_t *unsharded, bool is_step, size_t top)
{
    const json_t *rows = json_object_get(unsharded, "at_peak");
    const json_t *most = json_object_get(unsharded, "most");
    size_t i;
    json_t *row;
    char param[TEXT_BYTES], gather[TEXT_BYTES];
    int width = 0;
    json_array_foreach(rows, i, row)
    {
        if (i < top)
            widen(&width, tsr_json_text(row, "unit"));
    }
    fprintf(out, "\nUnits with unsharded parameters at the peak: %zu\n", json_array_size(rows));
    json_array_foreach(rows, i, row)
    {
        if (i == top) {
            fprintf(out, "  and %zu more\n", json_array_size(rows) - top);
            break;
        }
        fprintf(out, "  %-*s  %10s unsharded, %10s all-gather buffer\n", width,
                tsr_json_text(row, "unit"), bytes_of(row, "unsharded_param_bytes", param),
                bytes_of(row, "all_gather_bytes", gather));
    }
    fprintf(out, "  most in this %s: %s in %" JSON_INTEGER_FORMAT " units, ",
            is_step ? "iteration" : "part of the run", bytes_of(most, "bytes", param),
            tsr_json_int(most, "units"));
    print_place(out, most);
    fprintf(out, "\n");
}

static void print_checkpointing(FILE *out, const json_t *c)
{
    size_t i;
    json_t *row;
    char bytes[TEXT_BYTES], many[96];
    fprintf(out,
            "\nCheckpointing: %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
            " blocks are recomputed in backward\n",
            tsr_json_int(c, "recomputed_blocks"), tsr_json_int(c, "blocks"));
    json_array_foreach(json_object_get(c, "kept"), i, row)
    {
        many_text(row, "blocks", "smallest_block_bytes", "largest_block_bytes", many, sizeof many);
        fprintf(out, "  %10s  activations that %s blocks of %s keep after forward: %s\n",
                bytes_of(row, "bytes", bytes),
                tsr_json_flag(row, "recomputed") ? "recomputed" : "other",
                tsr_json_text(row, "owner"), many);
    }
    fprintf(out, "  %10s  all activations after forward;",
            bytes_of(c, "activation_bytes_after_forward", bytes));
    fprintf(out, " %s are left after backward\n",
            bytes_of(c, "activation_bytes_after_backward", bytes));
}

/* ---- other peaks ----------------------------------------------------------------------------- */

static void print_phases(FILE *out, const json_t *phases)
{
    size_t i;
    json_t *row;
    fprintf(out, "\nPeak of each phase (allocated, reserved)\n");
    json_array_foreach(phases, i, row)
    {
        char allocated[TEXT_BYTES], reserved[TEXT_BYTES];
        fprintf(out, "  %10s  %10s  ", bytes_of(row, "allocated_bytes", allocated),
                bytes_of(row, "reserved_bytes", reserved));
        if (tsr_json_flag(row, "level_at_start"))
            fprintf(out, "%s: the level at its start\n", tsr_json_text(row, "phase"));
        else {
            print_place(out, row);
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
        char bytes[TEXT_BYTES];
        size_t k;
        if (i == top)
            break;
        fprintf(out, "  %10s  ", bytes_of(row, "allocated_bytes", bytes));
        print_place(out, row);
        fprintf(out, "\n%14s", "");
        json_array_foreach(json_object_get(json_object_get(row, "alive"), "by_category"), k,
                           category)
        {
            if (k == 5)
                break;
            fprintf(out, "%s%s %s", k ? ", " : "", tsr_json_text(category, "category"),
                    bytes_of(category, "bytes", bytes));
        }
        fprintf(out, "\n");
    }
}

/* ---- the allocator --------------------------------------------------------------------------- */

static void print_allocator(FILE *out, const json_t *a)
{
    size_t i;
    json_t *pool;
    char bytes[TEXT_BYTES], used[TEXT_BYTES], cached[TEXT_BYTES], inactive[TEXT_BYTES];
    fprintf(out, "\nAllocated against reserved at the peak\n");
    fprintf(out, "  %10s  requested\n", bytes_of(a, "requested_bytes", bytes));
    fprintf(out, "  %10s  rounding\n", bytes_of(a, "rounding_bytes", bytes));
    fprintf(out, "  %10s  allocated\n", bytes_of(a, "allocated_bytes", bytes));
    fprintf(out, "  %10s  free in segments that are in use (inactive split)\n",
            bytes_of(a, "inactive_split_bytes", bytes));
    fprintf(out, "  %10s  cached: segments that are free as a whole\n",
            bytes_of(a, "cached_bytes", bytes));
    fprintf(out, "  %10s  reserved\n", bytes_of(a, "reserved_bytes", bytes));
    int width = (int)strlen("stream's pool");
    json_array_foreach(json_object_get(a, "pools"), i, pool)
    {
        widen(&width, tsr_json_text(pool, "stream"));
    }
    fprintf(out, "  %-*s  %10s  %10s  %14s  %10s  %8s\n", width, "stream's pool", "reserved",
            "allocated", "inactive split", "cached", "segments");
    json_array_foreach(json_object_get(a, "pools"), i, pool)
    {
        fprintf(out, "  %-*s  %10s  %10s  %14s  %10s  %8" JSON_INTEGER_FORMAT "\n", width,
                tsr_json_text(pool, "stream"), bytes_of(pool, "reserved_bytes", bytes),
                bytes_of(pool, "allocated_bytes", used),
                bytes_of(pool, "inactive_split_bytes", inactive),
                bytes_of(pool, "cached_bytes", cached), tsr_json_int(pool, "segments"));
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
    print_alive(out, json_object_get(report, "alive"));
    if (what_if)
        tsr_explain_print_what_if(out, what_if, top);
    print_trust(out, report);
    print_owned(notes, "Alive at the peak", json_object_get(report, "alive"), top);
    print_host_owners(notes, json_object_get(report, "host"), top);
    bool is_step = tsr_json_int(json_object_get(report, "peak"), "iteration_number") >= 0;
    print_unsharded(notes, json_object_get(report, "unsharded"), is_step, top);
    print_checkpointing(notes, json_object_get(report, "checkpointing"));
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
