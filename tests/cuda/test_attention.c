/* test_attention.c: attention goes to cuDNN where that takes it, with the strides of its operands,
 * and elsewhere to the plain kernels. Here cuDNN is a stand-in; the results are compared with the
 * plain kernels', which have tests of their own (cuda.kernels_attention).
 */
#include "exec/cuda/cudnn/cudnn_attention.h"
#include "exec/cuda/gpu/gpu.h"
#include "tests/kernels/kernels_testing.h"
#include "tests/standin/standin.h"

enum { SCRATCH = 256, FIELDS = 9, PACK = 3 };

struct shape {
    uint64_t batch, heads, kv_heads, queries, keys, dim;
    bool causal;
};

struct device {
    struct tsr_cuda_context context;
    void *retired[8];
    int n_retired;
};

static tsr_status more_scratch(void *user, uint16_t index, uint64_t bytes)
{
    struct device *d = user;
    assert_int_equal(index, 3);
    assert_true(d->n_retired < 8);
    d->retired[d->n_retired++] = d->context.scratch;
    d->context.scratch = malloc(bytes);
    assert_non_null(d->context.scratch);
    d->context.scratch_bytes = bytes;
    return TSR_OK;
}

static void open_device(struct device *d, bool cudnn, uint64_t workspace)
{
    char why[TSR_ATTENTION_TEXT];
    *d = (struct device){.context = {.index = 3,
                                     .n_sms = 4,
                                     .architecture = 90,
                                     .grow = more_scratch,
                                     .owner = d,
                                     .scratch = malloc(SCRATCH),
                                     .scratch_bytes = SCRATCH}};
    tsr_standin_attention(cudnn, workspace);
    assert_int_equal(tsr_attention_create(90, &d->context.attention, why),
                     cudnn ? 0 : TSR_ATTENTION_NOT_BUILT);
}

static void close_device(struct device *d)
{
    tsr_attention_destroy(d->context.attention);
    free(d->context.scratch);
    for (int i = 0; i < d->n_retired; i++)
        free(d->retired[i]);
}

/* How often cuDNN ran. */
static uint64_t cudnn_runs(void)
{
    const char *entry;
    uint64_t calls;
    for (size_t i = 0; tsr_standin_called(i, &entry, &calls); i++)
        if (strcmp(entry, "cudnnBackendExecute") == 0)
            return calls;
    return 0;
}

static void run_on(struct test_call *t, struct device *d)
{
    test_make_views(t);
    t->call.context = &d->context;
    t->call.launch = tsr_cuda_launch_code;
    tsr_status status = tsr_cuda_kernel_of(t->work.name)(&t->call);
    if (status != TSR_OK)
        fail_msg("%s: %s", t->work.name, tsr_error_text());
    test_check_memory(t);
}

/* A tensor of heads: dense, or a slice of rows that hold PACK such tensors. */
static int heads(struct test_call *t, unsigned slot, unsigned access, uint8_t dtype,
                 uint64_t tokens, uint64_t width, bool packed)
{
    int o = test_view(t, slot, access, dtype, tokens, width, packed ? PACK * width : 0);
    if (access & TSR_READ)
        test_fill(t, o, -1, 1);
    return o;
}

/* Forward or backward, with the same numbers for the same seed. */
static void make_call(struct test_call *t, const struct shape *s, bool backward, uint8_t dtype,
                      bool packed, uint64_t pad, uint64_t seed)
{
    uint64_t d[] = {s->batch, s->heads, s->kv_heads, s->queries, s->keys, s->dim};
    uint64_t q = s->batch * s->queries, k = s->batch * s->keys, of_q = s->heads * s->dim,
             of_k = s->kv_heads * s->dim;
    test_state = seed;
    test_open(t, backward ? "flash_attention_backward" : "flash_attention");
    memcpy(t->work.dims, d, sizeof d);
    t->work.causal = s->causal;
    t->work.constants[0] = 0.3;
    heads(t, 0, TSR_READ, dtype, q, of_q, packed);
    heads(t, 1, TSR_READ, dtype, k, of_k, packed);
    heads(t, 2, TSR_READ, dtype, k, of_k, packed);
    int out = heads(t, 3, backward ? TSR_READ : TSR_WRITE, dtype, q, of_q, false);
    int lse = test_tensor(t, 4, backward ? TSR_READ : TSR_WRITE, TSR_F32,
                          s->batch * s->heads * (s->queries + pad));
    if (!backward)
        return;
    test_fill(t, out, -0.1, 0.1);
    test_fill(t, lse, 2, 3);
    heads(t, 5, TSR_READ, dtype, q, of_q, false);
    heads(t, 6, TSR_WRITE, dtype, q, of_q, packed);
    heads(t, 7, TSR_WRITE, dtype, k, of_k, packed);
    heads(t, 8, TSR_WRITE, dtype, k, of_k, packed);
}

