/* issue.h: what a program says of its instructions before any time is known: which of them go to a
 * stream, what they are to figures of overlap, and whose queue a collective stands in. The compiler
 * of tapes and the figures read programs alike through it. Private to sim/.
 */
#ifndef TSR_SIM_ISSUE_H
#define TSR_SIM_ISSUE_H

#include "engine/program/program.h"

/* From TSR__ROLE_GATHER on: collectives and messages. */
enum tsr__work_role {
    TSR__ROLE_NOTHING,
    TSR__ROLE_COMPUTE,
    TSR__ROLE_GATHER,
    TSR__ROLE_REDUCE,
    TSR__ROLE_OTHER_WIRE
};

/* Copies and kernels count as compute on a compute stream only. */
enum tsr__work_role tsr__role_of(const struct tsr_program *program, const struct tsr_instr *instr);
/* False: the host does it, or waits in it, when it is issued. */
bool tsr__on_stream(const struct tsr_instr *instr);
bool tsr__is_compute_stream(const struct tsr_tables *tables, uint16_t stream);
/* The communicator whose wire queue `comm` uses: itself if it is separate; an index that the tables
 * do not have where they name one. */
uint16_t tsr__wire_queue(const struct tsr_tables *tables, uint16_t comm);

/* n + 1 times TSR_NO_ID: nothing seen yet, of n streams, events, queues or classes. NULL: no
 * memory. Freed by the caller. */
uint32_t *tsr__no_ids(size_t n);

#endif
