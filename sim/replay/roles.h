/* roles.h: what an instruction is to figures of overlap: compute, which kind of collective, or
 * neither. Private to sim/.
 */
#ifndef TSR_SIM_ROLES_H
#define TSR_SIM_ROLES_H

#include "engine/program/program.h"

/* From TSR__ROLE_GATHER on: collectives and messages. */
enum tsr__work_role {
    TSR__ROLE_NOTHING,
    TSR__ROLE_COMPUTE,
    TSR__ROLE_GATHER,
    TSR__ROLE_REDUCE,
    TSR__ROLE_OTHER_WIRE
};

enum tsr__work_role tsr__role_of(const struct tsr_program *program, const struct tsr_instr *instr);

#endif
