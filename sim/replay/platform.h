/* platform.h: the simulated job as a SimGrid platform description. Private to sim/.
 *
 * A route is any list of links, so endpoints are hosts of their own: o<i> for the way out, i<i> for
 * the way in. Only used pairs get a route. The GPUs that compute are hosts g<i>.
 */
#ifndef TSR_SIM_PLATFORM_H
#define TSR_SIM_PLATFORM_H

#include <stdio.h>

#include "sim/fold/quotient.h"

/* SimGrid cuts flows to whole bytes; giving sizes and rates in 1/1024 byte keeps the fractions of
 * a collective's share. */
#define TSR__BYTE_SCALE 1024.0
/* Speed of a GPU host: a kernel of t seconds is an exec of t * this. */
#define TSR__GPU_SPEED 1e9

/* Kernels of collectives that may slow the other kernels of a GPU; more count as so many. */
enum { TSR__MAX_BESIDE = 4 };

struct tsr__platform {
    uint32_t n_out, n_in;
    uint32_t *out, *in; /* [route]: endpoint numbers */
};

/* Errors: TSR_ENOMEM. Built in the child, which ends with it: nothing is freed. */
tsr_status tsr__platform_build(const struct tsr__quotient *quotient,
                               struct tsr__platform *platform) TSR_MUST_USE;
/* Writes the XML text. `links`: false leaves links and routes out (infinite bandwidth). */
void tsr__platform_write(const struct tsr__quotient *quotient, const struct tsr__platform *platform,
                         bool links, FILE *file);

#endif
