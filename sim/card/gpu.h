/* gpu.h: reads an open device file. Private to sim/. */
#ifndef TSR_SIM_GPU_H
#define TSR_SIM_GPU_H

#include "sim/cluster/cluster.h"
#include "sim/input/json_doc.h"

/* *out is zero before. Errors: TSR_ECONFIG with file, key, value and what is allowed. */
tsr_status tsr__gpu_read(const struct tsr__doc *doc, struct tsr_gpu *out) TSR_MUST_USE;

#endif
