/* families.h: small models wrapped in every way that changes who waits for whom; their programs, of
 * every rank, recorded.
 */
#ifndef TSR_TEST_FAMILIES_H
#define TSR_TEST_FAMILIES_H

#include "engine/tessera.h"
#include "tests/check/study/reach.h"

enum { FAMILY_RANKS = 9, FAMILY_ITERATIONS = 4 }; /* behind init */

struct recorded_rank {
    struct tsr_engine *e;
    struct tsr_recorder recorder;
    struct tsr_program program; /* all of it, one behind the other */
    struct tsr_two_level two_level;
};

struct recorded {
    const char *name;
    uint32_t world;
    uint32_t words; /* that the model knows; 0: 16 */
    struct recorded_rank ranks[FAMILY_RANKS];
    struct sequence sequences[FAMILY_RANKS];
    size_t begin, end; /* of the third iteration in the sequence of rank 0 */
};

size_t family_count(void);
/* Emits family i. Aborts with a message if the engine refuses. */
void family_record(size_t i, struct recorded *out);
/* Sequences, begin and end, of the programs of all ranks. */
void family_sequences(struct recorded *r);
void family_close(struct recorded *r);

#endif
