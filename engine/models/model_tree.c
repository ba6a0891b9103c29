/* model_tree.c: a generic model from a tree of nodes ("tree" of tests/golden/README.md). */
#include "engine/graph/engine.h"
#include "engine/models/model_parts.h"
#include "engine/models/models.h"

#include <stdio.h>
#include <string.h>

/* A node's own copy, and what its module needs. */
struct tree {
    struct tsr_tree_node n;
    const char *kernel; /* of an op: its kernels' name */
    struct tree_run {
        int iteration;
        bool given, none;
        size_t n_children;
        size_t *children; /* indices into the module's children */
    } * runs;             /* [0]: default; then run_at */
    int n_runs;
};

static const struct tree_run *runs_now(const struct tsr_engine *e, const struct tree *t)
{
    for (int i = 1; i < t->n_runs; i++)
        if (t->runs[i].iteration == (int)e->iteration)
            return &t->runs[i];
    return &t->runs[0];
}

/* x := children in order. A list child has no forward of its own: its children run here. */
static struct tsr_tensor *run_children(struct tsr_engine *e, struct tsr_module *m,
                                       struct tsr_tensor *x)
{
    const struct tree_run *run = runs_now(e, m->impl);
    size_t n = run->given ? run->n_children : m->n_children;
    struct tsr_tensor *h = tsr_retain(x);
    for (size_t i = 0; i < n && tsr__ok(e); i++) {
        struct tsr_module *child = m->children[run->given ? run->children[i] : i];
        struct tsr_tensor *next =
            child->no_forward ? run_children(e, child, h) : tsr_call(e, child, h);
        tsr_release(e, h);
        h = next;
    }
    return h;
}

static void seq_forward(struct tsr_engine *e, struct tsr_module *m, void *impl,
                        struct tsr_tensor *in, struct tsr_tensor **out)
{
    const struct tree *t = impl;
    struct tsr_tensor *y = run_children(e, m, in);
    if (!t->n.residual) {
        *out = y;
        return;
    }
    *out = tsr_op_add(e, in, y);
    tsr_release(e, y);
}

/* Operations take epsilon from the model. */
static struct tsr_tensor *norm(struct tsr_engine *e, const struct tree *t, struct tsr_tensor *in,
                               struct tsr_param *w, struct tsr_param *b)
{
    double of_model = e->model->norm_eps;
    if (t->n.eps > 0)
        e->model->norm_eps = t->n.eps;
    struct tsr_tensor *out = t->n.type == TSR_TREE_RMSNORM ? tsr__op_promoting_rms_norm(e, in, w)
                                                           : tsr_op_layer_norm(e, in, w, b);
    e->model->norm_eps = of_model;
    return out;
}

/* As DINOv2's SwiGLUFFN has it: x1, x2 = x12.chunk(2, dim=-1); silu(x1) * x2
 * (facebookresearch/dinov2, layers/swiglu_ffn.py). The halves are views. */
static struct tsr_tensor *swiglu(struct tsr_engine *e, struct tsr_tensor *in)
{
    struct tsr_tensor *half[2];
    tsr_op_split2(e, in, half);
    struct tsr_tensor *gate = tsr_op_silu(e, half[0]);
    struct tsr_tensor *out = tsr_op_mul(e, gate, half[1]);
    tsr_release(e, gate);
    tsr_release(e, half[0]);
    tsr_release(e, half[1]);
    return out;
}

static struct tsr_tensor *generic(struct tsr_engine *e, const struct tree *t, struct tsr_tensor *in,
                                  struct tsr_param *w)
{
    const struct tsr_tree_op *op = &t->n.op;
    struct tsr_generic what = {
        .name = t->kernel,
        .out = t->n.out ? t->n.out
               : in     ? in->dims[1]
                        : 0,
        .per_sequence = op->per_sequence,
        .flops = op->flops,
        .bytes = op->bytes,
        .backward_flops = op->backward_flops < 0 ? 2 * op->flops : op->backward_flops,
        .backward_bytes = op->backward_bytes < 0 ? 2 * op->bytes : op->backward_bytes,
        .saved_bytes = op->saved_bytes,
        .saves_input = op->saves_input,
    };
    return tsr_op_generic(e, in, w, &what);
}

