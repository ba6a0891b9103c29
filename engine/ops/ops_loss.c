/* ops_loss.c: losses of whole logits: cross-entropy in fp32 (log-softmax and nll, as eager PyTorch
 * composes it), the mean of squares, and cross-entropy in one kernel as the fused dialect and
 * flash-attn have it. Chunk by chunk: ops_chunked_loss.c; of torch.compile: ops_compiled_loss.c.
 */
#include "engine/ops/ops_common.h"
#include "engine/ops/ops_fused.h"

/* Rows beyond this are longer than what a block keeps in shared memory, and those of all blocks
 * together longer than a cache: a kernel that goes over them again reads them again. */
enum { ROW_LIMIT = 48 << 10 };

uint64_t tsr__bytes_in_passes(uint64_t bytes, uint64_t rows, unsigned passes)
{
    rows = rows ? rows : 1;
    if (passes == 0)
        return tsr_min_u64(bytes, 32 * rows);
    return bytes / rows > ROW_LIMIT ? passes * bytes : bytes;
}

/* `more`: bytes that are read and written beside, of tensors that the kernel does without. */
static void emit_with(struct tsr_engine *e, enum tsr_compiled compiled, const char *name,
                      struct tsr_tensor *const *in, int n, struct tsr_tensor *const *out, int n_out,
                      unsigned passes, uint64_t more)
{
    uint64_t read = more, written = more;
    const struct tsr_tensor *rows = in[0];
    if (!in[0] || !out[0] || !tsr__ok(e))
        return;
    for (int i = 0; i < n; i++) {
        tsr__operand_tensor(e, in[i], TSR_READ);
        read += in[i] ? tsr__tensor_bytes(in[i]) : 0;
    }
    read = read - tsr__tensor_bytes(in[0]) +
           tsr__bytes_in_passes(tsr__tensor_bytes(in[0]), in[0]->dims[0], passes);
    for (int i = 0; i < n_out; i++) {
        tsr__operand_tensor(e, out[i], TSR_WRITE);
        written += out[i] ? tsr__tensor_bytes(out[i]) : 0;
        if (out[i] && out[i]->numel > rows->numel)
            rows = out[i];
    }
    struct tsr_work work = {.op = TSR_OP_LOSS,
                            .dtype = in[0]->dtype,
                            .compiled = (uint8_t)compiled,
                            .name = name,
                            .flops = 4.0 * (double)(passes ? in[0]->numel : in[0]->dims[0]),
                            .bytes_read = read,
                            .bytes_written = written,
                            .dims = {rows->dims[0], rows->n_dims > 1 ? rows->dims[1] : 1}};
    tsr__emit_op(e, &work);
}

void tsr__emit_loss_of(struct tsr_engine *e, enum tsr_compiled compiled, const char *name,
                       struct tsr_tensor *const *in, int n, struct tsr_tensor *const *out,
                       int n_out, unsigned passes)
{
    emit_with(e, compiled, name, in, n, out, n_out, passes, 0);
}

void tsr__emit_loss_in_passes(struct tsr_engine *e, const char *name, struct tsr_tensor *const *in,
                              int n, struct tsr_tensor *const *out, int n_out, unsigned passes)
{
    tsr__emit_loss_of(e, TSR_COMPILED_NOT, name, in, n, out, n_out, passes);
}

void tsr__emit_loss(struct tsr_engine *e, const char *name, struct tsr_tensor *const *in, int n,
                    struct tsr_tensor *const *out, int n_out)
{
    tsr__emit_loss_in_passes(e, name, in, n, out, n_out, 1);
}

static struct tsr_tensor *scalar(struct tsr_engine *e, const struct tsr_tensor *x)
{
    const uint64_t one = 1;
    return tsr__tensor_new(e, tsr__wide(x), 1, &one, tsr__result_category(e));
}

/* ---- a vocabulary that tensor parallelism cuts ----------------------------------------------- */

