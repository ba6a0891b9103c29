/* weights_impl.h: the files of a model as one table of tensors. Private to exec/. */
#ifndef TSR_WEIGHTS_IMPL_H
#define TSR_WEIGHTS_IMPL_H

#include "exec/files/safetensors.h"
#include "exec/files/weights.h"

struct tsr_weight {
    struct tsr_safetensors *file;
    const struct tsr_st_tensor *tensor;
};

struct tsr_weights {
    char path[TSR_PATH_BYTES];
    size_t n_files, cap_files, n, cap;
    struct tsr_safetensors **files; /* owned */
    struct tsr_weight *tensors;     /* by name */
};

/* tensor NULL: none. */
struct tsr_weight tsr__weight_find(const struct tsr_weights *w, const char *name);

#endif
