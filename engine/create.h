/* create.h: an engine comes to be and goes.
 */
#ifndef TSR_CREATE_H
#define TSR_CREATE_H

#include "engine/graph/config.h"

struct tsr_engine;

tsr_status tsr_engine_create(const struct tsr_engine_config *config,
                             struct tsr_engine **out) TSR_MUST_USE;
void tsr_engine_destroy(struct tsr_engine *engine); /* NULL is fine */
const struct tsr_tables *tsr_engine_tables(const struct tsr_engine *engine);

#endif
