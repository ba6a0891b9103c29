/* ops_tp.c: the collectives of a tensor-parallel model (section 2.8), as nodes of the graph.
 *
 *                      plain                       sequence parallel
 *   enter a region     -        / all-reduce       all-gather     / reduce-scatter
 *   leave a region     all-reduce / -              reduce-scatter / all-gather
 *
 * (forward / backward). Between regions a sequence-parallel tensor has only this rank's tokens.
 * They run on a stream of their own that the compute stream waits for at once: such a collective
 * is exposed unless another stream has work.
 *
 * PyTorch cuts [batch, sequence, width] along its second dimension, while NCCL puts the parts of
 * the ranks one behind another: torch.cat of chunks copies what a reduce-scatter is given, and,
 * for batches of more than one sequence, what an all-gather returned (all_gather_tensor and
 * reduce_scatter_tensor, torch/distributed/_functional_collectives.py). The fused dialect cuts the
 * tokens themselves, whose order nothing between the regions depends on, and needs no copy.
 */
#include "engine/layout/tensor_parallel.h"
#include "engine/ops/ops_common.h"
#include "engine/ops/ops_fused.h"

void tsr__tp_collective(struct tsr_engine *e, uint8_t kind, uint8_t reduce_op,
                        const struct tsr_tensor *in, const struct tsr_tensor *out)
{
    uint64_t a = tsr__tensor_bytes(in), b = tsr__tensor_bytes(out);
    uint16_t compute = e->stream;
    struct tsr_instr instr = {.kind = kind,
                              .dtype = out->dtype,
                              .reduce_op = reduce_op,
                              .stream = e->tp->stream,
                              .comm = e->tp->comm,
                              .bytes = a > b ? a : b};
    if (e->capture) { /* an operation of the graph; what it waits for is found when it is launched
                       */
        tsr__operand_tensor(e, in, TSR_READ);
        tsr__operand_tensor(e, out, TSR_WRITE);
        tsr__emit(e, &instr);
        return;
    }
    uint32_t ready = tsr__new_event(e), done = tsr__new_event(e);
    struct tsr_instr record = {.kind = TSR_RECORD, .stream = compute, .event = ready};
    struct tsr_instr wait = {.kind = TSR_WAIT, .stream = e->tp->stream, .event = ready};
    record.comm = wait.comm = UINT16_MAX;
    tsr__emit(e, &record);
    tsr__emit(e, &wait);
    if (in != out)
        tsr__operand_tensor(e, in, TSR_READ);
    tsr__operand_tensor(e, out, in != out ? TSR_WRITE : TSR_READ_WRITE);
    tsr__emit(e, &instr);
    record.stream = e->tp->stream;
    wait.stream = compute;
    record.event = wait.event = done;
    tsr__emit(e, &record);
    tsr__emit(e, &wait);
}

static void emit_copy(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_tensor *y)
{
    tsr__operand_tensor(e, x, TSR_READ);
    tsr__operand_tensor(e, y, TSR_WRITE);
    tsr__emit_copy(e, (tsr_dtype)x->dtype, tsr__tensor_bytes(x), tsr__tensor_bytes(x), "clone");
}

/* Returns a copy of x whose rows are in another order; the reference to x is taken. */
static struct tsr_tensor *reordered(struct tsr_engine *e, struct tsr_tensor *x,
                                    enum tsr_category category)
{
    struct tsr_tensor *y = x ? tsr__tensor_like(e, x, (tsr_dtype)x->dtype, category) : NULL;
    if (y)
        emit_copy(e, x, y);
    tsr_release(e, x);
    return y;
}

/* Eager PyTorch reduces a copy; Inductor finds that it can do without (comm_lowering.py,
 * all_reduce). A graph writes no value twice: there the sum is a value of its own. */
static struct tsr_tensor *all_reduced(struct tsr_engine *e, struct tsr_tensor *x,
                                      enum tsr_category category)
{
    struct tsr_tensor *y = tsr__tensor_like(e, x, (tsr_dtype)x->dtype, category);
    if (y && !e->capture)
        emit_copy(e, x, y);
    if (y)
        tsr__tp_collective(e, TSR_ALL_REDUCE, TSR_REDUCE_SUM, e->capture ? x : y, y);
    return y;
}

