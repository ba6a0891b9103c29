/* changes.c: the keys that change numbers or hardware, and the comparison of two strategies in
 * them. */
#include "experiments/study/job/changes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/config/needs.h"
#include "experiments/study/config/settings.h"

/* Keys of the software are left out of sim.*: a user may choose them freely. */
static const struct {
    const char *key; /* with '.' at its end: all keys that begin with it */
    enum tsr_change change;
} kinds[] = {
    {"model.name", TSR_CHANGES_NUMBERS},
    {"model.tree", TSR_CHANGES_NUMBERS},
    {"model.trace", TSR_CHANGES_NUMBERS},
    {"model.layers", TSR_CHANGES_NUMBERS},
    {"model.positions", TSR_CHANGES_NUMBERS},
    {"seq", TSR_CHANGES_NUMBERS},
    {"precision.", TSR_CHANGES_NUMBERS},
    {"optimizer.name", TSR_CHANGES_NUMBERS},
    {"optimizer.state", TSR_CHANGES_NUMBERS},
    {"optimizer.momentum", TSR_CHANGES_NUMBERS},
    {"optimizer.nesterov", TSR_CHANGES_NUMBERS},
    {"optimizer.maximize", TSR_CHANGES_NUMBERS},
    {"optimizer.amsgrad", TSR_CHANGES_NUMBERS},
    {"clip", TSR_CHANGES_NUMBERS},
    {"sim.tf32", TSR_CHANGES_NUMBERS},
    {"cluster.", TSR_CHANGES_HARDWARE},
    {"nodes", TSR_CHANGES_HARDWARE},
    {"gpu", TSR_CHANGES_HARDWARE},
    {"gpus_per_node", TSR_CHANGES_HARDWARE},
    {"sim.host_", TSR_CHANGES_HARDWARE},
    {"sim.queue_depth", TSR_CHANGES_HARDWARE},
    {"sim.latency_scale", TSR_CHANGES_HARDWARE},
    {"sim.link_efficiency", TSR_CHANGES_HARDWARE},
    {"sim.infinite_bandwidth", TSR_CHANGES_HARDWARE},
    {"sim.slow_", TSR_CHANGES_HARDWARE},
    {"sim.nic_bw", TSR_CHANGES_HARDWARE},
    {"sim.intra_bw", TSR_CHANGES_HARDWARE},
    {"sim.faults", TSR_CHANGES_HARDWARE},
    {"sim.reroute", TSR_CHANGES_HARDWARE},
    {"sim.traffic", TSR_CHANGES_HARDWARE},
    {"sim.background_", TSR_CHANGES_HARDWARE},
    {"sim.jitter_", TSR_CHANGES_HARDWARE},
    {"sim.calibration.", TSR_CHANGES_HARDWARE},
};

static unsigned change_of(const char *key)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t n = strlen(kinds[i].key);
        bool many = strchr("._", kinds[i].key[n - 1]) != NULL;
        if (strncmp(key, kinds[i].key, n) == 0 && (many || key[n] == '\0'))
            return kinds[i].change;
    }
    return 0;
}

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
    for (size_t i = 0; i < tsr_n_keys(); i++) {
        unsigned change = change_of(tsr_keys[i].name);
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
