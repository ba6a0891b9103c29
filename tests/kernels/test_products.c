/* test_products.c: what multiplies matrices, as TESSERA_PRODUCTS allows, and oneDNN's products of
 * bf16 against sums in double. Each choice is a process, as the libraries are looked for once.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exec/kernels/matrix/libraries.h"
#include "exec/kernels/matrix/matmul.h"
#include "tests/kernels/kernels_testing.h"

/* ---- which ----------------------------------------------------------------------------------- */

/* Exit status of a process that looks for libraries with the variable at `value`; NULL: unset. */
static int of_process(const char *value, int (*look)(void))
{
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (value)
            (void)setenv("TESSERA_PRODUCTS", value, 1);
        else
            (void)unsetenv("TESSERA_PRODUCTS");
        _exit(look());
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

enum { HAS_BLAS = 1, HAS_ONEDNN = 2, SAYS_BLAS = 4, SAYS_ONEDNN = 8, REFUSED = 16, KEPT = 32 };

static int look(void)
{
    (void)setenv("OPENBLAS_NUM_THREADS", "7", 1);
    if (tsr_kernels_init() != TSR_OK)
        return strstr(tsr_error_text(), "plain, openblas or onednn") ? REFUSED : REFUSED | KEPT;
    const char *said = tsr_kernels_products(), *threads = getenv("OPENBLAS_NUM_THREADS");
    return (tsr__blas() ? HAS_BLAS : 0) | (tsr__onednn() ? HAS_ONEDNN : 0) |
           (strstr(said, "OpenBLAS") ? SAYS_BLAS : 0) | (strstr(said, "oneDNN") ? SAYS_ONEDNN : 0) |
           (threads && strcmp(threads, "7") == 0 ? KEPT : 0);
}

static void choices(void **state)
{
    (void)state;
    int all = of_process(NULL, look), blas = of_process("openblas", look);
    assert_int_equal(of_process("", look), all);
    assert_int_equal(of_process("onednn", look), all);
    assert_int_equal(blas, all & ~(HAS_ONEDNN | SAYS_ONEDNN));
    assert_int_equal(of_process("plain", look), KEPT);
    for (int i = 0; i < 2; i++) /* what is there is told, and nothing else */
        assert_int_equal(!!((i ? blas : all) & HAS_BLAS), !!((i ? blas : all) & SAYS_BLAS));
    assert_int_equal(!!(all & HAS_ONEDNN), !!(all & SAYS_ONEDNN));
    static const char *const none[] = {"mkl", "OpenBLAS", "plain ", "onednn,openblas"};
    for (int i = 0; i < 4; i++)
        assert_int_equal(of_process(none[i], look), REFUSED);
}

/* A processor that cannot multiply bf16 leaves oneDNN out: oneDNN itself is told that it is one. */
static int look_at_old(void)
{
    (void)setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE", 1);
    return look();
}

static void old_processor(void **state)
{
    (void)state;
    assert_int_equal(of_process(NULL, look_at_old) & (HAS_ONEDNN | SAYS_ONEDNN), 0);
}

/* Whether OpenBLAS multiplies with its kernels of 2004; 2: there is no OpenBLAS, or it does not
 * say. */
static int is_slow(void)
{
    const char *(*core)(void);
    if (tsr_kernels_init() != TSR_OK)
        return 3;
    void *library = tsr__blas() ? dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD) : NULL;
    void *symbol = library ? dlsym(library, "openblas_get_corename") : NULL;
    memcpy(&core, &symbol, sizeof core);
    return symbol ? strcmp(core(), "Prescott") == 0 : 2;
}

static int is_slow_as_asked(void)
{
    (void)setenv("OPENBLAS_CORETYPE", "Prescott", 1);
    return is_slow();
}

/* A processor that is newer than OpenBLAS does not get kernels that are twenty years old; who asks
 * for them does. */
