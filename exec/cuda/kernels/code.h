/* code.h: the language of the kernels: the part of C that nvcc and a C compiler read alike. Every
 * .cu file includes it first. nvcc makes kernels of it; a C compiler makes the same functions for
 * tests/standin, which runs them thread by thread on the host.
 *
 *   TSR_GRID_KERNEL(name, struct type) { body }     threads work alone; `k` is the structure
 *   TSR_BLOCK_KERNEL(name, struct type) { body }    threads of a block use tsr_sync(), tsr_shared
 *                                                   memory and the sums of team.h
 *   TSR_LONG_KERNEL(name, struct type) { body }     the same with blocks of up to TSR_CUDA_LONG
 *                                                   threads
 *   TSR_BLOCK_KERNEL_OF(threads, name, struct type) the same with blocks of up to `threads`
 *   TSR_GRID_CODE(name, function, struct type)      FUNCTION_f32 and _f64(&k, begin, step) of
 *                                                   exec/kernels as kernels tsr_cuda_NAME_f32, _f64
 *   TSR_LIST_CODE(name, function, struct type, stay)   the same, of which a multiprocessor has
 *                                                   `stay` blocks at once (launch_codes.c)
 *   TSR_GRID_CODE_OF_ONE(name, function, struct type)  FUNCTION(&k, begin, step) as tsr_cuda_NAME
 * Both have threads along x and blocks along x and y; every thread of a block reaches every
 * tsr_sync(). The host refers to kernels by declare.h.
 */
#ifndef TSR_EXEC_CODE_H
#define TSR_EXEC_CODE_H

#include <stdbool.h>
#include <stdint.h>

/* TSR_CUDA_ITEMS: elements that a thread has in hand at once: 16 bytes of bf16. */
/* TSR_CUDA_STAY, TSR_CUDA_STAY_WIDE: blocks of kernels over lists that a multiprocessor has at
 * once, the latter with so many registers that 120 bytes of a thread are on their way. */
enum { TSR_CUDA_STAY = 4, TSR_CUDA_STAY_WIDE = 2 };
/* Threads of a block: usually; at most, with 64 registers each; at most, where a thread needs 128.
 */
enum { TSR_CUDA_THREADS = 256, TSR_CUDA_LONG = 1024, TSR_CUDA_MEDIUM = 512 };
enum { TSR_WARP = 32, TSR_CUDA_ITEMS = 8 };
#ifndef TSR_BLOCK
#define TSR_BLOCK 8 /* of exec/kernels/tensor/tensor.h: TSR_CUDA_ITEMS */
#endif

#ifdef __CUDACC__

#define TSR_GRID_KERNEL(name, type)                                \
    extern "C" __global__ void __launch_bounds__(TSR_CUDA_THREADS) \
        name(const __grid_constant__ type k)
#define TSR_BLOCK_KERNEL(name, type) TSR_GRID_KERNEL(name, type)
#define TSR_BLOCK_KERNEL_OF(threads, name, type) \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ type k)
#define TSR_LONG_KERNEL(name, type) TSR_BLOCK_KERNEL_OF(TSR_CUDA_LONG, name, type)
#define TSR_DEVICE                  static __device__ inline
#define TSR_OUTLINE                 static __device__ __noinline__ /* where few calls come: code stays small */
#define TSR_ALIGN_16                __align__(16)
#define tsr_shared                  __shared__
#define tsr_sync()                  __syncthreads()
#define tsr_sync_warp()             __syncwarp() /* what others of the warp read and wrote before is done */
#define tsr_alone()                 false
extern __shared__ __align__(16) unsigned char tsr_dynamic_shared_bytes[];
#define tsr_dynamic_shared() ((void *)tsr_dynamic_shared_bytes)
/* Bytes of it that the launch gave the block. */
TSR_DEVICE unsigned tsr_dynamic_shared_size(void)
{
    unsigned bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}
/* 16 bytes on their way from the GPU's memory to shared memory: no register waits for them. Both
 * places are multiples of 16. tsr_copies_mark() ends a group of them; tsr_copies_wait(n): this
 * thread may read what it asked for, but for its last n groups. n is a constant. */
TSR_DEVICE void tsr_copy_ahead(void *shared, const void *from)
{
    unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
#define tsr_copies_mark()  asm volatile("cp.async.commit_group;" ::: "memory")
#define tsr_copies_wait(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
TSR_DEVICE unsigned tsr_thread(void)
{
    return threadIdx.x;
}
TSR_DEVICE unsigned tsr_threads(void)
{
    return blockDim.x;
}
TSR_DEVICE uint64_t tsr_block_x(void)
{
    return blockIdx.x;
}
TSR_DEVICE uint64_t tsr_blocks_x(void)
{
    return gridDim.x;
}
TSR_DEVICE uint64_t tsr_block_y(void)
{
    return blockIdx.y;
}
TSR_DEVICE uint32_t tsr_atomic_add(uint32_t *at, uint32_t x)
{
    return atomicAdd(at, x);
}
TSR_DEVICE float tsr_shuffle_f32(float x, int lanes)
{
    return __shfl_xor_sync(~0u, x, lanes);
}
TSR_DEVICE double tsr_shuffle_f64(double x, int lanes)
{
    return __shfl_xor_sync(~0u, x, lanes);
}

#else
#include "exec/cuda/kernels/shim.h"
#endif

/* Number of a thread in the grid, and of threads. */
TSR_DEVICE uint64_t tsr_begin(void)
{
    return tsr_block_x() * tsr_threads() + tsr_thread();
}
TSR_DEVICE uint64_t tsr_step(void)
{
    return tsr_blocks_x() * tsr_threads();
}

#define TSR_GRID_CODE(name, fn, type)               \
    TSR_GRID_CODE_AS(name##_f32, fn##_f32, type, 1) \
    TSR_GRID_CODE_AS(name##_f64, fn##_f64, type, 1)
#define TSR_LIST_CODE(name, fn, type, stay)            \
    TSR_GRID_CODE_AS(name##_f32, fn##_f32, type, stay) \
    TSR_GRID_CODE_AS(name##_f64, fn##_f64, type, stay)
#define TSR_GRID_CODE_OF_ONE(name, fn, type)       TSR_GRID_CODE_AS(name, fn, type, 1)
#define TSR_LIST_CODE_OF_ONE(name, fn, type, stay) TSR_GRID_CODE_AS(name, fn, type, stay)

#ifdef __CUDACC__
#define TSR_GRID_CODE_AS(name, fn, type, stay)                           \
    extern "C" __global__ void __launch_bounds__(TSR_CUDA_THREADS, stay) \
        tsr_cuda_##name(const __grid_constant__ type k)                  \
    {                                                                    \
        fn(&k, tsr_begin(), tsr_step());                                 \
    }
#endif

#endif
