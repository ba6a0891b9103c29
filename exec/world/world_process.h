/* world_process.h: a world of processes, for tests that stand for several hosts. */
#ifndef TSR_WORLD_PROCESS_H
#define TSR_WORLD_PROCESS_H

#include "exec/launch/launch.h"
#include "exec/world/world.h"

/* As tsr_world_processes(); processes with one `host` share memory. */
tsr_status tsr__world_processes(const struct tsr_launch *launch, double timeout_s,
                                const char *transport, uint64_t host, struct tsr_world **out);

#endif
