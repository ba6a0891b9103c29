/* check_run.h: the schedule checker (engine/check/check.h) over the programs of all ranks of
 * something: a job (check_job.c), or what other commands can emit.
 */
#ifndef TSR_CLI_CHECK_RUN_H
#define TSR_CLI_CHECK_RUN_H

#include "engine/check/check.h"
#include "engine/tessera.h"
#include "experiments/study/job/job.h"

enum {
    TSR_CHECK_ITERATIONS = 3,
    TSR_CHECK_ALL_RANKS = 64 /* larger worlds: a rank of each class */
};

/* Where the programs come from. `user` is passed to each function. */
struct tsr_check_source {
    void *user;
    uint32_t world;
    bool rank_0_alone; /* no other rank has the program of rank 0 */
    /* Makes the engine of a rank, which issues into `executor`. */
    tsr_status (*open)(void *user, uint32_t rank, struct tsr_executor *executor,
                       struct tsr_engine **engine);
    /* Lets an engine that is open issue all that is to be checked, beginning with the parameters.
     */
    tsr_status (*emit)(void *user, uint32_t rank, struct tsr_checker *checker,
                       struct tsr_engine *engine);
    /* Ends a rank, also one whose engine could not be opened (NULL). */
    void (*close)(void *user, uint32_t rank, struct tsr_engine *engine);
};

/* The programs of a job: initialisation, steps, and the phases between steps. Borrows the job. */
struct tsr_check_source tsr_check_job(const struct tsr_job *job);

/* What the sources of one call had in common to say at the end. */
struct tsr_check_verdict {
    uint64_t findings;
    char first[900]; /* where and what */
};

/* Checks a source and prints what was found below its name; adds to the verdict. Errors: those of
 * emission; TSR_EIO. Defects are findings. */
tsr_status tsr_check_print(const char *name, const struct tsr_check_source *source,
                           struct tsr_check_verdict *verdict) TSR_MUST_USE;
/* Checks a source and prints nothing; *finding: the first defect as text, "" without one. Errors:
 * those of emission. */
tsr_status tsr_check_quietly(const struct tsr_check_source *source, char *finding,
                             size_t size) TSR_MUST_USE;
/* Returns the end of a call about `file`: TSR_EDEFECT with the first defect, or TSR_OK. */
tsr_status tsr_check_end(const char *file, const struct tsr_check_verdict *verdict) TSR_MUST_USE;

/* Prints a line on stderr for each race of PyTorch's own that one of the engines has (NULL: none
 * there); `name`: what was run. Nothing fails. */
void tsr_note_races(const char *name, struct tsr_engine *const *engines, size_t n);

#endif
