/* json.c: JSON that people may look at. */
#include "experiments/study/base/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/base/text.h"

/* jansson has escaped what is below U+0020; the rest stands in strings only. */
static void put_escaped(FILE *out, const char *text)
{
    while (*text) {
        char piece[TSR_TEXT_PIECE];
        unsigned code;
        bool escaped;
        (void)tsr_text_character(text, TSR_TEXT_LONGEST, &code);
        if (*text == '\n') {
            fputc(*text++, out);
            continue;
        }
        size_t n = tsr_text_next(&text, piece, &escaped);
        if (escaped)
            fprintf(out, "\\u%04x", code & 0xffff);
        else
            (void)fwrite(piece, 1, n, out);
    }
}

int tsr_json_dump(const json_t *value, FILE *out, size_t flags)
{
    char *text = json_dumps(value, flags);
    if (!text)
        return -1;
    put_escaped(out, text);
    free(text);
    return ferror(out) ? -1 : 0;
}

tsr_status tsr_json_write(FILE *stream, const void *output)
{
    const struct tsr_json_output *o = output;
    if (tsr_json_dump(o->value, stream, o->flags) != 0 || fputc('\n', stream) == EOF)
        return tsr_fail(TSR_EIO, "%s: the result cannot be written: %s", o->name, strerror(errno));
    return TSR_OK;
}

static bool show_string(json_t *value)
{
    size_t room = 6 * json_string_length(value) + 8; /* of each byte an escape */
    char *shown = malloc(room);
    if (!shown)
        return false;
    (void)tsr_text_show(shown, room, json_string_value(value));
    bool ok = json_string_set(value, shown) == 0;
    free(shown);
    return ok;
}

bool tsr_json_show(json_t *value)
{
    const char *key;
    json_t *one;
    size_t i;
    bool ok = true;
    if (json_is_string(value))
        return show_string(value);
    if (json_is_object(value))
        json_object_foreach(value, key, one)
        {
            ok = ok && tsr_json_show(one);
        }
    if (json_is_array(value))
        json_array_foreach(value, i, one)
        {
            ok = ok && tsr_json_show(one);
        }
    return ok;
}
