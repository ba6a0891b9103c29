/* check_buffer.c: the life of buffers: where they are allocated, who uses them, and how they
 * end.
 *
 * [Note: pools] A block goes back to the pool of the stream that it was allocated on, and the next
 * ALLOC for work on that stream may get it. So two rules hold whatever addresses were handed out:
 * a use elsewhere must come before the owner's next work after the FREE (EARLY_FREE), and a use
 * elsewhere must come after the owner's tail at the ALLOC (EARLY_USE).
 */
#include <stdlib.h>

#include "engine/check/check_impl.h"

static void structure(struct tsr__check_rank *r, const char *what, uint64_t value)
{
    char text[TSR__TEXT];
    tsr__find(r, TSR_CHECK_STRUCTURE, tsr_hash_u64(tsr__note_key(r, r->now), (uintptr_t)what),
              &r->now, 1, "%s %s (%llu)", tsr__short(r, r->now, text, sizeof text), what,
              (unsigned long long)value);
}

/* ---- segments -------------------------------------------------------------------------------- */

struct host_check {
    struct tsr__check_rank *r;
    const struct tsr__stamp *late; /* a use that the host has not waited for */
};

static void check_host_knows(void *user, const struct tsr__stamp *stamp)
{
    struct host_check *c = user;
    if (!tsr__is_before(c->r, stamp, TSR__HOST_LANE) && stamp->lane != TSR__HOST_LANE)
        c->late = stamp;
}

static void segment_gone(struct tsr__check_rank *r, uint32_t region, size_t first, size_t n,
                         const struct tsr_instr *instr)
{
    struct host_check check = {r, NULL};
    for (size_t i = first; i < first + n; i++) {
        const struct tsr__span *span = &r->regions[region].spans[i];
        if (span->owner != TSR__NONE) {
            structure(r, "gives memory back in which a buffer still lives", span->owner);
            return;
        }
        tsr__span_stamps(r, span, check_host_knows, &check);
    }
    if (check.late) {
        char text[TSR__TEXT], use[TSR__TEXT];
        uint32_t notes[] = {check.late->note, r->now};
        tsr__find(r, TSR_CHECK_EARLY_FREE, tsr__note_key(r, check.late->note), notes, 2,
                  "%s gives segment %u back to the device, and the host has not waited for %s on "
                  "%s, which uses it",
                  tsr__short(r, r->now, text, sizeof text), instr->segment,
                  tsr__short(r, check.late->note, use, sizeof use),
                  tsr__lane_name(r, check.late->lane));
    }
}

void tsr__on_segment(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    uint32_t region = tsr_map_get(&r->segments, instr->segment);
    uint64_t begin = instr->address, end;
    size_t first, n;
    if (!tsr_add_u64(begin, instr->bytes, &end) || instr->bytes == 0) {
        structure(r, "has no bytes, or more than there are addresses", instr->bytes);
        return;
    }
    if (region == TSR__NONE && instr->kind == TSR_SEGMENT_FREE) {
        structure(r, "gives a segment back that is not there", instr->segment);
        return;
    }
    if (region == TSR__NONE) {
        region = tsr__region_new(r);
        if (region == TSR__NONE || !tsr_map_put(&r->segments, instr->segment, region)) {
            tsr__check_no_memory(r);
            return;
        }
    }
    if (!tsr__spans(r, region, begin, end, &first, &n)) {
        tsr__check_no_memory(r);
        return;
    }
    const struct tsr__span *spans = r->regions[region].spans;
    bool has = n > 0 && first < r->regions[region].n && spans[first].begin < end &&
               spans[first].end > begin;
    if (instr->kind == TSR_SEGMENT_ALLOC) {
        if (has)
            structure(r, "takes addresses that the segment already has", instr->segment);
        else if (!tsr__span_add(r, region, begin, end))
            tsr__check_no_memory(r);
        return;
    }
    if (!has) {
        structure(r, "gives addresses back that the segment does not have", instr->address);
        return;
    }
    segment_gone(r, region, first, n, instr);
    tsr__spans_remove(r, region, first, n);
    if (r->regions[region].n == 0) {
        tsr_map_remove(&r->segments, instr->segment);
        tsr__region_drop(r, region);
    }
}

