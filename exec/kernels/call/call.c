/* call.c: operands of a call, looked up and checked. */
#include <stdio.h>

#include "exec/kernels/call/call.h"

tsr_status tsr__defect(const struct tsr_kernel_call *call, const char *fmt, ...)
{
    char text[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const char *name = call->work && call->work->name ? call->work->name : "fill";
    return tsr_fail(TSR_EDEFECT, "kernel %s: %s", name, text);
}

tsr_status tsr__no_memory(const struct tsr_kernel_call *call)
{
    return tsr_fail(TSR_ENOMEM, "kernel %s: out of memory for its temporaries", call->work->name);
}

uint64_t tsr__product3(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t ab, abc;
    return tsr_mul_u64(a, b, &ab) && tsr_mul_u64(ab, c, &abc) ? abc : UINT64_MAX - 1;
}

/* Elements of a view of rows; the last row may end with its width. */
static tsr_status rows_of_view(const struct tsr_kernel_call *call, const struct tsr_view *view,
                               struct tsr_elems *out)
{
    uint64_t item = out->item, used = tsr_min_u64(view->width, view->pitch);
    bool whole = view->width % item == 0 && view->pitch % item == 0;
    uint64_t last = view->pitch ? view->bytes % view->pitch : 0;
    if (!view->width || !view->pitch || !whole || (last != 0 && last < used))
        return tsr__defect(call, "slot %u: rows of %u bytes every %u do not make %llu bytes of %s",
                           view->slot, view->width, view->pitch, (unsigned long long)view->bytes,
                           tsr_dtype_name((tsr_dtype)view->dtype));
    out->width = view->width / item;
    out->pitch = view->pitch / item;
    out->n = tsr_ceil_div(view->bytes, view->pitch) * out->width;
    return TSR_OK;
}

static bool fits_kind(uint8_t dtype, enum tsr_operand_kind kind)
{
    switch (kind) {
    case TSR_OPERAND_FLOAT:
        return tsr_dtype_is_float((tsr_dtype)dtype) && dtype != TSR_F8;
    case TSR_OPERAND_IDS:
        return dtype == TSR_I64;
    case TSR_OPERAND_ANY:
        return dtype != TSR_DTYPE_NONE && dtype < TSR_N_DTYPES;
    case TSR_OPERAND_BYTES:
        break;
    }
    return dtype < TSR_N_DTYPES;
}

tsr_status tsr__elems(const struct tsr_kernel_call *call, const struct tsr_view *view,
                      enum tsr_operand_kind kind, struct tsr_elems *out)
{
    bool bytes = kind == TSR_OPERAND_BYTES;
    if (!fits_kind(view->dtype, kind))
        return tsr__defect(call, "slot %u: an operand of %s", view->slot,
                           tsr_dtype_name((tsr_dtype)view->dtype));
    uint8_t dtype = bytes ? TSR_U8 : view->dtype;
    *out = (struct tsr_elems){
        .data = view->data, .dtype = dtype, .item = (uint8_t)tsr_dtype_bytes((tsr_dtype)dtype)};
    if ((!view->data && view->bytes) || (uintptr_t)view->data % out->item != 0)
        return tsr__defect(call, "slot %u: %s at an address that does not fit it", view->slot,
                           tsr_dtype_name((tsr_dtype)dtype));
    if (view->width || view->pitch)
        return rows_of_view(call, view, out);
    if (view->bytes % out->item != 0)
        return tsr__defect(call, "slot %u: %llu bytes of %s", view->slot,
                           (unsigned long long)view->bytes, tsr_dtype_name((tsr_dtype)dtype));
    out->n = view->bytes / out->item;
    return TSR_OK;
}

static tsr_status checked(const struct tsr_kernel_call *call, const struct tsr_view *view,
                          unsigned access, enum tsr_operand_kind kind, uint64_t n,
                          struct tsr_elems *out)
{
    if ((view->access & access) != access)
        return tsr__defect(call, "slot %u: is %s, but not declared so", view->slot,
                           access & ~(unsigned)view->access & TSR_WRITE ? "written" : "read");
    TSR_TRY(tsr__elems(call, view, kind, out));
    if ((access & TSR_WRITE) && out->pitch < out->width)
        return tsr__defect(call, "slot %u: a result in rows that repeat", view->slot);
    if (n != TSR_ANY_NUMBER && out->n != n)
        return tsr__defect(call, "slot %u: %llu elements instead of %llu", view->slot,
                           (unsigned long long)out->n, (unsigned long long)n);
    return TSR_OK;
}

static tsr_status taken(const struct tsr_kernel_call *call, unsigned slot, unsigned access,
                        enum tsr_operand_kind kind, uint64_t n, struct tsr_elems *out)
{
    const struct tsr_view *view = tsr_slot(call, slot);
    if (!view)
        return tsr__defect(call, "slot %u: no operand", slot);
    return checked(call, view, access, kind, n, out);
}

tsr_status tsr__in(const struct tsr_kernel_call *call, unsigned slot, enum tsr_operand_kind kind,
                   uint64_t n, struct tsr_elems *out)
{
    return taken(call, slot, TSR_READ, kind, n, out);
}

tsr_status tsr__out(const struct tsr_kernel_call *call, unsigned slot, enum tsr_operand_kind kind,
                    uint64_t n, struct tsr_elems *out)
{
    return taken(call, slot, TSR_WRITE, kind, n, out);
}

tsr_status tsr__in_out(const struct tsr_kernel_call *call, unsigned slot,
                       enum tsr_operand_kind kind, uint64_t n, struct tsr_elems *out)
{
    return taken(call, slot, TSR_READ_WRITE, kind, n, out);
}

const struct tsr_view *tsr__next(const struct tsr_kernel_call *call, unsigned slot, uint32_t *next)
{
    while (*next < call->n_views) {
        const struct tsr_view *view = &call->views[(*next)++];
        if (view->slot == slot)
            return view;
    }
    return NULL;
}

tsr_status tsr__take(const struct tsr_kernel_call *call, unsigned slot, uint32_t *next,
                     unsigned access, uint64_t n, struct tsr_elems *out)
{
    const struct tsr_view *view = tsr__next(call, slot, next);
    if (!view)
        return tsr__defect(call, "slot %u: the list is too short", slot);
    return checked(call, view, access, TSR_OPERAND_FLOAT, n, out);
}

uint32_t tsr__count(const struct tsr_kernel_call *call, unsigned slot)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < call->n_views; i++)
        n += call->views[i].slot == slot;
    return n;
}

