/* report_text.c: names and text shared by the report's files. */
#include "experiments/study/report/report_text.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/csv.h"
#include "experiments/study/job/owner.h"
#include "sim/base/text.h"

#ifndef TSR_VERSION
#define TSR_VERSION "unknown"
#endif

const char *tsr__version(void)
{
    return TSR_VERSION;
}

/* Could a file or folder of the study itself, beside the folders of strategies, have this name? */
static bool names_output(const char *name)
{
    static const char *const endings[] = {".csv", ".json", ".yaml", ".html", ".svg", ".png"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t k = strlen(endings[i]);
        if (n > k && !strcmp(name + n - k, endings[i]))
            return true;
    }
    return !strcmp(name, "rows"); /* of compare --part */
}

void tsr__folder_name(const char *strategy, char *out, size_t size)
{
    enum { HASH_ROOM = 10 };
    size_t n = 0;
    bool changed = strategy[0] == '\0' || names_output(strategy);
    for (const char *at = strategy; *at; at++) {
        bool keep =
            isalnum((unsigned char)*at) || strchr("_-+=@", *at) || (*at == '.' && at != strategy);
        if (n + HASH_ROOM >= size) {
            changed = true; /* cut: the hash tells long names apart */
            break;
        }
        out[n++] = '_';
        if (keep)
            out[n - 1] = *at;
        changed |= !keep;
    }
    out[n] = '\0';
    uint64_t hash = tsr_hash_bytes(TSR_HASH_INIT, strategy, strlen(strategy));
    if (changed)
        (void)snprintf(out + n, size - n, "-%08" PRIx32, (uint32_t)hash);
}

const char *tsr__ranks_text(const struct tsr_study_info *info, char out[32])
{
    if (info->most_world > info->world)
        snprintf(out, 32, "%" PRIu32 " to %" PRIu32, info->world, info->most_world);
    else
        snprintf(out, 32, "%" PRIu32, info->world);
    return out;
}

const char *tsr__machine_text(const struct tsr_study_info *info, char out[64])
{
    char ranks[32];
    (void)tsr__ranks_text(info, ranks);
    if (info->cores)
        snprintf(out, 64, "%s ranks on %" PRIu32 " cores", ranks, info->cores);
    else
        snprintf(out, 64, "%s %s", ranks, info->measured ? "ranks" : "GPUs");
    return out;
}

bool tsr__is_mixed(const struct tsr_row *rows, size_t n)
{
    size_t n_measured = 0;
    for (size_t i = 0; i < n; i++)
        n_measured += rows[i].measured;
    return n_measured > 0 && n_measured < n;
}

const char *tsr_bytes_text(double bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int unit = 0;
    /* Three digits before the point at most, also when rounded: columns keep their width. */
    while (bytes >= (unit ? 999.995 : 999.5) && unit < 5) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, 32, unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
    return out;
}

double tsr__token_s(const struct tsr_row *row)
{
    return row->tokens_per_rank ? row->steady.step_s / (double)row->tokens_per_rank : 0;
}

int tsr__fastest_row(const struct tsr_row *rows, size_t n, int fits, unsigned changes)
{
    int best = -1;
    bool mixed = tsr__is_mixed(rows, n);
    for (size_t i = 0; i < n; i++)
        if (!rows[i].failure[0] && !(mixed && rows[i].measured) && rows[i].fits == fits &&
            rows[i].changes.kinds == changes &&
            (best < 0 || tsr__token_s(&rows[i]) < tsr__token_s(&rows[best])))
            best = (int)i;
    return best;
}

int tsr__best_row(const struct tsr_row *rows, size_t n)
{
    /* what fits; else with retries, which no model has right to the millisecond; else perhaps */
    static const int order[] = {TSR_FITS_YES, TSR_FITS_RETRIES, TSR_FITS_UNKNOWN};
    for (unsigned changes = 0; changes <= TSR_ALL_CHANGES; changes++)
        for (size_t k = 0; k < sizeof order / sizeof *order; k++) {
            int best = tsr__fastest_row(rows, n, order[k], changes);
            if (best >= 0)
                return best;
        }
    return -1;
}

/* Rows that the front is made of: those that fit and change neither numbers nor hardware; where
 * there is none, all that fit; else all. */
