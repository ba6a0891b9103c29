/* test_rules_reduction.c: what a reduction allocates, divides, sums and waits for (R153-R173).
 *
 * Layers of S = 53 padded elements on 4 ranks, 106 on 2; the root 66 and 132.
 */
#include "tests/rules/rules_order.h"

enum { S = 53, W = 4 };

static const struct rig_setup four = {.shards = W};
static const struct rig_setup hsdp = {.shards = W, .replicas = 2};
static const struct tsr_wrap_options bf16_f32 = {.mp = {.param = TSR_BF16, .reduce = TSR_F32}};
static const struct tsr_wrap_options bf16 = {.mp = {.param = TSR_BF16}};

static void start(struct rig *r, struct rig_setup setup, const struct tsr_wrap_options *options)
{
    rig_ready(r, setup, options, options);
}

static const char *stream_of(struct rig *r, size_t instr)
{
    return tsr_engine_tables(r->e)->streams[rig_at(r, instr)->stream].name;
}

static size_t scatter(struct rig *r, const char *group)
{
    return RIG_FIND(r, 0, .kind = TSR_REDUCE_SCATTER, .group = group);
}

/* R153, R154: input on compute, output on the reduce-scatter stream, which waits (W11). */
static void where_buffers_are_made(void **state)
{
    (void)state;
    struct rig r;
    start(&r, four, NULL);
    rig_step(&r);
    size_t in =
        RIG_FIND(&r, 0, .kind = TSR_ALLOC, .category = "Reduce Scatter", .group = "layers.1");
    size_t out =
        RIG_FIND(&r, 0, .kind = TSR_ALLOC, .category = "Sharded Grad", .group = "layers.1");
    size_t cat = RIG_FIND(&r, 0, .kind = TSR_OP, .work = "chunk_cat", .group = "layers.1");
    size_t rs = scatter(&r, "layers.1");
    assert_string_equal(stream_of(&r, in), "default");
    assert_string_equal(stream_of(&r, cat), "default");
    assert_string_equal(stream_of(&r, out), "reduce_scatter");
    assert_string_equal(stream_of(&r, rs), "reduce_scatter");
    assert_true(in < cat && cat < out && out < rs);
    assert_true(rig_ordered(&r, cat, rs));
    assert_int_equal(rig_at(&r, in)->bytes, W * S * 4);
    assert_int_equal(rig_at(&r, out)->bytes, S * 4);
    rig_close(&r);
}

/* R155: every gradient enters in group order, unpadded; the result is the padded matrix. */
static void copy_in(void **state)
{
    (void)state;
    struct rig r;
    start(&r, four, &bf16_f32);
    rig_step(&r);
    const struct tsr_instr *cat =
        rig_at(&r, RIG_FIND(&r, 0, .kind = TSR_OP, .work = "chunk_cat", .group = "layers.1"));
    static const uint64_t grads[] = {8 * 2, 96 * 2, 12 * 2, 96 * 2};
    uint64_t n = 0;
    for (uint32_t k = 0; k < cat->n_operands; k++)
        if (cat->operands[k].access == TSR_READ) {
            assert_int_equal(cat->operands[k].bytes, grads[n]);
            n++;
        }
    assert_int_equal(n, 4);
    assert_int_equal(cat->work->bytes_read, 2 * (8 + 96 + 12 + 96));
    assert_int_equal(cat->work->bytes_written, 4 * W * S); /* cast on the fly */
    assert_int_equal(cat->operands[cat->n_operands - 1].bytes, 4 * W * S);
    rig_close(&r);
}

/* R156, R157: one input stays, until the next reduction has waited for it (W9). */
static void input_is_kept_until_the_next(void **state)
{
    (void)state;
    struct rig r;
    start(&r, four, NULL);
    rig_step(&r);
    size_t in2 =
        RIG_FIND(&r, 0, .kind = TSR_ALLOC, .category = "Reduce Scatter", .group = "layers.2");
    size_t in1 =
        RIG_FIND(&r, 0, .kind = TSR_ALLOC, .category = "Reduce Scatter", .group = "layers.1");
    size_t freed = rig_freed(&r, rig_at(&r, in2)->buffer, in2);
    size_t post = r.events[rig_event(&r, "post_backward g=layers.1", 0)].at;
    assert_true(post < freed && freed < in1);
    size_t cat1 = RIG_FIND(&r, 0, .kind = TSR_OP, .work = "chunk_cat", .group = "layers.1");
    assert_true(rig_ordered(&r, scatter(&r, "layers.2"), cat1));
    for (size_t i = 0; i < r.now.n_instrs; i++)
        assert_true(rig_level(&r, i, TSR_CAT_REDUCE_SCATTER) <= 4 * W * 66);
    rig_close(&r);
}

