/* nccl_options.c: see nccl_options.h. */
#include "experiments/cli/cuda/nccl_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CTAS = 64 };

static tsr_status refuse(const char *found)
{
    return tsr_fail(TSR_ECONFIG,
                    "run: --comm: found %s; allowed: nccl, loopback, or nccl: with a list of "
                    "zero-cta, windows, reduce-ctas=N (1 to %d)",
                    found, MOST_CTAS);
}

static bool take_count(const char *text, int *out)
{
    char *end;
    long value = strtol(text, &end, 10);
    *out = value >= 1 && value <= MOST_CTAS ? (int)value : 0;
    return end != text && *end == 0 && *out > 0;
}

static tsr_status take_word(const char *word, struct tsr_comms_config *out)
{
    static const char count[] = "reduce-ctas=";
    if (!strcmp(word, "zero-cta"))
        out->zero_cta = true;
    else if (!strcmp(word, "windows"))
        out->windows = true;
    else if (strncmp(word, count, sizeof count - 1) != 0 ||
             !take_count(word + sizeof count - 1, &out->reduce_ctas))
        return refuse(word);
    return TSR_OK;
}

tsr_status tsr_nccl_options(const char *how, struct tsr_comms_config *out)
{
    char list[128], *next = NULL;
    if (!how || !strcmp(how, "nccl") || !strcmp(how, "loopback"))
        return TSR_OK;
    if (strncmp(how, "nccl:", 5) != 0 || strlen(how) - 5 >= sizeof list)
        return refuse(how);
    (void)snprintf(list, sizeof list, "%s", how + 5);
    char *word = strtok_r(list, ",", &next);
    if (!word)
        return refuse(how);
    for (; word; word = strtok_r(NULL, ",", &next))
        TSR_TRY(take_word(word, out));
    return TSR_OK;
}
