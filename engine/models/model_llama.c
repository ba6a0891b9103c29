/* model_llama.c: Llama, Mistral, Qwen2 and Qwen3 (dense) as module trees. Names are those of
 * Hugging Face; the order of operations is that of the plain implementation that the recorded
 * memory data describes (golden-memory/operators.md, section 2): variables decide lifetimes.
 */
#include "engine/models/model_parts.h"
#include "engine/ops/ops_fused.h"

#include <stdio.h>

struct llama {
    struct tsr_llama_config c;
    struct tsr_module *embed, *layers, *norm, *head,
        *model; /* model NULL: its parts lie in the root */
};

/* Module names; `order` is that in which a feed-forward defines gate (0), up (1) and down (2). */
static const struct names {
    const char *model, *embed, *norm, *head, *attention, *q, *k, *v, *o, *mlp, *part[3];
    const char *norm1, *norm2;
    int order[3];
} names_of[] = {[TSR_NAMES_HF] = {"model",
                                  "embed_tokens",
                                  "norm",
                                  "lm_head",
                                  "self_attn",
                                  "q_proj",
                                  "k_proj",
                                  "v_proj",
                                  "o_proj",
                                  "mlp",
                                  {"gate_proj", "up_proj", "down_proj"},
                                  "input_layernorm",
                                  "post_attention_layernorm",
                                  {0, 1, 2}},
                [TSR_NAMES_PLAIN] = {NULL,
                                     "tok_embeddings",
                                     "norm",
                                     "output",
                                     "attention",
                                     "wq",
                                     "wk",
                                     "wv",
                                     "wo",
                                     "feed_forward",
                                     {"w1", "w3", "w2"},
                                     "attention_norm",
                                     "ffn_norm",
                                     {0, 2, 1}}};

struct llama_attention {
    const struct llama *m;
    struct tsr_module *q, *k, *v, *o, *q_norm, *k_norm;
};
struct llama_mlp {
    const struct llama *m;
    struct tsr_module *gate, *up, *down;
};
struct llama_layer {
    struct tsr_module *attention, *mlp, *norm1, *norm2;
};

static void norm_forward(struct tsr_engine *e, struct tsr_module *m, void *impl,
                         struct tsr_tensor *in, struct tsr_tensor **out)
{
    const struct llama *l = impl;
    if (e->ops->add_norm.on)
        *out = tsr__op_add_norm(e, in, m->params[0].param, NULL);
    else
        *out = l->c.hand_norm ? tsr_op_hand_rms_norm(e, in, m->params[0].param, l->c.impl)
                              : tsr_op_rms_norm(e, in, m->params[0].param);
}

/* x := f(x) for a variable that is assigned again. */
static void assign(struct tsr_engine *e, struct tsr_tensor **variable, struct tsr_tensor *value)
{
    tsr_release(e, *variable);
    *variable = value;
}

/* x := rotary(x), in the wider of the dtypes of x and of the tables, if these have one. */
static void rotate(struct tsr_engine *e, struct tsr_tensor **x,
                   const struct tsr_attention_shape *shape)
{
    const struct tsr_tensor *table = e->autograd.args[TSR_ARG_COS];
    if (!*x)
        return;
    tsr_dtype dtype = tsr__promote((*x)->dtype, table ? table->dtype : (*x)->dtype);
    assign(e, x, tsr__op_rotary_as(e, *x, shape->seq, shape->head_dim, dtype));
}

static void attention_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                              struct tsr_tensor *x, struct tsr_tensor **out)
{
    const struct llama_attention *a = impl;
    const struct tsr_llama_config *c = &a->m->c;
    struct tsr_attention_shape shape = {e->shape.batch, e->shape.seq, 0, 0, c->head_dim, false, 0};
    x = tsr__tp_enter(e, x);
    struct tsr_tensor *q = tsr_call(e, a->q, x);
    if (a->q_norm)
        assign(e, &q, tsr_call(e, a->q_norm, q));
    struct tsr_tensor *k = tsr_call(e, a->k, x);
    if (a->k_norm)
        assign(e, &k, tsr_call(e, a->k_norm, k));
    struct tsr_tensor *v = tsr_call(e, a->v, x);
    tsr_release(e, x);
    if (q && k) { /* this rank's heads */
        shape.heads = q->dims[1] / c->head_dim;
        shape.kv_heads = k->dims[1] / c->head_dim;
    }
    if (tsr__is_fused(e)) {
        tsr__op_rotate(e, &q, &k, shape.seq, shape.head_dim);
    } else {
        rotate(e, &q, &shape);
        rotate(e, &k, &shape);
    }
    assign(e, &v, tsr_op_view(e, v));
    if (e->config.gqa_repeat && c->n_kv_heads < c->n_heads) {
        assign(e, &k, tsr_op_repeat_heads(e, k, c->n_heads / c->n_kv_heads, c->head_dim));
        assign(e, &v, tsr_op_repeat_heads(e, v, c->n_heads / c->n_kv_heads, c->head_dim));
    }
    struct tsr_tensor *o = tsr_op_attention(e, q, k, v, &shape, &self->aux_output);
    struct tsr_tensor *joined = tsr_op_contiguous(e, o);
    struct tsr_tensor *y = tsr_call(e, a->o, joined);
    tsr_release(e, joined);
    *out = tsr__tp_leave(e, y);
    tsr_release(e, y);
    tsr_release(e, o);
    tsr_release(e, q);
    tsr_release(e, k);
    tsr_release(e, v);
}

