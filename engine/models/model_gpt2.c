/* model_gpt2.c: GPT-2 as a module tree, with Hugging Face's names and its [in, out] matrices. */
#include "engine/models/model_parts.h"
#include "engine/ops/ops_fused.h"

#include <math.h>
#include <stdio.h>

struct gpt2 {
    struct tsr_gpt2_config c;
    struct tsr_module *transformer, *wte, *wpe, *blocks, *ln_f, *head;
};
struct gpt2_attention {
    const struct gpt2 *m;
    double scale; /* of the scores */
    struct tsr_module *c_attn, *c_proj;
};
struct gpt2_mlp {
    const struct gpt2 *m;
    struct tsr_module *c_fc, *c_proj;
};
struct gpt2_block {
    struct tsr_module *ln_1, *attn, *ln_2, *mlp;
};

static void conv1d_forward(struct tsr_engine *e, struct tsr_module *m, void *impl,
                           struct tsr_tensor *in, struct tsr_tensor **out)
{
    (void)impl;
    *out = tsr_op_conv1d(e, in, m->params[0].param, m->params[1].param);
}

static void attention_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                              struct tsr_tensor *x, struct tsr_tensor **out)
{
    const struct gpt2_attention *a = impl;
    const struct tsr_gpt2_config *c = &a->m->c;
    struct tsr_attention_shape shape = {e->shape.batch,        e->shape.seq, c->n_head, c->n_head,
                                        c->n_embd / c->n_head, false,        a->scale};
    struct tsr_tensor *qkv = tsr_call(e, a->c_attn, x), *part[3];
    tsr_op_split3(e, qkv, c->n_embd, c->n_embd, c->impl, part);
    tsr_release(e, qkv);
    struct tsr_tensor *o = NULL, *joined = NULL;
    if (c->impl == TSR_IMPL_TRANSFORMERS) {
        joined = tsr__hf_attention(e, part[0], part[1], part[2], &shape);
    } else {
        o = tsr_op_attention(e, part[0], part[1], part[2], &shape, &self->aux_output);
        joined = tsr_op_contiguous(e, o);
    }
    *out = tsr_call(e, a->c_proj, joined);
    tsr_release(e, joined);
    tsr_release(e, o);
    for (int i = 0; i < 3; i++)
        tsr_release(e, part[i]);
}

static void mlp_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                        struct tsr_tensor *x, struct tsr_tensor **out)
{
    const struct gpt2_mlp *m = impl;
    (void)self;
    struct tsr_tensor *h = tsr_call(e, m->c_fc, x);
    struct tsr_tensor *g = tsr__activate(e, h, m->m->c.act, m->m->c.hand_act);
    tsr_release(e, h);
    *out = tsr_call(e, m->c_proj, g);
    tsr_release(e, g);
}

static void block_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                          struct tsr_tensor *x, struct tsr_tensor **out)
{
    const struct gpt2_block *b = impl;
    (void)self;
    if (tsr__is_fused(e)) {
        *out = tsr__fused_block(e, x, (struct tsr_module *[]){b->ln_1, b->attn, b->ln_2, b->mlp});
        return;
    }
    struct tsr_tensor *h = tsr__residual(e, x, b->ln_1, b->attn);
    *out = tsr__residual(e, h, b->ln_2, b->mlp);
    tsr_release(e, h);
}

/* GPT2Block of transformers: what attention returns lives until the block returns. */
static void hf_block_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                             struct tsr_tensor *x, struct tsr_tensor **out)
{
    const struct gpt2_block *b = impl;
    (void)self;
    struct tsr_tensor *normed = tsr_call(e, b->ln_1, x);
    struct tsr_tensor *attended = tsr_call(e, b->attn, normed);
    struct tsr_tensor *h = tsr_op_add(e, attended, x);
    tsr_release(e, normed);
    struct tsr_tensor *again = tsr_call(e, b->ln_2, h);
    struct tsr_tensor *fed = tsr_call(e, b->mlp, again);
    *out = tsr_op_add(e, h, fed);
    tsr_release(e, again);
    tsr_release(e, fed);
    tsr_release(e, h);
    tsr_release(e, attended);
}

