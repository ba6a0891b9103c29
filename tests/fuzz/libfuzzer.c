/* libfuzzer.c: one target under libFuzzer: TSR_FUZZ_TARGET names it. */
#include <stdio.h>
#include <stdlib.h>

#include "fuzz/fuzz.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const struct tsr_fuzz_target *target;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *name = getenv("TSR_FUZZ_TARGET");
    (void)argc, (void)argv;
    target = name ? tsr_fuzz_find(name) : NULL;
    if (!target) {
        fprintf(stderr, "TSR_FUZZ_TARGET: found %s; allowed: the names of run.sh --list\n",
                name ? name : "nothing");
        exit(2);
    }
    if (!tsr_fuzz_begin(target))
        exit(1);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    tsr_fuzz_once(target, data, n);
    return 0;
}