/* ---- allocation ------------------------------------------------------------------------------ */

struct tsr__buffer *tsr__buffer_find(struct tsr__check_rank *r, uint32_t id)
{
    uint32_t i = tsr_map_get(&r->ids, id);
    return i == TSR__NONE ? NULL : &r->buffers[i];
}

static bool buffer_add(struct tsr__check_rank *r, const struct tsr__buffer *b)
{
    uint32_t i;
    if (r->n_free_buffers > 0) {
        i = r->free_buffers[--r->n_free_buffers];
        r->buffers[i] = *b;
    } else {
        i = (uint32_t)r->n_buffers;
        if (!TSR_PUSH(r->buffers, r->n_buffers, r->cap_buffers, *b))
            return false;
    }
    return tsr_map_put(&r->ids, b->id, i);
}

static void buffer_remove(struct tsr__check_rank *r, const struct tsr__buffer *b)
{
    uint32_t i = (uint32_t)(b - r->buffers);
    r->freed[r->n_freed++ % TSR__N_FREED] =
        (struct tsr__freed){b->id, r->now, b->bytes, b->category};
    tsr_map_remove(&r->ids, b->id);
    if (!TSR_PUSH(r->free_buffers, r->n_free_buffers, r->cap_free_buffers, i))
        tsr__check_no_memory(r);
}

static struct tsr__buffer new_buffer(const struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    return (struct tsr__buffer){.id = instr->buffer,
                                .space = instr->kind == TSR_ALLOC ? TSR_SPACE_DEVICE : instr->space,
                                .category = instr->category,
                                .stream = instr->stream,
                                .bytes = instr->bytes,
                                .block_bytes = instr->block_bytes,
                                .note = r->now};
}

/* Are the spans whole, without a hole, and without an owner? */
static bool is_free(const struct tsr__region *g, size_t first, size_t n, uint64_t begin,
                    uint64_t end, uint32_t *owner)
{
    uint64_t at = begin;
    *owner = TSR__NONE;
    for (size_t i = first; i < first + n && i < g->n && g->spans[i].begin == at; i++) {
        if (g->spans[i].owner != TSR__NONE) {
            *owner = g->spans[i].owner;
            return false;
        }
        at = g->spans[i].end;
    }
    return at == end;
}

void tsr__on_alloc(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    uint32_t region = tsr_map_get(&r->segments, instr->segment), owner;
    uint64_t end;
    size_t first, n;
    if (tsr__buffer_find(r, instr->buffer) || instr->buffer == TSR__NONE) {
        structure(r, "allocates a buffer that is there", instr->buffer);
        return;
    }
    if (region == TSR__NONE || !tsr_add_u64(instr->address, instr->block_bytes, &end) ||
        instr->bytes > instr->block_bytes || instr->block_bytes == 0) {
        structure(r, "allocates outside of every segment, or fewer bytes than asked for",
                  instr->segment);
        return;
    }
    struct tsr__buffer b = new_buffer(r, instr);
    uint32_t lane = instr->stream + 1U;
    b.region = region;
    b.address = instr->address;
    b.born_epoch = tsr__clock(r, lane)[lane];
    if (!tsr__spans(r, region, b.address, end, &first, &n)) {
        tsr__check_no_memory(r);
        return;
    }
    if (!is_free(&r->regions[region], first, n, b.address, end, &owner)) {
        char text[TSR__TEXT], other[TSR__TEXT];
        tsr__find(r, TSR_CHECK_STRUCTURE, tsr__note_key(r, r->now), &r->now, 1,
                  "%s: addresses %llu to %llu of segment %u %s %s",
                  tsr__short(r, r->now, text, sizeof text), (unsigned long long)b.address,
                  (unsigned long long)end, instr->segment,
                  owner == TSR__NONE ? "are not all" : "overlap",
                  owner == TSR__NONE ? "there" : tsr__buffer_text(r, owner, other, sizeof other));
        return;
    }
    for (size_t i = first; i < first + n; i++) {
        r->regions[region].spans[i].owner = b.id;
        r->regions[region].spans[i].written = false;
    }
    if (!buffer_add(r, &b))
        tsr__check_no_memory(r);
}

