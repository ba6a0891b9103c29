/* text.c: growing text, Python's layout and names (text.h). */
#include "experiments/study/code/text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/base/text.h"

void tsr_code_add_bytes(struct tsr_code_text *to, const char *text, size_t n)
{
    if (to->failed || !n)
        return;
    if (to->n + n + 1 > to->cap) {
        size_t cap = 2 * (to->n + n) + 256;
        char *s = realloc(to->s, cap);
        if (!s) {
            to->failed = true;
            return;
        }
        to->s = s;
        to->cap = cap;
    }
    memcpy(to->s + to->n, text, n);
    to->n += n;
    to->s[to->n] = '\0';
}

static void add_text(struct tsr_code_text *to, const char *text)
{
    tsr_code_add_bytes(to, text, strlen(text));
}

/* NULL: no memory. */
static char *print(const char *fmt, va_list args)
{
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    char *text = n < 0 ? NULL : malloc((size_t)n + 1);
    if (text)
        (void)vsnprintf(text, (size_t)n + 1, fmt, args);
    return text;
}

void tsr_code_add(struct tsr_code_text *to, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char *text = print(fmt, args);
    va_end(args);
    if (text)
        add_text(to, text);
    to->failed |= !text;
    free(text);
}

void tsr_code_text_fini(struct tsr_code_text *text)
{
    free(text->s);
    *text = (struct tsr_code_text){.s = NULL};
}

/* ---- layout ---------------------------------------------------------------------------------- */

static void add_indent(struct tsr_code_text *to, int indent)
{
    for (int i = 0; i < indent; i++)
        add_text(to, " ");
}

static void add_line(struct tsr_code_text *to, int indent, const char *text, size_t n,
                     const char *end)
{
    add_indent(to, indent);
    tsr_code_add_bytes(to, text, n);
    tsr_code_add(to, "%s\n", end);
}

/* Behind the literal that begins at text[i]. */
static size_t after_literal(const char *text, size_t n, size_t i)
{
    for (i++; i < n && text[i] != '"'; i++)
        i += text[i] == '\\';
    return i + 1;
}

/* The bracket of depth 0 that closes last; false: there is none with something in it. */
static bool last_bracket(const char *text, size_t n, size_t *open, size_t *close)
{
    size_t begin = 0;
    bool found = false;
    int depth = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"') {
            i = after_literal(text, n, i) - 1;
        } else if (strchr("([{", text[i])) {
            begin = depth++ == 0 ? i : begin;
        } else if (strchr(")]}", text[i]) && --depth == 0 && i > begin + 1) {
            *open = begin;
            *close = i;
            found = true;
        }
    }
    return found;
}

/* End of the item that begins at `i`: its comma, or n. */
static size_t item_end(const char *text, size_t n, size_t i)
{
    int depth = 0;
    for (; i < n; i++) {
        if (text[i] == '"') {
            i = after_literal(text, n, i) - 1;
        } else if (strchr("([{", text[i])) {
            depth++;
        } else if (strchr(")]}", text[i])) {
            depth--;
        } else if (text[i] == ',' && depth == 0) {
            return i;
        }
    }
    return n;
}

/* The blank before the next "for" of a comprehension, or n. */
static size_t next_for(const char *text, size_t n, size_t i)
{
    int depth = 0;
    for (; i < n; i++) {
        if (text[i] == '"')
            i = after_literal(text, n, i) - 1;
        else if (strchr("([{", text[i]))
            depth++;
        else if (strchr(")]}", text[i]))
            depth--;
        else if (depth == 0 && !strncmp(text + i, " for ", 5))
            return i;
    }
    return n;
}

/* A list, tuple or import is split at every comma once it does not fit, a call only if it must. */
static bool is_collection(const char *text, size_t open)
{
    bool is_import = !strncmp(text, "from ", 5);
    bool is_call = open > 0 && (isalnum((unsigned char)text[open - 1]) ||
                                strchr("_)]", text[open - 1]) != NULL);
    return is_import || !is_call;
}

static void lay_out(struct tsr_code_text *to, int indent, const char *text, size_t n,
                    const char *end);