/* Eager PyTorch composes this loss of elementary operations (torch/distributed/tensor/parallel/
 * loss.py), each with a result of the size of the logits in fp32. Here one kernel stands for a few
 * of them: it moves their bytes, and their results lie in memory while it runs. */

/* Such a result; NULL in the fused dialect, whose kernels need none. */
static struct tsr_tensor *step_result(struct tsr_engine *e, const struct tsr_tensor *x)
{
    return tsr__is_fused(e) || !x ? NULL : tsr__tensor_like(e, x, tsr__wide(x), TSR_CAT_TEMP);
}

static uint64_t bytes_or_none(const struct tsr_tensor *x)
{
    return x ? tsr__tensor_bytes(x) : 0;
}

/* One number a token, made by `name` from the local columns, then reduced over the ranks. */
static struct tsr_tensor *over_vocabulary(struct tsr_engine *e, const char *name,
                                          struct tsr_tensor *const *in, int n, uint8_t reduce_op,
                                          uint64_t more)
{
    struct tsr_tensor *row =
        in[0] ? tsr__tensor_new(e, tsr__wide(in[0]), 1, in[0]->dims, TSR_CAT_TEMP) : NULL;
    emit_with(e, TSR_COMPILED_NOT, name, in, n, &row, 1, 1, more);
    tsr__tp_reduce(e, row, reduce_op);
    return row;
}

/* Which words this rank has: args of the kernels that look for a label. */
static void vocabulary_args(struct tsr_engine *e, uint64_t words)
{
    tsr__push_arg(e, words * tsr_comm_index(&e->emit.comms[e->tp->comm], e->config.rank));
    tsr__push_arg(e, words);
}

static bool is_cut(const struct tsr_engine *e)
{
    return e->tp->size > 1;
}

/* ---- log-softmax ----------------------------------------------------------------------------- */

/* Of a cut vocabulary the gradient is complete already (nll_backward). */
static void log_softmax_backward(struct tsr_engine *e, struct tsr_node *node,
                                 struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    if (is_cut(e)) {
        grad_in[0] = tsr_retain(grad_out[0]);
        return;
    }
    struct tsr_tensor *p = tsr__node_saved(e, node, 0);
    grad_in[0] = tsr__tensor_like(e, p, tsr__wide(p), TSR_CAT_TEMP);
    /* the sum of the gradients, then the result */
    tsr__emit_loss_in_passes(e, "log_softmax_backward", (struct tsr_tensor *[]){grad_out[0], p}, 2,
                             grad_in, 1, TSR_LOG_SOFTMAX_BACKWARD_PASSES);
    tsr_release(e, p);
}

/* x - maximum, its exponentials, their sum; x - maximum - logarithm */
static struct tsr_tensor *cut_log_softmax(struct tsr_engine *e, struct tsr_tensor *x)
{
    struct tsr_tensor *most =
        over_vocabulary(e, "row_max", (struct tsr_tensor *[]){x, NULL}, 2, TSR_REDUCE_MAX, 0);
    struct tsr_tensor *shifted = step_result(e, x), *exponentials = step_result(e, x);
    struct tsr_tensor *sum = over_vocabulary(e, "row_exp_sum", (struct tsr_tensor *[]){x, most}, 2,
                                             TSR_REDUCE_SUM, 2 * bytes_or_none(shifted));
    tsr_release(e, exponentials);
    struct tsr_tensor *y = tsr__tensor_like(e, x, tsr__wide(x), tsr__result_category(e));
    tsr__emit_loss(e, "log_softmax_tp", (struct tsr_tensor *[]){x, most, sum}, 3, &y, 1);
    tsr_release(e, shifted);
    tsr_release(e, most);
    tsr_release(e, sum);
    return y;
}

