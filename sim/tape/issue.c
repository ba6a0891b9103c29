/* issue.c: the kinds of instructions told apart, and queues of communicators followed. */
#include "sim/tape/issue.h"

#include <stdlib.h>
#include <string.h>

enum tsr__work_role tsr__role_of(const struct tsr_program *program, const struct tsr_instr *instr)
{
    switch (instr->kind) {
    case TSR_OP:
    case TSR_COPY:
    case TSR_FILL:
        return tsr__is_compute_stream(program->tables, instr->stream) ? TSR__ROLE_COMPUTE
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

bool tsr__on_stream(const struct tsr_instr *instr)
{
    switch (instr->kind) {
    case TSR_HOST_WAIT:
    case TSR_HOST_READ:
    case TSR_HOST_OP:
    case TSR_MARK:
    case TSR_ALLOC:
    case TSR_FREE:
    case TSR_HOST_ALLOC:
    case TSR_HOST_FREE:
    case TSR_PIN:
    case TSR_SEGMENT_ALLOC:
    case TSR_SEGMENT_FREE:
        return false;
    default:
        return true;
    }
}

bool tsr__is_compute_stream(const struct tsr_tables *tables, uint16_t stream)
{
    return stream < tables->n_streams && tables->streams[stream].role == TSR_ROLE_COMPUTE;
}

uint16_t tsr__wire_queue(const struct tsr_tables *tables, uint16_t comm)
{
    for (uint16_t hops = 0; comm < tables->n_comms && !tables->comms[comm].separate &&
                            tables->comms[comm].queue != comm && hops < tables->n_comms;
         hops++)
        comm = tables->comms[comm].queue;
    return comm;
}

uint32_t *tsr__no_ids(size_t n)
{
    uint32_t *items = malloc((n + 1) * sizeof *items);
    if (items)
        memset(items, 0xff, (n + 1) * sizeof *items);
    return items;
}
