/* test_replay.c: hosts, streams, events, groups, ideals, deadlocks, executed hashes. */
#include "tests/sim/sim_testing.h"

#include "sim/replay/replay.h"

static const double US = 1e-6;

/* ---- streams and events ------------------------------------------------------------------ */

static void streams_are_in_order_and_events_order_them(void **state)
{
    struct job *job = job_create(1, 1, 1);
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    uint32_t event = 1;
    (void)state;
    put_kernel(job, 0, 0, S_COMPUTE, 10);            /* 0: 0..10 */
    put_after(job, 0, 0, S_USER, S_COMPUTE, &event); /* 1, 2 */
    put_kernel(job, 0, 0, S_USER, 5);                /* 3: 10..15 */
    put_event(job, 0, 0, TSR_RECORD, S_USER, 9);     /* 4 */
    put_event(job, 0, 0, TSR_WAIT, S_COMPUTE, 9);    /* 5 */
    put_kernel(job, 0, 0, S_COMPUTE, 1);             /* 6: 15..16 */
    put_event(job, 0, 0, TSR_WAIT, S_COMPUTE, 77);   /* never recorded: no wait */
    put_kernel(job, 0, 0, S_COMPUTE, 1);             /* 8: 16..17 */
    struct tsr_sim_result *r = run_job(&c, job, &o);
    const struct tsr_sim_span *s = r->ranks[0].spans[0];
    assert_close(s[3].start, 10 * US, 1e-12);
    assert_close(s[3].end, 15 * US, 1e-12);
    assert_close(s[4].end, 15 * US, 1e-12);
    assert_close(s[6].start, 15 * US, 1e-12);
    assert_close(s[8].end, 17 * US, 1e-12);
    assert_close(r->iteration_end[0], 17 * US, 1e-12);
    tsr_sim_result_destroy(r);
    job_destroy(job);
}

/* A wait means the last RECORD that was issued before it. */
static void a_wait_takes_the_record_before_it(void **state)
{
    struct job *job = job_create(1, 1, 1);
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    (void)state;
    put_kernel(job, 0, 0, S_COMPUTE, 10);
    put_event(job, 0, 0, TSR_RECORD, S_COMPUTE, 1);
    put_event(job, 0, 0, TSR_WAIT, S_USER, 1);
    put_kernel(job, 0, 0, S_COMPUTE, 10);
    put_event(job, 0, 0, TSR_RECORD, S_COMPUTE, 1);
    put_kernel(job, 0, 0, S_USER, 1); /* 5 */
    struct tsr_sim_result *r = run_job(&c, job, &o);
    assert_close(r->ranks[0].spans[0][5].start, 10 * US, 1e-12);
    tsr_sim_result_destroy(r);
    job_destroy(job);
}

static void kernels_of_two_streams_share_the_gpu(void **state)
{
    struct job *job = job_create(1, 1, 1);
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    (void)state;
    put_kernel(job, 0, 0, S_COMPUTE, 10);
    put_kernel(job, 0, 0, S_USER, 30);
    struct tsr_sim_result *r = run_job(&c, job, &o);
    assert_close(r->ranks[0].spans[0][0].end, 20 * US, 1e-12);
    assert_close(r->ranks[0].spans[0][1].end, 40 * US, 1e-12);
    tsr_sim_result_destroy(r);
    job_destroy(job);
}

/* ---- host -------------------------------------------------------------------------------- */

static void the_host_issues_one_after_the_other(void **state)
{
    struct job *job = job_create(1, 1, 2);
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    (void)state;
    o.host_scale = 1.0;
    o.host_launch_s = 5 * US;
    o.host_event_s = 2 * US;
    for (int it = 0; it < 2; it++) {
        put_kernel(job, 0, it, S_COMPUTE, 1);
        put_kernel(job, 0, it, S_COMPUTE, 20);
        put_kind(job, 0, it, TSR_HOST_READ, S_COMPUTE);
    }
    struct tsr_sim_result *r = run_job(&c, job, &o);
    const struct tsr_sim_span *s = r->ranks[0].spans[0], *t = r->ranks[0].spans[1];
    assert_close(s[0].issue, 5 * US, 1e-12);
    assert_close(s[0].end, 6 * US, 1e-12);
    assert_close(s[1].start, 10 * US, 1e-12);
    assert_close(s[2].issue, 12 * US, 1e-12);
    assert_close(s[2].end, 30 * US, 1e-12);
    assert_close(t[0].issue, 35 * US, 1e-12);
    assert_close(r->iteration_end[0], 30 * US, 1e-12);
    assert_close(r->iteration_end[1], 60 * US, 1e-12);
    tsr_sim_result_destroy(r);
    job_destroy(job);
}

