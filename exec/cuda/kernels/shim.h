/* shim.h: kernels as C functions that run thread by thread on the host, for tests without a GPU.
 * A kernel's symbol is a function that says what it is; who runs kernels defines the rest
 * (tests/standin).
 */
#ifndef TSR_EXEC_SHIM_H
#define TSR_EXEC_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What a launch needs to know of a kernel. */
struct tsr_shim_kernel {
    const char *name;
    size_t params;   /* bytes of its structure */
    unsigned limit;  /* threads of a block; more end a launch on a GPU, too */
    bool cooperates; /* its threads wait for each other */
    void (*body)(const void *params);
};
/* Every kernel's symbol is one of these. */
typedef void (*tsr_shim_describe)(struct tsr_shim_kernel *out);

/* The thread that runs: of this OS thread. */
struct tsr_shim_place {
    unsigned thread, threads;
    uint64_t block_x, blocks_x, block_y;
};
extern _Thread_local struct tsr_shim_place tsr_shim_place;
/* Dynamic shared memory of the block that runs. */
extern _Thread_local void *tsr_shim_shared;
extern _Thread_local unsigned tsr_shim_shared_size;

/* All threads of the block, or of the warp, arrive; another one runs meanwhile. */
void tsr_shim_sync(void);
void tsr_shim_sync_warp(void);
/* The value of the lane whose number differs in the bits of `lanes`. */
double tsr_shim_shuffle(double x, int lanes);
/* 16 bytes, when the thread waits for them or before; see code.h. */
void tsr_shim_copy_ahead(void *to, const void *from);
void tsr_shim_copies_mark(void);
void tsr_shim_copies_wait(unsigned last);

/* Ends the process if p is no multiple of n, a power of two. Inline: it is called for every word.
 */
_Noreturn void tsr_shim_misaligned(const void *p, size_t n);
static inline void tsr_shim_check_aligned(const void *p, size_t n)
{
    if ((uintptr_t)p & (n - 1))
        tsr_shim_misaligned(p, n);
}
/* What C copies 4, 8 or 16 bytes at a time is one access on a GPU (tsr_get_words() of tensor.h, for
 * one), where it fails unless the address is a multiple of that. Of the two places the one that is
 * bytes is memory, the other one the thread's own words. */
#define TSR_SHIM_MEMORY(p) \
    _Generic((p), unsigned char *  \
             : (p), const unsigned char * \
             : (p), char *         \
             : (p), const char *   \
             : (p), default        \
             : (const void *)0)
static inline void *tsr_shim_copy(void *to, const void *from, size_t n, const void *to_memory,
                                  const void *from_memory)
{
    if (n == 2 || n == 4 || n == 8 || n == 16) {
        tsr_shim_check_aligned(to_memory, n);
        tsr_shim_check_aligned(from_memory, n);
    }
    return memmove(to, from, n);
}
#define memcpy(to, from, n)  tsr_shim_copy(to, from, n, TSR_SHIM_MEMORY(to), TSR_SHIM_MEMORY(from))
#define memmove(to, from, n) tsr_shim_copy(to, from, n, TSR_SHIM_MEMORY(to), TSR_SHIM_MEMORY(from))

#define TSR_SHIM_KERNEL(most, name_, type, together)                                         \
    static void name_##_code(const type *k_);                                                \
    static void name_##_body(const void *params)                                             \
    {                                                                                        \
        name_##_code((const type *)params);                                                  \
    }                                                                                        \
    void name_(struct tsr_shim_kernel *out);                                                 \
    void name_(struct tsr_shim_kernel *out)                                                  \
    {                                                                                        \
        *out = (struct tsr_shim_kernel){#name_, sizeof(type), most, together, name_##_body}; \
    }                                                                                        \
    static void name_##_run(const type k);                                                   \
    static void name_##_code(const type *k_)                                                 \
    {                                                                                        \
        name_##_run(*k_);                                                                    \
    }                                                                                        \
    static void name_##_run(const type k)
#define TSR_GRID_KERNEL(name, type)              TSR_SHIM_KERNEL(TSR_CUDA_THREADS, name, type, false)
#define TSR_BLOCK_KERNEL_OF(threads, name, type) TSR_SHIM_KERNEL(threads, name, type, true)
#define TSR_BLOCK_KERNEL(name, type)             TSR_BLOCK_KERNEL_OF(TSR_CUDA_THREADS, name, type)
#define TSR_LONG_KERNEL(name, type)              TSR_BLOCK_KERNEL_OF(TSR_CUDA_LONG, name, type)
/* The structure may be large and is not copied for every thread. */
#define TSR_GRID_CODE_AS(name, fn, type, stay)                                                    \
    static void name##_body(const void *params)                                                   \
    {                                                                                             \
        fn((const type *)params, tsr_begin(), tsr_step());                                        \
    }                                                                                             \
    void tsr_cuda_##name(struct tsr_shim_kernel *out);                                            \
    void tsr_cuda_##name(struct tsr_shim_kernel *out)                                             \
    {                                                                                             \
        *out = (struct tsr_shim_kernel){"tsr_cuda_" #name, sizeof(type), TSR_CUDA_THREADS, false, \
                                        name##_body};                                             \
    }
#define TSR_DEVICE           static inline
#define TSR_ALIGN_16         __attribute__((aligned(16)))
#define TSR_OUTLINE          static __attribute__((noinline, unused))
#define tsr_shared           static _Thread_local
#define tsr_sync()           tsr_shim_sync()
#define tsr_sync_warp()      tsr_shim_sync_warp()
#define tsr_dynamic_shared() tsr_shim_shared
/* Kernels that cooperate run with blocks of one thread under sanitizers, which cannot follow
 * fibers.
 */
#define tsr_alone() (tsr_threads() == 1)
TSR_DEVICE unsigned tsr_dynamic_shared_size(void)
{
    return tsr_shim_shared_size;
}
#define tsr_copy_ahead(shared, from) tsr_shim_copy_ahead(shared, from)
#define tsr_copies_mark()            tsr_shim_copies_mark()
#define tsr_copies_wait(n)           tsr_shim_copies_wait(n)
TSR_DEVICE unsigned tsr_thread(void)
{
    return tsr_shim_place.thread;
}
TSR_DEVICE unsigned tsr_threads(void)
{
    return tsr_shim_place.threads;
}
TSR_DEVICE uint64_t tsr_block_x(void)
{
    return tsr_shim_place.block_x;
}
TSR_DEVICE uint64_t tsr_blocks_x(void)
{
    return tsr_shim_place.blocks_x;
}
TSR_DEVICE uint64_t tsr_block_y(void)
{
    return tsr_shim_place.block_y;
}
/* Threads run one after the other. */
TSR_DEVICE uint32_t tsr_atomic_add(uint32_t *at, uint32_t x)
{
    uint32_t before = *at;
    *at += x;
    return before;
}
TSR_DEVICE float tsr_shuffle_f32(float x, int lanes)
{
    return (float)tsr_shim_shuffle(x, lanes);
}
TSR_DEVICE double tsr_shuffle_f64(double x, int lanes)
{
    return tsr_shim_shuffle(x, lanes);
}

#endif
