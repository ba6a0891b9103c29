/* mix.h: a random strategy of a random tiny model on a random world, and the one rank that trains
 * the same model on the same batches. A mix follows from its seed alone.
 */
#ifndef TSR_TEST_MIX_H
#define TSR_TEST_MIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MIX_RANKS = 9, MIX_TEXT = 4096 };

struct mix {
    uint64_t seed;
    const char *what;           /* it was found to be wrong once; NULL: drawn */
    uint32_t world, data_ranks; /* data_ranks: world / tp */
    uint32_t vocab;
    bool simulated_only;      /* the host refuses it: checked and simulated */
    bool exact;               /* everything is f64 */
    double tolerance;         /* of losses and norms against the one rank's, relative */
    char model_name[32];      /* of the model's file */
    char model[MIX_TEXT];     /* its text */
    char strategy[MIX_TEXT];  /* an experiment file */
    char reference[MIX_TEXT]; /* the one rank's, without a cluster */
};

/* folder: where the model's file will be. */
void mix_draw(uint64_t seed, const char *folder, struct mix *out);

/* Mix i of those that were wrong once; false: there are no more. */
bool mix_found(size_t i, const char *folder, struct mix *out);

#endif
