/* loopback.h: operands of the kernels that copy and sum between ranks on one GPU (loopback.cu).
 */
#ifndef TSR_EXEC_LOOPBACK_H
#define TSR_EXEC_LOOPBACK_H

#include <stdbool.h>
#include <stdint.h>

/* A launch takes 4 KiB of operands. */
enum { TSR_LOOPBACK_SEGMENTS = 128, TSR_LOOPBACK_PARTS = 256 };

/* A copy of bytes; any alignment. */
struct tsr_segment {
    const void *from;
    void *to;
    uint64_t bytes;
};

/* Block row y copies segment y. */
struct tsr_loopback_copy {
    struct tsr_segment segments[TSR_LOOPBACK_SEGMENTS];
};

/* out[i] = parts[0][i] op parts[1][i] ... for n elements, as exec/world/reduce_order.h. */
struct tsr_loopback_sum {
    const void *parts[TSR_LOOPBACK_PARTS];
    void *out; /* may be one of the parts */
    uint64_t n;
    double factor;
    uint32_t n_parts;
    uint8_t dtype, op; /* enum tsr_dtype, tsr_reduce_op */
    bool aligned;      /* all pointers are multiples of 16 */
};

#endif
