/* plant.h: a place that waits, releases or frees may be left out (sites.py, option TESSERA_PLANT).
 * Nothing of it is in a build without the option.
 *
 *   TSR_PLANT=N       leaves site N out
 *   TSR_PLANT_SEEN=F  appends the numbers of the sites that were reached to file F, at the end
 */
#ifndef TSR_TEST_PLANT_H
#define TSR_TEST_PLANT_H

#include <stdbool.h>
#include <stddef.h>

bool tsr_plant_is(unsigned site);

#define TSR_PLANT(site, call) (tsr_plant_is(site) ? (void)0 : (call))
/* Who releases forgets: the pointer is NULL behind it, and the memory stays. */
#define TSR_PLANT_RELEASE(site, pointer, call) \
    (tsr_plant_is(site) ? (void)(*(pointer) = NULL) : (call))

#endif
