/* run_check.c: see run_check.h. */
#include "experiments/cli/run/run_check.h"

#include "exec/executor/executor.h"
#include "experiments/cli/inspect/check_run.h"

tsr_status tsr_run_check_job(const struct tsr_job *job)
{
    const struct tsr_check_source source = {.job = job};
    struct tsr_check_run run;
    tsr_status status = tsr_check_run(&source, &run);
    if (status == TSR_OK && tsr_checker_n_findings(run.checker) > 0)
        status = tsr_fail(TSR_EDEFECT, "--check: %s; see tessera check",
                          tsr_checker_finding(run.checker, 0)->headline);
    tsr_check_run_close(&run);
    return status;
}

static tsr_status watch(struct tsr_executor *x, const struct tsr_instr *instr)
{
    struct tsr_run_check *c = (struct tsr_run_check *)x;
    if (tsr_instr_is_work(instr)) {
        struct tsr_exec_record record = tsr_exec_record_of(instr);
        tsr_exec_record_done(&c->told, &record);
    }
    return c->checks->ops->submit(c->checks, instr);
}

static const struct tsr_executor_ops ops = {.size = sizeof(struct tsr_executor_ops),
                                            .version = TSR_EXECUTOR_VERSION,
                                            .name = "check",
                                            .submit = watch};

tsr_status tsr_run_check_init(struct tsr_run_check *c, uint32_t rank, uint32_t world,
                              struct tsr_executor *next)
{
    const struct tsr_checker_config config = {.world = world, .stop = true};
    *c = (struct tsr_run_check){.base = {.ops = &ops}, .rank = rank};
    tsr_exec_hash_init(&c->told);
    TSR_TRY(tsr_checker_create(&config, &c->checker));
    return tsr_checker_rank(c->checker, rank, NULL, next, &c->checks);
}

void tsr_run_check_fini(struct tsr_run_check *c)
{
    tsr_checker_destroy(c->checker); /* with its executors */
    *c = (struct tsr_run_check){.checker = NULL};
}

void tsr_run_check_tables(struct tsr_run_check *c, const struct tsr_tables *tables)
{
    tsr_checker_set_tables(c->checker, c->rank, tables);
}

tsr_status tsr_run_check_step(void *user, struct tsr_executor *executor, uint64_t step)
{
    const struct tsr_run_check *c = user;
    TSR_TRY(executor->ops->drain(executor));
    uint64_t told = tsr_exec_hash_value(&c->told), did = tsr_exec_hash(executor);
    if (told == did)
        return TSR_OK;
    return tsr_fail(TSR_EDEFECT,
                    "--check: step %llu: the streams did not do what they were told: executed "
                    "hash %016llx, the program's %016llx",
                    (unsigned long long)step, (unsigned long long)did, (unsigned long long)told);
}
