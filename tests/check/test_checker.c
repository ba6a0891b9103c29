/* test_checker.c: the schedule checker on small programs written by hand: each kind of finding,
 * what it says, and programs next to it in which there is nothing to find.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/check/check.h"

enum { DEFAULT, SIDE, THIRD, N_STREAMS };
enum { SHARD, WORLD, N_COMMS };

static const struct tsr_stream_info streams[N_STREAMS] = {
    {"default", TSR_ROLE_COMPUTE, 0}, {"side", TSR_ROLE_USER, 0}, {"third", TSR_ROLE_USER, 0}};
static const struct tsr_comm comms[N_COMMS] = {{"shard", 2, 1, true, SHARD},
                                               {"world", 2, 1, true, WORLD}};
static const char *const modules[] = {"", "layers.0"};
static const struct tsr_tables tables = {.world = 2,
                                         .n_modules = 2,
                                         .n_streams = N_STREAMS,
                                         .n_comms = N_COMMS,
                                         .modules = modules,
                                         .streams = streams,
                                         .comms = comms};

struct rig {
    struct tsr_checker *checker;
    struct tsr_executor *rank[2];
    uint32_t now; /* rank that instructions go to */
};

static void ok(tsr_status status)
{
    if (status != TSR_OK)
        fail_msg("%s", tsr_error_text());
}

static void open_rig(struct rig *r, struct tsr_checker_config config)
{
    config.world = 2;
    *r = (struct rig){0};
    ok(tsr_checker_create(&config, &r->checker));
    for (uint32_t i = 0; i < 2; i++)
        ok(tsr_checker_rank(r->checker, i, &tables, NULL, &r->rank[i]));
}

static void submit(struct rig *r, struct tsr_instr instr)
{
    instr.origin.module = 1;
    instr.origin.group = TSR_NO_ID;
    ok(r->rank[r->now]->ops->submit(r->rank[r->now], &instr));
}

static void segment(struct rig *r, uint32_t id, uint64_t address, uint64_t bytes)
{
    submit(r, (struct tsr_instr){
                  .kind = TSR_SEGMENT_ALLOC, .segment = id, .address = address, .bytes = bytes});
}

/* 512 bytes in segment 0 at a multiple of 512. */
static struct tsr_instr block(uint8_t kind, uint32_t buffer, uint64_t at, uint16_t stream)
{
    return (struct tsr_instr){.kind = kind,
                              .stream = stream,
                              .buffer = buffer,
                              .bytes = 400,
                              .block_bytes = 512,
                              .address = 512 * at,
                              .category = TSR_CAT_ACTIVATION};
}

static void alloc(struct rig *r, uint32_t buffer, uint64_t at, uint16_t stream)
{
    submit(r, block(TSR_ALLOC, buffer, at, stream));
}

static void release(struct rig *r, uint32_t buffer, uint64_t at, uint16_t stream)
{
    submit(r, block(TSR_FREE, buffer, at, stream));
}

static void op_on(struct rig *r, const char *name, uint16_t stream, uint32_t buffer,
                  uint64_t offset, uint64_t bytes, uint8_t access)
{
    struct tsr_operand o = {.buffer = buffer, .access = access, .offset = offset, .bytes = bytes};
    struct tsr_work work = {.op = TSR_OP_POINTWISE, .name = name};
    submit(r, (struct tsr_instr){.kind = TSR_OP,
                                 .stream = stream,
                                 .comm = UINT16_MAX,
                                 .n_operands = 1,
                                 .operands = &o,
                                 .work = &work});
}

static void writes(struct rig *r, uint16_t stream, uint32_t buffer)
{
    op_on(r, "writer", stream, buffer, 0, 400, TSR_WRITE);
}

static void reads(struct rig *r, uint16_t stream, uint32_t buffer)
{
    op_on(r, "reader", stream, buffer, 0, 400, TSR_READ);
}

static void event(struct rig *r, uint8_t kind, uint16_t stream, uint32_t id)
{
    submit(r, (struct tsr_instr){.kind = kind, .stream = stream, .comm = UINT16_MAX, .event = id});
}

