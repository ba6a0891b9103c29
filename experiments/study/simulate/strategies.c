/* strategies.c: simulates the strategies of a study, a few at a time in child processes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/exit_status.h"
#include "experiments/study/base/pool.h"
#include "experiments/study/simulate/open.h"
#include "experiments/study/simulate/simulate.h"

struct strategies {
    const struct tsr_study *study;
    const char *dir;
    const struct tsr_pool_hooks *hooks; /* NULL: none */
    const size_t *wanted;               /* [work item]: strategy */
    struct tsr_row *rows;
};

static void run_strategy(void *user, size_t item, void *result)
{
    const struct strategies *s = user;
    tsr_status status =
        tsr_simulate(&s->study->jobs[s->wanted[item]], &s->study->info, s->dir, result);
    (void)status; /* the row says it */
}

/* Mistakes and failures of the machine end a comparison; what does not fit is a result. */
static tsr_status verdict(const struct tsr_row *row)
{
    if (!row->failure[0] || row->failure_status == TSR_EXIT_UNFIT)
        return TSR_OK;
    tsr_status status = row->failure_status == TSR_EXIT_MACHINE ? TSR_EBACKEND : TSR_ECONFIG;
    return tsr_fail(status, "%s", row->failure);
}

static tsr_status take_strategy(void *user, size_t work, const void *result, const char *end)
{
    const struct strategies *s = user;
    size_t item = s->wanted[work];
    struct tsr_row *row = &s->rows[item];
    if (!end) {
        memcpy(row, result, sizeof(*row));
        TSR_TRY(verdict(row));
        return s->hooks ? s->hooks->done(s->hooks->user, item, row) : TSR_OK;
    }
    tsr_row_begin(row, &s->study->jobs[item]);
    snprintf(row->failure, sizeof row->failure, "the simulation of %s ended by %s", row->strategy,
             end);
    row->failure_status = TSR_EXIT_MACHINE;
    return verdict(row);
}

static const char *name_strategy(void *user, size_t item)
{
    const struct strategies *s = user;
    return s->study->experiment.strategies[s->wanted[item]].name;
}

tsr_status tsr_pool_run(const struct tsr_study *study, const char *dir, uint64_t jobs,
                        const struct tsr_pool_hooks *hooks, struct tsr_row *rows)
{
    size_t *wanted = calloc(study->n + 1, sizeof *wanted);
    if (!wanted)
        return tsr_no_memory(NULL);
    struct strategies s = {study, dir, hooks, wanted, rows};
    struct tsr_pool_work work = {.result_bytes = sizeof(struct tsr_row),
                                 .user = &s,
                                 .run = run_strategy,
                                 .take = take_strategy,
                                 .name = name_strategy};
    for (size_t i = 0; i < study->n; i++)
        if (!hooks || hooks->wants(hooks->user, i))
            wanted[work.n++] = i;
    tsr_status status = tsr_pool_each(&work, jobs);
    free(wanted);
    return status;
}
