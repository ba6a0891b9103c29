/* csv.c: reads tables, whole or line by line. */
#include "experiments/study/base/csv.h"
#include "experiments/study/base/gz.h"
#include "sim/base/files.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/base/text_check.h"

enum { MAX_COLUMNS = 256, MAX_LINE_BYTES = 1 << 20 };

/* A field without its quotes, in place: it ends before `end`; `next` is the comma, the line's end
 * or the text's. */
struct field {
    char *start, *end, *next;
    int lines; /* ends of lines inside its quotes */
    bool open; /* a quote does not end */
};

static struct field take_off(char *from)
{
    struct field field = {.start = from, .end = from, .open = *from == '"'};
    char *quoted = from; /* the end of what stood in quotes */
    from += field.open;
    while (*from && (field.open || (*from != ',' && *from != '\n'))) {
        if (field.open && *from == '"' && from[1] != '"') {
            field.open = false;
            quoted = field.end;
            from++;
            continue;
        }
        from += field.open && *from == '"'; /* two quotes are one */
        field.lines += *from == '\n';
        *field.end++ = *from++;
    }
    field.next = from;
    if (*from == '\n' && field.end > quoted && field.end[-1] == '\r')
        field.end--;
    if (field.end - field.start > 1 && *field.start == '\'' &&
        strchr(TSR_CSV_MARKED "'", field.start[1]))
        field.start++;
    return field;
}

/* ---- a whole table ----------------------------------------------------------------------- */

/* Where the reader stands. */
struct reader {
    struct tsr_csv *csv;
    char *at;
    int line;
    const char *cells[MAX_COLUMNS];
    size_t n_cells;
    size_t cap_rows;
};

static tsr_status take_field(struct reader *r, const char **out, bool *last)
{
    struct field field = take_off(r->at);
    *out = field.start;
    if (field.open)
        return tsr_fail(TSR_ECONFIG, "%s:%d: found a quote that does not end; allowed: \"...\"",
                        r->csv->path, r->line);
    r->line += field.lines;
    *last = *field.next != ',';
    r->at = field.next + (*field.next != 0);
    *field.end = 0;
    return TSR_OK;
}

static tsr_status take_line(struct reader *r)
{
    bool last = false;
    for (r->n_cells = 0; !last;) {
        const char *field = NULL;
        TSR_TRY(take_field(r, &field, &last));
        if (r->n_cells == MAX_COLUMNS)
            return tsr_fail(TSR_ECONFIG, "%s:%d: found more than %d fields; allowed: up to %d",
                            r->csv->path, r->line, MAX_COLUMNS, MAX_COLUMNS);
        r->cells[r->n_cells++] = field;
    }
    return TSR_OK;
}

static const char **keep_cells(struct reader *r)
{
    const char **cells = tsr_arena_alloc(&r->csv->arena, (r->n_cells + 1) * sizeof(*cells));
    if (cells)
        memcpy(cells, r->cells, r->n_cells * sizeof(*cells));
    return cells;
}

static tsr_status take_head(struct reader *r)
{
    struct tsr_csv *csv = r->csv;
    for (size_t i = 0; i < r->n_cells; i++)
        for (size_t k = 0; k < i; k++)
            if (!strcmp(r->cells[i], r->cells[k]))
                return tsr_fail(TSR_ECONFIG, "%s:%d: found column \"%s\" twice; allowed: once",
                                csv->path, r->line, r->cells[i]);
    csv->columns = keep_cells(r);
    csv->n_columns = r->n_cells;
    return csv->columns ? TSR_OK : tsr_no_memory(NULL);
}

static tsr_status take_row(struct reader *r, int line)
{
    struct tsr_csv *csv = r->csv;
    if (r->n_cells != csv->n_columns)
        return tsr_fail(TSR_ECONFIG, "%s:%d: found %zu fields; allowed: %zu, as in the head line",
                        csv->path, line, r->n_cells, csv->n_columns);
    struct tsr_csv_row row = {line, keep_cells(r)};
    if (!row.cells || !TSR_PUSH(csv->rows, csv->n_rows, r->cap_rows, row))
        return tsr_no_memory(NULL);
    return TSR_OK;
}

