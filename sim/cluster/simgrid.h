/* simgrid.h: loads SimGrid when something is simulated.
 *
 * Debian's SimGrid brings 25 libraries with it, which take 20 ms to load and to relocate, longer
 * than most commands run. So where SimGrid is a shared library the program is not linked with it:
 * simgrid.c has functions of the same names, which call those of the loaded library. Private to
 * sim/.
 */
#ifndef TSR_SIM_SIMGRID_H
#define TSR_SIM_SIMGRID_H

#include "engine/program/base.h"

/* Loads SimGrid when it is called for the first time; no function of SimGrid may be called before.
 * The parent of the process that simulates calls it, so that its children share the library. Any
 * thread may call it. Errors: TSR_EBACKEND with the words of the loader. */
tsr_status tsr__simgrid_load(void) TSR_MUST_USE;

#endif
