/* text_check.c: one look at every byte of a text. */
#include "sim/base/text_check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/base/files.h"
#include "sim/base/text.h"

/* ---- encoding -------------------------------------------------------------------------------- */

static bool is_control(unsigned code)
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
        unsigned code = 0;
        step = tsr_text_character(text + i, n - i, &code);
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

tsr_status tsr_text_read(const char *path, size_t most, char **text, size_t *n)
{
    *text = NULL;
    *n = 0;
    const char *why;
    uint64_t length;
    int fd = tsr_file_open(NULL, path, TSR_OPEN_READ, &length, &why);
    if (fd < 0)
        return tsr_fail(TSR_ECONFIG, "%s: cannot be opened: %s", path, why);
    return tsr_file_read_opened(fd, path, length, most, text, n);
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
