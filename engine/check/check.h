/* check.h: the schedule checker. It takes the instructions of each rank in issue order, needs no
 * execution, and finds what could go wrong in one: races, memory that is used or handed on too
 * early, reads of what nobody wrote, leaks, ranks that disagree on collectives, deadlocks.
 *
 * Order. Each stream and the host of a rank carry a vector clock. A device instruction comes after
 * the ones before it on its stream and after whatever the host had waited for when it was issued;
 * WAIT adds what the event's RECORD had seen; HOST_WAIT and HOST_READ add it to the host. Two
 * accesses that conflict must be ordered by such edges inside their rank. The order that another
 * rank would lend (through two collectives and its own waits) is not counted: ranks run the same
 * code, so what is missing here is missing there. engine/check/CHECKER.md has the rules in full,
 * and what mutated programs say about them.
 *
 * Use: tsr_checker_create(); for each rank tsr_checker_rank() and its executor's submit(); then
 * tsr_checker_finish() and the findings. One checker is used by one thread at a time; ranks that
 * run as threads get a checker each, which knows only that rank.
 */
#ifndef TSR_ENGINE_CHECK_H
#define TSR_ENGINE_CHECK_H

#include "engine/program/executor.h"

enum tsr_check_kind {
    TSR_CHECK_RACE,           /* two accesses of a buffer, one a write, unordered */
    TSR_CHECK_REUSE,          /* the same of two buffers that had one address in turn */
    TSR_CHECK_EARLY_FREE,     /* given back while a use elsewhere is not ordered before */
    TSR_CHECK_EARLY_USE,      /* used on a stream that does not wait for the one it was made on */
    TSR_CHECK_USE_AFTER_FREE, /* an operand that is not allocated any more */
    TSR_CHECK_UNWRITTEN,      /* a read of bytes that nothing wrote */
    TSR_CHECK_LEAK,           /* more is alive after an iteration than after an equal one before */
    TSR_CHECK_EVENT,          /* waited for before, or without, being recorded */
    TSR_CHECK_STRUCTURE,      /* double free, overlap, unknown ids, nesting, ... */
    TSR_CHECK_MISMATCH,       /* ranks of a communicator call different collectives */
    TSR_CHECK_DEADLOCK,       /* ranks wait for each other */
    TSR_N_CHECK_KINDS
};

struct tsr_finding {
    uint8_t kind;
    uint32_t rank;
    uint64_t times;       /* how often: the same two kernels, buffers and streams count together */
    const char *headline; /* one line: what, where, which bytes, which edge is missing */
    const char *details;  /* lines that end with '\n': each instruction in full */
};

struct tsr_checker_config {
    uint32_t world;
    /* submit() fails with TSR_EDEFECT and the headline at the first finding. */
    bool stop;
    /* Addresses come from a plan, not from one pool for each stream: only what really meets at an
     * address is looked at (no EARLY_FREE on devices, no EARLY_USE). */
    bool planned_addresses;
    size_t max_findings; /* kept; 0: 64. What comes after is only counted */
};

struct tsr_checker;
/* `config` is copied. Errors: TSR_ENOMEM. */
tsr_status tsr_checker_create(const struct tsr_checker_config *config,
                              struct tsr_checker **out) TSR_MUST_USE;
/* With its findings and executors. NULL is fine. */
void tsr_checker_destroy(struct tsr_checker *checker);

/* The executor of a rank: submit() checks. `tables` is borrowed until tsr_checker_finish() has
 * returned and may be set later by tsr_checker_set_tables(), but before the first instruction.
 * `next` may be NULL; every instruction that has been checked is handed on to it (and drain and
 * exchange always). Errors: TSR_EVALUE for a rank twice or outside the world; TSR_ENOMEM. */
tsr_status tsr_checker_rank(struct tsr_checker *checker, uint32_t rank,
                            const struct tsr_tables *tables, struct tsr_executor *next,
                            struct tsr_executor **out) TSR_MUST_USE;
void tsr_checker_set_tables(struct tsr_checker *checker, uint32_t rank,
                            const struct tsr_tables *tables);
/* `rank` does what `as` does (a class of ranks), which was named before. */
tsr_status tsr_checker_same(struct tsr_checker *checker, uint32_t rank, uint32_t as) TSR_MUST_USE;

/* What follows is numbered from 0 and named so ("init", "eval") in findings. MARK of an iteration
 * does the same by itself. `name` is borrowed. */
void tsr_checker_section(struct tsr_checker *checker, uint32_t rank, const char *name);

/* Compares the ranks. Ranks that were never named are not compared. Errors: TSR_ENOMEM. */
tsr_status tsr_checker_finish(struct tsr_checker *checker) TSR_MUST_USE;

/* In order of appearance, those that were kept; i < tsr_checker_n_findings(). They belong to the
 * checker. */
size_t tsr_checker_n_findings(const struct tsr_checker *checker);
const struct tsr_finding *tsr_checker_finding(const struct tsr_checker *checker, size_t i);

struct tsr_checker_counts {
    uint64_t instrs, collectives; /* of ranks with programs of their own */
    uint32_t n_ranks, n_programs; /* ranks that are known; of those, with own programs */
    uint64_t findings;            /* distinct, also those that were not kept */
    uint64_t by_kind[TSR_N_CHECK_KINDS];
    bool peers_compared; /* SEND and RECV of all ranks were matched */
};
struct tsr_checker_counts tsr_checker_counts(const struct tsr_checker *checker);

#endif
