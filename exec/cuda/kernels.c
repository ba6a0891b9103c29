/* kernels.c: which function of the host launches a kernel of engine/KERNELS.md on the GPU. */
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "copies.h"

/* Names whose function is the host's: it takes the operands, and tsr__run() launches code. In the
 * order of strcmp(). */
static const char *const shared[] = {
    "fused_swiglu",
    "fused_swiglu_backward",
};

static int compare(const void *name, const void *entry)
{
    return strcmp((const char *)name, *(const char *const *)entry);
}

/* Functions of the GPU's own. A name that ends in * stands for all that begin so. */
static const struct own {
    const char *name;
    tsr_kernel_fn fn;
} own[] = {
    {"d2h_*", tsr_cuda_copy_bytes},
    {"device_copy", tsr_cuda_copy_bytes},
    {"h2d_*", tsr_cuda_copy_bytes},
    {"load_shard", tsr_cuda_copy_bytes},
    {"pad_shard", tsr_cuda_copy_bytes},
    {"post_forward_slice", tsr_cuda_copy_bytes},
    {"reduce_scatter_copy", tsr_cuda_copy_bytes},
    {"save_shard", tsr_cuda_copy_bytes},
};

static tsr_kernel_fn find_own(const char *name)
{
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        size_t n = strlen(own[i].name);
        bool many = own[i].name[n - 1] == '*';
        if (many ? !strncmp(name, own[i].name, n - 1) : !strcmp(name, own[i].name))
            return own[i].fn;
    }
    return NULL;
}

tsr_kernel_fn tsr_cuda_kernel_of(const char *name)
{
    if (bsearch(name, shared, sizeof shared / sizeof *shared, sizeof *shared, compare))
        return tsr_host_kernel(name);
    return find_own(name);
}
