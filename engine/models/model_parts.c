/* model_parts.c: modules that the model families have in common, checks of their sizes, what is
 * said of a model once it is built, and modules as transformers computes them.
 */
#include "engine/models/model_parts.h"

#include <math.h>

#include "engine/ops/ops_common.h"
#include "engine/ops/ops_fused.h"

void tsr__embedding_forward(struct tsr_engine *e, struct tsr_module *m, void *impl,
                            struct tsr_tensor *in, struct tsr_tensor **out)
{
    (void)impl;
    *out = tsr_op_embedding(e, in, m->params[0].param);
}

static void linear_forward(struct tsr_engine *e, struct tsr_module *m, void *impl,
                           struct tsr_tensor *in, struct tsr_tensor **out)
{
    (void)impl;
    *out = tsr_op_linear(e, in, m->params[0].param, m->n_params > 1 ? m->params[1].param : NULL);
}

void tsr__layer_norm_forward(struct tsr_engine *e, struct tsr_module *m, void *impl,
                             struct tsr_tensor *in, struct tsr_tensor **out)
{
    (void)impl;
    struct tsr_param *w = m->params[0].param, *b = m->params[1].param;
    *out = e->ops->add_norm.on ? tsr__op_add_norm(e, in, w, b) : tsr_op_layer_norm(e, in, w, b);
}

static void head_forward(struct tsr_engine *e, struct tsr_module *m, void *impl,
                         struct tsr_tensor *in, struct tsr_tensor **out)
{
    (void)impl;
    *out = tsr__head(e, m, in);
}

struct tsr_tensor *tsr__residual(struct tsr_engine *e, struct tsr_tensor *a,
                                 struct tsr_module *norm, struct tsr_module *f)
{
    struct tsr_tensor *n = tsr_call(e, norm, a);
    struct tsr_tensor *y = tsr_call(e, f, n);
    tsr_release(e, n);
    struct tsr_tensor *sum = tsr_op_add(e, a, y);
    tsr_release(e, y);
    return sum;
}

struct tsr_module *tsr__add_weighted(struct tsr_engine *e, struct tsr_module *parent,
                                     const char *name, const char *type, tsr_forward_fn forward,
                                     int n_dims, const uint64_t *shape, uint64_t bias)
{
    struct tsr_module *m = tsr__module_new(e, parent, name, type, forward, NULL);
    if (m && tsr__param_new(e, m, "weight", n_dims, shape, TSR_F32) && bias)
        tsr__param_new(e, m, "bias", 1, &bias, TSR_F32);
    return m;
}

struct tsr_module *tsr__add_linear(struct tsr_engine *e, struct tsr_module *parent,
                                   const char *name, uint64_t in, uint64_t out, bool bias)
{
    return tsr__add_weighted(e, parent, name, "Linear", linear_forward, 2, (uint64_t[]){out, in},
                             bias ? out : 0);
}

struct tsr_module *tsr__add_head(struct tsr_engine *e, struct tsr_module *parent, const char *name,
                                 struct tsr_module *embedding, const uint64_t *own)
{
    struct tsr_module *head = tsr__module_new(e, parent, name, "Linear", head_forward, NULL);
    if (head && own)
        tsr__param_new(e, head, "weight", 2, own, TSR_F32);
    else if (head && embedding && embedding->n_params)
        tsr__param_place(e, head, "weight", embedding->params[0].param);
    return head;
}

tsr_status tsr__check_model(const struct tsr_engine *e, const uint64_t *sizes, size_t n,
                            uint64_t layers)
{
    for (size_t i = 0; i < n; i++)
        if (sizes[i] == 0 || sizes[i] > UINT64_C(1) << 40)
            return tsr_fail(TSR_EVALUE, "a size of the model is %llu; allowed: 1 to 2^40",
                            (unsigned long long)sizes[i]);
    if (layers > 100000)
        return tsr_fail(TSR_EVALUE, "%llu layers; allowed: 1 to 100000",
                        (unsigned long long)layers);
    if (e->tree.root)
        return tsr_fail(TSR_EVALUE, "the engine has a model already");
    return TSR_OK;
}

