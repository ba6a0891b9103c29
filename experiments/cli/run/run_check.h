/* run_check.h: `tessera run --check`: a rank that is watched while it trains.
 *
 * Every instruction goes through the schedule checker (engine/check/check.h) before it is executed,
 * and after every step what the streams did is compared with what they were told, by the executed
 * hash. The first difference ends the run.
 */
#ifndef TSR_CLI_RUN_CHECK_H
#define TSR_CLI_RUN_CHECK_H

#include "engine/check/check.h"
#include "experiments/study/job/job.h"

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

#endif
