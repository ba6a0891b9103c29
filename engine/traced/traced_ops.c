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
    {"_embedding_bag", TSR_OP_EMBEDDING, BY_BYTES},
    {"_embedding_bag_backward", TSR_OP_EMBEDDING_BWD, BY_BYTES},
    {"_embedding_bag_dense_backward", TSR_OP_EMBEDDING_BWD, BY_BYTES},
    {"_safe_softmax", TSR_OP_SOFTMAX, ROWS},
};

/* Names of kernels in built-in models and in tables of what was measured. */
static const struct {
    const char *name, *kernel;
} renamed[] = {
    {"_scaled_dot_product_flash_attention", "flash_attention"},
    {"_scaled_dot_product_flash_attention_backward", "flash_attention_backward"},
    {"_scaled_dot_product_efficient_attention", "efficient_attention"},
    {"_scaled_dot_product_efficient_attention_backward", "efficient_attention_backward"},
    {"_scaled_dot_product_cudnn_attention", "cudnn_attention"},
    {"_scaled_dot_product_cudnn_attention_backward", "cudnn_attention_backward"},
    {"native_layer_norm", "layer_norm"},
    {"native_layer_norm_backward", "layer_norm_backward"},
    {"_fused_rms_norm", "rms_norm"},
    {"_fused_rms_norm_backward", "rms_norm_backward"},
    {"_to_copy", "cast"},
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

/* Elements in, elements out: they take what they move. In place (add_) and in backward
 * (gelu_backward) alike. Words between spaces. */
static const char pointwise[] =
    " add sub mul div neg abs pow exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal "
    "square sin cos tan asin acos atan atan2 sinh cosh tanh sigmoid logit erf erfc erfinv "
    "lgamma digamma floor ceil round trunc frac sign sgn relu threshold gelu silu mish "
    "softplus hardtanh hardsigmoid hardswish leaky_relu elu log_sigmoid_forward "
    "log_sigmoid _prelu_kernel glu clamp clamp_min clamp_max maximum minimum fmin fmax "
    "where nan_to_num isnan isinf isfinite isin eq ne lt le gt ge logical_and logical_or "
    "logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor "
    "bitwise_left_shift bitwise_right_shift fmod remainder floor_divide rsub addcmul "
    "addcdiv lerp logaddexp xlogy masked_fill masked_scatter masked_select copy _to_copy "
    "clone fill zero zeros_like ones_like full_like new_zeros new_ones new_full zeros ones "
    "full eye arange linspace scalar_tensor tril triu tril_indices triu_indices cat stack "
    "repeat repeat_interleave roll flip index index_select index_add index_copy index_fill "
    "index_put _index_put_impl gather scatter scatter_add scatter_reduce take slice select "
    "slice_scatter select_scatter diagonal unfold im2col col2im constant_pad_nd "
    "pixel_shuffle pixel_unshuffle channel_shuffle native_dropout bernoulli normal uniform "
    "random randint randperm rand randn rand_like randn_like exponential mse_loss "
    "smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits "
    "grid_sampler_2d grid_sampler_3d complex view_as_complex _conj polar lift_fresh detach "
    "resize ";
/* Beginnings of names: one kernel serves several sizes, lists or dimensions. */
static const char *const families[] = {
    "_foreach_", "upsample_",      "_upsample_",      "avg_pool",     "max_pool", "_adaptive_",
    "adaptive_", "reflection_pad", "replication_pad", "_thnn_fused_", NULL};
/* They read rows, and leave a few numbers of each, or an order of it. */
static const char reductions[] =
    " sum mean amax amin max min all any prod var std var_mean std_mean norm "
    "linalg_vector_norm argmax argmin cumsum cumprod logcumsumexp logsumexp topk sort "
    "kthvalue median histc bincount count_nonzero nonzero searchsorted bucketize "
    "unique_consecutive _unique2 ";

bool tsr__traced_reads_back(const struct tsr_work *work)
{
    return !strcmp(work->name, "_local_scalar_dense") || !strcmp(work->name, "item");
}

/* Is `name` one of the words of a list? */
static bool is_listed(const char *list, const char *name, size_t length)
{
    for (const char *at = list; (at = strchr(at, ' ')) && at[1]; at++)
        if (!strncmp(at + 1, name, length) && at[1 + length] == ' ')
            return true;
    return false;
}

/* Returns how much of a name is that of the operator, without what says that it is its backward or
 * writes its first argument. */
static size_t stem_length(const char *name)
{
    static const char backward[] = "_backward";
    size_t n = strlen(name), tail = sizeof backward - 1;
    if (n > tail && !strcmp(name + n - tail, backward))
        n -= tail;
    return n > 1 && name[n - 1] == '_' ? n - 1 : n;
}

static bool is_pointwise(const char *name)
{
    for (const char *const *family = families; *family; family++)
        if (!strncmp(name, *family, strlen(*family)))
            return true;
    return is_listed(pointwise, name, stem_length(name));
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

/* Experts take equal shares of what is cut into groups, which is the tracer's routing: the rows, or
 * what is summed over where the result has a matrix for each group. As many FLOP as one product. */
static bool grouped(const struct tsr_traced_op *op, struct tsr_work *w)
{
    if (op->n_shapes < 2)
        return false;
    const struct tsr_traced_shape *a = &op->shapes[0], *b = &op->shapes[1];
    const bool many_a = a->n_dims == 3, many_b = b->n_dims == 3;
    uint64_t groups = many_a ? a->dims[0] : many_b ? b->dims[0] : 0;
    if (!groups) /* two matrices, and where each group ends */
        groups = op->n_shapes > 2 && numel(&op->shapes[2]) ? numel(&op->shapes[2]) : 1;
    w->dims[0] = tsr_ceil_div(dim(a, 1), many_b && !many_a ? groups : 1);
    w->dims[1] = tsr_ceil_div(dim(b, 0), many_a && !many_b ? groups : 1);
    w->dims[2] = tsr_ceil_div(dim(a, 0), many_a || many_b ? 1 : groups);
    w->dims[3] = groups;
    if (w->flops <= 0) /* PyTorch's own counter does not know it */
        w->flops =
            2.0 * (double)w->dims[0] * (double)w->dims[1] * (double)w->dims[2] * (double)groups;
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

/* The shape that two operands have together. Where one does not repeat the other: that of the
 * first.
 */
static struct tsr_traced_shape joint_shape(const struct tsr_traced_op *op)
{
    struct tsr_traced_shape joint = op->n_shapes ? op->shapes[0] : (struct tsr_traced_shape){0};
    if (op->n_shapes < 2)
        return joint;
    const struct tsr_traced_shape *a = &op->shapes[0], *b = &op->shapes[1];
    joint.n_dims = a->n_dims > b->n_dims ? a->n_dims : b->n_dims;
    for (int i = 0; i < joint.n_dims; i++) {
        uint64_t x = dim(a, i), y = dim(b, i);
        if (x != y && x != 1 && y != 1)
            return *a;
        joint.dims[joint.n_dims - 1 - i] = x > y ? x : y;
    }
    return joint;
}

/* Does a kernel of one or two tensors take one that is repeated, by its shape or by its strides? */
static bool repeats(const struct tsr_traced_op *op, uint64_t elements)
{
    uint64_t first = elements * tsr_dtype_bytes(op->dtype);
    if (op->n_shapes == 1)
        return op->bytes_read < first;
    if (op->n_shapes != 2)
        return false;
    if (numel(&op->shapes[0]) != numel(&op->shapes[1]))
        return numel(&op->shapes[0]) > 1 && numel(&op->shapes[1]) > 1;
    /* of equal shapes: a tensor with itself is read once; a mask has a quarter of the bytes, or
     * more
     */
    return op->bytes_read < first || (op->bytes_read > first && op->bytes_read < first / 4 * 5);
}

/* Returns the name that the cost model has for an elementwise kernel: sums and products that repeat
 * an operand are slower than those that do not. */
static const char *pointwise_name(const struct tsr_traced_op *op, const char *name,
                                  uint64_t elements)
{
    static const struct {
        const char *stem, *repeated, *plain, *scalar;
    } kernels[] = {{"mul", "mul", "mul", "mul_scalar"},
                   {"add", "add", "add", "add_scalar"},
                   {"sub", "sub_broadcast", "sub", "sub_scalar"},
                   {"div", "div_broadcast", "div", "div_scalar"}};
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        if (strncmp(kernels[i].stem, name, stem_length(name)) != 0 || stem_length(name) != 3)
            continue;
        if (op->bytes_read >= op->bytes_written * 3 / 2)
            return kernels[i].plain;
        return repeats(op, elements) ? kernels[i].repeated : kernels[i].scalar;
    }
    return name;
}

static void elementwise(const struct tsr_traced_op *op, struct tsr_work *w)
{
    const struct tsr_traced_shape shape = joint_shape(op);
    uint64_t elements = op->n_shapes ? numel(&shape) : 1;
    w->op = TSR_OP_POINTWISE;
    w->name = pointwise_name(op, w->name, elements);
    w->dims[1] = dim(&shape, 0);
    w->dims[0] = w->dims[1] ? elements / w->dims[1] : 0;
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

static void set_kind(const struct tsr_traced_op *op, struct tsr_work *w)
{
    if (is_loss(op, w))
        return;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (!strcmp(rules[i].name, w->name) && fill_dims(op, rules[i].shapes, w)) {
            w->op = rules[i].kind;
            return;
        }
    if (is_pointwise(w->name)) {
        elementwise(op, w);
        return;
    }
    w->op =
        is_listed(reductions, w->name, stem_length(w->name)) ? TSR_OP_REDUCTION : TSR_OP_GENERIC;
    (void)rows(op, w);
}

static void classify(const struct tsr_traced_op *op, struct tsr_work *w)
{
    set_kind(op, w);
    for (size_t i = 0; i < sizeof renamed / sizeof renamed[0]; i++)
        if (!strcmp(renamed[i].name, w->name))
            w->name = renamed[i].kernel;
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
