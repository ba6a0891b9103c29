/* json.h: JSON that is written: nothing in it harms a terminal. It is read by
 * sim/base/json_load.h. */
#ifndef TSR_STUDY_JSON_H
#define TSR_STUDY_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "engine/program/base.h"

/* json_dumpf() in which no string holds what a terminal must not get: it is escaped, as JSON does.
 */
int tsr_json_dump(const json_t *value, FILE *out, size_t flags);

/* A value for one file, or for stdout. */
struct tsr_json_output {
    const char *name; /* of the file, for messages */
    const json_t *value;
    size_t flags; /* of json_dumpf() */
};
/* A tsr_write_fn (files.h) whose user is a struct tsr_json_output: the value and a line feed.
 * Errors: TSR_EIO. */
tsr_status tsr_json_write(FILE *stream, const void *output);

/* All strings in `value` become what may be shown in a line of text (sim/base/text.h): of a report
 * that is printed for people. False: out of memory. */
bool tsr_json_show(json_t *value);

#endif
