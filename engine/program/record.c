/* record.c: the recorder, the simplest executor: it appends every instruction to a program. */
#include "engine/program/executor.h"

static tsr_status record_submit(struct tsr_executor *x, const struct tsr_instr *instr)
{
    struct tsr_recorder *recorder = (struct tsr_recorder *)x;
    return tsr_program_append(recorder->into, instr);
}

static tsr_status record_drain(struct tsr_executor *x)
{
    (void)x; /* nothing runs: everything submitted is done */
    return TSR_OK;
}

static const struct tsr_executor_ops record_ops = {
    .size = sizeof(struct tsr_executor_ops),
    .version = TSR_EXECUTOR_VERSION,
    .name = "record",
    .submit = record_submit,
    .drain = record_drain,
};

void tsr_recorder_init(struct tsr_recorder *recorder, struct tsr_program *into)
{
    *recorder = (struct tsr_recorder){.base = {.ops = &record_ops}, .into = into};
}