static void run_ahead_carries_over_and_is_bounded(void **state)
{
    struct job *job = job_create(1, 1, 4);
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    (void)state;
    o.host_scale = 1.0;
    o.host_launch_s = 1 * US;
    for (int it = 0; it < 4; it++)
        put_kernel(job, 0, it, S_COMPUTE, 100);
    struct tsr_sim_result *r = run_job(&c, job, &o);
    assert_close(r->ranks[0].spans[3][0].issue, 4 * US, 1e-12);
    assert_close(r->iteration_end[3], 401 * US, 1e-12);
    tsr_sim_result_destroy(r);
    o.queue_depth = 2;
    r = run_job(&c, job, &o);
    assert_close(r->ranks[0].spans[2][0].issue, 102 * US, 1e-12);
    assert_close(r->ranks[0].spans[3][0].issue, 202 * US, 1e-12);
    assert_close(r->iteration_end[3], 401 * US, 1e-12);
    tsr_sim_result_destroy(r);
    job_destroy(job);
}

static void a_slow_host_is_exposed(void **state)
{
    struct job *job = job_create(8, 1, 2);
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    struct tsr_metrics fast, slow;
    (void)state;
    uint16_t shard = job_comm(job, "shard", 8, 1, -1);
    for (int it = 0; it < 2; it++)
        put_step(job, 0, it, 4, shard, UINT16_MAX, 1000000, 500);
    o.host_scale = 1.0;
    o.fold = true;
    struct tsr_sim_result *r = run_job(&c, job, &o);
    assert_int_equal(tsr_metrics_of(&job->sim, r, 1, &fast, NULL), TSR_OK);
    tsr_sim_result_destroy(r);
    o.host_scale = 10.0;
    r = run_job(&c, job, &o);
    assert_int_equal(tsr_metrics_of(&job->sim, r, 1, &slow, NULL), TSR_OK);
    tsr_sim_result_destroy(r);
    assert_true(slow.step_s > 2 * fast.step_s);
    assert_true(slow.host_bound_s > 5 * fast.host_bound_s);
    assert_close(slow.compute_s, fast.compute_s, 1e-6);
    job_destroy(job);
}

/* ---- ideals ------------------------------------------------------------------------------ */

static void ideal_machines_leave_the_compute_stream(void **state)
{
    struct job *job = job_create(16, 1, 3);
    struct tsr_cluster c = test_cluster(2);
    struct tsr_sim_options o = exact_options();
    (void)state;
    uint16_t shard = job_comm(job, "shard", 8, 1, -1);
    uint16_t replicate = job_comm(job, "replicate", 2, 8, -1);
    for (int it = 0; it < 3; it++)
        put_step(job, 0, it, 4, shard, replicate, 100000000, 50);
    o.infinite_bandwidth = true;
    for (int fold = 0; fold < 2; fold++) {
        o.fold = fold;
        struct tsr_sim_result *r = run_job(&c, job, &o);
        const double step = (4 + 8 + 1) * 50 * US;
        for (int it = 0; it < 3; it++)
            assert_close(r->iteration_end[it], (it + 1) * step, 1e-12);
        assert_true(r->ranks[0].sent_intra[0] > 0 && r->ranks[0].sent_inter[0] > 0);
        tsr_sim_result_destroy(r);
    }
    job_destroy(job);
}

static void a_slow_gpu_slows_everybody(void **state)
{
    struct job *job = job_create(8, 1, 1);
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    (void)state;
    uint16_t shard = job_comm(job, "shard", 8, 1, -1);
    put_step(job, 0, 0, 4, shard, UINT16_MAX, 8000, 50);
    o.infinite_bandwidth = true;
    o.slow_rank = 3;
    o.slow_factor = 1.25;
    assert_close(run_time(&c, job, &o), 13 * 50 * US * 1.25, 1e-12);
    o.fold = true;
    assert_close(run_time(&c, job, &o), 13 * 50 * US * 1.25, 1e-12);
    job_destroy(job);
}

