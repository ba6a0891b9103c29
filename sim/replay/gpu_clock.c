/* gpu_clock.c: the rates of a GPU over time, and work done between them. */
#include "sim/replay/backend.h"

#include <stdlib.h>
#include <string.h>

double tsr__gpu_clock_work(const struct tsr__gpu_clock *clock, double time)
{
    size_t i = clock->n;
    while (i > 1 && clock->rates[i - 1].since > time)
        i--;
    if (i == 0)
        return 0.0;
    const struct tsr__rate *r = &clock->rates[i - 1];
    return r->work + (time - r->since) * r->rate;
}

double tsr__gpu_clock_time(const struct tsr__gpu_clock *clock, double work)
{
    size_t i = clock->n;
    while (i > 1 && clock->rates[i - 1].work > work)
        i--;
    if (i == 0 || clock->rates[i - 1].rate <= 0.0)
        return 0.0;
    const struct tsr__rate *r = &clock->rates[i - 1];
    return r->since + (work - r->work) / r->rate;
}

bool tsr__gpu_clock_set(struct tsr__gpu_clock *clock, double now, double rate)
{
    struct tsr__rate next = {now, tsr__gpu_clock_work(clock, now), rate};
    if (clock->n && clock->rates[clock->n - 1].since >= now) {
        clock->rates[clock->n - 1].rate = rate;
        return true;
    }
    if (clock->n == clock->cap) {
        size_t cap = clock->cap ? 2 * clock->cap : 16;
        struct tsr__rate *more = realloc(clock->rates, cap * sizeof *more);
        if (!more)
            return false;
        clock->rates = more;
        clock->cap = cap;
    }
    clock->rates[clock->n++] = next;
    return true;
}

void tsr__gpu_clock_forget(struct tsr__gpu_clock *clock, double time)
{
    size_t i = 0;
    while (i + 1 < clock->n && clock->rates[i + 1].since <= time)
        i++;
    if (i)
        memmove(clock->rates, clock->rates + i, (clock->n - i) * sizeof *clock->rates);
    clock->n -= i;
}
