/* csv_read.c: see csv_read.h. */
#include "experiments/study/base/csv_read.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Ends the field that begins at `from`, without its quotes (RFC 4180); the next one, or NULL. */
static char *end_field(char *from)
{
    char *to = from;
    bool quoted = *from == '"';
    from += quoted;
    while (*from && (quoted || *from != ',')) {
        if (quoted && *from == '"') {
            from++;
            quoted = *from == '"'; /* two quotes are one */
            if (!quoted)
                continue;
        }
        *to++ = *from++;
    }
    char *next = *from == ',' ? from + 1 : NULL;
    *to = '\0';
    return next;
}

/* Fields beyond TSR_CSV_FIELDS are counted, and kept nowhere. */
static void split(struct tsr_csv *table)
{
    table->n = 0;
    for (char *field = table->line; field; table->n++) {
        char *next = end_field(field);
        if (table->n < TSR_CSV_FIELDS)
            table->fields[table->n] = field;
        field = next;
    }
}

/* The next line that is no comment; false at the end. */
bool tsr_csv_next(struct tsr_csv *table)
{
    ssize_t n;
    while ((n = getline(&table->line, &table->cap, table->file)) >= 0) {
        table->number++;
        while (n > 0 && (table->line[n - 1] == '\n' || table->line[n - 1] == '\r'))
            table->line[--n] = '\0';
        if (n == 0 || table->line[0] == '#')
            continue;
        split(table);
        return true;
    }
    if (table->line) /* getline() leaves anything in it */
        table->line[0] = '\0';
    return false;
}

tsr_status tsr_csv_open(const char *path, struct tsr_csv *out)
{
    *out = (struct tsr_csv){.path = path, .file = fopen(path, "rb")};
    if (!out->file)
        return tsr_fail(TSR_ECONFIG, "%s: %s; allowed: a file that can be read", path,
                        strerror(errno));
    return TSR_OK;
}

void tsr_csv_close(struct tsr_csv *table)
{
    free(table->line);
    if (table->file)
        fclose(table->file);
}

tsr_status tsr_csv_bad(const struct tsr_csv *table, const char *what, const char *found,
                       const char *allowed)
{
    return tsr_fail(TSR_ECONFIG, "%s:%zu: %s: found \"%.60s\"; allowed: %s", table->path,
                    table->number, what, found, allowed);
}

/* The first line: the names of the columns. `is_head`: it begins as one of these files does. */
tsr_status tsr_csv_check_head(const struct tsr_csv *table, bool is_head, const char *allowed)
{
    if (!is_head)
        return tsr_csv_bad(table, "head", table->line ? table->line : "", allowed);
    if (table->n > TSR_CSV_FIELDS)
        return tsr_fail(TSR_ECONFIG, "%s:%zu: columns: found %zu; allowed: at most %d", table->path,
                        table->number, table->n, TSR_CSV_FIELDS);
    return TSR_OK;
}

tsr_status tsr_csv_seconds(const struct tsr_csv *table, size_t field, double *out)
{
    char *end = NULL;
    *out = field < table->n ? strtod(table->fields[field], &end) : NAN;
    if (end && end != table->fields[field] && !*end && isfinite(*out))
        return TSR_OK;
    return tsr_csv_bad(table, "time", field < table->n ? table->fields[field] : "", "seconds");
}

tsr_status tsr_csv_bytes(const struct tsr_csv *table, size_t field, uint64_t *out)
{
    const char *text = field < table->n ? table->fields[field] : "";
    if (!*text || strlen(text) > 18 || strspn(text, "0123456789") != strlen(text))
        return tsr_csv_bad(table, "bytes", text, "an integer");
    *out = strtoull(text, NULL, 10);
    return TSR_OK;
}
