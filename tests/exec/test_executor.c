/* test_executor.c: instructions that cannot be executed end in one line that says what is wrong;
 * failing kernels and aborts end a run; accounts of memory, progress and time.
 */
#include "tests/exec/executor_testing.h"
#include "tests/exec/instrs_testing.h"

#include <unistd.h>

static tsr_status fails(const struct tsr_kernel_call *call)
{
    (void)call;
    return tsr_fail(TSR_ENOMEM, "no memory for the kernel");
}

static const struct tsr_user_kernel kernels[] = {{"fails", fails}};
static const struct tsr_exec_config plain = {.kernels = kernels, .n_kernels = 1};

/* The list runs, but for its last instruction, which fails with this status and text. */
static void expect(struct list *l, tsr_status status, const char *text)
{
    struct list_rank r;
    for (int serial = 0; serial < 2; serial++) {
        list_open(&r, &plain, serial, NULL, NULL);
        for (size_t i = 0; i + 1 < l->n; i++)
            assert_int_equal(r.x->ops->submit(r.x, &l->instrs[i]), TSR_OK);
        tsr_status found = r.x->ops->submit(r.x, &l->instrs[l->n - 1]);
        if (found == TSR_OK)
            found = r.x->ops->drain(r.x);
        assert_int_equal(found, status);
        assert_string_equal(tsr_error_text(), text);
        list_close(&r);
    }
}

static void operands__unknown_or_too_long__one_line(void **state)
{
    static struct list l;
    (void)state;
    list_begin(&l);
    list_op(&l, 0, "add", 0, 1, 2);
    l.operands[l.n - 1][1].buffer = 77;
    expect(&l, TSR_EDEFECT, "op 'add' uses buffer 77, which is not allocated");

    list_begin(&l);
    list_op(&l, 0, "add", 0, 1, 2);
    l.operands[l.n - 1][2].offset = 300; /* the block has 512 */
    expect(&l, TSR_EDEFECT, "op 'add' uses bytes 300 to 556 of buffer 2, which has 512");

    list_begin(&l);
    list_fill(&l, 0, 1, 0);
    l.operands[l.n - 1][0].offset = UINT64_MAX;
    expect(&l, TSR_EDEFECT,
           "fill '' uses bytes 18446744073709551615 to 255 of buffer 1, which has 512");

    list_begin(&l);
    list_host_op(&l, "host_add", 4, 5);
    l.operands[l.n - 1][0].bytes = 300; /* pageable memory has no more than was asked for */
    expect(&l, TSR_EDEFECT, "host_op 'host_add' uses bytes 0 to 300 of buffer 4, which has 256");
}

static void buffers__twice_or_never__one_line(void **state)
{
    static struct list l;
    (void)state;
    list_begin(&l);
    list_alloc(&l, 2);
    expect(&l, TSR_EDEFECT, "buffer 2 is allocated twice");

    list_begin(&l);
    list_add(&l, TSR_FREE, 0)->buffer = 3;
    list_add(&l, TSR_FREE, 0)->buffer = 3;
    expect(&l, TSR_EDEFECT, "buffer 3 is freed but was not allocated");

    list_begin(&l);
    list_add(&l, TSR_HOST_FREE, 0)->buffer = 9;
    expect(&l, TSR_EDEFECT, "host buffer 9 is freed but was not allocated");

    list_begin(&l);
    list_alloc(&l, 6)->address = UINT64_C(5) << 40;
    expect(&l, TSR_EDEFECT, "buffer 6 is allocated at 5497558138880, where no segment is");

    list_begin(&l);
    struct tsr_instr *pin = list_add(&l, TSR_PIN, 0);
    pin->segment = 1;
    pin->block_bytes = 512;
    expect(&l, TSR_EDEFECT, "pinned block 1 is made twice");

    list_begin(&l);
    struct tsr_instr *host = list_add(&l, TSR_HOST_ALLOC, 0);
    host->buffer = 6;
    host->space = TSR_SPACE_PINNED;
    host->segment = 8;
    expect(&l, TSR_EDEFECT, "pinned block 8 does not exist");
}