static void leaf_forward(struct tsr_engine *e, struct tsr_module *m, void *impl,
                         struct tsr_tensor *in, struct tsr_tensor **out)
{
    const struct tree *t = impl;
    struct tsr_param *w = m->n_params > 0 ? m->params[0].param : NULL;
    struct tsr_param *b = m->n_params > 1 ? m->params[1].param : NULL;
    switch (t->n.type) {
    case TSR_TREE_LINEAR:
        *out = tsr_op_linear(e, in, w, b);
        break;
    case TSR_TREE_EMBEDDING:
        *out = tsr_op_embedding(e, in, w);
        break;
    case TSR_TREE_RMSNORM:
    case TSR_TREE_LAYERNORM:
        *out = norm(e, t, in, w, b);
        break;
    case TSR_TREE_SCALE:
        *out = tsr_op_scale_by_mean(e, in, w);
        break;
    case TSR_TREE_RELU:
        *out = tsr_op_relu(e, in);
        break;
    case TSR_TREE_SILU:
        *out = tsr_op_silu(e, in);
        break;
    case TSR_TREE_GELU:
        *out = tsr_op_gelu(e, in);
        break;
    case TSR_TREE_GELU_ERF:
        *out = tsr_op_gelu_erf(e, in);
        break;
    case TSR_TREE_ATTENTION: {
        struct tsr_attention_shape shape = {.batch = e->shape.batch,
                                            .seq = e->shape.seq,
                                            .heads = t->n.heads,
                                            .kv_heads = t->n.kv_heads,
                                            .head_dim = t->n.head_dim,
                                            .full = t->n.full};
        struct tsr_tensor *part[3];
        tsr_op_split3(e, in, t->n.heads * t->n.head_dim, t->n.kv_heads * t->n.head_dim, false,
                      part);
        struct tsr_tensor *o = tsr_op_attention(e, part[0], part[1], part[2], &shape, NULL);
        *out = tsr_op_contiguous(e, o);
        tsr_release(e, o);
        for (int i = 0; i < 3; i++)
            tsr_release(e, part[i]);
        break;
    }
    case TSR_TREE_SWIGLU:
        *out = swiglu(e, in);
        break;
    case TSR_TREE_OP:
        *out = generic(e, t, in, w);
        break;
    case TSR_TREE_SEQ:
    case TSR_TREE_LIST:
        break;
    }
}

static const char *type_name(enum tsr_tree_type type)
{
    static const char *const names[] = {
        [TSR_TREE_LINEAR] = "Linear",   [TSR_TREE_EMBEDDING] = "Embedding",
        [TSR_TREE_RMSNORM] = "RMSNorm", [TSR_TREE_LAYERNORM] = "LayerNorm",
        [TSR_TREE_SCALE] = "Scale",     [TSR_TREE_RELU] = "ReLU",
        [TSR_TREE_SILU] = "SiLU",       [TSR_TREE_GELU] = "GELU",
        [TSR_TREE_GELU_ERF] = "GELU",   [TSR_TREE_ATTENTION] = "Attention",
        [TSR_TREE_SWIGLU] = "SwiGLU",   [TSR_TREE_OP] = "Op",
        [TSR_TREE_SEQ] = "Block",       [TSR_TREE_LIST] = "ModuleList"};
    return names[type];
}

static void add_params(struct tsr_engine *e, struct tsr_module *m, const struct tsr_tree_node *n,
                       tsr_dtype dtype)
{
    uint64_t matrix[2] = {n->out, n->in};
    switch (n->type) {
    case TSR_TREE_LINEAR:
        if (tsr__param_new(e, m, "weight", 2, matrix, dtype) && n->bias)
            tsr__param_new(e, m, "bias", 1, &n->out, dtype);
        break;
    case TSR_TREE_EMBEDDING:
        tsr__param_new(e, m, "weight", 2, (uint64_t[]){n->in, n->out}, dtype);
        break;
    case TSR_TREE_RMSNORM:
        tsr__param_new(e, m, "weight", 1, &n->in, dtype);
        break;
    case TSR_TREE_LAYERNORM:
        if (tsr__param_new(e, m, "weight", 1, &n->in, dtype))
            tsr__param_new(e, m, "bias", 1, &n->in, dtype);
        break;
    case TSR_TREE_SCALE:
        tsr__param_new(e, m, "weight", n->n_dims, n->dims, dtype);
        break;
    case TSR_TREE_OP:
        if (n->op.params)
            tsr__param_new(e, m, "weight", 1, &n->op.params, dtype);
        break;
    default:
        break;
    }
}

