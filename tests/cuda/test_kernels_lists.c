/* test_kernels_lists.c: kernels of the GPU over lists of tensors longer than a launch takes, at
 * addresses of every alignment, with scalars in device memory, in little scratch: the results are
 * the host's.
 */
#define TSR_TEST_CUDA 1
#include "tests/kernels/kernels_testing.h"

#include "exec/cuda/gpu/gpu.h"
#include "exec/kernels/elements/initial.h"

enum { MAX_VIEWS = 600 };

/* A call of many operands; each has 64 bytes of memory behind it that must stay as it is. */
struct list_call {
    struct tsr_work work;
    struct tsr_kernel_call call;
    struct tsr_view views[MAX_VIEWS];
    unsigned char *blocks[MAX_VIEWS], *before[MAX_VIEWS], *host[MAX_VIEWS];
    size_t bytes[MAX_VIEWS];
    double scalars[TSR_N_SCALARS];
    uint64_t args[4096];
};

static struct list_call *open_call(const char *name)
{
    struct list_call *c = calloc(1, sizeof *c);
    assert_non_null(c);
    c->work.name = name;
    c->work.args = c->args;
    c->call = (struct tsr_kernel_call){.work = &c->work, .views = c->views, .scalars = c->scalars};
    return c;
}

static void arg(struct list_call *c, uint64_t value)
{
    assert_true(c->work.n_args < 4096);
    c->args[c->work.n_args++] = value;
}

/* n elements that begin `shift` bytes behind a multiple of 64. */
static unsigned char *operand(struct list_call *c, unsigned slot, unsigned access, uint8_t dtype,
                              uint64_t n, size_t shift)
{
    uint32_t i = c->call.n_views++;
    size_t item = tsr_dtype_bytes((tsr_dtype)dtype), bytes = n * (item ? item : 1);
    assert_true(i < MAX_VIEWS);
    c->bytes[i] = bytes + 256;
    c->blocks[i] = test_memory(c->bytes[i]);
    assert_non_null(c->blocks[i]);
    memset(c->blocks[i], TEST_POISON, c->bytes[i]);
    unsigned char *data = c->blocks[i] + 64 - (uintptr_t)c->blocks[i] % 64 + 64 + shift;
    c->views[i] = (struct tsr_view){.data = data,
                                    .bytes = bytes,
                                    .dtype = dtype,
                                    .slot = (uint8_t)slot,
                                    .access = (uint8_t)access};
    for (uint64_t k = 0; k < n && item; k++)
        test_write(data + k * item, dtype, test_between(0.1, 2));
    return data;
}

static void close_call(struct list_call *c)
{
    for (uint32_t i = 0; i < c->call.n_views; i++) {
        test_give_back(c->blocks[i]);
        free(c->before[i]);
        free(c->host[i]);
    }
    free(c);
}

static unsigned char *copy_of(const unsigned char *memory, size_t bytes)
{
    unsigned char *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, memory, bytes);
    return copy;
}

/* Operand i is what the host made: bit for bit, or but for a few last digits. */
static void compare(const struct list_call *c, uint32_t i, bool exact)
{
    const struct tsr_view *v = &c->views[i];
    size_t item = tsr_dtype_bytes((tsr_dtype)v->dtype);
    size_t first = (size_t)((unsigned char *)v->data - c->blocks[i]);
    for (size_t at = first; !exact && at < first + v->bytes; at += item) {
        double got = test_read(c->blocks[i] + at, v->dtype);
        double want = test_read(c->host[i] + at, v->dtype);
        if (!(fabs(got - want) <= (2.1 * test_precision(v->dtype) + 1e-6) * fabs(want)))
            fail_msg("%s: operand %u, byte %zu: %.9g instead of %.9g", c->work.name, i, at - first,
                     got, want);
        memcpy(c->blocks[i] + at, c->host[i] + at, item);
    }
    if (memcmp(c->blocks[i], c->host[i], c->bytes[i]) != 0)
        fail_msg("%s: operand %u is not the host's", c->work.name, i);
}

/* Runs the host's kernel, puts the memory back, runs the GPU's, and compares. scalars_at: where the
 * GPU finds scalars; NULL: in the call. */
