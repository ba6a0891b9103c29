/* roles.c: see roles.h. */
#include "sim/replay/roles.h"

enum tsr__work_role tsr__role_of(const struct tsr_program *program, const struct tsr_instr *instr)
{
    const struct tsr_tables *tables = program->tables;
    switch (instr->kind) {
    case TSR_OP:
    case TSR_COPY:
    case TSR_FILL:
        return instr->stream < tables->n_streams &&
                       tables->streams[instr->stream].role == TSR_ROLE_COMPUTE
                   ? TSR__ROLE_COMPUTE
                   : TSR__ROLE_NOTHING;
    case TSR_ALL_GATHER:
        return TSR__ROLE_GATHER;
    case TSR_REDUCE_SCATTER:
    case TSR_ALL_REDUCE:
        return TSR__ROLE_REDUCE;
    case TSR_BROADCAST:
    case TSR_ALL_TO_ALL:
    case TSR_SEND:
    case TSR_RECV:
    case TSR_CUSTOM_COLLECTIVE:
        return TSR__ROLE_OTHER_WIRE;
    default:
        return TSR__ROLE_NOTHING;
    }
}
