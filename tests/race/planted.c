/* planted.c: runs a strategy on the host, with a wait left out: ThreadSanitizer must see the race.
 *
 * usage: race_planted SEED STRATEGY [STREAM NUMBER]
 *
 * Leaves out the NUMBER-th (0, 1, ...) WAIT of that stream in the second step, on every rank;
 * STREAM "host": the HOST_WAIT, "read": the wait of a HOST_READ. Exits with 0 when the job ends
 * well, with 2 when there is no such wait; the sanitizer exits with 66 when it has seen a race.
 */
#include "tests/exec/jobs_testing.h"

struct planted {
    const char *stream; /* NULL: nothing is left out */
    uint32_t number;
};

/* Stands before the executor of a rank. */
struct thief {
    struct tsr_executor base;
    struct tsr_executor *inner;
    const struct job_rank *rank;
    const struct planted *what;
    uint32_t seen;
    bool done;
};

static bool is_wait_of(const struct thief *t, const struct tsr_instr *instr)
{
    if (!strcmp(t->what->stream, "host"))
        return instr->kind == TSR_HOST_WAIT;
    if (!strcmp(t->what->stream, "read"))
        return instr->kind == TSR_HOST_READ;
    const struct tsr_tables *tables = tsr_engine_tables(t->rank->engine);
    return instr->kind == TSR_WAIT && !strcmp(tables->streams[instr->stream].name, t->what->stream);
}

static tsr_status submit(struct tsr_executor *x, const struct tsr_instr *instr)
{
    struct thief *t = (struct thief *)x;
    bool second = t->rank->n_programs == 3; /* initialisation, two steps */
    if (t->what->stream && second && is_wait_of(t, instr) && t->seen++ == t->what->number) {
        t->done = true;
        return TSR_OK;
    }
    return t->inner->ops->submit(t->inner, instr);
}

static tsr_status drain(struct tsr_executor *x)
{
    struct thief *t = (struct thief *)x;
    return t->inner->ops->drain(t->inner);
}

static tsr_status exchange(struct tsr_executor *x, const struct tsr_comm *comm, const void *in,
                           void *out, size_t bytes)
{
    struct thief *t = (struct thief *)x;
    return t->inner->ops->exchange(t->inner, comm, in, out, bytes);
}

static const struct tsr_executor_ops ops = {.size = sizeof ops,
                                            .version = TSR_EXECUTOR_VERSION,
                                            .name = "thief",
                                            .submit = submit,
                                            .drain = drain,
                                            .exchange = exchange};

static struct thief thieves[JOB_RANKS];
static struct planted planted;

static struct tsr_executor *insert(struct job_rank *rank, struct tsr_executor *executor)
{
    struct thief *t = &thieves[rank->rank];
    *t = (struct thief){
        .base = {.ops = &ops}, .inner = executor, .rank = rank, .what = rank->config->hooks.user};
    return &t->base;
}

int main(int argc, char **argv)
{
    struct job_config config = {.n_steps = 2,
                                .ahead = true,
                                .jitter_us = 50,
                                .hooks = {.user = &planted, .executor = insert}};
    struct strategies s;
    struct tsr_job job;
    struct job_rank *ranks;
    if (argc != 3 && argc != 5)
        return 2;
    config.jitter_seed = strtoul(argv[1], NULL, 10);
    if (argc == 5)
        planted = (struct planted){argv[3], (uint32_t)strtoul(argv[4], NULL, 10)};
    test_jitter(config.jitter_us, config.jitter_seed);
    strategies_open(&s);
    strategies_job(&s, argv[2], &job);
    job.executes = false; /* nobody waits for a loss */
    job_run_ok(&job, &config, &ranks);
    bool done = argc == 3 || thieves[0].done;
    job_close(ranks);
    tsr_job_close(&job);
    strategies_close(&s);
    if (!done)
        fprintf(stderr, "race_planted: %s has no such wait\n", argv[2]);
    return done ? 0 : 2;
}
