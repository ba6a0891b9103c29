/* test_mixes.c: random strategies of random tiny models on worlds of 1 to 9 ranks (draw.c). Of
 * each: the checker finds nothing; it trains on the host, saves and loads; losses, norms and the
 * tensors that are saved are those of one rank that trains the same model on the same
 * batches; what is recorded, simulated and executed has one hash. What the host refuses (api:
 * fsdp1, dialect: compile) is checked and simulated.
 *
 *   mixes_test_mixes [MIXES [SEED]]    other ones; --print SEED prints one; tests/mixes/run.sh:
 * many
 *
 * The seed of a mix is printed with what is wrong, and all goes on.
 */
#include "sim/sim.h"
#include "tests/exec/jobs_testing.h"

#include <inttypes.h>
#include <math.h>
#include <unistd.h>

#include "experiments/cli/inspect/check_run.h"
#include "tests/mixes/mix.h"
#include "tests/mixes/tensors.h"

/* Under a sanitizer a mix takes ten times as long. */
static uint64_t n_mixes(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 12;
#else
    return tests_are_thorough() ? 100 : 25;
#endif
}

/* init, 2 steps, save, 2 steps, what is saved is written, step, load, step */
enum {
    STEPS = 2,
    PROGRAMS = 9,
    SAVES = 1 << 3,
    ENDS = 1 << 6,
    LOADS = 1 << 8,
    NOT_STEPS = SAVES | ENDS | LOADS
};
enum { WHY = 1024 };

static struct {
    uint64_t mixes, wrong, refused, simulated_only, exact, checked, dead;
    double worst[4]; /* share of its tolerance, by precision */
    bool print;
} report;

/* ---- opening --------------------------------------------------------------------------------- */

struct opened {
    struct tsr_experiment file;
    struct tsr_job job;
    bool has_file, has_job;
};

static tsr_status open_text(const char *text, struct opened *out)
{
    const struct tsr_study_request request = {.text = text};
    *out = (struct opened){0};
    TSR_TRY(tsr_experiment_open(&request, &out->file));
    out->has_file = true;
    TSR_TRY(tsr_job_open(&out->file, &out->file.strategies[0], TSR_MAY_LACK_CLUSTER, &out->job));
    out->has_job = true;
    return tsr_build_check(&out->job);
}

static void close_text(struct opened *o)
{
    if (o->has_job)
        tsr_job_close(&o->job);
    if (o->has_file)
        tsr_experiment_fini(&o->file);
}

/* ---- what is saved --------------------------------------------------------------------------- */

struct lent {
    struct tsr_piece piece;
    const void *data;
};

struct lents {
    struct lent *v;
    size_t n, cap;
};

/* Of the job under way; a mix and its one rank take turns. */
static struct {
    struct tensors *tensors;
    struct lents lents[JOB_RANKS];
} saving;

static tsr_status write_piece(void *user, const struct tsr_piece *piece, const void *data)
{
    (void)user;
    return tensors_add(saving.tensors, piece, data);
}

static tsr_status lend_piece(void *user, const struct tsr_piece *piece, const void *data)
{
    const struct job_rank *r = user;
    struct lents *l = &saving.lents[r->rank];
    const struct lent lent = {*piece, data};
    return TSR_PUSH(l->v, l->n, l->cap, lent) ? TSR_OK : tsr_no_memory(NULL);
}

/* As late as can be. */
static tsr_status join_pieces(void *user)
{
    const struct job_rank *r = user;
    struct lents *l = &saving.lents[r->rank];
    for (size_t i = 0; i < l->n; i++)
        TSR_TRY(tensors_add(saving.tensors, &l->v[i].piece, l->v[i].data));
    l->n = 0;
    return TSR_OK;
}

static tsr_status read_piece(void *user, const struct tsr_piece *piece, void *out)
{
    (void)user;
    return tensors_read(saving.tensors, piece, out);
}

/* ---- running --------------------------------------------------------------------------------- */

