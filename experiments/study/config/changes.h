/* changes.h: what a strategy changes beside its speed: the software that it needs, the numbers that
 * it computes, or what it runs on. A faster one of that kind is no better one: reports name it and
 * do not star it. */
#ifndef TSR_STUDY_CHANGES_H
#define TSR_STUDY_CHANGES_H

#include "engine/program/base.h"

struct tsr_settings;

/* What a strategy changes beside its speed. */
enum tsr_change {
    TSR_CHANGES_STACK = 1,    /* it needs code or a package that the reference does not (needs.h) */
    TSR_CHANGES_NUMBERS = 2,  /* another model, sequence, precision or optimizer, no clipping */
    TSR_CHANGES_HARDWARE = 4, /* another cluster, card or number of GPUs, or other conditions */
    TSR_ALL_CHANGES = 7
};

/* Plain data. */
struct tsr_changes {
    unsigned kinds;  /* set of enum tsr_change */
    char words[160]; /* "precision.reduce: bf16, world: 16"; a long list ends with ", ..." */
};

/* What `settings` change against `reference`; `world` and `reference_world`: the ranks that take
 * part, however they were given. */
tsr_status tsr_changes_of(const struct tsr_settings *settings, uint32_t world,
                          const struct tsr_settings *reference, uint32_t reference_world,
                          struct tsr_changes *out) TSR_MUST_USE;

#endif
