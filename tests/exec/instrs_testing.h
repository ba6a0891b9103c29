/* instrs_testing.h: a small program written by hand that has every kind of instruction that a host
 * executes, for one rank alone, and the rank that runs it.
 */
#ifndef TSR_INSTRS_TESTING_H
#define TSR_INSTRS_TESTING_H

/* cmocka.h needs these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/exec/devices_testing.h"

enum { LIST_INSTRS = 64, LIST_BYTES = 256, LIST_BUFFERS = 8 };

/* Buffers: 0 to 3 on the device, 4 pageable, 5 pinned; each has 64 f32. */
struct list {
    size_t n;
    struct tsr_instr instrs[LIST_INSTRS];
    struct tsr_operand operands[LIST_INSTRS][4];
    struct tsr_work works[LIST_INSTRS];
};

static inline struct tsr_instr *list_add(struct list *l, int kind, uint16_t stream)
{
    assert_true(l->n < LIST_INSTRS);
    struct tsr_instr *instr = &l->instrs[l->n];
    *instr = (struct tsr_instr){.kind = (uint8_t)kind,
                                .stream = stream,
                                .comm = UINT16_MAX,
                                .operands = l->operands[l->n],
                                .origin = {.module = TSR_NO_ID, .group = TSR_NO_ID}};
    l->n++;
    return instr;
}

static inline void list_operand(struct list *l, uint32_t buffer, int access, int slot)
{
    struct tsr_instr *instr = &l->instrs[l->n - 1];
    static const uint8_t spaces[] = {TSR_SPACE_DEVICE, TSR_SPACE_DEVICE, TSR_SPACE_DEVICE,
                                     TSR_SPACE_DEVICE, TSR_SPACE_HOST,   TSR_SPACE_PINNED};
    l->operands[l->n - 1][instr->n_operands++] = (struct tsr_operand){.buffer = buffer,
                                                                      .access = (uint8_t)access,
                                                                      .space = spaces[buffer],
                                                                      .dtype = TSR_F32,
                                                                      .slot = (uint8_t)slot,
                                                                      .bytes = LIST_BYTES};
}

static inline struct tsr_work *list_work(struct list *l, const char *name)
{
    struct tsr_work *work = &l->works[l->n - 1];
    *work = (struct tsr_work){.op = TSR_OP_POINTWISE, .dtype = TSR_F32, .name = name};
    work->dims[0] = 1;
    work->dims[1] = LIST_BYTES / 4;
    l->instrs[l->n - 1].work = work;
    return work;
}

/* out = f(a, b), or f(a) where b is out */
static inline void list_op(struct list *l, uint16_t stream, const char *name, uint32_t a,
                           uint32_t b, uint32_t out)
{
    list_add(l, TSR_OP, stream);
    list_work(l, name);
    list_operand(l, a, TSR_READ, 0);
    list_operand(l, b, TSR_READ, 1);
    list_operand(l, out, TSR_WRITE, 2);
}

static inline void list_copy(struct list *l, uint16_t stream, const char *name, uint32_t from,
                             uint32_t to)
{
    list_add(l, TSR_COPY, stream)->bytes = LIST_BYTES;
    list_work(l, name);
    list_operand(l, from, TSR_READ, 0);
    list_operand(l, to, TSR_WRITE, 1);
}

static inline void list_fill(struct list *l, uint16_t stream, uint32_t buffer, double value)
{
    list_add(l, TSR_FILL, stream)->factor = value;
    l->instrs[l->n - 1].bytes = LIST_BYTES;
    list_operand(l, buffer, TSR_WRITE, 0);
}

static inline void list_collective(struct list *l, int kind, uint16_t stream, uint32_t from,
                                   uint32_t to)
{
    struct tsr_instr *instr = list_add(l, kind, stream);
    instr->comm = 0;
    instr->dtype = TSR_F32;
    instr->bytes = LIST_BYTES;
    if (kind == TSR_REDUCE_SCATTER || kind == TSR_ALL_REDUCE)
        instr->reduce_op = TSR_REDUCE_SUM;
    if (from == to) {
        list_operand(l, from, TSR_READ_WRITE, 0);
        return;
    }
    list_operand(l, from, TSR_READ, 0);
    list_operand(l, to, TSR_WRITE, 1);
}

static inline void list_event(struct list *l, int kind, uint16_t stream, uint32_t event)
{
    list_add(l, kind, stream)->event = event;
}

static inline void list_message(struct list *l, int kind, uint32_t buffer)
{
    struct tsr_instr *instr = list_add(l, kind, 0);
    instr->comm = 0;
    instr->dtype = TSR_F32;
    instr->bytes = LIST_BYTES;
    list_operand(l, buffer, kind == TSR_SEND ? TSR_READ : TSR_WRITE, 0);
}

static inline void list_host_op(struct list *l, const char *name, uint32_t from, uint32_t into)
{
    list_add(l, TSR_HOST_OP, 0);
    list_work(l, name);
    list_operand(l, from, TSR_READ, 0);
    list_operand(l, into, TSR_READ_WRITE, 1);
}

static inline struct tsr_instr *list_alloc(struct list *l, uint32_t buffer)
{
    struct tsr_instr *instr = list_add(l, TSR_ALLOC, 0);
    instr->buffer = buffer;
    instr->bytes = LIST_BYTES;
    instr->block_bytes = 512;
    instr->address = 512 * buffer;
    return instr;
}

