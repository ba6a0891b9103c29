/* memory_record.h: an executor that keeps what a memory recording has: beside the allocator's
 * figures by phase the live bytes by category at markers and peaks, and the time line of events.
 *
 * Everything is derived from the instructions as they come.
 */
#ifndef TSR_PLAYER_MEMORY_RECORD_H
#define TSR_PLAYER_MEMORY_RECORD_H

#include <jansson.h>

#include "engine/tessera.h"
#include "experiments/cli/inspect/memory_figures.h"
#include "tests/player/memory/memory_scenario.h"

/* Live bytes by category when they were most: of one phase (all micro-batches), or of a whole
 * iteration (phase TSR_N_PHASES). Each request counts rounded up to 512 bytes. */
struct tsr_category_peak {
    int iteration;
    uint8_t phase;
    uint64_t total, by_category[TSR_N_CATEGORIES];
    uint32_t module; /* that allocated last; TSR_NO_ID */
    const char *op;  /* what it allocated for */
};

/* A place in the run and the memory there: where a phase or a hook begins or ends. */
struct tsr_memory_marker {
    int iteration;
    bool is_phase, begins; /* a phase; else a hook of a group begins or has ended */
    uint8_t phase, hook;
    uint32_t micro, group;
    uint64_t event; /* allocations and frees before it */
    uint64_t total, by_category[TSR_N_CATEGORIES];
};

enum tsr_event_kind { TSR_EVENT_FREE, TSR_EVENT_ALLOC, TSR_EVENT_SEGMENT };

/* One allocation, free, or change of a segment, in the order in which the allocator saw them. */
struct tsr_memory_event {
    uint8_t kind, category, phase; /* enum tsr_event_kind */
    bool is_release;               /* segments */
    bool recompute;
    uint16_t stream;
    int iteration;
    uint32_t module, id; /* allocations: counted from 0 */
    uint64_t bytes, address;
    uint64_t operation; /* kernels, copies and collectives before it */
    const char *op;     /* allocations: the operation that follows; "" if none is known */
};

/* An executor that keeps what memory did, and runs nothing. It owns its lists; `figures.engine` is
 * borrowed and set before the first instruction. */
struct tsr_memory_record {
    struct tsr_memory_figures figures; /* first: its `base` is the executor */
    struct tsr_category_peak *peaks;   /* of phases and iterations, in order of appearance */
    size_t n_peaks, cap_peaks;
    struct tsr_memory_marker *markers;
    size_t n_markers, cap_markers;
    struct tsr_memory_event *events;
    size_t n_events, cap_events;
    uint64_t n_blocks; /* allocations and frees so far */

    /* running: */
    uint32_t n_allocs;
    uint64_t n_operations;
    size_t first_of_operation; /* of the events */
    uint32_t *ids;             /* of buffers, by buffer id */
    size_t n_ids;
};

void tsr_memory_record_init(struct tsr_memory_record *record);
/* Ends the last phase, and fills peaks and markers. Errors: TSR_ENOMEM. */
tsr_status tsr_memory_record_end(struct tsr_memory_record *record) TSR_MUST_USE;
void tsr_memory_record_fini(struct tsr_memory_record *record);

/* ---- the recording as JSON ------------------------------------------------------------------- */

/* In the format of the recorded ones (tests/golden-memory/README.md). Each returns a new reference;
 * NULL when out of memory. */
/* "groups": parameters with the shapes that this rank holds. */
json_t *tsr_memory_groups(const struct tsr_memory_scenario *s, struct tsr_engine *e);
/* "categories", "snapshot_columns" and "snapshots": of the instrumented run, added to `result`.
 * Returns false when out of memory. */
bool tsr_memory_categories(json_t *result, const struct tsr_memory_scenario *s,
                           const struct tsr_memory_record *record);
/* The time line of the instrumented run. */
json_t *tsr_memory_timeline(const struct tsr_memory_scenario *s,
                            const struct tsr_memory_record *record);

#endif