static void compare_kernels(struct list_call *c, tsr_kernel_fn host, tsr_kernel_fn gpu, bool exact,
                            const double *scalars_at, uint64_t scratch_bytes)
{
    unsigned char *scratch = test_memory(scratch_bytes + 1);
    struct tsr_cuda_context context = {.n_sms = test_gpu()->n_sms,
                                       .architecture = test_gpu()->architecture,
                                       .shared = test_gpu()->shared,
                                       .scratch = scratch,
                                       .scratch_bytes = scratch_bytes,
                                       .scalars = scalars_at};
    for (uint32_t i = 0; i < c->call.n_views; i++)
        c->before[i] = copy_of(c->blocks[i], c->bytes[i]);
    assert_int_equal(host(&c->call), TSR_OK);
    for (uint32_t i = 0; i < c->call.n_views; i++) {
        c->host[i] = copy_of(c->blocks[i], c->bytes[i]);
        memcpy(c->blocks[i], c->before[i], c->bytes[i]);
    }
    if (scalars_at)
        memset(c->scalars, 0, sizeof c->scalars);
    c->call.launch = tsr_cuda_launch_code;
    c->call.context = &context;
    tsr_status status = test_finish(gpu(&c->call));
    if (status != TSR_OK)
        fail_msg("%s: %s", c->work.name, tsr_error_text());
    for (uint32_t i = 0; i < c->call.n_views; i++)
        compare(c, i, exact);
    test_give_back(scratch);
}

static void same_as_host(struct list_call *c, bool exact, const double *scalars_at,
                         uint64_t scratch_bytes)
{
    compare_kernels(c, tsr_host_kernel(c->work.name), tsr_cuda_kernel_of(c->work.name), exact,
                    scalars_at, scratch_bytes);
}

/* ---- initial values -------------------------------------------------------------------------- */

static struct tsr_piece initial_piece;

static tsr_status initial(const struct tsr_kernel_call *call)
{
    return tsr_initial_run(call, UINT64_C(0x123456789abcdef), &initial_piece);
}

/* Boxes whose rows begin and end within the four elements that have their random words together;
 * fewer dimensions than four; nothing; a place beyond 32 bits. */
static void initial_values(void **state)
{
    static const struct {
        int n_dims;
        uint64_t shape[4], start[4], size[4];
    } boxes[] = {{2, {700, 515}, {3, 2}, {600, 510}},
                 {1, {100003}, {1}, {100001}},
                 {4, {3, 5, 7, 11}, {1, 0, 2, 3}, {2, 5, 5, 1}},
                 {2, {UINT64_C(1) << 20, UINT64_C(1) << 20}, {1 << 19, 5}, {1, 77}},
                 {2, {40, 40}, {40, 0}, {0, 40}},
                 {0, {0}, {0}, {0}}};
    static const uint8_t dtypes[] = {TSR_F32, TSR_BF16, TSR_F16, TSR_F64};
    (void)state;
    for (size_t i = 0; i < 3 * sizeof boxes / sizeof *boxes * sizeof dtypes; i++) {
        size_t box = i % (sizeof boxes / sizeof *boxes);
        initial_piece = (struct tsr_piece){.name = 77 + (uint64_t)i,
                                           .n_dims = boxes[box].n_dims,
                                           .dtype = dtypes[i / 3 % sizeof dtypes],
                                           .init = (int)(i / 12 % 3),
                                           .constant = 0.02};
        uint64_t n = 1;
        for (int d = 0; d < boxes[box].n_dims; d++) {
            initial_piece.shape[d] = boxes[box].shape[d];
            initial_piece.start[d] = boxes[box].start[d];
            n *= initial_piece.size[d] = boxes[box].size[d];
        }
        struct list_call *c = open_call("init_param");
        operand(c, 0, TSR_WRITE, initial_piece.dtype, n, 0);
        compare_kernels(c, initial, initial, true, NULL, 0);
        close_call(c);
    }
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void alignments(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 7, 8, 9, 4099, 70000};
    for (int k = 0; k < TEST_FLOATS * TEST_FLOATS * 12; k++) {
        uint8_t from = test_floats[k % TEST_FLOATS],
                to = test_floats[k / TEST_FLOATS % TEST_FLOATS];
        size_t a = tsr_dtype_bytes((tsr_dtype)from) * (k % 3);
        size_t b = tsr_dtype_bytes((tsr_dtype)to) * (k % 5);
        struct list_call *c = open_call("param_cast");
        uint64_t n = sizes[(k / 16) % 6];
        operand(c, 0, TSR_READ, from, n, a);
        operand(c, 1, TSR_WRITE, to, n, b);
        same_as_host(c, true, NULL, 0);
        close_call(c);
    }
}

