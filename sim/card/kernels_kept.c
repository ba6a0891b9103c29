/* kernels_kept.c: keeps kernel tables, one copy of those that are equal.
 *
 * Owns all tables that device files were read into. They are 80 KB each, and a study has as many
 * devices as strategies. Any thread may read a device file: tables are added to a list without a
 * lock; two threads may add equal ones, of which later readers find one.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "sim/card/gpu.h"
#include "sim/card/kernels.h"

struct tsr__kept_kernels {
    struct tsr_kernels tables;
    struct tsr__kept_kernels *next;
};

static _Atomic(struct tsr__kept_kernels *) all;

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

const struct tsr_kernels *tsr__kernels_keep(struct tsr__kept_kernels *kept)
{
    struct tsr__kept_kernels *first = atomic_load(&all);
    /* calloc() made both, so that bytes between members are equal, too. */
    const unsigned char *mine = (const unsigned char *)&kept->tables;
    for (const struct tsr__kept_kernels *old = first; old; old = old->next)
        if (!memcmp((const unsigned char *)&old->tables, mine, sizeof kept->tables)) {
            free(kept);
            return &old->tables;
        }
    do
        kept->next = first;
    while (!atomic_compare_exchange_weak(&all, &first, kept));
    return &kept->tables;
}

void tsr_kernels_free_all(void)
{
    struct tsr__kept_kernels *kept = atomic_exchange(&all, NULL);
    while (kept) {
        struct tsr__kept_kernels *next = kept->next;
        free(kept);
        kept = next;
    }
}
