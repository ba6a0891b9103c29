/* model_mpt.c: MPT of MosaicML's llm-foundry as a module tree, with its names: learned positions,
 * biases, LayerNorm in the dtype that computes (low_precision_layernorm), GELU, tied head. What a
 * forward allocates and how long its variables live is that of llm-foundry's modeling_mpt.py
 * without an attention mask; dropout of 0 is no operation.
 */
#include "engine/models/model_parts.h"
#include "engine/ops/ops_fused.h"

#include <stdio.h>

struct mpt {
    struct tsr_mpt_config c;
    struct tsr_module *transformer, *wte, *wpe, *blocks, *norm_f, *head;
};
struct mpt_attention {
    const struct mpt *m;
    struct tsr_module *wqkv, *out_proj;
};
struct mpt_ffn {
    struct tsr_module *up_proj, *down_proj;
};
struct mpt_block {
    struct tsr_module *norm_1, *attn, *norm_2, *ffn;
};

/* ---- forward --------------------------------------------------------------------------------- */

/* Each of q, k and v finds the tokens anew. All of it lives until attention has returned. */
static struct tsr_tensor *unpadded_attention(struct tsr_engine *e, struct tsr_tensor *const qkv[3],
                                             const struct tsr_attention_shape *shape)
{
    struct tsr_tensor *mask = tsr__op_padding_mask(e), *dense[3];
    struct tsr_unpadding u[3];
    for (int i = 0; i < 3; i++) {
        u[i] = tsr__find_unpadding(e, mask);
        dense[i] = tsr__op_unpad(e, qkv[i], &u[i]);
    }
    struct tsr_tensor *o = tsr_op_attention(e, dense[0], dense[1], dense[2], shape, NULL);
    struct tsr_tensor *padded = tsr__op_pad(e, o, &u[0]);
    tsr_release(e, o);
    for (int i = 0; i < 3; i++) {
        tsr_release(e, dense[i]);
        tsr__unpadding_release(e, &u[i]);
    }
    tsr_release(e, mask);
    return padded;
}

static struct tsr_tensor *plain_attention(struct tsr_engine *e, struct tsr_tensor *const qkv[3],
                                          const struct tsr_attention_shape *shape,
                                          struct tsr_tensor **weights)
{
    struct tsr_tensor *o = tsr_op_attention(e, qkv[0], qkv[1], qkv[2], shape, weights);
    struct tsr_tensor *context = tsr_op_contiguous(e, o);
    tsr_release(e, o);
    return context;
}

static void attention_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                              struct tsr_tensor *x, struct tsr_tensor **out)
{
    const struct mpt_attention *a = impl;
    const struct tsr_mpt_config *c = &a->m->c;
    struct tsr_attention_shape shape = {
        e->shape.batch, e->shape.seq, c->n_heads, c->n_heads, c->d_model / c->n_heads, false, 0};
    struct tsr_tensor *qkv = tsr_call(e, a->wqkv, x), *part[3];
    tsr_op_split3(e, qkv, c->d_model, c->d_model, false, part);
    struct tsr_tensor *context = c->unpad ? unpadded_attention(e, part, &shape)
                                          : plain_attention(e, part, &shape, &self->aux_output);
    *out = tsr_call(e, a->out_proj, context);
    tsr_release(e, qkv);
    for (int i = 0; i < 3; i++)
        tsr_release(e, part[i]);
    tsr_release(e, context);
}

static void ffn_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                        struct tsr_tensor *x, struct tsr_tensor **out)
{
    const struct mpt_ffn *f = impl;
    (void)self;
    struct tsr_tensor *h = tsr_call(e, f->up_proj, x);
    struct tsr_tensor *g = tsr_op_gelu_erf(e, h);
    tsr_release(e, h);
    *out = tsr_call(e, f->down_proj, g);
    tsr_release(e, g);
}

/* Its variables a, b, m and n live until it returns. */
static void block_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                          struct tsr_tensor *x, struct tsr_tensor **out)
{
    const struct mpt_block *k = impl;
    (void)self;
    if (tsr__is_fused(e)) {
        *out =
            tsr__fused_block(e, x, (struct tsr_module *[]){k->norm_1, k->attn, k->norm_2, k->ffn});
        return;
    }
    struct tsr_tensor *a = tsr_call(e, k->norm_1, x);
    struct tsr_tensor *b = tsr_call(e, k->attn, a);
    struct tsr_tensor *sum = tsr_op_add(e, x, b);
    struct tsr_tensor *m = tsr_call(e, k->norm_2, sum);
    struct tsr_tensor *n = tsr_call(e, k->ffn, m);
    *out = tsr_op_add(e, sum, n);
    tsr_release(e, sum);
    tsr_release(e, a);
    tsr_release(e, b);
    tsr_release(e, m);
    tsr_release(e, n);
}

/* Tokens and positions. Both have a batch dimension: with one sequence backward sums nothing. */
static struct tsr_tensor *embed(struct tsr_engine *e, const struct mpt *m, struct tsr_tensor *ids,
                                struct tsr_tensor *positions)
{
    struct tsr_tensor *tokens = tsr_call(e, m->wte, ids);
    struct tsr_tensor *places = tsr_call(e, m->wpe, positions);
    struct tsr_tensor *x =
        e->shape.batch == 1 ? tsr_op_add(e, tokens, places) : tsr_op_add_rows(e, tokens, places);
    tsr_release(e, places);
    tsr_release(e, tokens);
    return x;
}

