/* calibration.h: the few numbers of a GPU type that no data sheet and no kernel table gives.
 *
 * Each is a value with its source and, where it was fitted, the data of the fit. They come from the
 * object "calibration" of the GPU's device file, {"matmul_sustained": {"value": 0.93, "source":
 * "...", "data": "..."}}; what the file leaves out has the default below. A number belongs to a GPU
 * type: none depends on a model, a GPU count or a row of a table.
 */
#ifndef TSR_SIM_CALIBRATION_H
#define TSR_SIM_CALIBRATION_H

#include "engine/program/base.h"

enum tsr_calibration_id {
    TSR_CAL_MATMUL_SUSTAINED,      /* rate of matrix products in a step over that of short runs */
    TSR_CAL_ATTENTION_SUSTAINED,   /* the same for attention */
    TSR_CAL_TRITON_SUSTAINED,      /* the same for the Triton kernel of 2023 (flash1_triton) */
    TSR_CAL_BACKWARD_SUSTAINED,    /* rate of products and attention of backward over forward's */
    TSR_CAL_MEMORY_SUSTAINED,      /* the same for kernels that memory decides */
    TSR_CAL_HOST_SCALE,            /* multiplies every host cost */
    TSR_CAL_COMM_COMPUTE_SLOWDOWN, /* share of speed that kernels lose beside a collective */
    TSR_CAL_INTRA_EFFICIENCY,      /* reachable share of the rate inside a node */
    TSR_CAL_INTER_EFFICIENCY,      /* reachable share of the rate between nodes */
    TSR_CAL_STRAGGLER_SHARE,       /* extra share of kernels' time per doubling of the nodes */
    TSR_CAL_STEP_OVERHEAD,         /* seconds of the host per step outside of the program */
    TSR_CAL_COLLECTIVE_BASE,       /* seconds of every collective beyond the tuner's latencies */
    TSR_CAL_COLLECTIVE_FILL,       /* seconds until the pipeline of a large one is full, one node */
    TSR_CAL_COLLECTIVE_OWN,        /* a rank's own bytes: their time over that of bytes on a link */
    TSR_N_CALIBRATIONS
};
/* How many of them a device file may give: what is fitted must stay few. */
enum { TSR_MAX_CALIBRATED = 12 };

enum { TSR_CALIBRATION_TEXT = 256 };

struct tsr_calibration {
    double value[TSR_N_CALIBRATIONS];
    char source[TSR_N_CALIBRATIONS][TSR_CALIBRATION_TEXT]; /* never empty */
    char data[TSR_N_CALIBRATIONS][TSR_CALIBRATION_TEXT];   /* what it was fitted on; may be "" */
};

/* One row per number: its key in a device file and after "sim.calibration.", and what it allows. */
struct tsr_calibration_row {
    const char *name;
    double value, min, max;
    const char *source; /* of the default value */
    const char *help;
};
const struct tsr_calibration_row *tsr_calibration_row(enum tsr_calibration_id id);

struct tsr_calibration tsr_calibration_default(void);

/* Puts the numbers of `values` that are not NaN over those of `calibration`; their source becomes
 * `source`. */
void tsr_calibration_override(struct tsr_calibration *calibration,
                              const double values[TSR_N_CALIBRATIONS], const char *source);

struct tsr__doc;
/* Reads the object "calibration" of a device file over the defaults. Errors: TSR_ECONFIG with file,
 * key, value and what is allowed. */
tsr_status tsr__calibration_read(const struct tsr__doc *doc,
                                 struct tsr_calibration *out) TSR_MUST_USE;

#endif
