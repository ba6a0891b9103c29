/* json_doc.h: a JSON file with typed, range-checked access by dotted key. Private to sim/.
 *
 * Every failure is TSR_ECONFIG and one line: FILE: key "a.b": found X, allowed Y.
 */
#ifndef TSR_SIM_JSON_DOC_H
#define TSR_SIM_JSON_DOC_H

#include <jansson.h>

#include "engine/program/base.h"

struct tsr_kernel_store;

struct tsr__doc {
    const char *path; /* borrowed */
    json_t *root;     /* an object */
    json_t *asked;    /* an object: the keys that were looked for; NULL: nobody asks */
    /* Borrowed, NULL-terminated: where a file is looked for that is not beside this one; NULL:
     * nowhere. Files that this one names inherit it. */
    const char *const *folders;
    /* Borrowed: keeps the kernel tables of a device file; NULL where no device file is read. Files
     * that this one names inherit it. */
    struct tsr_kernel_store *kernels;
};

enum tsr__need {
    TSR__REQUIRED, /* must be there and not null */
    TSR__NULLABLE, /* must be there; null = unknown = 0 */
    TSR__OPTIONAL, /* missing or null: 0 */
};

/* Opens `path`; its "kind" must be `kind` (NULL: any). */
tsr_status tsr__doc_open(const char *path, const char *kind, struct tsr__doc *doc) TSR_MUST_USE;
void tsr__doc_close(struct tsr__doc *doc);
/* The value at a dotted key; NULL if it or a parent is missing. */
json_t *tsr__doc_find(const struct tsr__doc *doc, const char *key);
/* Once all is read: every key was looked for, or is one of `facts`, dotted keys that are for people
 * (NULL-terminated). What nobody reads is an error: a file never says something that is not done.
 */
tsr_status tsr__doc_check(const struct tsr__doc *doc, const char *const *facts) TSR_MUST_USE;
/* The same of an object in a list, whose keys are `words`. */
tsr_status tsr__doc_check_item(const struct tsr__doc *doc, const char *name, const json_t *item,
                               const char *const *words) TSR_MUST_USE;
tsr_status tsr__doc_fail(const struct tsr__doc *doc, const char *key, const json_t *found,
                         const char *allowed);
/* A finite number in [low, high]. */
tsr_status tsr__doc_number(const struct tsr__doc *doc, const char *key, enum tsr__need need,
                           double low, double high, double *out) TSR_MUST_USE;
/* A rate in bytes per second; the bounds catch a wrong unit (GB/s). */
tsr_status tsr__doc_rate(const struct tsr__doc *doc, const char *key, enum tsr__need need,
                         double *out) TSR_MUST_USE;
/* An integer in [1, high]. */
tsr_status tsr__doc_count(const struct tsr__doc *doc, const char *key, enum tsr__need need,
                          uint64_t high, uint64_t *out) TSR_MUST_USE;
/* A string of at most size-1 bytes; "" when optional and missing. */
tsr_status tsr__doc_string(const struct tsr__doc *doc, const char *key, enum tsr__need need,
                           char *out, size_t size) TSR_MUST_USE;
/* Copies a path into `out`; fails when it is too long. */
tsr_status tsr__doc_copy_path(const char *path, char *out, size_t size) TSR_MUST_USE;
/* A list of 1 to `room` numbers in [low, high]. */
tsr_status tsr__doc_numbers(const struct tsr__doc *doc, const char *key, double low, double high,
                            uint32_t room, float *out, uint32_t *n) TSR_MUST_USE;
/* Opens PREFIX-NAME.json, of kind PREFIX, in the folder of `doc` or, where it is not there, the
 * first of doc->folders; `found` is the value at `key` that holds NAME. *path (freed by the caller,
 * also on failure) must outlive *out. */
tsr_status tsr__doc_open_sibling(const struct tsr__doc *doc, const char *key, const json_t *found,
                                 const char *prefix, struct tsr__doc *out,
                                 char **path) TSR_MUST_USE;

#endif