/* What stands between two brackets. */
static void lay_out_body(struct tsr_code_text *to, int indent, const char *text, size_t n,
                         bool splits)
{
    bool several = item_end(text, n, 0) < n;
    if ((size_t)indent + n <= TSR_CODE_COLUMNS && !(splits && several)) {
        add_line(to, indent, text, n, "");
        return;
    }
    if (!several && next_for(text, n, 0) < n) {
        for (size_t i = 0, stop; i < n; i = stop + 1) {
            stop = next_for(text, n, i);
            lay_out(to, indent, text + i, stop - i, "");
        }
        return;
    }
    for (size_t i = 0; i < n;) {
        size_t stop = item_end(text, n, i);
        lay_out(to, indent, text + i, stop - i, ",");
        for (i = stop + 1; i < n && text[i] == ' ';)
            i++;
    }
}

static void lay_out(struct tsr_code_text *to, int indent, const char *text, size_t n,
                    const char *end)
{
    size_t open, close;
    if ((size_t)indent + n + strlen(end) <= TSR_CODE_COLUMNS ||
        !last_bracket(text, n, &open, &close)) {
        add_line(to, indent, text, n, end);
        return;
    }
    add_line(to, indent, text, open + 1, "");
    lay_out_body(to, indent + 4, text + open + 1, close - open - 1, is_collection(text, open));
    add_line(to, indent, text + close, n - close, end);
}

/* An import has brackets once it does not fit. */
static void lay_out_import(struct tsr_code_text *to, int indent, const char *text)
{
    const char *names = strncmp(text, "from ", 5) ? NULL : strstr(text, " import ");
    size_t n = strlen(text);
    if (!names || (size_t)indent + n <= TSR_CODE_COLUMNS) {
        lay_out(to, indent, text, n, "");
        return;
    }
    names += strlen(" import ");
    struct tsr_code_text list = {.s = NULL};
    tsr_code_add(&list, "%.*s(%s,)", (int)(names - text), text, names);
    lay_out(to, indent, tsr_code_str(&list), list.n, "");
    to->failed |= list.failed;
    tsr_code_text_fini(&list);
}

void tsr_code_statement(struct tsr_code_text *to, int indent, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char *text = print(fmt, args);
    va_end(args);
    if (text)
        lay_out_import(to, indent, text);
    to->failed |= !text;
    free(text);
}

/* Lines of words: a word that is longer than a line has one of its own. */
static void break_words(struct tsr_code_text *to, const char *lead, int hang, const char *text)
{
    size_t column = 0;
    for (const char *word = text; *word;) {
        size_t n = strcspn(word, " ");
        if (column && column + 1 + n > TSR_CODE_COLUMNS) {
            add_text(to, "\n");
            column = 0;
        }
        if (column == 0) {
            add_text(to, lead);
            add_indent(to, word == text ? 0 : hang);
            column = strlen(lead) + (word == text ? 0 : (size_t)hang);
        } else {
            add_text(to, " ");
            column++;
        }
        tsr_code_add_bytes(to, word, n);
        column += n;
        word += n + (word[n] == ' ');
    }
    add_text(to, "\n");
}

static void escape_comment(struct tsr_code_text *to, const char *text)
{
    static const char coding[] = "coding";
    const size_t n = sizeof coding - 1;
    char piece[TSR_TEXT_PIECE];
    bool escaped;
    for (size_t k; (k = tsr_text_next(&text, piece, &escaped)) > 0;) {
        if ((*piece == ':' || *piece == '=') && to->n >= n && !memcmp(to->s + to->n - n, coding, n))
            tsr_code_add(to, "\\x%02x", (unsigned)*piece);
        else
            tsr_code_add_bytes(to, piece, k);
    }
}

void tsr_code_comment(struct tsr_code_text *to, const char *lead, int hang, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char *text = print(fmt, args);
    va_end(args);
    struct tsr_code_text shown = {.s = NULL};
    if (text)
        escape_comment(&shown, text);
    if (text && !shown.failed)
        break_words(to, lead, hang, tsr_code_str(&shown));
    to->failed |= !text || shown.failed;
    tsr_code_text_fini(&shown);
    free(text);
}