/* R159: one flat buffer, views at padded offsets: norm at 0, up at 2, bias at 26, down at 29. */
static void gradients_are_views(void **state)
{
    (void)state;
    struct rig r;
    struct rig_setup s = four;
    s.optimizer = TSR_OPT_ADAMW_LOOP;
    start(&r, s, NULL);
    rig_step(&r);
    size_t out =
        RIG_FIND(&r, 0, .kind = TSR_ALLOC, .category = "Sharded Grad", .group = "layers.1");
    assert_int_equal(rig_at(&r, out)->bytes, 4 * S);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALLOC, .category = "Sharded Grad"), 4);
    /* it goes when the last of its views goes: at the next zero_grad, not before */
    assert_true(rig_freed(&r, rig_at(&r, out)->buffer, out) == SIZE_MAX);
    uint32_t buffer = rig_at(&r, out)->buffer;
    rig_step(&r);
    size_t freed = rig_freed(&r, buffer, 0);
    assert_true(freed < r.now.n_instrs);
    assert_int_equal(rig_at(&r, freed)->origin.phase, TSR_PHASE_ZERO_GRAD);
    rig_close(&r);
}

struct divide {
    uint32_t shards, replicas;
    double factor;
    bool force;
    tsr_dtype reduce;
    int rs_op, ar_op;
    double premul;
    const char *pre, *post; /* as in the event */
};

static void check_divide(const struct divide *d)
{
    struct rig r;
    char query[128];
    struct tsr_wrap_options o = {.mp = {.reduce = d->reduce}};
    rig_open(&r, (struct rig_setup){.shards = d->shards, .replicas = d->replicas});
    rig_wrap(&r, &o, &o);
    if (d->factor != 0)
        rig_ok(tsr_set_gradient_divide_factor(r.e, rig_module(&r, "layers.1"), d->factor));
    rig_ok(tsr_set_force_sum(r.e, rig_module(&r, "layers.1"), d->force));
    rig_start(&r);
    rig_step(&r);
    const struct tsr_instr *rs = rig_at(&r, scatter(&r, "layers.1"));
    assert_int_equal(rs->reduce_op, d->rs_op);
    assert_true(rs->factor == d->premul);
    if (d->replicas) {
        size_t ar = RIG_FIND(&r, 0, .kind = TSR_ALL_REDUCE, .group = "layers.1");
        assert_int_equal(rig_at(&r, ar)->reduce_op, d->ar_op);
    }
    snprintf(query, sizeof query, "reduce g=layers.1 pre_div=%s post_div=%s", d->pre, d->post);
    assert_int_equal(rig_count(&r, query), 1);
    int divisions = (strcmp(d->pre, "null") && strcmp(d->pre, "1")) +
                    (strcmp(d->post, "null") && strcmp(d->post, "1"));
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_OP, .work = "div", .group = "layers.1"), divisions);
    rig_close(&r);
}

enum { SUM = TSR_REDUCE_SUM, AVG = TSR_REDUCE_AVG, MUL = TSR_REDUCE_PREMUL_SUM };

