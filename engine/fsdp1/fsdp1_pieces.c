/* fsdp1_pieces.c: a shard of a flat parameter as optimizer and clipping see it (FSDP1.md, F5).
 *
 * With use_orig_params they see each original parameter's part of the shard. Which parts a shard
 * has differs from rank to rank, but not their sum. So that ranks remain alike, a shard counts as
 * as many pieces of equal size as the rank with the most original parameters has: that rank's
 * kernels and states in number, and every rank's in bytes.
 */
#include "engine/fsdp1/fsdp1.h"

/* Original parameters of which the fullest rank has some. */
static uint64_t most_parts(const struct tsr_flat *f)
{
    uint64_t shard = f->shard->shard_numel, most = 1;
    size_t first = 0;
    for (uint64_t begin = 0; begin < f->param->numel; begin += shard) {
        size_t n = 0;
        while (first < f->n && f->begin[first] + f->params[first]->numel <= begin)
            first++;
        while (first + n < f->n && f->begin[first + n] < begin + shard)
            n++;
        most = tsr_max_u64(most, n);
    }
    return tsr_min_u64(most, shard);
}

static bool push(struct tsr_engine *e, struct tsr_param *p)
{
    struct tsr_fsdp1 *all = e->fsdp1;
    return TSR__ARENA_PUSH(e, all->step, all->n_step, all->cap_step, p);
}

static void make_piece(struct tsr_engine *e, struct tsr_flat *f, uint64_t begin, uint64_t numel)
{
    struct tsr_param *p = tsr_arena_alloc(&e->arena, sizeof *p);
    struct tsr_fsdp_param *s = tsr_arena_alloc(&e->arena, sizeof *s);
    if (!p || !s || !TSR_PUSH(e->tree.params, e->tree.n_params, e->tree.cap_params, p)) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory");
        return;
    }
    *p = *f->param;
    *s = *f->shard;
    p->id = (uint32_t)(e->tree.n_params - 1);
    p->shape[0] = p->numel = numel * f->all->shard_size;
    p->fsdp = s;
    s->param = p;
    s->sharded = s->grad = NULL;                        /* ranges of the flat parameter's ... */
    s->grad_offset = begin * tsr_dtype_bytes(p->dtype); /* ... from here */
    s->local[0] = s->padded[0] = s->local_numel = s->shard_numel = numel;
    push(e, p);
}

static void cut(struct tsr_engine *e, struct tsr_flat *f)
{
    uint64_t n = most_parts(f), numel = f->shard->shard_numel;
    for (uint64_t k = 0; k < n && tsr__ok(e); k++) {
        uint64_t begin = numel * k / n;
        make_piece(e, f, begin, numel * (k + 1) / n - begin);
    }
}

struct tsr_param *const *tsr__params_to_step(struct tsr_engine *e, size_t *n)
{
    struct tsr_param *const *params = tsr__params_in_order(e, n);
    struct tsr_fsdp1 *all = e->fsdp1;
    if (!all)
        return params;
    bool is_made = all->n_step > 0;
    for (size_t i = 0; !is_made && i < *n && tsr__ok(e); i++) {
        if (params[i]->flat)
            cut(e, params[i]->flat);
        else
            push(e, params[i]);
    }
    *n = all->n_step;
    return all->step;
}
