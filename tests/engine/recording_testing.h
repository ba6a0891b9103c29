/* recording_testing.h: what tests of emitted steps share: calls that must succeed, and an engine
 * with the programs that it emits.
 *
 *   struct recording r;
 *   recording_begin(&r, (struct tsr_engine_config){...});   then the model, and how it is wrapped
 *   ok(tsr_engine_init_params(r.e));                        into r.init
 *   r.recorder.into = &r.step;
 *   ok(tsr_step_run(r.e, 0));
 *   recording_end(&r);
 */
#ifndef TSR_RECORDING_TESTING_H
#define TSR_RECORDING_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/tessera.h"

struct recording {
    struct tsr_recorder recorder;
    struct tsr_program init, step; /* what comes before the first step; the step */
    struct tsr_engine *e;
};

static inline void ok(tsr_status status)
{
    if (status != TSR_OK)
        fail_msg("%s: %s", tsr_status_class(status), tsr_error_text());
}

/* Makes the engine, with the recorder as its executor. */
static inline void recording_begin(struct recording *r, struct tsr_engine_config config)
{
    tsr_recorder_init(&r->recorder, &r->init);
    config.executor = &r->recorder.base;
    ok(tsr_engine_create(&config, &r->e));
    tsr_program_init(&r->init, tsr_engine_tables(r->e));
    tsr_program_init(&r->step, tsr_engine_tables(r->e));
}

static inline void recording_end(struct recording *r)
{
    tsr_program_fini(&r->init);
    tsr_program_fini(&r->step);
    tsr_engine_destroy(r->e);
}

#endif
