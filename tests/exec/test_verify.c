/* test_verify.c: kernels that do not keep to their operands are found out, in one line that names
 * the instruction and the bytes; others run as always.
 */
#include <math.h>

#include "tests/exec/instrs_testing.h"

#include "exec/host/host_device.h"

enum { AT = 64 }; /* an element in the middle */

static float *floats(const struct tsr_kernel_call *call, int i)
{
    return call->views[i].data;
}

/* a, b, out; the buffers lie 512 bytes apart and have 256 */
static tsr_status good(const struct tsr_kernel_call *call)
{
    for (int i = 0; i < AT; i++)
        floats(call, 2)[i] = floats(call, 0)[i] + floats(call, 1)[i];
    return TSR_OK;
}

static tsr_status writes_behind(const struct tsr_kernel_call *call)
{
    floats(call, 2)[AT] = 1;
    return good(call);
}

static tsr_status writes_before(const struct tsr_kernel_call *call)
{
    floats(call, 2)[-1] = 1;
    return good(call);
}

static tsr_status writes_what_it_reads(const struct tsr_kernel_call *call)
{
    tsr_status status = good(call);
    floats(call, 0)[3] = 5;
    return status;
}

static tsr_status reads_behind(const struct tsr_kernel_call *call)
{
    tsr_status status = good(call);
    floats(call, 2)[7] = floats(call, 0)[AT];
    return status;
}

static tsr_status reads_what_it_writes(const struct tsr_kernel_call *call)
{
    for (int i = 0; i < AT; i++)
        floats(call, 2)[i] += floats(call, 0)[i];
    return TSR_OK;
}

static tsr_status leaves_the_last(const struct tsr_kernel_call *call)
{
    for (int i = 0; i < AT - 1; i++)
        floats(call, 2)[i] = floats(call, 0)[i] + floats(call, 1)[i];
    return TSR_OK;
}

static tsr_status does_nothing(const struct tsr_kernel_call *call)
{
    (void)call;
    return TSR_OK;
}

static const struct tsr_user_kernel kernels[] = {{"good", good},
                                                 {"writes_behind", writes_behind},
                                                 {"writes_before", writes_before},
                                                 {"writes_what_it_reads", writes_what_it_reads},
                                                 {"reads_behind", reads_behind},
                                                 {"reads_what_it_writes", reads_what_it_writes},
                                                 {"leaves_the_last", leaves_the_last},
                                                 {"does_nothing", does_nothing}};

static const struct tsr_exec_config verifying = {
    .verify = true, .kernels = kernels, .n_kernels = sizeof kernels / sizeof *kernels};

/* fill 0 and 1, then `name` of them into 2; as an OP or, in host memory, as a HOST_OP. */
static tsr_status run(struct list_rank *r, const char *name, bool on_host)
{
    static struct list l;
    list_begin(&l);
    for (uint32_t b = 0; b < 2; b++)
        list_fill(&l, 0, b, b + 1);
    list_op(&l, 0, name, 0, 1, 2);
    if (on_host) {
        l.n--;
        list_copy(&l, 0, "d2h_shard", 0, 4);
        list_copy(&l, 0, "d2h_shard", 1, 5);
        list_add(&l, TSR_HOST_OP, 0);
        list_work(&l, name);
        list_operand(&l, 5, TSR_READ, 0); /* its block is longer */
        list_operand(&l, 4, TSR_READ, 1);
        list_operand(&l, 4, TSR_WRITE, 2);
    }
    l.instrs[l.n - 1].origin.phase = TSR_PHASE_BACKWARD;
    list_open(r, &verifying, true, NULL, NULL);
    return list_run(r, &l);
}

static void expect(const char *name, const char *text)
{
    struct list_rank r;
    char whole[512];
    tsr_status status = run(&r, name, false);
    snprintf(whole, sizeof whole,
             "defect: instruction 10 (op '%s' of module '' in phase backward) %s", name, text);
    assert_int_equal(status, TSR_EDEFECT);
    assert_string_equal(tsr_error_text(), whole);
    list_close(&r);
}

static void kernels__beside_their_operands__one_line_each(void **state)
{
    (void)state;
    expect("writes_behind", "writes bytes 256 to 260 of buffer 2, which it does not declare");
    expect("writes_before", "writes bytes 508 to 512 of buffer 1, which it does not declare");
    expect("writes_what_it_reads", "changes bytes 14 to 16 of buffer 0, which it declares as read");
    expect("reads_behind", "writes to bytes 28 to 256 of buffer 2 what follows from memory that "
                           "it does not declare as read");
    expect("reads_what_it_writes", "writes to bytes 0 to 256 of buffer 2 what follows from memory "
                                   "that it does not declare as read");
    expect("leaves_the_last",
           "leaves bytes 252 to 256 of buffer 2 unwritten, which it declares as written");
    expect("does_nothing",
           "leaves bytes 0 to 256 of buffer 2 unwritten, which it declares as written");
}

