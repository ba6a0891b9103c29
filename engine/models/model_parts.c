/* model_parts.c: modules that the model families have in common, checks of their sizes, and what is
 * said of a model once it is built.
 */
#include "engine/models/model_parts.h"

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