/* R160-R163: which operation averages over W x R ranks. */
static void operations(void **state)
{
    (void)state;
    static const struct divide cases[] = {
        {4, 0, 0, false, TSR_F32, AVG, 0, 0, "null", "null"},
        {4, 2, 0, false, TSR_F32, AVG, AVG, 0, "null", "null"},
        {4, 2, 0, false, TSR_BF16, AVG, AVG, 0, "null", "null"},
        {4, 0, 4, false, TSR_F32, AVG, 0, 0, "null", "null"},
        {4, 2, 4, false, TSR_F32, AVG, SUM, 0, "null", "null"},
        {4, 0, 8, false, TSR_F32, MUL, 0, 0.125, "null", "null"},
        {4, 2, 2, false, TSR_F32, MUL, SUM, 0.5, "null", "null"},
        {4, 0, 0, true, TSR_F32, SUM, 0, 0, "null", "4"},
        {4, 2, 0, true, TSR_F32, SUM, SUM, 0, "null", "8"},
        {4, 0, 3, true, TSR_F32, SUM, 0, 0, "null", "3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_divide(&cases[i]);
}

/* R164: fp16: a power of two before, the rest after. */
static void half_precision_divides_twice(void **state)
{
    (void)state;
    static const struct {
        uint32_t shards, replicas;
        const char *pre, *post;
    } n[] = {{2, 0, "2", "1"}, {3, 0, "2", "1.5"}, {4, 0, "2", "2"}, {6, 0, "4", "1.5"},
             {8, 0, "4", "2"}, {8, 2, "4", "4"},   {8, 4, "8", "4"}, {2, 2, "2", "2"}};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        struct divide d = {n[i].shards, n[i].replicas, 0, false,    TSR_F16,
                           SUM,         SUM,           0, n[i].pre, n[i].post};
        check_divide(&d);
    }
}

/* R164: the division before is of the input, on the reduce-scatter stream; after, of the output. */
static void where_it_divides(void **state)
{
    (void)state;
    struct rig r;
    struct tsr_wrap_options o = {.mp = {.reduce = TSR_F16}};
    start(&r, four, &o);
    rig_step(&r);
    size_t pre = RIG_FIND(&r, 0, .kind = TSR_OP, .work = "div", .group = "layers.1");
    size_t post = RIG_FIND(&r, 1, .kind = TSR_OP, .work = "div", .group = "layers.1");
    size_t rs = scatter(&r, "layers.1");
    assert_true(pre < rs && rs < post);
    assert_string_equal(stream_of(&r, pre), "reduce_scatter");
    assert_string_equal(stream_of(&r, post), "reduce_scatter");
    assert_int_equal(rig_at(&r, pre)->work->bytes_written, 2 * W * S);
    assert_int_equal(rig_at(&r, post)->work->bytes_written, 2 * S);
    rig_close(&r);
}

/* R165: a factor is of one module. */
static void factor_is_not_inherited(void **state)
{
    (void)state;
    struct rig r;
    start(&r, four, NULL);
    rig_ok(tsr_set_gradient_divide_factor(r.e, rig_module(&r, ""), 2));
    rig_step(&r);
    assert_int_equal(rig_count(&r, "reduce_scatter g=root op=premul_sum factor=0.5"), 1);
    assert_int_equal(rig_count(&r, "reduce_scatter op=avg"), 3);
    rig_close(&r);
}

/* R166, R171: reduce-scatter, then all-reduce on its own stream (W12); with a cast the buffer of
 * the all-reduce lives to the end of the backward. */
static void hsdp_reduces_twice(void **state)
{
    (void)state;
    struct rig r;
    start(&r, hsdp, &bf16);
    rig_step(&r);
    size_t rs = scatter(&r, "layers.1");
    size_t ar = RIG_FIND(&r, 0, .kind = TSR_ALL_REDUCE, .group = "layers.1");
    assert_string_equal(stream_of(&r, ar), "all_reduce");
    assert_true(rs < ar && rig_ordered(&r, rs, ar));
    assert_int_equal(rig_at(&r, ar)->bytes, 2 * S);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_REDUCE), 4);
    const struct tsr_operand *buffer = &rig_at(&r, ar)->operands[0];
    size_t freed = rig_freed(&r, buffer->buffer, ar);
    assert_true(freed > r.events[rig_event(&r, "finalize_backward g=root", 0)].at);
    size_t end = r.events[rig_event(&r, "final_callback", 0)].at;
    assert_int_equal(rig_level(&r, end, TSR_CAT_REDUCE_SCATTER_OUTPUT), 2 * 3 * S);
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_REDUCE_SCATTER_OUTPUT), 0);
    size_t opt = RIG_FIND(&r, 0, .kind = TSR_OP, .phase = "optimizer");
    assert_true(rig_ordered(&r, ar, opt)); /* W10 */
    rig_no_race(&r);
    rig_close(&r);
}

/* R167, R168: reduce-scatter only: partial sums, no gradient; then added before the all-reduce. */
static void partial_sums(void **state)
{
    (void)state;
    struct rig r;
    struct rig_setup s = hsdp;
    s.micro = 3;
    start(&r, s, NULL);
    rig_begin(&r);
    rig_ok(tsr_set_requires_all_reduce(r.e, rig_module(&r, ""), false, true));
    for (uint32_t m = 0; m < 2; m++) {
        rig_forward(&r, m);
        rig_backward(&r, m);
        assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_PARTIAL_REDUCE_OUTPUT),
                         4 * (3 * S + 66));
    }
    assert_int_equal(rig_count(&r, "partial_reduce res=save"), 4);
    assert_int_equal(rig_count(&r, "partial_reduce res=accumulate"), 4);
    assert_int_equal(rig_count(&r, "sharded_grad"), 0);
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_SHARDED_GRAD), 0);
    rig_ok(tsr_set_requires_all_reduce(r.e, rig_module(&r, ""), true, true));
    rig_forward(&r, 2);
    rig_backward(&r, 2);
    assert_int_equal(rig_count(&r, "all_reduce adds_partial=true"), 4);
    assert_int_equal(rig_level(&r, r.now.n_instrs, TSR_CAT_PARTIAL_REDUCE_OUTPUT), 0);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER), 3 * 4);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_ALL_REDUCE), 4);
    /* accumulate and the last sum: on the reduce-scatter stream */
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_OP, .work = "add_into", .stream = "reduce_scatter"),
                     8);
    rig_end(&r);
    rig_no_race(&r);
    rig_close(&r);
}

