/* json_load.c: JSON through jansson, after a look at its text. */
#include "sim/base/json_load.h"

#include <stdio.h>
#include <stdlib.h>

json_t *tsr_json_loadb(const char *text, size_t n, size_t values, json_error_t *error)
{
    struct tsr_text_flaw flaw;
    if (!tsr_json_find_flaw(text, n, values, &flaw))
        return json_loadb(text, n, JSON_REJECT_DUPLICATES, error);
    if (error) {
        *error = (json_error_t){.line = (int)flaw.line};
        snprintf(error->text, sizeof error->text - 1, "%s", flaw.text); /* the last byte: a code */
        error->text[sizeof error->text - 1] = (char)json_error_invalid_syntax;
    }
    return NULL;
}

tsr_status tsr_json_load(const char *path, size_t values, json_t **out)
{
    char *text = NULL;
    size_t n = 0;
    json_error_t error;
    *out = NULL;
    TSR_TRY(tsr_text_read(path, TSR_TEXT_BYTES, &text, &n));
    *out = tsr_json_loadb(text, n, values, &error);
    free(text);
    if (*out)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "%s:%d: %s", path, error.line, error.text);
}
