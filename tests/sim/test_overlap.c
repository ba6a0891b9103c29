/* test_overlap.c: exposed communication by collective and reason; its sums against metrics.c. */
#include "tests/sim/sim_testing.h"

#include "sim/figures/overlap.h"

static const double US = 1e-6;

/* An all-gather of BYTES in a node of 8 takes 7 us. */
enum { BYTES = 3200000, A = 1 << 20 };

struct fixture {
    struct job *job;
    struct tsr_cluster cluster;
    struct tsr_sim_options options;
    struct tsr_sim_result *result;
    struct tsr_overlap overlap;
    struct tsr_metrics metrics;
    uint16_t comm;
    uint32_t event;
};

static struct fixture begin(void)
{
    struct fixture f = {.job = job_create(8, 1, 1),
                        .cluster = test_cluster(1),
                        .options = exact_options(),
                        .event = 1};
    f.comm = job_comm(f.job, "shard", 8, 1, -1);
    return f;
}

/* `rank` is its own index: nothing is folded. */
static void look_at(struct fixture *f, uint32_t rank)
{
    uint32_t last = f->job->sim.n_iterations - 1;
    const struct tsr_sim_rank *shown = &f->result->ranks[rank];
    assert_int_equal(shown->rank, rank);
    const struct tsr_overlap_run r = {f->job->classes[shown->layout], shown->spans,
                                      f->result->iteration_end, f->job->sim.n_iterations,
                                      shown->joined};
    assert_int_equal(tsr_overlap_of(&r, last, &f->overlap), TSR_OK);
}

static void run(struct fixture *f)
{
    uint32_t last = f->job->sim.n_iterations - 1, rank = 0;
    f->result = run_job(&f->cluster, f->job, &f->options);
    assert_int_equal(tsr_metrics_of(&f->job->sim, f->result, last, &f->metrics, &rank), TSR_OK);
    look_at(f, rank);
}

static void end(struct fixture *f)
{
    tsr_overlap_fini(&f->overlap);
    tsr_sim_result_destroy(f->result);
    job_destroy(f->job);
}

/* All exposed seconds of collective `i` have one reason. */
static void assert_reason(const struct fixture *f, size_t i, enum tsr_exposure why, double us)
{
    const struct tsr_overlap_item *item = &f->overlap.items[i];
    assert_true(i < f->overlap.n);
    assert_close(item->exposed, us * US, 1e-9);
    assert_close(item->why[why], us * US, 1e-9);
    assert_int_equal(tsr_overlap_main_reason(item->why), why);
}

static void put_gather(struct fixture *f)
{
    put_collective(f->job, 0, 0, TSR_ALL_GATHER, S_GATHER, f->comm, BYTES);
}

/* ---- memory of the programs -------------------------------------------------------------- */

static void put_alloc(struct fixture *f, uint32_t buffer, uint64_t address)
{
    struct tsr_instr instr = {.kind = TSR_ALLOC,
                              .comm = UINT16_MAX,
                              .buffer = buffer,
                              .address = address,
                              .bytes = A,
                              .block_bytes = A};
    put(f->job, 0, 0, &instr);
}

static struct tsr_operand operand(uint32_t buffer, uint8_t access)
{
    return (struct tsr_operand){.buffer = buffer, .access = access, .bytes = A};
}

static void put_gather_into(struct fixture *f, struct tsr_operand o)
{
    struct tsr_instr instr = {.kind = TSR_ALL_GATHER,
                              .dtype = TSR_BF16,
                              .stream = S_GATHER,
                              .comm = f->comm,
                              .bytes = BYTES,
                              .n_operands = 1,
                              .operands = &o};
    put(f->job, 0, 0, &instr);
}

static void put_kernel_on(struct fixture *f, uint16_t stream, double us, struct tsr_operand o)
{
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = TSR_F32,
                            .name = "kernel",
                            .bytes_read = (uint64_t)(us * 1e6)};
    struct tsr_instr instr = {.kind = TSR_OP,
                              .stream = stream,
                              .comm = UINT16_MAX,
                              .work = &work,
                              .dtype = TSR_F32,
                              .n_operands = 1,
                              .operands = &o};
    put(f->job, 0, 0, &instr);
}

/* ---- reasons ----------------------------------------------------------------------------- */

