/* test_exact_save.c: shards that are saved beside training (save: sharded_async) are those that are
 * saved while training stands still, byte for byte, for every strategy; what is executed is what
 * was emitted; the host waits for nothing before the next step has run; and each wait is needed.
 */
#include "engine/check/check.h"
#include "tests/exec/jobs_testing.h"

/* init, 3 steps, save, 3 steps, save, 2 steps, end */
enum { PROGRAMS = 11, SAVES = 1 << 4 | 1 << 8, ENDS = 1 << 11 };
enum { BEFORE = 3, SAVE, BEHIND, AFTER = 7, SECOND_SAVE, SECOND_BEHIND, SECOND_AFTER };

/* ---- what is saved --------------------------------------------------------------------------- */

struct saved {
    struct tsr_piece piece;
    const void *lent; /* until it is joined */
    uint64_t hash;    /* of the bytes */
};

struct saved_list {
    struct saved *v;
    size_t n, cap;
};

static uint64_t hash_of(const struct tsr_piece *piece, const void *data)
{
    uint64_t n = tsr_dtype_bytes((tsr_dtype)piece->dtype);
    for (int i = 0; i < piece->n_dims; i++)
        n *= piece->size[i];
    return tsr_hash_bytes(TSR_HASH_INIT, data, n);
}

static tsr_status keep(struct job_rank *r, const struct saved *saved)
{
    struct saved_list *list = r->saved;
    if (!list)
        r->saved = list = calloc(1, sizeof *list);
    if (!list || !TSR_PUSH(list->v, list->n, list->cap, *saved))
        return tsr_fail(TSR_ENOMEM, "out of memory");
    return TSR_OK;
}

static tsr_status write_piece(void *user, const struct tsr_piece *piece, const void *data)
{
    const struct saved saved = {.piece = *piece, .hash = hash_of(piece, data)};
    return keep(user, &saved);
}

static tsr_status lend_piece(void *user, const struct tsr_piece *piece, const void *data)
{
    const struct saved saved = {.piece = *piece, .lent = data};
    return keep(user, &saved);
}

/* As late as can be. */
static tsr_status join_pieces(void *user)
{
    const struct job_rank *r = user;
    struct saved_list *list = r->saved;
    for (size_t i = 0; list && i < list->n; i++) {
        if (list->v[i].lent)
            list->v[i].hash = hash_of(&list->v[i].piece, list->v[i].lent);
        list->v[i].lent = NULL;
    }
    return TSR_OK;
}

static int by_name(const void *a, const void *b)
{
    const struct saved *x = a, *y = b;
    if (x->piece.name != y->piece.name)
        return x->piece.name < y->piece.name ? -1 : 1;
    return (int)x->piece.what - (int)y->piece.what;
}

static void compare_lists(const char *name, const struct job_rank *now,
                          const struct job_rank *beside)
{
    struct saved_list *a = now->saved, *b = beside->saved;
    if (!a || !b || a->n != b->n || a->n % 2)
        fail_msg("%s: rank %u saves other pieces", name, now->rank);
    for (size_t half = 0; half < 2; half++) { /* each save by itself */
        size_t n = a->n / 2;
        qsort(a->v + half * n, n, sizeof *a->v, by_name);
        qsort(b->v + half * n, n, sizeof *b->v, by_name);
    }
    for (size_t i = 0; i < a->n; i++) {
        assert_int_equal(by_name(&a->v[i], &b->v[i]), 0);
        assert_null(b->v[i].lent);
        if (a->v[i].hash != b->v[i].hash)
            fail_msg("%s: rank %u: piece %zu of %zu has other bytes", name, now->rank, i, a->n);
    }
}

static void close_ranks(struct job_rank *ranks)
{
    for (uint32_t r = 0; r < ranks[0].job->world; r++) {
        struct saved_list *list = ranks[r].saved;
        if (list)
            free(list->v);
        free(list);
    }
    job_close(ranks);
}

static const struct tsr_source sink = {
    .write = write_piece, .lend = lend_piece, .join = join_pieces};

static struct job_config config_of(enum tsr_save how)
{
    return (struct job_config){
        .n_steps = PROGRAMS, .saves = SAVES, .save_ends = ENDS, .save = how, .sink = sink};
}

/* The thread sanitizer is slow: it and the short form take every EVERY-th strategy. */
enum { EVERY = 8, EVERY_LONG = 2 };

static struct strategies_walk walk_of(void)
{
#if defined(__SANITIZE_THREAD__)
    return (struct strategies_walk){0, EVERY};
#else
    return strategies_walk(EVERY, EVERY_LONG);
#endif
}

/* ---- the same bytes -------------------------------------------------------------------------- */