/* ---- communicators ----------------------------------------------------------------------- */

/* Two streams on one communicator run one after the other; on two they share the wire. */
static void one_communicator_is_one_queue(void **state)
{
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    (void)state;
    const double one = 7.0 / 8.0 * 0.8e9 / 400e9;
    for (int separate = 0; separate < 2; separate++) {
        struct job *job = job_create(8, 1, 1);
        uint16_t first = job_comm(job, "shard", 8, 1, -1);
        uint16_t second = job_comm(job, "reduce", 8, 1, separate ? -1 : first);
        put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, first, 800000000);
        put_collective(job, 0, 0, TSR_REDUCE_SCATTER, S_REDUCE, second, 800000000);
        struct tsr_sim_result *r = run_job(&c, job, &o);
        const struct tsr_sim_span *s = r->ranks[0].spans[0];
        assert_close(s[0].end, separate ? 2 * one : one, 1e-9);
        assert_close(s[1].start, separate ? 0.0 : one, 1e-9);
        assert_close(s[1].end, 2 * one, 1e-9);
        tsr_sim_result_destroy(r);
        job_destroy(job);
    }
}

/* Rank 0 sends to rank 1, which computes first. */
static void messages_wait_for_both_ends(void **state)
{
    struct job *job = job_create(2, 2, 1);
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    (void)state;
    uint16_t pair = job_comm(job, "pipeline", 2, 1, -1);
    job->class_of[1] = 1;
    put_p2p(job, 0, 0, TSR_SEND, S_USER, pair, 1, 400000000);
    put_kernel(job, 1, 0, S_USER, 100);
    put_p2p(job, 1, 0, TSR_RECV, S_USER, pair, 0, 400000000);
    for (int fold = 0; fold < 2; fold++) {
        o.fold = fold;
        struct tsr_sim_result *r = run_job(&c, job, &o);
        assert_int_equal(r->n_ranks, 2);
        assert_close(r->ranks[0].spans[0][0].end, 100 * US + 1e-3, 1e-9);
        assert_close(r->ranks[1].spans[0][1].end, 100 * US + 1e-3, 1e-9);
        assert_int_equal(r->ranks[0].sent_intra[0], 400000000);
        assert_int_equal(r->ranks[1].sent_intra[0], 0);
        tsr_sim_result_destroy(r);
    }
    job_destroy(job);
}

/* An exchange in a group runs both ways at once; outside a group it would hang. */
static void groups_run_their_calls_together(void **state)
{
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    struct tsr_sim_result *r;
    (void)state;
    for (int group = 0; group < 2; group++) {
        struct job *job = job_create(2, 2, 1);
        uint16_t pair = job_comm(job, "pair", 2, 1, -1);
        job->class_of[1] = 1;
        for (int rank = 0; rank < 2; rank++) {
            uint16_t peer = (uint16_t)(1 - rank);
            if (group)
                put_kind(job, rank, 0, TSR_GROUP_BEGIN, S_USER);
            put_p2p(job, rank, 0, TSR_SEND, S_USER, pair, peer, 400000000);
            put_p2p(job, rank, 0, TSR_RECV, S_USER, pair, peer, 400000000);
            if (group)
                put_kind(job, rank, 0, TSR_GROUP_END, S_USER);
            put_kernel(job, rank, 0, S_USER, 10);
        }
        tsr_status status = tsr_sim_run(&c, &job->sim, &o, &r);
        if (group) {
            assert_int_equal(status, TSR_OK);
            assert_close(r->iteration_end[0], 1e-3 + 10 * US, 1e-9);
            assert_true(r->ranks[0].exec_hash[0] ==
                        tsr_program_expected_exec_hash(&job->programs[0][0]));
            tsr_sim_result_destroy(r);
        } else {
            assert_int_equal(status, TSR_EBACKEND);
            assert_non_null(strstr(tsr_error_text(), "deadlock"));
        }
        job_destroy(job);
    }
}

