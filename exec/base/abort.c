/* abort.c: the first failure of a world. */
#include "exec/base/abort.h"

#include <sched.h>
#include <stdio.h>

bool tsr__abort_set(struct tsr_abort *abort, tsr_status status, const char *text)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&abort->state, &none, 1))
        return false;
    abort->status = status;
    (void)snprintf(abort->text, sizeof abort->text, "%s", text);
    atomic_store(&abort->state, 2);
    return true;
}

bool tsr__abort_by(struct tsr_abort *abort, uint32_t rank, tsr_status status, const char *why)
{
    char text[TSR_ABORT_TEXT];
    (void)snprintf(text, sizeof text, "rank %u gave up: %s", rank, why ? why : "no reason given");
    return tsr__abort_set(abort, status, text);
}

tsr_status tsr__abort_status(struct tsr_abort *abort)
{
    while (atomic_load(&abort->state) != 2)
        (void)sched_yield();
    return tsr_fail(abort->status, "%s", abort->text);
}
