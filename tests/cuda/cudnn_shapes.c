/* cudnn_shapes.c: cuDNN's own frontend looks at the graphs that exec/cuda/cudnn/cudnn_attention.cpp
 * makes, as if for an H200: shapes of real models are taken, forward and backward, and what it
 * cannot do is refused with a reason. Needs cuDNN, but no GPU.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "exec/cuda/cudnn/cudnn_attention.h"

enum { H200 = 90 };

/* q, k and v (and their gradients) side by side in one row, or each in its own tensor. */
static struct tsr_cudnn_shape shape(uint64_t batch, uint64_t heads, uint64_t kv_heads, uint64_t seq,
                                    uint64_t d, bool packed)
{
    struct tsr_cudnn_shape s = {.batch = batch,
                                .heads = heads,
                                .kv_heads = kv_heads,
                                .queries = seq,
                                .keys = seq,
                                .d = d,
                                .lse_row = seq,
                                .causal = 1,
                                .scale = 0.125};
    for (int i = 0; i < TSR_ATTENTION_TENSORS; i++) {
        bool of_keys = i == TSR_ATTENTION_K || i == TSR_ATTENTION_V || i == TSR_ATTENTION_GK ||
                       i == TSR_ATTENTION_GV;
        bool dense = i == TSR_ATTENTION_OUT || i == TSR_ATTENTION_G;
        s.head[i] = d;
        s.row[i] = packed && !dense ? (heads + 2 * kv_heads) * d : (of_keys ? kv_heads : heads) * d;
    }
    return s;
}

static void check(struct tsr_cudnn_shape s, bool wanted)
{
    char why[TSR_ATTENTION_TEXT] = "";
    for (s.backward = 0; s.backward < 2; s.backward++)
        for (s.half = 0; s.half < 2; s.half++) {
            int refused = tsr_attention_validate(H200, &s, why);
            if ((refused == 0) != wanted)
                fail_msg("%llu heads of %llu, %s: %s", (unsigned long long)s.heads,
                         (unsigned long long)s.d, s.backward ? "backward" : "forward",
                         refused ? why : "taken");
            if (refused)
                assert_true(strlen(why) > 0);
        }
}

static void taken(void **state)
{
    (void)state;
    static const uint64_t models[][5] = {
        {1, 32, 8, 8192, 128}, {2, 32, 8, 8192, 64},  {16, 12, 12, 1024, 64},
        {4, 25, 25, 1024, 64}, {1, 64, 8, 4096, 128}, {3, 4, 2, 200, 32},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int packed = 0; packed < 2; packed++) {
            const uint64_t *m = models[i];
            struct tsr_cudnn_shape s = shape(m[0], m[1], m[2], m[3], m[4], packed);
            check(s, true);
            s.causal = 0;
            check(s, true);
            s.causal = 1;
            s.deterministic = 1;
            check(s, true);
            s.lse_row = s.queries + 32; /* padded rows; backward takes them from cuDNN 9.26 on */
            char why[TSR_ATTENTION_TEXT];
            assert_int_equal(tsr_attention_validate(H200, &s, why), 0);
        }
}

static void refused(void **state)
{
    (void)state;
    check(shape(1, 4, 4, 64, 12, false), false);
    check(shape(1, 5, 3, 64, 64, false), false);
}

/* Without a GPU it does not start, and says why. With one there is more to be seen. */
static void start(void **state)
{
    (void)state;
    char why[TSR_ATTENTION_TEXT] = "";
    struct tsr_cuda_attention *attention;
    int n = 0;
    if (cudaGetDeviceCount(&n) == cudaSuccess && n > 0) {
        assert_int_equal(tsr_attention_create(H200, &attention, why), 0);
        tsr_attention_destroy(attention);
        return;
    }
    assert_int_not_equal(tsr_attention_create(H200, &attention, why), 0);
    assert_null(attention);
    assert_non_null(strstr(why, "cuDNN does not start"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(taken), cmocka_unit_test(refused),
                                       cmocka_unit_test(start)};
    return cmocka_run_group_tests_name("cuDNN: shapes", tests, NULL, NULL);
}