static struct tsr_tensor *log_softmax(struct tsr_engine *e, struct tsr_tensor *x)
{
    if (!x)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "LogSoftmax", log_softmax_backward, &x, 1);
    struct tsr_tensor *y = is_cut(e)
                               ? cut_log_softmax(e, x)
                               : tsr__tensor_like(e, x, tsr__wide(x), tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    if (!is_cut(e))
        tsr__emit_loss_in_passes(e, "log_softmax", &x, 1, &y, 1, TSR_LOG_SOFTMAX_PASSES);
    tsr__node_save_result(e, node, y);
    tsr__node_output(node, y, 0);
    return y;
}

/* ---- negative log-likelihood ----------------------------------------------------------------- */

/* saved: labels, total weight; cut vocabulary: log-probabilities. a: shape of them */
static void nll_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                         struct tsr_tensor **grad_in)
{
    struct tsr_tensor *labels = tsr__node_saved(e, node, 0), *weight = tsr__node_saved(e, node, 1);
    struct tsr_tensor *p = is_cut(e) ? tsr__node_saved(e, node, 2) : NULL;
    struct tsr_tensor *in[4] = {grad_out[0], labels, weight, p};
    /* of a cut one: zeros with -1 at the labels, exponentials, and the sum of both */
    struct tsr_tensor *onehot = step_result(e, p), *exponentials = step_result(e, p);
    struct tsr_tensor *sum = step_result(e, p);
    tsr_release(e, exponentials);
    grad_in[0] = tsr__tensor_new(e, tsr__wide(grad_out[0]), 2, node->a, TSR_CAT_TEMP);
    if (p)
        vocabulary_args(e, node->a[1]);
    emit_with(e, TSR_COMPILED_NOT, p ? "nll_backward_tp" : "nll_loss_backward", in, p ? 4 : 3,
              grad_in, 1, 1, 3 * bytes_or_none(sum));
    tsr_release(e, sum);
    tsr_release(e, onehot);
    tsr_release(e, p);
    tsr_release(e, weight);
    tsr_release(e, labels);
}

/* The label's log-probability lies on one rank. */
static void cut_nll(struct tsr_engine *e, struct tsr_tensor *p, struct tsr_tensor *labels,
                    struct tsr_tensor *const out[2])
{
    struct tsr_tensor *row = tsr__tensor_new(e, tsr__wide(p), 1, p->dims, TSR_CAT_TEMP);
    vocabulary_args(e, p->dims[1]);
    tsr__emit_loss_in_passes(e, "nll_gather", (struct tsr_tensor *[]){p, labels}, 2, &row, 1, 0);
    tsr__tp_reduce(e, row, TSR_REDUCE_SUM);
    tsr__emit_loss(e, "nll_rows", (struct tsr_tensor *[]){row, labels}, 2, out, 2);
    tsr_release(e, row);
}

static struct tsr_tensor *nll(struct tsr_engine *e, struct tsr_tensor *p, struct tsr_tensor *labels)
{
    if (!p)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "NllLoss", nll_backward, &p, 1);
    tsr__node_save(e, node, labels);
    if (node) {
        node->a[0] = p->dims[0];
        node->a[1] = p->dims[1];
    }
    struct tsr_tensor *out[2] = {scalar(e, p), scalar(e, p)}; /* loss, total weight */
    if (is_cut(e) && out[0] && out[1])
        cut_nll(e, p, labels, out);
    else
        tsr__emit_loss_in_passes(e, "nll_loss", (struct tsr_tensor *[]){p, labels}, 2, out, 2, 0);
    tsr__node_save(e, node, out[1]);
    tsr_release(e, out[1]);
    if (is_cut(e))
        tsr__node_save(e, node, p);
    if (!out[0])
        return tsr__op_abort(e, node);
    tsr__node_output(node, out[0], 0);
    return out[0];
}

struct tsr_tensor *tsr_op_cross_entropy(struct tsr_engine *e, struct tsr_tensor *logits,
                                        struct tsr_tensor *labels)
{
    struct tsr_tensor *wide = tsr_op_cast(e, logits, tsr__wide(logits));
    struct tsr_tensor *p = log_softmax(e, wide);
    struct tsr_tensor *loss = nll(e, p, labels);
    tsr_release(e, p);
    tsr_release(e, wide);
    return loss;
}

