/* page.c: lines of a report folded into the columns of a terminal. */
#include "experiments/cli/args/page.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "experiments/study/base/files.h"
#include "sim/base/text.h"

enum { MAX_CELLS = 32, LEAST_CELL = 7, SEPARATOR = 3 /* "| " and " " */ };

enum { MIN_COLUMNS = 60, ROOMY_COLUMNS = 96, PIPE_COLUMNS = 100, MAX_COLUMNS = 120 };

size_t tsr_page_columns(void)
{
    const char *given = getenv("COLUMNS");
    struct winsize window = {0};
    size_t n = 0;
    if (given && *given && strlen(given) < 6 && strspn(given, "0123456789") == strlen(given))
        n = (size_t)strtoul(given, NULL, 10);
    else if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0)
        n = window.ws_col;
    if (!n)
        return PIPE_COLUMNS;
    return n < MIN_COLUMNS ? MIN_COLUMNS : n > MAX_COLUMNS ? MAX_COLUMNS : n;
}

/* A part of the report; texts of reports have no escapes left, so a character is a column. */
struct span {
    const char *at;
    size_t n;
};

static bool begins_character(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

static size_t columns_of(struct span text)
{
    size_t n = 0;
    for (size_t i = 0; i < text.n; i++)
        n += begins_character(text.at[i]);
    return n;
}

/* Bytes of the first `columns` characters. */
static size_t bytes_of(struct span text, size_t columns)
{
    size_t i = 0;
    while (i < text.n && (columns > 0 || !begins_character(text.at[i])))
        columns -= begins_character(text.at[i++]);
    return i;
}

static struct span next_line(const char **text)
{
    struct span line = {*text, strcspn(*text, "\n")};
    *text += line.n + (line.at[line.n] == '\n');
    return line;
}

static void put(FILE *out, struct span text)
{
    (void)fwrite(text.at, 1, text.n, out);
}

static void put_blanks(FILE *out, size_t n)
{
    fprintf(out, "%*s", (int)n, "");
}

/* ---- lines ------------------------------------------------------------------------------------
 */

static size_t indent_of(struct span line)
{
    size_t n = 0;
    while (n < line.n && line.at[n] == ' ')
        n++;
    return n;
}

static bool is_command(struct span line)
{
    static const char word[] = "    tessera ";
    return line.n > sizeof word && !memcmp(line.at, word, sizeof word - 1);
}

/* Where a line goes on: below the last of its columns (what two blanks separate) that leaves room
 * for some words, else a little further right than it began. */
static size_t hang_of(struct span line)
{
    size_t indent = indent_of(line), hang = indent ? indent + 2 : 0;
    size_t most = bytes_of(line, tsr_page_columns() * 3 / 5);
    for (size_t i = indent + 2; indent && i < most; i++)
        if (line.at[i] != ' ' && line.at[i - 1] == ' ' && line.at[i - 2] == ' ')
            hang = columns_of((struct span){line.at, i});
    return hang;
}

/* The last blank that `room` columns reach, behind `least` bytes; 0: none. */
static size_t last_blank(struct span line, size_t room, size_t least, bool also_after_figures)
{
    for (size_t at = bytes_of(line, room + 1); at > least + 1; at--)
        if (line.at[at - 1] == ' ' &&
            (also_after_figures || !strchr("0123456789?", line.at[at - 2])))
            return at;
    return 0;
}

/* Bytes of the line that are printed first: up to a blank, if possible not between a figure and
 * its unit; or to the end of the first word. */
static size_t break_of(struct span line, size_t room)
{
    size_t least = indent_of(line), at = last_blank(line, room, least + room / 2, false);
    at = at ? at : last_blank(line, room, least, true);
    for (size_t i = least; !at && i < line.n; i++)
        if (line.at[i] == ' ')
            at = i;
    return at ? at : line.n;
}

/* Up to a blank that no quotes are around: before an option, if there is such a one. */
static size_t command_break_of(struct span line, size_t room)
{
    enum { NONE, PLAIN, ESCAPED } quotes = NONE; /* 'as it is', $'with \' escapes' */
    size_t option = 0, any = 0, most = bytes_of(line, room);
    for (size_t i = indent_of(line); i < line.n && (i <= most || !any); i++) {
        if (line.at[i] == '\\' && quotes != PLAIN)
            i++; /* a quote behind it neither opens nor closes */
        else if (line.at[i] == '\'')
            quotes = quotes ? NONE : i && line.at[i - 1] == '$' ? ESCAPED : PLAIN;
        if (i >= line.n || line.at[i] != ' ' || quotes)
            continue;
        any = i;
        option = line.at[i + 1] == '-' ? i : option;
    }
    return option ? option : any ? any : line.n;
}

static void put_line(FILE *out, struct span line)
{
    bool command = is_command(line);
    size_t hang = command ? indent_of(line) + 2 : hang_of(line), used = 0;
    size_t columns = tsr_page_columns();
    while (used + columns_of(line) > columns) {
        size_t room = columns - used, n;
        n = command ? command_break_of(line, room - 2) : break_of(line, room);
        struct span head = {line.at, n};
        while (head.n && head.at[head.n - 1] == ' ')
            head.n--;
        put(out, head);
        n += indent_of((struct span){line.at + n, line.n - n});
        line = (struct span){line.at + n, line.n - n};
        if (!line.n)
            break;
        fputs(command ? " \\\n" : "\n", out);
        put_blanks(out, hang);
        used = hang;
    }
    put(out, line);
    fputc('\n', out);
}

/* ---- tables -----------------------------------------------------------------------------------
 */

struct table {
    size_t n; /* cells of a row */
    size_t widths[MAX_CELLS];
    size_t heads[MAX_CELLS]; /* widths of the first row's, which go on in no other row */
    size_t words[MAX_CELLS]; /* widths of the longest words */
    bool left[MAX_CELLS];
};

/* The cells of a row without the blanks around them. */
static size_t split(struct span row, struct span cells[MAX_CELLS])
{
    size_t n = 0, begin = 1;
    for (size_t i = 1; i < row.n && n < MAX_CELLS; i++) {
        if (row.at[i] != '|' || row.at[i - 1] == '\\')
            continue;
        struct span cell = {row.at + begin, i - begin};
        while (cell.n && cell.at[0] == ' ')
            cell.at++, cell.n--;
        while (cell.n && cell.at[cell.n - 1] == ' ')
            cell.n--;
        cells[n++] = cell;
        begin = i + 1;
    }
    return n;
}

static bool is_rule(struct span row)
{
    return row.n > 1 && strspn(row.at, "|:-") >= row.n;
}

static size_t longest_word(struct span cell)
{
    size_t longest = 0;
    for (size_t i = 0; i < cell.n;) {
        struct span word = {cell.at + i, 0};
        while (i < cell.n && cell.at[i] != ' ')
            word.n++, i++;
        longest = columns_of(word) > longest ? columns_of(word) : longest;
        i++;
    }
    return longest;
}

/* The first `n` bytes of a text: its rows. */
static void measure(const char *text, size_t n, struct table *table)
{
    for (const char *at = text; at < text + n;) {
        struct span row = next_line(&at), cells[MAX_CELLS];
        size_t k = split(row, cells);
        table->n = k > table->n ? k : table->n;
        for (size_t c = 0; c < k; c++) {
            size_t width = columns_of(cells[c]);
            if (is_rule(row))
                table->left[c] = cells[c].n && cells[c].at[cells[c].n - 1] != ':';
            else if (width > table->widths[c])
                table->widths[c] = width;
            if (row.at == text)
                table->heads[c] = width;
            size_t word = is_rule(row) ? 0 : longest_word(cells[c]);
            table->words[c] = word > table->words[c] ? word : table->words[c];
        }
    }
}

static size_t width_of(const struct table *table)
{
    size_t width = 1;
    for (size_t c = 0; c < table->n; c++)
        width += table->widths[c] + SEPARATOR;
    return width;
}

/* The widest column of words that may become narrower: between words, and only if that is not
 * enough inside them. MAX_CELLS: none. */
static size_t widest_of(const struct table *table, bool inside_words)
{
    size_t widest = MAX_CELLS;
    for (size_t c = 0; c < table->n; c++) {
        size_t width = table->widths[c];
        if (table->left[c] && width > LEAST_CELL && width > table->heads[c] &&
            (inside_words || width > table->words[c]) &&
            (widest == MAX_CELLS || width > table->widths[widest]))
            widest = c;
    }
    return widest;
}

/* Makes columns narrower until the table fits, or none has more to give. */
static void shrink(struct table *table)
{
    for (size_t width = width_of(table), columns = tsr_page_columns(); width > columns; width--) {
        size_t widest = widest_of(table, false);
        if (widest == MAX_CELLS)
            widest = widest_of(table, true);
        if (widest == MAX_CELLS)
            return;
        table->widths[widest]--;
    }
}

/* Bytes of a cell that its column shows: all; else up to a blank or behind a mark between parts of
 * a name; else what there is room for. */
static size_t part_of(struct span cell, size_t width)
{
    size_t most = bytes_of(cell, width);
    if (most == cell.n)
        return most;
    for (size_t at = most; at > 0; at--)
        if (cell.at[at] == ' ' || cell.at[at - 1] == ' ')
            return at;
    for (size_t at = most; at > most / 3; at--)
        if (strchr(",;=", cell.at[at - 1]) || cell.at[at] == '@')
            return at;
    for (size_t at = most; at > most / 3; at--)
        if (strchr("/-_.", cell.at[at - 1]))
            return at;
    if (most > 1 && cell.at[most - 1] == '\\') /* of "\|" */
        most--;
    return most;
}

/* A row, and below it what its cells have more. */
static void put_row(FILE *out, struct span row, const struct table *table)
{
    struct span cells[MAX_CELLS] = {{NULL, 0}};
    size_t n = split(row, cells);
    for (bool more = true; more;) {
        more = false;
        for (size_t c = 0; c < n; c++) {
            struct span part = {cells[c].at, part_of(cells[c], table->widths[c])};
            cells[c].at += part.n;
            cells[c].n -= part.n;
            while (cells[c].n && cells[c].at[0] == ' ')
                cells[c].at++, cells[c].n--;
            more |= cells[c].n > 0;
            while (part.n && part.at[part.n - 1] == ' ')
                part.n--;
            size_t pad = table->widths[c] - columns_of(part);
            fputs("| ", out);
            put_blanks(out, table->left[c] ? 0 : pad);
            put(out, part);
            put_blanks(out, (table->left[c] ? pad : 0) + 1);
        }
        fputs("|\n", out);
    }
}

static void put_rule(FILE *out, const struct table *table)
{
    for (size_t c = 0; c < table->n; c++) {
        fputs(table->left[c] ? "|:" : "|-", out);
        for (size_t i = 0; i < table->widths[c]; i++)
            fputc('-', out);
        fputs(table->left[c] ? "-" : ":", out);
    }
    fputs("|\n", out);
}

/* Rows that fit stay as they are, and so do those that are no rows, but for lines that begin so. */
static bool is_wide_table(const char *text, size_t n)
{
    size_t columns = tsr_page_columns();
    bool wide = false;
    for (const char *at = text; at < text + n;) {
        struct span row = next_line(&at);
        wide |= columns_of(row) > columns;
        if (row.at[row.n - 1] != '|')
            return false;
    }
    return wide;
}

/* `n` bytes of rows. */
static void put_table(FILE *out, const char *text, size_t n)
{
    struct table table = {0};
    if (!is_wide_table(text, n)) {
        for (const char *at = text; at < text + n;)
            put_line(out, next_line(&at));
        return;
    }
    measure(text, n, &table);
    shrink(&table);
    for (const char *at = text; at < text + n;) {
        struct span row = next_line(&at);
        if (is_rule(row))
            put_rule(out, &table);
        else
            put_row(out, row, &table);
    }
}

/* ---- the page ---------------------------------------------------------------------------------
 */

static void lay_out(FILE *out, const char *text)
{
    while (*text) {
        const char *rest = text;
        while (*rest == '|')
            (void)next_line(&rest);
        if (rest > text)
            put_table(out, text, (size_t)(rest - text));
        else
            put_line(out, next_line(&rest));
        text = rest;
    }
}

static bool is_for_people(const struct tsr_args *args)
{
    return !args || !args->format || !strcmp(args->format, "md") || !strcmp(args->format, "text");
}

tsr_status tsr_page_begin(const struct tsr_args *args, struct tsr_page *page)
{
    *page = (struct tsr_page){.out = stdout,
                              .for_people = is_for_people(args),
                              .wide = args && args->wide,
                              .shows_notes = args && args->notes};
    page->notes = open_memstream(&page->notes_text, &page->notes_size);
    if (page->for_people && !page->wide)
        page->out = open_memstream(&page->text, &page->size);
    if (page->out && page->notes)
        return TSR_OK;
    return tsr_page_end(page, tsr_no_memory("the report"));
}

/* Prints the notes, or how to see them, below the report. */
static void put_notes(const struct tsr_page *page)
{
    if (!page->for_people || !page->notes_size)
        return;
    if (!page->shows_notes) {
        fputs("\nMore: --notes (columns, marks, where figures come from, conditions).\n", stdout);
        return;
    }
    fputs("\nNotes\n", stdout);
    if (page->wide)
        fputs(page->notes_text, stdout);
    else
        lay_out(stdout, page->notes_text);
}

/* Closes a stream of begin. Returns false if anything that was printed to it is lost. */
static bool close_text(FILE *stream)
{
    if (!stream)
        return false;
    bool failed = ferror(stream) != 0;
    return fclose(stream) == 0 && !failed;
}

tsr_status tsr_page_end(struct tsr_page *page, tsr_status status)
{
    bool whole = page->out == stdout || close_text(page->out);
    whole = close_text(page->notes) && whole;
    if (status == TSR_OK && !whole)
        status = tsr_no_memory("the report");
    if (status == TSR_OK && page->text)
        lay_out(stdout, page->text);
    if (status == TSR_OK)
        put_notes(page);
    free(page->text);
    free(page->notes_text);
    return status == TSR_OK ? tsr_flush(stdout, "standard output") : status;
}

tsr_status tsr_usage_show(const struct tsr_usage *usage)
{
    struct tsr_page page;
    TSR_TRY(tsr_page_begin(NULL, &page));
    tsr_usage_print(page.out, usage);
    return tsr_page_end(&page, TSR_OK);
}

const char *tsr_page_format(const struct tsr_args *args)
{
    return args->wide && !strcmp(args->format, "md") ? "wide" : args->format;
}

const char *tsr_page_format_narrow(const struct tsr_args *args)
{
    const char *format = tsr_page_format(args);
    return !strcmp(format, "md") && tsr_page_columns() < ROOMY_COLUMNS ? "narrow" : format;
}
