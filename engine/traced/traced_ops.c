/* traced_ops.c: kernels of a trace as the cost model knows them. An operator of ATen becomes a kind
 * with its sizes; one that is not known here stays GENERIC, and is priced by FLOP and bytes.
 */
#include <string.h>

#include "engine/ops/ops_common.h"
#include "engine/traced/traced.h"

enum shape_rule {
    BY_BYTES,
    PRODUCT,       /* the last two matrices; a batch in front */
    GROUPED,       /* rows of all groups, and a matrix for each group */
    CONVOLUTION,   /* input, weight */
    CONV_BACKWARD, /* gradient, input, weight */
    ATTENTION,     /* q, k, v */
    ATTENTION_BACKWARD,
    ROWS /* of the first argument */
};

struct rule {
    const char *name; /* without "aten." and the overload */
    uint8_t kind, shapes;
};

/* Norms over channels or groups of them are reductions: the tables of norms are of rows. */
static const struct rule rules[] = {
    {"mm", TSR_OP_GEMM, PRODUCT},
    {"addmm", TSR_OP_GEMM, PRODUCT},
    {"bmm", TSR_OP_GEMM, PRODUCT},
    {"baddbmm", TSR_OP_GEMM, PRODUCT},
    {"_grouped_mm", TSR_OP_GEMM, GROUPED},
    {"convolution", TSR_OP_GEMM, CONVOLUTION},
    {"cudnn_convolution", TSR_OP_GEMM, CONVOLUTION},
    {"convolution_backward", TSR_OP_GEMM, CONV_BACKWARD},
    {"_scaled_dot_product_flash_attention", TSR_OP_ATTENTION, ATTENTION},
    {"_scaled_dot_product_efficient_attention", TSR_OP_ATTENTION, ATTENTION},
    {"_scaled_dot_product_cudnn_attention", TSR_OP_ATTENTION, ATTENTION},
    {"_scaled_dot_product_flash_attention_backward", TSR_OP_ATTENTION_BWD, ATTENTION_BACKWARD},
    {"_scaled_dot_product_efficient_attention_backward", TSR_OP_ATTENTION_BWD, ATTENTION_BACKWARD},
    {"_scaled_dot_product_cudnn_attention_backward", TSR_OP_ATTENTION_BWD, ATTENTION_BACKWARD},
    {"native_layer_norm", TSR_OP_NORM, ROWS},
    {"_fused_rms_norm", TSR_OP_NORM, ROWS},
    {"native_group_norm", TSR_OP_REDUCTION, ROWS},
    {"native_batch_norm", TSR_OP_REDUCTION, ROWS},
    {"cudnn_batch_norm", TSR_OP_REDUCTION, ROWS},
    {"_native_batch_norm_legit", TSR_OP_REDUCTION, ROWS},
    {"native_layer_norm_backward", TSR_OP_NORM_BWD, ROWS},
    {"_fused_rms_norm_backward", TSR_OP_NORM_BWD, ROWS},
    {"native_group_norm_backward", TSR_OP_REDUCTION, ROWS},
    {"native_batch_norm_backward", TSR_OP_REDUCTION, ROWS},
    {"cudnn_batch_norm_backward", TSR_OP_REDUCTION, ROWS},
    {"_softmax", TSR_OP_SOFTMAX, ROWS},
    {"_softmax_backward_data", TSR_OP_SOFTMAX, ROWS},
    {"embedding", TSR_OP_EMBEDDING, BY_BYTES},
    {"embedding_dense_backward", TSR_OP_EMBEDDING_BWD, BY_BYTES},
    {"sum", TSR_OP_REDUCTION, ROWS},
    {"mean", TSR_OP_REDUCTION, ROWS},
    {"amax", TSR_OP_REDUCTION, ROWS},
    {"max", TSR_OP_REDUCTION, ROWS},
    {"all", TSR_OP_REDUCTION, ROWS},
    {"any", TSR_OP_REDUCTION, ROWS},
    {"linalg_vector_norm", TSR_OP_REDUCTION, ROWS},
    {"cumsum", TSR_OP_REDUCTION, ROWS},
    {"logsumexp", TSR_OP_REDUCTION, ROWS},
};