static void new_processor(void **state)
{
    (void)state;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        assert_int_not_equal(of_process(NULL, is_slow), 1);
    assert_int_not_equal(of_process(NULL, is_slow_as_asked), 0);
#endif
}

/* ---- values ---------------------------------------------------------------------------------- */

enum { SIDE = 70, PAD = 3, AREA = SIDE * (SIDE + PAD) };

static double value_of(uint16_t bf16)
{
    float f;
    uint32_t bits = (uint32_t)bf16 << 16;
    memcpy(&f, &bits, 4);
    return (double)f;
}

/* Of [-1, 1), a few zeros. */
static void fill(uint16_t *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        float f = test_below(20) ? (float)test_below(2048) / 1024 - 1 : 0;
        uint32_t bits;
        memcpy(&bits, &f, 4);
        x[i] = (uint16_t)(bits >> 16);
    }
}

struct problem {
    struct tsr_gemm g;
    uint16_t a[AREA], b[AREA];
    float before[AREA], c[AREA];
};

static void random_problem(struct problem *x)
{
    static const double scales[] = {0, 1, 0.125};
    struct tsr_gemm *g = &x->g;
    *g = (struct tsr_gemm){.ta = test_below(2),
                           .tb = test_below(2),
                           .m = 1 + test_below(SIDE),
                           .n = 1 + test_below(SIDE),
                           .k = 1 + test_below(SIDE),
                           .alpha = scales[1 + test_below(2)],
                           .beta = scales[test_below(3)]};
    g->lda = (g->ta ? g->m : g->k) + test_below(PAD + 1);
    g->ldb = (g->tb ? g->k : g->n) + test_below(PAD + 1);
    g->ldc = g->n + test_below(PAD + 1);
    fill(x->a, AREA);
    fill(x->b, AREA);
    for (int i = 0; i < AREA; i++) /* what is not read is no number */
        x->before[i] = g->beta == 0 ? NAN : (float)test_below(100) / 7;
    memcpy(x->c, x->before, sizeof x->c);
}

static void check_element(const struct problem *x, uint64_t i, uint64_t j)
{
    const struct tsr_gemm *g = &x->g;
    double sum = 0, size = 0, old = g->beta == 0 ? 0 : (double)x->before[i * g->ldc + j];
    for (uint64_t p = 0; p < g->k; p++) {
        double a = value_of(x->a[g->ta ? p * g->lda + i : i * g->lda + p]);
        double b = value_of(x->b[g->tb ? j * g->ldb + p : p * g->ldb + j]);
        sum += a * b;
        size += fabs(a * b);
    }
    double want = g->alpha * sum + g->beta * old, got = (double)x->c[i * g->ldc + j];
    double allowed = ldexp((double)g->k + 2, -24) * (g->alpha * size + fabs(g->beta * old));
    if (!(fabs(got - want) <= allowed))
        fail_msg("%d%d %llu x %llu x %llu: (%llu, %llu) is %.9g, should be %.9g (+- %.2g)", g->ta,
                 g->tb, (unsigned long long)g->m, (unsigned long long)g->n,
                 (unsigned long long)g->k, (unsigned long long)i, (unsigned long long)j, got, want,
                 allowed);
}

static void of_bf16(void **state)
{
    (void)state;
    static struct problem x, again;
    if (!tsr__onednn())
        skip();
    for (int round = 0; round < 1500; round++) {
        random_problem(&x);
        again = x;
        assert_true(tsr__gemm_bf16(&x.g, x.a, x.b, x.c));
        assert_true(tsr__gemm_bf16(&again.g, again.a, again.b, again.c));
        assert_memory_equal(x.c, again.c, sizeof x.c);
        for (uint64_t at = 0; at < AREA; at++) {
            uint64_t i = at / x.g.ldc, j = at % x.g.ldc;
            if (i < x.g.m && j < x.g.n)
                check_element(&x, i, j);
            else /* beside the result nothing is written */
                assert_memory_equal(&x.c[at], &x.before[at], 4);
        }
    }
}

