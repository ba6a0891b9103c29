/* test_gather_extension.c: a parameter that travels as eight-bit data and one scale per rank (an
 * all-gather extension, section 2.11): bytes, kernels, how long the raw outputs live, refusals.
 */
#include "tests/rules/rules_order.h"

enum { W = 4, NORM = 8, UP = 12 * 8, BIAS = 12, DOWN = 8 * 12, SCALE = 4 };

static int data_and_scale(void *user, uint64_t numel, struct tsr_gather_input out[4])
{
    const uint64_t *wrong = user;
    out[0] = (struct tsr_gather_input){wrong ? *wrong : numel, TSR_U8};
    if (wrong)
        return 1;
    out[1] = (struct tsr_gather_input){1, TSR_F32};
    return 2;
}

static const struct tsr_gather_extension eight_bit = {.pre = data_and_scale, .post = "dequantize"};
static const struct tsr_gather_extension eight_bit_freed = {
    .pre = data_and_scale, .post = "dequantize", .free_after_post = true};

static void start(struct rig *r, struct rig_setup setup, const struct tsr_wrap_options *options,
                  const struct tsr_gather_extension *extension)
{
    rig_open(r, setup);
    rig_wrap(r, options, options);
    rig_ok(tsr_set_gather_extension(r->e, "**.up.weight", extension));
    rig_start(r);
}

static void raw_data_travels(void **state)
{
    (void)state;
    struct rig r;
    start(&r, (struct rig_setup){.shards = W}, NULL, &eight_bit);
    rig_step(&r);
    rig_step(&r);
    /* padded shards of the others in f32, of the extended one bytes and a scale */
    uint64_t per_rank = (NORM + BIAS + DOWN) / W * 4 + UP / W + SCALE;
    const struct tsr_instr *gather =
        rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_ALL_GATHER, .group = "layers.0"));
    assert_int_equal(gather->bytes, W * per_rank);
    size_t out =
        RIG_FIND(&r, 0, .kind = TSR_OP, .group = "layers.0", .work = "split_with_sizes_copy");
    size_t post = RIG_FIND(&r, 0, .kind = TSR_COPY, .group = "layers.0", .work = "dequantize");
    assert_true(post > out);
    assert_int_equal(rig_at(&r, post)->work->bytes_read, UP + W * SCALE);
    assert_int_equal(rig_at(&r, post)->work->bytes_written, UP * 4);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_COPY, .work = "dequantize"), 2 * 3);
    rig_no_race(&r);
    rig_close(&r);
}

/* Unsharded bytes of layers.0 after the gather of iteration 1's forward: with or without raw data.
 */
static uint64_t unsharded_after_post(enum tsr_version version,
                                     const struct tsr_gather_extension *extension)
{
    struct rig r;
    start(&r, (struct rig_setup){.shards = W, .version = version}, NULL, extension);
    rig_step(&r);
    rig_step(&r);
    size_t post = RIG_FIND(&r, 0, .kind = TSR_COPY, .group = "layers.0", .work = "dequantize");
    while (rig_at(&r, post)->kind != TSR_OP) /* the first kernel of the module */
        post++;
    uint64_t level = rig_level(&r, post, TSR_CAT_UNSHARDED_PARAM);
    rig_close(&r);
    return level;
}

static void raw_data_is_freed_early_in_2_15(void **state)
{
    (void)state;
    uint64_t kept = unsharded_after_post(TSR_TORCH_2_15, &eight_bit);
    uint64_t freed = unsharded_after_post(TSR_TORCH_2_15, &eight_bit_freed);
    assert_int_equal(kept - freed, UP + W * SCALE);
    assert_int_equal(unsharded_after_post(TSR_TORCH_2_11, &eight_bit_freed), kept);
}

static void mistakes_are_refused(void **state)
{
    (void)state;
    struct rig r;
    struct tsr_gather_extension half = {.pre = data_and_scale};
    rig_open(&r, (struct rig_setup){.shards = W});
    rig_wrap(&r, NULL, NULL);
    rig_refused(tsr_set_gather_extension(r.e, "**.up.weight", &half), TSR_EASSERT, "both");
    rig_refused(tsr_set_gather_extension(r.e, "**.sideways", &eight_bit), TSR_EVALUE, "sideways");
    rig_close(&r);

    struct tsr_wrap_options pair = {.reshard = TSR_RESHARD_INT, .reshard_int = 2};
    start(&r, (struct rig_setup){.shards = W}, &pair, &eight_bit);
    rig_begin(&r);
    rig_refused(tsr_step_forward(r.e, 0, NULL, false), TSR_EASSERT, "layers.0.up.weight");
    rig_close(&r);

    /* 12 rows on 5 ranks: the last one has 0 of 3 rows, and sends too little */
    uint64_t wrong = 5;
    struct tsr_gather_extension small = {
        .pre = data_and_scale, .post = "dequantize", .user = &wrong};
    start(&r, (struct rig_setup){.shards = 5, .rank = 4}, NULL, &small);
    rig_begin(&r);
    rig_refused(tsr_step_forward(r.e, 0, NULL, false), TSR_EASSERT, "padded size");
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(raw_data_travels),
        cmocka_unit_test(raw_data_is_freed_early_in_2_15),
        cmocka_unit_test(mistakes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