static void host_copies_take_the_pcie_link(void **state)
{
    struct job *job = job_create(2, 1, 1);
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    (void)state;
    for (int to_device = 0; to_device < 2; to_device++) {
        struct tsr_operand operands[] = {
            {1, TSR_READ, to_device ? TSR_SPACE_PINNED : TSR_SPACE_DEVICE, 0, 0, 0, 50000000, 0, 0},
            {2, TSR_WRITE, to_device ? TSR_SPACE_DEVICE : TSR_SPACE_PINNED, 0, 0, 0, 50000000, 0,
             0}};
        struct tsr_instr copy = {.kind = TSR_COPY,
                                 .stream = to_device ? S_GATHER : S_REDUCE,
                                 .comm = UINT16_MAX,
                                 .bytes = 50000000,
                                 .n_operands = 2,
                                 .operands = operands};
        put(job, 0, 0, &copy);
        put(job, 0, 0, &copy);
    }
    for (int fold = 0; fold < 2; fold++) {
        o.fold = fold;
        assert_close(run_time(&c, job, &o), 2e-3, 1e-12);
    }
    c.gpu.pcie_bw = 0.0;
    struct tsr_sim_result *r;
    assert_int_equal(tsr_sim_run(&c, &job->sim, &o, &r), TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), "gpu-test.json: key \"pcie.bandwidth"));
    job_destroy(job);
}

/* ---- deadlocks --------------------------------------------------------------------------- */

static void a_missing_member_is_named(void **state)
{
    struct job *job = job_create(4, 2, 1);
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    struct tsr_sim_result *r;
    (void)state;
    uint16_t shard = job_comm(job, "shard", 4, 1, -1);
    job->class_of[2] = 1;
    put_kernel(job, 0, 0, S_COMPUTE, 1);
    put_kernel(job, 1, 0, S_COMPUTE, 1);
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, shard, 1000);
    o.fold = true;
    assert_int_equal(tsr_sim_run(&c, &job->sim, &o, &r), TSR_EBACKEND);
    assert_null(r);
    assert_string_equal(tsr_error_text(),
                        "deadlock; rank 0 stream 1: all_gather on shard (iteration 0, instruction "
                        "1) waits for rank 2");
    job_destroy(job);
}

static void collectives_that_differ_are_refused(void **state)
{
    struct job *job = job_create(2, 2, 1);
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    struct tsr_sim_result *r;
    (void)state;
    uint16_t shard = job_comm(job, "shard", 2, 1, -1);
    job->class_of[1] = 1;
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, shard, 1000);
    put_collective(job, 1, 0, TSR_ALL_GATHER, S_GATHER, shard, 2000);
    assert_int_equal(tsr_sim_run(&c, &job->sim, &o, &r), TSR_EBACKEND);
    assert_non_null(strstr(tsr_error_text(), "collectives differ"));
    job_destroy(job);
}

static void crossed_orders_deadlock(void **state)
{
    struct job *job = job_create(2, 2, 1);
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    struct tsr_sim_result *r;
    (void)state;
    uint16_t a = job_comm(job, "a", 2, 1, -1), b = job_comm(job, "b", 2, 1, -1);
    job->class_of[1] = 1;
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, a, 1000);
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, b, 1000);
    put_collective(job, 1, 0, TSR_ALL_GATHER, S_GATHER, b, 1000);
    put_collective(job, 1, 0, TSR_ALL_GATHER, S_GATHER, a, 1000);
    assert_int_equal(tsr_sim_run(&c, &job->sim, &o, &r), TSR_EBACKEND);
    assert_non_null(strstr(tsr_error_text(), "all_gather on a"));
    assert_non_null(strstr(tsr_error_text(), "all_gather on b"));
    job_destroy(job);
}

/* ---- executed hash ----------------------------------------------------------------------- */

enum fault { NONE, DROP, SWAP, SHORTEN, OTHER_EVENT, N_FAULTS };

/* Called with the tape of each class; may change the tasks that are replayed. */
typedef void tamper_fn(void *user, struct tsr__tape *tape);

/* tsr_sim_run() with a fault planted between compilation and replay. */
static tsr_status run_tampered(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                               const struct tsr_sim_options *options, tamper_fn *fault, void *user,
                               struct tsr_sim_result **out)
{
    struct tsr__fabric fabric;
    struct tsr__tapes tapes;
    struct tsr__net net;
    assert_int_equal(tsr__fabric_init(&fabric, cluster, options, job->world), TSR_OK);
    assert_int_equal(tsr__tapes_build(cluster, job, options, &tapes), TSR_OK);
    for (uint32_t i = 0; i < tapes.n; i++)
        fault(user, &tapes.items[i]);
    assert_int_equal(tsr__net_build(&fabric, &tapes, job, options, &net), TSR_OK);
    tsr_status status = tsr__simulate(&net, out);
    tsr__net_fini(&net);
    tsr__tapes_fini(&tapes);
    tsr__fabric_fini(&fabric);
    return status;
}

