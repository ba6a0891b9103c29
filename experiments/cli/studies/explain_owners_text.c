/* explain_owners_text.c: what is alive at the peak of `tessera explain`, as text: categories, their
 * owners, unsharded parameters, and what checkpointing keeps.
 */
#include <stdio.h>
#include <string.h>

#include "experiments/cli/studies/text.h"

/* ---- what is alive --------------------------------------------------------------------------- */

/* "32 x 1.22 GiB", "32 x 1.00 to 1.22 GiB", "1.22 GiB" */
static void many_text(const json_t *row, const char *count, const char *least, const char *most,
                      char *out, size_t size)
{
    char low[TSR_JSON_BYTES_TEXT], high[TSR_JSON_BYTES_TEXT];
    json_int_t n = tsr_json_int(row, count);
    tsr_json_bytes(row, least, low);
    tsr_json_bytes(row, most, high);
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

static const char *owners_text(const json_t *row, char *out, size_t size)
{
    many_text(row, "owners", "smallest_owner_bytes", "largest_owner_bytes", out, size);
    return out;
}

static void print_owner(FILE *out, const json_t *row, const struct widths *widths)
{
    char bytes[TSR_JSON_BYTES_TEXT], many[96], when[64];
    snprintf(when, sizeof when, "%s%s%s", tsr_json_text(row, "allocated_in"),
             tsr_json_flag(row, "recomputed") ? ", recomputed" : "",
             tsr_json_flag(row, "earlier_iteration") ? ", earlier iteration" : "");
    fprintf(out, "    %10s  %-*s  %-*s  %s\n", tsr_json_bytes(row, "bytes", bytes), widths->owner,
            tsr_json_text(row, "owner"), widths->many, owners_text(row, many, sizeof many), when);
}

/* Widens the columns for the owners that print_owners() shows. */
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
        tsr_widen(&widths->owner, tsr_json_text(row, "owner"));
        tsr_widen(&widths->many, owners_text(row, many, sizeof many));
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
    char bytes[TSR_JSON_BYTES_TEXT];
    if (more)
        fprintf(out, "    %10s  in %zu more\n", tsr_bytes_text((double)rest, bytes), more);
}

static void print_categories(FILE *out, const json_t *alive, size_t top,
                             const struct widths *widths)
{
    const json_t *owners = json_object_get(alive, "owners");
    size_t i;
    json_t *row;
    char bytes[TSR_JSON_BYTES_TEXT];
    json_array_foreach(json_object_get(alive, "by_category"), i, row)
    {
        fprintf(out, "  %10s  %-*s  %5.1f %%\n", tsr_json_bytes(row, "bytes", bytes),
                widths->owner + 2, tsr_json_text(row, "category"),
                100 * json_real_value(json_object_get(row, "share")));
        print_owners(out, owners, tsr_json_text(row, "category"), top, widths);
    }
}

/* `where`: the title of the table. */
void tsr_explain_print_owned(FILE *out, const char *where, const json_t *alive, size_t top)
{
    const json_t *modules = json_object_get(alive, "modules");
    struct widths widths = {0};
    size_t i;
    json_t *row;
    char bytes[TSR_JSON_BYTES_TEXT];
    json_array_foreach(json_object_get(alive, "by_category"), i, row)
    {
        tsr_widen(&widths.owner, tsr_json_text(row, "category"));
        measure_owners(json_object_get(alive, "owners"), tsr_json_text(row, "category"), top,
                       &widths);
    }
    measure_owners(modules, "Activation", 2 * top, &widths);
    fprintf(out,
            "\n%s: %s in %" JSON_INTEGER_FORMAT
            " buffers, by category and owner (with the phase that allocated)\n",
            where, tsr_json_bytes(alive, "bytes", bytes), tsr_json_int(alive, "buffers"));
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
void tsr_explain_print_alive(FILE *out, const json_t *alive)
{
    size_t i, n_more = 0;
    json_int_t more = 0;
    json_t *row;
    char bytes[TSR_JSON_BYTES_TEXT], part[TSR_JSON_BYTES_TEXT], many[96];
    fprintf(out, "\nAlive at the peak: %s, by category, with the largest owner\n",
            tsr_json_bytes(alive, "bytes", bytes));
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
        fprintf(out, "  %10s  %4.1f %%  %-16s  %s", tsr_json_bytes(row, "bytes", bytes),
                100 * share, category, tsr_json_text(owner, "owner"));
        if (tsr_json_int(owner, "owners") > 1)
            fprintf(out, ", %s", many);
        else if (tsr_json_int(owner, "bytes") < tsr_json_int(row, "bytes"))
            fprintf(out, ", %s", tsr_json_bytes(owner, "bytes", part));
        fputc('\n', out);
    }
    if (n_more)
        fprintf(out, "  %10s  in %zu more\n", tsr_bytes_text((double)more, bytes), n_more);
}