tsr_status tsr__check_heads(uint64_t width, uint64_t heads)
{
    if (width % heads == 0)
        return TSR_OK;
    return tsr_fail(TSR_EVALUE, "a width of %llu cannot be cut into %llu heads",
                    (unsigned long long)width, (unsigned long long)heads);
}

void tsr__model_numbers(struct tsr_engine *e, double norm_eps, double init_std)
{
    e->model->norm_eps = norm_eps > 0 ? norm_eps : 1e-5;
    e->model->init_std = init_std > 0 ? init_std : 0.02;
}

void tsr_model_set_float_input(struct tsr_engine *e, uint64_t width)
{
    e->model->int_input = false;
    e->model->loss_mse = true;
    e->model->in_dim = width;
}

void tsr__is_language_model(struct tsr_engine *e, uint64_t vocab, double norm_eps, double init_std)
{
    e->model->int_input = true;
    e->model->vocab = vocab;
    e->model->head = true;
    tsr__model_numbers(e, norm_eps, init_std);
}

/* ---- as transformers computes ---------------------------------------------------------------- */

/* Position ids, masks, rotary tables, attention and GELU as the modules of
 * transformers compute them, operation by operation. */

/* ---- small pieces ---------------------------------------------------------------------------- */

static struct tsr_tensor *flat(struct tsr_engine *e, const char *name, tsr_dtype dtype, uint64_t n,
                               struct tsr_tensor *from)
{
    struct tsr_tensor *t = tsr__tensor_new(e, dtype, 1, &n, tsr__result_category(e));
    tsr__emit_pointwise(e, name, &from, from ? 1 : 0, t);
    return t;
}

static struct tsr_tensor *temp_like(struct tsr_engine *e, const struct tsr_tensor *x)
{
    return x ? tsr__tensor_like(e, x, (tsr_dtype)x->dtype, TSR_CAT_TEMP) : NULL;
}

/* In the dtype of x. */
static struct tsr_tensor *plain(struct tsr_engine *e, struct tsr_tensor *x, const char *name,
                                tsr_backward_fn backward, enum tsr_saves saves)
{
    return x ? tsr__op_unary(e, x, name, (tsr_dtype)x->dtype, backward, saves) : NULL;
}

static struct tsr_tensor *scaled(struct tsr_engine *e, struct tsr_tensor *x, const char *name,
                                 double by)
{
    return x ? tsr__op_unary_by(e, x, name, (tsr_dtype)x->dtype, tsr__backward_scale,
                                TSR_SAVES_NOTHING, by)
             : NULL;
}

static void by_number(struct tsr_engine *e, const char *name, struct tsr_tensor *x,
                      struct tsr_tensor *y, double number)
{
    tsr__emit_pointwise_with(e, name, &x, 1, y, &(struct tsr_pointwise){.constant = number});
}

/* ---- position ids and mask ------------------------------------------------------------------- */

struct tsr_tensor *tsr__hf_positions(struct tsr_engine *e)
{
    struct tsr_tensor *range = flat(e, "arange", TSR_I64, e->shape.seq, NULL);
    struct tsr_tensor *ids = flat(e, "add_scalar", TSR_I64, e->shape.seq, range);
    tsr_release(e, range);
    return ids;
}

static void host_read(struct tsr_engine *e, struct tsr_tensor *t)
{
    if (!t || !tsr__ok(e))
        return;
    tsr__operand_tensor(e, t, TSR_READ);
    struct tsr_instr read = {.kind = TSR_HOST_READ, .stream = e->stream, .comm = UINT16_MAX};
    tsr__emit(e, &read);
}

