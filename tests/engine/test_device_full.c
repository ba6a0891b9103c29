/* test_device_full.c: a step on a device that is too small for its cached segments: the allocator
 * waits for the device, gives the segments back, and goes on; or fails and says what it found.
 */
#include "tests/rules/rules_testing.h"

enum { LAYERS = 4 };

static void start(struct rig *r, struct tsr_allocator_config allocator)
{
    const struct tsr_llama_config model = {.hidden_size = 512,
                                           .intermediate_size = 1376,
                                           .n_layers = LAYERS,
                                           .n_heads = 8,
                                           .n_kv_heads = 4,
                                           .head_dim = 64,
                                           .vocab_size = 4000,
                                           .max_positions = 1024};
    const struct tsr_step_config step = {.batch = 2, .seq = 512, .n_micro = 1};
    const struct tsr_wrap_options options = {.mp = {.param = TSR_BF16, .reduce = TSR_F32}};
    char fqn[32];
    rig_engine(r, (struct rig_setup){.shards = 4, .allocator = allocator});
    rig_ok(tsr_model_llama(r->e, &model));
    for (int i = 0; i < LAYERS; i++) {
        snprintf(fqn, sizeof fqn, "model.layers.%d", i);
        rig_shard(r, fqn, &options);
    }
    rig_shard(r, "", &options);
    rig_ok(tsr_step_configure(r->e, &step));
    rig_ok(tsr_engine_init_params(r->e));
}

/* Peaks without a limit. */
static struct tsr_allocator_stats unlimited(struct tsr_allocator_config allocator)
{
    struct rig r;
    start(&r, allocator);
    for (int i = 0; i < 3; i++)
        rig_step(&r);
    struct tsr_allocator_stats stats = tsr_engine_memory(r.e);
    rig_close(&r);
    return stats;
}

static bool is_release(const struct tsr_instr *instr)
{
    return instr->kind == TSR_SEGMENT_FREE;
}

/* Before the first release of a run of releases: for each stream that had work since the last such
 * wait, RECORD and HOST_WAIT. Returns the number of streams waited for. */
static unsigned waits_before(struct rig *r, size_t release)
{
    unsigned n = 0;
    for (size_t i = release; i >= 2; i -= 2, n++) {
        const struct tsr_instr *wait = &r->all.instrs[i - 1], *record = &r->all.instrs[i - 2];
        if (wait->kind != TSR_HOST_WAIT)
            break;
        assert_int_equal(record->kind, TSR_RECORD);
        assert_int_equal(record->event, wait->event);
    }
    return n;
}

/* A stream with work after the last wait is waited for; an idle one is not. */
static unsigned streams_with_work(struct rig *r, size_t from, size_t to)
{
    bool busy[16] = {0};
    unsigned n = 0;
    for (size_t i = from; i < to; i++) {
        const struct tsr_instr *instr = &r->all.instrs[i];
        bool work = instr->kind == TSR_OP || instr->kind == TSR_COPY ||
                    instr->kind == TSR_ALL_GATHER || instr->kind == TSR_REDUCE_SCATTER;
        if (work && !busy[instr->stream]) {
            busy[instr->stream] = true;
            n++;
        }
    }
    return n;
}

/* Every run of releases is preceded by its waits; returns the number of runs, the most streams that
 * one waited for in *most. */
static unsigned check_releases(struct rig *r, unsigned *most)
{
    unsigned runs = 0;
    size_t last = 0;
    *most = 0;
    for (size_t i = 1; i < r->all.n_instrs; i++) {
        if (!is_release(&r->all.instrs[i]) || is_release(&r->all.instrs[i - 1]))
            continue;
        unsigned waits = waits_before(r, i);
        assert_int_equal(waits, streams_with_work(r, last, i));
        if (waits > *most)
            *most = waits;
        last = i;
        runs++;
    }
    return runs;
}

static void a_retry_waits_for_the_device_then_releases(void **state)
{
    (void)state;
    for (int expandable = 0; expandable < 2; expandable++) {
        struct tsr_allocator_config allocator = {.expandable_segments = expandable};
        struct tsr_allocator_stats free = unlimited(allocator);
        assert_true(free.peak_reserved > free.peak_allocated + (8 << 20));
        assert_int_equal(free.n_alloc_retries, 0);
        allocator.device_bytes = free.peak_reserved - (2 << 20);
        struct rig r;
        unsigned most;
        start(&r, allocator);
        for (int i = 0; i < 3; i++)
            rig_step(&r);
        struct tsr_allocator_stats full = tsr_engine_memory(r.e);
        assert_true(full.n_alloc_retries > 0);
        assert_true(full.peak_reserved <= allocator.device_bytes);
        assert_int_equal(full.n_ooms, 0);
        assert_int_equal(check_releases(&r, &most), full.n_alloc_retries);
        assert_true(most >= 2); /* not the default stream alone */
        rig_close(&r);
    }
}

static void without_a_limit_nothing_is_released(void **state)
{
    (void)state;
    struct rig r;
    unsigned most;
    start(&r, (struct tsr_allocator_config){0});
    rig_step(&r);
    rig_step(&r);
    assert_int_equal(check_releases(&r, &most), 0);
    for (size_t i = 0; i < r.all.n_instrs; i++)
        /* the host waits for the previous batch's copies only */
        assert_true(r.all.instrs[i].kind != TSR_HOST_WAIT ||
                    r.all.instrs[i].origin.phase == TSR_PHASE_INPUTS);
    rig_close(&r);
}

static void too_small_a_device_says_what_was_asked_and_what_is_left(void **state)
{
    (void)state;
    struct tsr_allocator_stats free = unlimited((struct tsr_allocator_config){0});
    struct tsr_allocator_config allocator = {.device_bytes = free.peak_allocated * 3 / 4};
    struct rig r;
    start(&r, allocator);
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < 3 && status == TSR_OK; i++)
        status = tsr_step_run(r.e, i);
    assert_int_equal(status, TSR_EOOM);
    struct tsr_oom refused;
    assert_true(tsr_engine_oom(r.e, &refused));
    struct tsr_allocator_oom oom = refused.memory;
    struct tsr_allocator_stats stats = tsr_engine_memory(r.e);
    char words[64];
    snprintf(words, sizeof words, "(%llu bytes); the device", (unsigned long long)oom.requested);
    rig_refused(status, TSR_EOOM, words);
    assert_int_equal(stats.n_ooms, 1);
    assert_int_equal(oom.limit, allocator.device_bytes);
    assert_int_equal(oom.free, oom.limit - oom.reserved);
    assert_int_equal(oom.reserved_small + oom.reserved_large, oom.reserved);
    assert_true(oom.requested > 0 && oom.rounded >= oom.requested && oom.device >= oom.rounded);
    assert_true(oom.device > oom.free);            /* a segment does not fit */
    assert_true(oom.largest_usable < oom.rounded); /* and no block does */
    assert_true(oom.largest_cached >= oom.largest_usable && oom.cached >= oom.largest_cached);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_retry_waits_for_the_device_then_releases),
        cmocka_unit_test(without_a_limit_nothing_is_released),
        cmocka_unit_test(too_small_a_device_says_what_was_asked_and_what_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
