/* test_replay.c: steps that are replayed are the steps that would have been emitted: for every
 * strategy that the host executes and every recorded scenario, one engine emits each step, another
 * one uses a cache of steps (engine/replay/replay.h), and executors get the same instructions,
 * numbers of buffers and events included. And the digests keep their word: equal ones mean equal
 * programs, equal offsets, equal digests afterwards.
 */
#include <dirent.h>

#include "engine/replay/replay_impl.h"
#include "tests/exec/jobs_testing.h"
#include "tests/player/events/trace_scenario.h"

enum { STEPS = 24, DISTURBED = 17, PATH = 4400 };

/* One engine with what it emits. */
struct side {
    struct tsr_recorder recorder;
    struct tsr_program program;
    struct tsr_engine *engine;
    struct tsr_step_cache *cache;
};

/* Two engines alike, and how to make one. */
struct pair {
    const char *name;
    struct side emits, replays;
    tsr_status (*build)(struct side *side, const void *job);
    tsr_status (*disturb)(struct tsr_engine *engine, const void *job);
    const void *job;
    uint32_t every; /* steps from one disturbance to the next; 0: there is one */
    uint64_t digests[STEPS], after[STEPS], programs[STEPS], offsets[STEPS];
};

/* Of the cache of steps. */
struct stats {
    uint64_t emitted, replayed, refused;
};

static uint64_t state_digest(struct tsr_engine *e)
{
    struct tsr_state_walk walk = {0};
    job_ok(tsr__walk_state(e, &walk));
    uint64_t digest = walk.digest;
    tsr__walk_fini(&walk);
    return digest;
}

static void begin_program(struct side *s)
{
    tsr_program_fini(&s->program);
    tsr_program_init(&s->program, tsr_engine_tables(s->engine));
    s->recorder.into = &s->program;
}

static tsr_status open_side(struct pair *p, struct side *s)
{
    tsr_recorder_init(&s->recorder, &s->program);
    TSR_TRY(p->build(s, p->job));
    TSR_TRY(tsr_engine_init_params(s->engine));
    return tsr_step_cache_create(s->engine, &s->cache);
}

static void close_side(struct side *s)
{
    tsr_step_cache_destroy(s->cache);
    tsr_program_fini(&s->program);
    tsr_engine_destroy(s->engine);
    *s = (struct side){0};
}

static void compare_operands(const char *name, const struct tsr_instr *a, const struct tsr_instr *b)
{
    assert_int_equal(a->n_operands, b->n_operands);
    for (uint32_t k = 0; k < a->n_operands; k++) {
        const struct tsr_operand *x = &a->operands[k], *y = &b->operands[k];
        if (x->buffer != y->buffer)
            fail_msg("%s: %s uses buffer %u, and %u when replayed", name,
                     tsr_instr_kind_name(a->kind), x->buffer, y->buffer);
        assert_int_equal(x->offset, y->offset);
        assert_int_equal(x->bytes, y->bytes);
        assert_int_equal(x->slot, y->slot);
        assert_int_equal(x->dtype, y->dtype);
    }
}

static void compare_instr(const char *name, const struct tsr_instr *a, const struct tsr_instr *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->stream, b->stream);
    assert_int_equal(a->value, b->value);
    assert_int_equal(a->address, b->address);
    assert_int_equal(a->segment, b->segment);
    assert_int_equal(a->block_bytes, b->block_bytes);
    assert_int_equal(a->comm, b->comm);
    assert_int_equal(a->category, b->category);
    assert_int_equal(a->origin.iteration, b->origin.iteration);
    assert_int_equal(a->origin.module, b->origin.module);
    assert_int_equal(a->origin.phase, b->origin.phase);
    if (a->buffer != b->buffer || a->event != b->event)
        fail_msg("%s: %s of buffer %u or event %u, and of %u or %u when replayed", name,
                 tsr_instr_kind_name(a->kind), a->buffer, a->event, b->buffer, b->event);
    assert_int_equal(a->work != NULL, b->work != NULL);
    if (a->work) {
        assert_string_equal(a->work->name, b->work->name);
        assert_int_equal(a->work->n_args, b->work->n_args);
    }
    compare_operands(name, a, b);
}

