/* test_host_device.c: the parts of the host device: its table of buffers, address space, events and
 * streams; tasks in order, failures that end all, memory that is given back.
 */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "exec/executor/buffers.h"
#include "exec/host/host_device.h"

/* ---- buffers --------------------------------------------------------------------------------- */

/* Against a plain array; few ids, so that chains form and are broken. */
static void buffers__random_changes__as_an_array(void **state)
{
    enum { IDS = 3000, TURNS = 60000 };
    static char there[IDS], memory[IDS];
    struct tsr_buffers buffers;
    uint64_t random = 1;
    size_t n = 0;
    (void)state;
    tsr_buffers_init(&buffers);
    assert_null(tsr_buffers_find(&buffers, 1));
    for (int turn = 0; turn < TURNS; turn++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407U;
        uint32_t id = (uint32_t)(random >> 33) % IDS, key = id * 1024;
        const struct tsr_buffer b = {.id = key, .bytes = id, .data = &memory[id]};
        struct tsr_buffer *found = tsr_buffers_find(&buffers, key);
        assert_int_equal(found != NULL, there[id]);
        if (found) {
            assert_int_equal(found->bytes, id);
            assert_int_equal(tsr_buffers_add(&buffers, &b), TSR_EDEFECT);
            tsr_buffers_remove(&buffers, key);
            n--;
        } else {
            assert_int_equal(tsr_buffers_add(&buffers, &b), TSR_OK);
            n++;
        }
        there[id] = !there[id];
        assert_int_equal(buffers.n, n);
    }
    tsr_buffers_remove(&buffers, 7); /* no multiple: never there */
    assert_int_equal(buffers.n, n);
    tsr_buffers_fini(&buffers);
}

/* ---- the address space ----------------------------------------------------------------------- */

/* In a child: touching the byte kills it. */
static bool traps(volatile char *at)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        *at = 1;
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

static unsigned resident(void *at, size_t pages)
{
    unsigned char in[64];
    unsigned n = 0;
    assert_true(pages <= sizeof in);
    assert_int_equal(mincore(at, pages * 4096, in), 0);
    for (size_t i = 0; i < pages; i++)
        n += in[i] & 1;
    return n;
}

static void space__given_back__traps_and_holds_no_page(void **state)
{
    const uint64_t bytes = 16 * 4096, at = UINT64_C(3) << 41;
    struct tsr_host_space space;
    (void)state;
    tsr_host_space_init(&space, 1);
    assert_null(tsr_host_space_at(&space, at));
    assert_int_equal(tsr_host_space_map(&space, at, bytes), TSR_OK);
    assert_int_equal(tsr_host_space_map(&space, at + 2 * bytes, bytes), TSR_OK);
    assert_int_equal(space.mapped, 2 * bytes);
    char *p = tsr_host_space_at(&space, at);
    memset(p, 1, bytes);
    p[2 * bytes] = 2;
    assert_int_equal(resident(p, 16), 16);
    assert_true(traps(p + bytes)); /* between the two */
    assert_false(traps(p + bytes - 1));
    assert_int_equal(tsr_host_space_unmap(&space, at, bytes), TSR_OK);
    assert_int_equal(resident(p, 16), 0);
    assert_true(traps(p) && traps(p + bytes - 1));
    assert_int_equal(p[2 * bytes], 2);
    assert_int_equal(space.mapped, bytes);
    assert_int_equal(space.peak, 2 * bytes);
    assert_int_equal(tsr_host_space_map(&space, at, bytes), TSR_OK); /* and again, as zeros */
    assert_int_equal(p[0], 0);
    tsr_host_space_fini(&space);
}

static void space__more_than_it_can_hold__is_refused(void **state)
{
    struct tsr_host_space space;
    (void)state;
    tsr_host_space_init(&space, 1);
    assert_int_equal(tsr_host_space_map(&space, 4096, UINT64_C(2) << 40), TSR_EUNSUPPORTED);
    assert_int_equal(tsr_host_space_map(&space, (UINT64_C(1) << 40) - 4096, 8192),
                     TSR_EUNSUPPORTED);
    assert_int_equal(space.mapped, 0);
    tsr_host_space_fini(&space);
}

