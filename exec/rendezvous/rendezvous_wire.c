/* rendezvous_wire.c: frames. */
#include "exec/rendezvous/rendezvous_wire.h"

#include <stdlib.h>
#include <string.h>

bool tsr__wire_append(struct tsr_wire_buffer *buffer, const void *data, size_t bytes)
{
    if (buffer->cap - buffer->n < bytes) {
        size_t cap = (buffer->n + bytes) * 2;
        char *grown = realloc(buffer->data, cap);
        if (!grown)
            return false;
        buffer->data = grown;
        buffer->cap = cap;
    }
    if (bytes)
        memcpy(buffer->data + buffer->n, data, bytes);
    buffer->n += bytes;
    return true;
}

void tsr__wire_drop(struct tsr_wire_buffer *buffer, size_t bytes)
{
    buffer->n -= bytes;
    if (buffer->n)
        memmove(buffer->data, buffer->data + bytes, buffer->n);
}

bool tsr__wire_put(struct tsr_wire_buffer *buffer, struct tsr_wire_frame frame, const char *key,
                   const void *value)
{
    frame.magic = TSR_WIRE_MAGIC;
    frame.key_bytes = (uint16_t)strlen(key);
    return tsr__wire_append(buffer, &frame, sizeof frame) &&
           tsr__wire_append(buffer, key, frame.key_bytes) &&
           tsr__wire_append(buffer, value, frame.value_bytes);
}

long tsr__wire_complete(const struct tsr_wire_buffer *buffer, struct tsr_wire_frame *frame)
{
    if (buffer->n < sizeof *frame)
        return 0;
    memcpy(frame, buffer->data, sizeof *frame);
    if (frame->magic != TSR_WIRE_MAGIC || frame->key_bytes > TSR_WIRE_KEY ||
        frame->value_bytes > (buffer->most ? buffer->most : TSR_RENDEZVOUS_VALUE))
        return -1;
    size_t bytes = sizeof *frame + frame->key_bytes + frame->value_bytes;
    return buffer->n < bytes ? 0 : (long)bytes;
}
