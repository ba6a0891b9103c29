/* product.cu: products of matrices that cuBLASLt does not take: of operands of different types, of
 * rows that repeat, of f64 with a bias. Tiles in shared memory, sums in registers.
 */
#include "exec/cuda/kernels/code.h"

#include "exec/cuda/kernels/grid/grid.h"

#define TSR_REAL_F64 0
#include "exec/cuda/kernels/grid/product_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/cuda/kernels/grid/product_real.h"
#undef TSR_REAL_F64

TSR_BLOCK_KERNEL(tsr_cuda_product_f32, struct tsr_plain_product)
{
    product_f32(&k);
}

TSR_BLOCK_KERNEL(tsr_cuda_product_f64, struct tsr_plain_product)
{
    product_f64(&k);
}