/* ---- events ---------------------------------------------------------------------------------- */

struct waiter {
    struct tsr_host_events *events;
    uint32_t event;
    bool done;
    int value, seen;
};

static void *wait_for(void *user)
{
    struct waiter *w = user;
    w->done = tsr_host_event_wait(w->events, w->event);
    w->seen = w->value; /* written before the record */
    return NULL;
}

/* While nobody waits: a wait that may not sleep. */
static bool is_done(struct tsr_host_events *events, uint32_t event)
{
    atomic_store(&events->aborted, true);
    bool done = tsr_host_event_wait(events, event);
    atomic_store(&events->aborted, false);
    return done;
}

static void events__recorded_or_aborted__waits_end(void **state)
{
    struct tsr_host_events events;
    (void)state;
    assert_int_equal(tsr_host_events_create(TSR_HOST_EVENTS, &events), TSR_OK);
    for (uint32_t event = 1; event < 50; event++) {
        struct waiter w = {.events = &events, .event = event};
        pthread_t thread;
        assert_false(is_done(&events, event));
        assert_int_equal(pthread_create(&thread, NULL, wait_for, &w), 0);
        w.value = (int)event;
        tsr_host_event_record(&events, event);
        pthread_join(thread, NULL);
        assert_true(w.done && is_done(&events, event));
        assert_int_equal(w.seen, event);
    }
    /* a number that comes around in the same word: later means done, earlier does not */
    tsr_host_event_record(&events, 60 + TSR_HOST_EVENTS);
    assert_true(is_done(&events, 60));
    assert_false(is_done(&events, 60 + 2 * TSR_HOST_EVENTS));
    tsr_host_event_record(&events, UINT32_MAX - 5);
    assert_true(is_done(&events, UINT32_MAX - 5));

    struct waiter w = {.events = &events, .event = 1000};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wait_for, &w), 0);
    tsr_host_events_abort(&events);
    pthread_join(thread, NULL);
    assert_false(w.done);
    tsr_host_events_destroy(&events);
}

/* ---- streams --------------------------------------------------------------------------------- */

struct log {
    uint64_t numbers[5000];
    size_t n;
};

static void note(void *user, struct tsr_host_stream *stream, struct tsr_queued *queued)
{
    struct log *log = user;
    (void)stream;
    if (queued->task.number % 1000 == 0)
        usleep(1000); /* the queue runs full behind it */
    log->numbers[log->n++] = queued->task.number;
}

static void stream__more_tasks_than_places__all_run_in_order(void **state)
{
    static struct log log;
    struct tsr_host_stream stream = {.run = note, .user = &log};
    (void)state;
    assert_int_equal(tsr_host_stream_start(&stream, 4), TSR_OK);
    for (uint64_t i = 0; i < 5000; i++) {
        const struct tsr_task task = {.number = i};
        struct tsr_queued *queued = tsr_queued_new(&task);
        assert_non_null(queued);
        tsr_host_stream_push(&stream, queued);
    }
    tsr_host_stream_stop(&stream);
    assert_int_equal(log.n, 5000);
    for (uint64_t i = 0; i < log.n; i++)
        assert_int_equal(log.numbers[i], i);
}