static tsr_status parse(struct tsr_csv *csv, char *text)
{
    struct reader r = {.csv = csv, .at = text};
    while (*r.at) {
        int line = ++r.line;
        bool skipped = *r.at == '#' || *r.at == '\n' || !strncmp(r.at, "\r\n", 2);
        if (skipped) {
            char *end = strchr(r.at, '\n');
            r.at = end ? end + 1 : r.at + strlen(r.at);
            continue;
        }
        TSR_TRY(take_line(&r));
        TSR_TRY(csv->columns ? take_row(&r, line) : take_head(&r));
    }
    if (!csv->columns)
        return tsr_fail(TSR_ECONFIG, "%s: found no line; allowed: a CSV table with a head line",
                        csv->path);
    return TSR_OK;
}

tsr_status tsr_csv_load(const char *path, struct tsr_csv *out)
{
    char *text = NULL;
    size_t n;
    memset(out, 0, sizeof(*out));
    TSR_TRY(tsr_text_load(path, &text, &n));
    tsr_arena_init(&out->arena);
    out->path = tsr_arena_strdup(&out->arena, path);
    char *start = tsr_arena_strdup(&out->arena, text);
    free(text);
    tsr_status status = out->path && start ? TSR_OK : tsr_no_memory(NULL);
    if (status == TSR_OK) /* a byte-order mark is no part of the first column's name */
        status = parse(out, start + (strncmp(start, "\xEF\xBB\xBF", 3) ? 0 : 3));
    if (status != TSR_OK)
        tsr_csv_fini(out);
    return status;
}

void tsr_csv_fini(struct tsr_csv *csv)
{
    free(csv->rows);
    tsr_arena_fini(&csv->arena);
    memset(csv, 0, sizeof(*csv));
}

size_t tsr_csv_column(const struct tsr_csv *csv, const char *name)
{
    size_t i = 0;
    while (i < csv->n_columns && strcmp(csv->columns[i], name))
        i++;
    return i;
}

const char *tsr_csv_cell(const struct tsr_csv *csv, const struct tsr_csv_row *row, const char *name)
{
    size_t i = tsr_csv_column(csv, name);
    return i < csv->n_columns ? row->cells[i] : "";
}

tsr_status tsr_csv_number(const struct tsr_csv *csv, const struct tsr_csv_row *row,
                          const char *name, double *out, bool *found)
{
    const char *cell = tsr_csv_cell(csv, row, name);
    char *end = NULL;
    *found = false;
    *out = 0;
    if (!*cell)
        return TSR_OK;
    double value = strtod(cell, &end);
    if (*end || end == cell || !isfinite(value))
        return tsr_fail(TSR_ECONFIG, "%s:%d: column %s: found \"%.80s\"; allowed: a number",
                        csv->path, row->line, name, cell);
    *out = value;
    *found = true;
    return TSR_OK;
}

/* ---- line by line ------------------------------------------------------------------------ */

/* Fields beyond TSR_CSV_FIELDS are counted, and kept nowhere. False: a quote does not end. */
static bool split(struct tsr_csv_reader *table)
{
    table->n = 0;
    for (char *field = table->line; field; table->n++) {
        struct field taken = take_off(field);
        char *next = *taken.next == ',' ? taken.next + 1 : NULL;
        if (taken.open)
            return false;
        *taken.end = '\0';
        if (table->n < TSR_CSV_FIELDS)
            table->fields[table->n] = taken.start;
        field = next;
    }
    return true;
}

/* No line: the file says why in tsr_csv_end(). */
static bool stop(struct tsr_csv_reader *table, const char *flaw)
{
    snprintf(table->flaw, sizeof table->flaw, "%s", flaw);
    if (table->line)
        table->line[0] = '\0';
    return false;
}

/* A quote that the line begins is not ended by it: as take_off() sees it. */
static bool is_open(const char *at)
{
    bool open = false, first = true;
    for (; *at; at++) {
        if (*at == '"' && (open || first)) {
            if (open && at[1] == '"')
                at++;
            else
                open = !open;
            first = false;
        } else {
            first = !open && *at == ',';
        }
    }
    return open;
}

/* Appends lines until no quote is open. */
static ssize_t take_record(struct tsr_csv_reader *table, ssize_t n)
{
    char *more = NULL;
    size_t cap = 0;
    ssize_t k = 0;
    while (n < TSR_CSV_RECORD_BYTES && table->line[0] != '#' && is_open(table->line) &&
           (k = getline(&more, &cap, table->file)) > 0) {
        char *grown = realloc(table->line, (size_t)(n + k) + 1);
        if (!grown)
            break;
        memcpy(grown + n, more, (size_t)k + 1);
        table->line = grown;
        table->cap = (size_t)(n + k) + 1;
        table->number++;
        n += k;
    }
    free(more);
    return n;
}