/* Kernels of a cross-entropy: their names in built-in models, and how often they read their first
 * argument where its rows are long. */
static const struct loss {
    const char *name, *kernel;
    unsigned passes;
} losses[] = {
    {"_log_softmax", "log_softmax", TSR_LOG_SOFTMAX_PASSES},
    {"_log_softmax_backward_data", "log_softmax_backward", TSR_LOG_SOFTMAX_BACKWARD_PASSES},
    {"nll_loss_forward", "nll_loss", 1},
    {"nll_loss_backward", "nll_loss_backward", 1},
    {"nll_loss2d_forward", "nll_loss", 1},
    {"nll_loss2d_backward", "nll_loss_backward", 1},
};

/* Elements in, elements out: what they move is what they take. In order (bsearch by hand would save
 * nothing: a model has a few hundred distinct kernels). */
static const char *const pointwise[] = {"add",
                                        "add_",
                                        "sub",
                                        "sub_",
                                        "mul",
                                        "mul_",
                                        "div",
                                        "div_",
                                        "neg",
                                        "abs",
                                        "pow",
                                        "exp",
                                        "log",
                                        "log1p",
                                        "expm1",
                                        "sqrt",
                                        "rsqrt",
                                        "reciprocal",
                                        "sin",
                                        "cos",
                                        "tanh",
                                        "tanh_backward",
                                        "sigmoid",
                                        "sigmoid_",
                                        "sigmoid_backward",
                                        "relu",
                                        "relu_",
                                        "threshold_backward",
                                        "gelu",
                                        "gelu_backward",
                                        "silu",
                                        "silu_",
                                        "silu_backward",
                                        "softplus",
                                        "softplus_backward",
                                        "hardtanh",
                                        "leaky_relu",
                                        "elu",
                                        "clamp",
                                        "clamp_min",
                                        "clamp_max",
                                        "where",
                                        "masked_fill",
                                        "masked_fill_",
                                        "maximum",
                                        "minimum",
                                        "eq",
                                        "ne",
                                        "lt",
                                        "le",
                                        "gt",
                                        "ge",
                                        "logical_and",
                                        "logical_or",
                                        "logical_not",
                                        "bitwise_and",
                                        "bitwise_or",
                                        "bitwise_not",
                                        "copy_",
                                        "_to_copy",
                                        "clone",
                                        "fill_",
                                        "zero_",
                                        "zeros_like",
                                        "ones_like",
                                        "new_zeros",
                                        "zeros",
                                        "ones",
                                        "full",
                                        "full_like",
                                        "arange",
                                        "cat",
                                        "stack",
                                        "tril",
                                        "triu",
                                        "repeat",
                                        "index",
                                        "index_select",
                                        "gather",
                                        "scatter",
                                        "scatter_",
                                        "scatter_add",
                                        "scatter_add_",
                                        "index_add",
                                        "index_add_",
                                        "index_put",
                                        "index_put_",
                                        "_index_put_impl_",
                                        "slice_backward",
                                        "select_backward",
                                        "constant_pad_nd",
                                        "native_dropout",
                                        "native_dropout_backward",
                                        "bernoulli_",
                                        "addcmul",
                                        "addcmul_",
                                        "addcdiv_",
                                        "lerp_",
                                        "upsample_nearest2d",
                                        "upsample_nearest2d_backward",
                                        "mse_loss",
                                        "mse_loss_backward",
                                        "binary_cross_entropy_with_logits",
                                        "scalar_tensor",
                                        "fmod",
                                        "remainder",
                                        "floor_divide",
                                        "rsub",
                                        "square",
                                        "erf",
                                        "max_pool2d_with_indices",
                                        "max_pool2d_with_indices_backward",
                                        "avg_pool2d",
                                        "avg_pool2d_backward",
                                        "_adaptive_avg_pool2d",
                                        "_adaptive_avg_pool2d_backward",
                                        "roll",
                                        "flip",
                                        "view_as_complex",
                                        "_conj",
                                        "polar",
                                        "normal_",
                                        "uniform_",
                                        "random_",
                                        "randint",
                                        "lift_fresh",
                                        "detach_",
                                        "resize_",
                                        NULL};