/* To which sequence each token belongs: positions that do not follow each other are counted. */
static struct tsr_tensor *sequence_indices(struct tsr_engine *e)
{
    uint64_t batch = e->shape.batch, seq = e->shape.seq, tokens = batch * seq;
    struct tsr_tensor *first = flat(e, "sub_scalar", TSR_I64, batch, NULL);
    struct tsr_tensor *joined = flat(e, "cat", TSR_I64, batch * (seq + 1), first);
    struct tsr_tensor *step = flat(e, "diff", TSR_I64, tokens, joined);
    tsr_release(e, joined);
    struct tsr_tensor *breaks = flat(e, "ne", TSR_U8, tokens, step);
    struct tsr_tensor *indices = flat(e, "cumsum", TSR_I64, tokens, breaks);
    struct tsr_tensor *wide = tsr__workspace(e, 8 * tokens);
    struct tsr_tensor *scan = batch == 1 ? tsr__workspace(e, tsr__scan_scratch(seq)) : NULL;
    tsr_release(e, scan);
    tsr_release(e, wide);
    tsr_release(e, breaks);
    struct tsr_tensor *none = flat(e, "eq", TSR_U8, batch, indices);
    struct tsr_tensor *all = flat(e, "all", TSR_U8, 1, none);
    host_read(e, all);
    tsr_release(e, none);
    tsr_release(e, all);
    tsr_release(e, first);
    tsr_release(e, step);
    return indices;
}

/* indices[batch, position] by an index operation, which widens its index tensors. */
static struct tsr_tensor *look_up(struct tsr_engine *e, struct tsr_tensor *indices)
{
    uint64_t tokens = e->shape.batch * e->shape.seq;
    struct tsr_tensor *work[2] = {tsr__workspace(e, 8 * tokens), NULL};
    if (e->shape.batch > 1)
        work[1] = tsr__workspace(e, 8 * tokens);
    struct tsr_tensor *out = flat(e, "index", TSR_I64, tokens, indices);
    tsr_release(e, work[0]);
    tsr_release(e, work[1]);
    return out;
}

/* A table of booleans from two look-ups. */
static struct tsr_tensor *compared(struct tsr_engine *e, struct tsr_tensor *indices,
                                   const char *name)
{
    struct tsr_tensor *rows = look_up(e, indices), *columns = look_up(e, indices);
    struct tsr_tensor *table =
        flat(e, name, TSR_U8, e->shape.batch * e->shape.seq * e->shape.seq, rows);
    tsr_release(e, rows);
    tsr_release(e, columns);
    return table;
}

static struct tsr_tensor *build_mask(struct tsr_engine *e, struct tsr_tensor *indices)
{
    uint64_t batch = e->shape.batch, seq = e->shape.seq;
    struct tsr_tensor *range[4] = {flat(e, "arange", TSR_I64, batch, NULL),
                                   flat(e, "arange", TSR_I64, 1, NULL)};
    range[2] = tsr__hf_positions(e);
    range[3] = tsr__hf_positions(e);
    struct tsr_tensor *all = flat(e, "new_ones", TSR_U8, 1, NULL);
    struct tsr_tensor *same = compared(e, indices, "eq");
    struct tsr_tensor *allowed = flat(e, "bitwise_and", TSR_U8, batch * seq * seq, same);
    tsr_release(e, same);
    tsr_release(e, all);
    struct tsr_tensor *before = compared(e, indices, "le");
    struct tsr_tensor *mask = flat(e, "bitwise_and", TSR_U8, batch * seq * seq, before);
    tsr_release(e, allowed);
    tsr_release(e, before);
    for (int i = 0; i < 4; i++)
        tsr_release(e, range[i]);
    return mask;
}

struct tsr_tensor *tsr__hf_mask(struct tsr_engine *e, bool packed)
{
    struct tsr_tensor *indices = sequence_indices(e);
    struct tsr_tensor *mask = packed ? build_mask(e, indices) : NULL;
    tsr_release(e, indices);
    return mask;
}

