/* report_rows.c: the rows of a comparison as CSV and JSON.
 *
 * A column is a name, a type and a place in struct tsr_row, or a function. Unknown values (a
 * negative MFU, figures of a failed row) are empty in CSV and null in JSON, never 0.
 */
#include "experiments/study/report/report.h"

#include "experiments/study/base/json.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/report/validated.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum column_type {
    TEXT,
    U64,
    U32,
    I64,
    INT,
    REAL,
    HASH,
    TRISTATE,
    VERDICT,
    HOST_VERDICT,
    ERROR_WORD,
    DERIVED
};

struct column {
    const char *name;
    enum column_type type;
    size_t offset;                             /* in struct tsr_row */
    double (*derived)(const struct tsr_row *); /* DERIVED; negative: unknown */
    bool always;                               /* also known of a failed row */
};

static double tokens_per_s(const struct tsr_row *row)
{
    return row->steady.step_s > 0 ? (double)row->tokens_per_rank / row->steady.step_s : -1;
}

static double exposed_share(const struct tsr_row *row)
{
    return row->steady.step_s > 0 ? row->steady.exposed_s / row->steady.step_s : -1;
}

static double unknown_s(const struct tsr_row *row)
{
    return row->measured ? -1 : row->unknown_s;
}

static double mfu(const struct tsr_row *row)
{
    return row->mfu;
}

static double if_sampled(const struct tsr_row *row, double value)
{
    return row->samples.n ? value : -1;
}

static double n_samples(const struct tsr_row *row)
{
    return if_sampled(row, row->samples.n);
}

static double sampled_p5(const struct tsr_row *row)
{
    return if_sampled(row, row->samples.p5_s);
}

static double sampled_p50(const struct tsr_row *row)
{
    return if_sampled(row, row->samples.p50_s);
}

static double sampled_p95(const struct tsr_row *row)
{
    return if_sampled(row, row->samples.p95_s);
}

/* The error of a time that is like those that were measured. */
static double if_measured(const struct tsr_row *row, double value)
{
    const struct tsr_time_error *e = &row->time_error;
    return e->is_predicted && !e->extrapolated ? value : -1;
}

static double error_rows(const struct tsr_row *row)
{
    return if_measured(row, row->time_error.rows);
}

static double error_median(const struct tsr_row *row)
{
    return if_measured(row, row->time_error.median);
}

static double error_p90(const struct tsr_row *row)
{
    return if_measured(row, row->time_error.p90);
}

#define AT(field) offsetof(struct tsr_row, field)
#define KNOWN(name, type, field)          \
    {                                     \
        name, type, AT(field), NULL, true \
    }
#define COLUMN(name, type, field)          \
    {                                      \
        name, type, AT(field), NULL, false \
    }
#define DERIVE(name, function)            \
    {                                     \
        name, DERIVED, 0, function, false \
    }
