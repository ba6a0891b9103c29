/* trace.h: what `tessera trace` does with a recorded scenario (trace_scenario.h): runs it on the
 * engine (trace_cmd.c), lays it out (trace_layouts.c), computes it (trace_host.c, from
 * trace_tensors.c), and says all that in the format of the recorded results (trace_result.c;
 * tests/golden/README.md has the format).
 */
#ifndef TSR_PLAYER_TRACE_H
#define TSR_PLAYER_TRACE_H

#include <jansson.h>

#include "exec/base/source.h"
#include "exec/files/safetensors.h"
#include "experiments/cli/gpu/gpus.h"
#include "tests/player/events/trace_scenario.h"

/* ---- the result ------------------------------------------------------------------------------ */

/* Collects events; a trace sink writes into it. */
struct tsr_trace_lists {
    json_t *events, *stream_events; /* arrays, owned */
    bool failed;                    /* out of memory on the way */
};
void tsr_trace_event(void *lists, const struct tsr_event *event);

/* New references; NULL when out of memory. */
json_t *tsr_trace_layout(struct tsr_engine *e, bool with_dtypes, bool with_all_gather);
json_t *tsr_trace_buckets(struct tsr_engine *e);
/* A number that may be none: "nan", "inf" or "-inf". */
json_t *tsr_trace_number(double value);
/* A value of the scenario as it was written. */
json_t *tsr_trace_value(const struct tsr_yaml_node *node);

/* ---- one rank -------------------------------------------------------------------------------- */

/* Looks at what was computed. Each may drain the executor. */
struct tsr_trace_probe {
    void *user;
    tsr_status (*ready)(void *user); /* the model is wrapped and has its values */
    tsr_status (*gradients)(void *user, uint32_t iter); /* before the optimizer */
};

/* Iterations, micro-batches and calls in the scenario's order, with the events of the driver. */
struct tsr_trace_run {
    const struct tsr_scenario *scenario; /* borrowed */
    struct tsr_executor *executor;       /* borrowed */
    const struct tsr_trace_probe *probe; /* may be NULL */
    struct tsr_trace_lists lists;
    struct tsr_engine *e;
    json_t *buckets;
    const char *stage; /* of an error: wrap, call, forward, backward */
    const char *call;  /* with stage "call": which function */
};

/* The engine with the scenario's model. Set scenario and executor first; fini() also on failure. */
tsr_status tsr_trace_create(struct tsr_trace_run *run, uint32_t rank) TSR_MUST_USE;
/* Wraps and runs all iterations: kinds train, ddp and error. */
tsr_status tsr_trace_train(struct tsr_trace_run *run) TSR_MUST_USE;
void tsr_trace_fini(struct tsr_trace_run *run);
/* Whether a run of the scenario (kinds train and ddp) has such a race: rank 0 decides everything,
 * and nothing is computed. What cannot be run has none. */
bool tsr_trace_has_race(const struct tsr_scenario *scenario);
/* The keys of kinds train and ddp. */
void tsr_trace_add_run(json_t *result, const struct tsr_trace_run *run);

/* ---- kinds that are about layout only: no step runs ------------------------------------------ */

/* `tp_layout`: applies `tp` and `wrap` to the engine's model; adds `params` and `ranks`. */
tsr_status tsr_trace_tp(const struct tsr_scenario *s, struct tsr_engine *e,
                        json_t *result) TSR_MUST_USE;
/* `chunk` and `bucket`: no model; add `cases`. */
tsr_status tsr_trace_chunk(const struct tsr_scenario *s, json_t *result) TSR_MUST_USE;
tsr_status tsr_trace_bucket(const struct tsr_scenario *s, json_t *result) TSR_MUST_USE;

/* ---- ranks that compute ---------------------------------------------------------------------- */

/* All ranks as threads, on the host or, with `gpus`, on one GPU, from the scenario's parameters and
 * data. Where the program has a race of PyTorch's own the host computes in the order of issue, as
 * PyTorch does on a CPU, which has no streams. Adds what rank 0 decided, and `loss`,
 * `loss_per_rank`, `grad_norm` and `tensors.final` (a file beside `out`; after the parameters the
 * optimizer's states, `state0.NAME` to `state2.NAME`); numbers that are none are "nan", "inf" and
 * "-inf". `path` is the scenario's file: its tensors lie beside its folder. */
tsr_status tsr_trace_on_host(const struct tsr_scenario *scenario, const char *path, const char *out,
                             const struct tsr_gpu_ops *gpus, json_t *result) TSR_MUST_USE;

/* The tensors of a scenario: initial parameters and data. */
struct tsr_trace_tensors {
    struct tsr_safetensors *init, *data;
    bool shifts; /* labels are the next tokens of the input */
    uint64_t seq;
};

/* What one rank reads of them. */
struct tsr_trace_reader {
    struct tsr_trace_tensors *tensors; /* borrowed */
    uint32_t rank, world;
    void *user; /* of whoever sets report */
};

/* `path`: the scenario's file. Errors: TSR_ECONFIG, TSR_EIO; nothing is open then. */
tsr_status tsr_trace_tensors_open(const struct tsr_scenario *s, const char *path,
                                  struct tsr_trace_tensors *out) TSR_MUST_USE;
void tsr_trace_tensors_close(struct tsr_trace_tensors *t);
/* For an executor; borrows the reader. Values to begin with, and batches: no more. */
struct tsr_source tsr_trace_source(struct tsr_trace_reader *reader);

#endif