/* ---- mean of squares ------------------------------------------------------------------------- */

/* saved: input, target if there is one */
static void mean_square_backward(struct tsr_engine *e, struct tsr_node *node,
                                 struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *x = tsr__node_saved(e, node, 0);
    struct tsr_tensor *target = node->n_saved > 1 ? tsr__node_saved(e, node, 1) : NULL;
    grad_in[0] = tsr__tensor_like(e, x, x ? (tsr_dtype)x->dtype : TSR_F32, TSR_CAT_TEMP);
    if (x && grad_in[0] && tsr__ok(e)) {
        tsr__slot(e, 3);
        tsr__operand_tensor(e, target, TSR_READ);
        tsr__slot(e, 0);
    }
    tsr__emit_loss(e, "mse_backward", (struct tsr_tensor *[]){x, grad_out[0]}, 2, grad_in, 1);
    tsr_release(e, target);
    tsr_release(e, x);
}

struct tsr_tensor *tsr__mean_square(struct tsr_engine *e, struct tsr_tensor *x,
                                    struct tsr_tensor *target)
{
    if (!x)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "MeanSquare", mean_square_backward, &x, 1);
    tsr__node_save(e, node, x);
    tsr__node_save(e, node, target);
    struct tsr_tensor *loss = scalar(e, x);
    if (!loss)
        return tsr__op_abort(e, node);
    tsr__emit_loss(e, target ? "mse_target" : "mse", (struct tsr_tensor *[]){x, target}, 2, &loss,
                   1);
    tsr__node_output(node, loss, 0);
    return loss;
}

struct tsr_tensor *tsr_op_mean_square(struct tsr_engine *e, struct tsr_tensor *x)
{
    return tsr__mean_square(e, x, NULL);
}

/* ---- one kernel: loss and gradient ----------------------------------------------------------- */

/* Cross-entropy in one kernel, as llm.c and Liger Kernel have it: the gradient of
 * the logits is made together with the loss and takes their place, so that neither logits in f32
 * nor log-probabilities exist. Backward scales it. */

static struct tsr_tensor *fused_scalar(struct tsr_engine *e, tsr_dtype dtype)
{
    const uint64_t one = 1;
    return tsr__tensor_new(e, dtype, 1, &one, tsr__result_category(e));
}

void tsr__emit_cross_entropy(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_tensor *labels,
                             struct tsr_tensor *count, struct tsr_tensor *loss,
                             struct tsr_tensor *gradient)
{
    if (!x || !labels || !count || !loss || !tsr__ok(e))
        return;
    uint64_t rows = x->dims[0], item = tsr_dtype_bytes(tsr__wide(x));
    struct tsr_tensor *scratch = tsr__workspace(e, item * rows); /* the loss of every row */
    struct tsr_work work = {.op = TSR_OP_LOSS,
                            .dtype = x->dtype,
                            .name = "fused_cross_entropy",
                            .flops = (gradient ? 6.0 : 4.0) * (double)x->numel,
                            .bytes_read = tsr__tensor_bytes(x) + tsr__tensor_bytes(labels) + 4,
                            .bytes_written = item + (gradient ? tsr__tensor_bytes(gradient) : 0),
                            .dims = {rows, rows ? x->numel / rows : 0}};
    tsr__operand_tensor(e, x, TSR_READ);
    tsr__operand_tensor(e, labels, TSR_READ);
    tsr__operand_tensor(e, count, TSR_READ);
    tsr__operand_tensor(e, loss, TSR_WRITE);
    tsr__operand_tensor(e, gradient, TSR_WRITE);
    tsr__operand_storage(e, scratch ? scratch->storage : NULL, TSR_WRITE, TSR_DTYPE_NONE);
    tsr__emit_op(e, &work);
    tsr_release(e, scratch);
}

