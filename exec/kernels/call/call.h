/* call.h: how a kernel of the host takes its operands: each is looked up by slot and checked before
 * anything is touched. Errors are TSR_EDEFECT with the kernel's name and the slot.
 */
#ifndef TSR_EXEC_CALL_H
#define TSR_EXEC_CALL_H

#include "exec/kernels/call/kernel.h"
#include "exec/kernels/tensor/tensor.h"

/* Dtypes that an argument may have. */
enum tsr_operand_kind {
    TSR_OPERAND_FLOAT, /* f32, bf16, f16, f64 */
    TSR_OPERAND_IDS,   /* i64 */
    TSR_OPERAND_ANY,
    TSR_OPERAND_BYTES /* whatever it is, seen as bytes */
};

#define TSR_ANY_NUMBER UINT64_MAX

/* The elements of a view. */
tsr_status tsr__elems(const struct tsr_kernel_call *call, const struct tsr_view *view,
                      enum tsr_operand_kind kind, struct tsr_elems *out) TSR_MUST_USE;

/* The argument of a slot: an operand that is read, one that is written, one that is both; it has n
 * elements (or TSR_ANY_NUMBER). */
tsr_status tsr__in(const struct tsr_kernel_call *call, unsigned slot, enum tsr_operand_kind kind,
                   uint64_t n, struct tsr_elems *out) TSR_MUST_USE;
tsr_status tsr__out(const struct tsr_kernel_call *call, unsigned slot, enum tsr_operand_kind kind,
                    uint64_t n, struct tsr_elems *out) TSR_MUST_USE;
tsr_status tsr__in_out(const struct tsr_kernel_call *call, unsigned slot,
                       enum tsr_operand_kind kind, uint64_t n, struct tsr_elems *out) TSR_MUST_USE;

/* Reads a list: the next operand of `slot` at or behind *next, which moves behind it; NULL: none.
 */
const struct tsr_view *tsr__next(const struct tsr_kernel_call *call, unsigned slot, uint32_t *next);
/* The same, taken as by tsr__in() and its like (access: enum tsr_access). TSR_EDEFECT: none left.
 */
tsr_status tsr__take(const struct tsr_kernel_call *call, unsigned slot, uint32_t *next,
                     unsigned access, uint64_t n, struct tsr_elems *out) TSR_MUST_USE;
uint32_t tsr__count(const struct tsr_kernel_call *call, unsigned slot);

/* work->args[0 .. n) are there. */
tsr_status tsr__need_args(const struct tsr_kernel_call *call, uint32_t n) TSR_MUST_USE;
/* What gradient i is to be multiplied by: f32 in the upper half of its argument; 1 if it is 0. */
float tsr__gradient_scale(const struct tsr_kernel_call *call, uint32_t i);
tsr_status tsr__need_scalars(const struct tsr_kernel_call *call) TSR_MUST_USE;
/* work->args[i], 0 if it is not there. */
uint64_t tsr__arg(const struct tsr_kernel_call *call, uint32_t i);

/* True if the arithmetic is in f64. */
bool tsr__is_wide(const struct tsr_kernel_call *call);

/* tsr_fail(TSR_EDEFECT) with the name of the kernel. */
tsr_status tsr__defect(const struct tsr_kernel_call *call, const char *fmt, ...) TSR_PRINTF(2, 3);
tsr_status tsr__no_memory(const struct tsr_kernel_call *call);

/* a * b * c, UINT64_MAX - 1 (which no operand has) when it does not fit. */
uint64_t tsr__product3(uint64_t a, uint64_t b, uint64_t c);

/* Runs code over n elements or rows, wherever the call belongs. */
tsr_status tsr__run(const struct tsr_kernel_call *call, const struct tsr_code *code,
                    const void *params, uint64_t n) TSR_MUST_USE;
/* The same in f64 if `wide`, whatever the operands are. */
tsr_status tsr__run_as(const struct tsr_kernel_call *call, const struct tsr_code *code, bool wide,
                       const void *params, uint64_t n) TSR_MUST_USE;

/* code_NAME: the code of functions FN_f32 and FN_f64 that take (const TYPE *, begin, step). */
#define TSR_CODE(name_, fn, type)                                                       \
    static void name_##_run_f32(const void *params, uint64_t begin, uint64_t step)      \
    {                                                                                   \
        fn##_f32((const type *)params, begin, step);                                    \
    }                                                                                   \
    static void name_##_run_f64(const void *params, uint64_t begin, uint64_t step)      \
    {                                                                                   \
        fn##_f64((const type *)params, begin, step);                                    \
    }                                                                                   \
    static const struct tsr_code code_##name_ = {#name_, sizeof(type), name_##_run_f32, \
                                                 name_##_run_f64}

/* code_NAME of code that has one form for all dtypes: FN takes (const TYPE *, begin, step). */
#define TSR_CODE_OF_ONE(name_, fn, type)                                       \
    static void name_##_run(const void *params, uint64_t begin, uint64_t step) \
    {                                                                          \
        fn((const type *)params, begin, step);                                 \
    }                                                                          \
    static const struct tsr_code code_##name_ = {#name_, sizeof(type), name_##_run, name_##_run}

/* A kernel whose template is NAME_f32 and NAME_f64. */
#define TSR_KERNEL_OF_REALS(name)                                        \
    tsr_status tsr__##name(const struct tsr_kernel_call *call)           \
    {                                                                    \
        return tsr__is_wide(call) ? name##_f64(call) : name##_f32(call); \
    }

#endif