static void compare_programs(const struct pair *p, uint32_t step)
{
    const struct tsr_program *a = &p->emits.program, *b = &p->replays.program;
    if (a->n_instrs != b->n_instrs)
        fail_msg("%s: step %u has %zu instructions, %zu when replayed", p->name, step, a->n_instrs,
                 b->n_instrs);
    for (size_t i = 0; i < a->n_instrs; i++)
        compare_instr(p->name, &a->instrs[i], &b->instrs[i]);
    assert_int_equal(tsr_program_hash(a), tsr_program_hash(b));
    assert_int_equal(tsr_program_offsets_hash(a), tsr_program_offsets_hash(b));
}

/* What equal digests promise. */
static void check_promise(const struct pair *p, uint32_t last)
{
    for (uint32_t i = 0; i < last; i++) {
        if (p->digests[i] == 0 || p->digests[i] != p->digests[last])
            continue;
        if (p->programs[i] != p->programs[last] || p->offsets[i] != p->offsets[last] ||
            p->after[i] != p->after[last])
            fail_msg("%s: steps %u and %u begin with the digest %016llx and are not the same",
                     p->name, i, last, (unsigned long long)p->digests[i]);
    }
}

static tsr_status run_step(struct pair *p, uint32_t i)
{
    begin_program(&p->emits);
    begin_program(&p->replays);
    p->digests[i] = state_digest(p->emits.engine);
    TSR_TRY(tsr_step_run(p->emits.engine, i));
    job_ok(tsr_step_run_cached(p->replays.cache, i));
    p->programs[i] = tsr_program_hash(&p->emits.program);
    p->offsets[i] = tsr_program_offsets_hash(&p->emits.program);
    p->after[i] = state_digest(p->emits.engine);
    compare_programs(p, i);
    check_promise(p, i);
    return TSR_OK;
}

/* Something else is emitted between two steps, or options change. */
static bool disturb(struct pair *p)
{
    job_ok(tsr_step_cache_settle(p->replays.cache));
    assert_int_equal(state_digest(p->emits.engine), state_digest(p->replays.engine));
    tsr_status a = p->disturb(p->emits.engine, p->job), b = p->disturb(p->replays.engine, p->job);
    assert_int_equal(a, b);
    return a == TSR_OK;
}

static bool is_disturbed(const struct pair *p, uint32_t i)
{
    return p->every ? i > 0 && i % p->every == 0 : i == DISTURBED;
}

/* False: the scenario is one that cannot be run. */
static bool run_pair(struct pair *p, struct stats *stats)
{
    bool runs = open_side(p, &p->emits) == TSR_OK && open_side(p, &p->replays) == TSR_OK;
    for (uint32_t i = 0; i < STEPS && runs; i++)
        runs = (!is_disturbed(p, i) || disturb(p)) && run_step(p, i) == TSR_OK;
    if (p->replays.cache)
        *stats = (struct stats){p->replays.cache->stats.emitted, p->replays.cache->stats.replayed,
                                p->replays.cache->stats.refused};
    close_side(&p->emits);
    close_side(&p->replays);
    return runs;
}

/* ---- strategies ------------------------------------------------------------------------------ */

static tsr_status build_strategy(struct side *s, const void *job)
{
    return tsr_build(job, 0, &s->recorder.base, &s->engine);
}

static tsr_status evaluate(struct tsr_engine *engine, const void *job)
{
    (void)job;
    return tsr_eval_run(engine);
}

/* Every strategy, disturbed so once, or every so many steps; also: what else must hold, or NULL. */
static void each_strategy(tsr_status (*how)(struct tsr_engine *, const void *), uint32_t every,
                          void (*also)(const struct pair *))
{
    struct strategies s;
    strategies_open(&s);
    for (size_t i = 0; i < s.file.n; i++) {
        struct tsr_job job;
        struct stats stats = {0};
        strategies_job(&s, s.file.strategies[i].name, &job);
        struct pair p = {.name = s.file.strategies[i].name,
                         .build = build_strategy,
                         .disturb = how,
                         .every = every,
                         .job = &job};
        assert_true(run_pair(&p, &stats));
        printf("%-20s emitted %2llu, replayed %2llu\n", p.name, (unsigned long long)stats.emitted,
               (unsigned long long)stats.replayed);
        assert_int_equal(stats.refused, 0);
        assert_true(stats.replayed >= 2);
        if (also)
            also(&p);
        tsr_job_close(&job);
    }
    strategies_close(&s);
}