/* LlamaAttention of transformers. */
static void hf_attention_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                                 struct tsr_tensor *x, struct tsr_tensor **out)
{
    const struct llama_attention *a = impl;
    const struct tsr_llama_config *c = &a->m->c;
    struct tsr_attention_shape s = {e->shape.batch, e->shape.seq, c->n_heads, c->n_kv_heads,
                                    c->head_dim,    false,        0};
    struct tsr_module *projection[3] = {a->q, a->k, a->v};
    struct tsr_tensor *part[3] = {NULL};
    (void)self;
    for (int i = 0; i < 3; i++) {
        part[i] = tsr_call(e, projection[i], x);
        assign(e, &part[i], tsr_op_view(e, part[i])); /* as heads */
        struct tsr_module *norm = i == 0 ? a->q_norm : i == 1 ? a->k_norm : NULL;
        if (norm)
            assign(e, &part[i], tsr_call(e, norm, part[i]));
    }
    struct tsr_tensor *q = tsr__hf_rotary(e, part[0], s.heads);
    struct tsr_tensor *k = tsr__hf_rotary(e, part[1], s.kv_heads);
    tsr_release(e, part[0]);
    tsr_release(e, part[1]);
    struct tsr_tensor *o = tsr__hf_attention(e, q, k, part[2], &s);
    *out = tsr_call(e, a->o, o);
    tsr_release(e, o);
    tsr_release(e, q);
    tsr_release(e, k);
    tsr_release(e, part[2]);
}

static void mlp_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                        struct tsr_tensor *x, struct tsr_tensor **out)
{
    const struct llama_mlp *m = impl;
    (void)self;
    x = tsr__tp_enter(e, x);
    struct tsr_tensor *gate = tsr_call(e, m->gate, x);
    if (!tsr__is_fused(e))
        assign(e, &gate,
               tsr__activate(e, gate, m->m->c.act, m->m->c.impl == TSR_IMPL_TRANSFORMERS));
    struct tsr_tensor *up = tsr_call(e, m->up, x);
    tsr_release(e, x);
    struct tsr_tensor *product =
        tsr__is_fused(e) ? tsr__op_swiglu(e, gate, up) : tsr_op_mul(e, gate, up);
    tsr_release(e, gate);
    tsr_release(e, up);
    struct tsr_tensor *y = tsr_call(e, m->down, product);
    *out = tsr__tp_leave(e, y);
    tsr_release(e, y);
    tsr_release(e, product);
}

static void layer_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                          struct tsr_tensor *x, struct tsr_tensor **out)
{
    const struct llama_layer *l = impl;
    (void)self;
    if (tsr__is_fused(e)) {
        *out = tsr__fused_block(e, x,
                                (struct tsr_module *[]){l->norm1, l->attention, l->norm2, l->mlp});
        return;
    }
    struct tsr_tensor *h = tsr__residual(e, x, l->norm1, l->attention);
    *out = tsr__residual(e, h, l->norm2, l->mlp);
    tsr_release(e, h);
}

/* LlamaDecoderLayer: the variable of the hidden states is assigned again. */
static void hf_layer_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                             struct tsr_tensor *x, struct tsr_tensor **out)
{
    const struct llama_layer *l = impl;
    struct tsr_module *part[2][2] = {{l->norm1, l->attention}, {l->norm2, l->mlp}};
    struct tsr_tensor *residual = tsr_retain(x);
    (void)self;
    for (int i = 0; i < 2; i++) {
        struct tsr_tensor *h = tsr_call(e, part[i][0], residual);
        assign(e, &h, tsr_call(e, part[i][1], h));
        struct tsr_tensor *sum = tsr_op_add(e, residual, h);
        tsr_release(e, h);
        assign(e, &residual, sum);
    }
    *out = residual;
}

