/* verify_impl.h: the declared operands of an instruction as disjoint pieces. Private to verify*.c.
 */
#ifndef TSR_VERIFY_IMPL_H
#define TSR_VERIFY_IMPL_H

#include "exec/kernels/call/kernel.h"

/* A part of a buffer that is declared in one way throughout. */
struct tsr_verify_piece {
    uint32_t buffer;
    bool reads, writes;
    bool typed; /* some operand that writes it has a dtype */
    uint64_t begin, end;
};

/* Where the declarations begin or end to hold. */
struct tsr_verify_edge {
    uint64_t at;
    uint32_t buffer;
    int8_t reads, writes, typed; /* 1, 0, -1 */
};

struct tsr_verify_pieces {
    size_t n, cap, n_edges, cap_edges;
    struct tsr_verify_piece *items; /* in order of buffers, then of bytes */
    struct tsr_verify_edge *edges;
};

/* Replaces the pieces by those of the views. */
tsr_status tsr_verify_cut(struct tsr_verify_pieces *pieces, const struct tsr_view *views,
                          uint32_t n);
void tsr_verify_pieces_fini(struct tsr_verify_pieces *pieces);

#endif