static tsr_status resolve_run(struct tsr_engine *e, struct tsr_module *m, struct tree_run *run,
                              size_t n, const char *const *names)
{
    run->given = true;
    run->children = tsr_arena_alloc(&e->arena, (n + 1) * sizeof *run->children);
    if (!run->children)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (k < m->n_children && strcmp(m->child_names[k], names[i]) != 0)
            k++;
        if (k == m->n_children)
            return tsr_fail(TSR_EVALUE, "module '%s' runs '%s', which is not one of its children",
                            m->fqn, names[i]);
        run->children[run->n_children++] = k;
    }
    return TSR_OK;
}

static tsr_status resolve_runs(struct tsr_engine *e, struct tsr_module *m, struct tree *t,
                               const struct tsr_tree_node *n)
{
    t->n_runs = 1 + n->n_run_at;
    e->model->by_iteration |= n->n_run_at > 0;
    t->runs = tsr_arena_alloc(&e->arena, (size_t)t->n_runs * sizeof *t->runs);
    if (!t->runs)
        return tsr_no_memory(NULL);
    if (n->n_run > 0 || n->run_none)
        TSR_TRY(resolve_run(e, m, &t->runs[0], n->n_run, n->run));
    for (int i = 0; i < n->n_run_at; i++) {
        t->runs[i + 1].iteration = n->run_at[i].iteration;
        TSR_TRY(resolve_run(e, m, &t->runs[i + 1], n->run_at[i].n_run, n->run_at[i].run));
    }
    return TSR_OK;
}

static tsr_status build(struct tsr_engine *e, struct tsr_module *parent,
                        const struct tsr_tree_node *n, tsr_dtype dtype)
{
    if (n->ref) {
        struct tsr_module *same = tsr_module_find(e, n->ref);
        if (!same)
            return tsr_fail(TSR_EVALUE, "module '%s' refers to '%s', which does not exist (yet)",
                            n->name, n->ref);
        if (!tsr__module_alias(e, parent, n->name, same))
            return e->status;
        return TSR_OK;
    }
    struct tree *t = tsr_arena_alloc(&e->arena, sizeof *t);
    if (!t)
        return tsr_no_memory(NULL);
    t->n = *n;
    if (n->type == TSR_TREE_OP && !(t->kernel = tsr_arena_printf(&e->arena, "op:%s", n->name)))
        return tsr_no_memory(NULL);
    bool inner = n->type == TSR_TREE_SEQ || n->type == TSR_TREE_LIST;
    tsr_forward_fn forward = n->type == TSR_TREE_LIST ? NULL : inner ? seq_forward : leaf_forward;
    struct tsr_module *m =
        tsr__module_new(e, parent, parent ? n->name : "", type_name(n->type), forward, t);
    if (!m)
        return e->status;
    add_params(e, m, n, dtype);
    for (size_t i = 0; i < n->n_children && tsr__ok(e); i++)
        TSR_TRY(build(e, m, &n->children[i], dtype));
    TSR_TRY(resolve_runs(e, m, t, n));
    return e->status;
}

tsr_status tsr_model_tree(struct tsr_engine *e, const struct tsr_tree_config *config)
{
    if (e->tree.root)
        return tsr_fail(TSR_EVALUE, "the engine has a model already");
    TSR_TRY(tsr__check_tree(config, &e->model->per_sequence));
    e->model->int_input = config->tokens > 0;
    e->model->vocab = config->tokens;
    e->model->in_dim = config->in_dim;
    e->model->loss_mse = config->loss_mse;
    e->model->target_dim = config->loss_mse ? config->target_dim : 0;
    tsr_dtype dtype = config->param_dtype != TSR_DTYPE_NONE ? config->param_dtype : TSR_F32;
    return build(e, NULL, &config->root, dtype);
}