/* LlamaModel: embeddings, position ids, mask and tables live until it returns. */
static void hf_model_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                             struct tsr_tensor *ids, struct tsr_tensor **out)
{
    const struct llama *m = impl;
    (void)self;
    struct tsr_tensor *embeddings = tsr_call(e, m->embed, ids);
    e->autograd.args[TSR_ARG_POSITIONS] = tsr__hf_positions(e);
    e->autograd.args[TSR_ARG_MASK] = tsr__hf_mask(e, m->c.packed_mask);
    if (embeddings)
        tsr__hf_rotary_tables(e, m->c.head_dim, (tsr_dtype)embeddings->dtype,
                              &e->autograd.args[TSR_ARG_COS], &e->autograd.args[TSR_ARG_SIN]);
    struct tsr_tensor *h = tsr_retain(embeddings);
    for (size_t i = 0; i < m->layers->n_children; i++)
        assign(e, &h, tsr_call(e, m->layers->children[i], h));
    *out = tsr_call(e, m->norm, h);
    tsr_release(e, h);
    for (int i = 0; i < TSR_N_ARGS; i++)
        assign(e, &e->autograd.args[i], NULL);
    tsr_release(e, embeddings);
}

/* The variable h after the last layer. */
static struct tsr_tensor *run_layers(struct tsr_engine *e, const struct llama *m,
                                     struct tsr_tensor *ids)
{
    struct tsr_tensor *h = tsr_call(e, m->embed, ids);
    const uint64_t none = 0;
    assign(e, &h, tsr__tp_leave(e, h));
    if (h && m->c.table_dtypes) /* a table without elements: its dtype */
        e->autograd.args[TSR_ARG_COS] =
            tsr__tensor_new(e, (tsr_dtype)h->dtype, 1, &none, tsr__result_category(e));
    for (size_t i = 0; i < m->layers->n_children; i++)
        assign(e, &h, tsr_call(e, m->layers->children[i], h));
    assign(e, &e->autograd.args[TSR_ARG_COS], NULL);
    return h;
}

static void model_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                          struct tsr_tensor *ids, struct tsr_tensor **out)
{
    const struct llama *m = impl;
    (void)self;
    struct tsr_tensor *h = run_layers(e, m, ids);
    *out = tsr_call(e, m->norm, h);
    tsr_release(e, h);
}

static void causal_lm_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                              struct tsr_tensor *ids, struct tsr_tensor **out)
{
    const struct llama *m = impl;
    (void)self;
    struct tsr_tensor *last = m->model ? NULL : run_layers(e, m, ids);
    struct tsr_tensor *h = m->model ? tsr_call(e, m->model, ids) : tsr_call(e, m->norm, last);
    assign(e, &h, tsr__tp_enter(e, h));
    *out = tsr_call(e, m->head, h);
    tsr_release(e, h);
    tsr_release(e, last); /* a variable of the same function */
}

/* ---- building -------------------------------------------------------------------------------- */
static struct tsr_module *add_norm(struct tsr_engine *e, struct llama *l, struct tsr_module *parent,
                                   const char *name, uint64_t dim)
{
    struct tsr_module *m = tsr__module_new(e, parent, name, "RMSNorm", norm_forward, l);
    if (m)
        tsr__param_new(e, m, "weight", 1, &dim, TSR_F32);
    return m;
}

static struct tsr_module *add_attention(struct tsr_engine *e, struct llama *m,
                                        struct tsr_module *parent)
{
    const struct tsr_llama_config *c = &m->c;
    const struct names *n = &names_of[c->names];
    struct llama_attention *a = tsr_arena_alloc(&e->arena, sizeof *a);
    struct tsr_module *self =
        a ? tsr__module_new(e, parent, n->attention, "Attention",
                            c->impl ? hf_attention_forward : attention_forward, a)
          : NULL;
    if (!self)
        return NULL;
    uint64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    self->has_args = true;
    a->m = m;
    a->q = tsr__add_linear(e, self, n->q, c->hidden_size, q, c->qkv_bias);
    a->k = tsr__add_linear(e, self, n->k, c->hidden_size, kv, c->qkv_bias);
    a->v = tsr__add_linear(e, self, n->v, c->hidden_size, kv, c->qkv_bias);
    a->o = tsr__add_linear(e, self, n->o, q, c->hidden_size, c->o_bias);
    if (c->qk_norm) {
        a->q_norm = add_norm(e, m, self, "q_norm", c->head_dim);
        a->k_norm = add_norm(e, m, self, "k_norm", c->head_dim);
    }
    return self;
}

