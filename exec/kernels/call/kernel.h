/* kernel.h: how a device calls a kernel, and the host's table of kernels by name.
 *
 * What every kernel computes, slot by slot, is engine/ops/KERNELS.md.
 */
#ifndef TSR_EXEC_KERNEL_H
#define TSR_EXEC_KERNEL_H

#include "engine/program/program.h"

/* An operand with its place in memory. data points at byte `operand.offset` of the buffer. */
struct tsr_view {
    void *data;
    uint64_t bytes; /* of the range */
    uint32_t width, pitch;
    uint8_t dtype; /* enum tsr_dtype; NONE: bytes */
    uint8_t slot, access;
    uint8_t space;
    uint32_t buffer; /* whose memory it is ... */
    void *base;      /* ... and where that begins: data - base is the offset */
};

struct tsr_kernel_call;

/* What a kernel computes, apart from taking its operands: on the host a function over [begin, n)
 * in steps, on a GPU the kernel of that name. `params` is a structure with the operands. */
struct tsr_code {
    const char *name;
    size_t params; /* bytes of the structure */
    void (*f32)(const void *params, uint64_t begin, uint64_t step);
    void (*f64)(const void *params, uint64_t begin, uint64_t step); /* arithmetic in f64 */
};

/* Who runs code elsewhere than here. n: elements or rows, as the code has it. */
typedef tsr_status (*tsr_launch_fn)(const struct tsr_kernel_call *call, const struct tsr_code *code,
                                    bool wide, const void *params, uint64_t n);

/* One launch, checked: all that it points to is borrowed for the time of the call. */
struct tsr_kernel_call {
    const struct tsr_work *work;
    uint32_t n_views;
    const struct tsr_view *views; /* in the order of the operands */
    const double *scalars;        /* [TSR_N_SCALARS], as they were at submission */
    /* Where `scalars` lie when the kernel runs, which may be often, with other values: the GPU's
     * graphs. NULL: their values now are meant. */
    const double *scalars_at;
    double factor;        /* FILL */
    tsr_launch_fn launch; /* of the device that runs the call; NULL: the host, here and now */
    const void *context;  /* what launch needs: cuda/gpu/gpu.h */
};

/* Runs to the end. Errors: TSR_EDEFECT when the operands do not fit the kernel's signature;
 * TSR_ENOMEM for its own temporaries. Touches nothing but its operands. */
typedef tsr_status (*tsr_kernel_fn)(const struct tsr_kernel_call *call);

/* Before the first kernel runs; once more does nothing. Looks for what multiplies matrices, as
 * TESSERA_PRODUCTS allows (matrix/blas.h). It changes the environment for a moment: call it while
 * no other thread reads that. TSR_ECONFIG: the variable has a value that it cannot have. */
tsr_status tsr_kernels_init(void) TSR_MUST_USE;
/* What it has found, for people. */
const char *tsr_kernels_products(void);
/* NULL: the host does not have it. */
tsr_kernel_fn tsr_host_kernel(const char *name);
/* FILL: call->factor as the dtype of slot 0 all over it; zero bytes if it has none. */
tsr_status tsr_host_fill(const struct tsr_kernel_call *call);
/* A kernel that a user's hook emits (tsr_emit_user_op()); executors are given a list of them. */
struct tsr_user_kernel {
    const char *name;
    tsr_kernel_fn fn;
};

/* The first view of a slot; NULL if the argument is absent. */
static inline const struct tsr_view *tsr_slot(const struct tsr_kernel_call *call, unsigned slot)
{
    for (uint32_t i = 0; i < call->n_views; i++)
        if (call->views[i].slot == slot)
            return &call->views[i];
    return NULL;
}

#endif