/* Functional collectives: the input stays, the result is a new tensor. */
static struct tsr_tensor *collective(struct tsr_engine *e, uint8_t kind, struct tsr_tensor *x,
                                     enum tsr_category category)
{
    uint64_t dims[2] = {x->dims[0], x->n_dims > 1 ? x->dims[1] : 1};
    if (kind == TSR_ALL_REDUCE)
        return all_reduced(e, x, category);
    bool gathers = kind == TSR_ALL_GATHER, copies = !tsr__is_fused(e);
    dims[0] = gathers ? dims[0] * e->tp->size : dims[0] / e->tp->size;
    x = tsr_retain(x);
    if (copies && !gathers)
        x = reordered(e, x, TSR_CAT_TEMP);
    struct tsr_tensor *y =
        x ? tsr__tensor_new(e, (tsr_dtype)x->dtype, x->n_dims, dims, category) : NULL;
    if (y)
        tsr__tp_collective(e, kind, gathers ? TSR_REDUCE_NONE : TSR_REDUCE_SUM, x, y);
    tsr_release(e, x);
    return copies && gathers && e->shape.batch > 1 ? reordered(e, y, category) : y;
}

/* a[0]: the collective of backward; 0: the gradient passes through */
static void region_backward(struct tsr_engine *e, struct tsr_node *node,
                            struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    grad_in[0] = node->a[0] ? collective(e, (uint8_t)node->a[0], grad_out[0], TSR_CAT_TEMP)
                            : tsr_retain(grad_out[0]);
}

/* Selective checkpointing keeps what a reduce-scatter returned, so that it does not run again. */
static struct tsr_tensor *forward_collective(struct tsr_engine *e, uint8_t kind,
                                             struct tsr_tensor *x)
{
    bool kept = kind == TSR_REDUCE_SCATTER && tsr__selective_keeps(e, false);
    if (kept && tsr__selective_reuses(e))
        return tsr__selective_take(e);
    struct tsr_tensor *y = collective(e, kind, x, tsr__result_category(e));
    if (kept)
        tsr__selective_put(e, y);
    return y;
}

static struct tsr_tensor *region(struct tsr_engine *e, struct tsr_tensor *x, uint8_t forward,
                                 uint8_t backward)
{
    if (!x || e->tp->size < 2)
        return tsr_retain(x);
    struct tsr_node *node = tsr__node_new(e, "TensorParallel", region_backward, &x, 1);
    if (node)
        node->a[0] = backward;
    struct tsr_tensor *y =
        forward ? forward_collective(e, forward, x)
                : tsr__tensor_view(e, x->storage, (tsr_dtype)x->dtype, x->n_dims, x->dims);
    if (!y)
        return tsr__op_abort(e, node);
    tsr__node_output(node, y, 0);
    return y;
}

struct tsr_tensor *tsr__tp_enter(struct tsr_engine *e, struct tsr_tensor *x)
{
    return e->tp->sequence ? region(e, x, TSR_ALL_GATHER, TSR_REDUCE_SCATTER)
                           : region(e, x, 0, TSR_ALL_REDUCE);
}

struct tsr_tensor *tsr__tp_leave(struct tsr_engine *e, struct tsr_tensor *x)
{
    return e->tp->sequence ? region(e, x, TSR_REDUCE_SCATTER, TSR_ALL_GATHER)
                           : region(e, x, TSR_ALL_REDUCE, 0);
}

void tsr__tp_reduce(struct tsr_engine *e, struct tsr_tensor *x, uint8_t reduce_op)
{
    if (x && e->tp->size > 1 && tsr__ok(e))
        tsr__tp_collective(e, TSR_ALL_REDUCE, reduce_op, x, x);
}

/* Norm weights of a sequence-parallel model: each rank saw its own tokens, so the gradient is a
 * partial sum; it is redistributed before it enters the reduction. */
