/* report_answer.h: the answer of a comparison, for people. */
#ifndef TSR_STUDY_REPORT_ANSWER_H
#define TSR_STUDY_REPORT_ANSWER_H

#include <stdbool.h>
#include <stdio.h>

#include "experiments/study/job/result.h"

/* Writes below the table: verdicts, failures, the winner and why, the command that writes its code,
 * and three lines on what the figures rest on. */
void tsr__put_answer(FILE *out, const struct tsr_study_info *info, const struct tsr_row *rows,
                     size_t n);
/* Writes the command that leaves the row's PyTorch code in out/code, or with `on` the one that runs
 * the row on "cuda" or "host"; without a line's end. */
void tsr__put_next(FILE *out, const struct tsr_study_info *info, const struct tsr_row *row,
                   const char *on);
/* Returns the bytes of a card that the process can use, of the first row that has them; 0: unknown.
 */
uint64_t tsr__usable_of(const struct tsr_row *rows, size_t n);

#endif
