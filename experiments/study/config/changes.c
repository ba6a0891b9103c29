/* changes.c: the comparison of two strategies in the keys that change numbers or hardware. */
#include "experiments/study/config/changes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/config/needs.h"
#include "experiments/study/config/settings.h"

static void add_words(struct tsr_changes *out, const char *key, const char *value)
{
    static const char more[] = ", ...";
    char words[sizeof out->words];
    size_t used = strlen(out->words), room = sizeof out->words - sizeof more;
    int n = snprintf(words, sizeof words, "%s%s: %s", used ? ", " : "", key, value);
    if (used >= sizeof more && !strcmp(out->words + used - (sizeof more - 1), more))
        return;
    if (n < 0 || used + (size_t)n > room)
        snprintf(out->words + used, sizeof out->words - used, "%s", used ? more : key);
    else
        memcpy(out->words + used, words, (size_t)n + 1);
}

/* The texts of two values: too large for a stack. */
struct values {
    char is[TSR_VALUE_BYTES], was[TSR_VALUE_BYTES];
};

/* Compares in all keys that matter but the number of ranks. */
static tsr_status compare(const struct tsr_settings *settings, const struct tsr_settings *reference,
                          struct values *v, struct tsr_changes *out)
{
    for (size_t i = 0; i < TSR_N_KEYS; i++) {
        unsigned change = tsr_keys[i].changes;
        if (!change)
            continue;
        TSR_TRY(tsr_key_format(&tsr_keys[i], settings, v->is, sizeof v->is));
        TSR_TRY(tsr_key_format(&tsr_keys[i], reference, v->was, sizeof v->was));
        if (!strcmp(v->is, v->was))
            continue;
        out->kinds |= change;
        add_words(out, tsr_keys[i].name, v->is);
    }
    return TSR_OK;
}

tsr_status tsr_changes_of(const struct tsr_settings *settings, uint32_t world,
                          const struct tsr_settings *reference, uint32_t reference_world,
                          struct tsr_changes *out)
{
    *out = (struct tsr_changes){0};
    struct values *values = malloc(sizeof *values);
    tsr_status status = values ? compare(settings, reference, values, out) : tsr_no_memory(NULL);
    free(values);
    if (status != TSR_OK)
        return status;
    /* That the API is another one is what a comparison asks for: no need of its own here. */
    unsigned needs = tsr_needs_of(settings) & ~tsr_needs_of(reference);
    if (needs) {
        char words[96];
        tsr_needs_words(needs, words, sizeof words);
        out->kinds |= TSR_CHANGES_STACK;
        add_words(out, "needs", words);
    }
    if (world != reference_world) {
        char ranks[16];
        snprintf(ranks, sizeof ranks, "%" PRIu32, world);
        out->kinds |= TSR_CHANGES_HARDWARE;
        add_words(out, "world", ranks);
    }
    return TSR_OK;
}