static void good_kernel__its_result_is_kept(void **state)
{
    struct list_rank r;
    (void)state;
    for (int on_host = 0; on_host < 2; on_host++) {
        assert_int_equal(run(&r, "good", on_host), TSR_OK);
        const float *out = tsr_exec_peek(r.x, on_host ? 4 : 2);
        for (int i = 0; i < AT; i++)
            assert_true(out[i] == 3);
        list_close(&r);
    }
}

static void host_op__reads_what_it_does_not_declare__is_found(void **state)
{
    struct list_rank r;
    (void)state;
    assert_int_equal(run(&r, "reads_behind", true), TSR_EDEFECT);
    assert_non_null(strstr(tsr_error_text(), "host_op 'reads_behind'"));
    list_close(&r);
}

/* Operands without a dtype may be left alone; then they keep what they had. */
static void bytes__left_alone__keep_what_they_had(void **state)
{
    static struct list l;
    struct list_rank r;
    (void)state;
    list_begin(&l);
    for (uint32_t b = 0; b < 3; b++)
        list_fill(&l, 0, b, b + 1);
    list_op(&l, 0, "leaves_the_last", 0, 1, 2);
    l.operands[l.n - 1][2].dtype = TSR_DTYPE_NONE;
    list_open(&r, &verifying, true, NULL, NULL);
    assert_int_equal(list_run(&r, &l), TSR_OK);
    const float *out = tsr_exec_peek(r.x, 2), *data = (const float *)r.device->ops->at(r.device, 0);
    assert_true(out[0] == 3 && out[AT - 1] == 3);
    assert_false(data[0] == 1); /* memory itself is poisoned */
    list_close(&r);
}

/* What has not been written is NaN, and may be copied. */
static void unwritten_memory__is_nan(void **state)
{
    static struct list l;
    struct list_rank r;
    (void)state;
    list_begin(&l);
    list_copy(&l, 0, "device_copy", 0, 1);
    list_open(&r, &verifying, true, NULL, NULL);
    assert_int_equal(list_run(&r, &l), TSR_OK);
    assert_true(isnan(((const float *)tsr_exec_peek(r.x, 1))[5]));
    list_close(&r);
}

/* Rows of columns: what lies between them is not declared. */
static void views_of_columns__between_the_rows__is_found(void **state)
{
    static struct list l;
    struct list_rank r;
    (void)state;
    for (int whole = 0; whole < 2; whole++) {
        list_begin(&l);
        for (uint32_t b = 0; b < 2; b++)
            list_fill(&l, 0, b, b + 1);
        list_op(&l, 0, "good", 0, 1, 2);
        l.operands[l.n - 1][2].width = whole ? 32 : 16;
        l.operands[l.n - 1][2].pitch = 32;
        list_open(&r, &verifying, true, NULL, NULL);
        assert_int_equal(list_run(&r, &l), whole ? TSR_OK : TSR_EDEFECT);
        if (!whole)
            assert_non_null(strstr(tsr_error_text(), "writes bytes 16 to 32 of buffer 2"));
        list_close(&r);
    }
}

static void all_kinds__verified__the_same_hash(void **state)
{
    static struct list l;
    struct list_rank r;
    (void)state;
    list_all_kinds(&l);
    list_open(&r, &verifying, true, NULL, NULL);
    assert_int_equal(list_run(&r, &l), TSR_OK);
    assert_int_equal(tsr_exec_hash(r.x), list_expected(&l));
    list_close(&r);
}

static void rank__verify_without_serial__is_refused(void **state)
{
    const struct tsr_host_rank_config config = {.verify = true};
    struct tsr_executor *x;
    (void)state;
    assert_int_equal(tsr_host_rank_create(&config, &x), TSR_EVALUE);
    assert_null(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels__beside_their_operands__one_line_each),
        cmocka_unit_test(good_kernel__its_result_is_kept),
        cmocka_unit_test(host_op__reads_what_it_does_not_declare__is_found),
        cmocka_unit_test(bytes__left_alone__keep_what_they_had),
        cmocka_unit_test(unwritten_memory__is_nan),
        cmocka_unit_test(views_of_columns__between_the_rows__is_found),
        cmocka_unit_test(all_kinds__verified__the_same_hash),
        cmocka_unit_test(rank__verify_without_serial__is_refused),
    };
    return cmocka_run_group_tests_name("verify", tests, NULL, NULL);
}
