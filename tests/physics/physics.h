/* physics.h: an experiment from its text to a simulated step, through the C functions that the
 * program uses. One test is one executable, so everything is in this header. */
#ifndef TSR_PHYSICS_H
#define TSR_PHYSICS_H

/* cmocka.h needs these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/program/memory.h"
#include "experiments/study/job/build.h"
#include "experiments/study/job/emit.h"
#include "sim/card/cost.h"
#include "sim/figures/metrics.h"

/* One strategy: its programs and, after study_simulate(), their timed replay. */
struct study {
    struct tsr_experiment experiment;
    struct tsr_job job;
    struct tsr_emission emission;
    const struct tsr_program *const **programs; /* [class] */
    struct tsr_sim_job sim;
    struct tsr_sim_result *result;
    uint32_t steady; /* index of the steady iteration */
};

#define study_ok(status)                      \
    do {                                      \
        if ((status) != TSR_OK)               \
            fail_msg("%s", tsr_error_text()); \
    } while (0)

/* Reads the text of an experiment file (without `strategies`) and emits its programs, with an
 * allocator that has `device_bytes` (0: no limit). */
static inline void study_open_limited(struct study *study, const char *text, uint64_t device_bytes)
{
    char path[] = "/tmp/tessera-physics-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    memset(study, 0, sizeof *study);
    tsr_status status = tsr_experiment_load(path, NULL, 0, &study->experiment);
    unlink(path);
    study_ok(status);
    study_ok(tsr_job_open(&study->experiment, &study->experiment.strategies[0],
                          TSR_MAY_LACK_CLUSTER, &study->job));
    study->job.limit_bytes = device_bytes;
    study_ok(tsr_emit(&study->job, &study->emission));
    const struct tsr_emission *e = &study->emission;
    study->programs = calloc(e->n_classes, sizeof *study->programs);
    assert_non_null(study->programs);
    for (uint32_t i = 0; i < e->n_classes; i++)
        study->programs[i] = (const struct tsr_program *const *)e->classes[i].programs;
    study->sim = (struct tsr_sim_job){.world = e->world,
                                      .n_classes = e->n_classes,
                                      .n_iterations = e->n_iterations,
                                      .class_of = e->class_of,
                                      .programs = study->programs};
    study->steady = e->n_iterations - 1;
}

static inline void study_open(struct study *study, const char *text)
{
    study_open_limited(study, text, 0);
}

/* The card of its data sheet and tables: kernels beside collectives, and nodes beside nodes, lose
 * nothing. */
static inline void study_uncalibrated(struct study *study)
{
    study->job.cluster.gpu.calibration = tsr_calibration_default();
}

static inline void study_close(struct study *study)
{
    tsr_sim_result_destroy(study->result);
    free(study->programs);
    tsr_emission_fini(&study->emission);
    tsr_job_close(&study->job);
    tsr_experiment_fini(&study->experiment);
}

/* Replaces the result of an earlier simulation. */
static inline const struct tsr_sim_result *study_simulate(struct study *study,
                                                          const struct tsr_sim_options *options)
{
    tsr_sim_result_destroy(study->result);
    study->result = NULL;
    study_ok(tsr_sim_run(&study->job.cluster, &study->sim, options, &study->result));
    return study->result;
}

static inline struct tsr_metrics study_metrics(const struct study *study)
{
    struct tsr_metrics metrics;
    study_ok(tsr_metrics_of(&study->sim, study->result, study->steady, &metrics, NULL));
    return metrics;
}

/* The steady step in seconds. */
static inline double study_step(struct study *study, const struct tsr_sim_options *options)
{
    study_simulate(study, options);
    return study_metrics(study).step_s;
}

/* Program and spans of a simulated rank in the steady iteration. */
static inline const struct tsr_program *study_program(const struct study *study, uint32_t i)
{
    return study->programs[study->result->ranks[i].layout][study->steady];
}
static inline const struct tsr_sim_span *study_spans(const struct study *study, uint32_t i)
{
    return study->result->ranks[i].spans[study->steady];
}

static inline bool is_kernel(const struct tsr_instr *instr)
{
    return instr->kind == TSR_OP || instr->kind == TSR_COPY || instr->kind == TSR_FILL;
}
static inline bool is_collective(const struct tsr_instr *instr)
{
    return instr->kind == TSR_ALL_GATHER || instr->kind == TSR_REDUCE_SCATTER ||
           instr->kind == TSR_ALL_REDUCE;
}
/* A copy that crosses the bus to the host. */
static inline bool is_host_copy(const struct tsr_instr *instr)
{
    for (uint32_t i = 0; instr->kind == TSR_COPY && i < instr->n_operands; i++)
        if (instr->operands[i].space != TSR_SPACE_DEVICE)
            return true;
    return false;
}
static inline bool on_compute_stream(const struct tsr_program *program,
                                     const struct tsr_instr *instr)
{
    return program->tables->streams[instr->stream].role == TSR_ROLE_COMPUTE;
}

/* No host cost, no latency, no limit of the queue; rings, whose laws are known. */
static inline struct tsr_sim_options ideal_options(void)
{
    struct tsr_sim_options o = tsr_sim_options_default();
    o.host_scale = 0.0;
    o.latency_scale = 0.0;
    o.queue_depth = 0;
    o.algorithm = TSR_ALGO_RING;
    return o;
}

static inline void assert_near_at(double value, double expected, double relative, const char *what,
                                  const char *file, int line)
{
    double scale = fabs(expected) > 0.0 ? fabs(expected) : 1.0;
    if (fabs(value - expected) <= relative * scale)
        return;
    print_error("%s: %.17g is not %.17g within %g (off by %g)\n", what, value, expected, relative,
                (value - expected) / scale);
    _fail(file, line);
}
#define assert_near(value, expected, relative, what) \
    assert_near_at((value), (expected), (relative), (what), __FILE__, __LINE__)

/* value >= bound, but for rounding. */
static inline void assert_at_least_at(double value, double bound, const char *what,
                                      const char *file, int line)
{
    if (value >= bound * (1.0 - 1e-9))
        return;
    print_error("%s: %.17g is below %.17g\n", what, value, bound);
    _fail(file, line);
}
#define assert_at_least(value, bound, what) \
    assert_at_least_at((value), (bound), (what), __FILE__, __LINE__)

#endif
