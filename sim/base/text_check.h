/* text_check.h: text of users is looked at before a library parses it: its encoding, its size, and
 * how much it can grow into. What a library would hang on, or take gigabytes for, never reaches it.
 *
 * Every refusal is TSR_ECONFIG and one line: FILE:LINE: what was found, and what is allowed.
 */
#ifndef TSR_SIM_TEXT_CHECK_H
#define TSR_SIM_TEXT_CHECK_H

#include "engine/program/base.h"

/* What a document may hold. The largest that this project knows have 0.4 MB, 41,000 values and 8
 * levels; of recordings, 1.4 MB and 400,000 values; an index of weights has 200,000. */
enum {
    TSR_TEXT_BYTES = 64 << 20,      /* of a file */
    TSR_TEXT_DEPTH = 64,            /* levels */
    TSR_TEXT_VALUES = 1000000,      /* of a JSON document */
    TSR_TEXT_MANY_VALUES = 4000000, /* of a recording in JSON: about 200 MB of memory */
};

/* What is wrong with a text. */
struct tsr_text_flaw {
    size_t line;    /* from 1; 0: the text as a whole */
    char text[128]; /* "byte 0xff is not UTF-8; allowed: text in UTF-8" */
};

/* True if the text has a flaw: a byte that is not UTF-8, or a control character other than tab,
 * line feed and carriage return. A byte-order mark of UTF-8 at the start is none. */
bool tsr_text_find_flaw(const char *text, size_t n, struct tsr_text_flaw *flaw);
/* The same, and of a JSON document: deeper than TSR_TEXT_DEPTH, or more than `values` values.
 * Whether it is JSON at all is the parser's to say. */
bool tsr_json_find_flaw(const char *text, size_t n, size_t values, struct tsr_text_flaw *flaw);

/* Fails with "NAME:LINE: FLAW"; is_option: with "NAME: FLAW". */
tsr_status tsr_text_check(const char *name, bool is_option, const char *text,
                          size_t n) TSR_MUST_USE;

/* A whole file with a 0 behind it, not checked yet; the caller frees it. Errors: TSR_ECONFIG: it
 * cannot be opened or read, or has more than `most` bytes. */
tsr_status tsr_text_read(const char *path, size_t most, char **text, size_t *n) TSR_MUST_USE;
/* The same of at most TSR_TEXT_BYTES, checked as tsr_text_check() does. */
tsr_status tsr_text_load(const char *path, char **text, size_t *n) TSR_MUST_USE;

#endif