static void joined(void **state)
{
    (void)state;
    enum { SOURCES = 100 };
    for (int k = 0; k < 4; k++) {
        struct list_call *c = open_call(k < 2 ? "all_gather_cast" : "all_gather_copy_in");
        uint8_t to = k % 2 ? TSR_F32 : TSR_BF16;
        uint64_t total = 0;
        for (uint64_t i = 0; i < SOURCES; i++) {
            uint64_t n = i % 7 == 3 ? 0 : i % 3 == 0 ? test_below(20) : 8 * test_below(300);
            uint8_t from = k >= 2 || i % 2 ? to : TSR_F32;
            operand(c, 0, TSR_READ, from, n, 0);
            total += n;
        }
        operand(c, 1, TSR_WRITE, to, total, 0);
        same_as_host(c, true, NULL, 0);
        close_call(c);
    }
}

/* Cuts of 40 tensors, along the first dimension or a later one, whole numbers of words or not. */
static void pieces(void **state)
{
    (void)state;
    enum { TENSORS = 40 };
    for (int k = 0; k < 4; k++) {
        struct list_call *c = open_call(k % 2 ? "chunk_cat" : "split_with_sizes_copy");
        uint64_t ranks = 3 + (uint64_t)k, padded = 0;
        arg(c, ranks);
        for (uint64_t i = 0; i < TENSORS; i++) {
            uint64_t outer = i % 5 == 4 ? 3 : 1, dim = 1 + test_below(50);
            uint64_t inner = i % 2 ? 1 + test_below(9) : 64;
            uint64_t chunk = tsr_ceil_div(dim, ranks), cut[4] = {outer, dim, inner, chunk};
            for (int a = 0; a < 4; a++)
                arg(c, cut[a]);
            padded += outer * chunk * inner;
            operand(c, k % 2 ? 0 : 2, k % 2 ? TSR_READ : TSR_WRITE, TSR_BF16, outer * dim * inner,
                    0);
        }
        if (k % 2)
            operand(c, 2, TSR_WRITE, k == 1 ? TSR_BF16 : TSR_F32, ranks * padded, 0);
        else
            operand(c, 0, TSR_READ, TSR_BF16, ranks * padded, 0);
        same_as_host(c, true, NULL, 0);
        close_call(c);
    }
}

static void used(void **state)
{
    (void)state;
    struct list_call *c = open_call("used_map");
    for (int i = 0; i < 4000; i++)
        arg(c, test_below(2));
    operand(c, 0, TSR_WRITE, TSR_U8, (uint64_t)4 * 4000, 0);
    same_as_host(c, true, NULL, 0);
    close_call(c);
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

static void sums(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct list_call *c = open_call(k ? "foreach_mul_clip" : "accumulate_sharded_grad");
        for (int i = 0; i < 100; i++) {
            uint64_t n = test_below(2000);
            if (!k)
                operand(c, 1, TSR_READ_WRITE, TSR_F32, n, 0);
            operand(c, 0, k ? TSR_READ_WRITE : TSR_READ, i % 2 ? TSR_F32 : TSR_BF16, n, 0);
        }
        if (k)
            operand(c, 5, TSR_READ, TSR_F32, 1, 0);
        same_as_host(c, false, NULL, 0);
        close_call(c);
    }
}

/* More elements than a grid has threads for: each has several blocks, of functions of one operand
 * two at a time. */
static void many(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        struct list_call *c = open_call(k % 2 ? "fused_swiglu" : "gelu");
        uint64_t n = 3 * (1 << 20) + 12345 * (uint64_t)k; /* 4 x 128 blocks of 2048 are 2^20 */
        uint8_t dtype = k < 2 ? TSR_BF16 : TSR_F16;
        operand(c, 0, TSR_READ, dtype, n, 0);
        if (k % 2)
            operand(c, 1, TSR_READ, dtype, n, 0);
        operand(c, k % 2 ? 2 : 1, TSR_WRITE, dtype, n, 0);
        same_as_host(c, false, NULL, 0);
        close_call(c);
    }
}

