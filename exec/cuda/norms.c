/* norms.c: the backward of norms: sums over rows first, since the gradient of x may take the place
 * of what they are made of.
 */
#include "exec/kernels/norms.h"

#include "kernels/columns.h"
#include "kernels/declare.h"
#include "launch.h"

tsr_status tsr_cuda_norm_backward(const struct tsr_kernel_call *call, bool wide, const void *params,
                                  uint64_t n)
{
    const struct tsr_norm *k = params;
    (void)n;
    if (k->gw.data || k->gb.data) {
        const struct tsr_elems out[2] = {k->gb, k->gw};
        struct tsr_column_parts parts = {
            .shape = k->shape, .g = k->g, .x = k->x, .mean = k->mean, .rstd = k->rstd};
        TSR_TRY(tsr_cuda_sum_columns(call, wide, &parts, out));
    }
    if (!k->gx.data)
        return TSR_OK;
    static const struct tsr_cuda_forms forms = TSR_FORMS(norm_backward);
    return tsr_cuda_launch_rows(call, &forms, wide, 2, false, k);
}
