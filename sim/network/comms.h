/* comms.h: numbering of communicators across rank classes. Private to tape.c. */
#ifndef TSR_SIM_COMMS_H
#define TSR_SIM_COMMS_H

#include "sim/replay/tape.h"

/* Job-wide id of communicator `index` of a class's tables. */
tsr_status tsr__comms_intern(struct tsr__comms *comms, const struct tsr_tables *tables,
                             uint32_t world, uint16_t index, uint16_t *id) TSR_MUST_USE;

#endif
