/* options.h: what becomes of the options that a caller gives before anything is compiled. Private
 * to the entries of sim/ (sim.c, predict.c): the folders below take options as they are.
 */
#ifndef TSR_SIM_OPTIONS_H
#define TSR_SIM_OPTIONS_H

#include "sim/sim.h"

/* Host costs that the caller has left at their defaults may have been timed on the machine (0: they
 * were not): those take the default's place. */
struct tsr_sim_options tsr__options_timed(const struct tsr_sim_options *options,
                                          const struct tsr_host_times *timed);
/* Errors: TSR_ECONFIG with the name of the option, the value and what is allowed. */
tsr_status tsr__options_check(const struct tsr_sim_options *options) TSR_MUST_USE;

#endif
