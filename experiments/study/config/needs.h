/* needs.h: what a strategy needs beyond PyTorch's own wrappers on eager modules.
 *
 * A need is code or a package that the user brings to run the strategy: torch.compile that works on
 * the model, a loss in chunks, a plan for tensor parallelism. Each follows from one key, so the
 * needs of a combination of keys are the union of theirs. Tables mark rows by these words, and
 * `tessera plan` ranks rows without needs first.
 */
#ifndef TSR_STUDY_NEEDS_H
#define TSR_STUDY_NEEDS_H

#include "experiments/study/config/settings.h"

enum tsr_need {
    TSR_NEED_API, /* another API than the base has; never of a strategy by itself */
    TSR_NEED_COMPILE,
    TSR_NEED_FUSED,
    TSR_NEED_TP,
    TSR_NEED_LOSS_CHUNKS,
    TSR_NEED_LOSS_KERNEL,
    TSR_NEED_FP8,
    TSR_NEED_OPTIMIZER,
    TSR_NEED_OPTIONS,
    TSR_N_NEEDS
};
/* The words of needs, by enum tsr_need; NULL-terminated. */
extern const char *const tsr_words_need[];

/* Returns the set of 1 << enum tsr_need that a strategy has by itself, whatever its API. */
unsigned tsr_needs_of(const struct tsr_settings *settings);
/* Returns the needs that the strategy has and `base` has not, and TSR_NEED_API where their APIs
 * differ. */
unsigned tsr_needs_beyond(const struct tsr_settings *settings, const struct tsr_settings *base);
/* Writes the words of a set, "compile, loss.chunks"; "" for the empty set. */
void tsr_needs_words(unsigned needs, char *out, size_t size);

#endif