void tsr__tp_reduce_partial(struct tsr_engine *e, const struct tsr_param *p,
                            struct tsr_tensor *grad)
{
    if (e->tp->sequence && p->tp_partial)
        tsr__tp_reduce(e, grad, TSR_REDUCE_SUM);
}

/* ---- the plan of a model --------------------------------------------------------------------- */
static tsr_status check_divides(uint64_t whole, uint32_t tp, const char *what)
{
    if (whole % tp == 0)
        return TSR_OK;
    return tsr_fail(TSR_EVALUE, "tensor parallelism over %u ranks does not divide %llu %s", tp,
                    (unsigned long long)whole, what);
}

static tsr_status check_llama(const struct tsr_engine *e, uint32_t tp)
{
    const struct tsr_model_info *m = e->model;
    if (!m->llama)
        return tsr_fail(TSR_ENOTIMPL, "tensor parallelism is modelled for Llama, Mistral and Qwen; "
                                      "this model has no plan");
    if (m->llama->impl == TSR_IMPL_TRANSFORMERS)
        return tsr_fail(TSR_ENOTIMPL, "tensor parallelism is modelled for plain modules, not for "
                                      "those of transformers");
    TSR_TRY(check_divides(m->llama->n_heads, tp, "attention heads"));
    TSR_TRY(check_divides(m->llama->n_kv_heads, tp, "key/value heads"));
    TSR_TRY(check_divides(m->llama->intermediate_size, tp, "columns of the MLP"));
    return check_divides(m->llama->vocab_size, tp, "words of the vocabulary");
}

static void mark_partial(struct tsr_engine *e)
{
    for (size_t i = 0; i < e->tree.n_params; i++)
        if (e->tree.params[i] && tsr_glob("**norm.weight", e->tree.params[i]->fqn))
            e->tree.params[i]->tp_partial = true;
}

tsr_status tsr_tensor_parallel_model(struct tsr_engine *e, const char *mesh_dim, bool sequence)
{
    static const struct tsr_tp_style styles[] = {
        {"**.q_proj", TSR_TP_COLWISE},    {"**.k_proj", TSR_TP_COLWISE},
        {"**.v_proj", TSR_TP_COLWISE},    {"**.o_proj", TSR_TP_ROWWISE},
        {"**.gate_proj", TSR_TP_COLWISE}, {"**.up_proj", TSR_TP_COLWISE},
        {"**.down_proj", TSR_TP_ROWWISE}, {"model.embed_tokens", TSR_TP_ROWWISE},
        {"lm_head", TSR_TP_COLWISE},      {"**norm", TSR_TP_SEQUENCE},
        {"**.wq", TSR_TP_COLWISE},        {"**.wk", TSR_TP_COLWISE}, /* TSR_NAMES_PLAIN */
        {"**.wv", TSR_TP_COLWISE},        {"**.wo", TSR_TP_ROWWISE},
        {"**.w1", TSR_TP_COLWISE},        {"**.w2", TSR_TP_ROWWISE},
        {"**.w3", TSR_TP_COLWISE},        {"tok_embeddings", TSR_TP_ROWWISE},
        {"output", TSR_TP_COLWISE}};
    const struct tsr_tp_options options = {
        .mesh_dim = mesh_dim, .n_styles = sizeof styles / sizeof *styles, .styles = styles};
    struct tsr_submesh mesh;
    TSR_TRY(tsr__submesh(e, &mesh_dim, 1, &mesh));
    TSR_TRY(check_llama(e, mesh.size[0]));
    TSR_TRY(tsr_tensor_parallel(e, &options));
    e->tp->size = mesh.size[0];
    e->tp->sequence = sequence && mesh.size[0] > 1;
    e->tp->comm = tsr__comm_add(e, mesh_dim, mesh.size[0], mesh.stride[0], UINT16_MAX);
    e->tp->stream = tsr__stream_add(e, "tensor_parallel", TSR_ROLE_ALL_REDUCE, 0);
    mark_partial(e);
    return e->status;
}
