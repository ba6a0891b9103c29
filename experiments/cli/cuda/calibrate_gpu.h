/* calibrate_gpu.h: what the two files of the program with GPUs have of each other. */
#ifndef TSR_CLI_CALIBRATE_GPU_H
#define TSR_CLI_CALIBRATE_GPU_H

#include "experiments/cli/calibrate/calibrate.h"

/* calibrate_gpu.c; see struct tsr_gpu_ops. */
tsr_status tsr_calibrated_cuda(const struct tsr_args *args,
                               struct tsr_calibrated *out) TSR_MUST_USE;

/* calibrate_gpu.c: writes the name of a GPU as names of files have it: "NVIDIA H200" is
 * nvidia-h200. */
void tsr_gpu_file_name(const char *name, char out[64]);

/* gpus.c: the folder in which plans of matrix products are kept for the user's next runs; "": none.
 */
void tsr_gpu_plans(char *out, size_t size);

#endif
