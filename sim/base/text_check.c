/* text_check.c: one look at every byte of a text. */
#include "sim/base/text_check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/base/files.h"

/* ---- encoding -------------------------------------------------------------------------------- */

/* Bytes of the UTF-8 sequence at `at`, of `left` bytes; 0: it is none. Overlong forms, surrogates
 * and what lies beyond U+10FFFF are none. */
static size_t sequence(const unsigned char *at, size_t left, uint32_t *code)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = at[0] < 0x80             ? 1
               : (at[0] & 0xe0) == 0xc0 ? 2
               : (at[0] & 0xf0) == 0xe0 ? 3
               : (at[0] & 0xf8) == 0xf0 ? 4
                                        : 0;
    if (n == 0 || n > left)
        return 0;
    *code = n == 1 ? at[0] : at[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        *code = *code << 6 | (at[i] & 0x3f);
    }
    bool fits = *code >= smallest[n] && *code <= 0x10ffff && (*code < 0xd800 || *code > 0xdfff);
    return fits ? n : 0;
}

static bool is_control(uint32_t code)
{
    return (code < 0x20 && code != '\t' && code != '\n' && code != '\r') ||
           (code >= 0x7f && code < 0xa0);
}

static bool is_utf16(const unsigned char *at, size_t n)
{
    return n >= 2 && ((at[0] == 0xff && at[1] == 0xfe) || (at[0] == 0xfe && at[1] == 0xff));
}

bool tsr_text_find_flaw(const char *text, size_t n, struct tsr_text_flaw *flaw)
{
    const unsigned char *at = (const unsigned char *)text;
    *flaw = (struct tsr_text_flaw){.line = 1};
    if (is_utf16(at, n)) {
        snprintf(flaw->text, sizeof flaw->text, "text in UTF-16; allowed: text in UTF-8");
        return true;
    }
    for (size_t i = 0, step; i < n; i += step) {
        uint32_t code = 0;
        step = sequence(at + i, n - i, &code);
        flaw->line += step == 1 && code == '\n';
        if (step > 0 && !is_control(code))
            continue;
        if (step == 0)
            snprintf(flaw->text, sizeof flaw->text,
                     "byte 0x%02x is not UTF-8; allowed: text in UTF-8", at[i]);
        else if (code == 0)
            snprintf(flaw->text, sizeof flaw->text,
                     "byte 0x00: a binary file; allowed: text in UTF-8");
        else
            snprintf(flaw->text, sizeof flaw->text,
                     "control character U+%04X; allowed: text without control characters", code);
        return true;
    }
    return false;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

bool tsr_json_find_flaw(const char *text, size_t n, size_t values, struct tsr_text_flaw *flaw)
{
    if (tsr_text_find_flaw(text, n, flaw))
        return true;
    bool in_string = false;
    size_t depth = 0, found = 1;
    flaw->line = 1;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        flaw->line += c == '\n';
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
            continue;
        }
        in_string = c == '"';
        depth += c == '[' || c == '{';
        depth -= (c == ']' || c == '}') && depth > 0;
        found += c == '[' || c == '{' || c == ',' || c == ':';
        if (depth <= TSR_TEXT_DEPTH && found <= values)
            continue;
        if (depth > TSR_TEXT_DEPTH)
            snprintf(flaw->text, sizeof flaw->text, "nested deeper than %d levels", TSR_TEXT_DEPTH);
        else
            snprintf(flaw->text, sizeof flaw->text, "more than %zu values", values);
        return true;
    }
    return false;
}

/* ---- files ----------------------------------------------------------------------------------- */

tsr_status tsr_text_check(const char *name, bool is_option, const char *text, size_t n)
{
    struct tsr_text_flaw flaw;
    if (!tsr_text_find_flaw(text, n, &flaw))
        return TSR_OK;
    if (is_option)
        return tsr_fail(TSR_ECONFIG, "%s: %s", name, flaw.text);
    return tsr_fail(TSR_ECONFIG, "%s:%zu: %s", name, flaw.line, flaw.text);
}

/* Grows *text to hold the whole stream, or a little more than `most` bytes of it. */
static tsr_status read_stream(FILE *file, const char *path, size_t most, char **text, size_t *n)
{
    size_t cap = 0, got = 1;
    while (got > 0 && *n <= most) {
        if (cap - *n < 4096) {
            cap = cap ? 2 * cap : 16384;
            char *grown = realloc(*text, cap + 1);
            if (!grown)
                return tsr_no_memory(path);
            *text = grown;
        }
        got = fread(*text + *n, 1, cap - *n, file);
        *n += got;
    }
    if (ferror(file))
        return tsr_fail(TSR_ECONFIG, "%s: cannot be read: %s", path, strerror(errno));
    if (*n > most)
        return tsr_fail(TSR_ECONFIG, "%s: more than %zu bytes; allowed: up to that", path, most);
    (*text)[*n] = 0;
    return TSR_OK;
}

tsr_status tsr_text_read(const char *path, size_t most, char **text, size_t *n)
{
    *text = NULL;
    *n = 0;
    const char *why;
    FILE *file = tsr_file_stream(NULL, path, &why);
    if (!file)
        return tsr_fail(TSR_ECONFIG, "%s: cannot be opened: %s", path, why);
    tsr_status status = read_stream(file, path, most, text, n);
    fclose(file);
    if (status == TSR_OK)
        return TSR_OK;
    free(*text);
    *text = NULL;
    return status;
}

tsr_status tsr_text_load(const char *path, char **text, size_t *n)
{
    TSR_TRY(tsr_text_read(path, TSR_TEXT_BYTES, text, n));
    tsr_status status = tsr_text_check(path, false, *text, *n);
    if (status == TSR_OK)
        return TSR_OK;
    free(*text);
    *text = NULL;
    return status;
}
