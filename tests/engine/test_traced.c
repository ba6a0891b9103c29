/* test_traced.c: traced models without files: a description by hand, played under several wrappers,
 * replayed, and refused where it cannot be played.
 */
#include "engine/replay/replay.h"
#include "engine/tessera.h"
#include "engine/traced/traced.h"
#include "tests/rules/rules_testing.h"

#include <string.h>

enum { STEPS = 8 };

/* ---- a model of two modules, by hand --------------------------------------------------------- */

#define OWN TSR_NO_ID
#define ALLOC(i, b)                                      \
    {                                                    \
        .kind = TSR_TRACED_ALLOC, .n = (i), .bytes = (b) \
    }
#define FREE(i, c)                                   \
    {                                                \
        .kind = TSR_TRACED_FREE, .n = (i), .of = (c) \
    }
#define KERNEL(r, k)                                                    \
    {                                                                   \
        .kind = TSR_TRACED_KERNEL, .n = 0, .param = (r), .n_reads = (k) \
    }
#define GRAD(p, i)                                                 \
    {                                                              \
        .kind = TSR_TRACED_GRAD, .n = (i), .of = OWN, .param = (p) \
    }
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct tsr_traced_event batch[] = {ALLOC(0, 64)};
static const struct tsr_traced_event embed[] = {ALLOC(0, 128), KERNEL(0, 1)};
static const struct tsr_traced_event block[] = {ALLOC(0, 256), KERNEL(1, 1)};
static const struct tsr_traced_event loss[] = {ALLOC(0, 4), KERNEL(0, 0)};
static const struct tsr_traced_event seed[] = {ALLOC(0, 4), KERNEL(0, 0)};
static const struct tsr_traced_event back_block[] = {ALLOC(0, 24), KERNEL(1, 1), GRAD(1, 0),
                                                     FREE(0, 3)};
static const struct tsr_traced_event back_root[] = {ALLOC(0, 128), KERNEL(0, 0), GRAD(0, 0)};
static const struct tsr_traced_event done[] = {FREE(0, 2), FREE(0, 4), FREE(0, 5)};
static const uint32_t reads[] = {0, 1};

enum { BATCH, NOTHING, EMBED, BLOCK, LOSS, SEED, BACK_BLOCK, BACK_ROOT, DONE, N_SEGMENTS };
#define SEGMENT(e, n, c)               \
    {                                  \
        COUNT(e), (e), reads, (n), (c) \
    }
static const struct tsr_traced_segment segments[N_SEGMENTS] = {
    [BATCH] = SEGMENT(batch, 1, BATCH),
    [NOTHING] = {0, NULL, NULL, 0, NOTHING},
    [EMBED] = SEGMENT(embed, 1, EMBED),
    [BLOCK] = SEGMENT(block, 1, BLOCK),
    [LOSS] = SEGMENT(loss, 1, LOSS),
    [SEED] = SEGMENT(seed, 1, SEED),
    [BACK_BLOCK] = SEGMENT(back_block, 1, BACK_BLOCK),
    [BACK_ROOT] = SEGMENT(back_root, 1, BACK_ROOT),
    [DONE] = SEGMENT(done, 0, NOTHING)};

static const struct tsr_traced_step steps[] = {{TSR_TRACED_INPUTS, OWN, BATCH, 0},
                                               {TSR_TRACED_ZERO_GRAD, OWN, NOTHING, 0},
                                               {TSR_TRACED_FORWARD, OWN, NOTHING, 0},
                                               {TSR_TRACED_PRE_FORWARD, 0, EMBED, 0},
                                               {TSR_TRACED_PRE_FORWARD, 1, BLOCK, 0},
                                               {TSR_TRACED_POST_FORWARD, 1, NOTHING, 0},
                                               {TSR_TRACED_POST_FORWARD, 0, NOTHING, 0},
                                               {TSR_TRACED_LOSS, OWN, LOSS, 0},
                                               {TSR_TRACED_BACKWARD, OWN, SEED, 0},
                                               {TSR_TRACED_PRE_BACKWARD, 0, NOTHING, 0},
                                               {TSR_TRACED_PRE_BACKWARD, 1, BACK_BLOCK, 0},
                                               {TSR_TRACED_POST_BACKWARD, 1, BACK_ROOT, 0},
                                               {TSR_TRACED_FINAL, OWN, DONE, 0},
                                               {TSR_TRACED_OPTIMIZER, OWN, NOTHING, 0},
                                               {TSR_TRACED_END, OWN, NOTHING, 0}};

