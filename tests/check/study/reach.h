/* reach.h: a second opinion on a program: its happens-before graph, written down instruction by
 * instruction, its transitive closure as bits, and a look at every two accesses that conflict.
 * Shares no code and no data structure with the checker (engine/check*.c); it is for programs of a
 * few thousand instructions.
 */
#ifndef TSR_TEST_REACH_H
#define TSR_TEST_REACH_H

#include "engine/program/program.h"

/* The instructions of one rank, of several programs one behind the other. */
struct sequence {
    const struct tsr_instr *v;
    size_t n;
    const struct tsr_tables *tables;
    uint32_t rank;
    size_t
        same; /* of a small change of another sequence: instructions at the begin that are alike */
    bool own_operands; /* some lie elsewhere than those of the sequence that it was made from */
};

/* Is there a hazard inside the rank? *why gets a word or two and the numbers of the instructions.
 * The order of events, lifetimes, accesses, free and early use, as engine/check/CHECKER.md lists
 * them. `s` is the base itself, or a small change of it; what they have in common is worked out
 * once. */
struct reach;
struct reach *reach_open(const struct sequence *base);
bool reach_hazard(struct reach *r, const struct sequence *s, char *why, size_t size);
void reach_close(struct reach *r);

/* Do ranks call different collectives, or in orders that make a ring? ranks[i] is rank i. */
bool reach_ranks_differ(const struct sequence *ranks, uint32_t n, char *why, size_t size);

#endif
