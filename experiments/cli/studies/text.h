/* text.h: reports as text, from the objects that --format json prints: both say the same. */
#ifndef TSR_CLI_TEXT_H
#define TSR_CLI_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "experiments/study/report/report_text.h"

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

/* Writes the bytes under a key as text ("1.22 GiB") and returns `text`. A missing key counts as 0.
 */
enum { TSR_JSON_BYTES_TEXT = 32 };
static inline const char *tsr_json_bytes(const json_t *object, const char *key,
                                         char text[TSR_JSON_BYTES_TEXT])
{
    return tsr_bytes_text((double)tsr_json_int(object, key), text);
}

/* Makes a column at least as wide as `text`. */
static inline void tsr_widen(int *width, const char *text)
{
    int n = (int)strlen(text);
    *width = n > *width ? n : *width;
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

/* ---- parts of `tessera explain` -------------------------------------------------------------- */

/* Every job pins a few bytes of inputs and losses: less than this on the host is not mentioned. */
enum { TSR_EXPLAIN_LEAST_HOST_BYTES = 1 << 20 };

/* Prints an instant: "backward, micro-batch 1, lm_head, hook pre_backward, recomputing: mm". */
void tsr_explain_print_place(FILE *out, const json_t *place);
/* Prints what is alive at the peak: a line for each category with its largest owner. */
void tsr_explain_print_alive(FILE *out, const json_t *alive);
/* Prints all categories with their owners, at most `top` of each; `where` begins the heading. */
void tsr_explain_print_owned(FILE *out, const char *where, const json_t *alive, size_t top);
/* Prints the owners of the fullest host's memory, where it is a question at all. */
void tsr_explain_print_host_owners(FILE *out, const json_t *host, size_t top);
/* Prints which units hold unsharded parameters at the peak, and when most are unsharded. */
void tsr_explain_print_unsharded(FILE *out, const json_t *unsharded, bool is_step, size_t top);
/* Prints what activation checkpointing keeps and recomputes; nothing without it. */
void tsr_explain_print_checkpointing(FILE *out, const json_t *c);
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
