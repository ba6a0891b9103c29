/* json.h: a file of JSON, opened as all files are (sim/base/files.h). */
#ifndef TSR_STUDY_JSON_H
#define TSR_STUDY_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* json_load_file() of a regular file. NULL: *error (may be NULL) says why; line -1: it could not be
 * read at all. */
json_t *tsr_json_load(const char *path, size_t flags, json_error_t *error);

/* json_dumpf() in which no string holds what a terminal must not get: it is escaped, as JSON does.
 */
int tsr_json_dump(const json_t *value, FILE *out, size_t flags);

/* All strings in `value` become what may be shown in a line of text (sim/base/text.h): of a report
 * that is printed for people. False: out of memory. */
bool tsr_json_show(json_t *value);

#endif