/* What a broken executor could do with the step. */
static void tamper(void *user, struct tsr__tape *tape)
{
    enum fault fault = *(const enum fault *)user;
    for (uint32_t i = 0; i < tape->n_tasks; i++) {
        struct tsr__task *task = &tape->tasks[i];
        if (fault == SHORTEN && task->record.kind == TSR_ALL_GATHER) {
            task->record.bytes /= 2;
            return;
        }
        if (fault == OTHER_EVENT && task->record.kind == TSR_WAIT) {
            task->record.bytes++;
            return;
        }
        uint32_t second = task->next;
        if (i < 4 || second == TSR_NO_ID)
            continue;
        struct tsr__task *after = &tape->tasks[second];
        if (fault == DROP && after->kind == TSR__KERNEL && after->next != TSR_NO_ID) {
            task->next = after->next; /* the stream goes on behind the kernel */
            return;
        }
        if (fault != SWAP || task->record.kind == after->record.kind)
            continue;
        struct tsr_exec_record record = task->record;
        task->record = after->record;
        after->record = record;
        return;
    }
}

static void the_executed_hash_finds_planted_faults(void **state)
{
    struct job *job = job_create(16, 1, 3);
    struct tsr_cluster c = test_cluster(2);
    struct tsr_sim_options o = exact_options();
    (void)state;
    uint16_t shard = job_comm(job, "shard", 8, 1, -1);
    uint16_t replicate = job_comm(job, "replicate", 2, 8, -1);
    for (int it = 0; it < 3; it++)
        put_step(job, 0, it, 3, shard, replicate, 1000000 + (uint64_t)it * 8000, 5);
    o.fold = true;
    o.host_scale = 1.0;
    for (int fault = NONE; fault < N_FAULTS; fault++) {
        enum fault planted = (enum fault)fault;
        struct tsr_sim_result *r;
        bool same = true;
        if (run_tampered(&c, &job->sim, &o, tamper, &planted, &r) != TSR_OK)
            fail_msg("fault %d: %s", fault, tsr_error_text());
        for (int it = 0; it < 3; it++)
            same = same && r->ranks[0].exec_hash[it] ==
                               tsr_program_expected_exec_hash(&job->programs[0][it]);
        assert_true(same == (fault == NONE));
        tsr_sim_result_destroy(r);
    }
    job_destroy(job);
}

/* A child that dies is an error of this call and of nothing else. */
static void crash(void *user, struct tsr__tape *tape)
{
    *(uint32_t **)user = tape->head;
    tape->head = NULL;
}

static void a_crash_stays_in_the_child(void **state)
{
    struct job *job = job_create(2, 1, 1);
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    struct tsr_sim_result *r;
    (void)state;
    put_kernel(job, 0, 0, S_COMPUTE, 1);
    uint32_t *head = NULL;
    assert_int_equal(run_tampered(&c, &job->sim, &o, crash, &head, &r), TSR_EBACKEND);
    free(head);
    assert_null(r);
    assert_non_null(strstr(tsr_error_text(), "the simulation"));
    assert_null(strchr(tsr_error_text(), '\n'));
    assert_true(run_time(&c, job, &o) > 0.0);
    job_destroy(job);
}

static void the_same_run_twice_is_identical(void **state)
{
    struct job *job = job_create(16, 1, 2);
    struct tsr_cluster c = test_cluster(2);
    struct tsr_sim_options o = tsr_sim_options_default();
    (void)state;
    uint16_t shard = job_comm(job, "shard", 8, 1, -1);
    uint16_t replicate = job_comm(job, "replicate", 2, 8, -1);
    for (int it = 0; it < 2; it++)
        put_step(job, 0, it, 5, shard, replicate, 3333333, 123);
    o.fold = false;
    struct tsr_sim_result *a = run_job(&c, job, &o), *b = run_job(&c, job, &o);
    for (uint32_t rank = 0; rank < 16; rank++)
        for (int it = 0; it < 2; it++) {
            size_t bytes = job->programs[0][it].n_instrs * sizeof(struct tsr_sim_span);
            assert_memory_equal(a->ranks[rank].spans[it], b->ranks[rank].spans[it], bytes);
        }
    assert_int_equal(a->n_activities, b->n_activities);
    tsr_sim_result_destroy(a);
    tsr_sim_result_destroy(b);
    job_destroy(job);
}