static bool is_candidate(const struct tsr_row *rows, size_t n, const struct tsr_row *row)
{
    int rank = 0, best = 0;
    for (size_t i = 0; i < n; i++) {
        const struct tsr_row *r = &rows[i];
        int is = r->failure[0] ? 0 : r->fits == 0 ? 1 : r->changes.kinds ? 2 : 3;
        best = is > best ? is : best;
        rank = r == row ? is : rank;
    }
    return rank > 0 && rank == best;
}

/* Nothing else is at least as fast and as small: a row of the Pareto front. */
bool tsr__on_front(const struct tsr_row *rows, size_t n, size_t i)
{
    const struct tsr_row *a = &rows[i];
    if (!is_candidate(rows, n, a))
        return false;
    for (size_t j = 0; j < n; j++) {
        const struct tsr_row *b = &rows[j];
        if (!is_candidate(rows, n, b) || j == i)
            continue;
        bool no_worse = tsr__token_s(b) <= tsr__token_s(a) && b->peak_reserved <= a->peak_reserved;
        bool equal = tsr__token_s(b) >= tsr__token_s(a) && b->peak_reserved >= a->peak_reserved;
        if (no_worse && (!equal || j < i))
            return false;
    }
    return true;
}

const struct tsr_run_words *tsr__run_of(const struct tsr_study_info *info, const char *strategy)
{
    for (size_t i = 0; i < info->n_runs; i++)
        if (!strcmp(info->runs[i].strategy, strategy))
            return &info->runs[i];
    return NULL;
}

double tsr__unknown_share(const struct tsr_row *row)
{
    bool is_known = !row->failure[0] && !row->measured && row->steady.step_s > 0;
    return is_known ? row->unknown_s / row->steady.step_s : -1;
}

bool tsr__any_unknown(const struct tsr_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (tsr__unknown_share(&rows[i]) > 0)
            return true;
    return false;
}

bool tsr__same_tokens(const struct tsr_row *rows, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (rows[i].tokens_per_rank != rows[0].tokens_per_rank)
            return false;
    return true;
}

/* A comment line must stay one line whatever a name contains. */
static void put_comment(FILE *out, const char *key, const char *text)
{
    fprintf(out, "# %s: ", key);
    tsr_text_put(out, text);
    fputc('\n', out);
}

void tsr__put_provenance(FILE *out, const struct tsr_study_info *info, const char *strategy,
                         const char *columns)
{
    fprintf(out, "# tessera %s, %s\n", tsr__version(), info->measured ? "measured" : "simulated");
    put_comment(out, "experiment", info->config_path);
    put_comment(out, "model", info->model_name);
    char ranks[32];
    fprintf(out, "# world size: %s\n", tsr__ranks_text(info, ranks));
    put_comment(out, "cluster", info->cluster_name);
    put_comment(out, "device file", info->device_file);
    if (strategy)
        put_comment(out, "strategy", strategy);
    put_comment(out, "columns", columns);
}

const uint8_t tsr__stack_order[TSR_N_CATEGORIES] = {
    TSR_CAT_SHARDED_PARAM,
    TSR_CAT_BUFFER,
    TSR_CAT_OPT_STATE,
    TSR_CAT_SHARDED_GRAD,
    TSR_CAT_INPUTS,
    TSR_CAT_POST_FORWARD_SHARD,
    TSR_CAT_UNSHARDED_PARAM,
    TSR_CAT_ALL_GATHER_INPUT,
    TSR_CAT_ALL_GATHER,
    TSR_CAT_ACTIVATION,
    TSR_CAT_UNSHARDED_ACC_GRAD,
    TSR_CAT_UNSHARDED_GRAD,
    TSR_CAT_REDUCE_SCATTER,
    TSR_CAT_REDUCE_SCATTER_OUTPUT,
    TSR_CAT_PARTIAL_REDUCE_OUTPUT,
    TSR_CAT_OPT_TEMP,
    TSR_CAT_TEMP,
    TSR_CAT_WORKSPACE,
    TSR_CAT_INIT,
};