static void transformer_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                                struct tsr_tensor *ids, struct tsr_tensor **out)
{
    const struct mpt *m = impl;
    (void)self;
    struct tsr_tensor *positions = tsr_op_arange(e, e->shape.seq);
    struct tsr_tensor *x = embed(e, m, ids, positions);
    for (size_t i = 0; i < m->blocks->n_children; i++) {
        struct tsr_tensor *next = tsr_call(e, m->blocks->children[i], x);
        tsr_release(e, x);
        x = next;
    }
    *out = tsr_call(e, m->norm_f, x);
    tsr_release(e, x);
    tsr_release(e, positions);
}

static void lm_forward(struct tsr_engine *e, struct tsr_module *self, void *impl,
                       struct tsr_tensor *ids, struct tsr_tensor **out)
{
    const struct mpt *m = impl;
    (void)self;
    struct tsr_tensor *h = tsr_call(e, m->transformer, ids);
    *out = tsr_call(e, m->head, h);
    tsr_release(e, h);
}

/* ---- building -------------------------------------------------------------------------------- */

static struct tsr_module *add_norm(struct tsr_engine *e, struct tsr_module *parent,
                                   const char *name, uint64_t width)
{
    return tsr__add_weighted(e, parent, name, "LPLayerNorm", tsr__layer_norm_forward, 1, &width,
                             width);
}

static void add_block(struct tsr_engine *e, struct mpt *m, uint64_t index)
{
    uint64_t d = m->c.d_model;
    char name[32];
    snprintf(name, sizeof name, "%llu", (unsigned long long)index);
    struct mpt_block *b = tsr_arena_alloc(&e->arena, sizeof *b);
    struct mpt_attention *a = tsr_arena_alloc(&e->arena, sizeof *a);
    struct mpt_ffn *f = tsr_arena_alloc(&e->arena, sizeof *f);
    struct tsr_module *self =
        b && a && f ? tsr__module_new(e, m->blocks, name, "MPTBlock", block_forward, b) : NULL;
    if (!self)
        return;
    b->norm_1 = add_norm(e, self, "norm_1", d);
    b->attn = tsr__module_new(e, self, "attn", "MultiheadAttention", attention_forward, a);
    if (!b->attn)
        return;
    a->m = m;
    a->wqkv = tsr__add_linear(e, b->attn, "Wqkv", d, 3 * d, true);
    a->out_proj = tsr__add_linear(e, b->attn, "out_proj", d, d, true);
    b->norm_2 = add_norm(e, self, "norm_2", d);
    b->ffn = tsr__module_new(e, self, "ffn", "MPTMLP", ffn_forward, f);
    if (!b->ffn)
        return;
    f->up_proj = tsr__add_linear(e, b->ffn, "up_proj", d, m->c.ffn_width, true);
    f->down_proj = tsr__add_linear(e, b->ffn, "down_proj", m->c.ffn_width, d, true);
}

static tsr_status check(const struct tsr_engine *e, const struct tsr_mpt_config *c)
{
    const uint64_t sizes[] = {c->d_model, c->n_layers, c->n_heads, c->max_seq_len, c->vocab_size};
    TSR_TRY(tsr__check_model(e, sizes, sizeof sizes / sizeof *sizes, c->n_layers));
    return tsr__check_heads(c->d_model, c->n_heads);
}

/* The order in which llm-foundry registers its modules. */
static void add_transformer(struct tsr_engine *e, struct mpt *m, struct tsr_module *root)
{
    uint64_t d = m->c.d_model;
    struct tsr_module *inner = m->transformer =
        tsr__module_new(e, root, "transformer", "MPTModel", transformer_forward, m);
    if (!inner)
        return;
    m->wte = tsr__add_weighted(e, inner, "wte", "SharedEmbedding", tsr__embedding_forward, 2,
                               (uint64_t[]){m->c.vocab_size, d}, 0);
    m->wpe = tsr__add_weighted(e, inner, "wpe", "Embedding", tsr__embedding_forward, 2,
                               (uint64_t[]){m->c.max_seq_len, d}, 0);
    m->blocks = tsr__module_new(e, inner, "blocks", "ModuleList", NULL, NULL);
    for (uint64_t i = 0; m->blocks && i < m->c.n_layers && tsr__ok(e); i++)
        add_block(e, m, i);
    m->norm_f = add_norm(e, inner, "norm_f", d);
}

tsr_status tsr_model_mpt(struct tsr_engine *e, const struct tsr_mpt_config *config)
{
    TSR_TRY(check(e, config));
    struct mpt *m = tsr_arena_alloc(&e->arena, sizeof *m);
    if (!m)
        return tsr_no_memory(NULL);
    m->c = *config;
    if (m->c.ffn_width == 0)
        m->c.ffn_width = 4 * m->c.d_model;
    struct tsr_module *root = tsr__module_new(e, NULL, "", "MPTForCausalLM", lm_forward, m);
    if (root)
        add_transformer(e, m, root);
    m->head =
        tsr__add_head(e, root, "lm_head", m->wte,
                      config->untied ? (uint64_t[]){config->vocab_size, config->d_model} : NULL);
    tsr__is_language_model(e, config->vocab_size, config->norm_eps, config->init_std);
    return e->status;
}