static const struct tsr_traced_param params[] = {{"weight", 2, {8, 4}, TSR_F32, true},
                                                 {"block.weight", 1, {6}, TSR_F32, true}};
static const struct tsr_traced_place root_params[] = {{"weight", 0}},
                                     block_params[] = {{"weight", 1}};
static const struct tsr_traced_place root_children[] = {{"block", 1}};
static const struct tsr_traced_module modules[] = {
    {.name = "",
     .type = "Net",
     .params = root_params,
     .n_params = 1,
     .children = root_children,
     .n_children = 1},
    {.name = "block", .type = "Block", .params = block_params, .n_params = 1}};
static const struct tsr_traced_op ops[] = {{.name = "aten.mul.Tensor",
                                            .n_shapes = 1,
                                            .shapes = {{1, {6}}},
                                            .dtype = TSR_F32,
                                            .bytes_read = 24,
                                            .bytes_written = 24}};
static const bool hooked[] = {true, true};

static struct tsr_traced_model model_by_hand(void)
{
    const struct tsr_traced_steps list = {COUNT(steps), steps};
    return (struct tsr_traced_model){.hash = 42,
                                     .n_modules = COUNT(modules),
                                     .n_params = COUNT(params),
                                     .n_ops = COUNT(ops),
                                     .n_segments = N_SEGMENTS,
                                     .modules = modules,
                                     .params = params,
                                     .ops = ops,
                                     .segments = segments,
                                     .plain = {list, list},
                                     .hooked = hooked};
}

/* ---- engines --------------------------------------------------------------------------------- */

static void ok(tsr_status status)
{
    if (status != TSR_OK)
        fail_msg("%s", tsr_error_text());
}

struct side {
    struct tsr_recorder recorder;
    struct tsr_program program;
    struct tsr_engine *engine;
};

static void open_side(struct side *s, const struct tsr_traced_model *model, bool wraps,
                      uint32_t n_micro)
{
    tsr_program_init(&s->program, NULL);
    tsr_recorder_init(&s->recorder, &s->program);
    struct tsr_engine_config config = {.executor = &s->recorder.base,
                                       .mesh = {.n_dims = 1, .shape = {2}, .name = {"shard"}}};
    struct tsr_step_config step = {.batch = 1, .seq = 1, .n_micro = n_micro};
    ok(tsr_engine_create(&config, &s->engine));
    ok(tsr_model_traced(s->engine, model));
    struct tsr_module *root = tsr_module_root(s->engine);
    struct tsr_module *inner = tsr_module_find(s->engine, "block");
    if (wraps) {
        ok(tsr_fully_shard(s->engine, &inner, 1, NULL));
        ok(tsr_fully_shard(s->engine, &root, 1, NULL));
    }
    ok(tsr_step_configure(s->engine, &step));
    ok(tsr_engine_init_params(s->engine));
}

static void close_side(struct side *s)
{
    tsr_engine_destroy(s->engine);
    tsr_program_fini(&s->program);
}

