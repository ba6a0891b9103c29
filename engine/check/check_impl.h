/* check_impl.h: the checker's own structures, shared by engine/check_*.c and by nobody else.
 *
 *   check.c         ranks, executors, findings, what each instruction kind does
 *   check_order.c   clocks of streams and host, events
 *   check_memory.c  spans of memory and who accessed them last; ids to indices
 *   check_buffer.c  buffers: allocation, use, free
 *   check_leaks.c   buffers that stay
 *   check_kernels.c  operands that a kernel needs and has not, or not as large
 *   check_ranks.c   the collectives of one rank, and of all: mismatches, deadlocks
 *   check_text.c    findings in words, and which instructions they may still name
 */
#ifndef TSR_ENGINE_CHECK_IMPL_H
#define TSR_ENGINE_CHECK_IMPL_H

#include "engine/check/check.h"
#include "engine/program/map.h"

enum {
    TSR__HOST_LANE = 0, /* lane 0 is the host, lane s + 1 stream s */
    TSR__MAX_LANES = 65,
    TSR__FIRST_LANES = 8,
    TSR__MAX_SEEN = 4096
};
#define TSR__NONE TSR_MAP_NONE

/* An instruction as far as a finding needs it. */
struct tsr__note {
    uint32_t number;  /* in its section */
    uint32_t section; /* index into rank->sections */
    const char *name; /* of the kernel; NULL */
    struct tsr_origin origin;
    uint8_t kind;
    uint16_t stream, comm;
};

/* One access: where it stands in its lane, and which instruction it was. epoch 0: none. */
struct tsr__stamp {
    uint32_t epoch, note, buffer;
    uint32_t lane;
};

struct tsr__reader {
    struct tsr__stamp stamp;
    uint32_t next; /* TSR__NONE: the last */
};

/* Bytes [begin, end) that were always accessed together: the last write, and the reads since then
 * of which none comes before another. owner: buffer that lives there; TSR__NONE. */
struct tsr__span {
    uint64_t begin, end;
    struct tsr__stamp write;
    uint32_t reads; /* index into rank->readers */
    uint32_t owner;
    bool written; /* since the owner was allocated */
};

/* A segment of the device, or a buffer of the host: sorted spans. */
struct tsr__region {
    struct tsr__span *spans;
    size_t n, cap;
};

/* A live buffer.
 *
 * Invariant: the spans of its region that cover [address, address + block_bytes) have it as owner,
 * so a byte has one owner at most. */
struct tsr__buffer {
    uint32_t id, region; /* region: index into rank->regions */
    uint8_t space, category;
    uint16_t stream;  /* owner */
    uint64_t address; /* of its first byte in the region */
    uint64_t bytes, block_bytes;
    uint32_t note;       /* of the ALLOC */
    uint32_t born_epoch; /* tail of the owner's stream at the ALLOC */
    uint32_t last_use;   /* iterations begun before it; 0: none, or there is none */
    bool is_dropped;     /* freed (TSR_MARK_DROPPED), and not yet back in its pool: no leak */
};

struct tsr__event_record {
    bool recorded;
};

/* A FREE of which some use was not ordered before the owner's stream: it must be so when the
 * stream gets its next work, which may be given this memory. */
struct tsr__pending {
    struct tsr__stamp use;
    uint32_t lane; /* of the owner */
    uint32_t free_note;
};

/* A call of a collective, or of SEND and RECV, for the comparison of ranks. */
struct tsr__call {
    uint8_t kind, dtype, reduce_op;
    uint16_t comm; /* index into checker->comms */
    uint32_t peer; /* SEND, RECV: member */
    uint32_t unit; /* calls of one launch share it */
    uint32_t note;
    uint64_t bytes, purpose; /* purpose: hash of phase, micro-batch and group */
    double factor;
};

struct tsr__checked_comm {
    struct tsr_comm comm; /* name is owned by the checker */
};

struct tsr__freed {
    uint32_t id, note;
    uint64_t bytes;
    uint8_t category;
};
enum { TSR__N_FREED = 1024 };

/* A kernel without an operand that it needs, or with one that has another size: unit is what `has`
 * and `wanted` count then, else NULL. */
struct tsr__refused {
    uint32_t note;
    int slot;
    uint64_t key, times;
    const char *unit;
    uint64_t has, wanted;
};
enum { TSR__N_REFUSED = 32 };

/* Owner of a live buffer at the end of an iteration, for leaks. */
struct tsr__alive {
    uint64_t owner; /* hash of category, module, group, bytes */
    uint32_t buffer;
    bool idle; /* nothing used it in the iteration that ended */
};

