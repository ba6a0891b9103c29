/* curves_testing.h: runs of small models against recorded ones (tests/oracle/train): the loss and
 * the norm of the gradient of each step, and the held-out loss at the end.
 *
 * Tolerances are a few times what was measured; tests/oracle/train/README.md has the figures. In 40
 * steps rounding does not grow, in 200 that of the gradients does a little. Mixed precision is told
 * from f32 by them: there the curves are twice as far apart as is allowed here.
 */
#ifndef TSR_CURVES_TESTING_H
#define TSR_CURVES_TESTING_H

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/thorough.h"

enum { CURVE_STEPS = 200, CURVE_BF16 = -1 };

/* The short form, and sanitizers, which make runs many times as long, take every third run that is
 * marked `quick`. */
static inline size_t curve_stride(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 3;
#else
    return tests_stride(6);
#endif
}

/* Runs of one class must agree in every digit that is printed: they add the same numbers in the
 * same order. */
struct curve_run {
    const char *strategy;
    int bits;   /* class; 0: none; CURVE_BF16: mixed precision, recorded for 40 steps only */
    bool quick; /* one of those that the test suite runs */
};

struct curve {
    size_t n;
    double loss[CURVE_STEPS], norm[CURVE_STEPS], eval;
};

struct curve_job {
    const char *model;
    int steps;
    char folder[64];       /* of runs; removed at the end */
    json_t *recorded;      /* of the model: name -> curve */
    struct curve first[9]; /* of each class; n == 0: none yet */
    double worst[2][2];    /* of f32 and mixed precision: loss, norm */
};

/* ---- reading --------------------------------------------------------------------------------- */

static inline double curve_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* The metrics of a run; false: they are not whole. */
static inline bool curve_read(const char *dir, int steps, struct curve *c)
{
    char path[256], line[4096];
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    *c = (struct curve){.eval = NAN};
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        json_t *o = json_loads(line, 0, NULL);
        if (json_object_get(o, "eval_loss")) {
            c->eval = curve_number(o, "eval_loss");
        } else if (o && c->n < CURVE_STEPS) {
            c->loss[c->n] = curve_number(o, "loss");
            c->norm[c->n++] = curve_number(o, "grad_norm");
        }
        json_decref(o);
    }
    if (f)
        fclose(f);
    return c->n == (size_t)steps && !isnan(c->eval);
}

static inline bool curve_recorded(const struct curve_job *job, bool bf16, struct curve *c)
{
    char name[32];
    snprintf(name, sizeof name, "%d%s", job->steps, bf16 ? "-bf16" : "");
    json_t *from = json_object_get(job->recorded, name), *loss = json_object_get(from, "loss"),
           *norm = json_object_get(from, "grad_norm");
    *c = (struct curve){.n = json_array_size(loss), .eval = curve_number(from, "eval")};
    for (size_t i = 0; i < c->n && i < CURVE_STEPS; i++) {
        c->loss[i] = json_number_value(json_array_get(loss, i));
        c->norm[i] = json_number_value(json_array_get(norm, i));
    }
    return c->n == (size_t)job->steps && json_array_size(norm) == c->n && !isnan(c->eval);
}

/* ---- running --------------------------------------------------------------------------------- */

static inline int curve_execute(char *const *words, const char *log)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (!freopen(log, "w", stdout) || dup2(STDOUT_FILENO, STDERR_FILENO) < 0)
            _exit(126);
        execv(words[0], words);
        _exit(127);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        return -1;
    return WEXITSTATUS(status);
}

static inline void curve_remove(const char *dir)
{
    char *words[] = {"/bin/rm", "-rf", (char *)(uintptr_t)dir, NULL};
    curve_execute(words, "/dev/null");
}

static inline void curve_show(const char *path)
{
    char line[512];
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        fprintf(stderr, "  %s", line);
    if (f)
        fclose(f);
}

