/* blas_testing.h: products by exec/cuda/blas/blas.h, on a stream of the stand-in, and what they
 * should be, computed in double.
 */
#ifndef TSR_BLAS_TESTING_H
#define TSR_BLAS_TESTING_H

#include "exec/cuda/blas/blas.h"
#include "tests/kernels/kernels_testing.h"
#include "tests/standin/standin.h"

enum { BLAS_SCRATCH = 64 << 10, BLAS_ROOM = 4096 };

struct blas_test {
    struct tsr_cuda_gpu gpu;
    struct tsr_blas *blas;
    struct tsr_cuda_context context;
};

static inline void blas_open(struct blas_test *t, const char *plans, bool deterministic, bool tune)
{
    t->gpu = (struct tsr_cuda_gpu){.architecture = 90, .n_sms = 4, .driver = 13000};
    snprintf(t->gpu.name, sizeof t->gpu.name, "Stand-in 3000");
    const struct tsr_blas_config config = {
        .gpu = &t->gpu, .plans = plans, .deterministic = deterministic, .tune = tune};
    assert_int_equal(tsr_blas_create(&config, &t->blas), TSR_OK);
    t->context = (struct tsr_cuda_context){.n_sms = 4, .architecture = 90, .blas = t->blas};
    assert_int_equal(cudaStreamCreateWithPriority(&t->context.stream, cudaStreamNonBlocking, 0), 0);
    assert_int_equal(cudaMalloc(&t->context.scratch, BLAS_SCRATCH), 0);
    t->context.scratch_bytes = BLAS_SCRATCH;
}

static inline void blas_close(struct blas_test *t)
{
    assert_int_equal(cudaStreamDestroy(t->context.stream), 0);
    assert_int_equal(cudaFree(t->context.scratch), 0);
    tsr_blas_destroy(t->blas);
}

/* Matrices of a batch in device memory, with room between rows and between matrices. */
struct blas_matrices {
    unsigned char *memory;
    uint8_t dtype;
    uint64_t rows, columns, row, step, batch;
};

static inline struct blas_matrices blas_matrices(uint8_t dtype, uint64_t batch, uint64_t rows,
                                                 uint64_t columns, uint64_t gap)
{
    struct blas_matrices x = {.dtype = dtype, .rows = rows, .columns = columns, .batch = batch};
    void *memory;
    x.row = columns + gap;
    x.step = rows * x.row + 5 * gap;
    assert_int_equal(cudaMalloc(&memory, BLAS_ROOM + x.step * batch * 8), 0);
    x.memory = memory;
    for (uint64_t i = 0; i < x.step * batch; i++)
        test_write(x.memory + i * tsr_dtype_bytes((tsr_dtype)dtype), dtype, test_between(-1, 1));
    return x;
}

static inline double blas_at(const struct blas_matrices *x, uint64_t of, uint64_t r, uint64_t c)
{
    return test_read(x->memory +
                         tsr_dtype_bytes((tsr_dtype)x->dtype) * (of * x->step + r * x->row + c),
                     x->dtype);
}

struct blas_case {
    struct tsr_blas_gemm gemm;
    struct blas_matrices a, b, out, bias;
    double *before; /* all of out's memory */
};

static inline void blas_keep_out(struct blas_case *c)
{
    free(c->before);
    c->before = malloc((c->out.step * c->out.batch + 1) * sizeof *c->before);
    assert_non_null(c->before);
    for (uint64_t i = 0; i < c->out.step * c->out.batch; i++)
        c->before[i] = blas_at(&c->out, 0, 0, i);
}

/* A random product of this size: dtype of a and b, of out. */
static inline void blas_case(struct blas_case *c, const uint64_t mnk[3], uint64_t batch, bool ta,
                             bool tb, uint8_t dtype, uint8_t out, bool biased, double beta,
                             uint64_t gap)
{
    uint64_t m = mnk[0], n = mnk[1], k = mnk[2];
    memset(c, 0, sizeof *c);
    c->a = blas_matrices(dtype, batch, ta ? k : m, ta ? m : k, gap);
    c->b = blas_matrices(dtype, batch, tb ? n : k, tb ? k : n, gap);
    c->out = blas_matrices(out, batch, m, n, gap);
    c->bias = blas_matrices(out, 1, 1, n, 0);
    c->gemm = (struct tsr_blas_gemm){.m = m,
                                     .n = n,
                                     .k = k,
                                     .batch = batch,
                                     .transpose_a = ta,
                                     .transpose_b = tb,
                                     .dtype = dtype,
                                     .dtype_out = out,
                                     .a = c->a.memory,
                                     .b = c->b.memory,
                                     .bias = biased ? c->bias.memory : NULL,
                                     .out = c->out.memory,
                                     .row_a = c->a.row,
                                     .row_b = c->b.row,
                                     .row_out = c->out.row,
                                     .step_a = c->a.step,
                                     .step_b = c->b.step,
                                     .step_out = c->out.step,
                                     .alpha = 0.75,
                                     .beta = beta};
    blas_keep_out(c);
}

static inline void blas_case_close(struct blas_case *c)
{
    free(c->before);
    (void)cudaFree(c->a.memory);
    (void)cudaFree(c->b.memory);
    (void)cudaFree(c->out.memory);
    (void)cudaFree(c->bias.memory);
}

static inline double blas_wanted(const struct blas_case *c, uint64_t of, uint64_t i, uint64_t j)
{
    const struct tsr_blas_gemm *g = &c->gemm;
    double sum = 0;
    for (uint64_t p = 0; p < g->k; p++)
        sum += (g->transpose_a ? blas_at(&c->a, of, p, i) : blas_at(&c->a, of, i, p)) *
               (g->transpose_b ? blas_at(&c->b, of, j, p) : blas_at(&c->b, of, p, j));
    sum *= g->alpha;
    sum += g->beta * c->before[of * c->out.step + i * c->out.row + j];
    return sum + (g->bias ? blas_at(&c->bias, 0, 0, j) : 0);
}

/* After the stream is done: results are right, and what lies between rows is as it was. */
static inline void blas_check(const struct blas_case *c)
{
    const struct blas_matrices *o = &c->out;
    for (uint64_t e = 0; e < o->step * o->batch; e++) {
        uint64_t of = e / o->step, i = e % o->step / o->row, j = e % o->step % o->row;
        bool inside = i < o->rows && j < o->columns;
        double want = inside ? blas_wanted(c, of, i, j) : c->before[e];
        double got = blas_at(o, 0, 0, e), tolerance = 1e-6 * (double)(c->gemm.k + 4);
        tolerance += 1.02 * test_precision(o->dtype) * fabs(want);
        if (!(fabs(got - want) <= (inside ? tolerance : 0)))
            fail_msg("matrix %llu (%llu, %llu): %.9g, should be %.9g", (unsigned long long)of,
                     (unsigned long long)i, (unsigned long long)j, got, want);
    }
}

/* How often an entry point of a stand-in was called. */
static inline uint64_t blas_calls(const char *name)
{
    const char *entry;
    uint64_t calls;
    for (size_t i = 0; tsr_standin_called(i, &entry, &calls); i++)
        if (strcmp(entry, name) == 0)
            return calls;
    return 0;
}

static inline tsr_status blas_run(struct blas_test *t, struct blas_case *c)
{
    blas_keep_out(c);
    tsr_status status = tsr_blas_run(t->blas, &t->context, &c->gemm);
    cudaError_t error = cudaStreamSynchronize(t->context.stream);
    return status == TSR_OK && error != cudaSuccess ? TSR_EBACKEND : status;
}

#endif
