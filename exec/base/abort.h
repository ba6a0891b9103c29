/* abort.h: the first failure of a world as one process knows it. It is written once; from then on
 * every call ends with its status and its text.
 */
#ifndef TSR_ABORT_H
#define TSR_ABORT_H

#include "engine/program/base.h"

#include <stdatomic.h>

enum { TSR_ABORT_TEXT = 512 };

struct tsr_abort {
    _Atomic int state; /* 0: none; 1: being written; 2: there */
    tsr_status status;
    char text[TSR_ABORT_TEXT];
};

static inline bool tsr__aborted(struct tsr_abort *abort)
{
    return atomic_load_explicit(&abort->state, memory_order_seq_cst) != 0;
}
/* True for the caller whose failure is the first; another's is dropped. */
bool tsr__abort_set(struct tsr_abort *abort, tsr_status status, const char *text);
/* "rank 2 gave up: why"; true if it is the first failure. */
bool tsr__abort_by(struct tsr_abort *abort, uint32_t rank, tsr_status status, const char *why);
/* Fails with the first failure; there must be one. */
tsr_status tsr__abort_status(struct tsr_abort *abort);

#endif