static void compare_bytes(const struct strategies *s, const char *name)
{
    struct job_config config[2] = {config_of(TSR_SAVE_SHARDED), config_of(TSR_SAVE_SHARDED_ASYNC)};
    struct job_rank *ranks[2];
    struct tsr_job job;
    strategies_job(s, name, &job);
    for (int k = 0; k < 2; k++) {
        config[k].ahead = config[k].poison = true;
        config[k].jitter_us = k ? 15 : 0; /* the one that could have a race */
        config[k].jitter_seed = 11;
        job_run_ok(&job, &config[k], &ranks[k]);
    }
    for (uint32_t r = 0; r < job.world; r++) {
        compare_lists(name, &ranks[0][r], &ranks[1][r]);
        assert_memory_equal(ranks[0][r].losses, ranks[1][r].losses, sizeof ranks[0][r].losses);
        assert_memory_equal(ranks[0][r].norms, ranks[1][r].norms, sizeof ranks[0][r].norms);
    }
    close_ranks(ranks[0]);
    close_ranks(ranks[1]);
    tsr_job_close(&job);
}

static void saved__beside_training__the_same_bytes(void **state)
{
    struct strategies s;
    (void)state;
    strategies_open(&s);
    const struct strategies_walk walk = walk_of();
    for (size_t i = walk.first; i < s.file.n; i += walk.stride)
        compare_bytes(&s, s.file.strategies[i].name);
    strategies_close(&s);
}

/* ---- programs -------------------------------------------------------------------------------- */

static bool waits_on_host(const struct tsr_instr *instr)
{
    return instr->kind == TSR_HOST_WAIT || instr->kind == TSR_HOST_READ;
}

/* Up to the end of the step behind the save the host waits only for the latest batch to have been
 * copied, which was before the step in front of it was computed. */
static void check_host_waits(const struct tsr_program *save, const struct tsr_program *behind)
{
    size_t n = 0;
    for (size_t i = 0; i < save->n_instrs; i++)
        n += waits_on_host(&save->instrs[i]);
    assert_true(n <= 1);
    for (size_t i = 0; i < behind->n_instrs; i++)
        if (waits_on_host(&behind->instrs[i]))
            assert_int_equal(behind->instrs[i].origin.phase, TSR_PHASE_END);
}

static size_t count_pins(const struct tsr_program *program)
{
    size_t n = 0;
    for (size_t i = 0; i < program->n_instrs; i++)
        n += program->instrs[i].kind == TSR_PIN;
    return n;
}

/* The copies are on a stream of their own, and are given to it before the next step. */
static void check_streams(const struct tsr_program *save)
{
    size_t n = 0;
    for (size_t i = 0; i < save->n_instrs; i++) {
        const struct tsr_instr *instr = &save->instrs[i];
        if (instr->kind != TSR_COPY)
            continue;
        assert_string_equal(save->tables->streams[instr->stream].name, "save");
        assert_int_equal(instr->operands[1].space, TSR_SPACE_PINNED);
        n++;
    }
    assert_true(n > 40); /* parameters and two states of each */
}

static void program__beside_training__the_host_waits_for_nothing(void **state)
{
    struct job_config config = config_of(TSR_SAVE_SHARDED_ASYNC);
    struct strategies s;
    struct tsr_job job;
    struct job_rank *ranks;
    (void)state;
    strategies_open(&s);
    strategies_job(&s, "fsdp", &job);
    job_run_ok(&job, &config, &ranks);
    for (uint32_t r = 0; r < job.world; r++) {
        const struct tsr_program *p = ranks[r].programs;
        check_host_waits(&p[SAVE], &p[BEHIND]);
        check_host_waits(&p[SECOND_SAVE], &p[SECOND_BEHIND]);
        check_streams(&p[SAVE]);
        for (uint32_t i = 0; i <= PROGRAMS; i++)
            assert_int_equal(ranks[r].executed[i], tsr_program_expected_exec_hash(&p[i]));
        /* Blocks of the pinned cache find their users with the first save; then all is steady. */
        assert_int_not_equal(tsr_program_hash(&p[SECOND_BEHIND]), tsr_program_hash(&p[AFTER]));
        assert_int_equal(tsr_program_hash(&p[SECOND_AFTER]), tsr_program_hash(&p[AFTER]));
        assert_int_equal(p[SECOND_AFTER].n_instrs, p[BEFORE].n_instrs);
        assert_int_equal(count_pins(&p[SECOND_SAVE]) + count_pins(&p[SECOND_BEHIND]), 0);
    }
    close_ranks(ranks);
    tsr_job_close(&job);
    strategies_close(&s);
}

/* ---- each wait is needed --------------------------------------------------------------------- */

