/* test_operands.c: the memory that operands of a kernel under test have on a GPU
 * (tests/gpu/operands.c), on the stand-ins: pinned, in aligned pieces that do not overlap and are
 * given back, and kernels that run on it.
 */
#define TSR_TEST_CUDA 1
#include "tests/kernels/kernels_testing.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/standin/shim.h"
#include "tests/standin/standin.h"

enum { MIB = 1 << 20, ALL = 256, SMS = 7 };

static void is_refused(void **state)
{
    (void)state;
    tsr_standin_fail("cudaHostAlloc", 1, cudaErrorMemoryAllocation);
    assert_null(tsr_operands_new(1));
    assert_false(tsr_standin_left_error());
}

static void pieces(void **state)
{
    (void)state;
    unsigned char *at[ALL];
    for (int i = 0; i < ALL; i++) {
        at[i] = tsr_operands_new(MIB - (size_t)i % 256);
        assert_non_null(at[i]);
        assert_int_equal((uintptr_t)at[i] % 256, 0);
        assert_int_equal(tsr_standin_space_of(at[i], MIB), TSR_STANDIN_PINNED);
        memset(at[i], i, MIB);
    }
    assert_null(tsr_operands_new(1));
    for (int i = 0; i < ALL; i++)
        for (size_t k = 0; k < MIB; k += 4095)
            assert_int_equal(at[i][k], i);
    tsr_operands_free(at[3]);
    assert_ptr_equal(tsr_operands_new(1), at[3]);
    assert_ptr_equal(tsr_operands_new(MIB - 256), at[3] + 256);
    tsr_operands_free(at[3]);
    tsr_operands_free(at[3] + 256);
    for (int i = ALL; i-- > 0;) /* in an order in which nothing joins at once */
        if (i != 3)
            tsr_operands_free(at[i]);
    void *whole = tsr_operands_new((size_t)ALL * MIB);
    assert_ptr_equal(whole, at[0]);
    tsr_operands_free(whole);
    tsr_operands_free(NULL);
    assert_null(tsr_operands_new((size_t)ALL * MIB + 1));
}

static void kernels_run_on_it(void **state)
{
    (void)state;
    struct test_call t;
    test_open(&t, "silu");
    int x = test_input(&t, 0, TSR_F32, 1000), y = test_output(&t, 1, TSR_F32, 1000);
    assert_int_equal(tsr_standin_space_of(t.operands[x].block, 1), TSR_STANDIN_PINNED);
    test_run(&t);
    /* launches have the shape that they have in a run on this device */
    const struct tsr_cuda_context *context = t.call.context;
    int shared = 0;
    assert_int_equal(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
                     cudaSuccess);
    assert_int_equal(context->n_sms, SMS);
    assert_int_equal(context->shared, shared);
    for (uint64_t i = 0; i < 1000; i++) {
        double v = test_get(&t, x, i);
        test_near(&t, y, i, v / (1 + exp(-v)), 2);
    }
    test_close(&t);
}

/* What a GPU refuses ends a kernel on the stand-ins, too: words of 4, 8 and 16 bytes elsewhere. */
static void misaligned_words_end_the_process(void **state)
{
    _Alignas(16) static unsigned char memory[48];
    (void)state;
    for (int i = 0; i < 8; i++) {
        int status = 0, word = 2 << i / 2, shift = i % 2 ? word / 2 : word;
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            const struct rlimit no_core = {0, 0};
            (void)setrlimit(RLIMIT_CORE, &no_core);
            if (word == 16)
                tsr_shim_copy_ahead(memory, memory + shift);
            else
                tsr_shim_check_aligned(memory + shift, (size_t)word);
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(WIFSIGNALED(status) ? WTERMSIG(status) : 0, shift < word ? SIGABRT : 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_refused), cmocka_unit_test(pieces),
                                       cmocka_unit_test(kernels_run_on_it),
                                       cmocka_unit_test(misaligned_words_end_the_process)};
    struct tsr_standin_config config = tsr_standin_default();
    config.sms = SMS;
    tsr_standin_configure(&config);
    return cmocka_run_group_tests_name("CUDA: operands", tests, NULL, NULL);
}