/* Pinned blocks are numbered by PIN and serve one buffer after the other: like segments. */
void tsr__on_pin(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    if (tsr_map_get(&r->pinned, instr->segment) != TSR__NONE || instr->segment == TSR__NONE) {
        structure(r, "makes a pinned block that is there", instr->segment);
        return;
    }
    uint32_t region = tsr__region_new(r);
    if (region == TSR__NONE || !tsr_map_put(&r->pinned, instr->segment, region) ||
        !tsr__span_add(r, region, 0, instr->block_bytes))
        tsr__check_no_memory(r);
}

/* The buffer gets [0, bytes) of the block, if that is there and free. */
static bool take_pinned(struct tsr__check_rank *r, const struct tsr_instr *instr,
                        struct tsr__buffer *b)
{
    uint32_t owner;
    size_t first, n;
    b->region = tsr_map_get(&r->pinned, instr->segment);
    if (b->region == TSR__NONE) {
        structure(r, "names a pinned block that is not there", instr->segment);
        return false;
    }
    if (!tsr__spans(r, b->region, 0, b->block_bytes, &first, &n)) {
        tsr__check_no_memory(r);
        return false;
    }
    if (!is_free(&r->regions[b->region], first, n, 0, b->block_bytes, &owner) ||
        b->bytes > b->block_bytes) {
        structure(r, "takes a pinned block that is in use, or too small", instr->segment);
        return false;
    }
    for (size_t i = first; i < first + n; i++) {
        r->regions[b->region].spans[i].owner = b->id;
        r->regions[b->region].spans[i].written = false;
    }
    return true;
}

void tsr__on_host_alloc(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    if (tsr__buffer_find(r, instr->buffer) || instr->buffer == TSR__NONE) {
        structure(r, "allocates a buffer that is there", instr->buffer);
        return;
    }
    struct tsr__buffer b = new_buffer(r, instr);
    if (b.space == TSR_SPACE_PINNED) {
        if (!take_pinned(r, instr, &b))
            return;
    } else {
        b.region = tsr__region_new(r);
        if (b.region == TSR__NONE || !tsr__span_add(r, b.region, 0, b.bytes)) {
            tsr__check_no_memory(r);
            return;
        }
        r->regions[b.region].spans[0].owner = b.id;
    }
    if (!buffer_add(r, &b))
        tsr__check_no_memory(r);
}

/* ---- free ------------------------------------------------------------------------------------ */

struct late {
    struct tsr__check_rank *r;
    uint32_t lane, last; /* last: note of the use that was added */
};

static void add_late(void *user, const struct tsr__stamp *use)
{
    struct late *late = user;
    struct tsr__check_rank *r = late->r;
    if (use->lane == late->lane || tsr__is_before(r, use, late->lane) || late->last == use->note)
        return;
    struct tsr__pending p = {*use, late->lane, r->now};
    late->last = use->note;
    if (!TSR_PUSH(r->pending, r->n_pending, r->cap_pending, p))
        tsr__check_no_memory(r);
}

/* The live buffer that an instruction gives back, if it is the one that it says. */
static struct tsr__buffer *freed_buffer(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    struct tsr__buffer *b = tsr__buffer_find(r, instr->buffer);
    if (!b) {
        char text[TSR__TEXT], buffer[TSR__TEXT];
        tsr__find(r, TSR_CHECK_STRUCTURE, tsr__note_key(r, r->now), &r->now, 1,
                  "%s frees %s, which is not allocated", tsr__short(r, r->now, text, sizeof text),
                  tsr__buffer_text(r, instr->buffer, buffer, sizeof buffer));
        return NULL;
    }
    bool device = instr->kind == TSR_FREE;
    if (device != (b->space == TSR_SPACE_DEVICE)) {
        structure(r, "frees memory of another space", b->space);
        return NULL;
    }
    if (b->bytes != instr->bytes || b->block_bytes != instr->block_bytes ||
        (device && (b->address != instr->address || b->stream != instr->stream)))
        structure(r, "frees other bytes, another address or stream than was allocated", b->id);
    return b;
}

