/* elementwise.c: kernels whose every element of the output comes from one of each input. */
#include "exec/kernels/call/table.h"
#include "exec/kernels/elements/list.h"
#include "exec/kernels/grid/grid_elementwise.h"

TSR_CODE(elementwise, tsr_grid_elementwise, struct tsr_elementwise);
TSR_CODE(rare, tsr_grid_rare, struct tsr_elementwise);

tsr_status tsr__run_elementwise(const struct tsr_kernel_call *call, const struct tsr_elementwise *e,
                                bool wide)
{
    return tsr__run_as(call, tsr_is_rare(e->op) ? &code_rare : &code_elementwise, wide, e,
                       e->out.n);
}

/* Integers are exact in f64 as far as anyone counts. */
static bool is_wide(const struct tsr_kernel_call *call)
{
    for (uint32_t i = 0; i < call->n_views; i++)
        if (call->views[i].dtype == TSR_F64 || call->views[i].dtype == TSR_I64)
            return true;
    return false;
}

struct function {
    const char *name;
    uint8_t op, n_in;
};

static const struct function functions[] = {{"clone", TSR_EW_COPY, 1},
                                            {"cast", TSR_EW_COPY, 1},
                                            {"add", TSR_EW_ADD, 2},
                                            {"add_mask", TSR_EW_ADD, 2},
                                            {"mul", TSR_EW_MUL, 2},
                                            {"mul_scalar", TSR_EW_MUL_BY, 1},
                                            {"add_scalar", TSR_EW_ADD_TO, 1},
                                            {"sub_scalar", TSR_EW_SUB_FROM, 1},
                                            {"div", TSR_EW_DIV_BY, 1},
                                            {"pow", TSR_EW_POW, 1},
                                            {"neg", TSR_EW_NEG, 1},
                                            {"rsqrt", TSR_EW_RSQRT, 1},
                                            {"tanh", TSR_EW_TANH, 1},
                                            {"cos", TSR_EW_COS, 1},
                                            {"sin", TSR_EW_SIN, 1},
                                            {"silu", TSR_EW_SILU, 1},
                                            {"relu", TSR_EW_RELU, 1},
                                            {"gelu", TSR_EW_GELU, 1},
                                            {"silu_backward", TSR_EW_SILU_BACKWARD, 2},
                                            {"gelu_backward", TSR_EW_GELU_BACKWARD, 2},
                                            {"gelu_erf", TSR_EW_GELU_ERF, 1},
                                            {"gelu_erf_backward", TSR_EW_GELU_ERF_BACKWARD, 2},
                                            {"threshold_backward", TSR_EW_THRESHOLD_BACKWARD, 2},
                                            {"tanh_backward", TSR_EW_TANH_BACKWARD, 2},
                                            {"ones", TSR_EW_CONSTANT, 0},
                                            {"scalar", TSR_EW_CONSTANT, 0},
                                            {"arange", TSR_EW_COUNT_UP, 0},
                                            {"where", TSR_EW_WHERE, 3},
                                            {"tril", TSR_EW_TRIL, 1},
                                            {"scale", TSR_EW_MUL, 2},
                                            {"scale_input_grad", TSR_EW_MUL, 2},
                                            {"copy", TSR_EW_COPY, 1},
                                            {"root", TSR_EW_ROOT, 1},
                                            {"add_eps", TSR_EW_ADD_TO, 1},
                                            {"reciprocal", TSR_EW_RECIPROCAL, 1},
                                            {"mul_max_norm", TSR_EW_MUL_BY, 1},
                                            {"clamp", TSR_EW_AT_MOST_ONE, 1}};

static const struct function *function_of(const char *name)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strcmp(functions[i].name, name) == 0)
            return &functions[i];
    return NULL;
}

/* An input: one element for each of the output, one a row, or fewer that are repeated. */
static tsr_status input(const struct tsr_kernel_call *call, struct tsr_elementwise *e, unsigned i)
{
    uint64_t rows = e->columns ? e->out.n / e->columns : 0;
    TSR_TRY(tsr__in(call, i, TSR_OPERAND_ANY, TSR_ANY_NUMBER, &e->in[i]));
    if (e->per_row >> i & 1 && (!e->columns || e->out.n % e->columns || e->in[i].n != rows))
        return tsr__defect(call, "slot %u: %llu elements for %llu rows of %llu columns", i,
                           (unsigned long long)e->in[i].n, (unsigned long long)rows,
                           (unsigned long long)e->columns);
    if (!(e->per_row >> i & 1) && (e->in[i].n ? e->out.n % e->in[i].n != 0 : e->out.n != 0))
        return tsr__defect(call, "slot %u: %llu elements do not divide %llu", i,
                           (unsigned long long)e->in[i].n, (unsigned long long)e->out.n);
    return TSR_OK;
}

static tsr_status apply(const struct tsr_kernel_call *call, struct tsr_elementwise *e)
{
    unsigned out = e->n_in;
    if (e->op == TSR_EW_DIV_BY && !tsr_slot(call, 1)) /* in place */
        out = 0;
    TSR_TRY(tsr__out(call, out, TSR_OPERAND_ANY, TSR_ANY_NUMBER, &e->out));
    for (unsigned i = 0; i < e->n_in; i++)
        TSR_TRY(input(call, e, i));
    if (e->op == TSR_EW_TRIL && tsr__product3(e->columns, e->columns, 1) != e->out.n)
        return tsr__defect(call, "slot 1: %llu elements are no square of %llu columns",
                           (unsigned long long)e->out.n, (unsigned long long)e->columns);
    return tsr__run_elementwise(call, e, is_wide(call));
}

