/* part.h: a sweep that is larger than a machine: `compare --part I/N` simulates every N-th
 * strategy, keeps each finished row, and goes on where it was stopped; `compare --merge` makes the
 * tables and files of one run from the parts.
 *
 * A part leaves in its folder DIR: experiment.yaml (the resolved file, whole), study.json (what the
 * table says beside the rows), rows/STRATEGY.row (the row, with a digest of all that it depends on)
 * and the files of each strategy. A row is written last, under its name at once: what has a row
 * is complete.
 */
#ifndef TSR_STUDY_PART_H
#define TSR_STUDY_PART_H

#include "experiments/study/base/files.h"
#include "experiments/study/simulate/open.h"

struct tsr_sweep_part {
    uint64_t index, of; /* from 1 */
};

/* "3/8", or "auto": from the variables of a Slurm array, of srun, Open MPI, MPICH or torchrun, the
 * first that are set. Errors: TSR_ECONFIG. */
tsr_status tsr_part_parse(const char *text, struct tsr_sweep_part *out) TSR_MUST_USE;
static inline bool tsr_part_has(const struct tsr_sweep_part *part, size_t item)
{
    return item % part->of == part->index - 1;
}

/* Rows in a folder. A row is used again only if nothing has changed that it depends on: the
 * resolved settings of its strategy, the content of the model, cluster and device files, and this
 * program. */
struct tsr_part_rows {
    const struct tsr_study *study; /* borrowed */
    uint64_t program;              /* hash of the program file */
};

/* Writes the first line of a row file, of which the second is `line`; returns its length. For
 * tests, too. */
enum { TSR_ROW_HEAD_BYTES = 128 };
size_t tsr__row_head(const char *line, size_t n, uint64_t digest, char out[TSR_ROW_HEAD_BYTES]);
/* Reads a row file; for tests, too. False: it is no row that was written with this digest. */
bool tsr__row_parse(const char *data, size_t n, uint64_t digest, struct tsr_row *row);

/* Simulates the strategies of a part that its folder does not have yet, `jobs` at a time, and keeps
 * each as it comes. rows[n of the study]: those of the part are filled in. */
tsr_status tsr_part_run(const struct tsr_study *study, const struct tsr_sweep_part *part,
                        const char *dir, uint64_t jobs, struct tsr_row *rows) TSR_MUST_USE;

/* All parts together. */
struct tsr_merged {
    struct tsr_study study;
    struct tsr_row *rows; /* [study.n] */
    /* Of its own. */
    const char *const *folders; /* [n_folders] borrowed, as is out */
    size_t n_folders;
    const char *out;
    char path[TSR_PATH_BYTES]; /* of the experiment */
    const char **home;         /* [study.n] the folder that has the row */
    struct json_t *said;       /* study.json */
};
/* Collects the rows from the folders of all parts, at least one. `out`: where tsr_merged_write()
 * will write; NULL: nowhere. Errors: TSR_ECONFIG (parts of another experiment, rows that are
 * missing). On failure nothing is to be freed. */
tsr_status tsr_merged_open(const char *const *folders, size_t n, const char *out,
                           struct tsr_merged *merged) TSR_MUST_USE;
void tsr_merged_fini(struct tsr_merged *merged);
/* The files of the strategies, and those of the study. */
tsr_status tsr_merged_write(const struct tsr_merged *merged) TSR_MUST_USE;

#endif
