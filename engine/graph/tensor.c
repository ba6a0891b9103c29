/* tensor.c: tensors and who holds them: variables of model code (tsr_retain / tsr_release), nodes
 * (what they saved), gradients on their way, and the engine of FSDP. A storage goes with its last
 * tensor.
 */
#include "engine/graph/engine.h"

uint64_t tsr__tensor_bytes(const struct tsr_tensor *t)
{
    return t->numel * tsr_dtype_bytes((tsr_dtype)t->dtype);
}

enum tsr_category tsr__result_category(const struct tsr_engine *e)
{
    return e->autograd.in_backward && e->autograd.recompute_depth == 0 ? TSR_CAT_TEMP
                                                                       : TSR_CAT_ACTIVATION;
}

static struct tsr_tensor *tensor_blank(struct tsr_engine *e, tsr_dtype dtype, int n_dims,
                                       const uint64_t *dims)
{
    struct tsr_tensor *t = e->autograd.free_tensors;
    if (t)
        e->autograd.free_tensors = t->next_free;
    else
        t = tsr_arena_alloc(&e->arena, sizeof *t);
    if (!t) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
        return NULL;
    }
    *t = (struct tsr_tensor){
        .refs = 1, .dtype = (uint8_t)dtype, .n_dims = (uint8_t)n_dims, .numel = 1};
    for (int i = 0; i < n_dims; i++) {
        t->dims[i] = dims[i];
        t->numel *= dims[i];
    }
    return t;
}

struct tsr_tensor *tsr__tensor_new(struct tsr_engine *e, tsr_dtype dtype, int n_dims,
                                   const uint64_t *dims, enum tsr_category category)
{
    if (!tsr__ok(e))
        return NULL;
    struct tsr_tensor *t = tensor_blank(e, dtype, n_dims, dims);
    if (t)
        t->storage = tsr__storage_new(e, tsr__tensor_bytes(t), category);
    if (t && !tsr__ok(e)) {
        tsr_release(e, t);
        return NULL;
    }
    return t;
}

struct tsr_tensor *tsr__tensor_like(struct tsr_engine *e, const struct tsr_tensor *t,
                                    tsr_dtype dtype, enum tsr_category category)
{
    return t ? tsr__tensor_new(e, dtype, t->n_dims, t->dims, category) : NULL;
}

struct tsr_tensor *tsr__tensor_view(struct tsr_engine *e, struct tsr_storage *s, tsr_dtype dtype,
                                    int n_dims, const uint64_t *dims)
{
    if (!tsr__ok(e) || !s)
        return NULL;
    struct tsr_tensor *t = tensor_blank(e, dtype, n_dims, dims);
    if (!t)
        return NULL;
    t->storage = s;
    t->is_view = true;
    tsr__storage_retain(s);
    return t;
}

struct tsr_tensor *tsr_retain(struct tsr_tensor *t)
{
    if (t)
        t->refs++;
    return t;
}

void tsr_release(struct tsr_engine *e, struct tsr_tensor *t)
{
    if (!t || --t->refs > 0)
        return;
    TSR_CHECK(t->refs == 0);
    TSR_CHECK(!t->grad); /* leaves have gradients, and stay */
    tsr__storage_release(e, &t->storage);
    struct tsr_node *fn = t->grad_fn, *accumulator = t->accumulator;
    t->next_free = e->autograd.free_tensors;
    e->autograd.free_tensors = t;
    if (accumulator) {
        accumulator->ptr = NULL;
        tsr__node_release(e, accumulator);
    }
    if (fn)
        tsr__node_release(e, fn);
}

uint64_t tsr_tensor_bytes(const struct tsr_tensor *t)
{
    return t ? tsr__tensor_bytes(t) : 0;
}