static const char *const read_names[] = {"_local_scalar_dense", "item", NULL};

static bool is_listed(const char *const *list, const char *name)
{
    for (; *list; list++)
        if (!strcmp(*list, name))
            return true;
    return false;
}

bool tsr__traced_reads_back(const struct tsr_work *work)
{
    return is_listed(read_names, work->name);
}

/* "aten.mm.default" -> "mm"; other libraries keep theirs. */
static char *short_name(struct tsr_arena *arena, const char *name)
{
    size_t prefix = strncmp(name, "aten.", 5) ? 0 : 5;
    char *copy = tsr_arena_printf(arena, "%s", name + prefix);
    char *dot = copy ? strrchr(copy, '.') : NULL;
    if (dot && prefix)
        *dot = 0;
    return copy;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static uint64_t numel(const struct tsr_traced_shape *s)
{
    uint64_t n = 1;
    for (int i = 0; i < s->n_dims; i++)
        n *= s->dims[i];
    return n;
}

/* From the end: 0 is the last dimension; 1 where there is none. */
static uint64_t dim(const struct tsr_traced_shape *s, int from_end)
{
    return s->n_dims > from_end ? s->dims[s->n_dims - 1 - from_end] : 1;
}

static bool product(const struct tsr_traced_op *op, struct tsr_work *w)
{
    if (op->n_shapes < 2)
        return false;
    const struct tsr_traced_shape *a = &op->shapes[op->n_shapes - 2];
    const struct tsr_traced_shape *b = &op->shapes[op->n_shapes - 1];
    w->dims[0] = dim(a, 1);
    w->dims[1] = dim(b, 0);
    w->dims[2] = dim(a, 0);
    w->dims[3] = dim(a, 2);
    return true;
}

/* Rows that belong to a group are multiplied with its matrix: as many FLOP as one product. */
static bool grouped(const struct tsr_traced_op *op, struct tsr_work *w)
{
    if (op->n_shapes < 2)
        return false;
    const struct tsr_traced_shape *a = &op->shapes[0], *b = &op->shapes[1];
    w->dims[0] = dim(a, 1);
    w->dims[1] = dim(b, 0);
    w->dims[2] = dim(a, 0);
    w->dims[3] = 1;
    if (w->flops <= 0)
        w->flops = 2.0 * (double)w->dims[0] * (double)w->dims[1] * (double)w->dims[2];
    return true;
}

/* As a product of patches with the filters; the number of patches follows from the FLOP. */
static bool convolution(const struct tsr_traced_op *op, struct tsr_work *w, size_t weight)
{
    if (op->n_shapes <= weight || op->shapes[weight].n_dims < 2 || w->flops <= 0)
        return false;
    const struct tsr_traced_shape *filters = &op->shapes[weight];
    uint64_t n = filters->dims[0], k = n ? numel(filters) / n : 0;
    if (!n || !k)
        return false;
    double m = w->flops / (2.0 * (double)n * (double)k);
    w->dims[0] = m < 1 ? 1 : (uint64_t)m;
    w->dims[1] = n;
    w->dims[2] = k;
    w->dims[3] = 1;
    return true;
}

static bool attention(const struct tsr_traced_op *op, struct tsr_work *w, size_t q)
{
    if (op->n_shapes < q + 3 || op->shapes[q].n_dims != 4 || op->shapes[q + 1].n_dims != 4)
        return false;
    const uint64_t *query = op->shapes[q].dims, *key = op->shapes[q + 1].dims;
    const uint64_t dims[TSR_MAX_DIMS] = {query[0], query[1], key[1], query[2], key[2], query[3]};
    memcpy(w->dims, dims, sizeof dims);
    return true;
}

static bool rows(const struct tsr_traced_op *op, struct tsr_work *w)
{
    if (op->n_shapes == 0)
        return false;
    w->dims[1] = dim(&op->shapes[0], 0);
    w->dims[0] = w->dims[1] ? numel(&op->shapes[0]) / w->dims[1] : 0;
    return true;
}

static bool fill_dims(const struct tsr_traced_op *op, uint8_t rule, struct tsr_work *w)
{
    switch (rule) {
    case PRODUCT:
        return product(op, w);
    case GROUPED:
        return grouped(op, w);
    case CONVOLUTION:
        return convolution(op, w, 1);
    case CONV_BACKWARD:
        return convolution(op, w, 2);
    case ATTENTION:
        return attention(op, w, 0);
    case ATTENTION_BACKWARD:
        return attention(op, w, 1);
    case ROWS:
        return rows(op, w);
    default:
        return true;
    }
}

static bool counts_for_mfu(uint8_t kind)
{
    return kind == TSR_OP_GEMM || kind == TSR_OP_ATTENTION || kind == TSR_OP_ATTENTION_BWD ||
           kind == TSR_OP_GENERIC;
}

static bool same_shape(const struct tsr_traced_shape *a, const struct tsr_traced_shape *b)
{
    return a->n_dims == b->n_dims && !memcmp(a->dims, b->dims, a->n_dims * sizeof *a->dims);
}

/* Returns the name that the cost model has for an elementwise kernel. It takes a sum or product for
 * one that repeats an operand when it reads little: that of a tensor with a number, or with itself,
 * is not. */
static const char *pointwise_name(const struct tsr_traced_op *op, const char *name)
{
    bool repeats = op->n_shapes > 1 && !same_shape(&op->shapes[0], &op->shapes[1]);
    if (!strcmp(name, "_to_copy"))
        return "cast";
    if (!strcmp(name, "mul") && !repeats && op->bytes_read < op->bytes_written * 3 / 2)
        return "mul_scalar";
    if (!strcmp(name, "add") && !repeats && op->bytes_read < op->bytes_written * 3 / 2)
        return "add_scalar";
    return name;
}

static bool is_loss(const struct tsr_traced_op *op, struct tsr_work *w)
{
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        if (strcmp(losses[i].name, w->name) || !rows(op, w))
            continue;
        uint64_t once = numel(&op->shapes[0]) * tsr_dtype_bytes(op->dtype);
        w->op = TSR_OP_LOSS;
        w->name = losses[i].kernel;
        w->bytes_read += tsr__bytes_in_passes(once, w->dims[0], losses[i].passes) - once;
        return true;
    }
    return false;
}