static void what_runs_beside_compute_is_hidden(void **state)
{
    struct fixture f = begin();
    (void)state;
    put_gather(&f);
    put_kernel(f.job, 0, 0, S_COMPUTE, 10);
    run(&f);
    assert_int_equal(f.overlap.n, 1);
    assert_close(f.overlap.items[0].hidden, 7 * US, 1e-9);
    assert_true(f.overlap.items[0].exposed == 0.0);
    assert_int_equal(tsr_overlap_main_reason(f.overlap.items[0].why), TSR_N_EXPOSURES);
    end(&f);
}

static void without_compute_to_hide_it_it_is_bandwidth(void **state)
{
    struct fixture f = begin();
    (void)state;
    put_gather(&f);
    put_after(f.job, 0, 0, S_COMPUTE, S_GATHER, &f.event);
    put_kernel(f.job, 0, 0, S_COMPUTE, 10);
    run(&f);
    assert_reason(&f, 0, TSR_EXPOSED_BANDWIDTH, 7);
    end(&f);
}

/* Transfers one behind the other on one stream: more to send than there is compute to hide it. */
static void a_full_wire_is_bandwidth(void **state)
{
    struct fixture f = begin();
    (void)state;
    put_gather(&f);
    put_gather(&f);
    put_gather(&f);
    put_kernel(f.job, 0, 0, S_COMPUTE, 10);
    run(&f);
    assert_close(f.overlap.exposed_s, 11 * US, 1e-9);
    assert_reason(&f, 1, TSR_EXPOSED_BANDWIDTH, 4);
    assert_reason(&f, 2, TSR_EXPOSED_BANDWIDTH, 7);
    end(&f);
}

static void issued_while_compute_ran_is_late(void **state)
{
    struct fixture f = begin();
    (void)state;
    f.options.host_scale = 1.0;
    f.options.host_launch_s = f.options.host_event_s = 0.0;
    f.options.host_collective_s = 18 * US;
    put_kernel(f.job, 0, 0, S_COMPUTE, 20);
    put_gather(&f); /* 18..25 */
    put_after(f.job, 0, 0, S_COMPUTE, S_GATHER, &f.event);
    put_kernel(f.job, 0, 0, S_COMPUTE, 10);
    run(&f);
    assert_reason(&f, 0, TSR_EXPOSED_HOST, 5);
    end(&f);
}

/* The collective could not start sooner, but compute that does not need it was not launched. */
static void compute_that_is_not_launched_is_the_host_too(void **state)
{
    struct fixture f = begin();
    (void)state;
    f.options.host_scale = 1.0;
    f.options.host_collective_s = f.options.host_event_s = 0.0;
    f.options.host_launch_s = 5 * US;
    put_gather(&f);                         /* 0..7 */
    put_kernel(f.job, 0, 0, S_COMPUTE, 10); /* issued at 5 */
    run(&f);
    assert_reason(&f, 0, TSR_EXPOSED_HOST, 5);
    assert_close(f.overlap.items[0].hidden, 2 * US, 1e-9);
    end(&f);
}

/* Idle without a collective: nothing was launched, or compute waited for another stream. */
static void waits_without_communication_are_told_apart(void **state)
{
    struct fixture f = begin();
    (void)state;
    f.options.host_scale = 1.0;
    f.options.host_collective_s = f.options.host_event_s = 0.0;
    f.options.host_launch_s = 5 * US;
    put_kernel(f.job, 0, 0, S_COMPUTE, 1); /* issued at 5 */
    put_kernel(f.job, 0, 0, S_USER, 9);    /* 10..19 */
    put_after(f.job, 0, 0, S_COMPUTE, S_USER, &f.event);
    put_kernel(f.job, 0, 0, S_COMPUTE, 1); /* issued at 15, 19..20 */
    run(&f);
    assert_close(f.overlap.host_bound_s, 18 * US, 1e-9);
    assert_close(f.overlap.unlaunched_s, 9 * US, 1e-9); /* 0..5 and 6..10, when the wait came */
    end(&f);
}

static void another_stream_holds_the_communicator(void **state)
{
    struct fixture f = begin();
    (void)state;
    put_collective(f.job, 0, 0, TSR_REDUCE_SCATTER, S_REDUCE, f.comm, 2 * BYTES); /* 0..14 */
    put_kernel(f.job, 0, 0, S_COMPUTE, 16);
    put_gather(&f); /* 14..21 */
    put_after(f.job, 0, 0, S_COMPUTE, S_GATHER, &f.event);
    put_kernel(f.job, 0, 0, S_COMPUTE, 10);
    run(&f);
    assert_reason(&f, 1, TSR_EXPOSED_COMMUNICATOR, 5);
    end(&f);
}

