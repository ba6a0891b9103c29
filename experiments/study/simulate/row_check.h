/* row_check.h: whether the bytes of a row, which a file holds as they were in memory, are a row.
 *
 * Files of rows (rows/STRATEGY.row of compare --part, plan.resume) are for the program that wrote
 * them, and a hash says that they are whole; it does not say that they were not made by hand.
 */
#ifndef TSR_STUDY_ROW_CHECK_H
#define TSR_STUDY_ROW_CHECK_H

#include <stdbool.h>

/* True if every text of the sizeof(struct tsr_row) bytes ends in its room, every bool is 0 or 1 and
 * every enumeration has one of its values: such a row can be printed and compared. They need not
 * be aligned. */
bool tsr_row_is_possible(const void *bytes);

#endif