tsr_status tsr__elementwise(const struct tsr_kernel_call *call)
{
    const struct function *f = function_of(call->work->name);
    if (!f)
        return tsr__defect(call, "no such function of elements");
    struct tsr_elementwise e = {.op = f->op,
                                .n_in = f->n_in,
                                .per_row = (uint8_t)call->work->dims[2],
                                .columns = call->work->dims[1],
                                .c = call->work->constants[0]};
    if (strcmp(f->name, "ones") == 0)
        e.c = 1;
    return apply(call, &e);
}

/* Kernels of clipping, whose numbers come from elsewhere. */
tsr_status tsr__small_scalar(const struct tsr_kernel_call *call)
{
    const struct function *f = function_of(call->work->name);
    if (!f)
        return tsr__defect(call, "no such function of elements");
    struct tsr_elementwise e = {.op = f->op, .n_in = f->n_in};
    if (strcmp(f->name, "add_eps") == 0)
        e.c = 1e-6;
    if (strcmp(f->name, "mul_max_norm") == 0) {
        TSR_TRY(tsr__need_scalars(call));
        e.c = call->scalars[TSR_SCALAR_MAX_NORM];
        e.c_at = call->scalars_at ? call->scalars_at + TSR_SCALAR_MAX_NORM : NULL;
    }
    return apply(call, &e);
}

/* ---- sums in place --------------------------------------------------------------------------- */

tsr_status tsr__add_into(const struct tsr_kernel_call *call)
{
    struct tsr_elementwise e = {.op = TSR_EW_ADD, .n_in = 2};
    TSR_TRY(tsr__in_out(call, 1, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &e.out));
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, e.out.n, &e.in[1]));
    e.in[0] = e.out;
    return tsr__run_elementwise(call, &e, tsr__is_wide(call));
}

/* Collects what is added to what; l NULL: only checks it. */
static tsr_status sums(const struct tsr_kernel_call *call, uint32_t n, struct tsr_lists *l)
{
    uint32_t next_from = 0, next_into = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct tsr_elems from, into;
        TSR_TRY(tsr__take(call, 1, &next_into, TSR_READ_WRITE, TSR_ANY_NUMBER, &into));
        TSR_TRY(tsr__take(call, 0, &next_from, TSR_READ, into.n, &from));
        if (l)
            TSR_TRY(tsr__list_add(l, &from, &into, 0));
    }
    return TSR_OK;
}

tsr_status tsr__accumulate_list(const struct tsr_kernel_call *call)
{
    struct tsr_lists l;
    uint32_t n = tsr__count(call, 1);
    if (tsr__count(call, 0) != n)
        return tsr__defect(call, "slot 0: %u operands for %u sums", tsr__count(call, 0), n);
    TSR_TRY(sums(call, n, NULL));
    tsr__list_begin(&l, call, TSR_LIST_ADD);
    TSR_TRY(sums(call, n, &l));
    return tsr__list_end(&l);
}

tsr_status tsr__div_by_world(const struct tsr_kernel_call *call)
{
    struct tsr_elementwise e = {.op = TSR_EW_DIV_BY, .n_in = 1, .c = call->work->constants[0]};
    TSR_TRY(tsr__in_out(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &e.out));
    e.in[0] = e.out;
    return tsr__run_elementwise(call, &e, tsr__is_wide(call));
}

/* ---- filling --------------------------------------------------------------------------------- */

tsr_status tsr_host_fill(const struct tsr_kernel_call *call)
{
    struct tsr_elementwise e = {.op = TSR_EW_CONSTANT, .c = call->factor};
    const struct tsr_view *view = tsr_slot(call, 0);
    bool bytes = view && view->dtype == TSR_DTYPE_NONE;
    if (bytes)
        e.c = 0;
    TSR_TRY(tsr__out(call, 0, bytes ? TSR_OPERAND_BYTES : TSR_OPERAND_ANY, TSR_ANY_NUMBER, &e.out));
    if (e.c == 0 && !signbit(e.c) && tsr__word_of_elems(&e.out, 4) == 4) {
        e.out = tsr__as_words(&e.out, 4); /* zero is zero bytes in every dtype */
        e.out.dtype = TSR_F32;
    }
    return tsr__run_elementwise(call, &e, is_wide(call));
}

/* ---- silu(gate) * up in one kernel, and both gradients in one -------------------------------- */

TSR_CODE(swiglu, tsr_grid_swiglu, struct tsr_swiglu);
TSR_CODE(swiglu_backward, tsr_grid_swiglu_backward, struct tsr_swiglu);

tsr_status tsr__swiglu(const struct tsr_kernel_call *call)
{
    struct tsr_swiglu k = {.out = {.data = NULL}};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.gate));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, k.gate.n, &k.up));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, k.gate.n, &k.out));
    return tsr__run(call, &code_swiglu, &k, k.gate.n);
}

tsr_status tsr__swiglu_backward(const struct tsr_kernel_call *call)
{
    struct tsr_swiglu k = {.out = {.data = NULL}};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.g));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, k.g.n, &k.gate));
    TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, k.g.n, &k.up));
    if (tsr_slot(call, 3))
        TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, k.g.n, &k.grad_gate));
    if (tsr_slot(call, 4))
        TSR_TRY(tsr__out(call, 4, TSR_OPERAND_FLOAT, k.g.n, &k.grad_up));
    return tsr__run(call, &code_swiglu_backward, &k, k.gate.n);
}