static void classify(const struct tsr_traced_op *op, struct tsr_work *w)
{
    if (is_loss(op, w))
        return;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (!strcmp(rules[i].name, w->name) && fill_dims(op, rules[i].shapes, w)) {
            w->op = rules[i].kind;
            return;
        }
    if (is_listed(pointwise, w->name)) {
        w->op = TSR_OP_POINTWISE;
        w->name = pointwise_name(op, w->name);
        w->dims[0] = 1;
        w->dims[1] = op->n_shapes ? numel(&op->shapes[0]) : 1;
        return;
    }
    w->op = TSR_OP_GENERIC;
    (void)rows(op, w);
}

bool tsr__traced_work(struct tsr_arena *arena, const struct tsr_traced_op *op, struct tsr_work *w)
{
    *w = (struct tsr_work){.dtype = (uint8_t)op->dtype,
                           .name = short_name(arena, op->name),
                           .flops = op->flops > 0 ? op->flops : 0,
                           .bytes_read = op->bytes_read,
                           .bytes_written = op->bytes_written};
    if (!w->name)
        return false;
    classify(op, w);
    w->model_flops = counts_for_mfu(w->op) ? w->flops : 0;
    w->causal = op->causal && (w->op == TSR_OP_ATTENTION || w->op == TSR_OP_ATTENTION_BWD);
    if (w->causal)
        w->flops /= 2;
    return true;
}