void tsr__on_free(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    struct tsr__buffer *b = freed_buffer(r, instr);
    size_t first, n;
    if (!b)
        return;
    struct late late = {r, b->stream + 1U, TSR__NONE};
    if (!tsr__spans(r, b->region, b->address, b->address + b->block_bytes, &first, &n)) {
        tsr__check_no_memory(r);
        return;
    }
    for (size_t i = first; i < first + n; i++) {
        struct tsr__span *span = &r->regions[b->region].spans[i];
        span->owner = TSR__NONE;
        if (!r->checker->config.planned_addresses)
            tsr__span_stamps(r, span, add_late, &late);
    }
    buffer_remove(r, b);
}

void tsr__settle_pending(struct tsr__check_rank *r, uint32_t lane)
{
    size_t kept = 0;
    for (size_t i = 0; i < r->n_pending; i++) {
        const struct tsr__pending *p = &r->pending[i];
        if (p->lane != lane) {
            r->pending[kept++] = *p;
            continue;
        }
        if (tsr__is_before(r, &p->use, lane))
            continue;
        char use[TSR__TEXT], free_text[TSR__TEXT], next[TSR__TEXT], buffer[TSR__TEXT];
        uint32_t notes[] = {p->use.note, p->free_note, r->now};
        tsr__short(r, p->use.note, use, sizeof use);
        tsr__find(r, TSR_CHECK_EARLY_FREE,
                  tsr_hash_u64(tsr__note_key(r, p->use.note), tsr__note_key(r, p->free_note)),
                  notes, 3,
                  "%s gives %s back to the pool of %s while %s on %s may use it: nothing orders %s "
                  "before %s, the next work on %s",
                  tsr__short(r, p->free_note, free_text, sizeof free_text),
                  tsr__buffer_text(r, p->use.buffer, buffer, sizeof buffer),
                  tsr__lane_name(r, lane), use, tsr__lane_name(r, p->use.lane), use,
                  tsr__short(r, r->now, next, sizeof next), tsr__lane_name(r, lane));
    }
    r->n_pending = kept;
}

/* Pageable memory is gone at once. */
static void free_pageable(struct tsr__check_rank *r, const struct tsr__buffer *b)
{
    struct host_check check = {r, NULL};
    const struct tsr__region *g = &r->regions[b->region];
    for (size_t i = 0; i < g->n; i++)
        tsr__span_stamps(r, &g->spans[i], check_host_knows, &check);
    if (check.late) {
        char text[TSR__TEXT], use[TSR__TEXT], buffer[TSR__TEXT];
        uint32_t notes[] = {check.late->note, r->now};
        tsr__find(r, TSR_CHECK_EARLY_FREE, tsr__note_key(r, check.late->note), notes, 2,
                  "%s frees %s, and the host has not waited for %s on %s, which uses it",
                  tsr__short(r, r->now, text, sizeof text),
                  tsr__buffer_text(r, b->id, buffer, sizeof buffer),
                  tsr__short(r, check.late->note, use, sizeof use),
                  tsr__lane_name(r, check.late->lane));
    }
    tsr__region_drop(r, b->region);
}

/* A pinned block stays, with the traces of its uses, which its next owner meets. */
static void free_pinned(struct tsr__check_rank *r, const struct tsr__buffer *b)
{
    struct tsr__region *g = &r->regions[b->region];
    for (size_t i = 0; i < g->n; i++)
        g->spans[i].owner = TSR__NONE;
}

void tsr__on_host_free(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    struct tsr__buffer *b = freed_buffer(r, instr);
    if (!b)
        return;
    if (b->space == TSR_SPACE_HOST)
        free_pageable(r, b);
    else
        free_pinned(r, b);
    buffer_remove(r, b);
}

/* ---- operands -------------------------------------------------------------------------------- */

static void not_there(struct tsr__check_rank *r, uint32_t id)
{
    char text[TSR__TEXT], buffer[TSR__TEXT], by[TSR__TEXT];
    tsr__short(r, r->now, text, sizeof text);
    tsr__buffer_text(r, id, buffer, sizeof buffer);
    for (size_t i = 0; i < TSR__N_FREED && i < r->n_freed; i++) {
        const struct tsr__freed *f = &r->freed[i];
        if (f->id != id)
            continue;
        uint32_t notes[] = {f->note, r->now};
        tsr__find(r, TSR_CHECK_USE_AFTER_FREE, tsr_hash_u64(tsr__note_key(r, r->now), f->category),
                  notes, 2, "%s uses %s, which %s has freed", text, buffer,
                  tsr__short(r, f->note, by, sizeof by));
        return;
    }
    tsr__find(r, TSR_CHECK_USE_AFTER_FREE, tsr__note_key(r, r->now), &r->now, 1,
              "%s uses %s, which is not allocated", text, buffer);
}

