/* literals.c: writes texts of users as literals of other languages (literals.h). */
#include "experiments/study/base/literals.h"

#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/csv.h"
#include "sim/base/text.h"

/* Not a number, and a spreadsheet would compute it; or what reads as a mark of this (csv.h). */
static bool needs_mark(const char *text)
{
    char *end;
    if (text[0] == '\'')
        return text[1] && strchr(TSR_CSV_MARKED "'", text[1]);
    if (!text[0] || !strchr(TSR_CSV_MARKED, text[0]))
        return false;
    (void)strtod(text, &end);
    return end == text || *end;
}

void tsr__put_csv(FILE *out, const char *text)
{
    bool mark = needs_mark(text);
    if (!mark && text[0] != '#' && !strpbrk(text, ",\"\r\n\t")) { /* no comment */
        tsr_text_put(out, text);
        return;
    }
    fputs(mark ? "\"'" : "\"", out);
    while (*text) {
        char piece[TSR_TEXT_PIECE];
        bool escaped;
        if (*text == '\n' || *text == '\t' || *text == '"') {
            fputs((char[]){*text, *text == '"' ? '"' : '\0', '\0'}, out);
            text++;
            continue;
        }
        (void)fwrite(piece, 1, tsr_text_next(&text, piece, &escaped), out);
    }
    fputc('"', out);
}

void tsr__put_plain(FILE *out, const char *text)
{
    if (needs_mark(text)) /* an apostrophe begins a quoted field of gnuplot's */
        fputc(' ', out);
    while (*text) {
        char piece[TSR_TEXT_PIECE];
        bool escaped, joint = text[0] == ',' && text[1] == ' ';
        const char *at = text;
        size_t n = tsr_text_next(&text, piece, &escaped);
        if (joint || *at == ',')
            fputc(joint ? '+' : ';', out);
        else if (*at == '"' || escaped)
            fputc(*at == '"' ? '\'' : ' ', out);
        else
            (void)fwrite(piece, 1, n, out);
        text += joint;
    }
}

/* Bytes that are no UTF-8 are none in JSON, either. */
void tsr__put_json(FILE *out, const char *text)
{
    fputc('"', out);
    while (*text) {
        char piece[TSR_TEXT_PIECE];
        unsigned code;
        bool escaped, good = tsr_text_character(text, TSR_TEXT_LONGEST, &code) > 0;
        size_t n = tsr_text_next(&text, piece, &escaped);
        if (escaped)
            fprintf(out, "\\u%04x", good ? code & 0xffff : 0xfffd);
        else if (code == '"' || code == '\\')
            fprintf(out, "\\%c", (char)code);
        else
            (void)fwrite(piece, 1, n, out);
    }
    fputc('"', out);
}

/* Everything else is written in octal: gnuplot runs what stands between backquotes inside of double
 * quotes, and loses count of many single ones. Digits, too: an escape ends where digits do. */
void tsr__put_gnuplot(FILE *out, const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-./";
    fputc('"', out);
    for (; *text; text++)
        fprintf(out, strchr(plain, *text) ? "%c" : "\\%03o", (unsigned char)*text);
    fputc('"', out);
}

static bool has_hidden(const char *text)
{
    char piece[TSR_TEXT_PIECE];
    bool escaped = false;
    while (!escaped && tsr_text_next(&text, piece, &escaped) > 0)
        continue;
    return escaped;
}

void tsr__put_word(FILE *out, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-./+,=:@%";
    bool hidden = has_hidden(word);
    if (word[0] && word[0] != '=' && word[strspn(word, plain)] == '\0') { /* =x is a path to zsh */
        fputs(word, out);
        return;
    }
    fputs(hidden ? "$'" : "'", out);
    for (; *word; word++) {
        unsigned char c = (unsigned char)*word;
        if (hidden && (c < ' ' || c >= 127))
            fprintf(out, "\\%03o", c); /* three digits: the next letter is none of them */
        else if (hidden && (c == '\'' || c == '\\'))
            fprintf(out, "\\%c", c);
        else if (c == '\'')
            fputs("'\\''", out);
        else
            fputc(c, out);
    }
    fputc('\'', out);
}

char *tsr_shell_text(const char *word)
{
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    if (!stream)
        return NULL;
    tsr__put_word(stream, word);
    if (fclose(stream) == 0)
        return text;
    free(text);
    return NULL;
}