static void begin_program(struct side *s)
{
    tsr_program_fini(&s->program);
    tsr_program_init(&s->program, tsr_engine_tables(s->engine));
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* What is replayed is what would have been emitted. */
static void test_traced__is_replayed(void **state)
{
    struct tsr_traced_model model = model_by_hand();
    struct side emits, replays;
    struct tsr_step_cache *cache;
    (void)state;
    ok(tsr_traced_check(&model));
    open_side(&emits, &model, true, 2);
    open_side(&replays, &model, true, 2);
    ok(tsr_step_cache_create(replays.engine, &cache));
    for (uint32_t i = 0; i < STEPS; i++) {
        begin_program(&emits);
        begin_program(&replays);
        ok(tsr_step_run(emits.engine, i));
        ok(tsr_step_run_cached(cache, i));
        assert_int_equal(tsr_program_hash(&emits.program), tsr_program_hash(&replays.program));
        assert_int_equal(tsr_program_offsets_hash(&emits.program),
                         tsr_program_offsets_hash(&replays.program));
    }
    tsr_step_cache_destroy(cache);
    close_side(&emits);
    close_side(&replays);
}

static uint64_t allocated_after(const struct tsr_traced_model *model, bool wraps, uint32_t n_micro,
                                uint32_t n_steps)
{
    struct side s;
    open_side(&s, model, wraps, n_micro);
    for (uint32_t i = 0; i < n_steps; i++)
        ok(tsr_step_run(s.engine, i));
    uint64_t allocated = tsr_engine_memory(s.engine).allocated;
    close_side(&s);
    return allocated;
}

/* Micro-batches are repeated, and nothing of them is left: gradients are added to those there are.
 */
static void test_traced__leaves_nothing__micro_batches(void **state)
{
    struct tsr_traced_model model = model_by_hand();
    (void)state;
    for (int wraps = 0; wraps < 2; wraps++) {
        uint64_t one = allocated_after(&model, wraps, 1, 2);
        assert_int_equal(allocated_after(&model, wraps, 3, 2), one);
        assert_int_equal(allocated_after(&model, wraps, 3, 5), one);
    }
}

/* ---- whose gradients ------------------------------------------------------------------------- */

enum { FILL, SUM };
#define RUN(op)                              \
    {                                        \
        .kind = TSR_TRACED_KERNEL, .n = (op) \
    }
static const struct tsr_traced_op sum_ops[] = {
    {.name = "aten.mul.Tensor", .n_shapes = 1, .shapes = {{1, {6}}}, .dtype = TSR_F32},
    {.name = "aten.add.Tensor",
     .n_shapes = 2,
     .shapes = {{2, {8, 4}}, {2, {8, 4}}},
     .dtype = TSR_F32}};

/* The weight of the root has three gradients, which come while the block's backward runs: two are
 * added into a new storage, or in place; then the third one. Storage 3 has another size, and 4 the
 * same size, and neither is added. */
static const struct tsr_traced_event new_sums[] = {
    ALLOC(0, 128), RUN(FILL),    ALLOC(1, 128), RUN(FILL),     ALLOC(2, 128), RUN(SUM),
    FREE(0, OWN),  FREE(1, OWN), ALLOC(3, 24),  RUN(FILL),     GRAD(1, 3),    FREE(0, 3),
    ALLOC(4, 128), RUN(FILL),    FREE(4, OWN),  ALLOC(5, 128), RUN(FILL),     ALLOC(6, 128),
    RUN(SUM),      FREE(2, OWN), FREE(5, OWN),  GRAD(0, 6)};
static const struct tsr_traced_event sums_in_place[] = {
    ALLOC(0, 128), RUN(FILL),  ALLOC(1, 128), RUN(FILL),     RUN(SUM),     FREE(1, OWN),
    ALLOC(2, 128), RUN(FILL),  RUN(SUM),      FREE(2, OWN),  ALLOC(3, 24), RUN(FILL),
    GRAD(1, 3),    FREE(0, 3), GRAD(0, 0),    ALLOC(4, 128), RUN(FILL),    FREE(4, OWN)};

static void check_owners(const struct tsr_traced_event *events, size_t n, uint32_t n_storages,
                         const char *owners)
{
    struct tsr_traced_segment changed[N_SEGMENTS];
    struct tsr_traced_model model = model_by_hand();
    memcpy(changed, segments, sizeof changed);
    changed[BACK_BLOCK] = (struct tsr_traced_segment){n, events, reads, n_storages, BACK_BLOCK};
    changed[BACK_ROOT] = (struct tsr_traced_segment){0, NULL, NULL, 0, NOTHING};
    model.segments = changed;
    model.ops = sum_ops;
    model.n_ops = COUNT(sum_ops);
    ok(tsr_traced_check(&model));
    struct side s;
    open_side(&s, &model, true, 1);
    for (uint32_t step = 0; step < 2; step++) {
        begin_program(&s);
        ok(tsr_step_run(s.engine, step));
        const char *at = owners;
        for (size_t i = 0; i < s.program.n_instrs; i++) {
            const struct tsr_instr *instr = &s.program.instrs[i];
            bool counts = instr->kind == TSR_ALLOC && instr->origin.hook == TSR_HOOK_NONE &&
                          instr->origin.phase == TSR_PHASE_BACKWARD &&
                          (instr->bytes == 128 || instr->bytes == 24);
            if (counts)
                assert_string_equal(s.program.tables->modules[instr->origin.module],
                                    *at++ == 'r' ? "" : "block");
        }
        assert_int_equal(*at, 0);
    }
    close_side(&s);
}

static void test_traced__gradients_are_of_the_module_with_the_parameter(void **state)
{
    (void)state;
    check_owners(new_sums, COUNT(new_sums), 7, "rrrbbrr");
    check_owners(sums_in_place, COUNT(sums_in_place), 5, "rrrbb");
}

/* Another trace is another program, even where it does the same. */
static void test_traced__hash_is_in_the_program(void **state)
{
    struct tsr_traced_model model = model_by_hand(), other = model_by_hand();
    struct side a, b;
    (void)state;
    other.hash++;
    open_side(&a, &model, true, 1);
    open_side(&b, &other, true, 1);
    begin_program(&a);
    begin_program(&b);
    ok(tsr_step_run(a.engine, 0));
    ok(tsr_step_run(b.engine, 0));
    assert_int_not_equal(tsr_program_hash(&a.program), tsr_program_hash(&b.program));
    close_side(&a);
    close_side(&b);
}

/* ---- kernels --------------------------------------------------------------------------------- */

enum { M = 1 << 20 };

static const struct {
    struct tsr_traced_op op;
    const char *name;
    uint8_t kind;
    uint64_t dims[4];
} kernels[] = {
    /* a sum in place of two tensors, with a number, with a row: of the shape that they have
       together, whatever the dtype of the first one is */
    {{"aten.add_.Tensor", 2, {{2, {8, 4}}, {2, {8, 4}}}, TSR_F32, false, 0, 256, 128},
     "add",
     TSR_OP_POINTWISE,
     {8, 4}},
    {{"aten.add.Tensor", 1, {{2, {8, 4}}}, TSR_F32, false, 0, 128, 128},
     "add_scalar",
     TSR_OP_POINTWISE,
     {8, 4}},
    {{"aten.mul.Tensor", 2, {{2, {8, 1}}, {2, {8, 4}}}, TSR_BF16, false, 0, 80, 128},
     "mul",
     TSR_OP_POINTWISE,
     {8, 4}},
    {{"aten.sub.Tensor", 2, {{2, {1, 64}}, {2, {64, 1}}}, TSR_F32, false, 0, 512, 16384},
     "sub_broadcast",
     TSR_OP_POINTWISE,
     {64, 64}},
    /* an operand that is repeated by its strides; a tensor with itself, and with a mask, is none */
    {{"aten.div.Scalar", 1, {{2, {8, 4}}}, TSR_F32, false, 0, 32, 128},
     "div_broadcast",
     TSR_OP_POINTWISE,
     {8, 4}},
    {{"aten.mul.Tensor", 2, {{2, {8, 4}}, {2, {8, 4}}}, TSR_F32, false, 0, 144, 128},
     "mul",
     TSR_OP_POINTWISE,
     {8, 4}},
    {{"aten.mul.Tensor", 2, {{2, {8, 4}}, {2, {8, 4}}}, TSR_F32, false, 0, 128, 128},
     "mul_scalar",
     TSR_OP_POINTWISE,
     {8, 4}},
    {{"aten.mul.Tensor", 2, {{2, {8, 4}}, {2, {8, 4}}}, TSR_F32, false, 0, 160, 128},
     "mul_scalar",
     TSR_OP_POINTWISE,
     {8, 4}},
    /* experts: rows, what is summed, or columns are cut */
    {{"aten._grouped_mm.default",
      3,
      {{2, {64, 8}}, {3, {4, 8, 6}}, {1, {4}}},
      TSR_BF16,
      false,
      1,
      M,
      M},
     "_grouped_mm",
     TSR_OP_GEMM,
     {16, 6, 8, 4}},
    {{"aten._grouped_mm.default",
      3,
      {{2, {8, 64}}, {2, {64, 6}}, {1, {4}}},
      TSR_BF16,
      false,
      1,
      M,
      M},
     "_grouped_mm",
     TSR_OP_GEMM,
     {8, 6, 16, 4}},
    {{"aten._grouped_mm.default",
      3,
      {{3, {4, 8, 6}}, {2, {6, 64}}, {1, {4}}},
      TSR_BF16,
      false,
      1,
      M,
      M},
     "_grouped_mm",
     TSR_OP_GEMM,
     {8, 16, 6, 4}},
    /* names that tables of measured kernels have */
    {{"aten._scaled_dot_product_efficient_attention.default",
      3,
      {{4, {2, 3, 8, 4}}, {4, {2, 3, 16, 4}}, {4, {2, 3, 16, 4}}},
      TSR_BF16,
      false,
      64,
      M,
      M},
     "efficient_attention",
     TSR_OP_ATTENTION,
     {2, 3, 3, 8}},
    {{"aten.native_layer_norm.default", 1, {{2, {8, 4}}}, TSR_BF16, false, 0, M, M},
     "layer_norm",
     TSR_OP_NORM,
     {8, 4}},
    /* in place and in backward; orders and counts; what is not known */
    {{"aten.hardswish_backward.default", 1, {{2, {8, 4}}}, TSR_BF16, false, 0, M, M},
     "hardswish_backward",
     TSR_OP_POINTWISE,
     {8, 4}},
    {{"aten.topk.default", 1, {{2, {8, 4}}}, TSR_BF16, false, 0, M, M},
     "topk",
     TSR_OP_REDUCTION,
     {8, 4}},
    {{"mine.hardswish.default", 1, {{2, {8, 4}}}, TSR_BF16, false, -1, M, M},
     "mine.hardswish.default",
     TSR_OP_GENERIC,
     {8, 4}}};

static void test_traced__kernels_are_those_of_the_cost_model(void **state)
{
    struct tsr_arena arena;
    (void)state;
    tsr_arena_init(&arena);
    for (size_t i = 0; i < COUNT(kernels); i++) {
        struct tsr_work work;
        assert_true(tsr__traced_work(&arena, &kernels[i].op, &work));
        assert_string_equal(work.name, kernels[i].name);
        assert_int_equal(work.op, kernels[i].kind);
        for (size_t k = 0; k < COUNT(kernels[i].dims); k++)
            assert_int_equal(work.dims[k], kernels[i].dims[k]);
    }
    tsr_arena_fini(&arena);
}

static void test_traced__is_refused__module_without_hooks(void **state)
{
    static const bool none[] = {true, false};
    struct tsr_traced_step marked[COUNT(steps)];
    struct tsr_traced_model model = model_by_hand();
    struct side s;
    (void)state;
    model.hooked = none;
    assert_int_equal(tsr_traced_check(&model), TSR_EVALUE); /* it has marks */
    memcpy(marked, steps, sizeof steps);
    marked[4] = marked[5] = (struct tsr_traced_step){TSR_TRACED_PRE_FORWARD, 0, BLOCK, 0};
    marked[5] = (struct tsr_traced_step){TSR_TRACED_POST_FORWARD, 0, NOTHING, 0};
    marked[10] = (struct tsr_traced_step){TSR_TRACED_PRE_BACKWARD, 0, BACK_BLOCK, 0};
    marked[11] = (struct tsr_traced_step){TSR_TRACED_POST_BACKWARD, 0, BACK_ROOT, 0};
    model.plain[0].steps = model.plain[1].steps = marked;
    ok(tsr_traced_check(&model));
    open_side(&s, &model, false, 1);
    close_side(&s);
    tsr_program_init(&s.program, NULL);
    tsr_recorder_init(&s.recorder, &s.program);
    struct tsr_engine_config config = {.executor = &s.recorder.base,
                                       .mesh = {.n_dims = 1, .shape = {2}, .name = {"shard"}}};
    ok(tsr_engine_create(&config, &s.engine));
    ok(tsr_model_traced(s.engine, &model));
    struct tsr_module *inner = tsr_module_find(s.engine, "block");
    ok(tsr_fully_shard(s.engine, &inner, 1, NULL));
    assert_int_equal(tsr_traced_check_wrapping(s.engine), TSR_EUNSUPPORTED);
    assert_non_null(strstr(tsr_error_text(), "'block' is wrapped, and had no hooks"));
    close_side(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_traced__is_replayed),
        cmocka_unit_test(test_traced__leaves_nothing__micro_batches),
        cmocka_unit_test(test_traced__gradients_are_of_the_module_with_the_parameter),
        cmocka_unit_test(test_traced__hash_is_in_the_program),
        cmocka_unit_test(test_traced__kernels_are_those_of_the_cost_model),
        cmocka_unit_test(test_traced__is_refused__module_without_hooks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
