/* open.h: the strategies of one experiment, resolved and checked, and what reports say of them. */
#ifndef TSR_STUDY_OPEN_H
#define TSR_STUDY_OPEN_H

#include "experiments/study/job/job.h"
#include "experiments/study/job/result.h"

/* Read first, built when the strategies are needed: what asks about a single one (explain) reads
 * alone. */
struct tsr_study {
    struct tsr_study_request request;
    struct tsr_experiment experiment;
    size_t n;             /* 0 until it is built */
    struct tsr_job *jobs; /* one per strategy, in order */
    char *resolved_yaml;
    struct tsr_study_info info;            /* of the first strategy */
    struct tsr_measured_classes *measured; /* owned; the experiment borrows it */
};

/* Loads the experiment and keeps the strategies that the request names. Borrows what the request
 * points to. On failure nothing is to be freed. */
tsr_status tsr_study_read(const struct tsr_study_request *request,
                          struct tsr_study *out) TSR_MUST_USE;
/* Resolves and builds every strategy once: all mistakes of the user are found here. Does nothing
 * the second time. */
tsr_status tsr_study_build(struct tsr_study *study) TSR_MUST_USE;
void tsr_study_fini(struct tsr_study *study);

/* Makes the output folder and tries a file in it. Errors: TSR_ECONFIG if it cannot be used. */
tsr_status tsr_prepare_out(const char *dir) TSR_MUST_USE;
/* Before work is done for it: `path` (NULL: standard output) can be made in a folder that there is.
 * `option`: its name, for messages. Errors: TSR_ECONFIG. */
tsr_status tsr_prepare_file(const char *option, const char *path) TSR_MUST_USE;

/* Writes what a study leaves in its folder beside the files of the strategies: experiment.yaml (the
 * resolved file), summaries, pictures. */
tsr_status tsr_study_files(const struct tsr_study *study, const char *dir,
                           const struct tsr_row *rows, size_t n) TSR_MUST_USE;

/* Tells the notes of all jobs, each once (listener.h). */
void tsr_study_notes(const struct tsr_study *study);

/* What a part of a sweep changes (part.h). */
struct tsr_pool_hooks {
    void *user;
    bool (*wants)(void *user, size_t item); /* else it is left out */
    tsr_status (*done)(void *user, size_t item, const struct tsr_row *row);
};

/* Simulates all strategies, `jobs` at a time in child processes; rows[n]. A strategy
 * that is a mistake or a failure of the machine ends the comparison with its error. `hooks` may be
 * NULL. */
tsr_status tsr_pool_run(const struct tsr_study *study, const char *dir, uint64_t jobs,
                        const struct tsr_pool_hooks *hooks, struct tsr_row *rows) TSR_MUST_USE;

#endif
