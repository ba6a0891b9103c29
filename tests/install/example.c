/* example.c: somebody else's program, built against an installed tessera. It asks the allocator
 * where four buffers go and records them in a program.
 */
#include <stdio.h>

#include "engine/tessera.h"

static int record_buffers(struct tsr_executor *executor, struct tsr_allocator *allocator)
{
    for (uint32_t i = 0; i < 4; i++) {
        struct tsr_block block;
        if (tsr_allocator_alloc(allocator, 1000000u * (i + 1), 0, &block) != TSR_OK)
            return 1;
        struct tsr_instr instr = {.kind = TSR_ALLOC,
                                  .buffer = i,
                                  .segment = block.segment,
                                  .bytes = 1000000u * (i + 1),
                                  .block_bytes = block.bytes,
                                  .address = block.address,
                                  .comm = UINT16_MAX};
        if (executor->ops->submit(executor, &instr) != TSR_OK)
            return 1;
    }
    return 0;
}

int main(void)
{
    const struct tsr_allocator_config config = {.device_bytes = UINT64_C(80) << 30};
    struct tsr_allocator *allocator;
    struct tsr_program program;
    struct tsr_recorder recorder;
    if (tsr_allocator_create(&config, NULL, NULL, NULL, &allocator) != TSR_OK) {
        fprintf(stderr, "%s\n", tsr_error_text());
        return 1;
    }
    tsr_program_init(&program, NULL);
    tsr_recorder_init(&recorder, &program);
    int failed = record_buffers(&recorder.base, allocator);
    failed |= program.n_instrs != 4 || tsr_program_hash(&program) == 0;
    printf("%zu instructions, %llu bytes reserved\n", program.n_instrs,
           (unsigned long long)tsr_allocator_stats(allocator).reserved);
    tsr_program_fini(&program);
    tsr_allocator_destroy(allocator);
    return failed;
}