/* GPT2Model: embeddings, position ids and mask live until it returns. */
static void hf_transformer_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                                   struct tsr_tensor *ids, struct tsr_tensor **out)
{
    const struct gpt2 *m = impl;
    (void)self;
    struct tsr_tensor *tokens = tsr_call(e, m->wte, ids);
    struct tsr_tensor *positions = tsr__hf_positions(e);
    struct tsr_tensor *places = tsr_call(e, m->wpe, positions);
    /* both have a batch dimension: with one sequence nothing is to be summed in backward */
    struct tsr_tensor *h =
        e->shape.batch == 1 ? tsr_op_add(e, tokens, places) : tsr_op_add_rows(e, tokens, places);
    e->autograd.args[TSR_ARG_MASK] = tsr__hf_mask(e, m->c.packed_mask);
    for (size_t i = 0; i < m->blocks->n_children; i++) {
        struct tsr_tensor *next = tsr_call(e, m->blocks->children[i], h);
        tsr_release(e, h);
        h = next;
    }
    struct tsr_tensor *normed = tsr_call(e, m->ln_f, h);
    *out = tsr_op_view(e, normed);
    tsr_release(e, normed);
    tsr_release(e, h);
    tsr_release(e, e->autograd.args[TSR_ARG_MASK]);
    e->autograd.args[TSR_ARG_MASK] = NULL;
    tsr_release(e, positions);
    tsr_release(e, places);
    tsr_release(e, tokens);
}

/* The variable x after the last block. */
static struct tsr_tensor *run_blocks(struct tsr_engine *e, const struct gpt2 *m,
                                     struct tsr_tensor *ids, struct tsr_tensor *positions)
{
    struct tsr_tensor *tokens = tsr_call(e, m->wte, ids);
    struct tsr_tensor *places = tsr_call(e, m->wpe, positions);
    struct tsr_tensor *h = tsr_op_add_rows(e, tokens, places);
    tsr_release(e, tokens);
    tsr_release(e, places);
    for (size_t i = 0; i < m->blocks->n_children; i++) {
        struct tsr_tensor *next = tsr_call(e, m->blocks->children[i], h);
        tsr_release(e, h);
        h = next;
    }
    return h;
}

static void transformer_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                                struct tsr_tensor *ids, struct tsr_tensor **out)
{
    const struct gpt2 *m = impl;
    (void)self;
    struct tsr_tensor *positions = tsr_op_arange(e, e->shape.seq);
    struct tsr_tensor *h = run_blocks(e, m, ids, positions);
    struct tsr_tensor *normed = tsr_call(e, m->ln_f, h);
    *out = tsr_op_view(e, normed); /* GPT2Model gives its result the shape of the input */
    tsr_release(e, normed);
    tsr_release(e, h);
    tsr_release(e, positions);
}

/* All in one function: its variables live until the logits are there. */
static void flat_forward(struct tsr_engine *e, const struct gpt2 *m, struct tsr_tensor *ids,
                         struct tsr_tensor **out)
{
    struct tsr_tensor *positions = tsr_op_arange(e, e->shape.seq);
    struct tsr_tensor *h = run_blocks(e, m, ids, positions);
    struct tsr_tensor *normed = tsr_call(e, m->ln_f, h);
    *out = tsr_call(e, m->head, normed);
    tsr_release(e, normed);
    tsr_release(e, h);
    tsr_release(e, positions);
}

static void lm_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                       struct tsr_tensor *ids, struct tsr_tensor **out)
{
    const struct gpt2 *m = impl;
    (void)self;
    if (!m->transformer) {
        flat_forward(e, m, ids, out);
        return;
    }
    struct tsr_tensor *h = tsr_call(e, m->transformer, ids);
    *out = tsr_call(e, m->head, h);
    tsr_release(e, h);
}

/* ---- building -------------------------------------------------------------------------------- */
static struct tsr_module *add_norm(struct tsr_engine *e, struct tsr_module *parent,
                                   const char *name, uint64_t width)
{
    return tsr__add_weighted(e, parent, name, "LayerNorm", tsr__layer_norm_forward, 1, &width,
                             width);
}

/* transformers stores these matrices as [in, out]. */
static struct tsr_module *add_product(struct tsr_engine *e, const struct gpt2 *m,
                                      struct tsr_module *parent, const char *name, uint64_t in,
                                      uint64_t out)
{
    if (m->c.names == TSR_NAMES_HF)
        return tsr__add_weighted(e, parent, name, "Conv1D", conv1d_forward, 2,
                                 (uint64_t[]){in, out}, out);
    return tsr__add_linear(e, parent, name, in, out, true);
}

