/* compile_fuse.h: what compile_fuse.c and compile_kernels.c share: one half of a compiled block
 * while its operations are put into groups and the groups become kernels. Private to engine/.
 */
#ifndef TSR_COMPILE_FUSE_H
#define TSR_COMPILE_FUSE_H

#include "engine/compile/compile.h"

enum { TSR_FUSE_OPS = 512, TSR_FUSE_LEAVES = 64, TSR_FUSE_MEMBERS = 32 };

struct tsr_fuse_group {
    uint8_t cls;
    uint64_t rows, columns, numel;
    uint32_t n_members, members[TSR_FUSE_MEMBERS]; /* operations, in order */
    uint32_t n_leaves, leaves[TSR_FUSE_LEAVES];    /* what it reads from outside */
    bool merged;                                   /* into another one */
};

struct tsr_fuse {
    struct tsr_engine *e;
    struct tsr_cplan *plan;
    struct tsr_cgraph *g;
    struct tsr_cschedule *out;
    bool backward;
    uint32_t order[TSR_FUSE_OPS];
    size_t n_order;
    bool *listed;    /* by operation */
    bool *final;     /* by value: leaves this half */
    bool *ready;     /* by value: is there before this half */
    bool *stored;    /* by value */
    uint32_t *place; /* by value: the group that makes it */
    struct tsr_fuse_group *groups;
    size_t n_groups;
};

/* Raises the error of a block with more operations or operands than there is room for. */
void tsr__fuse_too_large(struct tsr_fuse *f);
/* A pointwise result that is not stored: its readers compute it. */
bool tsr__fuse_is_inlined(const struct tsr_fuse *f, uint32_t value);
/* The group reads the value from outside. */
bool tsr__fuse_has_leaf(const struct tsr_fuse_group *g, uint32_t value);

/* compile_kernels.c: the kernels of every group, in order, with what each may overwrite and what
 * nobody needs after it. */
void tsr__fuse_kernels(struct tsr_fuse *f);

#endif