/* The second gather waits for the event of the kernel that reads the first one's buffer. */
static void put_reuse(struct fixture *f, uint64_t second_address)
{
    put_alloc(f, 1, 0);
    put_gather_into(f, operand(1, TSR_WRITE)); /* 0..7 */
    put_after(f->job, 0, 0, S_COMPUTE, S_GATHER, &f->event);
    put_kernel_on(f, S_COMPUTE, 10, operand(1, TSR_READ)); /* 7..17 */
    put_after(f->job, 0, 0, S_GATHER, S_COMPUTE, &f->event);
    put_alloc(f, 2, second_address);
    put_gather_into(f, operand(2, TSR_WRITE)); /* 17..24 */
    put_after(f->job, 0, 0, S_COMPUTE, S_GATHER, &f->event);
    put_kernel_on(f, S_COMPUTE, 10, operand(2, TSR_READ));
}

static void memory_that_is_in_use_is_a_buffer_wait(void **state)
{
    struct fixture f = begin();
    (void)state;
    put_reuse(&f, 0);
    run(&f);
    assert_reason(&f, 0, TSR_EXPOSED_BANDWIDTH, 7);
    assert_reason(&f, 1, TSR_EXPOSED_BUFFER, 7);
    end(&f);
}

static void a_wait_for_nothing_is_stream_order(void **state)
{
    struct fixture f = begin();
    (void)state;
    put_reuse(&f, A); /* elsewhere: nobody needs the wait */
    run(&f);
    assert_reason(&f, 1, TSR_EXPOSED_ORDER, 7);
    end(&f);
}

/* A reduction cannot start before its gradients are there: that is no reason to be late. */
static void data_that_is_made_late_is_no_delay(void **state)
{
    struct fixture f = begin();
    (void)state;
    put_alloc(&f, 1, 0);
    put_kernel_on(&f, S_COMPUTE, 10, operand(1, TSR_WRITE));
    put_after(f.job, 0, 0, S_GATHER, S_COMPUTE, &f.event);
    put_gather_into(&f, operand(1, TSR_READ));
    run(&f);
    assert_reason(&f, 0, TSR_EXPOSED_BANDWIDTH, 7);
    end(&f);
}

/* The copy-in on a stream of its own waits for memory: so does the gather behind it. */
static void a_copy_in_is_followed_to_its_wait(void **state)
{
    struct fixture f = begin();
    (void)state;
    put_alloc(&f, 1, 0);
    put_kernel_on(&f, S_COMPUTE, 10, operand(1, TSR_READ));
    put_after(f.job, 0, 0, S_USER, S_COMPUTE, &f.event);
    put_alloc(&f, 2, 0);
    put_kernel_on(&f, S_USER, 0, operand(2, TSR_WRITE));
    put_after(f.job, 0, 0, S_GATHER, S_USER, &f.event);
    put_gather_into(&f, operand(2, TSR_READ)); /* 10..17 */
    run(&f);
    assert_reason(&f, 0, TSR_EXPOSED_BUFFER, 7);
    end(&f);
}

/* The host waits in a hook until gathered units are given up: the rate limiter. */
static void a_limited_host_is_a_buffer_wait(void **state)
{
    struct fixture f = begin();
    struct tsr_instr wait = {.kind = TSR_HOST_WAIT,
                             .comm = UINT16_MAX,
                             .event = 1,
                             .origin = {.hook = TSR_HOOK_PRE_FORWARD}};
    (void)state;
    put_kernel(f.job, 0, 0, S_COMPUTE, 10);
    put_event(f.job, 0, 0, TSR_RECORD, S_COMPUTE, 1);
    put(f.job, 0, 0, &wait);
    put_gather(&f); /* 10..17 */
    run(&f);
    assert_reason(&f, 0, TSR_EXPOSED_BUFFER, 7);
    end(&f);
}