static void kernels__missing_or_failing__one_line(void **state)
{
    static struct list l;
    (void)state;
    list_begin(&l);
    list_op(&l, 0, "no_such", 0, 1, 2);
    expect(&l, TSR_EUNSUPPORTED, TEST_DEVICE " has no kernel 'no_such'");
    assert_int_equal(tsr_exec_supports(NULL, &l.instrs[l.n - 1], NULL, 0), TSR_EUNSUPPORTED);
    assert_int_equal(
        tsr_exec_supports(NULL, &l.instrs[l.n - 1], &(struct tsr_user_kernel){"no_such", fails}, 1),
        TSR_OK);

    list_begin(&l);
    list_host_op(&l, "no_such", 4, 5);
    expect(&l, TSR_EUNSUPPORTED, "the host has no kernel 'no_such'");

    list_begin(&l);
    list_op(&l, 0, "fails", 0, 1, 2);
    expect(&l, TSR_ENOMEM, "no memory for the kernel");

    list_begin(&l);
    list_host_op(&l, "fails", 4, 5);
    expect(&l, TSR_ENOMEM, "no memory for the kernel");

    list_begin(&l);
    list_op(&l, 0, "init_param", 0, 1, 2);
    expect(&l, TSR_EDEFECT, "kernel 'init_param' has 0 args and 3 operands; it takes 15 and 1");

    list_begin(&l);
    list_add(&l, TSR_CUSTOM_COLLECTIVE, 0);
    expect(&l, TSR_EUNSUPPORTED, "custom_collective is not executed");
}

static void collectives__wrong__one_line(void **state)
{
    static struct list l;
    (void)state;
    list_begin(&l);
    list_collective(&l, TSR_ALL_REDUCE, 0, 0, 0);
    l.instrs[l.n - 1].comm = 3;
    expect(&l, TSR_EDEFECT, "communicator 3 does not exist");

    list_begin(&l);
    list_collective(&l, TSR_ALL_GATHER, 0, 0, 1);
    l.instrs[l.n - 1].n_operands = 1;
    expect(&l, TSR_EDEFECT, "all_gather with 1 operands; it takes pairs");
}

/* After a failure nothing orders the host after a stream that may still be at it. */
__attribute__((no_sanitize("thread"))) static float look_at(const volatile float *value)
{
    return *value;
}

/* What is behind the failure does not run: its result is not there. */
static void first_failure__ends_all(void **state)
{
    static struct list l;
    struct list_rank r;
    (void)state;
    list_begin(&l);
    list_fill(&l, 0, 3, 7);
    list_op(&l, 0, "fails", 0, 1, 2);
    list_event(&l, TSR_RECORD, 0, 1);
    list_event(&l, TSR_WAIT, 1, 1);
    list_fill(&l, 1, 3, 9);
    list_open(&r, &plain, false, NULL, NULL);
    tsr_status status = list_run(&r, &l);
    assert_int_equal(status, TSR_ENOMEM);
    const struct tsr_instr wait = {.kind = TSR_HOST_WAIT, .event = 1};
    assert_int_equal(r.x->ops->submit(r.x, &wait), TSR_ENOMEM);
    assert_string_equal(tsr_error_text(), "no memory for the kernel");
    const volatile float *value = tsr_exec_peek(r.x, 3);
    for (int i = 0; i < 1000 && look_at(value) != 7; i++)
        usleep(1000);
    assert_true(look_at(value) == 7);
    list_close(&r);
}

static void run__every_kind__right_values(void **state)
{
    static struct list l;
    struct list_rank r;
    (void)state;
    list_all_kinds(&l);
    for (int serial = 0; serial < 2; serial++) {
        list_open(&r, &plain, serial, NULL, NULL);
        assert_int_equal(list_run(&r, &l), TSR_OK);
        assert_int_equal(tsr_exec_hash(r.x), list_expected(&l));
        const float *b0 = tsr_exec_peek(r.x, 0), *b2 = tsr_exec_peek(r.x, 2),
                    *b3 = tsr_exec_peek(r.x, 3), *b5 = tsr_exec_peek(r.x, 5);
        /* 1 is 1 after the all-gather; 3 is 3, which 2 gets; 5 is 3 + 1, 4 is 1 + 4 */
        assert_true(b5[63] == 4 && b0[63] == 5);
        assert_true(b2[63] == 5 && b3[63] == 10);
        list_close(&r);
    }
}