static void mark(struct rig *r, uint8_t which, uint32_t value)
{
    submit(r, (struct tsr_instr){.kind = TSR_MARK, .mark = which, .value = value});
}

static void order(struct rig *r, uint16_t from, uint16_t to, uint32_t id)
{
    event(r, TSR_RECORD, from, id);
    event(r, TSR_WAIT, to, id);
}

/* Exactly one finding, of this kind, that says these words; or nothing (kind -1). */
static void expect(struct rig *r, int kind, const char *const *words)
{
    ok(tsr_checker_finish(r->checker));
    size_t n = tsr_checker_n_findings(r->checker);
    for (size_t i = 0; i < n; i++)
        if (kind < 0 || i > 0)
            fail_msg("found: %s", tsr_checker_finding(r->checker, i)->headline);
    if (kind >= 0) {
        assert_int_equal(n, 1);
        const struct tsr_finding *f = tsr_checker_finding(r->checker, 0);
        assert_int_equal(f->kind, kind);
        for (; words && *words; words++)
            if (!strstr(f->headline, *words) && !strstr(f->details, *words))
                fail_msg("'%s' and '%s' do not say '%s'", f->headline, f->details, *words);
    }
    tsr_checker_destroy(r->checker);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NOTHING    -1

/* ---- order ----------------------------------------------------------------------------------- */

static void start(struct rig *r)
{
    open_rig(r, (struct tsr_checker_config){0});
    segment(r, 0, 0, 8192);
    alloc(r, 1, 0, DEFAULT);
}

static void race_names_the_edge(void **state)
{
    (void)state;
    struct rig r;
    start(&r);
    writes(&r, DEFAULT, 1);
    reads(&r, SIDE, 1);
    expect(&r, TSR_CHECK_RACE,
           WORDS("rank 0: race: init #3 reader reads what init #2 writer writes",
                 "bytes 0 to 400 of buffer 1 (Activation, 400 bytes)",
                 "nothing orders init #2 writer on default before init #3 reader on side",
                 "module layers.0"));
}

static void a_wait_orders(void **state)
{
    (void)state;
    struct rig r;
    start(&r);
    writes(&r, DEFAULT, 1);
    order(&r, DEFAULT, SIDE, 1);
    reads(&r, SIDE, 1);
    order(&r, SIDE, THIRD, 2); /* and passes on */
    reads(&r, THIRD, 1);
    expect(&r, NOTHING, NULL);
}

static void an_event_is_a_place(void **state)
{
    (void)state;
    struct rig r;
    start(&r);
    event(&r, TSR_RECORD, DEFAULT, 1);
    writes(&r, DEFAULT, 1);
    event(&r, TSR_WAIT, SIDE, 1); /* of what came before the record */
    writes(&r, SIDE, 1);
    expect(&r, TSR_CHECK_RACE, WORDS("writes"));
}

static void other_bytes_do_not_meet(void **state)
{
    (void)state;
    struct rig r;
    start(&r);
    op_on(&r, "low", DEFAULT, 1, 0, 100, TSR_WRITE);
    order(&r, DEFAULT, SIDE, 1);
    op_on(&r, "middle", SIDE, 1, 100, 100, TSR_WRITE);
    op_on(&r, "high", DEFAULT, 1, 200, 100, TSR_WRITE);
    op_on(&r, "late", DEFAULT, 1, 150, 60, TSR_WRITE);
    expect(&r, TSR_CHECK_RACE, WORDS("late", "middle", "bytes 150 to 200"));
}

static void reads_do_not_conflict(void **state)
{
    (void)state;
    struct rig r;
    start(&r);
    writes(&r, DEFAULT, 1);
    order(&r, DEFAULT, SIDE, 1);
    reads(&r, SIDE, 1);
    reads(&r, DEFAULT, 1);
    reads(&r, SIDE, 1);
    order(&r, SIDE, DEFAULT, 2);
    writes(&r, DEFAULT, 1);
    expect(&r, NOTHING, NULL);
}

static void the_host_orders(void **state)
{
    (void)state;
    struct rig r;
    start(&r);
    writes(&r, DEFAULT, 1);
    event(&r, TSR_RECORD, DEFAULT, 1);
    event(&r, TSR_HOST_WAIT, DEFAULT, 1);
    writes(&r, SIDE, 1); /* issued after the host knew */
    submit(&r, (struct tsr_instr){.kind = TSR_HOST_READ, .stream = SIDE, .comm = UINT16_MAX});
    writes(&r, THIRD, 1);
    expect(&r, NOTHING, NULL);
}

static void an_event_must_be_there(void **state)
{
    (void)state;
    struct rig r;
    start(&r);
    event(&r, TSR_WAIT, SIDE, 7);
    event(&r, TSR_RECORD, DEFAULT, 7);
    expect(&r, TSR_CHECK_EVENT, WORDS("event 7", "wait"));
}

/* So many events that old ones are dropped; a wait for one of them is no mistake. */
static void old_events_are_forgotten(void **state)
{
    (void)state;
    struct rig r;
    enum { EVENTS = 40000 };
    start(&r);
    writes(&r, DEFAULT, 1);
    for (uint32_t id = 1; id <= EVENTS; id++) {
        if (id % 5000 == 0)
            mark(&r, TSR_MARK_ITERATION, id / 5000);
        order(&r, DEFAULT, SIDE, 2 * id);
        order(&r, SIDE, DEFAULT, 2 * id + 1);
    }
    event(&r, TSR_WAIT, THIRD, 2);
    reads(&r, THIRD, 1);
    expect(&r, NOTHING, NULL);
}

/* After so many instructions that most are forgotten, those that matter still have their names. */
static void old_instructions_are_forgotten(void **state)
{
    (void)state;
    struct rig r;
    enum { ITERATIONS = 12, EACH = 100000 };
    start(&r);
    alloc(&r, 2, 1, DEFAULT);
    op_on(&r, "ancient", DEFAULT, 1, 0, 400, TSR_WRITE);
    for (uint32_t i = 0; i < ITERATIONS; i++) {
        mark(&r, TSR_MARK_ITERATION, i);
        for (int k = 0; k < EACH; k++)
            writes(&r, DEFAULT, 2);
    }
    mark(&r, TSR_MARK_ITERATION, ITERATIONS);
    order(&r, DEFAULT, DEFAULT, 1);
    reads(&r, SIDE, 1);
    expect(&r, TSR_CHECK_RACE, WORDS("iteration 0 #3 reader reads what init #3 ancient writes"));
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void reuse_of_an_address(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, (struct tsr_checker_config){.planned_addresses = true});
    segment(&r, 0, 0, 8192);
    alloc(&r, 1, 0, DEFAULT);
    writes(&r, DEFAULT, 1);
    release(&r, 1, 0, DEFAULT);
    alloc(&r, 2, 0, SIDE);
    writes(&r, SIDE, 2);
    expect(&r, TSR_CHECK_REUSE, WORDS("buffer 2", "the freed buffer 1", "on default before"));
}

static void freed_too_early(void **state)
{
    (void)state;
    struct rig r;
    start(&r);
    writes(&r, DEFAULT, 1);
    order(&r, DEFAULT, SIDE, 1);
    reads(&r, SIDE, 1);
    release(&r, 1, 0, DEFAULT);
    alloc(&r, 2, 1, DEFAULT);
    writes(&r, DEFAULT, 2); /* might have been given buffer 1's memory */
    expect(&r, TSR_CHECK_EARLY_FREE,
           WORDS("buffer 1", "pool of default", "reader on side", "the next work on default"));
}

/* The owner may wait after the FREE, as long as it does before its next work. */
static void freed_and_waited_for(void **state)
{
    (void)state;
    struct rig r;
    start(&r);
    writes(&r, DEFAULT, 1);
    order(&r, DEFAULT, SIDE, 1);
    reads(&r, SIDE, 1);
    release(&r, 1, 0, DEFAULT);
    order(&r, SIDE, DEFAULT, 2);
    alloc(&r, 2, 0, DEFAULT);
    writes(&r, DEFAULT, 2);
    expect(&r, NOTHING, NULL);
}

static void used_too_early(void **state)
{
    (void)state;
    struct rig r;
    start(&r);
    writes(&r, DEFAULT, 1);
    alloc(&r, 2, 1, DEFAULT);
    writes(&r, SIDE, 2);
    expect(&r, TSR_CHECK_EARLY_USE, WORDS("on side uses buffer 2", "pool of default"));
}

static void use_after_free(void **state)
{
    (void)state;
    struct rig r;
    start(&r);
    writes(&r, DEFAULT, 1);
    release(&r, 1, 0, DEFAULT);
    reads(&r, DEFAULT, 1);
    expect(&r, TSR_CHECK_USE_AFTER_FREE, WORDS("the freed buffer 1", "init #3 free has freed"));
}

static void unwritten_bytes(void **state)
{
    (void)state;
    struct rig r;
    start(&r);
    op_on(&r, "half", DEFAULT, 1, 0, 200, TSR_WRITE);
    reads(&r, DEFAULT, 1);
    expect(&r, TSR_CHECK_UNWRITTEN, WORDS("reader reads bytes 200 to 400 of buffer 1"));
}

/* A new owner finds what the old one wrote, which is not its own. */
static void unwritten_by_the_new_owner(void **state)
{
    (void)state;
    struct rig r;
    start(&r);
    writes(&r, DEFAULT, 1);
    release(&r, 1, 0, DEFAULT);
    alloc(&r, 2, 0, DEFAULT);
    op_on(&r, "adder", DEFAULT, 2, 0, 400, TSR_READ_WRITE); /* a read comes first */
    reads(&r, DEFAULT, 2);
    expect(&r, TSR_CHECK_UNWRITTEN, WORDS("adder", "bytes 0 to 400 of buffer 2"));
}

static void structure(void **state)
{
    (void)state;
    static const struct {
        const char *word;
        struct tsr_instr instr;
    } cases[] = {
        {"not allocated", {.kind = TSR_FREE, .buffer = 9}},
        {"is there", {.kind = TSR_ALLOC, .buffer = 1, .bytes = 1, .block_bytes = 512}},
        {"outside of every segment",
         {.kind = TSR_ALLOC, .buffer = 2, .segment = 5, .bytes = 1, .block_bytes = 512}},
        {"overlap",
         {.kind = TSR_ALLOC, .buffer = 2, .address = 256, .bytes = 1, .block_bytes = 512}},
        {"are not all there",
         {.kind = TSR_ALLOC, .buffer = 2, .address = 8000, .bytes = 1, .block_bytes = 512}},
        {"a buffer still lives", {.kind = TSR_SEGMENT_FREE, .bytes = 8192}},
        {"already has", {.kind = TSR_SEGMENT_ALLOC, .bytes = 8192}},
        {"not there", {.kind = TSR_SEGMENT_FREE, .segment = 3, .bytes = 1}},
        {"stream that does not exist", {.kind = TSR_RECORD, .stream = 40, .event = 1}},
        {"communicator 7", {.kind = TSR_ALL_REDUCE, .comm = 7}},
        {"peer 0", {.kind = TSR_SEND, .peer = 0}},
        {"peer 2", {.kind = TSR_RECV, .peer = 2}},
        {"do not hold the 64 bytes", {.kind = TSR_ALL_REDUCE, .bytes = 64}},
        {"ends a launch that never began", {.kind = TSR_GROUP_END}},
        {"launch that never ends", {.kind = TSR_GROUP_BEGIN}},
        {"pinned block that is not there",
         {.kind = TSR_HOST_ALLOC, .buffer = 2, .space = TSR_SPACE_PINNED, .bytes = 8}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig r;
        start(&r);
        submit(&r, cases[i].instr);
        ok(tsr_checker_finish(r.checker));
        if (tsr_checker_n_findings(r.checker) == 0)
            fail_msg("nothing found: %s", cases[i].word);
        const struct tsr_finding *f = tsr_checker_finding(r.checker, 0);
        assert_int_equal(f->kind, TSR_CHECK_STRUCTURE);
        if (!strstr(f->headline, cases[i].word))
            fail_msg("'%s' does not say '%s'", f->headline, cases[i].word);
        tsr_checker_destroy(r.checker);
    }
}

static void operand_outside(void **state)
{
    (void)state;
    struct rig r;
    start(&r);
    op_on(&r, "writer", DEFAULT, 1, 300, 101, TSR_WRITE);
    expect(&r, TSR_CHECK_STRUCTURE, WORDS("bytes 300 to 401 of buffer 1", "outside"));
}

/* The host has waited for nothing when the segment goes. */
static void segment_in_use(void **state)
{
    (void)state;
    struct rig r;
    start(&r);
    writes(&r, DEFAULT, 1);
    release(&r, 1, 0, DEFAULT);
    submit(&r, (struct tsr_instr){.kind = TSR_SEGMENT_FREE, .bytes = 8192});
    expect(&r, TSR_CHECK_EARLY_FREE, WORDS("gives segment 0 back", "has not waited"));
}

/* ---- the host's memory ----------------------------------------------------------------------- */

static struct tsr_instr host_buffer(uint8_t kind, uint32_t buffer, uint8_t space)
{
    return (struct tsr_instr){
        .kind = kind, .buffer = buffer, .space = space, .bytes = 64, .block_bytes = 64};
}

static void host_op(struct rig *r, uint32_t buffer, uint8_t space)
{
    struct tsr_operand o = {.buffer = buffer, .space = space, .access = TSR_WRITE, .bytes = 64};
    struct tsr_work work = {.name = "fill"};
    submit(r,
           (struct tsr_instr){.kind = TSR_HOST_OP, .n_operands = 1, .operands = &o, .work = &work});
}

/* To buffer 1, on DEFAULT. */
static void copy_in(struct rig *r, uint32_t buffer, uint8_t space)
{
    struct tsr_operand o[] = {{.buffer = buffer, .space = space, .access = TSR_READ, .bytes = 64},
                              {.buffer = 1, .access = TSR_WRITE, .bytes = 64}};
    struct tsr_work work = {.name = "h2d"};
    submit(r, (struct tsr_instr){.kind = TSR_COPY, .n_operands = 2, .operands = o, .work = &work});
}

static void pageable_memory_is_gone_at_once(void **state)
{
    (void)state;
    struct rig r;
    start(&r);
    submit(&r, host_buffer(TSR_HOST_ALLOC, 2, TSR_SPACE_HOST));
    host_op(&r, 2, TSR_SPACE_HOST);
    copy_in(&r, 2, TSR_SPACE_HOST);
    submit(&r, host_buffer(TSR_HOST_FREE, 2, TSR_SPACE_HOST));
    expect(&r, TSR_CHECK_EARLY_FREE, WORDS("frees host buffer 2", "has not waited for", "h2d"));
}

static void pinned_block(struct rig *r, bool waits)
{
    start(r);
    submit(r, (struct tsr_instr){.kind = TSR_PIN, .bytes = 64, .block_bytes = 64});
    for (uint32_t buffer = 2; buffer < 4; buffer++) {
        submit(r, host_buffer(TSR_HOST_ALLOC, buffer, TSR_SPACE_PINNED));
        host_op(r, buffer, TSR_SPACE_PINNED);
        copy_in(r, buffer, TSR_SPACE_PINNED);
        submit(r, host_buffer(TSR_HOST_FREE, buffer, TSR_SPACE_PINNED));
        event(r, TSR_RECORD, DEFAULT, buffer);
        if (waits)
            event(r, TSR_HOST_WAIT, DEFAULT, buffer);
    }
}

static void pinned_block_in_turn(void **state)
{
    (void)state;
    struct rig r;
    pinned_block(&r, false);
    expect(&r, TSR_CHECK_REUSE, WORDS("fill writes bytes 0 to 64 of pinned buffer 3", "the host"));
    pinned_block(&r, true);
    expect(&r, NOTHING, NULL);
}

/* ---- leaks ----------------------------------------------------------------------------------- */

/* In every iteration a buffer, which iteration `keep` does not free; keep -1: all do, -2: none. */
static void leak(struct rig *r, int keep)
{
    uint32_t buffer = 10;
    open_rig(r, (struct tsr_checker_config){0});
    segment(r, 0, 0, 8192);
    for (int i = 0; i < 4; i++, buffer++) {
        mark(r, TSR_MARK_ITERATION, (uint32_t)i);
        alloc(r, buffer, buffer - 10, DEFAULT);
        writes(r, DEFAULT, buffer);
        if (keep != -2 && keep != i)
            release(r, buffer, buffer - 10, DEFAULT);
        mark(r, TSR_MARK_ITERATION_END, (uint32_t)i);
    }
}

static void leaks(void **state)
{
    (void)state;
    struct rig r;
    leak(&r, -1);
    expect(&r, NOTHING, NULL);
    leak(&r, 1);
    expect(&r, TSR_CHECK_LEAK, WORDS("buffer 11 (Activation", "module layers.0"));
    leak(&r, -2);
    expect(&r, TSR_CHECK_LEAK, WORDS("Activation"));
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static struct tsr_instr call(uint8_t kind, uint16_t comm, struct tsr_operand *o, uint64_t bytes)
{
    *o = (struct tsr_operand){.buffer = 1, .access = TSR_READ_WRITE, .bytes = bytes};
    return (struct tsr_instr){.kind = kind,
                              .comm = comm,
                              .dtype = TSR_F32,
                              .reduce_op = TSR_REDUCE_SUM,
                              .bytes = bytes,
                              .n_operands = 1,
                              .operands = o};
}

/* Both ranks with a written buffer 1. */
static void both_ranks(struct rig *r)
{
    open_rig(r, (struct tsr_checker_config){0});
    for (r->now = 0; r->now < 2; r->now++) {
        segment(r, 0, 0, 8192);
        alloc(r, 1, 0, DEFAULT);
        writes(r, DEFAULT, 1);
    }
}

static void all_reduce(struct rig *r, uint32_t rank, uint16_t comm, uint64_t bytes)
{
    struct tsr_operand o;
    r->now = rank;
    submit(r, call(TSR_ALL_REDUCE, comm, &o, bytes));
}

static void ranks_differ(void **state)
{
    (void)state;
    struct rig r;
    both_ranks(&r);
    for (uint32_t rank = 0; rank < 2; rank++)
        all_reduce(&r, rank, SHARD, 64);
    all_reduce(&r, 0, SHARD, 64);
    all_reduce(&r, 1, SHARD, 128);
    expect(&r, TSR_CHECK_MISMATCH,
           WORDS("communicator shard: call 1 of rank 0", "64 bytes, f32, sum", "128 bytes, f32",
                 "rank 1: init"));
}

/* Member 0 must have something to broadcast; the other gets it. */
static void broadcast(void **state)
{
    (void)state;
    for (uint32_t written = 0; written < 2; written++) {
        struct rig r;
        struct tsr_operand o;
        open_rig(&r, (struct tsr_checker_config){0});
        for (r.now = 0; r.now < 2; r.now++) {
            segment(&r, 0, 0, 8192);
            alloc(&r, 1, 0, DEFAULT);
            if (r.now == 0 && written)
                writes(&r, DEFAULT, 1);
            submit(&r, call(TSR_BROADCAST, SHARD, &o, 400));
            reads(&r, DEFAULT, 1);
        }
        expect(&r, written ? NOTHING : TSR_CHECK_UNWRITTEN, WORDS("rank 0", "broadcast reads"));
    }
}

static void one_rank_stops_early(void **state)
{
    (void)state;
    struct rig r;
    both_ranks(&r);
    all_reduce(&r, 0, SHARD, 64);
    all_reduce(&r, 1, SHARD, 64);
    all_reduce(&r, 1, SHARD, 64);
    expect(&r, TSR_CHECK_MISMATCH, WORDS("of rank 0 is nothing more"));
}

/* Each communicator has the same calls, but the ranks use the two in different orders. */
static void two_communicators_crosswise(void **state)
{
    (void)state;
    struct rig r;
    both_ranks(&r);
    all_reduce(&r, 0, SHARD, 64);
    all_reduce(&r, 0, WORLD, 64);
    all_reduce(&r, 1, WORLD, 64);
    all_reduce(&r, 1, SHARD, 64);
    expect(&r, TSR_CHECK_DEADLOCK,
           WORDS("rank 0 in init #3", "on shard waits for rank 1", "rank 1 in init #3",
                 "on world waits for rank 0"));
}

static void p2p(struct rig *r, uint32_t rank, uint8_t kind, uint64_t offset, uint64_t bytes)
{
    struct tsr_operand o;
    struct tsr_instr instr = call(kind, SHARD, &o, bytes);
    o.access = kind == TSR_SEND ? TSR_READ : TSR_WRITE;
    o.offset = offset;
    instr.reduce_op = TSR_REDUCE_NONE;
    instr.peer = (uint16_t)(1 - rank);
    r->now = rank;
    submit(r, instr);
}

static void bracket(struct rig *r, uint32_t rank, uint8_t kind)
{
    r->now = rank;
    submit(r, (struct tsr_instr){.kind = kind, .comm = UINT16_MAX});
}

/* Both send first: only as one launch do they meet. */
static void sends_cross(struct rig *r, bool launch, uint64_t taken, uint64_t where)
{
    both_ranks(r);
    for (uint32_t rank = 0; rank < 2; rank++) {
        if (launch)
            bracket(r, rank, TSR_GROUP_BEGIN);
        p2p(r, rank, TSR_SEND, 0, 64);
        p2p(r, rank, TSR_RECV, where, taken);
        if (launch)
            bracket(r, rank, TSR_GROUP_END);
    }
}

static void sends_and_receives(void **state)
{
    (void)state;
    struct rig r;
    sends_cross(&r, true, 64, 64);
    expect(&r, NOTHING, NULL);
    sends_cross(&r, false, 64, 64);
    expect(&r, TSR_CHECK_DEADLOCK, WORDS("waits for rank 1"));
    sends_cross(&r, true, 32, 64);
    expect(&r, TSR_CHECK_MISMATCH, WORDS("sends 64 bytes of f32 to rank 1, which takes 32"));
    sends_cross(&r, true, 64, 32); /* into what the same launch sends */
    ok(tsr_checker_finish(r.checker));
    assert_int_equal(tsr_checker_finding(r.checker, 0)->kind, TSR_CHECK_RACE);
    assert_non_null(strstr(tsr_checker_finding(r.checker, 0)->headline, "one launch"));
    tsr_checker_destroy(r.checker);
}

static void nobody_receives(void **state)
{
    (void)state;
    struct rig r;
    both_ranks(&r);
    p2p(&r, 0, TSR_SEND, 0, 64);
    expect(&r, TSR_CHECK_MISMATCH, WORDS("takes nothing"));
}

/* A rank that is like another one is compared as that one. */
static void classes(void **state)
{
    (void)state;
    struct tsr_checker_config config = {.world = 2};
    struct rig r = {0};
    ok(tsr_checker_create(&config, &r.checker));
    ok(tsr_checker_rank(r.checker, 0, &tables, NULL, &r.rank[0]));
    ok(tsr_checker_same(r.checker, 1, 0));
    segment(&r, 0, 0, 8192);
    alloc(&r, 1, 0, DEFAULT);
    writes(&r, DEFAULT, 1);
    all_reduce(&r, 0, SHARD, 64);
    struct tsr_executor *x;
    assert_int_equal(tsr_checker_rank(r.checker, 1, &tables, NULL, &x), TSR_EVALUE);
    assert_int_equal(tsr_checker_rank(r.checker, 2, &tables, NULL, &x), TSR_EVALUE);
    assert_int_equal(tsr_checker_same(r.checker, 1, 0), TSR_EVALUE);
    ok(tsr_checker_finish(r.checker));
    struct tsr_checker_counts counts = tsr_checker_counts(r.checker);
    assert_int_equal(counts.n_ranks, 2);
    assert_int_equal(counts.n_programs, 1);
    assert_int_equal(counts.instrs, 4);
    assert_int_equal(counts.collectives, 1);
    assert_int_equal(counts.findings, 0);
    tsr_checker_destroy(r.checker);
}

/* ---- the executor ---------------------------------------------------------------------------- */

/* What is right goes on to the next executor; the first defect does not. */
static void in_front_of_another(void **state)
{
    (void)state;
    struct tsr_program program;
    struct tsr_recorder recorder;
    struct tsr_checker_config config = {.world = 1, .stop = true};
    struct rig r = {0};
    tsr_program_init(&program, &tables);
    tsr_recorder_init(&recorder, &program);
    ok(tsr_checker_create(&config, &r.checker));
    ok(tsr_checker_rank(r.checker, 0, &tables, &recorder.base, &r.rank[0]));
    segment(&r, 0, 0, 8192);
    alloc(&r, 1, 0, DEFAULT);
    writes(&r, DEFAULT, 1);
    ok(r.rank[0]->ops->drain(r.rank[0]));
    struct tsr_instr twice = block(TSR_ALLOC, 1, 0, DEFAULT);
    assert_int_equal(r.rank[0]->ops->submit(r.rank[0], &twice), TSR_EDEFECT);
    assert_non_null(strstr(tsr_error_text(), "rank 0: structure"));
    assert_int_equal(program.n_instrs, 3);
    assert_null(r.rank[0]->ops->exchange); /* the recorder has none either */
    tsr_checker_destroy(r.checker);
    tsr_program_fini(&program);
}

/* The same defect again and again is one finding; different ones are kept up to a number. */
static void findings_are_counted(void **state)
{
    (void)state;
    struct rig r;
    char name[8][8];
    open_rig(&r, (struct tsr_checker_config){.max_findings = 3});
    segment(&r, 0, 0, 1 << 20);
    for (uint32_t i = 0; i < 40; i++) {
        snprintf(name[i % 8], sizeof name[0], "k%u", i % 8);
        alloc(&r, i, i, DEFAULT);
        op_on(&r, name[i % 8], DEFAULT, i, 0, 8, TSR_READ);
    }
    ok(tsr_checker_finish(r.checker));
    assert_int_equal(tsr_checker_n_findings(r.checker), 3);
    assert_int_equal(tsr_checker_counts(r.checker).findings, 8);
    assert_int_equal(tsr_checker_counts(r.checker).by_kind[TSR_CHECK_UNWRITTEN], 8);
    assert_int_equal(tsr_checker_finding(r.checker, 0)->times, 5);
    tsr_checker_destroy(r.checker);
}

static void too_many_streams(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, (struct tsr_checker_config){0});
    struct tsr_instr far = {.kind = TSR_RECORD, .stream = 64};
    assert_int_equal(r.rank[0]->ops->submit(r.rank[0], &far), TSR_EUNSUPPORTED);
    tsr_checker_destroy(r.checker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(race_names_the_edge),
        cmocka_unit_test(a_wait_orders),
        cmocka_unit_test(an_event_is_a_place),
        cmocka_unit_test(other_bytes_do_not_meet),
        cmocka_unit_test(reads_do_not_conflict),
        cmocka_unit_test(the_host_orders),
        cmocka_unit_test(an_event_must_be_there),
        cmocka_unit_test(old_events_are_forgotten),
        cmocka_unit_test(old_instructions_are_forgotten),
        cmocka_unit_test(reuse_of_an_address),
        cmocka_unit_test(freed_too_early),
        cmocka_unit_test(freed_and_waited_for),
        cmocka_unit_test(used_too_early),
        cmocka_unit_test(use_after_free),
        cmocka_unit_test(unwritten_bytes),
        cmocka_unit_test(unwritten_by_the_new_owner),
        cmocka_unit_test(structure),
        cmocka_unit_test(operand_outside),
        cmocka_unit_test(segment_in_use),
        cmocka_unit_test(pageable_memory_is_gone_at_once),
        cmocka_unit_test(pinned_block_in_turn),
        cmocka_unit_test(leaks),
        cmocka_unit_test(ranks_differ),
        cmocka_unit_test(broadcast),
        cmocka_unit_test(one_rank_stops_early),
        cmocka_unit_test(two_communicators_crosswise),
        cmocka_unit_test(sends_and_receives),
        cmocka_unit_test(nobody_receives),
        cmocka_unit_test(classes),
        cmocka_unit_test(in_front_of_another),
        cmocka_unit_test(findings_are_counted),
        cmocka_unit_test(too_many_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
