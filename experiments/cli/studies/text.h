/* text.h: reports as text, from the objects that --format json prints: both say the same. */
#ifndef TSR_CLI_TEXT_H
#define TSR_CLI_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* What the objects say under a key. Borrowed from `object`; "" if the key is missing, null or no
 * string.
 */
static inline const char *tsr_json_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* 0 if the key is missing or no integer. */
static inline json_int_t tsr_json_int(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* False if the key is missing. */
static inline bool tsr_json_flag(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}
/* Behind a change: what its verdict adds to its figures. */
static inline const char *tsr_verdict_remark(const json_t *row)
{
    const char *verdict = json_string_value(json_object_get(row, "verdict"));
    if (!verdict)
        return "";
    if (!strcmp(tsr_json_text(row, "host_verdict"), "no"))
        return "  (does not fit: the host is too small)";
    return !strcmp(verdict, "no")        ? "  (does not fit)"
           : !strcmp(verdict, "retries") ? "  (with retries of the allocator)"
                                         : "";
}

/* Prints the what-ifs: the first `top` of those that change something, or with 0 all of them, and
 * lists of the others. */
void tsr_explain_print_what_if(FILE *out, const json_t *what_if, size_t top);
/* Returns the first what-if that lowers the peak, fits, and trains the same on as many GPUs; NULL:
 * none does. Borrowed. */
const json_t *tsr_explain_first_change(const json_t *what_if);

struct tsr_args;
/* Prints what to do next: the command that compares the strategy with a change, a row of what-ifs
 * with "set"; nothing for NULL. */
void tsr_print_change_next(FILE *out, const struct tsr_args *args, const char *strategy,
                           const json_t *change);

#endif
