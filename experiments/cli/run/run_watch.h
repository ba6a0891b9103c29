/* run_watch.h: who watches a rank while it trains: `tessera run --check` and `--profile`. Each is
 * an executor that sees every instruction before the rank's own executes it.
 */
#ifndef TSR_CLI_RUN_WATCH_H
#define TSR_CLI_RUN_WATCH_H

#include "engine/check/check.h"
#include "exec/executor/executor.h"
#include "experiments/study/job/emit.h"
#include "experiments/study/job/job.h"

/* ---- --check ------------------------------------------------------------------------------------
 * Every instruction goes through the schedule checker (engine/check/check.h), and after every step
 * what the streams did is compared with what they were told, by the executed hash. The first
 * difference ends the run. */

struct tsr_run_check {
    struct tsr_executor base; /* a watcher: the executor's */
    struct tsr_checker *checker;
    struct tsr_executor *checks;
    uint32_t rank;
    struct tsr_exec_hash told;
};

/* Before there are ranks: the programs of all of them, emitted and compared. TSR_EDEFECT: the first
 * finding. */
tsr_status tsr_run_check_job(const struct tsr_job *job) TSR_MUST_USE;

/* next: another watcher, or NULL. Finish in any case. */
tsr_status tsr_run_check_init(struct tsr_run_check *check, uint32_t rank, uint32_t world,
                              struct tsr_executor *next) TSR_MUST_USE;
void tsr_run_check_fini(struct tsr_run_check *check);
/* The engine's, before its first instruction. */
void tsr_run_check_tables(struct tsr_run_check *check, const struct tsr_tables *tables);
/* Waits for all streams of `executor`, which `check` watches. For struct tsr_train_config. */
tsr_status tsr_run_check_step(void *check, struct tsr_executor *executor,
                              uint64_t step) TSR_MUST_USE;

/* ---- --profile ----------------------------------------------------------------------------------
 * Of one rank, the programs of its first iterations and when each instruction was issued, began and
 * ended; as the same files that a simulation leaves. */

/* Keeps the programs of the first `wanted` iterations as they pass to the executor, and the number
 * of each one's first instruction there, by which times are looked up when all is over. */
struct tsr_run_profile {
    struct tsr_executor base;                         /* watches an executor's instructions */
    struct tsr_executor *of;                          /* that executor; borrowed */
    uint32_t wanted, done;                            /* iterations */
    struct tsr_program *programs[TSR_MAX_ITERATIONS]; /* owned */
    uint64_t first_number[TSR_MAX_ITERATIONS];
    uint32_t n;
    uint64_t count; /* instructions seen */
    const struct tsr_tables *tables;
    bool between; /* the latest iteration has ended, and none has begun */
    bool over;
};

/* iterations: of the run, from its first on. */
tsr_status tsr_run_profile_init(struct tsr_run_profile *profile, uint32_t iterations) TSR_MUST_USE;
void tsr_run_profile_fini(struct tsr_run_profile *profile);
/* After the run, drained: DIR/measured/ gets summary.json and, in a folder of the strategy, what
 * `sim --out` writes, with measured times. gpu: the name of the rank's GPU; NULL: the ranks are
 * this machine's cores. */
tsr_status tsr_run_profile_write(struct tsr_run_profile *profile, const struct tsr_job *job,
                                 struct tsr_engine *engine, const char *dir,
                                 const char *gpu) TSR_MUST_USE;

#endif