/* The place of operands changes no bit, as it differs from rank to rank. */
static void anywhere(void **state)
{
    (void)state;
    static struct problem x;
    static uint16_t a[AREA + 32], b[AREA + 32];
    static float c[AREA + 16];
    if (!tsr__onednn())
        skip();
    for (int round = 0; round < 200; round++) {
        uint64_t by = 1 + test_below(31), by_c = 1 + test_below(15);
        random_problem(&x);
        memcpy(a + by, x.a, sizeof x.a);
        memcpy(b + 32 - by, x.b, sizeof x.b);
        memcpy(c + by_c, x.before, sizeof x.before);
        assert_true(tsr__gemm_bf16(&x.g, x.a, x.b, x.c));
        assert_true(tsr__gemm_bf16(&x.g, a + by, b + 32 - by, c + by_c));
        assert_memory_equal(x.c, c + by_c, sizeof x.c);
    }
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { THREADS = 4, WIDTH = 300 };

static uint16_t shared_a[WIDTH * WIDTH], shared_b[WIDTH * WIDTH];

static void *multiply(void *c)
{
    const struct tsr_gemm g = {.m = WIDTH,
                               .n = WIDTH,
                               .k = WIDTH,
                               .lda = WIDTH,
                               .ldb = WIDTH,
                               .ldc = WIDTH,
                               .alpha = 1,
                               .tb = true};
    return tsr__gemm_bf16(&g, shared_a, shared_b, c) ? c : NULL;
}

static int threads_of_process(void)
{
    int n = 0;
    DIR *all = opendir("/proc/self/task");
    if (!all)
        return -1;
    for (struct dirent *e = readdir(all); e; e = readdir(all))
        n += e->d_name[0] != '.';
    (void)closedir(all);
    return n;
}

/* How many there are in the eyes of a new one, which multiplies first if it is given a result. */
static void *count(void *c)
{
    static int n;
    n = !c || multiply(c) ? threads_of_process() : -1;
    return &n;
}

static int count_in_thread(float *c)
{
    pthread_t thread;
    void *n = NULL;
    if (pthread_create(&thread, NULL, count, c) != 0 || pthread_join(thread, &n) != 0)
        return -1;
    return *(int *)n;
}

static int threads_at_start; /* a sanitizer's included */

/* New threads, as many as there are ranks: the bits are those of one alone, and none of them has
 * started others to help. */
static void of_threads(void **state)
{
    (void)state;
    static float c[THREADS + 1][WIDTH * WIDTH];
    pthread_t threads[THREADS];
    if (!tsr__onednn())
        skip();
    fill(shared_a, WIDTH * WIDTH);
    fill(shared_b, WIDTH * WIDTH);
    assert_non_null(multiply(c[THREADS]));
    assert_true(threads_at_start > 0);
    assert_int_equal(count_in_thread(c[0]), threads_at_start);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, multiply, c[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        void *done = NULL;
        assert_int_equal(pthread_join(threads[i], &done), 0);
        assert_non_null(done);
        assert_memory_equal(c[i], c[THREADS], sizeof c[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(of_bf16), cmocka_unit_test(anywhere),
                                       cmocka_unit_test(of_threads)};
    const struct CMUnitTest first[] = {cmocka_unit_test(choices), cmocka_unit_test(old_processor),
                                       cmocka_unit_test(new_processor)};
    if (cmocka_run_group_tests_name("kernels: which products", first, NULL, NULL) != 0)
        return 1;
    threads_at_start = count_in_thread(NULL);
    (void)setenv("OMP_NUM_THREADS", "4", 1); /* what a user may have said for other programs */
    if (tsr_kernels_init() != TSR_OK)
        return 1;
    return cmocka_run_group_tests_name("kernels: products of bf16", tests, NULL, NULL);
}