/* ---- rotary ---------------------------------------------------------------------------------- */

static struct tsr_tensor *table_of(struct tsr_engine *e, const char *name,
                                   struct tsr_tensor *angles)
{
    struct tsr_tensor *raw = flat(e, name, TSR_F32, angles ? angles->numel : 0, angles);
    struct tsr_tensor *scaled = flat(e, "mul_scalar", TSR_F32, angles ? angles->numel : 0, raw);
    tsr_release(e, raw);
    return scaled;
}

void tsr__hf_rotary_tables(struct tsr_engine *e, uint64_t head_dim, tsr_dtype dtype,
                           struct tsr_tensor **cosines, struct tsr_tensor **sines)
{
    uint64_t seq = e->shape.seq;
    bool grad = e->grad_enabled;
    e->grad_enabled = false;
    struct tsr_tensor *positions = flat(e, "cast", TSR_F32, seq, NULL);
    struct tsr_tensor *half = flat(e, "mul", TSR_F32, seq * head_dim / 2, positions);
    tsr_release(e, positions);
    struct tsr_tensor *angles = flat(e, "cat", TSR_F32, seq * head_dim, half);
    struct tsr_tensor *wide_cos = table_of(e, "cos", angles);
    struct tsr_tensor *wide_sin = table_of(e, "sin", angles);
    *cosines = tsr_op_cast(e, wide_cos, dtype);
    *sines = tsr_op_cast(e, wide_sin, dtype);
    tsr_release(e, wide_cos);
    tsr_release(e, wide_sin);
    tsr_release(e, angles);
    tsr_release(e, half);
    e->grad_enabled = grad;
}

/* Times a table that needs no gradient; it is saved. The product has the wider dtype. a[0]: dtype
 * of the input */
static void by_table_backward(struct tsr_engine *e, struct tsr_node *node,
                              struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *table = tsr__node_saved(e, node, 0);
    grad_in[0] = temp_like(e, grad_out[0]);
    tsr__emit_pointwise(e, "mul", (struct tsr_tensor *[]){grad_out[0], table}, 2, grad_in[0]);
    tsr_release(e, table);
    tsr__cast_grad(e, &grad_in[0], (tsr_dtype)node->a[0]);
}

static struct tsr_tensor *by_table(struct tsr_engine *e, struct tsr_tensor *x,
                                   struct tsr_tensor *table)
{
    if (!x || !table)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "Mul", by_table_backward, &x, 1);
    tsr__node_save(e, node, table);
    if (node)
        node->a[0] = x->dtype;
    struct tsr_tensor *y =
        tsr__tensor_like(e, x, tsr__promote(x->dtype, table->dtype), tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    tsr__emit_pointwise(e, "mul", (struct tsr_tensor *[]){x, table}, 2, y);
    tsr__node_output(node, y, 0);
    return y;
}

/* One half of every head: 0 the lower, 1 the upper. */
static struct tsr_tensor *half_of(struct tsr_engine *e, struct tsr_tensor *x, uint64_t heads,
                                  unsigned which)
{
    enum tsr_layout layout = heads > 1 ? TSR_LAYOUT_HEADS : TSR_LAYOUT_TOKENS;
    uint64_t d = x ? x->dims[1] / heads : 0;
    return tsr__slice_heads(e, x, d, d / 2, which * (d / 2), layout);
}

/* Both gradients are views of the incoming one. a[0]: head size of the parts */
static void cat_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                         struct tsr_tensor **grad_in)
{
    struct tsr_tensor *g = grad_out[0];
    uint64_t dims[2] = {g->dims[0], g->dims[1] / 2};
    for (unsigned i = 0; i < 2; i++) {
        if (!node->edges[i].node)
            continue;
        grad_in[i] = tsr__tensor_view(e, g->storage, (tsr_dtype)g->dtype, 2, dims);
        tsr__as_columns(grad_in[i], i * node->a[0], node->a[0], 2 * node->a[0]);
    }
}