static void train(const struct tsr_job *job, const struct mix *m, uint32_t stands_for,
                  struct tensors *tensors, struct job_rank **out)
{
    const struct job_config config = {
        .n_steps = PROGRAMS,
        .saves = SAVES,
        .save_ends = ENDS,
        .loads = LOADS,
        .save = (enum tsr_save)job->settings->save,
        .sink = {.write = write_piece, .lend = lend_piece, .join = join_pieces, .read = read_piece},
        .poison = m->seed % 4 == 0,
        .jitter_us = m->seed % 3 == 0 ? 20 : 0,
        .jitter_seed = m->seed,
        .stands_for = stands_for,
        .vocab = m->vocab};
    saving.tensors = tensors;
    job_run(job, &config, out);
    for (uint32_t r = 0; r < JOB_RANKS; r++) {
        free(saving.lents[r].v);
        saving.lents[r] = (struct lents){0};
    }
    for (uint32_t r = 0; r < job->world; r++)
        (*out)[r].config = NULL; /* it ends here */
}

static bool check(const struct tsr_job *job, char *why)
{
    const struct tsr_check_source source = tsr_check_job(job);
    char finding[WHY - 8];
    tsr_status status = tsr_check_quietly(&source, finding, sizeof finding);
    bool clean = status == TSR_OK && !*finding;
    if (!clean)
        snprintf(why, WHY, "check: %s", status == TSR_OK ? finding : tsr_error_text());
    report.checked++;
    return clean;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static bool is_step(uint32_t program)
{
    return program > 0 && !(NOT_STEPS >> program & 1);
}

/* slack: times the tolerance. */
static bool near(const struct mix *m, const char *what, uint32_t iteration, double slack, double is,
                 double one, char *why)
{
    double off = fabs(is - one) / fmax(fabs(one), 1e-3) / m->tolerance / slack;
    double *worst = &report.worst[m->exact              ? 0
                                  : m->tolerance < 1e-3 ? 1
                                  : m->tolerance > 2e-2 ? 2
                                                        : 3];
    if (off > *worst)
        *worst = off;
    if (off <= 1)
        return true;
    snprintf(why, WHY, "%s of iteration %u: %.17g, one rank's %.17g", what, iteration, is, one);
    return false;
}

/* A mix whose loss stays proves nothing. A model may be dead from the start: a LayerNorm of width 1
 * gives zeros, to which a ReLU behind it has slope 0. Then all logits are 0: the loss is the
 * logarithm of their number. */
static bool moves(const struct job_rank *one, char *why)
{
    double first = one->losses[0][0], logits = exp(first);
    if (first != one->losses[1][0] && first > 0)
        return true;
    report.dead++;
    if (first > 0 && fabs(logits - round(logits)) < 1e-6)
        return true;
    snprintf(why, WHY, "the loss of one rank does not move from %.17g", first);
    return false;
}

/* A micro-batch's loss is the mean over the data ranks; ranks that cut tensors have it alike. An
 * element whose gradient is a rounding error (1e-17) moves by lr / eps (5e4) times that in a step,
 * which the loss hardly feels and a norm does. */
static bool same_numbers(const struct mix *m, const struct job_rank *ranks,
                         const struct job_rank *one, char *why)
{
    const struct tsr_settings *s = ranks[0].job->settings;
    for (uint32_t p = 0; p <= PROGRAMS; p++) {
        uint32_t i = p - 1;
        for (uint32_t k = 0; is_step(p) && k < s->accum_steps; k++) {
            double sum = 0;
            for (uint32_t r = 0; r < m->world; r++)
                sum += ranks[r].losses[i][k];
            if (!near(m, "loss", i, m->exact && i > 1 ? 100 : 1, sum / m->world, one->losses[i][k],
                      why))
                return false;
        }
        for (uint32_t r = 0; is_step(p) && s->clip && r < m->world; r++)
            if (!near(m, "norm", i, m->exact ? 1000 : 1, ranks[r].norms[i], one->norms[i], why))
                return false;
    }
    return moves(one, why);
}

/* ---- hashes ---------------------------------------------------------------------------------- */

struct recording {
    uint32_t world;
    struct tsr_emission ranks[JOB_RANKS];
    const struct tsr_program *const *programs[JOB_RANKS];
};

static bool record(const struct tsr_job *job, struct recording *out, char *why)
{
    *out = (struct recording){0};
    for (uint32_t r = 0; r < job->world; r++) {
        if (tsr_emit_rank(job, r, STEPS, &out->ranks[r]) != TSR_OK) {
            snprintf(why, WHY, "recorded: %s", tsr_error_text());
            return false;
        }
        out->world = r + 1;
        out->programs[r] = (const struct tsr_program *const *)out->ranks[r].classes[0].programs;
    }
    return true;
}

static void close_recording(struct recording *recording)
{
    for (uint32_t r = 0; r < recording->world; r++)
        tsr_emission_fini(&recording->ranks[r]);
}

static bool simulate(const struct tsr_job *job, const struct recording *recording,
                     struct tsr_sim_result **out, char *why)
{
    static const uint32_t class_of[JOB_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    const struct tsr_sim_job sim = {.world = job->world,
                                    .n_classes = job->world,
                                    .n_iterations = 1 + STEPS,
                                    .class_of = class_of,
                                    .programs = recording->programs};
    struct tsr_sim_options options = tsr_sim_options_default();
    options.fold = false;
    if (tsr_sim_run(&job->cluster, &sim, &options, out) == TSR_OK)
        return true;
    snprintf(why, WHY, "simulated: %s", tsr_error_text());
    return false;
}

/* ranks: NULL: nothing was executed. */
static bool same_hashes(const struct recording *recording, const struct tsr_sim_result *simulated,
                        const struct job_rank *ranks, char *why)
{
    for (uint32_t r = 0; r < recording->world; r++)
        for (uint32_t i = 0; i <= STEPS; i++) {
            const struct tsr_program *p = recording->programs[r][i];
            uint64_t recorded = tsr_program_expected_exec_hash(p);
            if (ranks && (ranks[r].executed[i] != recorded ||
                          tsr_program_hash(p) != tsr_program_hash(&ranks[r].programs[i]))) {
                snprintf(why, WHY, "rank %u, program %u: other things were executed than recorded",
                         r, i);
                return false;
            }
            if (simulated->ranks[r].exec_hash[i] != recorded) {
                snprintf(why, WHY, "rank %u, program %u: other things were simulated than recorded",
                         r, i);
                return false;
            }
        }
    return true;
}

static bool compare_hashes(const struct tsr_job *job, const struct job_rank *ranks, char *why)
{
    struct recording recording;
    struct tsr_sim_result *simulated = NULL;
    bool same = record(job, &recording, why) && simulate(job, &recording, &simulated, why) &&
                same_hashes(&recording, simulated, ranks, why);
    tsr_sim_result_destroy(simulated);
    close_recording(&recording);
    return same;
}

/* ---- one mix --------------------------------------------------------------------------------- */

static bool ran(const struct job_rank *ranks, const char *who, char *why)
{
    const struct job_rank *failed = job_failure(ranks);
    if (failed)
        snprintf(why, WHY, "%s: rank %u: %s", who, failed->rank, failed->text);
    return !failed;
}

/* Elements whose gradient is a rounding error move by up to lr / eps of it: less than 1e-9. */
static bool execute(struct tsr_job *job, struct tsr_job *one_job, const struct mix *m, char *why)
{
    struct job_rank *ranks, *one;
    struct tensors saved, one_saved;
    tensors_init(&saved);
    tensors_init(&one_saved);
    job->executes = one_job->executes = true;
    train(job, m, 1, &saved, &ranks);
    train(one_job, m, m->data_ranks, &one_saved, &one);
    bool right = ran(ranks, "run", why) && ran(one, "run of one rank", why) &&
                 same_numbers(m, ranks, one, why) &&
                 tensors_same(&saved, &one_saved, m->exact ? 1e-9 : 0, why, WHY) &&
                 compare_hashes(job, ranks, why);
    job_close(ranks);
    job_close(one);
    tensors_fini(&saved);
    tensors_fini(&one_saved);
    return right;
}

static bool try_mix(const struct mix *m, char *why)
{
    struct opened mixed, one = {0};
    bool right = false;
    tsr_status status = open_text(m->strategy, &mixed);
    if (status != TSR_OK)
        snprintf(why, WHY, "refused: %s", tsr_error_text());
    else if (!m->simulated_only && (status = open_text(m->reference, &one)) != TSR_OK)
        snprintf(why, WHY, "the one rank is refused: %s", tsr_error_text());
    else if (check(&mixed.job, why))
        right = m->simulated_only ? compare_hashes(&mixed.job, NULL, why)
                                  : execute(&mixed.job, &one.job, m, why);
    report.refused += status != TSR_OK;
    close_text(&mixed);
    close_text(&one);
    return right;
}

/* ---- many ------------------------------------------------------------------------------------ */

static void write_model(const char *folder, const struct mix *m)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, m->model_name);
    FILE *file = fopen(path, "w");
    if (!file || fputs(m->model, file) < 0 || fclose(file) != 0)
        abort();
}