void tsr__category_key(int category, char *out, size_t size)
{
    size_t n = 0;
    bool after_small = false; /* "OptState" becomes "opt_state" */
    for (const char *c = tsr_category_name(category); *c && n + 2 < size; c++) {
        if (after_small && isupper((unsigned char)*c))
            out[n++] = '_';
        out[n++] = isalnum((unsigned char)*c) ? (char)tolower((unsigned char)*c) : '_';
        after_small = islower((unsigned char)*c) != 0;
    }
    out[n] = '\0';
}

bool tsr__is_collective(const struct tsr_instr *instr)
{
    switch (instr->kind) {
    case TSR_ALL_GATHER:
    case TSR_REDUCE_SCATTER:
    case TSR_ALL_REDUCE:
    case TSR_BROADCAST:
    case TSR_ALL_TO_ALL:
    case TSR_SEND:
    case TSR_RECV:
    case TSR_CUSTOM_COLLECTIVE:
        return true;
    default:
        return false;
    }
}

bool tsr__is_busy_work(const struct tsr_instr *instr)
{
    return instr->kind == TSR_COPY || instr->kind == TSR_FILL || instr->kind == TSR_OP ||
           tsr__is_collective(instr);
}

static const char *short_kind(int kind)
{
    switch (kind) {
    case TSR_ALL_GATHER:
        return "AG";
    case TSR_REDUCE_SCATTER:
        return "RS";
    case TSR_ALL_REDUCE:
        return "AR";
    case TSR_BROADCAST:
        return "broadcast";
    case TSR_ALL_TO_ALL:
        return "all-to-all";
    case TSR_SEND:
        return "send";
    case TSR_RECV:
        return "recv";
    case TSR_CUSTOM_COLLECTIVE:
        return "custom";
    case TSR_FILL:
        return "fill";
    case TSR_COPY:
        return "copy";
    default:
        return tsr_instr_kind_name(kind);
    }
}

void tsr__work_label(const struct tsr_tables *tables, const struct tsr_instr *instr, char *out,
                     size_t size)
{
    if (!tsr__is_collective(instr)) {
        bool named = instr->work && instr->work->name;
        (void)snprintf(out, size, "%s", named ? instr->work->name : short_kind(instr->kind));
        return;
    }
    /* A collective moves a group's parameters: the group says more than the module of the hook. */
    char name[96] = "", buffer[32];
    if (instr->origin.group < tables->n_groups && tables->groups[instr->origin.group][0])
        tsr__short_name(tables->groups[instr->origin.group], name, sizeof name);
    else
        tsr__short_name(tsr_owner_of(tables, &instr->origin, buffer), name, sizeof name);
    (void)snprintf(out, size, "%s %s", short_kind(instr->kind), name);
}

/* Start of the component of an FQN that ends at `end`. */
static const char *component(const char *begin, const char *end)
{
    while (end > begin && end[-1] != '.')
        end--;
    return end;
}

/* One FQN: its last component, with the number of the block that it is in. */
static int short_fqn(const char *begin, const char *end, char *out, size_t size)
{
    const char *last = component(begin, end);
    const char *before = last > begin ? component(begin, last - 1) : last;
    if (isdigit((unsigned char)*last)) /* "layers.5" */
        return snprintf(out, size, "%.*s", (int)(end - before), before);
    const char *number = before;
    while (number > begin && !isdigit((unsigned char)*number))
        number = component(begin, number - 1);
    if (!isdigit((unsigned char)*number)) /* "embed_tokens" */
        return snprintf(out, size, "%.*s", (int)(end - last), last);
    int digits = (int)strspn(number, "0123456789"); /* "5.mlp", "5.q_proj" */
    return snprintf(out, size, "%.*s.%.*s", digits, number, (int)(end - last), last);
}

void tsr__short_name(const char *name, char *out, size_t size)
{
    size_t n = 0;
    out[0] = '\0';
    while (*name && n + 1 < size) {
        const char *end = name + strcspn(name, ",");
        int wrote = n ? snprintf(out + n, size - n, ", ") : 0;
        n += (size_t)wrote < size - n ? (size_t)wrote : 0;
        wrote = short_fqn(name, end, out + n, size - n);
        n = wrote > 0 && (size_t)wrote < size - n ? n + (size_t)wrote : size - 1;
        name = *end ? end + 1 : end;
        while (*name == ' ')
            name++;
    }
}