static inline bool curve_run(const struct curve_job *job, const char *strategy, struct curve *out)
{
    char file[1024], steps[32], dir[128], log[160];
    snprintf(file, sizeof file, "%s/tests/oracle/train/%s.yaml", getenv("TSR_SOURCE_DIR"),
             job->model);
    snprintf(steps, sizeof steps, "train.steps=%d", job->steps);
    snprintf(dir, sizeof dir, "%s/%s", job->folder, strategy);
    snprintf(log, sizeof log, "%s.log", dir);
    char *words[] = {getenv("TESSERA"),
                     "run",
                     file,
                     "--strategy",
                     (char *)(uintptr_t)strategy,
                     "--on",
                     "host",
                     "--set",
                     steps,
                     "--out",
                     dir,
                     NULL};
    int status = curve_execute(words, log);
    bool good = status == 0 && curve_read(dir, job->steps, out);
    if (!good) {
        fprintf(stderr, "%s %s: exit status %d\n", job->model, strategy, status);
        curve_show(log);
    }
    curve_remove(dir);
    return good;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Notes the largest difference; says the first that is too large. */
static inline bool curve_close(const char *what, size_t step, double ours, double recorded,
                               double allowed, double *worst)
{
    double difference = fabs(ours - recorded) / fabs(recorded);
    *worst = fmax(*worst, difference);
    if (difference <= allowed)
        return true;
    fprintf(stderr, "  %s of step %zu: recorded %.9g, ours %.9g\n", what, step, recorded, ours);
    return false;
}

static inline bool curve_compare(struct curve_job *job, bool bf16, const struct curve *c)
{
    struct curve gold;
    bool good = curve_recorded(job, bf16, &gold);
    double loss = job->steps > 40 ? 1e-5 : 2e-6, norm = job->steps > 40 ? 2e-3 : 2e-5;
    double *worst = job->worst[bf16];
    if (bf16) {
        loss = 2e-4;
        norm = 1e-2;
    }
    for (size_t i = 0; good && i < gold.n; i++) {
        good = curve_close("loss", i + 1, c->loss[i], gold.loss[i], loss, &worst[0]);
        good &= curve_close("norm", i + 1, c->norm[i], gold.norm[i], norm, &worst[1]);
    }
    return good && curve_close("held-out loss", gold.n, c->eval, gold.eval, loss, &worst[0]);
}

/* Against the first of its class. */
static inline bool curve_same_bits(struct curve_job *job, int class, const struct curve *c)
{
    struct curve *first = &job->first[class > 0 ? class : 0];
    if (class <= 0)
        return true;
    if (first->n == 0)
        *first = *c;
    for (size_t i = 0; i < c->n; i++)
        if (c->loss[i] != first->loss[i] || c->norm[i] != first->norm[i]) {
            fprintf(stderr,
                    "  step %zu: loss %.17g and norm %.17g, another run had %.17g and %.17g\n",
                    i + 1, c->loss[i], c->norm[i], first->loss[i], first->norm[i]);
            return false;
        }
    return true;
}

/* Returns how many runs are wrong. */
static inline int curve_check(const char *model, int steps, const struct curve_run *runs,
                              size_t n_runs, bool all)
{
    struct curve_job job = {.model = model, .steps = steps, .folder = "/tmp/tessera-curves-XXXXXX"};
    char path[1024];
    int bad = 0, n = 0, n_quick = 0;
    assert_non_null(getenv("TESSERA"));
    assert_non_null(getenv("TSR_SOURCE_DIR"));
    snprintf(path, sizeof path, "%s/tests/oracle/train/recorded/curves.json",
             getenv("TSR_SOURCE_DIR"));
    json_t *recorded = json_load_file(path, 0, NULL);
    job.recorded = json_object_get(recorded, model);
    assert_non_null(job.recorded);
    assert_non_null(mkdtemp(job.folder));
    for (size_t i = 0; i < n_runs; i++) {
        struct curve c;
        bool bf16 = runs[i].bits == CURVE_BF16;
        bool wanted = all || (runs[i].quick && n_quick++ % curve_stride() == 0);
        if (!wanted || (bf16 && steps != 40))
            continue;
        n++;
        if (curve_run(&job, runs[i].strategy, &c) && curve_compare(&job, bf16, &c) &&
            curve_same_bits(&job, runs[i].bits, &c))
            continue;
        fprintf(stderr, "%s %s differs\n", model, runs[i].strategy);
        bad++;
    }
    printf("%s, %d steps, %d runs: %d differ; largest relative difference: loss %.1e, norm %.1e; "
           "bf16: %.1e, %.1e\n",
           model, steps, n, bad, job.worst[0][0], job.worst[0][1], job.worst[1][0],
           job.worst[1][1]);
    curve_remove(job.folder);
    json_decref(recorded);
    return bad;
}

/* What both models' tests are; cmocka hands it to them as their state. */
struct curve_family {
    const char *model;
    const struct curve_run *runs;
    size_t n;
};

static inline void every_strategy_has_the_recorded_curve(void **state)
{
    const struct curve_family *f = *state;
    assert_int_equal(curve_check(f->model, 40, f->runs, f->n, false), 0);
}

/* After 200 steps, too: runs[0]. The short form does so for the Llama alone. */
static inline void the_curve_stays_the_recorded_one(void **state)
{
    const struct curve_family *f = *state;
    if (strcmp(f->model, "llama") != 0 && !tests_are_thorough())
        skip();
    assert_int_equal(curve_check(f->model, 200, f->runs, 1, true), 0);
}

/* main() of a family's test. --all: every run, in 40 and in 200 steps. */
static inline int curve_main(const char *model, const struct curve_run *runs, size_t n, int argc,
                             char **argv)
{
    struct curve_family family = {model, runs, n};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(every_strategy_has_the_recorded_curve, &family),
        cmocka_unit_test_prestate(the_curve_stays_the_recorded_one, &family)};
    if (argc > 1 && !strcmp(argv[1], "--all"))
        return curve_check(model, 40, runs, n, true) + curve_check(model, 200, runs, n, true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
