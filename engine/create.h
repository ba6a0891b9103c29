/* create.h: an engine comes to be and goes; the tables that its instructions refer to.
 *
 * One engine stands for one rank and is used by one thread at a time.
 */
#ifndef TSR_ENGINE_CREATE_H
#define TSR_ENGINE_CREATE_H

#include "engine/graph/config.h"

struct tsr_engine;

/* *out is to be given to tsr_engine_destroy(); NULL on failure. `config` is copied; its executor
 * and trace sink are used until then. Errors: TSR_EVALUE for a config without executor, a mesh that
 * is none, a rank outside it; TSR_EUNSUPPORTED for products in fp8 that the dialect has not;
 * TSR_ENOMEM and those of tsr_allocator_create(). */
tsr_status tsr_engine_create(const struct tsr_engine_config *config,
                             struct tsr_engine **out) TSR_MUST_USE;
/* With everything that it returned. NULL is fine. Recorded programs borrow its tables: they are not
 * read any more after this. */
void tsr_engine_destroy(struct tsr_engine *engine);
/* Names, streams and communicators; grow during emission. They die with the engine. */
const struct tsr_tables *tsr_engine_tables(const struct tsr_engine *engine);

#endif
