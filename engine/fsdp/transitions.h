/* transitions.h: the state machines as data (sections 1.2 and 1.3). A move is legal if a row of a
 * table has its state, its new state and its cause. Every move is checked against the tables at run
 * time, and `tessera inspect --states` prints them.
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

/* The calling place of a move. */
enum tsr_cause {
    TSR_BY_PRE_FORWARD,
    TSR_BY_POST_FORWARD,
    TSR_BY_PRE_BACKWARD,
    TSR_BY_POST_BACKWARD,  /* the group's autograd node */
    TSR_BY_FINAL_CALLBACK, /* the end of the backward pass, and post-backwards that it makes up for
                            */
    TSR_BY_FORWARD_PREFETCH,  /* begins to gather for a later group's forward */
    TSR_BY_BACKWARD_PREFETCH, /* begins to gather for a later group's backward */
    TSR_BY_PREFETCH_END,      /* restores the state from before the prefetch */
    TSR_BY_COPY_OUT,
    TSR_BY_RESHARD,
    TSR_BY_STATE_DICT, /* reshards before parameters are read or written */
    TSR_BY_RESET,      /* reshards after an exception (R201) */
    TSR_N_CAUSES
};

struct tsr_transition {
    uint8_t from, to, cause; /* cause: enum tsr_cause */
    const char *when; /* the circumstances, if the cause alone does not tell; NULL: it does */
};

/* Returns the rows of a machine and stores their number in *n. Static. */
const struct tsr_transition *tsr_transitions(enum tsr_machine machine, size_t *n);
const char *tsr_machine_name(enum tsr_machine machine);
/* Returns the cause in words: "pre-forward". */
const char *tsr_cause_name(enum tsr_cause cause);
/* Returns the name of a state of a machine; NULL beyond the last. */
const char *tsr_machine_state_name(enum tsr_machine machine, unsigned state);

#endif