static struct tsr_module *add_mlp(struct tsr_engine *e, struct llama *m, struct tsr_module *parent)
{
    const struct tsr_llama_config *c = &m->c;
    const struct names *n = &names_of[c->names];
    struct llama_mlp *f = tsr_arena_alloc(&e->arena, sizeof *f);
    struct tsr_module *self = f ? tsr__module_new(e, parent, n->mlp, "MLP", mlp_forward, f) : NULL;
    if (!self)
        return NULL;
    f->m = m;
    struct tsr_module **parts[3] = {&f->gate, &f->up, &f->down};
    for (int i = 0; i < 3; i++) {
        int part = n->order[i];
        uint64_t in = part == 2 ? c->intermediate_size : c->hidden_size;
        uint64_t out = part == 2 ? c->hidden_size : c->intermediate_size;
        *parts[part] = tsr__add_linear(e, self, n->part[part], in, out, c->mlp_bias);
    }
    return self;
}

static void add_layer(struct tsr_engine *e, struct llama *m, uint64_t index)
{
    const struct names *n = &names_of[m->c.names];
    char name[32];
    snprintf(name, sizeof name, "%llu", (unsigned long long)index);
    struct llama_layer *l = tsr_arena_alloc(&e->arena, sizeof *l);
    struct tsr_module *layer = l ? tsr__module_new(e, m->layers, name, "DecoderLayer",
                                                   m->c.impl ? hf_layer_forward : layer_forward, l)
                                 : NULL;
    if (!layer)
        return;
    layer->has_args = true;
    l->attention = add_attention(e, m, layer);
    l->mlp = add_mlp(e, m, layer);
    l->norm1 = add_norm(e, m, layer, n->norm1, m->c.hidden_size);
    l->norm2 = add_norm(e, m, layer, n->norm2, m->c.hidden_size);
}

static tsr_status check(const struct tsr_engine *e, const struct tsr_llama_config *c)
{
    const uint64_t sizes[] = {c->hidden_size, c->intermediate_size, c->n_layers,  c->n_heads,
                              c->n_kv_heads,  c->head_dim,          c->vocab_size};
    TSR_TRY(tsr__check_model(e, sizes, sizeof sizes / sizeof *sizes, c->n_layers));
    if (c->n_heads % c->n_kv_heads != 0)
        return tsr_fail(TSR_EVALUE, "%llu attention heads cannot share %llu key/value heads",
                        (unsigned long long)c->n_heads, (unsigned long long)c->n_kv_heads);
    if (tsr__is_fused(e) && c->act != TSR_ACT_OF_FAMILY && c->act != TSR_ACT_SILU)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "the fused kernels of a feed-forward with a gate have silu only");
    return tsr__check_dialect(e, c->impl);
}

tsr_status tsr_model_llama(struct tsr_engine *e, const struct tsr_llama_config *config)
{
    TSR_TRY(check(e, config));
    struct llama *m = tsr_arena_alloc(&e->arena, sizeof *m);
    if (!m)
        return tsr_no_memory(NULL);
    m->c = *config;
    if (config->impl == TSR_IMPL_TRANSFORMERS) {
        m->c.names = TSR_NAMES_HF;
        m->c.hand_norm = true;
    }
    config = &m->c;
    const struct names *n = &names_of[config->names];
    uint64_t table[2] = {config->vocab_size, config->hidden_size};
    struct tsr_module *root = tsr__module_new(e, NULL, "", "CausalLM", causal_lm_forward, m);
    struct tsr_module *inner = root;
    if (root && n->model)
        inner = m->model = tsr__module_new(e, root, n->model, "Model",
                                           m->c.impl ? hf_model_forward : model_forward, m);
    m->embed = inner ? tsr__add_weighted(e, inner, n->embed, "Embedding", tsr__embedding_forward, 2,
                                         table, 0)
                     : NULL;
    m->layers = m->embed && tsr__ok(e)
                    ? tsr__module_new(e, inner, "layers", "ModuleList", NULL, NULL)
                    : NULL;
    for (uint64_t i = 0; m->layers && i < config->n_layers && tsr__ok(e); i++)
        add_layer(e, m, i);
    if (!m->layers || !tsr__ok(e))
        return e->status;
    m->norm = add_norm(e, m, inner, n->norm, config->hidden_size);
    if (config->impl == TSR_IMPL_TRANSFORMERS) {
        struct tsr_module *rotary =
            tsr__module_new(e, inner, "rotary_emb", "RotaryEmbedding", NULL, NULL);
        for (int i = 0; i < 2 && rotary; i++)
            (void)tsr__buffer_add(e, rotary, TSR_F32,
                                  2 * config->head_dim); /* inverse frequencies, original ones */
    }
    m->head = tsr__add_head(e, root, n->head, m->embed, config->tie_embeddings ? NULL : table);
    tsr__is_language_model(e, config->vocab_size, config->norm_eps, config->init_std);
    e->model->llama = &m->c;
    e->model->rope = config->rope;
    if (config->impl == TSR_IMPL_PLAIN)
        (void)tsr__buffer_add(e, root, TSR_F32,
                              4 * config->max_positions * config->head_dim); /* complex angles */
    return e->status;
}
