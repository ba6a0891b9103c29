/* executor_memory.c: segments, blocks and host buffers: where the operands of a program lie. */
#include <stdlib.h>
#include <string.h>

#include "exec/executor/executor_impl.h"

static tsr_status map_segment(struct tsr_exec *x, const struct tsr_instr *instr)
{
    struct tsr_exec_memory *m = &x->memory;
    TSR_TRY(x->device->ops->map(x->device, instr->address, instr->bytes));
    m->mapped += instr->bytes;
    m->peak_mapped = tsr_max_u64(m->peak_mapped, m->mapped);
    return TSR_OK;
}

static tsr_status unmap_segment(struct tsr_exec *x, const struct tsr_instr *instr)
{
    TSR_TRY(x->device->ops->unmap(x->device, instr->address, instr->bytes));
    x->memory.mapped -= instr->bytes;
    return TSR_OK;
}

/* Of a workspace: a library's is tens of MiB, of which kernels here use little or nothing. */
#define WORKSPACE_POISON (UINT64_C(1) << 20)

/* A new owner of a range has not written it: NaN patterns, in the order of its stream. Not when the
 * range is freed: its last reader may be on another stream, which the next owner waits for. */
static tsr_status poison(struct tsr_exec *x, const struct tsr_instr *instr,
                         const struct tsr_buffer *b)
{
    bool large = b->category == TSR_CAT_WORKSPACE && b->bytes > WORKSPACE_POISON;
    const struct tsr_view view = {.data = b->data,
                                  .base = b->data,
                                  .bytes = large ? WORKSPACE_POISON : b->bytes,
                                  .buffer = b->id,
                                  .access = TSR_WRITE};
    const struct tsr_task task = {
        .kind = TSR_TASK_POISON, .number = x->number, .call = {.n_views = 1, .views = &view}};
    return x->device->ops->submit(x->device, instr->stream, &task);
}

static tsr_status alloc_block(struct tsr_exec *x, const struct tsr_instr *instr)
{
    struct tsr_exec_memory *m = &x->memory;
    const struct tsr_buffer b = {.id = instr->buffer,
                                 .space = TSR_SPACE_DEVICE,
                                 .category = instr->category,
                                 .bytes = instr->block_bytes,
                                 .data = x->device->ops->at(x->device, instr->address)};
    if (!b.data)
        return tsr_fail(TSR_EDEFECT, "buffer %u is allocated at %llu, where no segment is", b.id,
                        (unsigned long long)instr->address);
    TSR_TRY(tsr_buffers_add(&x->buffers, &b));
    m->allocated += b.bytes;
    m->peak_allocated = tsr_max_u64(m->peak_allocated, m->allocated);
    if (x->verify)
        return tsr_verify_add(x->verify, b.id, b.category == TSR_CAT_WORKSPACE, b.data, b.bytes);
    return x->config.poison ? poison(x, instr, &b) : TSR_OK;
}

static tsr_status free_block(struct tsr_exec *x, const struct tsr_instr *instr)
{
    struct tsr_buffer *b = tsr_buffers_find(&x->buffers, instr->buffer);
    if (!b)
        return tsr_fail(TSR_EDEFECT, "buffer %u is freed but was not allocated", instr->buffer);
    x->memory.allocated -= b->bytes;
    if (x->verify)
        tsr_verify_remove(x->verify, b->id);
    tsr_buffers_remove(&x->buffers, instr->buffer);
    return TSR_OK;
}

/* ---- the host's memory ----------------------------------------------------------------------- */

static tsr_status pin(struct tsr_exec *x, const struct tsr_instr *instr)
{
    size_t n = instr->segment + 1;
    if (n > x->n_pinned) {
        void **more = realloc(x->pinned, n * sizeof *more);
        if (!more)
            return tsr_no_memory("pinned memory");
        for (size_t i = x->n_pinned; i < n; i++)
            more[i] = NULL;
        x->pinned = more;
        x->n_pinned = n;
    }
    if (x->pinned[instr->segment])
        return tsr_fail(TSR_EDEFECT, "pinned block %u is made twice", instr->segment);
    x->pinned[instr->segment] = x->device->ops->pin(x->device, instr->block_bytes);
    if (!x->pinned[instr->segment])
        return tsr_fail(TSR_ENOMEM, "out of memory: %llu bytes of pinned memory",
                        (unsigned long long)instr->block_bytes);
    x->memory.held += instr->block_bytes;
    return TSR_OK;
}

static tsr_status alloc_host(struct tsr_exec *x, const struct tsr_instr *instr)
{
    struct tsr_buffer b = {.id = instr->buffer,
                           .space = instr->space,
                           .category = instr->category,
                           .bytes = instr->block_bytes};
    if (instr->space == TSR_SPACE_PINNED) {
        if (instr->segment >= x->n_pinned || !x->pinned[instr->segment])
            return tsr_fail(TSR_EDEFECT, "pinned block %u does not exist", instr->segment);
        b.data = x->pinned[instr->segment];
        x->memory.pinned += b.bytes;
    } else {
        b.data = aligned_alloc(64, tsr_round_up(b.bytes, 64));
        b.owned = true;
        x->memory.host += b.bytes;
    }
    if (!b.data)
        return tsr_fail(TSR_ENOMEM, "out of memory: a host buffer of %llu bytes",
                        (unsigned long long)b.bytes);
    tsr_status status = tsr_buffers_add(&x->buffers, &b);
    if (status != TSR_OK && b.owned)
        free(b.data);
    if (status == TSR_OK && x->verify)
        status = tsr_verify_add(x->verify, b.id, false, b.data, b.bytes);
    return status;
}