/* Invariant: a clock counts positions of a stream, and clocks[l] says how far lane l is certainly
 * behind each; an entry never goes back. Notes are named by index: whatever keeps one (a stamp, a
 * buffer, a pending free, a call) is asked by tsr__notes_forget() before notes move. */
struct tsr__check_rank {
    struct tsr_executor base;
    struct tsr_checker *checker;
    struct tsr_executor *next;
    const struct tsr_tables *tables;
    uint32_t rank;
    tsr_status status; /* sticky: the host has no memory left */

    const char **sections;
    size_t n_sections, cap_sections;
    uint32_t number; /* of the next instruction */
    struct tsr__note *notes;
    size_t n_notes, cap_notes, n_kept_notes; /* kept: by the latest tsr__notes_forget() */
    uint32_t now;                            /* note of the current instruction */

    /* check_order.c: clock of lane l: clocks[l * stride ...] */
    uint32_t n_lanes, stride;
    uint32_t *clocks;
    uint32_t host_version, seen_version[TSR__MAX_LANES];
    uint32_t launch, lane_launch[TSR__MAX_LANES]; /* of a group of calls; 0: none */
    bool in_launch;
    uint32_t n_launches, launch_note;
    struct tsr__event_record *events; /* by id - first_event */
    uint32_t *event_clocks;
    size_t n_events, cap_events;
    size_t n_event_clocks, cap_event_clocks;
    uint32_t first_event; /* id of events[0]; those before were dropped, `floor` is their join */
    uint32_t floor[TSR__MAX_LANES];

    /* check_memory.c, check_buffer.c */
    struct tsr__region *regions;
    size_t n_regions, cap_regions;
    uint32_t *free_regions;
    size_t n_free_regions, cap_free_regions;
    struct tsr_map segments, pinned; /* numbers to regions */
    struct tsr__reader *readers;
    size_t n_readers, cap_readers;
    uint32_t free_reader;
    struct tsr__buffer *buffers;
    size_t n_buffers, cap_buffers;
    uint32_t *free_buffers;
    size_t n_free_buffers, cap_free_buffers;
    struct tsr_map ids; /* of live buffers, to indices */
    struct tsr__freed freed[TSR__N_FREED];
    size_t n_freed;
    struct tsr__pending *pending;
    size_t n_pending, cap_pending;
    uint64_t work_hash, last_work_hash;
    struct tsr__alive *alive;
    size_t n_alive;
    uint32_t iterations; /* begun */
    bool has_alive;

    struct tsr__refused refused[TSR__N_REFUSED];
    size_t n_refused;
    bool is_simulated; /* it has kernels that no executor knows */

    struct tsr__call *calls;
    size_t n_calls, cap_calls;
    uint32_t n_units;
    uint64_t n_instrs;
};

/* Invariant: seen[i] is the key of findings[seen_finding[i]]; a defect that comes again is counted
 * there and not listed twice. */
struct tsr_checker {
    struct tsr_checker_config config;
    struct tsr__check_rank **ranks; /* [world]: NULL: unknown; several may be the same */
    struct tsr__checked_comm *comms;
    size_t n_comms, cap_comms;
    struct tsr_finding *findings;
    size_t n_findings, cap_findings;
    uint64_t seen[TSR__MAX_SEEN]; /* keys of findings */
    uint32_t seen_finding[TSR__MAX_SEEN];
    size_t n_seen;
    struct tsr_checker_counts counts;
    struct tsr_arena arena; /* texts */
};

/* ---- check_order.c --------------------------------------------------------------------------- */

/* Makes room for a lane. */
bool tsr__lane_reserve(struct tsr__check_rank *r, uint32_t lane);
/* The next position of a stream: what the host has waited for comes before it. */
void tsr__lane_issue(struct tsr__check_rank *r, uint32_t lane);
void tsr__host_step(struct tsr__check_rank *r);
bool tsr__is_before(const struct tsr__check_rank *r, const struct tsr__stamp *stamp, uint32_t lane);
void tsr__record(struct tsr__check_rank *r, const struct tsr_instr *instr);
void tsr__wait(struct tsr__check_rank *r, const struct tsr_instr *instr, uint32_t lane);
/* The host has waited for the tail of a stream. */
void tsr__host_read(struct tsr__check_rank *r, uint32_t lane);
/* Events that nobody can gain from any more are dropped. */
void tsr__events_prune(struct tsr__check_rank *r);
static inline uint32_t *tsr__clock(const struct tsr__check_rank *r, uint32_t lane)
{
    return r->clocks + (size_t)lane * r->stride;
}

