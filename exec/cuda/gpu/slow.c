/* slow.c: counts the slow paths of a run, describes them in a note, and refuses those that are not
 * allowed. */
#include "exec/cuda/gpu/slow.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *many; /* in --allow-slow; in the note */
} paths[TSR_SLOW_PATHS] = {
    {"product", "products in a plain kernel"},
    {"attention", "attentions in plain kernels"},
    {"graph", "stretches of a step without a CUDA graph"},
    {"copy", "copies of host memory that is not pinned"},
    {"scratch", "calls without a library's workspace"},
};

tsr_status tsr_slow_take(struct tsr_slow *slow, enum tsr_slow_path path, const char *what)
{
    if (!slow)
        return TSR_OK;
    if (slow->is_half && !(slow->allowed & 1u << path))
        return tsr_fail(
            TSR_EUNSUPPORTED,
            "%s: this is many times slower than usual, in a job of 16 bits; allowed: with "
            "--allow-slow %s",
            what, paths[path].name);
    if (slow->n[path]++ == 0)
        (void)snprintf(slow->first[path], sizeof slow->first[path], "%s", what);
    return TSR_OK;
}

uint64_t tsr_slow_count(const struct tsr_slow *slow)
{
    uint64_t n = 0;
    for (int i = 0; i < TSR_SLOW_PATHS; i++)
        n += slow->n[i];
    return n;
}

void tsr_slow_note(const struct tsr_slow *slow, char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < TSR_SLOW_PATHS && used < bytes; i++)
        if (slow->n[i])
            used +=
                (size_t)snprintf(out + used, bytes - used, "%s%" PRIu64 " %s (first: %s)",
                                 used ? "; " : "slow: ", slow->n[i], paths[i].many, slow->first[i]);
}

static tsr_status allow_word(const char *word, size_t n, unsigned *allowed)
{
    for (int i = 0; i < TSR_SLOW_PATHS; i++)
        if (strlen(paths[i].name) == n && !strncmp(word, paths[i].name, n)) {
            *allowed |= 1u << i;
            return TSR_OK;
        }
    return tsr_fail(TSR_ECONFIG,
                    "run: --allow-slow: found %.*s; allowed: a list of product, attention, graph, "
                    "copy, scratch",
                    (int)tsr_min_u64(n, 64), word);
}

tsr_status tsr_slow_allow(const char *list, unsigned *allowed)
{
    *allowed = 0;
    for (;; list++) {
        size_t n = strcspn(list, ",");
        TSR_TRY(allow_word(list, n, allowed));
        list += n;
        if (!*list)
            return TSR_OK;
    }
}
