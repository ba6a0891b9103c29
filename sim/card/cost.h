/* cost.h: how long a kernel or a copy takes alone on the card. Private to sim/. */
#ifndef TSR_SIM_COST_H
#define TSR_SIM_COST_H

#include "sim/cluster/cluster.h"
#include "sim/sim.h"

struct tsr__cost {
    double body_s;  /* work: scaled for a slow GPU */
    double start_s; /* start-up and tail of the kernel: scaled by latency_scale too */
};

tsr_status tsr__cost_kernel(const struct tsr_gpu *gpu, const struct tsr_kernel_choice *choice,
                            const struct tsr_work *work, struct tsr__cost *out) TSR_MUST_USE;
/* `bytes`, read and written together, through the card's memory. */
tsr_status tsr__cost_memory(const struct tsr_gpu *gpu, double bytes,
                            struct tsr__cost *out) TSR_MUST_USE;
/* Work of the host itself: HOST_OP, or a copy between two host buffers. */
double tsr__cost_host(double bytes);

#endif
