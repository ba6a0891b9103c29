/* bench.c: how long tessera itself takes; a benchmark, not a test. Prints, for Llama-3.1-8B on 8
 * and on 128 GPUs, the wall time of emission and simulation per simulated step, by strategy, and
 * that of the whole comparison; the time of a search over 500 configurations of the first study;
 * what the memory of a step alone takes, and the allocator.
 *
 * Usage: tessera_bench PROGRAM OUT-FOLDER EXPERIMENT...      (cmake --build build --target bench)
 *
 * Targets, on one core: 0.1 s per simulated step; 10 s for a comparison of 12 strategies. On two:
 * 30 s to emit 500 configurations. "of target" below 1 is good. The figures depend on the machine
 * and its load: quote medians.
 */
#include "tests/bench/bench.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

static const double step_target_s = 0.1, compare_target_s = 10.0, plan_target_s = 30.0;

static double read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double bench_now(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

double bench_cpu(void)
{
    return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

static double children_cpu(void)
{
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* ---- comparisons ------------------------------------------------------------------------- */

/* Runs the program without its output; its exit status, -1 if it did not end by itself. */
static int run_program(const char *const *args)
{
    (void)fflush(stdout); /* else the child would print it again */
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
            _exit(127);
        execv(args[0], (char *const *)args);
        _exit(127);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return -1;
    return WEXITSTATUS(status);
}

static double number(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

static void print_row(const json_t *row, const json_t *wall)
{
    double n = number(row, "iterations"), emit = number(wall, "emission_wall_s"),
           sim = number(wall, "simulation_wall_s");
    if (n < 1)
        return; /* did not fit, or failed: nothing was simulated */
    double step = (emit + sim) / n;
    printf("  %-28s %8.0f instructions  emit %7.2f ms  simulate %7.2f ms  step %7.2f ms  "
           "(%.2f of target)\n",
           json_string_value(json_object_get(row, "strategy")), number(row, "instructions"),
           1e3 * emit / n, 1e3 * sim / n, 1e3 * step, step / step_target_s);
}

static int bench_study(const char *program, const char *experiment, const char *out_root, int i)
{
    char out[4096], path[4200], wall_path[4200];
    (void)snprintf(out, sizeof out, "%s/study-%d", out_root, i);
    (void)snprintf(path, sizeof path, "%s/summary.json", out);
    (void)snprintf(wall_path, sizeof wall_path, "%s/wall.json", out);
    double start = bench_now(), cpu = children_cpu();
    const char *args[] = {program, "compare", experiment, "--out", out, "--jobs", "1", NULL};
    int status = run_program(args);
    double wall = bench_now() - start;
    cpu = children_cpu() - cpu;
    json_error_t error;
    json_t *summary = status == 0 ? json_load_file(path, 0, &error) : NULL;
    json_t *times = status == 0 ? json_load_file(wall_path, 0, &error) : NULL;
    if (!summary || !times) {
        json_decref(summary);
        json_decref(times);
        fprintf(stderr, "bench: %s compare %s ended with status %d\n", program, experiment, status);
        return 1;
    }
    const json_t *rows = json_object_get(summary, "rows");
    printf("%s\n", experiment);
    for (size_t r = 0; r < json_array_size(rows); r++)
        print_row(json_array_get(rows, r), json_array_get(times, r));
    double target = compare_target_s * (double)json_array_size(rows) / 12.0;
    printf(
        "  whole comparison, %zu strategies, --jobs 1: %.2f s wall, %.2f s CPU (%.2f of target)\n",
        json_array_size(rows), wall, cpu, wall / target);
    json_decref(summary);
    json_decref(times);
    return 0;
}

/* ---- a search ---------------------------------------------------------------------------- */

/* What others do not bound of 500 is emitted: everything fits into the budget. */
static int bench_plan(const char *program, const char *experiment, const char *out_root)
{
    static const char space[] =
        "plan.space={batch: [1, 2, 3, 4, 5], checkpoint: [none, full, 2, 3, 4], "
        "seq: [1024, 2048, 4096, 8192, 16384], "
        "reshard_after_forward: [null, true, false, 4]}";
    char out[4096], path[4200];
    (void)snprintf(out, sizeof out, "%s/plan", out_root);
    (void)snprintf(path, sizeof path, "%s/summary.json", out);
    const char *args[] = {
        program, "plan", experiment, "--set", space, "--out", out, "--set", "plan.budget_gib=4096",
        "--top", "1",    NULL};
    int status = run_program(args);
    json_error_t error;
    json_t *summary = status == 0 ? json_load_file(path, 0, &error) : NULL;
    if (!summary) {
        fprintf(stderr, "bench: %s plan %s ended with status %d\n", program, experiment, status);
        return 1;
    }
    const json_t *counts = json_object_get(summary, "configurations");
    double n = number(counts, "emitted"), wall = number(counts, "emission_wall_s");
    printf(
        "search: %.0f configurations emitted in %.2f s, --jobs 2 (%.2f of target), %.2f ms each; "
        "%.0f simulated in %.2f s\n",
        n, wall, wall / (plan_target_s * n / 500), 1e3 * wall / n, number(counts, "simulated"),
        number(counts, "simulation_wall_s"));
    json_decref(summary);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s PROGRAM OUT-FOLDER EXPERIMENT...\n", argv[0]);
        return 2;
    }
    int failed = bench_allocator() | bench_memory();
    for (int i = 3; i < argc; i++)
        failed |= bench_study(argv[1], argv[i], argv[2], i - 3);
    if (argc > 3)
        failed |= bench_plan(argv[1], argv[3], argv[2]);
    return failed;
}