static void accounts__memory_progress_spans(void **state)
{
    static struct list l;
    struct list_rank r;
    struct tsr_exec_config config = plain;
    struct tsr_exec_span *spans;
    size_t n, n_timed = 0;
    (void)state;
    config.profile = true;
    list_all_kinds(&l);
    list_open(&r, &config, false, NULL, NULL);
    assert_int_equal(list_run(&r, &l), TSR_OK);
    struct tsr_exec_memory m = tsr_exec_memory(r.x);
    assert_int_equal(m.allocated, 4 * 512);
    assert_int_equal(m.mapped, 2 << 20);
    assert_int_equal(m.host, 256);
    assert_int_equal(m.pinned, 512);
    assert_int_equal(m.held, 512);
    for (uint32_t b = 0; b < 4; b++) {
        const struct tsr_instr free_it = {.kind = TSR_FREE, .buffer = b};
        assert_int_equal(r.x->ops->submit(r.x, &free_it), TSR_OK);
        assert_null(tsr_exec_peek(r.x, b));
    }
    list_segment(&l, TSR_SEGMENT_FREE);
    assert_int_equal(r.x->ops->submit(r.x, &l.instrs[l.n - 1]), TSR_OK);
    m = tsr_exec_memory(r.x);
    assert_int_equal(m.allocated + m.mapped, 0);
    assert_int_equal(m.peak_allocated, 4 * 512);
    test_exec_reset(r.x, false);
    assert_int_equal(tsr_exec_memory(r.x).peak_mapped, 0);

    assert_int_equal(test_exec_under_way(r.x), 0);
    assert_int_equal(test_exec_of(r.x)->number, l.n + 4);
    for (size_t i = 0; i < l.n; i++) { /* a launch of messages is timed as one, at its end */
        int kind = l.instrs[i].kind;
        n_timed += tsr_instr_is_work(&l.instrs[i]) && kind != TSR_GROUP_BEGIN && kind != TSR_SEND &&
                   kind != TSR_RECV;
    }
    assert_int_equal(tsr_exec_take_spans(r.x, &spans, &n), TSR_OK);
    assert_int_equal(n, n_timed);
    for (size_t i = 0; i < n; i++) {
        assert_true(spans[i].begin <= spans[i].end);
        assert_true(i == 0 || spans[i - 1].number < spans[i].number);
    }
    free(spans);
    assert_int_equal(tsr_exec_take_spans(r.x, &spans, &n), TSR_OK);
    assert_int_equal(n, 0);
    free(spans);
    list_close(&r);
}

/* The memory of a new owner is NaN until it is written. */
static void poison__new_owner__sees_nothing_of_the_old(void **state)
{
    static struct list l;
    struct list_rank r;
    const struct tsr_exec_config config = {.poison = true};
    (void)state;
    list_begin(&l);
    list_fill(&l, 0, 2, 7);
    struct tsr_instr *free_it = list_add(&l, TSR_FREE, 0);
    free_it->buffer = 2;
    list_alloc(&l, 6)->address = 512 * 2;
    list_open(&r, &config, false, NULL, NULL);
    assert_int_equal(list_run(&r, &l), TSR_OK);
    const unsigned char *bytes = tsr_exec_peek(r.x, 6);
    for (int i = 0; i < 512; i++)
        assert_int_equal(bytes[i], 0xff);
    list_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operands__unknown_or_too_long__one_line),
        cmocka_unit_test(buffers__twice_or_never__one_line),
        cmocka_unit_test(kernels__missing_or_failing__one_line),
        cmocka_unit_test(collectives__wrong__one_line),
        cmocka_unit_test(first_failure__ends_all),
        cmocka_unit_test(run__every_kind__right_values),
        cmocka_unit_test(accounts__memory_progress_spans),
        cmocka_unit_test(poison__new_owner__sees_nothing_of_the_old),
    };
    return cmocka_run_group_tests_name("executor", tests, NULL, NULL);
}
