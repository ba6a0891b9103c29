/* report_text.h: names and text shared by the report's files. */
#ifndef TSR_STUDY_REPORT_TEXT_H
#define TSR_STUDY_REPORT_TEXT_H

#include "experiments/study/base/literals.h"
#include "experiments/study/job/result.h"

#include <stdio.h>

#define TSR__GIB 1073741824.0

const char *tsr__version(void);

/* The folder of a strategy: letters, digits and any of "._-+=@" of its name. A name that had others
 * gets a short hash, so that two names never share a folder; and so does one that a file of the
 * study could have ("summary.csv", "rows"), which would be a folder then. */
void tsr__folder_name(const char *strategy, char *out, size_t size);

/* "8", or "2 to 128" where strategies differ. */
const char *tsr__ranks_text(const struct tsr_study_info *info, char out[32]);

/* "8 GPUs"; of a run on the host "2 ranks on 8 cores"; "2 ranks" where it is not known on what. */
const char *tsr__machine_text(const struct tsr_study_info *info, char out[64]);

/* Some rows are measured and some simulated: their times are not drawn in one picture. */
bool tsr__is_mixed(const struct tsr_row *rows, size_t n);

/* Seconds per token and GPU: what ranks rows, since a sweep's work on different numbers of tokens.
 */
double tsr__token_s(const struct tsr_row *row);
/* Row i is on the front: of those that fit and change neither numbers nor hardware (where there is
 * none, of all that fit; else of all) no other is as fast by token and as small. */
bool tsr__on_front(const struct tsr_row *rows, size_t n, size_t i);
/* How a row is run; NULL: not said. */
const struct tsr_run_words *tsr__run_of(const struct tsr_study_info *info, const char *strategy);
/* All rows have the tokens per GPU and step of the first one. */
bool tsr__same_tokens(const struct tsr_row *rows, size_t n);
/* Returns the time of kernels that the cost model does not know over the time of the steady step;
 * negative: unknown, since the row failed or was measured. */
double tsr__unknown_share(const struct tsr_row *row);
/* Returns whether any row has such kernels. */
bool tsr__any_unknown(const struct tsr_row *rows, size_t n);
/* Writes a number of bytes with its unit: "3.74 GiB", "512 B". Returns `out`. */
const char *tsr_bytes_text(double bytes, char out[32]);

/* The fastest row of those with this `fits` and these changes; -1: there is none. */
int tsr__fastest_row(const struct tsr_row *rows, size_t n, int fits, unsigned changes);
/* The winner: the fastest that fits, else of which that is unknown, of those that change neither
 * numbers nor hardware; only if there is none of those, of the others. -1: none. */
int tsr__best_row(const struct tsr_row *rows, size_t n);

/* The '#' lines at the head of a data file: where it comes from, what the columns are. `strategy`
 * may be NULL. */
void tsr__put_provenance(FILE *out, const struct tsr_study_info *info, const char *strategy,
                         const char *columns);

/* The categories as pictures stack them, from below: what stays, what comes and goes. */
extern const uint8_t tsr__stack_order[TSR_N_CATEGORIES];

/* "sharded_param" from "Sharded Param", "opt_state" from "OptState". */
void tsr__category_key(int category, char *out, size_t size);

bool tsr__is_collective(const struct tsr_instr *instr);
/* True for what keeps a stream busy: kernels, copies, collectives. */
bool tsr__is_busy_work(const struct tsr_instr *instr);

/* "AG layers.5", "mm", "copy": for lanes and tables. */
void tsr__work_label(const struct tsr_tables *tables, const struct tsr_instr *instr, char *out,
                     size_t size);
/* "layers.5" from "model.layers.5", "5.q_proj" from "model.layers.5.self_attn.q_proj", "norm,
 * lm_head" from "model.norm, lm_head". */
void tsr__short_name(const char *name, char *out, size_t size);

#endif
