/* oom.h: the report of a simulated device that ran out of memory: who asked for how much, what was
 * there, who held it, what would have fitted.
 */
#ifndef TSR_STUDY_OOM_H
#define TSR_STUDY_OOM_H

#include "experiments/study/job/emit.h"
#include "experiments/study/job/result.h"

/* After tsr_emit_or_keep() returned TSR_EOOM: fills row->failure, in one line, and row->oom_phase.
 * With `dir` also row->remedy, and in DIR/STRATEGY oom.json and snapshot.pickle, the state at that
 * moment. */
tsr_status tsr_oom_report(const struct tsr_job *job, const struct tsr_emission *emission,
                          const char *dir, struct tsr_row *row) TSR_MUST_USE;

/* Fills row->remedy if it is empty: where row->oom_phase is init, load or save, the value of that
 * key that needs least, if it fits; else the largest batch, or the longest sequence, that fits
 * (with that value). Emits a few more strategies; one rank of each. */
tsr_status tsr_oom_remedy(const struct tsr_job *job, struct tsr_row *row) TSR_MUST_USE;

/* A row that failed with TSR_EOOM, told by that report; returns TSR_EOOM with its line, or what
 * went wrong on the way. */
tsr_status tsr_oom_fail(const struct tsr_job *job, const struct tsr_emission *emission,
                        const char *dir, struct tsr_row *row) TSR_MUST_USE;
/* What is asked of a strategy's programs. */
typedef tsr_status (*tsr_programs_fn)(void *user, const struct tsr_job *job,
                                      struct tsr_emission *emission, struct tsr_row *row);
/* Begins the row, emits the programs and hands them to `use`; where memory runs out on the way,
 * fails as tsr_oom_fail() does. */
tsr_status tsr_with_programs(const struct tsr_job *job, struct tsr_row *row, tsr_programs_fn use,
                             void *user) TSR_MUST_USE;

/* Whether `value` (a batch, a sequence length) fits. An error ends the search. */
typedef tsr_status (*tsr_fits_fn)(const void *user, uint64_t value, bool *fits);
/* The largest value below `above`, in steps of `unit`, that fits. `least`, a multiple of `unit`, is
 * taken to fit (0: nothing does) and *out if no larger one does. Asks about
 * log2((above - least) / unit) values. */
tsr_status tsr_oom_largest(tsr_fits_fn fits, const void *user, uint64_t unit, uint64_t least,
                           uint64_t above, uint64_t *out) TSR_MUST_USE;

#endif
