/* attention.c: attention by cuDNN against the plain kernels, on a GPU, at shapes of real models: in
 * 16 bits cuDNN rounds the weights, too, so results differ by some units of bf16 at most.
 */
#define TSR_TEST_CUDA 1
#include "exec/cuda/cudnn/cudnn_attention.h"
#include "tests/kernels/kernels_testing.h"

enum { SCRATCH = 64 << 20, PACK = 3 };

struct shape {
    uint64_t batch, heads, kv_heads, seq, dim;
    bool causal, packed;
    uint8_t dtype;
};

static const struct shape shapes[] = {
    {1, 4, 4, 128, 64, true, false, TSR_BF16}, {2, 8, 2, 200, 128, true, false, TSR_BF16},
    {2, 4, 4, 256, 64, true, true, TSR_BF16},  {1, 4, 2, 77, 128, false, false, TSR_BF16},
    {1, 2, 2, 512, 64, true, false, TSR_F16},  {1, 8, 1, 256, 128, true, true, TSR_F16},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static struct tsr_cuda_context context(struct tsr_cuda_attention *attention, bool deterministic)
{
    static void *scratch;
    if (!scratch)
        assert_int_equal(cudaMalloc(&scratch, SCRATCH), cudaSuccess);
    return (struct tsr_cuda_context){.n_sms = test_gpu()->n_sms,
                                     .architecture = test_gpu()->architecture,
                                     .shared = test_gpu()->shared,
                                     .deterministic = deterministic,
                                     .attention = attention,
                                     .scratch = scratch,
                                     .scratch_bytes = SCRATCH};
}

static int heads(struct test_call *t, unsigned slot, unsigned access, const struct shape *s,
                 uint64_t n, bool packed)
{
    uint64_t width = n * s->dim;
    int o =
        test_view(t, slot, access, s->dtype, s->batch * s->seq, width, packed ? PACK * width : 0);
    if (access & TSR_READ)
        test_fill(t, o, -1, 1);
    return o;
}

static void open_call(struct test_call *t, const struct shape *s, bool backward, uint64_t seed)
{
    uint64_t d[] = {s->batch, s->heads, s->kv_heads, s->seq, s->seq, s->dim};
    test_state = seed;
    test_open(t, backward ? "flash_attention_backward" : "flash_attention");
    memcpy(t->work.dims, d, sizeof d);
    t->work.causal = s->causal;
    t->work.constants[0] = 1 / sqrt((double)s->dim);
    heads(t, 0, TSR_READ, s, s->heads, s->packed);
    heads(t, 1, TSR_READ, s, s->kv_heads, s->packed);
    heads(t, 2, TSR_READ, s, s->kv_heads, s->packed);
}

static void run_on(struct test_call *t, const struct tsr_cuda_context *c)
{
    test_make_views(t);
    t->call.context = c;
    tsr_status status = tsr_cuda_kernel_of(t->work.name)(&t->call);
    if (status == TSR_OK)
        status = tsr_operands_finish();
    if (status != TSR_OK)
        fail_msg("%s: %s", t->work.name, tsr_error_text());
    test_check_memory(t);
}

/* The largest difference in units of the largest number. */
static void compare(const struct test_call *x, const struct test_call *y, int operand, double most)
{
    double largest = 0, off = 0;
    for (uint64_t i = 0; i < y->operands[operand].n; i++) {
        double a = test_get(x, operand, i), b = test_get(y, operand, i);
        assert_true(isfinite(a) && isfinite(b));
        largest = fmax(largest, fabs(b));
        off = fmax(off, fabs(a - b));
    }
    if (off > most * largest)
        fail_msg("%s, slot %u: %.3g off, of %.3g", x->work.name, x->operands[operand].slot, off,
                 largest);
}

static void forward(const struct shape *s, const struct tsr_cuda_context *c, struct test_call *t,
                    uint64_t seed)
{
    open_call(t, s, false, seed);
    heads(t, 3, TSR_WRITE, s, s->heads, false);
    test_output(t, 4, TSR_F32, s->batch * s->heads * s->seq);
    run_on(t, c);
}

/* With the result and lse of `f`. */
static void backward(const struct shape *s, const struct tsr_cuda_context *c,
                     const struct test_call *f, struct test_call *t, uint64_t seed)
{
    open_call(t, s, true, seed);
    double *out = test_values(f, 3), *lse = test_values(f, 4);
    test_set_all(t, heads(t, 3, TSR_READ, s, s->heads, false), out);
    test_set_all(t, test_tensor(t, 4, TSR_READ, TSR_F32, s->batch * s->heads * s->seq), lse);
    free(out);
    free(lse);
    test_state = seed + 2;
    heads(t, 5, TSR_READ, s, s->heads, false);
    heads(t, 6, TSR_WRITE, s, s->heads, s->packed);
    heads(t, 7, TSR_WRITE, s, s->kv_heads, s->packed);
    heads(t, 8, TSR_WRITE, s, s->kv_heads, s->packed);
    run_on(t, c);
}

static void same_as_plain(void **state)
{
    struct tsr_cuda_attention *attention = *state;
    for (int i = 0; i < 2 * N_SHAPES; i++) {
        const struct shape *s = &shapes[i / 2];
        const struct tsr_cuda_context with = context(attention, i % 2),
                                      without = context(NULL, i % 2);
        struct test_call x, y, gx, gy;
        uint64_t seed = 1000 + (uint64_t)i;
        forward(s, &with, &x, seed);
        forward(s, &without, &y, seed);
        compare(&x, &y, 3, 0.01);
        compare(&x, &y, 4, 1e-4);
        backward(s, &with, &y, &gx, seed);
        backward(s, &without, &y, &gy, seed);
        for (int g = 6; g < 9; g++)
            compare(&gx, &gy, g, 0.02);
        test_close(&x);
        test_close(&y);
        test_close(&gx);
        test_close(&gy);
    }
    char note[TSR_ATTENTION_TEXT];
    tsr_attention_note(attention, note);
    assert_string_equal(note, ""); /* cuDNN took all of them */
}

static int start(void **state)
{
    char why[TSR_ATTENTION_TEXT] = "";
    struct tsr_cuda_attention *attention;
    if (tsr_attention_create(test_gpu()->architecture, &attention, why)) {
        print_error("%s\n", why);
        return -1;
    }
    *state = attention;
    return 0;
}

static int stop(void **state)
{
    tsr_attention_destroy(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_as_plain)};
    return cmocka_run_group_tests_name("cuDNN against plain kernels", tests, start, stop);
}
