/* memory_run.c: emits a memory scenario once. */
#include "experiments/cli/player/memory/memory_run.h"

tsr_status tsr_memory_run(const struct tsr_memory_scenario *s, bool instrumented,
                          struct tsr_memory_run *run)
{
    run->engine = NULL;
    tsr_memory_record_init(&run->record);
    TSR_TRY(tsr_memory_scenario_build(s, &run->record.base, instrumented, &run->engine));
    run->record.engine = run->engine;
    TSR_TRY(tsr_engine_init_params(run->engine));
    for (uint32_t i = 0; i < s->iterations; i++)
        TSR_TRY(tsr_step_run(run->engine, i));
    return tsr_memory_record_end(&run->record);
}

void tsr_memory_run_close(struct tsr_memory_run *run)
{
    tsr_engine_destroy(run->engine);
    run->engine = NULL;
    tsr_memory_record_fini(&run->record);
}
