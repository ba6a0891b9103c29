/* buffers.h: where the buffers of a program lie in memory: a map from buffer ids to blocks. */
#ifndef TSR_EXEC_BUFFERS_H
#define TSR_EXEC_BUFFERS_H

#include "engine/program/map.h"
#include "engine/program/program.h"

struct tsr_buffer {
    uint32_t id;
    uint8_t space, category;
    bool owned; /* pageable memory: freed with the buffer */
    uint64_t bytes;
    void *data;
};

struct tsr_buffers {
    struct tsr_buffer *items; /* [n], in no order */
    size_t n, cap;
    struct tsr_map places; /* ids to indices of items */
};

void tsr_buffers_init(struct tsr_buffers *buffers);
/* Frees the map, and the memory of owned buffers. */
void tsr_buffers_fini(struct tsr_buffers *buffers);
/* TSR_ENOMEM; TSR_EDEFECT: the id is there already. */
tsr_status tsr_buffers_add(struct tsr_buffers *buffers, const struct tsr_buffer *b) TSR_MUST_USE;
/* NULL if there is none. Valid until the next change. */
struct tsr_buffer *tsr_buffers_find(const struct tsr_buffers *buffers, uint32_t id);
void tsr_buffers_remove(struct tsr_buffers *buffers, uint32_t id);

#endif
