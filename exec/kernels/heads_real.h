/* heads_real.h: template of heads.c. */
#include "real.h"

static tsr_status TSR_R(sum_heads)(const struct tsr_kernel_call *call)
{
    struct tsr_elems g, out;
    uint64_t times = tsr__arg(call, 0), d = tsr__arg(call, 1);
    TSR_REAL sum[TSR_BLOCK], part[TSR_BLOCK];
    TSR_TRY(tsr__need_args(call, 2));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &out));
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, tsr__product3(out.n, times, 1), &g));
    if (d == 0 || times == 0 || out.n % d != 0)
        return tsr__defect(call, "slot 1: %llu elements are no rows of %llu",
                           (unsigned long long)out.n, (unsigned long long)d);
    for (uint64_t row = 0; row < out.n / d; row++)
        for (uint64_t at = 0, n; at < d; at += n) {
            n = d - at < TSR_BLOCK ? d - at : TSR_BLOCK;
            TSR_R(tsr_load)(&g, row * times * d + at, n, sum);
            for (uint64_t h = 1; h < times; h++) {
                TSR_R(tsr_load)(&g, (row * times + h) * d + at, n, part);
                for (unsigned i = 0; i < n; i++)
                    sum[i] += part[i];
            }
            TSR_R(tsr_store)(&out, row * d + at, n, sum);
        }
    return TSR_OK;
}
