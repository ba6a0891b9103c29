/* trace_tensors.h: the tensors of a recorded scenario: initial parameters and data, as a source for
 * an executor.
 */
#ifndef TSR_CLI_TRACE_TENSORS_H
#define TSR_CLI_TRACE_TENSORS_H

#include "exec/base/source.h"
#include "exec/files/safetensors.h"
#include "experiments/cli/player/trace/trace_scenario.h"

struct tsr_trace_tensors {
    struct tsr_safetensors *init, *data;
    bool shifts; /* labels are the next tokens of the input */
    uint64_t seq;
};

/* `path`: the scenario's file. */
tsr_status tsr_trace_tensors_open(const struct tsr_scenario *scenario, const char *path,
                                  struct tsr_trace_tensors *out) TSR_MUST_USE;
void tsr_trace_tensors_close(struct tsr_trace_tensors *tensors);

/* What one rank reads of them. */
struct tsr_trace_reader {
    struct tsr_trace_tensors *tensors; /* borrowed */
    uint32_t rank, world;
    void *user; /* of whoever sets report */
};
struct tsr_source tsr_trace_source(struct tsr_trace_reader *reader);

#endif