static void count_and_scale(struct tsr_engine *e, struct tsr_tensor *buffer, void *user)
{
    ++*(int *)user;
    tsr_emit_user_op(e, buffer, "user_scale", 1);
}

/* R169, R170: after the reduce-scatter or the all-reduce, on that stream or the user's own. */
static void hooks(void **state)
{
    (void)state;
    static const struct {
        uint32_t replicas;
        bool own;
        const char *stream;
    } cases[] = {{0, false, "all_reduce"}, {0, true, "user"}, {2, false, "all_reduce"}};
    for (size_t i = 0; i < 3; i++) {
        struct rig r;
        int n = 0;
        start(&r, (struct rig_setup){.shards = W, .replicas = cases[i].replicas}, NULL);
        rig_ok(tsr_set_all_reduce_hook(r.e, rig_module(&r, "layers.1"), count_and_scale, &n,
                                       cases[i].own));
        rig_step(&r);
        assert_int_equal(n, 1);
        size_t op = RIG_FIND(&r, 0, .kind = TSR_OP, .work = "user_scale");
        size_t before = cases[i].replicas
                            ? RIG_FIND(&r, 0, .kind = TSR_ALL_REDUCE, .group = "layers.1")
                            : scatter(&r, "layers.1");
        assert_string_equal(stream_of(&r, op), cases[i].stream);
        assert_true(rig_ordered(&r, before, op));
        assert_int_equal(rig_at(&r, op)->operands[0].bytes, 4 * S);
        assert_int_equal(rig_at(&r, op)->operands[0].access, TSR_READ_WRITE);
        assert_true(rig_ordered(&r, op, RIG_FIND(&r, 0, .kind = TSR_OP, .phase = "optimizer")));
        rig_step(&r);
        rig_no_race(&r);
        rig_close(&r);
    }
    struct rig r;
    start(&r, hsdp, NULL);
    rig_refused(tsr_set_all_reduce_hook(r.e, rig_module(&r, ""), count_and_scale, NULL, true),
                TSR_EVALUE, "stream cannot be set when using native HSDP");
    rig_close(&r);
}

/* R172: a second reduction adds, in the original dtype. */
static void second_reduction_adds(void **state)
{
    (void)state;
    struct rig r;
    struct rig_setup s = four;
    s.micro = 2;
    start(&r, s, &bf16);
    rig_step(&r);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_OP, .work = "accumulate_sharded_grad"), 4);
    size_t add =
        RIG_FIND(&r, 0, .kind = TSR_OP, .work = "accumulate_sharded_grad", .group = "layers.2");
    assert_int_equal(rig_at(&r, add)->work->dtype, TSR_F32);
    assert_int_equal(rig_at(&r, add)->work->bytes_written, 4 * S);
    assert_int_equal(RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER), 8);
    rig_no_race(&r);
    rig_close(&r);
}

/* R161, R173: one shard rank: a copy, divided by the factor exactly once, however it is summed. */
static void one_rank_divides_once(void **state)
{
    (void)state;
    static const struct {
        double factor;
        bool force;
        tsr_dtype reduce;
        int divisions;
    } cases[] = {{0, false, TSR_F32, 0},
                 {2, false, TSR_F32, 1},
                 {2, true, TSR_F32, 1},
                 {2, false, TSR_F16, 1}};
    for (size_t i = 0; i < 4; i++) {
        struct rig r;
        struct tsr_wrap_options o = {.mp = {.reduce = cases[i].reduce}};
        rig_open(&r, (struct rig_setup){.shards = 1});
        rig_wrap(&r, &o, &o);
        rig_ok(tsr_set_gradient_divide_factor(r.e, rig_module(&r, "layers.1"), cases[i].factor));
        rig_ok(tsr_set_force_sum(r.e, rig_module(&r, "layers.1"), cases[i].force));
        rig_start(&r);
        rig_step(&r);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_REDUCE_SCATTER), 0);
        assert_int_equal(
            RIG_COUNT(&r, .kind = TSR_COPY, .work = "reduce_scatter_copy", .group = "layers.1"), 1);
        assert_int_equal(RIG_COUNT(&r, .kind = TSR_OP, .work = "div", .group = "layers.1"),
                         cases[i].divisions);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_buffers_are_made),
        cmocka_unit_test(copy_in),
        cmocka_unit_test(input_is_kept_until_the_next),
        cmocka_unit_test(gradients_are_views),
        cmocka_unit_test(operations),
        cmocka_unit_test(half_precision_divides_twice),
        cmocka_unit_test(where_it_divides),
        cmocka_unit_test(factor_is_not_inherited),
        cmocka_unit_test(hsdp_reduces_twice),
        cmocka_unit_test(partial_sums),
        cmocka_unit_test(hooks),
        cmocka_unit_test(second_reduction_adds),
        cmocka_unit_test(one_rank_divides_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