/* Results of both, which differ by the rounding to 16 bits at most. */
static void compare(const struct test_call *x, const struct test_call *y)
{
    for (int o = 0; o < x->n; o++)
        for (uint64_t i = 0; i < x->operands[o].n; i++) {
            double a = test_get(x, o, i), b = test_get(y, o, i);
            double tolerance = 2.1 * test_precision(x->operands[o].dtype) * fabs(b) + 2e-6;
            if (!(fabs(a - b) <= tolerance) && a != b)
                fail_msg("slot %u[%llu]: %.9g with cuDNN, %.9g without", x->operands[o].slot,
                         (unsigned long long)i, a, b);
        }
}

/* Runs both; how often cuDNN ran. */
static uint64_t run_both(const struct shape *s, bool backward, uint8_t dtype, bool packed,
                         uint64_t pad, uint64_t workspace)
{
    struct device with, without;
    struct test_call x, y;
    uint64_t seed = test_random() | 1;
    open_device(&with, true, workspace);
    open_device(&without, false, 0);
    make_call(&x, s, backward, dtype, packed, pad, seed);
    make_call(&y, s, backward, dtype, packed, pad, seed);
    uint64_t before = cudnn_runs();
    run_on(&x, &with);
    run_on(&y, &without);
    uint64_t n = cudnn_runs() - before;
    compare(&x, &y);
    test_close(&x);
    test_close(&y);
    close_device(&with);
    close_device(&without);
    test_state = seed;
    return n;
}

static void taken(void **state)
{
    (void)state;
    for (int i = 0; i < 32; i++) {
        uint64_t kv = 1 + test_below(2), n = 1 + test_below(20);
        struct shape s = {
            1 + test_below(2), kv * (1 + test_below(3)), kv, n, n, 8 * (1 + test_below(3)), i & 1};
        if (i % 5 == 4)
            s.keys = 1 + test_below(20);
        assert_int_equal(run_both(&s, i & 2, i & 4 ? TSR_F16 : TSR_BF16, i & 8,
                                  i % 3 ? 0 : 1 + test_below(7), i & 16 ? 2 * SCRATCH : SCRATCH),
                         1);
    }
}

/* Other types, other sizes of heads, addresses that are not of 16 bytes. */
static void left_to_plain(void **state)
{
    (void)state;
    struct shape s = {1, 2, 1, 9, 9, 16, true};
    for (int backward = 0; backward < 2; backward++) {
        assert_int_equal(run_both(&s, backward, TSR_F32, false, 0, 0), 0);
        assert_int_equal(run_both(&s, backward, TSR_F64, false, 0, 0), 0);
        struct shape odd = s;
        odd.dim = 12;
        assert_int_equal(run_both(&odd, backward, TSR_BF16, false, 0, 0), 0);
        odd.dim = 136; /* cuDNN says no */
        assert_int_equal(run_both(&odd, backward, TSR_BF16, false, 0, 0), 0);
    }
}

static void odd_address(void **state)
{
    (void)state;
    struct shape s = {1, 2, 2, 9, 9, 16, true};
    struct device d;
    struct test_call t;
    open_device(&d, true, 0);
    make_call(&t, &s, false, TSR_BF16, false, 0, 5);
    test_make_views(&t);
    t.call.context = &d.context;
    /* one token of q later, and one element */
    t.views[0].data = (unsigned char *)t.views[0].data + 2;
    uint64_t before = cudnn_runs();
    assert_int_equal(tsr_cuda_kernel_of("flash_attention")(&t.call), TSR_OK);
    assert_int_equal(cudnn_runs(), before);
    test_close(&t);
    close_device(&d);
}

/* No memory for the workspace: the plain kernels need none. A failing library is told of. */
static void failures(void **state)
{
    (void)state;
    struct shape s = {1, 2, 2, 9, 9, 16, true};
    struct device d;
    struct test_call t;
    open_device(&d, true, 2 * SCRATCH);
    make_call(&t, &s, false, TSR_BF16, false, 0, 5);
    d.context.grow = NULL;
    uint64_t before = cudnn_runs();
    run_on(&t, &d);
    assert_int_equal(cudnn_runs(), before);
    char note[TSR_ATTENTION_TEXT];
    tsr_attention_note(d.context.attention, note);
    assert_non_null(strstr(note, "no memory"));
    d.context.grow = more_scratch;
    tsr_standin_fail("cudnnBackendExecute", 1, 3);
    test_make_views(&t);
    t.call.context = &d.context;
    assert_int_equal(tsr_cuda_kernel_of("flash_attention")(&t.call), TSR_EBACKEND);
    assert_non_null(strstr(tsr_error_text(), "kernel flash_attention: cuDNN"));
    test_close(&t);
    close_device(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(taken), cmocka_unit_test(left_to_plain),
                                       cmocka_unit_test(odd_address), cmocka_unit_test(failures)};
    return cmocka_run_group_tests_name("cuDNN: attention", tests, NULL, NULL);
}
