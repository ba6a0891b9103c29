/* test_reset.c: a step that fails at any of its kernels, copies, collectives or allocations, and
 * tsr_reset_iter_state() behind it. Nothing stays that a step has made, whatever has been launched
 * is waited for, and the next steps do what they do otherwise. The short form fails every third of
 * them: another third in each form of the step.
 */
#include "engine/graph/host_memory.h"
#include "tests/rules/rules_order.h"
#include "tests/thorough.h"

enum { STRIDE = 3 }; /* of the short form */

static size_t
    to_fail; /* instructions that may fail before the one that does; SIZE_MAX: none does */

static bool may_fail(const struct tsr_instr *i)
{
    return i->kind == TSR_ALLOC || (i->kind >= TSR_COPY && i->kind <= TSR_RECV);
}

/* What fails has not run; an allocation's address is the engine's, which gives it back. */
static tsr_status submit(struct tsr_executor *x, const struct tsr_instr *instr)
{
    if (!may_fail(instr) || to_fail == SIZE_MAX || to_fail-- > 0)
        return rig_submit(x, instr);
    if (instr->kind == TSR_ALLOC)
        TSR_TRY(rig_submit(x, instr));
    return tsr_fail(TSR_ERUNTIME, "this one fails");
}

/* ---- programs -------------------------------------------------------------------------------- */

struct form {
    const char *name;
    struct rig_setup setup;
    struct tsr_wrap_options options;
    bool checkpoints, extends, no_sync;
    size_t first; /* instruction that fails first */
};

static int bytes_and_scale(void *user, uint64_t numel, struct tsr_gather_input out[4])
{
    (void)user;
    out[0] = (struct tsr_gather_input){numel, TSR_U8};
    out[1] = (struct tsr_gather_input){1, TSR_F32};
    return 2;
}

static void start(struct rig *r, const struct form *f)
{
    static const struct tsr_executor_ops ops = {.size = sizeof ops,
                                                .version = TSR_EXECUTOR_VERSION,
                                                .name = "failing rig",
                                                .submit = submit,
                                                .drain = rig_drain};
    static const struct tsr_gather_extension extension = {.pre = bytes_and_scale,
                                                          .post = "dequantize"};
    to_fail = SIZE_MAX;
    rig_open(r, f->setup);
    r->base.ops = &ops;
    rig_wrap(r, &f->options, &f->options);
    if (f->extends)
        rig_ok(tsr_set_gather_extension(r->e, "**.up.weight", &extension));
    if (f->checkpoints)
        rig_ok(tsr_checkpoint(r->e, rig_module(r, "layers.1"), false, true));
    rig_start(r);
    rig_step(r);
    rig_step(r);
}

static tsr_status step(struct rig *r, const struct form *f)
{
    uint32_t n_micro = r->setup.micro ? r->setup.micro : 1;
    rig_forget(r);
    TSR_TRY(tsr_step_begin(r->e, r->iteration++));
    for (uint32_t m = 0; m < n_micro; m++) {
        bool last = m + 1 == n_micro;
        TSR_TRY(f->no_sync ? tsr_set_requires_gradient_sync(r->e, rig_module(r, ""), last, true)
                           : tsr_set_requires_all_reduce(r->e, rig_module(r, ""), last, true));
        TSR_TRY(tsr_step_forward(r->e, m, NULL, false));
        TSR_TRY(tsr_step_backward(r->e, &m, 1));
    }
    TSR_TRY(tsr_step_optimizer(r->e));
    return tsr_step_end(r->e);
}

/* ---- what is held ---------------------------------------------------------------------------- */

struct held {
    uint64_t device[TSR_N_CATEGORIES], pinned, host;
};

static struct held held(const struct rig *r)
{
    struct held h = {.pinned = 0};
    struct tsr_host_level level = {0};
    struct tsr_host_peak peak;
    for (int c = 0; c < TSR_N_CATEGORIES; c++)
        h.device[c] = rig_level(r, r->now.n_instrs, (enum tsr_category)c);
    rig_ok(tsr_host_replay(&level, &r->all, &peak));
    h.pinned = peak.end.pinned;
    h.host = peak.end.host;
    return h;
}

/* Inputs are the loop's, which has them until the next ones come. What a direct gather has retired
 * waits for the next gather. */
static void nothing_of_the_step(const struct rig *r, const struct form *f, size_t at)
{
    struct held h = held(r);
    for (int c = TSR_CAT_ALL_GATHER; c <= TSR_CAT_TEMP; c++)
        if (h.device[c] > 0 && c != TSR_CAT_OPT_STATE &&
            !(f->options.direct && c == TSR_CAT_UNSHARDED_PARAM))
            fail_msg("%s, failed at %zu: %llu bytes of %s stay", f->name, at,
                     (unsigned long long)h.device[c], tsr_category_name((enum tsr_category)c));
}

static void as_otherwise(const struct rig *r, const struct form *f, size_t at,
                         const struct held *clean)
{
    struct held h = held(r);
    for (int c = 0; c < TSR_N_CATEGORIES; c++)
        if (h.device[c] != clean->device[c])
            fail_msg("%s, failed at %zu: %llu bytes of %s, otherwise %llu", f->name, at,
                     (unsigned long long)h.device[c], tsr_category_name((enum tsr_category)c),
                     (unsigned long long)clean->device[c]);
    if (h.pinned != clean->pinned || h.host != clean->host)
        fail_msg("%s, failed at %zu: %llu pinned bytes and %llu of the host, otherwise %llu, %llu",
                 f->name, at, (unsigned long long)h.pinned, (unsigned long long)h.host,
                 (unsigned long long)clean->pinned, (unsigned long long)clean->host);
}

