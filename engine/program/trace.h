/* trace.h: what the engine tells about its decisions, event by event.
 *
 * An event is a name and a few fields; a sink turns it into JSON, text or a counter. The names and
 * fields of the engine events are those of the recorded PyTorch runs (tests/golden/README.md), so
 * that a trace can be compared with the real thing. Without a sink nothing is formatted.
 */
#ifndef TSR_ENGINE_TRACE_H
#define TSR_ENGINE_TRACE_H

#include "engine/program/base.h"

enum tsr_field_type {
    TSR_FIELD_NULL,
    TSR_FIELD_BOOL,
    TSR_FIELD_INT,
    TSR_FIELD_DOUBLE,
    TSR_FIELD_STRING,
    TSR_FIELD_STRINGS, /* list of n strings */
    TSR_FIELD_INTS     /* list of n integers */
};

struct tsr_field {
    const char *key;
    enum tsr_field_type type;
    int64_t i; /* BOOL, INT; n of a list */
    double d;
    const char *s;
    const char *const *strings;
    const int64_t *ints;
};

enum { TSR_MAX_FIELDS = 14 };

struct tsr_event {
    const char *name; /* "unshard", "all_gather", ...; stream events: "wait_stream", ... */
    bool is_stream_event;
    int n_fields;
    struct tsr_field fields[TSR_MAX_FIELDS];
};

/* `event` and everything it points to are valid during the call only. */
struct tsr_trace_sink {
    void (*event)(void *user, const struct tsr_event *event);
    void *user;
};

#endif