static void queued__the_original_changes__the_copy_does_not(void **state)
{
    uint64_t args[3] = {4, 5, 6};
    double scalars[TSR_N_SCALARS] = {0.5};
    struct tsr_work work = {.name = "mm", .n_args = 3, .args = args, .flops = 7};
    struct tsr_instr instr = {.bytes = 99, .work = &work};
    struct tsr_view views[2] = {{.bytes = 1}, {.bytes = 2}};
    struct tsr_collective collectives[1] = {{.bytes = 3}};
    struct tsr_message messages[2] = {{.bytes = 4}, {.bytes = 5}};
    struct tsr_task task = {
        .instr = &instr,
        .call = {.work = &work, .n_views = 2, .views = views, .scalars = scalars},
        .n_collectives = 1,
        .collectives = collectives,
        .n_messages = 2,
        .messages = messages};
    (void)state;
    struct tsr_queued *q = tsr_queued_new(&task);
    assert_non_null(q);
    memset(args, 0, sizeof args);
    memset(scalars, 0, sizeof scalars);
    memset(views, 0, sizeof views);
    memset(collectives, 0, sizeof collectives);
    memset(messages, 0, sizeof messages);
    instr.bytes = 0;
    work.flops = 0;
    assert_int_equal(q->task.call.work->args[2], 6);
    assert_true(q->task.call.scalars[0] == 0.5 && q->task.call.work->flops == 7);
    assert_int_equal(q->task.call.views[1].bytes, 2);
    assert_int_equal(q->task.collectives[0].bytes, 3);
    assert_int_equal(q->task.messages[1].bytes, 5);
    assert_int_equal(q->task.instr->bytes, 99);
    assert_ptr_equal(q->task.instr->work, q->task.call.work);
    free(q);
}

/* ---- the device ------------------------------------------------------------------------------ */

static _Atomic int calls;

static tsr_status count(const struct tsr_kernel_call *call)
{
    (void)call;
    atomic_fetch_add(&calls, 1);
    return TSR_OK;
}

static tsr_status fails(const struct tsr_kernel_call *call)
{
    (void)call;
    return tsr_fail(TSR_EDEFECT, "the third kernel does not like it");
}

static struct tsr_device *open_device(bool serial)
{
    const struct tsr_host_device_config config = {.serial = serial};
    struct tsr_device *device;
    assert_int_equal(tsr_host_device_create(&config, &device), TSR_OK);
    atomic_store(&calls, 0);
    return device;
}

static tsr_status call_kernel(struct tsr_device *device, uint16_t stream, tsr_kernel_fn kernel)
{
    const struct tsr_task task = {.kind = TSR_TASK_KERNEL, .kernel = kernel};
    return device->ops->submit(device, stream, &task);
}

static tsr_status event_task(struct tsr_device *device, uint16_t stream, int kind, uint32_t event)
{
    const struct tsr_task task = {.kind = (uint8_t)kind, .event = event};
    return device->ops->submit(device, stream, &task);
}

static void device__a_kernel_fails__nothing_behind_it_runs_and_all_calls_say_so(void **state)
{
    (void)state;
    for (int serial = 0; serial < 2; serial++) {
        struct tsr_device *d = open_device(serial);
        assert_int_equal(call_kernel(d, 0, count), TSR_OK);
        assert_int_equal(call_kernel(d, 0, count), TSR_OK);
        assert_int_equal(call_kernel(d, 0, fails), serial ? TSR_EDEFECT : TSR_OK);
        (void)!call_kernel(d, 0, count); /* may be refused already */
        (void)!event_task(d, 0, TSR_TASK_RECORD, 5);
        (void)!event_task(d, 1, TSR_TASK_WAIT, 5); /* would wait for ever */
        assert_int_equal(d->ops->drain(d), TSR_EDEFECT);
        assert_string_equal(tsr_error_text(), "the third kernel does not like it");
        assert_int_equal(atomic_load(&calls), 2);
        assert_int_equal(d->ops->wait_event(d, 5), TSR_EDEFECT);
        assert_int_equal(d->ops->wait_stream(d, 0), TSR_EDEFECT);
        assert_int_equal(call_kernel(d, 2, count), TSR_EDEFECT);
        assert_string_equal(tsr_error_text(), "the third kernel does not like it");
        d->ops->destroy(d);
    }
}

static _Atomic int at_work; /* 1: inside of the long kernel; 2: it has ended */
static const _Atomic int *device_failed;