void tsr__scale_gradient(struct tsr_engine *e, struct tsr_tensor *gradient, struct tsr_tensor *g)
{
    if (gradient && g && !g->is_one)
        tsr__emit_pointwise(e, "mul", (struct tsr_tensor *[]){gradient, g}, 2, gradient);
}

/* saved: the gradient */
static void cross_entropy_backward(struct tsr_engine *e, struct tsr_node *node,
                                   struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    grad_in[0] = tsr__node_saved(e, node, 0);
    tsr__scale_gradient(e, grad_in[0], grad_out[0]);
}

struct tsr_tensor *tsr__op_fused_cross_entropy(struct tsr_engine *e, struct tsr_tensor *logits,
                                               struct tsr_tensor *labels)
{
    if (!logits || !labels)
        return NULL;
    struct tsr_node *node =
        tsr__node_new(e, "FusedCrossEntropy", cross_entropy_backward, &logits, 1);
    struct tsr_tensor *count = fused_scalar(e, TSR_F32), *loss = fused_scalar(e, tsr__wide(logits));
    struct tsr_tensor *gradient =
        node ? tsr__result_over(e, logits, 1, tsr__result_category(e)) : NULL;
    tsr__emit_loss(e, "count_labels", &labels, 1, &count, 1);
    tsr__emit_cross_entropy(e, logits, labels, count, loss, gradient);
    tsr__node_save(e, node, gradient);
    tsr_release(e, gradient);
    tsr_release(e, count);
    if (!loss)
        return tsr__op_abort(e, node);
    tsr__node_output(node, loss, 0);
    return loss;
}

/* ---- flash-attn's ---------------------------------------------------------------------------- */

/* The cross-entropy of flash-attn (CrossEntropyLoss, reduction "mean"), which
 * llm-foundry calls "fused_crossentropy": forward is one kernel over the logits in their dtype,
 * which makes a loss and a log-sum-exp of every token; backward is one kernel that makes the
 * gradient of the logits, by default in new memory, with inplace_backward in the place of the
 * logits. What is around it has one number a token. Not to be confused with the fused dialect's
 * own (above), which makes the gradient in forward. */

static struct tsr_tensor *rows_like(struct tsr_engine *e, const struct tsr_tensor *x,
                                    tsr_dtype dtype, enum tsr_category category)
{
    return x ? tsr__tensor_new(e, dtype, 1, x->dims, category) : NULL;
}

static struct tsr_tensor *flash_scalar(struct tsr_engine *e, enum tsr_category category)
{
    const uint64_t one = 1;
    return tsr__tensor_new(e, TSR_F32, 1, &one, category);
}

/* masked_fill_(labels == ignore_index, 0) on one number a token */
static void mask_ignored(struct tsr_engine *e, struct tsr_tensor *rows, struct tsr_tensor *labels)
{
    struct tsr_tensor *ignored = rows_like(e, rows, TSR_U8, tsr__result_category(e));
    tsr__emit_pointwise(e, "eq", &labels, 1, ignored);
    if (rows)
        tsr__emit_pointwise(e, "masked_fill", (struct tsr_tensor *[]){rows, ignored}, 2, rows);
    tsr_release(e, ignored);
}

struct tsr_tensor *tsr__op_count_labels(struct tsr_engine *e, struct tsr_tensor *labels)
{
    const uint64_t one = 1;
    enum tsr_category category = tsr__result_category(e);
    struct tsr_tensor *counts = rows_like(e, labels, TSR_U8, category);
    tsr__emit_pointwise(e, "ne", &labels, 1, counts);
    struct tsr_tensor *number = tsr__tensor_new(e, TSR_I64, 1, &one, category);
    struct tsr_tensor *wide = tsr__workspace(e, 8 * (labels ? labels->numel : 0));
    tsr__emit_loss(e, "sum", &counts, 1, &number, 1);
    tsr_release(e, wide);
    tsr_release(e, counts);
    return number;
}

/* ---- a loss of every token ------------------------------------------------------------------- */