/* ---- every failure --------------------------------------------------------------------------- */

static size_t casts(struct rig *r)
{
    return RIG_COUNT(r, .kind = TSR_COPY, .work = "all_gather_cast");
}

/* False: the step has no instruction `at` that may fail. */
static bool fail_at(const struct form *f, size_t at, const struct held *clean, size_t want_casts,
                    const char *trace)
{
    struct rig r;
    start(&r, f);
    to_fail = at;
    bool failed = step(&r, f) != TSR_OK;
    if (failed) {
        size_t n_casts = casts(&r);
        rig_ok(tsr_reset_iter_state(r.e, rig_module(&r, "")));
        nothing_of_the_step(&r, f, at);
        rig_ok(step(&r, f));
        if (strcmp(rig_trace(&r, NULL, "AG W F RS"), trace) != 0)
            fail_msg("%s, failed at %zu: another order: %s", f->name, at, r.text);
        n_casts += casts(&r);
        assert_true(n_casts >= want_casts); /* a mirror that was not made is not fresh */
        rig_ok(step(&r, f));
        as_otherwise(&r, f, at, clean);
        rig_no_race(&r);
    }
    rig_close(&r);
    return failed;
}

static void fail_everywhere(void **state)
{
    const struct form *f = *state;
    struct rig r;
    char trace[sizeof r.text];
    start(&r, f);
    rig_ok(step(&r, f));
    struct held clean = held(&r);
    size_t n_casts = casts(&r);
    strcpy(trace, rig_trace(&r, NULL, "AG W F RS"));
    rig_close(&r);
    size_t at = f->first;
    while (fail_at(f, at, &clean, n_casts, trace))
        at += tests_stride(STRIDE);
    assert_true(at > 50);
}

int main(void)
{
    static struct form forms[] = {
        {.name = "plain", .setup = {.shards = 4}, .checkpoints = true},
        {.name = "direct", .setup = {.shards = 4}, .options.direct = true},
        {.name = "direct-bf16",
         .setup = {.shards = 4},
         .options = {.mp = {.param = TSR_BF16}, .direct = true}},
        {.name = "direct-mirror",
         .setup = {.shards = 4},
         .options = {.mp = {.param = TSR_BF16}, .direct = true, .mirror = true}},
        {.name = "offload-bf16",
         .setup = {.shards = 3, .rank = 2},
         .options = {.mp = {.param = TSR_BF16, .reduce = TSR_BF16}, .offload = TSR_OFFLOAD_CPU}},
        {.name = "f16",
         .setup = {.shards = 3, .rank = 2},
         .options.mp = {.param = TSR_F16, .reduce = TSR_F32}},
        {.name = "one", .setup = {.shards = 1}, .options.mp = {.param = TSR_BF16}},
        {.name = "one-offload", .setup = {.shards = 1}, .options.offload = TSR_OFFLOAD_CPU},
        {.name = "mirror-fused",
         .setup = {.shards = 1, .optimizer = TSR_OPT_ADAMW_FUSED},
         .options = {.mp = {.param = TSR_BF16}, .mirror = true}},
        {.name = "loop", .setup = {.shards = 2, .optimizer = TSR_OPT_ADAMW_LOOP}},
        {.name = "decoupled",
         .setup = {.shards = 7, .rank = 6, .optimizer = TSR_OPT_DECOUPLED_READ}},
        {.name = "eager", .setup = {.shards = 2, .eager = true}},
        {.name = "no-reduce",
         .setup = {.shards = 4, .micro = 2},
         .options.mp = {.param = TSR_BF16, .reduce = TSR_F32},
         .no_sync = true},
        {.name = "bf16",
         .setup = {.shards = 4},
         .options.mp = {.param = TSR_BF16, .reduce = TSR_F32}},
        {.name = "hybrid",
         .setup = {.shards = 2, .replicas = 2, .micro = 2},
         .options.reshard = TSR_RESHARD_TRUE},
        {.name = "two",
         .setup = {.shards = 4},
         .options = {.reshard = TSR_RESHARD_INT, .reshard_int = 2}},
        {.name = "offload", .setup = {.shards = 4}, .options.offload = TSR_OFFLOAD_CPU_PINNED},
        {.name = "extension", .setup = {.shards = 4}, .extends = true},
        {.name = "mirror",
         .setup = {.shards = 1},
         .options = {.mp = {.param = TSR_BF16}, .mirror = true}},
        {.name = "2.15", .setup = {.shards = 4, .version = TSR_TORCH_2_15}},
    };
    enum { N = sizeof forms / sizeof *forms };
    struct CMUnitTest tests[N];
    for (size_t i = 0; i < N; i++) {
        forms[i].setup.layers = 2;
        forms[i].first = i % tests_stride(STRIDE);
        tests[i] = (struct CMUnitTest)cmocka_unit_test_prestate(fail_everywhere, &forms[i]);
        tests[i].name = forms[i].name;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