/* A slow GPU comes late; the others stand in the collective until then. */
static void waiting_for_another_rank_is_told_apart(void **state)
{
    struct fixture f = begin();
    (void)state;
    f.options.slow_rank = 3;
    f.options.slow_factor = 3.0;
    put_alloc(&f, 1, 0);
    put_kernel_on(&f, S_COMPUTE, 10, operand(1, TSR_WRITE)); /* 0..10, of rank 3: 0..30 */
    put_after(f.job, 0, 0, S_GATHER, S_COMPUTE, &f.event);
    put_gather_into(&f, operand(1, TSR_READ)); /* 10..37, of rank 3: 30..37 */
    run(&f);
    assert_reason(&f, 0, TSR_EXPOSED_BANDWIDTH, 7); /* the slow rank itself */
    tsr_overlap_fini(&f.overlap);
    look_at(&f, 0);
    assert_close(f.overlap.items[0].exposed, 27 * US, 1e-9);
    assert_close(f.overlap.items[0].why[TSR_EXPOSED_RANKS], 20 * US, 1e-9);
    assert_close(f.overlap.items[0].why[TSR_EXPOSED_BANDWIDTH], 7 * US, 1e-9);
    end(&f);
}

/* While two run, one is charged: a gather before a reduction. */
static void idle_seconds_are_charged_once(void **state)
{
    struct fixture f = begin();
    uint16_t other = job_comm(f.job, "other", 8, 1, -1);
    (void)state;
    put_collective(f.job, 0, 0, TSR_REDUCE_SCATTER, S_REDUCE, other, BYTES);
    put_gather(&f);
    run(&f);
    const struct tsr_overlap_item *reduce = &f.overlap.items[0], *gather = &f.overlap.items[1];
    assert_close(gather->exposed, f.overlap.exposed_s, 1e-9);
    assert_close(reduce->beside, f.overlap.exposed_s, 1e-9);
    assert_true(reduce->exposed == 0.0);
    assert_close(f.overlap.kinds[TSR_OVERLAP_GATHER_FORWARD].exposed, f.overlap.exposed_s, 1e-9);
    end(&f);
}

/* ---- sums -------------------------------------------------------------------------------- */

/* Bytes are small enough to fit below compute, or too large. */
static void put_random(struct fixture *f, int it, uint64_t *seed)
{
    static const uint8_t kinds[] = {TSR_ALL_GATHER, TSR_REDUCE_SCATTER, TSR_ALL_REDUCE};
    static const uint16_t streams[] = {S_GATHER, S_REDUCE, S_ALL_REDUCE};
    uint16_t other = 1;
    for (int i = 0; i < 60; i++) {
        uint64_t roll = random_next(seed) % 8, which = random_next(seed) % 3;
        if (roll < 3)
            put_kernel(f->job, 0, it, S_COMPUTE, (double)(random_next(seed) % 20));
        else if (roll < 6)
            put_collective(f->job, 0, it, kinds[which], streams[which],
                           which == 2 ? other : f->comm, 8000 * (random_next(seed) % 600));
        else if (roll == 6)
            put_after(f->job, 0, it, S_COMPUTE, streams[which], &f->event);
        else
            put_after(f->job, 0, it, streams[which], S_COMPUTE, &f->event);
    }
}

static void sums_are_those_of_the_metrics(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        uint64_t random = seed;
        struct fixture f = begin();
        job_destroy(f.job);
        f.job = job_create(8, 1, 3);
        f.comm = job_comm(f.job, "shard", 8, 1, -1);
        job_comm(f.job, "other", 8, 1, -1);
        f.options.host_scale = (double)(seed % 3);
        f.options.host_collective_s = 10 * US;
        for (int it = 0; it < 3; it++)
            put_random(&f, it, &random);
        run(&f);
        const struct tsr_overlap *o = &f.overlap;
        double gathers = o->kinds[TSR_OVERLAP_GATHER_FORWARD].exposed +
                         o->kinds[TSR_OVERLAP_GATHER_BACKWARD].exposed;
        double reasons = 0.0;
        assert_true(o->exposed_s == f.metrics.exposed_s);
        assert_true(o->compute_s == f.metrics.compute_s && o->comm_s == f.metrics.comm_s);
        assert_true(o->host_bound_s == f.metrics.host_bound_s && o->step_s == f.metrics.step_s);
        assert_true(o->unlaunched_s >= 0.0 && o->unlaunched_s <= o->host_bound_s + 1e-15);
        assert_close(o->all.exposed, f.metrics.exposed_s, 1e-9);
        assert_close(gathers, f.metrics.exposed_gather_s, 1e-9);
        assert_close(o->kinds[TSR_OVERLAP_REDUCE_SCATTER].exposed +
                         o->kinds[TSR_OVERLAP_ALL_REDUCE].exposed,
                     f.metrics.exposed_reduce_s, 1e-9);
        for (int i = 0; i < TSR_N_EXPOSURES; i++) {
            assert_true(o->all.why[i] >= 0.0);
            reasons += o->all.why[i];
        }
        assert_close(reasons, o->all.exposed, 1e-9);
        end(&f);
    }
}