static const struct column columns[] = {
    KNOWN("strategy", TEXT, strategy),
    KNOWN("summary", TEXT, summary),
    KNOWN("failure", TEXT, failure),
    KNOWN("exit_status", INT, failure_status),
    KNOWN("changes", TEXT, changes.words),
    KNOWN("world_size", U32, world),
    KNOWN("tokens_per_gpu_and_step", U64, tokens_per_rank),
    COLUMN("step_time_s", REAL, steady.step_s),
    DERIVE("tokens_per_s_per_gpu", tokens_per_s),
    DERIVE("mfu", mfu),
    COLUMN("peak_allocated_bytes", U64, peak_allocated),
    COLUMN("peak_reserved_bytes", U64, peak_reserved),
    COLUMN("usable_bytes", U64, usable_bytes),
    COLUMN("most_reserved_bytes", U64, most_reserved),
    COLUMN("needed_bytes", U64, needed),
    COLUMN("context_bytes", I64, context_bytes),
    COLUMN("library_bytes", I64, library_bytes),
    COLUMN("nccl_bytes", I64, nccl_bytes),
    COLUMN("nccl_at_most_bytes", U64, fit.nccl_at_most),
    COLUMN("run_workspace_bytes", U64, run_workspace_bytes),
    COLUMN("run_workspace_deterministic_bytes", U64, run_workspace_deterministic_bytes),
    COLUMN("host_bytes", U64, host_bytes),
    COLUMN("pinned_bytes", U64, pinned_bytes),
    COLUMN("fits", TRISTATE, fits),
    COLUMN("verdict", VERDICT, fits),
    COLUMN("gpu_verdict", VERDICT, fit.verdict),
    COLUMN("host_verdict", HOST_VERDICT, node_host.verdict),
    COLUMN("host_required_bytes_per_node", U64, node_host.required),
    COLUMN("host_steady_bytes_per_node", U64, node_host.steady),
    COLUMN("host_memory_bytes_per_node", U64, node_host.memory),
    COLUMN("host_shortfall_bytes_per_node", U64, node_host.shortfall),
    COLUMN("host_peak_phase", TEXT, node_host.section),
    COLUMN("host_peak_node", U32, node_host.node),
    COLUMN("host_dataset_bytes_per_node", U64, node_host.dataset),
    COLUMN("left_to_allocator_bytes", U64, fit.left),
    COLUMN("left_surely_bytes", U64, fit.left_surely),
    COLUMN("wanted_bytes", U64, fit.wanted),
    COLUMN("short_of_bytes", U64, fit.short_of),
    COLUMN("alloc_retries_per_step", REAL, fit.retries),
    COLUMN("alloc_retry_s", REAL, retry_s),
    COLUMN("peak_module", TEXT, peak_module),
    COLUMN("peak_phase", TEXT, peak_phase),
    COLUMN("compute_s", REAL, steady.compute_s),
    DERIVE("unknown_kernels_s", unknown_s),
    DERIVE("unknown_kernels_share", tsr__unknown_share),
    COLUMN("communication_s", REAL, steady.comm_s),
    COLUMN("exposed_communication_s", REAL, steady.exposed_s),
    DERIVE("exposed_communication_share", exposed_share),
    COLUMN("exposed_gather_s", REAL, steady.exposed_gather_s),
    COLUMN("exposed_reduce_s", REAL, steady.exposed_reduce_s),
    COLUMN("host_bound_s", REAL, steady.host_bound_s),
    COLUMN("sent_inside_nodes_bytes_per_gpu", U64, steady.sent_intra),
    COLUMN("sent_between_nodes_bytes_per_gpu", U64, steady.sent_inter),
    COLUMN("collectives", U64, steady.n_collectives),
    COLUMN("flop_per_gpu", REAL, steady.flops),
    COLUMN("model_flop_per_gpu", REAL, steady.model_flops),
    COLUMN("first_step_time_s", REAL, first.step_s),
    COLUMN("first_exposed_communication_s", REAL, first.exposed_s),
    COLUMN("first_peak_allocated_bytes", U64, first_peak_allocated),
    COLUMN("first_peak_reserved_bytes", U64, first_peak_reserved),
    COLUMN("program_hash", HASH, program_hash),
    COLUMN("expected_executed_hash", HASH, expected_exec_hash),
    COLUMN("executed_hash", HASH, exec_hash),
    COLUMN("instructions", U64, n_instructions),
    COLUMN("iterations", U32, n_iterations),
    COLUMN("rank_classes", U32, n_rank_classes),
    COLUMN("simulated_ranks", U32, n_simulated_ranks),
    COLUMN("simulator_activities", U64, n_activities),
    DERIVE("samples", n_samples),
    DERIVE("step_time_p5_s", sampled_p5),
    DERIVE("step_time_p50_s", sampled_p50),
    DERIVE("step_time_p95_s", sampled_p95),
    KNOWN("device", TEXT, device),
    KNOWN("time_error", ERROR_WORD, time_error),
    DERIVE("time_error_rows", error_rows),
    DERIVE("time_error_median", error_median),
    DERIVE("time_error_p90", error_p90),
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

/* One value, taken out of a row. */
struct value {
    enum column_type type; /* TEXT, U64, INT, REAL, HASH or TRISTATE */
    bool known;
    const char *text;
    uint64_t integer;
    int number;
    double real;
};

/* Without ranks there is no sum of them (of a run); the memory of the host may not be stated. */
static bool is_known_of_host(const struct tsr_row *row, const struct column *column)
{
    size_t begin = AT(node_host), end = begin + sizeof row->node_host;
    if (column->offset < begin || column->offset >= end || column->type == HOST_VERDICT)
        return true;
    bool needs_memory =
        column->offset == AT(node_host.memory) || column->offset == AT(node_host.shortfall);
    return row->node_host.ranks && (!needs_memory || row->node_host.memory);
}

static struct value value_of(const struct tsr_row *row, const struct column *column)
{
    const void *at = (const char *)row + column->offset;
    struct value value = {.type = column->type, .known = column->always || !row->failure[0]};
    switch (column->type) {
    case TEXT:
        value.text = at;
        break;
    case U64:
    case HASH:
        memcpy(&value.integer, at, sizeof value.integer);
        break;
    case U32: {
        uint32_t small;
        memcpy(&small, at, sizeof small);
        value.integer = small;
        value.type = U64;
        break;
    }
    case I64: { /* negative: unknown */
        int64_t bytes;
        memcpy(&bytes, at, sizeof bytes);
        value.known = value.known && bytes >= 0;
        value.integer = bytes >= 0 ? (uint64_t)bytes : 0;
        value.type = U64;
        break;
    }
    case INT:
    case TRISTATE:
        memcpy(&value.number, at, sizeof value.number);
        value.known = value.known && (column->type == INT || value.number >= 0);
        break;
    case VERDICT:
        memcpy(&value.number, at, sizeof value.number);
        value.text = tsr_fits_word(value.number);
        value.type = TEXT;
        break;
    case HOST_VERDICT:
        memcpy(&value.number, at, sizeof value.number);
        value.text = tsr_host_word(value.number);
        value.type = TEXT;
        break;
    case ERROR_WORD:
        value.text = tsr_time_error_word(&row->time_error);
        value.type = TEXT;
        break;
    case REAL:
        memcpy(&value.real, at, sizeof value.real);
        break;
    case DERIVED:
        value.real = column->derived(row);
        value.known = value.known && value.real >= 0;
        value.type = REAL;
        break;
    }
    if (value.type == REAL && !isfinite(value.real))
        value.known = false;
    /* The file says `null` where the card's memory is unknown, or what retries cost. */
    bool of_card = column->offset == AT(usable_bytes) || column->offset == AT(fit.left) ||
                   column->offset == AT(fit.left_surely);
    if (column->type == U64 && of_card && row->usable_bytes == 0)
        value.known = false;
    if (!is_known_of_host(row, column))
        value.known = false;
    if (column->offset == AT(retry_s) && value.real < 0)
        value.known = false;
    return value;
}

/* ---- CSV ---------------------------------------------------------------------------------- */

static void put_value_csv(FILE *out, const struct value *value)
{
    if (!value->known)
        return;
    switch (value->type) {
    case TEXT:
        tsr__put_csv(out, value->text);
        break;
    case HASH:
        fprintf(out, "%016" PRIx64, value->integer);
        break;
    case TRISTATE:
        fputs(value->number ? "yes" : "no", out);
        break;
    case INT:
        fprintf(out, "%d", value->number);
        break;
    case REAL:
        fprintf(out, "%.9g", value->real);
        break;
    default:
        fprintf(out, "%" PRIu64, value->integer);
        break;
    }
}

static const char *const section_names[TSR_N_SECTIONS] = {TSR_SECTION_WORDS};

static void put_section_heads(FILE *out)
{
    for (int s = 0; s < TSR_N_SECTIONS; s++)
        fprintf(out, ",%s_peak_allocated_bytes,%s_peak_reserved_bytes", section_names[s],
                section_names[s]);
}

/* Empty: the run has no such section. */
static void put_sections_csv(FILE *out, const struct tsr_row *row)
{
    for (int i = 0; i < TSR_N_SECTIONS; i++) {
        const struct tsr_section_peak *s = &row->sections[i];
        if (row->failure[0] || !s->there)
            fputs(",,", out);
        else
            fprintf(out, ",%" PRIu64 ",%" PRIu64, s->allocated, s->reserved);
    }
}

void tsr__put_rows_csv(FILE *out, const struct tsr_row *rows, size_t n)
{
    char key[64];
    fputs("schema_version", out);
    for (int c = 0; c < N_COLUMNS; c++)
        fprintf(out, ",%s", columns[c].name);
    for (int c = 0; c < TSR_N_CATEGORIES; c++) {
        tsr__category_key(c, key, sizeof key);
        fprintf(out, ",peak_%s_bytes", key);
    }
    put_section_heads(out);
    fputc('\n', out);
    for (size_t i = 0; i < n; i++) {
        fprintf(out, "%d", TSR__ROWS_SCHEMA);
        for (int c = 0; c < N_COLUMNS; c++) {
            struct value value = value_of(&rows[i], &columns[c]);
            fputc(',', out);
            put_value_csv(out, &value);
        }
        for (int c = 0; c < TSR_N_CATEGORIES; c++) {
            if (rows[i].failure[0])
                fputc(',', out);
            else
                fprintf(out, ",%" PRIu64, rows[i].peak_by_category[c]);
        }
        put_sections_csv(out, &rows[i]);
        fputc('\n', out);
    }
}

/* ---- JSON --------------------------------------------------------------------------------- */

json_t *tsr__text_json(const char *text)
{
    if (!text)
        return json_null();
    json_t *value = json_string(text);
    char *copy = value ? NULL : strdup(text);
    for (char *c = copy; c && *c; c++) {
        if ((unsigned char)*c >= 0x80)
            *c = '?';
    }
    if (copy)
        value = json_string(copy);
    free(copy);
    return value;
}

static json_t *value_json(const struct value *value)
{
    char hash[24];
    if (!value->known)
        return json_null();
    switch (value->type) {
    case TEXT:
        return tsr__text_json(value->text);
    case HASH:
        (void)snprintf(hash, sizeof hash, "%016" PRIx64, value->integer);
        return json_string(hash);
    case TRISTATE:
        return json_boolean(value->number);
    case INT:
        return json_integer(value->number);
    case REAL:
        return json_real(value->real);
    default:
        return json_integer((json_int_t)value->integer);
    }
}

static json_t *section_json(const struct tsr_row *row, const struct tsr_section_peak *s)
{
    json_t *node = row->node_host.ranks ? json_integer((json_int_t)s->node_host) : json_null();
    return json_pack("{sIsIsIsIsososs}", "peak_allocated_bytes", (json_int_t)s->allocated,
                     "peak_reserved_bytes", (json_int_t)s->reserved, "host_bytes",
                     (json_int_t)s->host, "pinned_bytes", (json_int_t)s->pinned,
                     "host_bytes_per_node", node, "peak_module", tsr__text_json(s->module),
                     "peak_phase", s->phase);
}

/* Sections that the run has, by name. */
static bool add_sections(json_t *out, const struct tsr_row *row)
{
    json_t *sections = json_object();
    if (json_object_set_new(out, "peak_bytes_by_section", sections) != 0)
        return false;
    for (int i = 0; i < TSR_N_SECTIONS && !row->failure[0]; i++)
        if (row->sections[i].there &&
            json_object_set_new(sections, section_names[i], section_json(row, &row->sections[i])) !=
                0)
            return false;
    return true;
}

json_t *tsr__row_json(const struct tsr_row *row)
{
    char key[64];
    json_t *out = json_object();
    for (int c = 0; out && c < N_COLUMNS; c++) {
        struct value value = value_of(row, &columns[c]);
        if (json_object_set_new(out, columns[c].name, value_json(&value)) != 0)
            goto fail;
    }
    json_t *peak = json_object();
    if (json_object_set_new(out, "peak_bytes_by_category", peak) != 0)
        goto fail;
    for (int c = 0; c < TSR_N_CATEGORIES && !row->failure[0]; c++) {
        tsr__category_key(c, key, sizeof key);
        if (json_object_set_new(peak, key, json_integer((json_int_t)row->peak_by_category[c])) != 0)
            goto fail;
    }
    if (!add_sections(out, row))
        goto fail;
    return out;
fail:
    json_decref(out);
    return NULL;
}

static void read_text(const json_t *value, void *at, size_t size)
{
    const char *text = json_string_value(value);
    snprintf(at, size, "%s", text ? text : "");
}

/* Room of the texts of a row. */
static size_t text_size(const struct column *column)
{
    static const struct {
        size_t offset, size;
    } texts[] = {{AT(strategy), sizeof((struct tsr_row *)0)->strategy},
                 {AT(summary), sizeof((struct tsr_row *)0)->summary},
                 {AT(failure), sizeof((struct tsr_row *)0)->failure},
                 {AT(node_host.section), sizeof((struct tsr_row *)0)->node_host.section},
                 {AT(peak_module), sizeof((struct tsr_row *)0)->peak_module},
                 {AT(peak_phase), sizeof((struct tsr_row *)0)->peak_phase},
                 {AT(device), sizeof((struct tsr_row *)0)->device}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].offset == column->offset)
            return texts[i].size;
    return 1;
}

