/* kineto_work.c: operators of PyTorch, by their names and inputs, as kernels of
 * engine/ops/KERNELS.md: what `record_shapes=True` keeps of a call ("Input Dims", "Input Strides",
 * "Input type", "Concrete Inputs").
 */
#include <jansson.h>
#include <string.h>

#include "experiments/cli/calibrate/kineto.h"

enum { MAX_SIDES = 8 };
static const json_int_t MAX_SIDE = INT64_C(1) << 40;

tsr_dtype tsr_kineto_dtype(const char *name)
{
    static const struct {
        const char *name;
        tsr_dtype dtype;
    } names[] = {{"float", TSR_F32},  {"c10::BFloat16", TSR_BF16}, {"c10::Half", TSR_F16},
                 {"double", TSR_F64}, {"Float", TSR_F32},          {"BFloat16", TSR_BF16},
                 {"Half", TSR_F16},   {"Double", TSR_F64}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(name, names[i].name))
            return names[i].dtype;
    return TSR_DTYPE_NONE;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

struct input {
    uint64_t side[MAX_SIDES], stride[MAX_SIDES];
    size_t n;
    double numel;
    bool strided; /* strides are known */
    tsr_dtype dtype;
};

static bool read_side(const json_t *value, uint64_t *out)
{
    json_int_t side = json_is_integer(value) ? json_integer_value(value) : -1;
    *out = (uint64_t)side;
    return side >= 0 && side <= MAX_SIDE;
}

static bool read_input(const json_t *args, size_t i, struct input *out)
{
    const json_t *sides = json_array_get(json_object_get(args, "Input Dims"), i);
    const json_t *strides = json_array_get(json_object_get(args, "Input Strides"), i);
    const char *type = json_string_value(json_array_get(json_object_get(args, "Input type"), i));
    *out = (struct input){.n = json_array_size(sides), .numel = 1};
    if (out->n == 0 || out->n > MAX_SIDES || !type)
        return false;
    out->strided = json_array_size(strides) == out->n;
    for (size_t k = 0; k < out->n; k++) {
        if (!read_side(json_array_get(sides, k), &out->side[k]) || out->side[k] == 0)
            return false;
        out->numel *= (double)out->side[k];
        out->strided = out->strided && read_side(json_array_get(strides, k), &out->stride[k]);
    }
    out->dtype = tsr_kineto_dtype(type);
    return out->dtype != TSR_DTYPE_NONE && out->numel < 1e15;
}

static uint64_t bytes_of(const struct input *x)
{
    return (uint64_t)x->numel * tsr_dtype_bytes(x->dtype);
}

/* A transposed view of a matrix in rows. */
static bool is_transposed(const struct input *x)
{
    return x->strided && x->stride[0] == 1 && x->stride[1] == x->side[0] && x->side[1] > 1;
}

/* ---- kinds of operators ---------------------------------------------------------------------- */

/* y = x w^T of a linear layer has w as a view, its gradients have none of x, or g as one. */
static const char *product_name(const struct input *a, const struct input *b)
{
    if (is_transposed(a))
        return "mm_weight_grad";
    return b->strided && !is_transposed(b) ? "mm_input_grad" : "mm";
}

static bool read_product(const json_t *args, size_t first, struct tsr_work *out)
{
    struct input a, b;
    if (!read_input(args, first, &a) || !read_input(args, first + 1, &b) || a.n != 2 || b.n != 2 ||
        a.side[1] != b.side[0])
        return false;
    *out = (struct tsr_work){.op = TSR_OP_GEMM,
                             .dtype = (uint8_t)a.dtype,
                             .name = first ? "addmm" : product_name(&a, &b),
                             .dims = {a.side[0], b.side[1], a.side[1], 1},
                             .bytes_read = bytes_of(&a) + bytes_of(&b)};
    out->flops = 2.0 * a.numel * (double)b.side[1];
    return true;
}

/* q, k as (batch, tokens, heads, d); backward has the gradient first. `causal` by its place. */
static bool read_attention(const json_t *args, bool backward, struct tsr_work *out)
{
    struct input q, k;
    const json_t *given =
        json_array_get(json_object_get(args, "Concrete Inputs"), backward ? 11 : 8);
    const char *causal = json_string_value(given);
    if (!read_input(args, backward, &q) || !read_input(args, backward + 1U, &k) || q.n != 4 ||
        k.n != 4 || !causal)
        return false;
    *out = (struct tsr_work){
        .op = backward ? TSR_OP_ATTENTION_BWD : TSR_OP_ATTENTION,
        .dtype = (uint8_t)q.dtype,
        .causal = !strcmp(causal, "True"),
        .name = backward ? "flash_attention_backward" : "flash_attention",
        .dims = {q.side[0], q.side[2], k.side[2], q.side[1], k.side[1], q.side[3]}};
    double pair = 4.0 * q.numel * (double)k.side[1];
    out->flops = (out->causal ? 0.5 : 1.0) * (backward ? 2.5 * pair : pair);
    return true;
}

/* Operators that read their first input by rows, and others of its size (or smaller) beside it. */
struct by_bytes {
    const char *name, *kernel;
    uint8_t op;
    size_t n_inputs;
};

static bool read_bytes(const json_t *args, const struct by_bytes *kind, struct tsr_work *out)
{
    struct input x, other;
    uint64_t read = 0;
    if (!read_input(args, 0, &x))
        return false;
    for (size_t i = 0; i < kind->n_inputs; i++)
        if (read_input(args, i, &other))
            read += bytes_of(&other);
    uint64_t columns = x.side[x.n - 1];
    *out = (struct tsr_work){.op = kind->op,
                             .dtype = (uint8_t)x.dtype,
                             .name = kind->kernel,
                             .bytes_read = read,
                             .bytes_written = bytes_of(&x),
                             .dims = {(uint64_t)x.numel / columns, columns}};
    return true;
}

bool tsr_kineto_work(const char *name, const struct json_t *args, struct tsr_work *out)
{
    static const struct by_bytes kinds[] = {
        {"aten::_fused_rms_norm", "rms_norm", TSR_OP_NORM, 1},
        {"aten::_fused_rms_norm_backward", "rms_norm_backward", TSR_OP_NORM_BWD, 2},
        {"aten::native_layer_norm", "layer_norm", TSR_OP_NORM, 1},
        {"aten::native_layer_norm_backward", "layer_norm_backward", TSR_OP_NORM_BWD, 2},
        {"aten::add", "add", TSR_OP_POINTWISE, 2},
        {"aten::mul", "mul", TSR_OP_POINTWISE, 2},
        {"aten::silu", "silu", TSR_OP_POINTWISE, 1},
        {"aten::silu_backward", "silu_backward", TSR_OP_POINTWISE, 2},
        {"aten::gelu_backward", "gelu_backward", TSR_OP_POINTWISE, 2},
        {"aten::_log_softmax", "log_softmax", TSR_OP_SOFTMAX, 1},
        {"aten::_log_softmax_backward_data", "log_softmax_backward", TSR_OP_SOFTMAX, 2},
    };
    if (!strcmp(name, "aten::mm"))
        return read_product(args, 0, out);
    if (!strcmp(name, "aten::addmm"))
        return read_product(args, 1, out);
    if (!strcmp(name, "aten::_flash_attention_forward"))
        return read_attention(args, false, out);
    if (!strcmp(name, "aten::_flash_attention_backward"))
        return read_attention(args, true, out);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (!strcmp(name, kinds[i].name))
            return read_bytes(args, &kinds[i], out);
    return false;
}