/* saved: logits, log-sum-exp, labels. The gradient that comes in is one number for all tokens. */
static void rows_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                          struct tsr_tensor **grad_in)
{
    struct tsr_tensor *saved[3];
    for (int i = 0; i < 3; i++)
        saved[i] = tsr__node_saved(e, node, i);
    struct tsr_tensor *x = saved[0], *rows = rows_like(e, x, TSR_F32, TSR_CAT_TEMP);
    tsr__emit_pointwise(e, "clone", grad_out, 1, rows);
    mask_ignored(e, rows, saved[2]);
    bool inplace = e->ops->loss_kernel == TSR_LOSS_FLASH_INPLACE;
    if (x)
        grad_in[0] = inplace
                         ? tsr__tensor_view(e, x->storage, (tsr_dtype)x->dtype, x->n_dims, x->dims)
                         : tsr__tensor_like(e, x, (tsr_dtype)x->dtype, TSR_CAT_TEMP);
    tsr__emit_loss(e, "flash_cross_entropy_backward",
                   (struct tsr_tensor *[]){x, rows, saved[1], saved[2]}, 4, grad_in, 1);
    tsr_release(e, rows);
    for (int i = 0; i < 3; i++)
        tsr_release(e, saved[i]);
}

static struct tsr_tensor *losses_of(struct tsr_engine *e, struct tsr_tensor *logits,
                                    struct tsr_tensor *labels)
{
    struct tsr_node *node = tsr__node_new(e, "FlashCrossEntropy", rows_backward, &logits, 1);
    enum tsr_category category = tsr__result_category(e);
    struct tsr_tensor *out[2] = {rows_like(e, logits, TSR_F32, category),
                                 rows_like(e, logits, TSR_F32, category)};
    tsr__emit_loss(e, "flash_cross_entropy", (struct tsr_tensor *[]){logits, labels}, 2, out, 2);
    mask_ignored(e, out[0], labels);
    tsr__node_save(e, node, logits);
    tsr__node_save(e, node, out[1]);
    tsr__node_save(e, node, labels);
    tsr_release(e, out[1]);
    if (!out[0])
        return tsr__op_abort(e, node);
    tsr__node_output(node, out[0], 0);
    return out[0];
}

/* ---- their mean ------------------------------------------------------------------------------ */

/* saved: how many count */
static void mean_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                          struct tsr_tensor **grad_in)
{
    struct tsr_tensor *number = tsr__node_saved(e, node, 0);
    grad_in[0] = flash_scalar(e, TSR_CAT_TEMP);
    if (grad_in[0])
        tsr__emit_pointwise(e, "div", (struct tsr_tensor *[]){grad_out[0], number}, 2, grad_in[0]);
    tsr_release(e, number);
}

static struct tsr_tensor *mean_of(struct tsr_engine *e, struct tsr_tensor *losses,
                                  struct tsr_tensor *labels)
{
    if (!losses)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "Mean", mean_backward, &losses, 1);
    enum tsr_category category = tsr__result_category(e);
    struct tsr_tensor *sum = flash_scalar(e, category);
    tsr__emit_loss(e, "sum", &losses, 1, &sum, 1);
    struct tsr_tensor *number = tsr__op_count_labels(e, labels), *loss = flash_scalar(e, category);
    if (sum && number && loss)
        tsr__emit_pointwise(e, "div", (struct tsr_tensor *[]){sum, number}, 2, loss);
    tsr__node_save(e, node, number);
    tsr_release(e, number);
    tsr_release(e, sum);
    if (!loss)
        return tsr__op_abort(e, node);
    tsr__node_output(node, loss, 0);
    return loss;
}

struct tsr_tensor *tsr__op_flash_cross_entropy(struct tsr_engine *e, struct tsr_tensor *logits,
                                               struct tsr_tensor *labels)
{
    if (!logits || !labels)
        return NULL;
    struct tsr_tensor *losses = losses_of(e, logits, labels);
    struct tsr_tensor *loss = mean_of(e, losses, labels);
    tsr_release(e, losses);
    return loss;
}
