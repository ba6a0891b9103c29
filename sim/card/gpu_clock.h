/* gpu_clock.h: how much work a kernel that runs on a GPU has got at any time. Private to sim/.
 *
 * Kernels at once share the GPU equally, and run slower beside a collective's kernel; SimGrid says
 * when the last of a train of kernels ends. When those before it ended follows from the rates in
 * between: the clock adds them up. Its work is seconds of a kernel that has the GPU to itself.
 */
#ifndef TSR_SIM_GPU_CLOCK_H
#define TSR_SIM_GPU_CLOCK_H

#include <stdbool.h>
#include <stddef.h>

struct tsr__gpu_clock {
    struct tsr__rate {
        double since, work; /* work: done since the start, at `since` */
        double rate;        /* work per second from then on */
    } * rates;
    size_t n, cap;
};

/* The rate changes at `now`, which never goes back. False: no memory. */
bool tsr__gpu_clock_set(struct tsr__gpu_clock *clock, double now, double rate);
/* Work done up to a time that is not forgotten; and when it was done. */
double tsr__gpu_clock_work(const struct tsr__gpu_clock *clock, double time);
double tsr__gpu_clock_time(const struct tsr__gpu_clock *clock, double work);
/* Nobody will ask for anything before `time`. */
void tsr__gpu_clock_forget(struct tsr__gpu_clock *clock, double time);

#endif