static inline void list_segment(struct list *l, int kind)
{
    struct tsr_instr *segment = list_add(l, kind, 0);
    segment->bytes = 2 << 20;
}

static inline void list_begin(struct list *l)
{
    *l = (struct list){0};
    list_segment(l, TSR_SEGMENT_ALLOC);
    for (uint32_t b = 0; b < 4; b++)
        list_alloc(l, b);
    struct tsr_instr *pin = list_add(l, TSR_PIN, 0);
    pin->segment = 1;
    pin->block_bytes = 512;
    for (uint32_t b = 4; b < 6; b++) {
        struct tsr_instr *host = list_add(l, TSR_HOST_ALLOC, 0);
        host->buffer = b;
        host->space = b == 4 ? TSR_SPACE_HOST : TSR_SPACE_PINNED;
        host->segment = b == 4 ? 0 : 1;
        host->bytes = LIST_BYTES;
        host->block_bytes = b == 4 ? LIST_BYTES : 512;
    }
}

/* Every kind; each that runs on a stream stands between others of that stream. */
static inline void list_all_kinds(struct list *l)
{
    list_begin(l);
    for (uint32_t b = 0; b < 4; b++)
        list_fill(l, 0, b, b + 1);
    list_op(l, 0, "add", 0, 1, 2);
    list_op(l, 0, "mul", 2, 1, 3);
    list_event(l, TSR_RECORD, 0, 1);
    list_event(l, TSR_RECORD, 0, 2);
    list_event(l, TSR_WAIT, 1, 1);
    list_event(l, TSR_WAIT, 1, 2);
    list_collective(l, TSR_ALL_GATHER, 1, 0, 1);
    list_collective(l, TSR_REDUCE_SCATTER, 1, 2, 3);
    list_collective(l, TSR_ALL_REDUCE, 1, 1, 1);
    list_collective(l, TSR_BROADCAST, 1, 1, 1);
    list_collective(l, TSR_ALL_TO_ALL, 1, 3, 2);
    list_event(l, TSR_RECORD, 1, 3);
    list_event(l, TSR_WAIT, 0, 3);
    list_copy(l, 0, "d2h_shard", 1, 4);
    list_copy(l, 0, "d2h_shard", 2, 5);
    list_event(l, TSR_RECORD, 0, 4);
    list_copy(l, 0, "device_copy", 2, 3);
    list_event(l, TSR_HOST_WAIT, 0, 4);
    list_host_op(l, "host_add", 4, 5);
    list_host_op(l, "host_add", 5, 4);
    list_copy(l, 0, "h2d_shard", 4, 0);
    list_add(l, TSR_GROUP_BEGIN, 0);
    list_message(l, TSR_SEND, 0);
    list_message(l, TSR_RECV, 2);
    list_add(l, TSR_GROUP_END, 0);
    list_event(l, TSR_RECORD, 0, 5); /* nobody waits for it */
    list_op(l, 0, "add", 0, 2, 3);
    list_add(l, TSR_HOST_READ, 0);
}

/* ---- the rank -------------------------------------------------------------------------------- */

struct list_rank {
    struct tsr_world *world;
    void *shared;
    struct tsr_device *device;
    struct tsr_executor *x;
};

typedef struct tsr_device *(*list_wrap)(void *user, struct tsr_device *device);

static const struct tsr_comm list_comm = {.name = "alone", .size = 1, .stride = 1};
static const struct tsr_tables list_tables = {.world = 1, .n_comms = 1, .comms = &list_comm};

/* config: of the executor; its device and world are set here. wrap may be NULL. */
static inline void list_open(struct list_rank *r, const struct tsr_exec_config *config, bool serial,
                             list_wrap wrap, void *user)
{
    struct tsr_exec *exec = tsr_exec_new();
    struct tsr_exec_config x = *config;
    assert_non_null(exec);
    assert_int_equal(tsr_kernels_init(), TSR_OK);
    assert_int_equal(tsr_world_threads(1, 10, &r->world), TSR_OK);
    assert_int_equal(test_share(1, &r->shared), TSR_OK);
    const struct test_device device = {
        .world = r->world, .exec = exec, .shared = r->shared, .serial = serial};
    assert_int_equal(test_device_create(&device, &r->device), TSR_OK);
    x.world = r->world;
    x.device = wrap ? wrap(user, r->device) : r->device;
    r->x = tsr_exec_start(exec, &x);
    tsr_exec_set_tables(r->x, &list_tables);
}

static inline void list_close(struct list_rank *r)
{
    r->x->ops->destroy(r->x);
    test_unshare(r->shared);
    r->world->ops->destroy(r->world);
}

/* Submits all and drains. */
static inline tsr_status list_run(struct list_rank *r, const struct list *l)
{
    for (size_t i = 0; i < l->n; i++)
        TSR_TRY(r->x->ops->submit(r->x, &l->instrs[i]));
    return r->x->ops->drain(r->x);
}

static inline uint64_t list_expected(const struct list *l)
{
    struct tsr_program program;
    tsr_program_init(&program, &list_tables);
    for (size_t i = 0; i < l->n; i++)
        assert_int_equal(tsr_program_append(&program, &l->instrs[i]), TSR_OK);
    uint64_t hash = tsr_program_expected_exec_hash(&program);
    tsr_program_fini(&program);
    return hash;
}

#endif