static int verdict_of(const char *word)
{
    for (int verdict = TSR_FITS_NO; word && verdict <= TSR_FITS_RETRIES; verdict++)
        if (!strcmp(word, tsr_fits_word(verdict)))
            return verdict;
    return TSR_FITS_UNKNOWN;
}

static int host_verdict_of(const char *word)
{
    for (int verdict = TSR_HOST_FITS; word && verdict <= TSR_HOST_TOO_SMALL; verdict++)
        if (!strcmp(word, tsr_host_word(verdict)))
            return verdict;
    return TSR_HOST_UNKNOWN;
}

static void read_value(const json_t *value, const struct column *column, struct tsr_row *row)
{
    void *at = (char *)row + column->offset;
    const char *text = json_string_value(value);
    switch (column->type) {
    case TEXT:
        read_text(value, at, text_size(column));
        break;
    case U64:
        *(uint64_t *)at = (uint64_t)json_integer_value(value);
        break;
    case HASH:
        *(uint64_t *)at = text ? strtoull(text, NULL, 16) : 0;
        break;
    case U32:
        *(uint32_t *)at = (uint32_t)json_integer_value(value);
        break;
    case I64:
        *(int64_t *)at = json_is_integer(value) ? json_integer_value(value) : -1;
        break;
    case INT:
        *(int *)at = (int)json_integer_value(value);
        break;
    case TRISTATE:
        *(int *)at = json_is_boolean(value) ? json_is_true(value) : -1;
        break;
    case VERDICT:
        *(int *)at = verdict_of(text);
        break;
    case HOST_VERDICT:
        *(int *)at = host_verdict_of(text);
        break;
    case REAL:
        *(double *)at =
            column->offset == AT(retry_s) && !json_is_number(value) ? -1 : json_number_value(value);
        break;
    case ERROR_WORD: /* of a run: its time is no prediction */
    case DERIVED:
        break;
    }
}

void tsr__row_of_json(const json_t *object, struct tsr_row *row)
{
    char key[64];
    const json_t *peak = json_object_get(object, "peak_bytes_by_category");
    const json_t *known_mfu = json_object_get(object, "mfu");
    memset(row, 0, sizeof *row);
    for (int c = 0; c < N_COLUMNS; c++)
        read_value(json_object_get(object, columns[c].name), &columns[c], row);
    for (int c = 0; c < TSR_N_CATEGORIES; c++) {
        tsr__category_key(c, key, sizeof key);
        row->peak_by_category[c] = (uint64_t)json_integer_value(json_object_get(peak, key));
    }
    row->mfu = json_is_number(known_mfu) ? json_number_value(known_mfu) : -1;
    row->fit.usable = row->usable_bytes;
    row->fit.has_nccl = row->nccl_bytes >= 0;
    row->fit.nccl = row->fit.has_nccl ? (uint64_t)row->nccl_bytes : 0;
}
