/* test_planted.c: defects planted at random in programs of random strategies (tests/mixes), one at
 * a time in the third of four iterations of rank 0, and who finds them:
 *
 *   the checker         over all ranks' programs, without running anything
 *   the executor        the host refuses an instruction of the mutant
 *   values              it runs, and leaves other parameters, gradients or states
 *
 * What nobody finds must be explained: a change of the schedule by the happens-before graph
 * (study/reach.h), in which every conflict is still ordered; a change of operands by the run, which
 * leaves every bit as it was.
 *
 *   check_test_planted [MUTANTS [SEED]]    tests/check/planted.sh: 10,000 of them
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "experiments/study/job/build.h"
#include "tests/check/replay_testing.h"
#include "tests/check/study/verdict.h"
#include "tests/mixes/mix.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MUTANTS = 40 };
#else
enum { MUTANTS = 400 };
#endif

enum { EACH = 16 /* mutants of a program */, WHY = 512 };

enum found_by { BY_CHECKER, BY_EXECUTOR, BY_VALUES, BY_ORDER, BY_EQUAL_VALUES, BY_NOBODY, N_BY };

static struct {
    size_t programs, mutants, of[N_MUTATION_KINDS][N_BY], by[N_BY];
} report;

/* ---- programs -------------------------------------------------------------------------------- */

struct mixed {
    struct tsr_experiment file;
    struct tsr_job job;
    struct recorded r;
    bool runs; /* the host can */
};

static void ok(tsr_status status)
{
    if (status != TSR_OK)
        fail_msg("%s", tsr_error_text());
}

static void record_rank(const struct tsr_job *job, uint32_t rank, struct recorded_rank *r)
{
    tsr_recorder_init(&r->recorder, &r->program);
    tsr_program_init(&r->program, NULL);
    ok(tsr_build(job, rank, &r->recorder.base, &r->e));
    r->program.tables = tsr_engine_tables(r->e);
    ok(tsr_engine_init_params(r->e));
    for (uint32_t i = 0; i < FAMILY_ITERATIONS; i++)
        ok(tsr_step_run(r->e, i));
}

static void open_mix(uint64_t seed, const char *folder, struct mixed *out)
{
    static struct mix m;
    char path[256];
    const char *why;
    mix_draw(seed, folder, &m);
    snprintf(path, sizeof path, "%s/%s", folder, m.model_name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(m.model, file) >= 0);
    assert_int_equal(fclose(file), 0);
    *out = (struct mixed){0};
    ok(tsr_experiment_open(&(struct tsr_study_request){.text = m.strategy}, &out->file));
    ok(tsr_job_open(&out->file, &out->file.strategies[0], TSR_MAY_LACK_CLUSTER, &out->job));
    out->r.name = out->job.strategy->name;
    out->r.world = m.world;
    out->r.words = m.vocab;
    for (uint32_t rank = 0; rank < m.world; rank++)
        record_rank(&out->job, rank, &out->r.ranks[rank]);
    family_sequences(&out->r);
    out->runs = !m.simulated_only && replay_can(&out->r, &why);
}

static void close_mix(struct mixed *m)
{
    family_close(&m->r);
    tsr_job_close(&m->job);
    tsr_experiment_fini(&m->file);
}

/* ---- judging --------------------------------------------------------------------------------- */

static bool failed(const struct replay *run)
{
    for (uint32_t i = 0; i < run->r->world; i++)
        if (run->ranks[i].status != TSR_OK)
            return true;
    return false;
}

static enum found_by judge_run(const struct recorded *r, const struct sequence *s,
                               const struct replay *reference)
{
    char why[WHY];
    struct replay run = {.r = r, .first = s};
    replay_start(&run);
    replay_join(&run);
    if (failed(&run))
        return BY_EXECUTOR;
    return replay_same(reference, &run, why, sizeof why) ? BY_EQUAL_VALUES : BY_VALUES;
}

static bool is_of_values(int kind)
{
    return kind >= N_STUDIED_KINDS || kind == SHORT_OPERAND || kind == SHIFTED_OPERAND;
}

/* In this order: the cheapest first. */
static enum found_by judge(const struct mixed *m, const struct mutation *what,
                           const struct sequence *s, struct reach *reach,
                           const struct replay *reference, char *why)
{
    if (checker_finds(&m->r, s, true, why, WHY))
        return BY_CHECKER;
    if (is_of_values(what->kind))
        return judge_run(&m->r, s, reference);
    return reach_hazard(reach, s, why, WHY) ? BY_NOBODY : BY_ORDER;
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717) >> 33;
}

