/* comms.c: the job-wide list of communicators: which entries of the classes' tables are the same
 * one.
 */
#include <string.h>

#include "sim/tape/tape.h"

static uint32_t geometry_of(struct tsr__comms *comms, uint32_t size, uint32_t stride)
{
    for (size_t i = 0; i < comms->n_geometries; i++)
        if (comms->geometries[i].size == size && comms->geometries[i].stride == stride)
            return (uint32_t)i;
    struct tsr__geometry made = {.size = size, .stride = stride};
    if (!TSR_PUSH(comms->geometries, comms->n_geometries, comms->geometry_cap, made))
        return TSR_NO_ID;
    return (uint32_t)comms->n_geometries - 1;
}

static bool same_name(const char *a, const char *b)
{
    return !strcmp(a ? a : "", b ? b : "");
}

/* How many communicators before `index` in the table look the same. */
static uint32_t nth_of(const struct tsr_tables *tables, uint16_t index)
{
    const struct tsr_comm *comm = &tables->comms[index];
    uint32_t nth = 0;
    for (uint16_t i = 0; i < index; i++)
        nth += tables->comms[i].size == comm->size && tables->comms[i].stride == comm->stride &&
               same_name(tables->comms[i].name, comm->name);
    return nth;
}

tsr_status tsr__comms_intern(struct tsr__comms *comms, const struct tsr_tables *tables,
                             uint32_t world, uint16_t index, uint16_t *id)
{
    const struct tsr_comm *comm = &tables->comms[index];
    uint64_t span = (uint64_t)comm->size * comm->stride;
    uint32_t nth = nth_of(tables, index);
    if (!span || world % span)
        return tsr_fail(TSR_EVALUE, "communicator %s: size %u times stride %u does not divide %u",
                        comm->name ? comm->name : "?", comm->size, comm->stride, world);
    for (size_t i = 0; i < comms->n; i++) {
        const struct tsr__tape_comm *known = &comms->items[i];
        if (known->size == comm->size && known->stride == comm->stride && known->nth == nth &&
            same_name(known->name, comm->name)) {
            *id = (uint16_t)i;
            return TSR_OK;
        }
    }
    struct tsr__tape_comm made = {comm->name ? comm->name : "", comm->size, comm->stride, nth,
                                  TSR_NO_ID};
    if (comm->size > 1)
        made.geometry = geometry_of(comms, comm->size, comm->stride);
    if ((comm->size > 1 && made.geometry == TSR_NO_ID) || comms->n >= UINT16_MAX ||
        !TSR_PUSH(comms->items, comms->n, comms->cap, made))
        return tsr_no_memory("communicators");
    *id = (uint16_t)(comms->n - 1);
    return TSR_OK;
}