/* Runs until the device has failed, and a while longer, as a product does that nobody can stop. */
static tsr_status outlives_the_failure(const struct tsr_kernel_call *call)
{
    (void)call;
    atomic_store(&at_work, 1);
    while (!atomic_load(device_failed))
        sched_yield();
    for (int i = 0; i < 20; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    atomic_store(&at_work, 2);
    return TSR_OK;
}

static void device__a_stream_fails_while_another_runs__a_drain_waits_for_both(void **state)
{
    (void)state;
    for (uint16_t failing = 0; failing < 2; failing++) {
        struct tsr_device *d = open_device(false);
        device_failed = &((struct tsr_host_device *)d)->failed;
        atomic_store(&at_work, 0);
        assert_int_equal(call_kernel(d, 1 - failing, outlives_the_failure), TSR_OK);
        while (!atomic_load(&at_work))
            sched_yield();
        assert_int_equal(call_kernel(d, failing, fails), TSR_OK);
        assert_int_equal(d->ops->drain(d), TSR_EDEFECT);
        assert_int_equal(atomic_load(&at_work), 2); /* what it reads may be freed now */
        d->ops->destroy(d);
    }
}

static void device__aborted__waits_end_with_the_first_reason(void **state)
{
    struct tsr_device *d = open_device(false);
    (void)state;
    assert_int_equal(event_task(d, 0, TSR_TASK_WAIT, 9), TSR_OK); /* nobody records it */
    assert_int_equal(call_kernel(d, 0, count), TSR_OK);
    d->ops->abort(d, TSR_EPEER, "rank 3 is lost");
    d->ops->abort(d, TSR_EDEFECT, "something else");
    assert_int_equal(d->ops->drain(d), TSR_EPEER);
    assert_string_equal(tsr_error_text(), "rank 3 is lost");
    assert_int_equal(atomic_load(&calls), 0);
    d->ops->destroy(d);
}

static void device__what_it_cannot_do__is_refused(void **state)
{
    const struct tsr_collective c = {.kind = TSR_ALL_REDUCE};
    const struct tsr_task collective = {.kind = TSR_TASK_COLLECTIVE,
                                        .n_collectives = 1,
                                        .collectives = (struct tsr_collective *)&c};
    (void)state;
    struct tsr_device *d = open_device(false);
    assert_int_equal(call_kernel(d, 64, count), TSR_EUNSUPPORTED);
    assert_int_equal(d->ops->submit(d, 0, &collective), TSR_OK);
    assert_int_equal(d->ops->drain(d), TSR_EUNSUPPORTED);
    assert_string_equal(tsr_error_text(), "a collective, and the device is of no world");
    d->ops->destroy(d);
}

/* Stream 1 runs behind stream 0's event only; without one both are inside tasks together. */
static void device__events__order_streams(void **state)
{
    struct tsr_device *d = open_device(false);
    (void)state;
    for (uint32_t event = 1; event < 200; event++) {
        assert_int_equal(call_kernel(d, 0, count), TSR_OK);
        assert_int_equal(event_task(d, 0, TSR_TASK_RECORD, event), TSR_OK);
        assert_int_equal(event_task(d, 1, TSR_TASK_WAIT, event), TSR_OK);
        assert_int_equal(call_kernel(d, 1, count), TSR_OK);
    }
    assert_int_equal(d->ops->wait_event(d, 199), TSR_OK);
    assert_true(atomic_load(&calls) >= 199);
    assert_int_equal(d->ops->drain(d), TSR_OK);
    assert_int_equal(atomic_load(&calls), 398);
    d->ops->destroy(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers__random_changes__as_an_array),
        cmocka_unit_test(space__given_back__traps_and_holds_no_page),
        cmocka_unit_test(space__more_than_it_can_hold__is_refused),
        cmocka_unit_test(events__recorded_or_aborted__waits_end),
        cmocka_unit_test(stream__more_tasks_than_places__all_run_in_order),
        cmocka_unit_test(queued__the_original_changes__the_copy_does_not),
        cmocka_unit_test(device__a_kernel_fails__nothing_behind_it_runs_and_all_calls_say_so),
        cmocka_unit_test(device__a_stream_fails_while_another_runs__a_drain_waits_for_both),
        cmocka_unit_test(device__aborted__waits_end_with_the_first_reason),
        cmocka_unit_test(device__what_it_cannot_do__is_refused),
        cmocka_unit_test(device__events__order_streams),
    };
    return cmocka_run_group_tests_name("host device", tests, NULL, NULL);
}
