/* text.c: escapes what a terminal or a line must not get. */
#include "sim/base/text.h"

#include <string.h>

size_t tsr_text_character(const char *text, size_t left, unsigned *code)
{
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *at = (const unsigned char *)text;
    size_t n = at[0] < 0x80       ? 1
               : at[0] >> 5 == 6  ? 2
               : at[0] >> 4 == 14 ? 3
               : at[0] >> 3 == 30 ? 4
                                  : 0;
    *code = n > 1 ? at[0] & (0x7fu >> n) : at[0];
    if (n > left)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if (at[i] >> 6 != 2) /* also the 0 at the end */
            return 0;
        *code = *code << 6 | (at[i] & 0x3f);
    }
    bool good = *code >= least[n] && *code <= 0x10ffff && (*code < 0xd800 || *code > 0xdfff);
    return good ? n : 0;
}

static bool is_hidden(unsigned c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

size_t tsr_text_next(const char **text, char out[TSR_TEXT_PIECE], bool *escaped)
{
    unsigned code;
    size_t n = tsr_text_character(*text, TSR_TEXT_LONGEST, &code);
    unsigned char byte = (unsigned char)**text;
    if (!byte)
        return 0;
    *text += n ? n : 1;
    *escaped = !n || is_hidden(code);
    if (!*escaped) {
        memcpy(out, *text - n, n);
        return n;
    }
    const char *short_form = byte == '\n'   ? "\\n"
                             : byte == '\r' ? "\\r"
                             : byte == '\t' ? "\\t"
                                            : NULL;
    if (short_form)
        return (size_t)snprintf(out, TSR_TEXT_PIECE, "%s", short_form);
    return (size_t)snprintf(out, TSR_TEXT_PIECE, n > 1 ? "\\u%04x" : "\\x%02x",
                            n > 1 ? code & 0xffff : byte);
}

size_t tsr_text_show(char *out, size_t room, const char *text)
{
    char piece[TSR_TEXT_PIECE];
    bool escaped;
    size_t n = 0, cut = 0; /* where "..." still fits */
    for (size_t k; (k = tsr_text_next(&text, piece, &escaped)) > 0; n += k) {
        if (n + k >= room) {
            memcpy(out + cut, "...", 4);
            return cut + 3;
        }
        memcpy(out + n, piece, k);
        if (n + k + 4 <= room)
            cut = n + k;
    }
    out[n] = '\0';
    return n;
}

void tsr_text_put(FILE *out, const char *text)
{
    char piece[TSR_TEXT_PIECE];
    bool escaped;
    for (size_t k; (k = tsr_text_next(&text, piece, &escaped)) > 0;)
        (void)fwrite(piece, 1, k, out);
}

void tsr_text_put_lines(FILE *out, const char *text)
{
    char piece[TSR_TEXT_PIECE];
    bool escaped;
    for (size_t k;; (void)fwrite(piece, 1, k, out)) {
        for (; *text == '\n'; text++)
            (void)fputc('\n', out);
        k = tsr_text_next(&text, piece, &escaped);
        if (k == 0)
            return;
    }
}

struct tsr_shown_line tsr_show_line(const char *text)
{
    struct tsr_shown_line shown;
    (void)tsr_text_show(shown.text, sizeof shown.text, text);
    return shown;
}

struct tsr_shown tsr_show(const char *text)
{
    struct tsr_shown shown;
    (void)tsr_text_show(shown.text, sizeof shown.text, text);
    return shown;
}

size_t tsr_text_columns(const char *text)
{
    char piece[TSR_TEXT_PIECE];
    bool escaped;
    size_t columns = 0;
    for (size_t k; (k = tsr_text_next(&text, piece, &escaped)) > 0;)
        columns += escaped ? k : 1;
    return columns;
}