static struct tsr_tensor *rotate_half(struct tsr_engine *e, struct tsr_tensor *x, uint64_t heads)
{
    struct tsr_tensor *low = half_of(e, x, heads, 0), *high = half_of(e, x, heads, 1);
    uint64_t d = x ? x->dims[1] / heads / 2 : 0;
    struct tsr_tensor *negated = scaled(e, high, "neg", -1);
    struct tsr_tensor *in[2] = {negated, low}, *y = NULL;
    struct tsr_node *node = x && negated ? tsr__node_new(e, "Cat", cat_backward, in, 2) : NULL;
    if (x && negated)
        y = tsr__tensor_like(e, x, (tsr_dtype)x->dtype, tsr__result_category(e));
    tsr__emit_pointwise_with(e, "cat", in, 2, y,
                             &(struct tsr_pointwise){.n_args = 2, .args = {d, d}});
    if (node)
        node->a[0] = d;
    if (y)
        tsr__node_output(node, y, 0);
    else
        tsr__node_release(e, node);
    tsr_release(e, negated);
    tsr_release(e, low);
    tsr_release(e, high);
    return y;
}

struct tsr_tensor *tsr__hf_rotary(struct tsr_engine *e, struct tsr_tensor *x, uint64_t heads)
{
    struct tsr_tensor *straight = by_table(e, x, e->autograd.args[TSR_ARG_COS]);
    struct tsr_tensor *turned = rotate_half(e, x, heads);
    struct tsr_tensor *crossed = by_table(e, turned, e->autograd.args[TSR_ARG_SIN]);
    tsr_release(e, turned);
    struct tsr_tensor *sum = tsr_op_add(e, straight, crossed);
    tsr_release(e, straight);
    tsr_release(e, crossed);
    return sum;
}

/* ---- attention ------------------------------------------------------------------------------- */

/* The mask as numbers to add to the scores. */
static struct tsr_tensor *mask_numbers(struct tsr_engine *e, tsr_dtype dtype)
{
    struct tsr_tensor *mask = e->autograd.args[TSR_ARG_MASK];
    struct tsr_tensor *zero = flat(e, "scalar_tensor", dtype, 1, NULL);
    struct tsr_tensor *inf = flat(e, "scalar_tensor", dtype, 1, NULL);
    struct tsr_tensor *numbers = flat(e, "where", dtype, mask->numel, mask);
    tsr_release(e, zero);
    tsr_release(e, inf);
    return numbers;
}

/* Without a mask the kernels take grouped heads as they are; with one they are repeated. */
struct tsr_tensor *tsr__hf_attention(struct tsr_engine *e, struct tsr_tensor *q,
                                     struct tsr_tensor *k, struct tsr_tensor *v,
                                     const struct tsr_attention_shape *s)
{
    if (!q || !k || !v || !tsr__ok(e))
        return NULL;
    if (!e->autograd.args[TSR_ARG_MASK] || e->config.attention == TSR_ATTENTION_EAGER) {
        struct tsr_tensor *o = tsr_op_attention(e, q, k, v, s, NULL);
        struct tsr_tensor *joined = tsr_op_contiguous(e, o);
        tsr_release(e, o);
        return joined;
    }
    uint64_t times = s->kv_heads ? s->heads / s->kv_heads : 1;
    enum tsr_layout layout = s->kv_heads > 1 ? TSR_LAYOUT_HEADS : TSR_LAYOUT_TOKENS;
    struct tsr_tensor *keys = tsr__op_repeat(e, k, times, s->head_dim, s->kv_heads > 1, layout);
    struct tsr_tensor *values = tsr__op_repeat(e, v, times, s->head_dim, s->kv_heads > 1, layout);
    if (times > 1 && s->kv_heads > 1 && keys && values) /* in the order of heads */
        keys->layout = values->layout = TSR_LAYOUT_HEADS;
    struct tsr_tensor *mask = mask_numbers(e, (tsr_dtype)q->dtype);
    struct tsr_tensor *o =
        tsr__masked_attention(e, (struct tsr_tensor *[]){q, keys, values}, s, mask);
    struct tsr_tensor *joined = tsr_op_contiguous(e, o);
    tsr_release(e, o);
    tsr_release(e, keys);
    tsr_release(e, values);
    return joined;
}