/* ---- check_memory.c -------------------------------------------------------------------------- */

uint32_t tsr__region_new(struct tsr__check_rank *r); /* TSR__NONE: out of memory */
void tsr__region_drop(struct tsr__check_rank *r, uint32_t region);
/* Spans that cover exactly [begin, end): *first and *n. Holes in between get no span. False: out of
 * memory. */
bool tsr__spans(struct tsr__check_rank *r, uint32_t region, uint64_t begin, uint64_t end,
                size_t *first, size_t *n);
bool tsr__span_add(struct tsr__check_rank *r, uint32_t region, uint64_t begin, uint64_t end);
void tsr__spans_remove(struct tsr__check_rank *r, uint32_t region, size_t first, size_t n);
/* The current instruction accesses bytes [begin, end) of a buffer from a lane. */
void tsr__access(struct tsr__check_rank *r, const struct tsr__buffer *b, uint64_t begin,
                 uint64_t end, uint8_t access, uint32_t lane);
/* Calls fn for every access that left a trace in the span. */
void tsr__span_stamps(const struct tsr__check_rank *r, const struct tsr__span *span,
                      void (*fn)(void *user, const struct tsr__stamp *stamp), void *user);

/* ---- check_buffer.c -------------------------------------------------------------------------- */

/* The live buffer; NULL: there is none of this id. */
struct tsr__buffer *tsr__buffer_find(struct tsr__check_rank *r, uint32_t id);
void tsr__on_segment(struct tsr__check_rank *r, const struct tsr_instr *instr);
void tsr__on_alloc(struct tsr__check_rank *r, const struct tsr_instr *instr);
void tsr__on_free(struct tsr__check_rank *r, const struct tsr_instr *instr);
void tsr__on_pin(struct tsr__check_rank *r, const struct tsr_instr *instr);
void tsr__on_host_alloc(struct tsr__check_rank *r, const struct tsr_instr *instr);
void tsr__on_host_free(struct tsr__check_rank *r, const struct tsr_instr *instr);
void tsr__operands(struct tsr__check_rank *r, const struct tsr_instr *instr, uint32_t lane);
/* What was given back on a lane must be over before its next work. */
void tsr__settle_pending(struct tsr__check_rank *r, uint32_t lane);

/* ---- check_leaks.c --------------------------------------------------------------------------- */

void tsr__iteration_end(struct tsr__check_rank *r);

/* ---- check_kernels.c ------------------------------------------------------------------------- */

/* OP, COPY, FILL, HOST_OP: would an executor take it? */
void tsr__check_kernel(struct tsr__check_rank *r, const struct tsr_instr *instr);
void tsr__report_refused(struct tsr__check_rank *r);

/* ---- check_ranks.c --------------------------------------------------------------------------- */

void tsr__on_call(struct tsr__check_rank *r, const struct tsr_instr *instr);
tsr_status tsr__compare_ranks(struct tsr_checker *checker);

/* ---- check_text.c: which notes are kept ------------------------------------------------------ */

/* Between two instructions. */
void tsr__notes_forget(struct tsr__check_rank *r);

/* ---- check_text.c ---------------------------------------------------------------------------- */

enum { TSR__TEXT = 1024 };
/* "#12 ALL_GATHER" and where it comes from, in short and in full. */
const char *tsr__short(const struct tsr__check_rank *r, uint32_t note, char *out, size_t size);
const char *tsr__full(const struct tsr__check_rank *r, uint32_t note, char *out, size_t size);
const char *tsr__lane_name(const struct tsr__check_rank *r, uint32_t lane);
const char *tsr__buffer_text(const struct tsr__check_rank *r, uint32_t id, char *out, size_t size);

/* Adds a finding, or counts it to an equal one (same `key`). `notes`: instructions of this rank
 * that details name. */
void tsr__find(struct tsr__check_rank *r, enum tsr_check_kind kind, uint64_t key,
               const uint32_t *notes, size_t n_notes, const char *fmt, ...) TSR_PRINTF(6, 7);
void tsr__find_text(struct tsr_checker *checker, uint32_t rank, enum tsr_check_kind kind,
                    uint64_t key, const char *headline, const char *details);
void tsr__check_no_memory(struct tsr__check_rank *r);
uint64_t tsr__note_key(const struct tsr__check_rank *r, uint32_t note);

#endif