static void an_iteration_that_is_not_there_is_refused(void **state)
{
    struct fixture f = begin();
    struct tsr_overlap overlap;
    (void)state;
    put_gather(&f);
    run(&f);
    const struct tsr_overlap_run r = {f.job->classes[0], f.result->ranks[0].spans,
                                      f.result->iteration_end, 1, NULL};
    assert_int_equal(tsr_overlap_of(&r, 1, &overlap), TSR_EINDEX);
    end(&f);
}

/* ---- CUDA_DEVICE_MAX_CONNECTIONS --------------------------------------------------------- */

/* Layers that gather, wait and compute, as FSDP does in forward; `ahead`: the next gather is issued
 * before the compute of a layer, as with forward prefetch. */
static double gather_exposed(uint32_t connections, bool ahead)
{
    struct fixture f = begin();
    f.options.max_connections = connections;
    put_gather(&f);
    for (int layer = 0; layer < 4; layer++) {
        put_after(f.job, 0, 0, S_COMPUTE, S_GATHER, &f.event);
        if (ahead && layer < 3)
            put_gather(&f);
        for (int k = 0; k < 4; k++)
            put_kernel(f.job, 0, 0, S_COMPUTE, 5);
        if (!ahead && layer < 3)
            put_gather(&f);
    }
    run(&f);
    double exposed = f.overlap.exposed_s, order = f.overlap.all.why[TSR_EXPOSED_ORDER];
    assert_true(fabs(order - (exposed - 7 * US)) <
                1e-15); /* the first has nothing to hide behind */
    end(&f);
    return exposed;
}

/* With one hardware queue a gather that is issued behind a layer's kernels starts with the last of
 * them: 5 of its 7 us are hidden, the others are not. */
static void one_connection_undoes_implicit_prefetch(void **state)
{
    (void)state;
    assert_close(gather_exposed(0, false), 7 * US, 1e-9);
    assert_close(gather_exposed(32, false), 7 * US, 1e-9);
    assert_close(gather_exposed(1, false), (7 + 3 * 2) * US, 1e-9);
    assert_close(gather_exposed(1, true), 7 * US, 1e-9);
}

static void more_connections_than_there_are_are_refused(void **state)
{
    struct fixture f = begin();
    struct tsr_sim_result *result = NULL;
    (void)state;
    f.options.max_connections = 33;
    put_gather(&f);
    assert_int_equal(tsr_sim_run(&f.cluster, &f.job->sim, &f.options, &result), TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), "cuda_device_max_connections: found 33"));
    job_destroy(f.job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_runs_beside_compute_is_hidden),
        cmocka_unit_test(without_compute_to_hide_it_it_is_bandwidth),
        cmocka_unit_test(a_full_wire_is_bandwidth),
        cmocka_unit_test(issued_while_compute_ran_is_late),
        cmocka_unit_test(compute_that_is_not_launched_is_the_host_too),
        cmocka_unit_test(waits_without_communication_are_told_apart),
        cmocka_unit_test(another_stream_holds_the_communicator),
        cmocka_unit_test(memory_that_is_in_use_is_a_buffer_wait),
        cmocka_unit_test(a_wait_for_nothing_is_stream_order),
        cmocka_unit_test(data_that_is_made_late_is_no_delay),
        cmocka_unit_test(a_copy_in_is_followed_to_its_wait),
        cmocka_unit_test(a_limited_host_is_a_buffer_wait),
        cmocka_unit_test(waiting_for_another_rank_is_told_apart),
        cmocka_unit_test(idle_seconds_are_charged_once),
        cmocka_unit_test(sums_are_those_of_the_metrics),
        cmocka_unit_test(an_iteration_that_is_not_there_is_refused),
        cmocka_unit_test(one_connection_undoes_implicit_prefetch),
        cmocka_unit_test(more_connections_than_there_are_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
