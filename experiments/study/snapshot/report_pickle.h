/* report_pickle.h: writes a Python pickle (protocol 4), value by value, for pickle.load().
 *
 * The caller writes values in the order of a stack machine: a container first, then each member
 * followed by the call that puts it in:
 *
 *   tsr__pickle_list(p);   tsr__pickle_int(p, 1); tsr__pickle_append(p);                  [1]
 *   tsr__pickle_dict(p);   tsr__pickle_text(p, "a"); tsr__pickle_bool(p, true); tsr__pickle_set(p);
 *
 * A value can be remembered and used again: the reader then has one object with several references.
 * Only operations that PyTorch's viewer of memory snapshots knows are written (no frames, no sets,
 * no objects). Errors stay in the stream (ferror()).
 */
#ifndef TSR_STUDY_REPORT_PICKLE_H
#define TSR_STUDY_REPORT_PICKLE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct tsr__pickle {
    FILE *out;
    uint32_t n_remembered;
};

void tsr__pickle_begin(struct tsr__pickle *pickle, FILE *out);
/* The one value on the stack is what the reader gets. */
void tsr__pickle_end(struct tsr__pickle *pickle);

void tsr__pickle_bool(struct tsr__pickle *pickle, bool value);
void tsr__pickle_int(struct tsr__pickle *pickle, int64_t value);
void tsr__pickle_real(struct tsr__pickle *pickle, double value);
/* UTF-8. */
void tsr__pickle_text(struct tsr__pickle *pickle, const char *text);

void tsr__pickle_dict(struct tsr__pickle *pickle);
void tsr__pickle_list(struct tsr__pickle *pickle);
void tsr__pickle_set(struct tsr__pickle *pickle);    /* dict, key, value -> dict */
void tsr__pickle_append(struct tsr__pickle *pickle); /* list, value -> list */
void tsr__pickle_pair(struct tsr__pickle *pickle);   /* a, b -> (a, b) */

/* Remembers the value on top of the stack; get() puts it there again. */
uint32_t tsr__pickle_remember(struct tsr__pickle *pickle);
void tsr__pickle_get(struct tsr__pickle *pickle, uint32_t remembered);

#endif