/* More parameters than a launch takes, some with mirrors; scalars in the call, or in memory. */
static void optimizers(void **state)
{
    (void)state;
    enum { PARAMETERS = 115 };
    static const char *const names[] = {"fused_adamw", "foreach_mul_weight_decay",
                                        "fused_sgd_nesterov", "foreach_add_momentum",
                                        "foreach_add_step"};
    const double scalars[TSR_N_SCALARS] = {1e-2, 0.9, 0.95, 1e-8, 0.1, 0.8, 7, 1};
    double *table = test_memory(sizeof scalars);
    assert_non_null(table);
    memcpy(table, scalars, sizeof scalars);
    for (int k = 0; k < 10; k++) {
        struct list_call *c = open_call(names[k / 2]);
        memcpy(c->scalars, scalars, sizeof scalars);
        for (int i = 0; i < PARAMETERS; i++) {
            uint64_t n = k / 2 == 4 ? 1 : test_below(400);
            bool adamw = k / 2 == 0, mirrored = adamw && i % 4 == 0;
            arg(c,
                (uint64_t)(i % 2) | (mirrored ? 2 : 0) | (i % 5 ? 0 : test_scale_bits(1.0f / 3)));
            if (k / 2 == 4) {
                operand(c, 4, TSR_READ_WRITE, TSR_F32, n, 0);
                continue;
            }
            if (k / 2 != 1) {
                operand(c, k / 2 == 3 ? 4 : 0, TSR_READ, i % 3 ? TSR_F32 : TSR_BF16, n, 0);
                operand(c, 1, TSR_READ_WRITE, TSR_F32, n, 0);
            }
            if (adamw)
                operand(c, 2, TSR_READ_WRITE, TSR_F32, n, 0);
            if (k / 2 != 3)
                operand(c, 3, TSR_READ_WRITE, TSR_F32, n, 0);
            if (mirrored)
                operand(c, 7, TSR_WRITE, TSR_BF16, n, 0);
        }
        if (k == 1)
            operand(c, 5, TSR_READ, TSR_F32, 1, 0);
        same_as_host(c, false, k % 2 ? table : NULL, 0);
        close_call(c);
    }
    test_give_back(table);
}

/* ---- embeddings ------------------------------------------------------------------------------ */

/* Tokens of which some are frequent; scratch for all rows, or for a part at a time. */
static void embedding(void **state)
{
    (void)state;
    enum { FIRST = 100, ROWS = 3000, TOKENS = 700 };
    for (int k = 0; k < 6; k++) {
        uint64_t d = k % 3 == 2 ? 13 : 24;
        uint8_t dtype = test_floats[k % 3];
        struct list_call *c = open_call("embedding_dense_backward");
        arg(c, FIRST);
        arg(c, ROWS);
        operand(c, 0, TSR_READ, dtype, TOKENS * d, 0);
        unsigned char *ids = operand(c, 1, TSR_READ, TSR_I64, TOKENS, 0);
        for (uint64_t t = 0; t < TOKENS; t++)
            test_write(ids + 8 * t, TSR_I64,
                       t % 3 ? (double)test_below(FIRST + ROWS + 50) : FIRST + 7);
        operand(c, 2, TSR_WRITE, k % 2 ? TSR_F32 : dtype, ROWS * d, 0);
        same_as_host(c, false, NULL, k < 3 ? 1 << 20 : 4 * (2 * TOKENS + 1) + 8 * 1100);
        close_call(c);
    }
}

static void little_scratch(void **state)
{
    (void)state;
    struct list_call *c = open_call("embedding_dense_backward");
    struct tsr_cuda_context context = {.n_sms = test_gpu()->n_sms, .scratch_bytes = 100};
    arg(c, 0);
    arg(c, 5);
    operand(c, 0, TSR_READ, TSR_F32, 80, 0);
    memset(operand(c, 1, TSR_READ, TSR_I64, 20, 0), 0, 160);
    operand(c, 2, TSR_WRITE, TSR_F32, 20, 0);
    c->call.launch = tsr_cuda_launch_code;
    c->call.context = &context;
    assert_int_equal(tsr_cuda_kernel_of(c->work.name)(&c->call), TSR_EOOM);
    assert_non_null(strstr(tsr_error_text(), "embedding_dense_backward"));
    close_call(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(initial_values), cmocka_unit_test(alignments), cmocka_unit_test(joined),
        cmocka_unit_test(pieces),         cmocka_unit_test(used),       cmocka_unit_test(sums),
        cmocka_unit_test(many),           cmocka_unit_test(optimizers), cmocka_unit_test(embedding),
        cmocka_unit_test(little_scratch)};
    return cmocka_run_group_tests_name("CUDA: kernels over lists", tests, NULL, NULL);
}