/* A steady state comes soon, and the one after an evaluation as well. */
static void strategies__each__replayed_as_emitted(void **state)
{
    (void)state;
    each_strategy(evaluate, 0, NULL);
}

static tsr_status save_beside(struct tsr_engine *engine, const void *job)
{
    (void)job;
    return tsr_save_run(engine, TSR_SAVE_SHARDED_ASYNC);
}

static void steady_state_is_back(const struct pair *p)
{
    if (!strcmp(p->name, "fsdp"))
        assert_int_equal(p->digests[15], p->digests[23]);
}

/* The step behind a save is one of its kind; then the steady state is back, and from the second
 * save on it is the one that was proven before. */
static void saves_beside_training__each_strategy__the_steady_state_comes_back(void **state)
{
    (void)state;
    each_strategy(save_beside, 8, steady_state_is_back);
}

/* ---- recorded scenarios ---------------------------------------------------------------------- */

static tsr_status build_scenario(struct side *s, const void *job)
{
    const struct tsr_scenario *scenario = job;
    const struct tsr_engine_config config = {
        .mesh = scenario->mesh, .executor = &s->recorder.base, .attention = TSR_SDPA_FLASH};
    TSR_TRY(tsr_engine_create(&config, &s->engine));
    TSR_TRY(tsr_scenario_model(scenario, s->engine));
    if (!strcmp(scenario->kind, "ddp"))
        TSR_TRY(tsr_scenario_ddp(scenario, s->engine));
    else
        TSR_TRY(tsr_scenario_wrap(scenario, s->engine));
    return tsr_scenario_step(scenario, s->engine);
}

/* All that the scenario calls, at once. */
static tsr_status make_calls(struct tsr_engine *engine, const void *job)
{
    const struct tsr_scenario *scenario = job;
    const struct tsr_yaml_node *calls = tsr_node_get(scenario->doc.root, "calls");
    for (size_t i = 0; calls && i < calls->n; i++)
        TSR_TRY(tsr_scenario_call(engine, calls->items[i], NULL));
    return TSR_OK;
}

static void scenario(const char *path, const char *name, unsigned *n_run, unsigned *n_replayed)
{
    struct tsr_scenario s;
    struct stats stats = {0};
    job_ok(tsr_scenario_load(path, &s));
    if (!strcmp(s.kind, "train") || !strcmp(s.kind, "ddp")) {
        job_ok(tsr_scenario_mesh(&s));
        struct pair p = {.name = name, .build = build_scenario, .disturb = make_calls, .job = &s};
        *n_run += run_pair(&p, &stats);
        *n_replayed += stats.replayed > 0;
        if (stats.refused)
            fail_msg("%s: steps that began alike were not alike", name);
    }
    tsr_scenario_fini(&s);
}

static void scenarios__each__replayed_as_emitted(void **state)
{
    char folder[4096], path[PATH];
    unsigned n_run = 0, n_replayed = 0;
    (void)state;
    snprintf(folder, sizeof folder, "%s/tests/golden/scenarios", TSR_SOURCE_DIR);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *d = readdir(dir); d; d = readdir(dir)) {
        if (!strstr(d->d_name, ".json"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, d->d_name);
        scenario(path, d->d_name, &n_run, &n_replayed);
    }
    closedir(dir);
    printf("%u scenarios run to the end, %u are replayed\n", n_run, n_replayed);
    assert_true(n_run > 100 && n_replayed > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strategies__each__replayed_as_emitted),
        cmocka_unit_test(saves_beside_training__each_strategy__the_steady_state_comes_back),
        cmocka_unit_test(scenarios__each__replayed_as_emitted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