/* ---- names ----------------------------------------------------------------------------------- */

static void add_literal(struct tsr_code_text *to, const char *text, size_t n)
{
    const char *end = text + n;
    add_text(to, "\"");
    while (text < end) {
        char piece[TSR_TEXT_PIECE];
        bool escaped;
        if (*text == '"' || *text == '\\') {
            tsr_code_add(to, "\\%c", *text++);
            continue;
        }
        size_t length = tsr_text_next(&text, piece, &escaped);
        tsr_code_add_bytes(to, piece, length);
    }
    add_text(to, "\"");
}

void tsr_code_add_literal(struct tsr_code_text *to, const char *text)
{
    add_literal(to, text, strlen(text));
}

bool tsr_code_is_name(const char *text, size_t n)
{
    static const char *const keywords[] = {
        "False", "None",     "True",  "and",    "as",   "assert", "async",  "await",    "break",
        "class", "continue", "def",   "del",    "elif", "else",   "except", "finally",  "for",
        "from",  "global",   "if",    "import", "in",   "is",     "lambda", "nonlocal", "not",
        "or",    "pass",     "raise", "return", "try",  "while",  "with",   "yield"};
    if (n == 0 || isdigit((unsigned char)text[0]))
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] > 127 || (!isalnum((unsigned char)text[i]) && text[i] != '_'))
            return false;
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (strlen(keywords[i]) == n && !strncmp(keywords[i], text, n))
            return false;
    return true;
}

/* Is the dotted name of n bytes an expression of Python? */
static bool is_path(const char *fqn, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t length = strcspn(fqn + at, ".");
        length = length < n - at ? length : n - at;
        if (!tsr_code_is_name(fqn + at, length))
            return false;
        at += length + 1;
    }
    return n == 0 || fqn[n - 1] != '.';
}

static void add_module(struct tsr_code_text *to, const char *of, const char *fqn, size_t n)
{
    add_text(to, of);
    if (is_path(fqn, n)) {
        add_text(to, n ? "." : "");
        tsr_code_add_bytes(to, fqn, n);
        return;
    }
    add_text(to, ".get_submodule(");
    add_literal(to, fqn, n);
    add_text(to, ")");
}

void tsr_code_add_module(struct tsr_code_text *to, const char *of, const char *fqn)
{
    add_module(to, of, fqn, strlen(fqn));
}

/* The length of the name of the module that has `fqn`, a module or a parameter. */
static size_t owner_length(const char *fqn)
{
    const char *dot = strrchr(fqn, '.');
    return dot ? (size_t)(dot - fqn) : 0;
}

void tsr_code_add_owner(struct tsr_code_text *to, const char *of, const char *fqn)
{
    add_module(to, of, fqn, owner_length(fqn));
}

void tsr_code_put_tie(struct tsr_code_text *to, int indent, const char *owner, const char *name,
                      const char *first)
{
    const char *first_name = first + owner_length(first) + (strchr(first, '.') != NULL);
    struct tsr_code_text a = {.s = NULL}, b = {.s = NULL};
    tsr_code_add_module(&a, "model", owner);
    if (tsr_code_is_name(name, strlen(name)) && tsr_code_is_name(first_name, strlen(first_name))) {
        tsr_code_add(&a, ".%s", name);
        tsr_code_add_owner(&b, "model", first);
        tsr_code_add(&b, ".%s", first_name);
        tsr_code_statement(to, indent, "%s = %s", tsr_code_str(&a), tsr_code_str(&b));
    } else {
        tsr_code_add_literal(&b, name);
        tsr_code_add(&b, ", model.get_parameter(");
        tsr_code_add_literal(&b, first);
        tsr_code_statement(to, indent, "%s.register_parameter(%s))", tsr_code_str(&a),
                           tsr_code_str(&b));
    }
    to->failed |= a.failed || b.failed;
    tsr_code_text_fini(&a);
    tsr_code_text_fini(&b);
}
