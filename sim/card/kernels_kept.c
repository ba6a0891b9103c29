/* kernels_kept.c: keeps kernel tables, one copy of those that are equal (kernels.h). */
#include <stdlib.h>
#include <string.h>

#include "sim/card/gpu.h"
#include "sim/card/kernels.h"

struct tsr__kept_kernels {
    struct tsr_kernels tables;
    struct tsr__kept_kernels *next;
};

const struct tsr_kernels *tsr_gpu_kernels(const struct tsr_gpu *gpu)
{
    static const struct tsr_kernels none;
    return gpu->kernels ? gpu->kernels : &none;
}

struct tsr__kept_kernels *tsr__kernels_new(void)
{
    return calloc(1, sizeof(struct tsr__kept_kernels));
}

struct tsr_kernels *tsr__kernels_of(struct tsr__kept_kernels *kept)
{
    return &kept->tables;
}

void tsr__kernels_drop(struct tsr__kept_kernels *kept)
{
    free(kept);
}

const struct tsr_kernels *tsr__kernels_keep(struct tsr_kernel_store *store,
                                            struct tsr__kept_kernels *kept)
{
    /* calloc() made both, so that bytes between members are equal, too. */
    const unsigned char *mine = (const unsigned char *)&kept->tables;
    for (const struct tsr__kept_kernels *old = store->first; old; old = old->next)
        if (!memcmp((const unsigned char *)&old->tables, mine, sizeof kept->tables)) {
            free(kept);
            return &old->tables;
        }
    kept->next = store->first;
    store->first = kept;
    return &kept->tables;
}

void tsr_kernel_store_fini(struct tsr_kernel_store *store)
{
    while (store->first) {
        struct tsr__kept_kernels *next = store->first->next;
        free(store->first);
        store->first = next;
    }
}
