/* pool.h: work items in child processes, a few at a time. What crashes or eats the machine's memory
 * is a child; SimGrid and the engine start fresh in each item, or, where that would cost more than
 * the item, in each child.
 */
#ifndef TSR_STUDY_POOL_H
#define TSR_STUDY_POOL_H

#include "engine/program/base.h"

enum { TSR_POOL_END_BYTES = 32 }; /* of how a child ended, its 0 included */

/* What children of a pool do. The parent calls take() and name() only, a child run() only: what
 * run() leaves in memory is lost with the child. */
struct tsr_pool_work {
    size_t n;            /* items 0 .. n-1, started in this order */
    size_t result_bytes; /* plain data that a child sends back */
    bool many;           /* a child goes on with other items when it is through with one */
    bool quiet; /* children say nothing: remarks on what nobody asked for by name would confuse */
    void *user;
    /* In the child: fills *result. Errors are told in the result. It may become another program
     * (exec): `end` is then "status 0" when that is content. */
    void (*run)(void *user, size_t item, void *result);
    /* In the parent, as children end, in any order. `end`: NULL, or how the child ended without a
     * result ("signal 9"); *result is zero then. A failure stops everything. */
    tsr_status (*take)(void *user, size_t item, const void *result, const char *end);
    /* What the progress bar says of an item; NULL: there is no progress to tell. */
    const char *(*name)(void *user, size_t item);
    /* Says what exists after some items when a signal ends the program: "strategies are complete in
     * DIR". NULL: nothing is said. */
    const char *kept;
    /* In the parent, between items: true: what runs is ended, and what is left is not started.
     * NULL: never. */
    bool (*stop)(void *user);
};

/* Runs all items, `jobs` at a time (0: one), or those before the stop. Errors: those of take();
 * TSR_EIO (no process, no pipe). */
tsr_status tsr_pool_each(const struct tsr_pool_work *work, uint64_t jobs) TSR_MUST_USE;

#endif