bool tsr_csv_next(struct tsr_csv_reader *table)
{
    ssize_t n;
    struct tsr_text_flaw flaw;
    while (!table->flaw[0] && (n = getline(&table->line, &table->cap, table->file)) >= 0) {
        size_t first = ++table->number;
        n = take_record(table, n);
        while (n > 0 && (table->line[n - 1] == '\n' || table->line[n - 1] == '\r'))
            table->line[--n] = '\0';
        if (n > MAX_LINE_BYTES)
            return stop(table, "a line of more than 1 MiB");
        if (tsr_text_find_flaw(table->line, (size_t)n, &flaw))
            return stop(table, flaw.text);
        if (n == 0 || table->line[0] == '#')
            continue;
        if (split(table))
            return true;
        table->number = first; /* where the record begins */
        return stop(table, "found a quote that does not end; allowed: \"...\"");
    }
    if (ferror(table->file))
        return stop(table, strerror(errno));
    if (table->line) /* getline() leaves anything in it */
        table->line[0] = '\0';
    return false;
}

tsr_status tsr_csv_end(const struct tsr_csv_reader *table)
{
    if (!table->flaw[0])
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "%s:%zu: %s", table->path, table->number, table->flaw);
}

/* A compressed file is read as a whole. */
static tsr_status open_packed(const char *path, struct tsr_csv_reader *out)
{
    size_t n = 0;
    *out = (struct tsr_csv_reader){.path = path};
    TSR_TRY(tsr_gz_load(path, TSR_GZ_BYTES, &out->text, &n));
    out->file = n ? fmemopen(out->text, n, "r") : fopen("/dev/null", "r");
    if (out->file)
        return TSR_OK;
    free(out->text);
    return tsr_no_memory(path);
}

tsr_status tsr_csv_open(const char *path, struct tsr_csv_reader *out)
{
    const char *why;
    size_t n = strlen(path);
    if (n > 3 && !strcmp(path + n - 3, ".gz"))
        return open_packed(path, out);
    *out = (struct tsr_csv_reader){.path = path, .file = tsr_file_stream(NULL, path, &why)};
    if (!out->file)
        return tsr_fail(TSR_ECONFIG, "%s: %s; allowed: a file that can be read", path, why);
    return TSR_OK;
}

void tsr_csv_close(struct tsr_csv_reader *table)
{
    free(table->line);
    if (table->file)
        fclose(table->file);
    free(table->text);
}

tsr_status tsr_csv_bad(const struct tsr_csv_reader *table, const char *what, const char *found,
                       const char *allowed)
{
    return tsr_fail(TSR_ECONFIG, "%s:%zu: %s: found \"%.60s\"; allowed: %s", table->path,
                    table->number, what, found, allowed);
}

tsr_status tsr_csv_check_head(const struct tsr_csv_reader *table, bool is_head, const char *allowed)
{
    TSR_TRY(tsr_csv_end(table));
    if (!is_head)
        return tsr_csv_bad(table, "head", table->line ? table->line : "", allowed);
    if (table->n > TSR_CSV_FIELDS)
        return tsr_fail(TSR_ECONFIG, "%s:%zu: columns: found %zu; allowed: at most %d", table->path,
                        table->number, table->n, TSR_CSV_FIELDS);
    return TSR_OK;
}

tsr_status tsr_csv_seconds(const struct tsr_csv_reader *table, size_t field, double *out)
{
    char *end = NULL;
    *out = field < table->n ? strtod(table->fields[field], &end) : NAN;
    if (end && end != table->fields[field] && !*end && isfinite(*out))
        return TSR_OK;
    return tsr_csv_bad(table, "time", field < table->n ? table->fields[field] : "", "seconds");
}

tsr_status tsr_csv_bytes(const struct tsr_csv_reader *table, size_t field, uint64_t *out)
{
    const char *text = field < table->n ? table->fields[field] : "";
    if (!*text || strlen(text) > 18 || strspn(text, "0123456789") != strlen(text))
        return tsr_csv_bad(table, "bytes", text, "an integer");
    *out = strtoull(text, NULL, 10);
    return TSR_OK;
}