static tsr_status free_host(struct tsr_exec *x, const struct tsr_instr *instr)
{
    struct tsr_buffer *b = tsr_buffers_find(&x->buffers, instr->buffer);
    if (!b)
        return tsr_fail(TSR_EDEFECT, "host buffer %u is freed but was not allocated",
                        instr->buffer);
    *(b->space == TSR_SPACE_PINNED ? &x->memory.pinned : &x->memory.host) -= b->bytes;
    if (x->verify)
        tsr_verify_remove(x->verify, b->id);
    if (b->owned)
        free(b->data);
    tsr_buffers_remove(&x->buffers, instr->buffer);
    return TSR_OK;
}

/* Of a stretch that is gone through twice; there pageable memory comes and goes not. */
void tsr_exec_undo_memory_instr(struct tsr_exec *x, const struct tsr_instr *instr)
{
    bool poisons = x->config.poison;
    x->config.poison = false;
    if (instr->kind == TSR_ALLOC)
        (void)!free_block(x, instr);
    else if (instr->kind == TSR_FREE)
        (void)!alloc_block(x, instr);
    else if (instr->kind == TSR_HOST_ALLOC)
        (void)!free_host(x, instr);
    else if (instr->kind == TSR_HOST_FREE)
        (void)!alloc_host(x, instr);
    x->config.poison = poisons;
}

bool tsr_exec_memory_instr(struct tsr_exec *x, const struct tsr_instr *instr, tsr_status *status)
{
    switch (instr->kind) {
    case TSR_SEGMENT_ALLOC:
        *status = map_segment(x, instr);
        return true;
    case TSR_SEGMENT_FREE:
        *status = unmap_segment(x, instr);
        return true;
    case TSR_ALLOC:
        *status = alloc_block(x, instr);
        return true;
    case TSR_FREE:
        *status = free_block(x, instr);
        return true;
    case TSR_PIN:
        *status = pin(x, instr);
        return true;
    case TSR_HOST_ALLOC:
        *status = alloc_host(x, instr);
        return true;
    case TSR_HOST_FREE:
        *status = free_host(x, instr);
        return true;
    default:
        return false;
    }
}

/* ---- operands -------------------------------------------------------------------------------- */

tsr_status tsr_exec_resolve(struct tsr_exec *x, const struct tsr_instr *instr)
{
    while (x->cap_views < instr->n_operands)
        if (!tsr_grow(&x->views, x->cap_views, &x->cap_views, sizeof *x->views))
            return tsr_no_memory("operands");
    for (uint32_t i = 0; i < instr->n_operands; i++) {
        const struct tsr_operand *o = &instr->operands[i];
        const struct tsr_buffer *b = tsr_buffers_find(&x->buffers, o->buffer);
        if (!b)
            return tsr_fail(TSR_EDEFECT, "%s '%s' uses buffer %u, which is not allocated",
                            tsr_instr_kind_name(instr->kind), instr->work ? instr->work->name : "",
                            o->buffer);
        if (o->offset > b->bytes || o->bytes > b->bytes - o->offset)
            return tsr_fail(
                TSR_EDEFECT, "%s '%s' uses bytes %llu to %llu of buffer %u, which has %llu",
                tsr_instr_kind_name(instr->kind), instr->work ? instr->work->name : "",
                (unsigned long long)o->offset, (unsigned long long)(o->offset + o->bytes),
                o->buffer, (unsigned long long)b->bytes);
        x->views[i] = (struct tsr_view){.data = (char *)b->data + o->offset,
                                        .base = b->data,
                                        .bytes = o->bytes,
                                        .width = o->width,
                                        .pitch = o->pitch,
                                        .dtype = o->dtype,
                                        .slot = o->slot,
                                        .access = o->access,
                                        .space = o->space,
                                        .buffer = o->buffer};
    }
    return TSR_OK;
}

tsr_status tsr_exec_read(struct tsr_executor *executor, uint32_t buffer, uint64_t offset,
                         uint64_t bytes, void *out)
{
    struct tsr_exec *x = (struct tsr_exec *)executor;
    const struct tsr_buffer *b = tsr_buffers_find(&x->buffers, buffer);
    if (!b || offset > b->bytes || bytes > b->bytes - offset)
        return tsr_fail(TSR_EDEFECT, "bytes %llu to %llu of buffer %u are read, which it has not",
                        (unsigned long long)offset, (unsigned long long)(offset + bytes), buffer);
    const char *from = (const char *)tsr_exec_peek(executor, buffer) + offset;
    if (b->space == TSR_SPACE_DEVICE && x->device->ops->read)
        return x->device->ops->read(x->device, from, out, bytes);
    memcpy(out, from, bytes);
    return TSR_OK;
}

void *tsr_exec_peek(struct tsr_executor *executor, uint32_t buffer)
{
    struct tsr_exec *x = (struct tsr_exec *)executor;
    if (x->verify)
        return tsr_verify_contents(x->verify, buffer);
    struct tsr_buffer *b = tsr_buffers_find(&x->buffers, buffer);
    return b ? b->data : NULL;
}
