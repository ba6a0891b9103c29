/* fibers.h: the threads of a block as fibers of one OS thread. They run one after the other, each
 * to its next barrier, in the order of their numbers or in the opposite one: code that lacks a
 * barrier gives another result in the one than in the other.
 */
#ifndef TSR_STANDIN_FIBERS_H
#define TSR_STANDIN_FIBERS_H

#include <stdbool.h>

/* False under sanitizers, which cannot follow fibers. */
bool tsr_fibers_work(void);
/* Runs body(params) in as many fibers. `place`: where the number of the one that runs is kept. */
void tsr_fibers_run(unsigned threads, bool backwards, unsigned *place,
                    void (*body)(const void *params), const void *params);
/* True in a fiber. */
bool tsr_fibers_inside(void);
/* All fibers, or those of the warp, have come here. Ends the program if others of them have come to
 * another barrier, or to their end. */
void tsr_fibers_wait_block(void);
void tsr_fibers_wait_warp(void);

#endif
