/* calibrate_collectives.c: collectives between ranks of one machine, by number of ranks and size:
 * a program of two buffers, and calls one after the other on one stream, as nccl-tests has them. */
#include <stdio.h>
#include <stdlib.h>

#include "experiments/cli/args/progress.h"
#include "experiments/cli/calibrate/calibrate.h"

enum { CALLS = 24, WARM_UP = 4, STREAM = 0, SEND = 1, RECEIVE = 2 };

static const uint8_t kinds[] = {TSR_ALL_GATHER, TSR_REDUCE_SCATTER, TSR_ALL_REDUCE, TSR_BROADCAST};
/* One call that latency alone decides. */
static const uint64_t SMALL = 512;
/* Blocks of an allocator are whole times this. */
static const uint64_t GRAIN = 2 << 20;

struct list {
    struct tsr_program program;
    struct tsr_recorder recorder;
    struct tsr_executor *executor;
    struct tsr_comm comm;
    struct tsr_stream_info stream;
    struct tsr_tables tables;
};

static struct tsr_instr instr_of(uint8_t kind)
{
    return (struct tsr_instr){.kind = kind,
                              .stream = STREAM,
                              .comm = UINT16_MAX,
                              .origin = {.module = TSR_NO_ID, .group = TSR_NO_ID}};
}

static tsr_status submit(struct list *l, const struct tsr_instr *instr)
{
    return l->executor->ops->submit(l->executor, instr);
}

/* Two buffers of `bytes`, full of zeros. */
static tsr_status allocate(struct list *l, uint64_t bytes)
{
    uint64_t block = tsr_ceil_div(bytes, GRAIN) * GRAIN;
    struct tsr_instr segment = instr_of(TSR_SEGMENT_ALLOC);
    segment.bytes = 2 * block;
    TSR_TRY(submit(l, &segment));
    for (uint32_t i = 0; i < 2; i++) {
        struct tsr_instr alloc = instr_of(TSR_ALLOC), fill = instr_of(TSR_FILL);
        struct tsr_operand operand = {
            .buffer = SEND + i, .access = TSR_WRITE, .dtype = TSR_F32, .bytes = bytes};
        alloc.buffer = SEND + i;
        alloc.bytes = bytes;
        alloc.block_bytes = block;
        alloc.address = i * block;
        fill.operands = &operand;
        fill.n_operands = 1;
        fill.bytes = bytes;
        TSR_TRY(submit(l, &alloc));
        TSR_TRY(submit(l, &fill));
    }
    return TSR_OK;
}

static tsr_status call(struct list *l, uint8_t kind, uint32_t ranks, uint64_t bytes)
{
    struct tsr_instr instr = instr_of(kind);
    bool gathers = kind == TSR_ALL_GATHER, scatters = kind == TSR_REDUCE_SCATTER;
    struct tsr_operand operands[2] = {{.buffer = SEND,
                                       .access = gathers || scatters ? TSR_READ : TSR_READ_WRITE,
                                       .dtype = TSR_F32,
                                       .bytes = gathers ? bytes / ranks : bytes},
                                      {.buffer = RECEIVE,
                                       .access = TSR_WRITE,
                                       .dtype = TSR_F32,
                                       .slot = 1,
                                       .bytes = scatters ? bytes / ranks : bytes}};
    instr.comm = 0;
    instr.dtype = TSR_F32;
    instr.reduce_op = scatters || kind == TSR_ALL_REDUCE ? TSR_REDUCE_SUM : TSR_REDUCE_NONE;
    instr.bytes = bytes;
    instr.operands = operands;
    instr.n_operands = gathers || scatters ? 2 : 1;
    return submit(l, &instr);
}

/* Elements that every rank has as many of. */
static uint64_t rounded(uint64_t bytes, uint32_t ranks)
{
    uint64_t each = 4ULL * ranks;
    return tsr_ceil_div(bytes, each) * each;
}

/* Those whose two buffers are a small part of the memory that there is. */
static size_t count_sizes(const struct tsr_calibrate_rank *r)
{
    const struct tsr_calibrated *d = r->device;
    uint64_t share = d->memory / (d->shared || d->cores ? r->size : 1) / 8;
    size_t n = 0;
    while (n < d->n_collective_bytes && 2 * d->collective_bytes[n] <= share)
        n++;
    return n;
}

static tsr_status run_calls(struct list *l, const struct tsr_calibrate_rank *r)
{
    const uint64_t *sizes = r->device->collective_bytes;
    size_t n_sizes = count_sizes(r);
    TSR_TRY(allocate(l, rounded(n_sizes ? sizes[n_sizes - 1] : SMALL, r->size)));
    for (size_t k = 0; k < sizeof kinds; k++)
        for (size_t i = 0; i <= n_sizes; i++) {
            uint64_t bytes = rounded(i ? sizes[i - 1] : SMALL, r->size);
            for (int n = 0; n < CALLS; n++)
                TSR_TRY(call(l, kinds[k], r->size, bytes));
            TSR_TRY(l->executor->ops->drain(l->executor));
            TSR_TRY(tsr_world_barrier(r->world));
        }
    return TSR_OK;
}

static bool is_call(const struct tsr_instr *instr)
{
    return instr->comm == 0;
}

/* The first calls of a size warm up. */
static tsr_status take(struct list *l, struct tsr_calibrate_rank *r)
{
    struct tsr_exec_span *spans = NULL;
    size_t n = 0, calls = 0;
    tsr_status status = tsr_exec_take_spans(l->executor, &spans, &n);
    for (size_t i = 0; i < n && status == TSR_OK && r->times; i++) {
        if (spans[i].number >= l->program.n_instrs)
            continue;
        const struct tsr_instr *instr = &l->program.instrs[spans[i].number];
        if (is_call(instr) && calls++ % CALLS >= WARM_UP)
            status = tsr_times_collective(r->times, instr, r->size, spans[i].end - spans[i].begin);
    }
    free(spans);
    return status;
}

static tsr_status run_rank(struct tsr_calibrate_rank *r)
{
    const struct tsr_source source = {.user = NULL};
    struct list l = {.comm = {.name = "shard", .size = r->size, .stride = 1, .separate = true},
                     .stream = {"default", TSR_ROLE_COMPUTE, 0}};
    l.tables = (struct tsr_tables){.world = r->size,
                                   .rank = r->rank,
                                   .n_streams = 1,
                                   .n_comms = 1,
                                   .streams = &l.stream,
                                   .comms = &l.comm};
    tsr_program_init(&l.program, &l.tables);
    tsr_recorder_init(&l.recorder, &l.program);
    tsr_status status;
    TSR_GOTO(done, r->device->rank(r, &source, &l.recorder.base, &l.executor));
    tsr_exec_set_tables(l.executor, &l.tables);
    TSR_GOTO(done, run_calls(&l, r));
    TSR_GOTO(done, take(&l, r));

done:
    if (l.executor)
        l.executor->ops->destroy(l.executor);
    tsr_program_fini(&l.program);
    return status;
}

tsr_status tsr_calibrate_collectives(const struct tsr_calibrated *device, uint32_t most,
                                     struct tsr_times *times)
{
    struct tsr_progress progress;
    tsr_status status = TSR_OK;
    tsr_progress_begin(&progress, most);
    for (uint32_t n = 2; n <= most && status == TSR_OK; n++) {
        tsr_progress_show(&progress, n - 1, "collectives");
        status = tsr_calibrate_group(device, NULL, n, true, run_rank, times, NULL);
    }
    tsr_progress_end(&progress);
    return status;
}