/* Leaves out the waits of one kind. */
enum planted { NOTHING, OPTIMIZER_WAIT, SAVE_WAIT, HOST_WAIT, N_PLANTED };

struct leaver {
    struct tsr_executor base;
    struct tsr_executor *next;
    const struct tsr_tables *tables;
    enum planted what;
    uint32_t event; /* recorded last on the stream of saves */
    unsigned n;
};

static bool is_left_out(const struct leaver *x, const struct tsr_instr *instr, const char *stream)
{
    switch (x->what) {
    case OPTIMIZER_WAIT:
        return instr->kind == TSR_WAIT && instr->event == x->event && x->event;
    case SAVE_WAIT:
        return instr->kind == TSR_WAIT && !strcmp(stream, "save");
    case HOST_WAIT:
        return instr->kind == TSR_HOST_WAIT && instr->event == x->event && x->event;
    default:
        return false;
    }
}

static tsr_status leave_out(struct tsr_executor *executor, const struct tsr_instr *instr)
{
    struct leaver *x = (struct leaver *)executor;
    const char *stream = x->tables ? x->tables->streams[instr->stream].name : "";
    if (is_left_out(x, instr, stream)) {
        x->n++;
        return TSR_OK;
    }
    if (instr->kind == TSR_RECORD && !strcmp(stream, "save"))
        x->event = instr->event;
    return x->next->ops->submit(x->next, instr);
}

static const struct tsr_executor_ops leaver_ops = {.size = sizeof leaver_ops,
                                                   .version = TSR_EXECUTOR_VERSION,
                                                   .name = "leaver",
                                                   .submit = leave_out};

static void emit_rank(struct tsr_engine *e)
{
    job_ok(tsr_engine_init_params(e));
    for (uint32_t i = 0; i < PROGRAMS; i++) {
        job_ok(tsr_step_run(e, i));
        if (i == 1 || i == 3)
            job_ok(tsr_save_run(e, TSR_SAVE_SHARDED_ASYNC));
    }
    job_ok(tsr_save_end(e));
}

/* Findings of all ranks; *left: waits that were left out. */
static size_t check(const struct tsr_job *job, enum planted what, uint64_t *races, unsigned *left)
{
    const struct tsr_checker_config config = {.world = job->world};
    struct tsr_engine *engines[JOB_RANKS] = {NULL};
    struct leaver leavers[JOB_RANKS];
    struct tsr_checker *checker;
    job_ok(tsr_checker_create(&config, &checker));
    *left = 0;
    for (uint32_t r = 0; r < job->world; r++) {
        leavers[r] = (struct leaver){.base = {.ops = &leaver_ops}, .what = what};
        job_ok(tsr_checker_rank(checker, r, NULL, NULL, &leavers[r].next));
        job_ok(tsr_build(job, r, &leavers[r].base, &engines[r]));
        leavers[r].tables = tsr_engine_tables(engines[r]);
        tsr_checker_set_tables(checker, r, leavers[r].tables);
        emit_rank(engines[r]);
        *left += leavers[r].n;
    }
    job_ok(tsr_checker_finish(checker));
    size_t n = tsr_checker_n_findings(checker);
    if (what == NOTHING && n > 0)
        fail_msg("%s: %s", job->strategy->name, tsr_checker_finding(checker, 0)->headline);
    *races = tsr_checker_counts(checker).by_kind[TSR_CHECK_RACE];
    tsr_checker_destroy(checker);
    for (uint32_t r = 0; r < job->world; r++)
        tsr_engine_destroy(engines[r]);
    return n;
}

static void check_strategy(const struct strategies *s, const char *name)
{
    struct tsr_job job;
    uint64_t races;
    unsigned left;
    strategies_job(s, name, &job);
    for (int what = NOTHING; what < N_PLANTED; what++) {
        bool planted = check(&job, (enum planted)what, &races, &left) > 0;
        assert_int_equal(left, what == NOTHING ? 0 : 2 * job.world);
        assert_int_equal(planted, what != NOTHING);
        assert_int_equal(races > 0, what != NOTHING);
    }
    tsr_job_close(&job);
}

static void waits__one_left_out__the_checker_finds_a_race(void **state)
{
    static const char *const names[] = {"fsdp",   "hsdp",   "replicate", "ddp",
                                        "tp",     "bf16",   "foreach",   "loop",
                                        "mirror", "direct", "mirror-one"};
    struct strategies s;
    (void)state;
    strategies_open(&s);
    for (size_t i = 0; i < sizeof names / sizeof *names; i += walk_of().stride)
        check_strategy(&s, names[i]);
    strategies_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved__beside_training__the_same_bytes),
        cmocka_unit_test(program__beside_training__the_host_waits_for_nothing),
        cmocka_unit_test(waits__one_left_out__the_checker_finds_a_race),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
