/* operands.c: see cuda/operands.h; on a GPU. One block of pinned host memory, which the GPU reaches
 * at the host's address: managed memory is refused on some virtual machines. The block is handed
 * out in pieces of 256 bytes and kept until the process ends, as pinning is slow.
 */
#include "tests/cuda/operands.h"

#include "exec/cuda/gpu/gpu.h"

enum { PIECE = 256, PIECES = 1 << 20 };
#define TAKEN (UINT32_C(1) << 31)

static unsigned char *block;
/* By the first piece of a run: pieces in it, and TAKEN if it was handed out. Runs follow each other
 * without a gap from piece 0 on. */
static uint32_t runs[PIECES];

static bool open_block(void)
{
    void *memory = NULL;
    if (block)
        return true;
    if (cudaHostAlloc(&memory, (size_t)PIECE * PIECES, cudaHostAllocDefault) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    block = memory;
    runs[0] = PIECES;
    return true;
}

/* Joins the free run at `at` with the free runs behind it, and returns its length. */
static uint32_t join_free(uint32_t at)
{
    while (at + runs[at] < PIECES && !(runs[at + runs[at]] & TAKEN))
        runs[at] += runs[at + runs[at]];
    return runs[at];
}

void *tsr_operands_new(size_t bytes)
{
    if (bytes > (size_t)PIECE * PIECES || !open_block())
        return NULL;
    uint32_t n = bytes ? (uint32_t)((bytes + PIECE - 1) / PIECE) : 1;
    for (uint32_t at = 0; at < PIECES; at += runs[at] & ~TAKEN) {
        if (runs[at] & TAKEN || join_free(at) < n)
            continue;
        if (runs[at] > n)
            runs[at + n] = runs[at] - n;
        runs[at] = n | TAKEN;
        return block + (size_t)at * PIECE;
    }
    return NULL;
}

void tsr_operands_free(void *memory)
{
    if (memory)
        runs[((unsigned char *)memory - block) / PIECE] &= ~TAKEN;
}

tsr_status tsr_operands_finish(void)
{
    TSR_CUDA("a kernel under test", cudaStreamSynchronize(NULL));
    return TSR_OK;
}