static void early_use(struct tsr__check_rank *r, const struct tsr__buffer *b, uint32_t lane)
{
    uint32_t owner = b->stream + 1U;
    if (b->space != TSR_SPACE_DEVICE || lane == owner || lane == TSR__HOST_LANE ||
        r->checker->config.planned_addresses || tsr__clock(r, lane)[owner] >= b->born_epoch)
        return;
    char text[TSR__TEXT], buffer[TSR__TEXT];
    uint32_t notes[] = {b->note, r->now};
    tsr__find(r, TSR_CHECK_EARLY_USE, tsr_hash_u64(tsr__note_key(r, r->now), b->category), notes, 2,
              "%s on %s uses %s of the pool of %s, where earlier work may still use that memory: "
              "nothing orders what %s had been given at the allocation before it",
              tsr__short(r, r->now, text, sizeof text), tsr__lane_name(r, lane),
              tsr__buffer_text(r, b->id, buffer, sizeof buffer), tsr__lane_name(r, owner),
              tsr__lane_name(r, owner));
}

/* The operand's buffer if it can be accessed as it says. */
static struct tsr__buffer *operand_buffer(struct tsr__check_rank *r, const struct tsr_operand *o)
{
    struct tsr__buffer *b = tsr__buffer_find(r, o->buffer);
    uint64_t end;
    if (!b) {
        not_there(r, o->buffer);
        return NULL;
    }
    if (b->space != o->space) {
        structure(r, "says of an operand that it lies in another memory than it does", o->buffer);
        return NULL;
    }
    if (!tsr_add_u64(o->offset, o->bytes, &end) || end > b->bytes) {
        char text[TSR__TEXT], buffer[TSR__TEXT];
        tsr__find(r, TSR_CHECK_STRUCTURE, tsr__note_key(r, r->now), &r->now, 1,
                  "%s has an operand of bytes %llu to %llu of %s: outside",
                  tsr__short(r, r->now, text, sizeof text), (unsigned long long)o->offset,
                  (unsigned long long)(o->offset + o->bytes),
                  tsr__buffer_text(r, o->buffer, buffer, sizeof buffer));
        return NULL;
    }
    return b;
}

/* What the operand means on this rank: a broadcast comes from member 0, the others only get it. */
static uint8_t access_of(const struct tsr__check_rank *r, const struct tsr_instr *instr,
                         const struct tsr_operand *o)
{
    bool gets = instr->kind == TSR_BROADCAST && r->tables && instr->comm < r->tables->n_comms &&
                tsr_comm_index(&r->tables->comms[instr->comm], r->rank) != 0;
    return gets ? TSR_WRITE : o->access;
}

void tsr__operands(struct tsr__check_rank *r, const struct tsr_instr *instr, uint32_t lane)
{
    for (uint32_t i = 0; i < instr->n_operands; i++) {
        const struct tsr_operand *o = &instr->operands[i];
        struct tsr__buffer *b = o->bytes ? operand_buffer(r, o) : NULL;
        if (!b)
            continue;
        b->last_use = r->iterations;
        if (lane == TSR__HOST_LANE && b->space == TSR_SPACE_DEVICE)
            structure(r, "is work of the host on memory of the device", o->buffer);
        early_use(r, b, lane);
        if (access_of(r, instr, o) & TSR_READ)
            tsr__access(r, b, o->offset, o->offset + o->bytes, TSR_READ, lane);
    }
    for (uint32_t i = 0; i < instr->n_operands; i++) {
        const struct tsr_operand *o = &instr->operands[i];
        const struct tsr__buffer *b = o->bytes ? tsr__buffer_find(r, o->buffer) : NULL;
        bool fits =
            b && b->space == o->space && o->offset <= b->bytes && o->bytes <= b->bytes - o->offset;
        if (fits && o->access & TSR_WRITE)
            tsr__access(r, b, o->offset, o->offset + o->bytes, TSR_WRITE, lane);
    }
}