float tsr__gradient_scale(const struct tsr_kernel_call *call, uint32_t i)
{
    uint32_t bits = i < call->work->n_args ? (uint32_t)(call->work->args[i] >> 32) : 0;
    float scale = 1;
    if (bits)
        memcpy(&scale, &bits, sizeof scale);
    return scale;
}

tsr_status tsr__need_args(const struct tsr_kernel_call *call, uint32_t n)
{
    if (call->work->n_args >= n)
        return TSR_OK;
    return tsr__defect(call, "%u arguments instead of %u", call->work->n_args, n);
}

tsr_status tsr__need_scalars(const struct tsr_kernel_call *call)
{
    return call->scalars ? TSR_OK : tsr__defect(call, "no table of scalars");
}

uint64_t tsr__arg(const struct tsr_kernel_call *call, uint32_t i)
{
    return i < call->work->n_args ? call->work->args[i] : 0;
}

bool tsr__is_wide(const struct tsr_kernel_call *call)
{
    for (uint32_t i = 0; i < call->n_views; i++)
        if (call->views[i].dtype == TSR_F64)
            return true;
    return false;
}

tsr_status tsr__run_as(const struct tsr_kernel_call *call, const struct tsr_code *code, bool wide,
                       const void *params, uint64_t n)
{
    if (call->launch)
        return call->launch(call, code, wide, params, n);
    (wide ? code->f64 : code->f32)(params, 0, 1);
    return TSR_OK;
}

tsr_status tsr__run(const struct tsr_kernel_call *call, const struct tsr_code *code,
                    const void *params, uint64_t n)
{
    return tsr__run_as(call, code, tsr__is_wide(call), params, n);
}