static void try_one(const struct mix *m, const char *folder)
{
    char why[WHY] = "";
    write_model(folder, m);
    bool right = try_mix(m, why);
    report.mixes++;
    report.wrong += !right;
    report.simulated_only += m->simulated_only;
    report.exact += m->exact;
    if (!right)
        fprintf(stderr, "%s%smix %" PRIu64 " (world %u): %s\n", m->what ? m->what : "",
                m->what ? ": " : "", m->seed, m->world, why);
}

static void make_folder(char *folder)
{
    if (!mkdtemp(folder))
        abort();
}

static void drop_folder(const char *folder)
{
    static const char *const names[] = {"model.json", "tree.yaml"};
    char path[256];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void try_mixes(uint64_t n, uint64_t seed)
{
    static struct mix m;
    char folder[] = "/tmp/tessera-mixes-XXXXXX";
    make_folder(folder);
    for (uint64_t i = 0; i < n; i++) {
        mix_draw(seed + i, folder, &m);
        try_one(&m, folder);
    }
    drop_folder(folder);
    printf("%" PRIu64 " mixes from seed %" PRIu64 ": %" PRIu64 " wrong, of which %" PRIu64
           " refused; %" PRIu64 " dead; %" PRIu64 " in f64, %" PRIu64
           " simulated only; at most %.2g of the "
           "tolerance in f64, %.2g in f32, %.2g with bf16, %.2g with f16\n",
           report.mixes, seed, report.wrong, report.refused, report.dead, report.exact,
           report.simulated_only, report.worst[0], report.worst[1], report.worst[2],
           report.worst[3]);
}

static void random_mixes__checked_and_executed__as_one_rank(void **state)
{
    (void)state;
    uint64_t wrong = report.wrong, tried = report.mixes;
    try_mixes(n_mixes(), 1);
    assert_int_equal(report.wrong, wrong);
    assert_int_equal(report.mixes, tried + n_mixes());
    assert_true(report.exact > n_mixes() / 3);
    assert_true(report.worst[0] > 0); /* something was compared */
    assert_true(20 * report.dead <= n_mixes() + 20);
}

static void found_mixes__mended__as_one_rank(void **state)
{
    static struct mix m;
    char folder[] = "/tmp/tessera-mixes-XXXXXX";
    uint64_t wrong = report.wrong, tried = report.mixes;
    (void)state;
    make_folder(folder);
    for (size_t i = 0; mix_found(i, folder, &m); i++)
        try_one(&m, folder);
    drop_folder(folder);
    assert_int_equal(report.wrong, wrong);
    assert_true(report.mixes > tried);
}

static void folded_scale__beside_f64__refused(void **state)
{
    struct opened o;
    (void)state;
    tsr_status status = open_text("model: llama-3.2-1b\nworld: 3\nfolded_scale: true\n"
                                  "optimizer: {variant: fused}\n"
                                  "precision: {master: f64, param: none, reduce: none}\n",
                                  &o);
    close_text(&o);
    assert_int_equal(status, TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), "folded_scale: found true beside precision.master"));
}

static void print_mix(uint64_t seed)
{
    static struct mix m;
    mix_draw(seed, ".", &m);
    printf("--- %s\n%s--- strategy\n%s--- one rank\n%s", m.model_name, m.model, m.strategy,
           m.reference);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(found_mixes__mended__as_one_rank),
        cmocka_unit_test(folded_scale__beside_f64__refused),
        cmocka_unit_test(random_mixes__checked_and_executed__as_one_rank)};
    if (argc == 3 && !strcmp(argv[1], "--print")) {
        print_mix(strtoull(argv[2], NULL, 10));
        return 0;
    }
    if (argc > 1) {
        try_mixes(strtoull(argv[1], NULL, 10), argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
        return report.wrong > 0;
    }
    return cmocka_run_group_tests_name("mixes", tests, NULL, NULL);
}
