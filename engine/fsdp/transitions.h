/* transitions.h: the state machines as data (sections 1.2 and 1.3): every legal move is a row of a
 * table, each move is checked against it at run time, and the tables can be printed.
 */
#ifndef TSR_ENGINE_TRANSITIONS_H
#define TSR_ENGINE_TRANSITIONS_H

#include "engine/program/base.h"

enum tsr_machine {
    TSR_MACHINE_STATE,   /* training state of a wrapped call */
    TSR_MACHINE_GROUP,   /* training state of a parameter group */
    TSR_MACHINE_SHARDED, /* what the modules of a group hold */
    TSR_N_MACHINES
};

struct tsr_transition {
    uint8_t from, to;
    const char *by; /* what makes the move */
};

/* Rows of a machine; *n gets their number. Static. */
const struct tsr_transition *tsr_transitions(enum tsr_machine machine, size_t *n);
const char *tsr_machine_name(enum tsr_machine machine);
/* Name of a state of a machine; NULL beyond the last. */
const char *tsr_machine_state_name(enum tsr_machine machine, unsigned state);

#endif