/* ---- metrics ----------------------------------------------------------------------------- */

static void metrics_add_up(void **state)
{
    struct job *job = job_create(8, 1, 2);
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    struct tsr_metrics m;
    uint32_t rank, event = 1;
    (void)state;
    uint16_t shard = job_comm(job, "shard", 8, 1, -1);
    const uint64_t bytes = 8000000; /* 17.5 us on the wire */
    for (int it = 0; it < 2; it++) {
        put_collective(job, 0, it, TSR_ALL_GATHER, S_GATHER, shard, bytes);
        put_after(job, 0, it, S_COMPUTE, S_GATHER, &event);
        put_kernel(job, 0, it, S_COMPUTE, 10);
        put_after(job, 0, it, S_REDUCE, S_COMPUTE, &event);
        put_collective(job, 0, it, TSR_REDUCE_SCATTER, S_REDUCE, shard, 2 * bytes);
        put_kernel(job, 0, it, S_COMPUTE, 5);
        put_event(job, 0, it, TSR_RECORD, S_REDUCE, event);
        put_event(job, 0, it, TSR_HOST_WAIT, S_REDUCE, event++);
    }
    struct tsr_sim_result *r = run_job(&c, job, &o);
    assert_int_equal(tsr_metrics_of(&job->sim, r, 1, &m, &rank), TSR_OK);
    assert_close(m.step_s, (17.5 + 10 + 35) * US, 1e-9);
    assert_close(m.compute_s, 15 * US, 1e-9);
    assert_close(m.comm_s, 52.5 * US, 1e-9);
    assert_close(m.exposed_gather_s, 17.5 * US, 1e-9);
    assert_close(m.exposed_reduce_s, 30 * US, 1e-9);
    assert_close(m.exposed_s, 47.5 * US, 1e-9);
    assert_true(m.host_bound_s < 1e-12);
    assert_int_equal(m.n_collectives, 2);
    assert_int_equal(m.sent_intra, 7 * bytes / 8 * 3);
    assert_int_equal(m.sent_inter, 0);
    double exposed[16];
    assert_int_equal(tsr_exposed_per_instr(&job->programs[0][1], r->ranks[rank].spans[1], exposed),
                     TSR_OK);
    assert_close(exposed[0], 17.5 * US, 1e-9);
    assert_close(exposed[6], 30 * US, 1e-9);
    assert_true(exposed[3] <= 0.0);
    tsr_sim_result_destroy(r);
    job_destroy(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_are_in_order_and_events_order_them),
        cmocka_unit_test(a_wait_takes_the_record_before_it),
        cmocka_unit_test(kernels_of_two_streams_share_the_gpu),
        cmocka_unit_test(the_host_issues_one_after_the_other),
        cmocka_unit_test(run_ahead_carries_over_and_is_bounded),
        cmocka_unit_test(a_slow_host_is_exposed),
        cmocka_unit_test(ideal_machines_leave_the_compute_stream),
        cmocka_unit_test(a_slow_gpu_slows_everybody),
        cmocka_unit_test(one_communicator_is_one_queue),
        cmocka_unit_test(messages_wait_for_both_ends),
        cmocka_unit_test(groups_run_their_calls_together),
        cmocka_unit_test(host_copies_take_the_pcie_link),
        cmocka_unit_test(a_missing_member_is_named),
        cmocka_unit_test(collectives_that_differ_are_refused),
        cmocka_unit_test(crossed_orders_deadlock),
        cmocka_unit_test(the_executed_hash_finds_planted_faults),
        cmocka_unit_test(a_crash_stays_in_the_child),
        cmocka_unit_test(the_same_run_twice_is_identical),
        cmocka_unit_test(metrics_add_up),
    };
    return cmocka_run_group_tests_name("replay", tests, NULL, NULL);
}