/* One of a kind that the program has; kinds take turns. */
static const struct mutation *draw(const struct mutation *all, size_t n, int kind, uint64_t *random)
{
    size_t count = 0, k;
    for (size_t i = 0; i < n; i++)
        count += (int)all[i].kind == kind;
    if (count == 0)
        return NULL;
    k = next_random(random) % count;
    for (size_t i = 0;; i++)
        if ((int)all[i].kind == kind && k-- == 0)
            return &all[i];
}

static void plant(const struct mixed *m, uint64_t seed, const struct mutation *what,
                  struct mutant *mutant, struct reach *reach, const struct replay *reference)
{
    char why[WHY] = "";
    if (!mutate(&m->r, what, mutant))
        return;
    enum found_by by = judge(m, what, &mutant->sequence, reach, reference, why);
    report.mutants++;
    report.of[what->kind][by]++;
    report.by[by]++;
    if (by == BY_NOBODY)
        fprintf(stderr, "mix %" PRIu64 ", %s at %zu (%zu): found by nobody; the graph says: %s\n",
                seed, mutation_name(what->kind), what->at, what->second, why);
}

static void plant_in(uint64_t seed, const char *folder, size_t n_mutants)
{
    struct mixed m;
    struct mutant mutant = {0};
    size_t n;
    uint64_t random = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15);
    open_mix(seed, folder, &m);
    struct replay reference = {.r = &m.r, .first = &m.r.sequences[0]};
    if (m.runs) {
        replay_start(&reference);
        replay_join(&reference);
        assert_false(failed(&reference));
    }
    struct reach *reach = reach_open(&m.r.sequences[0]);
    struct mutation *all = mutations_of(&m.r, true, &n);
    for (size_t i = 0; i < EACH && report.mutants < n_mutants; i++) {
        const struct mutation *what = draw(all, n, (int)((seed + i) % N_MUTATION_KINDS), &random);
        if (what && (m.runs || !is_of_values(what->kind))) /* what is not run has no values */
            plant(&m, seed, what, &mutant, reach, &reference);
    }
    report.programs++;
    free(all);
    mutant_fini(&mutant);
    reach_close(reach);
    close_mix(&m);
}

/* ---- many ------------------------------------------------------------------------------------ */

static void print_report(void)
{
    printf("%-32s %8s %8s %8s %8s %8s %8s\n", "change", "checker", "executor", "values", "ordered",
           "equal", "nobody");
    for (int k = 0; k < N_MUTATION_KINDS; k++) {
        printf("%-32s", mutation_name(k));
        for (int by = 0; by < N_BY; by++)
            printf(" %8zu", report.of[k][by]);
        printf("\n");
    }
    printf("%zu mutants of %zu programs: %zu found (%zu by the checker, %zu by the executor, %zu "
           "by values), %zu explained (%zu still ordered, %zu equal values), %zu neither\n",
           report.mutants, report.programs,
           report.by[BY_CHECKER] + report.by[BY_EXECUTOR] + report.by[BY_VALUES],
           report.by[BY_CHECKER], report.by[BY_EXECUTOR], report.by[BY_VALUES],
           report.by[BY_ORDER] + report.by[BY_EQUAL_VALUES], report.by[BY_ORDER],
           report.by[BY_EQUAL_VALUES], report.by[BY_NOBODY]);
}

static void plant_many(size_t n, uint64_t seed)
{
    char folder[] = "/tmp/tessera-planted-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    assert_int_equal(tsr_kernels_init(), TSR_OK);
    for (uint64_t i = 0; report.mutants < n; i++)
        plant_in(seed + i, folder, n);
    snprintf(path, sizeof path, "%s/model.json", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/tree.yaml", folder);
    unlink(path);
    rmdir(folder);
    print_report();
}

static void defects__in_random_programs__found_or_explained(void **state)
{
    (void)state;
    plant_many(MUTANTS, 1);
    assert_int_equal(report.by[BY_NOBODY], 0);
    assert_int_equal(report.mutants, MUTANTS);
    for (int by = 0; by < BY_NOBODY && MUTANTS >= 400; by++) /* of a few some ways have none */
        assert_true(report.by[by] > 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defects__in_random_programs__found_or_explained)};
    if (argc > 1) {
        plant_many(strtoull(argv[1], NULL, 10), argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
        return report.by[BY_NOBODY] > 0;
    }
    return cmocka_run_group_tests_name("planted", tests, NULL, NULL);
}
