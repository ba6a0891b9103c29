/* verdict.h: what the checker and the second opinion (reach.h) say of mutants, and the counts of
 * it.
 */
#ifndef TSR_TEST_VERDICT_H
#define TSR_TEST_VERDICT_H

#include <stdio.h>

#include "tests/check/study/mutate.h"

struct tally {
    size_t mutants, caught, harmless;
};

struct report {
    struct tally kinds[N_MUTATION_KINDS];
    struct tally waits[N_WAITS];   /* of DROP_WAIT and DROP_HOST_WAIT */
    struct tally numbers[N_WAITS]; /* of DROP_NUMBER: families */
    struct tally families[64], family_waits[64];
    size_t n_families;
    size_t undecided; /* mutants of which the two opinions differ: written to stderr */
};

/* Does the checker find something in `s` as rank 0, with the other ranks of r as they are?
 * *headline (may be NULL) gets the first finding. */
bool checker_finds(const struct recorded *r, const struct sequence *s, bool all_ranks,
                   char *headline, size_t size);

/* Records every family, sees that both opinions find it clean, and mutates it in every way; looks
 * at one mutant of `every`. */
void study(struct report *out, size_t every);
/* The tables of engine/check/CHECKER.md. */
void report_print(const struct report *report, FILE *out);

#endif
