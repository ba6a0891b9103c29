/* exit_status.h: the exit statuses of the program and what failures they stand for. Rows of
 * children that failed carry them, too (struct tsr_row).
 */
#ifndef TSR_STUDY_EXIT_STATUS_H
#define TSR_STUDY_EXIT_STATUS_H

#include "engine/program/base.h"

/* The only ones. */
enum tsr_exit {
    TSR_EXIT_OK = 0,
    TSR_EXIT_MACHINE = 1, /* the machine failed */
    TSR_EXIT_USER = 2,    /* the user's mistake */
    TSR_EXIT_UNFIT = 3,   /* does not fit, or out of memory */
    TSR_EXIT_DEFECT = 4,  /* ranks that differ, a race, a deadlock */
    TSR_EXIT_RETRY = 75   /* a peer was lost; a restart may help */
};

/* The exit status that a failure means. */
static inline int tsr_exit_status(tsr_status status)
{
    switch (status) {
    case TSR_OK:
        return TSR_EXIT_OK;
    case TSR_ENOMEM:
    case TSR_EIO:
    case TSR_EBACKEND:
        return TSR_EXIT_MACHINE;
    case TSR_EOOM:
        return TSR_EXIT_UNFIT;
    case TSR_EDEFECT:
        return TSR_EXIT_DEFECT;
    case TSR_EPEER:
        return TSR_EXIT_RETRY;
    default:
        return TSR_EXIT_USER;
    }
}

#endif