/* Shows what the fullest rank holds on its host. */
void tsr_explain_print_host_owners(FILE *out, const json_t *host, size_t top)
{
    const json_t *alive = json_object_get(host, "alive");
    char where[96], bytes[TSR_JSON_BYTES_TEXT];
    const char *verdict = tsr_json_text(json_object_get(host, "node"), "verdict");
    if (tsr_json_int(alive, "bytes") < TSR_EXPLAIN_LEAST_HOST_BYTES && strcmp(verdict, "no") != 0)
        return;
    snprintf(where, sizeof where,
             "On the host of rank %" JSON_INTEGER_FORMAT " at its peak there (%s)",
             tsr_json_int(host, "rank"), tsr_json_text(json_object_get(host, "peak"), "phase"));
    tsr_explain_print_owned(out, where, alive, top);
    if (tsr_json_int(host, "cached_bytes"))
        fprintf(out, "  %10s  page-locked, and no buffer uses it\n",
                tsr_json_bytes(host, "cached_bytes", bytes));
}

/* ---- questions of debugging ------------------------------------------------------------------ */

void tsr_explain_print_unsharded(FILE *out, const json_t *unsharded, bool is_step, size_t top)
{
    const json_t *rows = json_object_get(unsharded, "at_peak");
    const json_t *most = json_object_get(unsharded, "most");
    size_t i;
    json_t *row;
    char param[TSR_JSON_BYTES_TEXT], gather[TSR_JSON_BYTES_TEXT];
    int width = 0;
    json_array_foreach(rows, i, row)
    {
        if (i < top)
            tsr_widen(&width, tsr_json_text(row, "unit"));
    }
    fprintf(out, "\nUnits with unsharded parameters at the peak: %zu\n", json_array_size(rows));
    json_array_foreach(rows, i, row)
    {
        if (i == top) {
            fprintf(out, "  and %zu more\n", json_array_size(rows) - top);
            break;
        }
        fprintf(out, "  %-*s  %10s unsharded, %10s all-gather buffer\n", width,
                tsr_json_text(row, "unit"), tsr_json_bytes(row, "unsharded_param_bytes", param),
                tsr_json_bytes(row, "all_gather_bytes", gather));
    }
    fprintf(out, "  most in this %s: %s in %" JSON_INTEGER_FORMAT " units, ",
            is_step ? "iteration" : "part of the run", tsr_json_bytes(most, "bytes", param),
            tsr_json_int(most, "units"));
    tsr_explain_print_place(out, most);
    fprintf(out, "\n");
}

void tsr_explain_print_checkpointing(FILE *out, const json_t *c)
{
    size_t i;
    json_t *row;
    char bytes[TSR_JSON_BYTES_TEXT], many[96];
    fprintf(out,
            "\nCheckpointing: %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
            " blocks are recomputed in backward\n",
            tsr_json_int(c, "recomputed_blocks"), tsr_json_int(c, "blocks"));
    json_array_foreach(json_object_get(c, "kept"), i, row)
    {
        many_text(row, "blocks", "smallest_block_bytes", "largest_block_bytes", many, sizeof many);
        fprintf(out, "  %10s  activations that %s blocks of %s keep after forward: %s\n",
                tsr_json_bytes(row, "bytes", bytes),
                tsr_json_flag(row, "recomputed") ? "recomputed" : "other",
                tsr_json_text(row, "owner"), many);
    }
    fprintf(out, "  %10s  all activations after forward;",
            tsr_json_bytes(c, "activation_bytes_after_forward", bytes));
    fprintf(out, " %s are left after backward\n",
            tsr_json_bytes(c, "activation_bytes_after_backward", bytes));
}