/* GPT2Attention.scaling of transformers. */
static double attention_scale(const struct tsr_gpt2_config *c, uint64_t layer)
{
    uint64_t head_dim = c->n_embd / c->n_head;
    double scale = c->unscaled ? 1 : 1 / sqrt((double)head_dim);
    return c->scale_by_layer ? scale / (double)(layer + 1) : scale;
}

static void add_block(struct tsr_engine *e, struct gpt2 *m, uint64_t index)
{
    uint64_t d = m->c.n_embd;
    char name[32];
    snprintf(name, sizeof name, "%llu", (unsigned long long)index);
    struct gpt2_block *b = tsr_arena_alloc(&e->arena, sizeof *b);
    struct gpt2_attention *a = tsr_arena_alloc(&e->arena, sizeof *a);
    struct gpt2_mlp *f = tsr_arena_alloc(&e->arena, sizeof *f);
    struct tsr_module *self = b && a && f
                                  ? tsr__module_new(e, m->blocks, name, "Block",
                                                    m->c.impl ? hf_block_forward : block_forward, b)
                                  : NULL;
    if (!self)
        return;
    a->m = m;
    a->scale = attention_scale(&m->c, index);
    b->ln_1 = add_norm(e, self, "ln_1", d);
    b->attn = tsr__module_new(e, self, "attn", "Attention", attention_forward, a);
    if (!b->attn)
        return;
    a->c_attn = add_product(e, m, b->attn, "c_attn", d, 3 * d);
    a->c_proj = add_product(e, m, b->attn, "c_proj", d, d);
    b->ln_2 = add_norm(e, self, "ln_2", d);
    b->mlp = tsr__module_new(e, self, "mlp", "MLP", mlp_forward, f);
    if (!b->mlp)
        return;
    f->m = m;
    f->c_fc = add_product(e, m, b->mlp, "c_fc", d, m->c.n_inner);
    f->c_proj = add_product(e, m, b->mlp, "c_proj", m->c.n_inner, d);
}

static tsr_status check(const struct tsr_engine *e, const struct tsr_gpt2_config *c)
{
    const uint64_t sizes[] = {c->n_embd, c->n_layer, c->n_head, c->n_positions, c->vocab_size};
    TSR_TRY(tsr__check_model(e, sizes, sizeof sizes / sizeof *sizes, c->n_layer));
    TSR_TRY(tsr__check_heads(c->n_embd, c->n_head));
    return tsr__check_dialect(e, c->impl);
}

tsr_status tsr_model_gpt2(struct tsr_engine *e, const struct tsr_gpt2_config *config)
{
    TSR_TRY(check(e, config));
    struct gpt2 *m = tsr_arena_alloc(&e->arena, sizeof *m);
    if (!m)
        return tsr_no_memory(NULL);
    m->c = *config;
    if (config->impl == TSR_IMPL_TRANSFORMERS) {
        m->c.names = TSR_NAMES_HF;
        m->c.hand_act = true;
    }
    config = &m->c;
    uint64_t d = config->n_embd;
    if (m->c.n_inner == 0)
        m->c.n_inner = 4 * d;
    if (m->c.act == TSR_ACT_OF_FAMILY)
        m->c.act = TSR_ACT_GELU_NEW;
    struct tsr_module *root = tsr__module_new(e, NULL, "", "GPT2LMHeadModel", lm_forward, m);
    struct tsr_module *inner = root;
    if (root && config->names == TSR_NAMES_HF)
        inner = m->transformer =
            tsr__module_new(e, root, "transformer", "GPT2Model",
                            m->c.impl ? hf_transformer_forward : transformer_forward, m);
    if (!inner)
        return e->status;
    m->wte = tsr__add_weighted(e, inner, "wte", "Embedding", tsr__embedding_forward, 2,
                               (uint64_t[]){config->vocab_size, d}, 0);
    m->wpe = tsr__add_weighted(e, inner, "wpe", "Embedding", tsr__embedding_forward, 2,
                               (uint64_t[]){config->n_positions, d}, 0);
    m->blocks = tsr__module_new(e, inner, "h", "ModuleList", NULL, NULL);
    for (uint64_t i = 0; m->blocks && i < config->n_layer && tsr__ok(e); i++)
        add_block(e, m, i);
    m->ln_f = add_norm(e, inner, "ln_f", d);
    m->head = tsr__add_head(e, root, "lm_head", m->wte,
                            config->untied ? (uint64_t[]){config->vocab_size, d} : NULL);
    tsr__is_language_model(e, config->vocab_size, config->norm_eps, config->init_std);
    return e->status;
}