/* ---- GELU in pieces -------------------------------------------------------------------------- */

/* gradient * (3 * x^2) */
static void cube_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                          struct tsr_tensor **grad_in)
{
    struct tsr_tensor *x = tsr__node_saved(e, node, 0);
    struct tsr_tensor *power = temp_like(e, x);
    by_number(e, "pow", x, power, 2);
    struct tsr_tensor *thrice = temp_like(e, x);
    by_number(e, "mul_scalar", power, thrice, 3);
    grad_in[0] = temp_like(e, x);
    tsr__emit_pointwise(e, "mul", (struct tsr_tensor *[]){grad_out[0], thrice}, 2, grad_in[0]);
    tsr_release(e, power);
    tsr_release(e, thrice);
    tsr_release(e, x);
}

static void tanh_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                          struct tsr_tensor **grad_in)
{
    struct tsr_tensor *y = tsr__node_saved(e, node, 0);
    grad_in[0] = temp_like(e, y);
    tsr__emit_pointwise(e, "tanh_backward", (struct tsr_tensor *[]){grad_out[0], y}, 2, grad_in[0]);
    tsr_release(e, y);
}

/* 0.5 x (1 + tanh(c (x + 0.044715 x^3))), operation by operation. */
static struct tsr_tensor *hf_gelu_new(struct tsr_engine *e, struct tsr_tensor *x)
{
    struct tsr_tensor *half = scaled(e, x, "mul_scalar", 0.5);
    struct tsr_tensor *cube =
        x ? tsr__op_unary_by(e, x, "pow", (tsr_dtype)x->dtype, cube_backward, TSR_SAVES_INPUT, 3)
          : NULL;
    struct tsr_tensor *part = scaled(e, cube, "mul_scalar", 0.044715);
    tsr_release(e, cube);
    struct tsr_tensor *sum = tsr_op_add(e, x, part);
    tsr_release(e, part);
    struct tsr_tensor *inner = scaled(e, sum, "mul_scalar", sqrt(2 / 3.14159265358979323846));
    tsr_release(e, sum);
    struct tsr_tensor *bent = plain(e, inner, "tanh", tanh_backward, TSR_SAVES_RESULT);
    tsr_release(e, inner);
    struct tsr_tensor *above =
        tsr__op_unary_by(e, bent, "add_scalar", bent ? (tsr_dtype)bent->dtype : TSR_F32,
                         tsr__backward_pass, TSR_SAVES_NOTHING, 1);
    tsr_release(e, bent);
    struct tsr_tensor *y = tsr_op_mul(e, half, above);
    tsr_release(e, half);
    tsr_release(e, above);
    return y;
}

struct tsr_tensor *tsr__activate(struct tsr_engine *e, struct tsr_tensor *x,
                                 enum tsr_activation act, bool by_hand)
{
    switch (act) {
    case TSR_ACT_GELU:
        return tsr_op_gelu_erf(e, x);
    case TSR_ACT_GELU_TANH:
        return tsr_op_gelu(e, x);
    case TSR_ACT_GELU_NEW:
        return by_hand ? hf_gelu_new(e, x) : tsr_op_gelu(e, x);
    case TSR_ACT_RELU:
        return tsr_op_relu(e, x);
    case TSR_ACT_OF_FAMILY:
    case TSR_ACT_SILU:
        break;
    }
    return tsr_op_silu(e, x);
}
