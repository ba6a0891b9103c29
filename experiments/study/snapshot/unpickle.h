/* unpickle.h: reads a Python pickle (protocols 2 to 5) that holds data alone: dictionaries, lists,
 * tuples, texts, numbers, True, False and None, values that are shared. Nothing is executed: an
 * operation that would import, call or build an object is refused, as is everything that is not in
 * this list. The counterpart of report_pickle.h.
 */
#ifndef TSR_STUDY_UNPICKLE_H
#define TSR_STUDY_UNPICKLE_H

#include "engine/program/base.h"

enum tsr_pickle_kind {
    TSR_PICKLE_NONE,
    TSR_PICKLE_BOOL,
    TSR_PICKLE_INT,
    TSR_PICKLE_REAL, /* and integers from 2^63 to 2^64 - 1 */
    TSR_PICKLE_TEXT, /* UTF-8 without control characters but tabs and line ends */
    TSR_PICKLE_LIST, /* and tuples */
    TSR_PICKLE_DICT,
};

/* A value; those of a list may be the same value several times, or a list around it. */
struct tsr_pickle_value {
    uint8_t kind;
    bool closed; /* a tuple: it does not grow */
    union {
        int64_t integer; /* BOOL: 0 or 1 */
        double real;
        const char *text;
        struct {
            struct tsr_pickle_value **items; /* of a dictionary: key, value, key, value, ... */
            size_t n, cap;
        } list;
    };
};

enum {
    TSR_PICKLE_VALUES = 16000000, /* of a pickle: about 1 GB of memory */
    TSR_PICKLE_DEPTH = 64,        /* levels that are open at a time */
    TSR_PICKLE_KEYS = 64,         /* of a dictionary that is asked for a key */
};

/* The value of `n` bytes; it lives as long as `arena`. `name`: of the file, for errors. Errors:
 * TSR_ECONFIG: "NAME: byte N: what was found; allowed: ...", TSR_ENOMEM. */
tsr_status tsr_unpickle(const char *name, const void *bytes, size_t n, struct tsr_arena *arena,
                        struct tsr_pickle_value **out) TSR_MUST_USE;

/* The value of a key. NULL: no such key, no dictionary (or NULL), or one of more than
 * TSR_PICKLE_KEYS keys. */
const struct tsr_pickle_value *tsr_pickle_get(const struct tsr_pickle_value *dict, const char *key);
/* Of a list, its members and their number; of anything else (or NULL) none. */
size_t tsr_pickle_list(const struct tsr_pickle_value *list, struct tsr_pickle_value ***items);
/* A key's text, "" where it has none. */
const char *tsr_pickle_text(const struct tsr_pickle_value *dict, const char *key);
/* A key's number, which is not negative; false: it has none. */
bool tsr_pickle_count(const struct tsr_pickle_value *dict, const char *key, uint64_t *out);

#endif
