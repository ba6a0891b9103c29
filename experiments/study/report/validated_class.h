/* validated_class.h: what tells configurations apart where predictions are concerned. */
#ifndef TSR_STUDY_VALIDATED_CLASS_H
#define TSR_STUDY_VALIDATED_CLASS_H

#include "experiments/study/job/job.h"
#include "experiments/study/job/result.h"

/* Differences from a measured class, bits of a set; keys that say how training is written follow.
 */
enum tsr_difference {
    TSR_DIFFERS_API,
    TSR_DIFFERS_CARD,
    TSR_DIFFERS_NODES,       /* one node, more than one */
    TSR_DIFFERS_GPUS,        /* of as many nodes, but more or fewer GPUs than any row has */
    TSR_DIFFERS_MANY_GPUS,   /* more than TSR_FAR times those of the largest row */
    TSR_DIFFERS_MODEL,       /* its family */
    TSR_DIFFERS_PARAMS,      /* more or fewer parameters than the model of any row has */
    TSR_DIFFERS_MANY_PARAMS, /* more than TSR_FAR times those of the largest model */
    TSR_DIFFERS_FEW_PARAMS,  /* less than 1 / TSR_FAR of those of the smallest model */
    TSR_DIFFERS_MESH,        /* sharded and replicated */
    TSR_DIFFERS_KEY          /* the first of the keys */
};
/* How many times more GPUs or parameters than a row has still belong to its class. */
enum { TSR_FAR = 4 };

/* "card", "model.norm": NULL for a number that is none. */
const char *tsr_difference_name(unsigned difference);

/* "llama", "mpt", ... */
const char *tsr_family_name(enum tsr_family family);

/* The differences of a job from a class, of which `settings` are the stack's. */
uint64_t tsr_differences(const struct tsr_job *job, const struct tsr_measured_class *class,
                         const struct tsr_settings *settings);
/* How much they matter to a prediction: 0 is the class itself. */
unsigned tsr_difference_cost(uint64_t differences);
/* Returns those of a set of differences beyond which the error of a class says nothing: another
 * API, another card, one node against more, another family of models, TSR_FAR times the size. */
uint64_t tsr_decisive_differences(uint64_t differences);

/* A job as a class of its own, without rows: with the keys that it sets otherwise than its stack.
 */
void tsr_class_of(const struct tsr_job *job, struct tsr_measured_class *out);

#endif
