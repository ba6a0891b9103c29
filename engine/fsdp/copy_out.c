/* copy_out.c: from what a gather brought to the unsharded parameters (section 3.5): the batched
 * split-copy, what comes after it of all-gather extensions (2.11), and the copy that is all there
 * is to do where one rank has everything.
 */
#include <math.h>

#include "engine/fsdp/collectives.h"

void tsr__ensure_unsharded(struct tsr_engine *e, struct tsr_group *g, struct tsr_fsdp_param *p)
{
    if (!p->unsharded) {
        tsr_dtype dtype = tsr__gather_dtype(p);
        uint64_t bytes = p->shard_numel * g->shard_size * tsr_dtype_bytes(dtype);
        struct tsr_storage *s =
            tsr__storage_empty(e, bytes, TSR_CAT_UNSHARDED_PARAM, TSR_SPACE_DEVICE);
        p->unsharded = tsr__tensor_view(e, s, dtype, p->param->n_dims, p->param->shape);
        if (s && p->unsharded)
            s->refs--; /* the tensor is its only holder */
        if (p->unsharded)
            p->unsharded->param = p->param;
    }
    if (p->unsharded)
        tsr__storage_back(e, p->unsharded->storage);
}

/* Replicate, or one rank: the "gather" is a copy (R106). */
static void copy_out_local(struct tsr_engine *e, struct tsr_group *g)
{
    struct tsr_storage *cast = NULL;
    for (size_t i = 0; i < g->n_params && tsr__ok(e); i++) {
        struct tsr_fsdp_param *p = g->params[i];
        struct tsr_storage *source = p->sharded, *previous = cast;
        cast = NULL;
        if (g->offload != TSR_OFFLOAD_NONE) {
            source = cast = tsr__h2d_input(e, p);
        } else if (p->param_dtype != TSR_DTYPE_NONE) {
            uint64_t bytes = p->shard_numel * tsr_dtype_bytes(p->param_dtype);
            source = cast = tsr__storage_new(e, bytes, TSR_CAT_ALL_GATHER_INPUT);
            tsr__operand_storage(e, p->sharded, TSR_READ, p->orig_dtype);
            tsr__operand_storage(e, cast, TSR_WRITE, p->param_dtype);
            tsr__emit_copy(e, p->param_dtype, p->shard_numel * tsr_dtype_bytes(p->orig_dtype),
                           bytes, "param_cast");
        }
        tsr__storage_release(e, &previous);
        tsr__ensure_unsharded(e, g, p);
        if (!p->unsharded || !tsr__ok(e))
            break;
        tsr__operand_storage(e, source, TSR_READ, tsr__gather_dtype(p));
        tsr__operand_storage(e, p->unsharded->storage, TSR_WRITE, tsr__gather_dtype(p));
        tsr__emit_copy(e, (tsr_dtype)p->unsharded->dtype, p->unsharded->storage->bytes,
                       p->unsharded->storage->bytes, "param_copy");
    }
    tsr__storage_release(e, &cast);
}

/* Table of pointers of the batched split-copy: bytes as PyTorch's kernel builds it (golden-memory,
 * operators.md section 6; 4224 = 132 multiprocessors x 32). */
static uint64_t split_table_bytes(const struct tsr_group *g, const struct tsr__gather *a)
{
    uint64_t blocks = 0, rows = 0;
    tsr_dtype dtype;
    for (size_t i = 0; i < g->n_params; i++)
        blocks += tsr_ceil_div(tsr__input_bytes(g, a, g->params[i], &dtype), 2048);
    uint64_t f = tsr_ceil_div(blocks * a->size, 4224);
    uint64_t k = tsr_min_u64((uint64_t)ceil(sqrt((double)f)), a->size);
    uint64_t per = k ? tsr_ceil_div(f, k) : 1;
    for (size_t i = 0; i < g->n_params; i++)
        rows += tsr_ceil_div(tsr__input_bytes(g, a, g->params[i], &dtype), 2048 * (per ? per : 1));
    return 8 * (4 * g->n_params + 1 + rows);
}

/* Raw outputs of an extension: one storage per gathered input; post_all_gather reads them. */
static void make_raw(struct tsr_engine *e, struct tsr_group *g, struct tsr_fsdp_param *p)
{
    struct tsr_gather_input in[4];
    int n = tsr__extension_inputs(p, in);
    for (int i = 0; i < n && tsr__ok(e); i++) {
        TSR_CHECK(!p->raw[i]); /* who reshards, or resets, has dropped it */
        p->raw[i] = tsr__storage_new(e, in[i].numel * g->shard_size * tsr_dtype_bytes(in[i].dtype),
                                     TSR_CAT_UNSHARDED_PARAM);
    }
}

static void post_all_gather(struct tsr_engine *e, struct tsr_fsdp_param *p)
{
    uint64_t read = 0;
    for (int i = 0; i < 4; i++) {
        tsr__operand_storage(e, p->raw[i], TSR_READ, TSR_DTYPE_NONE);
        read += p->raw[i] ? p->raw[i]->bytes : 0;
    }
    tsr__operand_storage(e, p->unsharded->storage, TSR_WRITE, tsr__gather_dtype(p));
    tsr__emit_copy(e, (tsr_dtype)p->unsharded->dtype, read, p->unsharded->storage->bytes,
                   p->extension->post);
    if (p->extension->free_after_post && e->config.version >= TSR_TORCH_2_15)
        tsr__drop_raw(e, p);
}

void tsr__drop_raw(struct tsr_engine *e, struct tsr_fsdp_param *p)
{
    for (int i = 0; i < 4; i++)
        tsr__storage_release(e, &p->raw[i]);
}

/* An output that is its pieces one behind the other, padding at the end included. */
static void split_output(struct tsr_engine *e, const struct tsr_storage *s, tsr_dtype dtype,
                         uint32_t size)
{
    uint64_t n = s ? s->bytes / tsr_dtype_bytes(dtype) : 0;
    if (n == 0)
        return;
    tsr__slot(e, 2);
    tsr__operand_storage(e, s, TSR_WRITE, dtype);
    tsr__push_arg(e, 1);
    tsr__push_arg(e, n);
    tsr__push_arg(e, 1);
    tsr__push_arg(e, n / size);
}

void tsr__cut_args(struct tsr_engine *e, const struct tsr_fsdp_param *p)
{
    uint64_t outer = 1, inner = 1;
    int d = p->shard_dim < 0 ? 0 : p->shard_dim, n_dims = p->param->n_dims;
    for (int i = 0; i < n_dims; i++)
        if (i != d)
            *(i < d ? &outer : &inner) *= p->param->shape[i];
    tsr__push_arg(e, outer);
    tsr__push_arg(e, n_dims ? p->param->shape[d] : 1);
    tsr__push_arg(e, inner);
    tsr__push_arg(e, n_dims ? p->padded[d] : 1);
}

static void emit_split_copy(struct tsr_engine *e, struct tsr_group *g, const struct tsr__gather *a,
                            struct tsr_storage *table)
{
    tsr__operand_storage(e, g->result.output, TSR_READ, a->dtype);
    tsr__operand_storage(e, table, TSR_WRITE, TSR_DTYPE_NONE);
    tsr__push_arg(e, a->size);
    uint64_t extra = 0;
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        tsr__slot(e, 1);
        tsr__operand_storage(e, p->temp, TSR_WRITE, TSR_DTYPE_NONE);
        for (int k = 0; k < 4 && p->extension; k++)
            split_output(e, p->raw[k], TSR_U8, a->size);
        if (!p->extension && (p->shard_dim <= 0 || a->from_slice)) {
            split_output(e, p->unsharded->storage, tsr__gather_dtype(p), a->size);
        } else if (!p->extension) {
            tsr__slot(e, 2);
            tsr__operand_storage(e, p->unsharded->storage, TSR_WRITE, tsr__gather_dtype(p));
            tsr__cut_args(e, p);
        }
        if (p->shard_dim > 0) /* a second pass: chunks along dim d */
            extra += p->unsharded->storage->bytes;
    }
    uint64_t bytes = a->bytes * a->size;
    struct tsr_work work = {.op = TSR_OP_SPLIT_COPY,
                            .dtype = (uint8_t)a->dtype,
                            .name = "split_with_sizes_copy",
                            .bytes_read = bytes + extra,
                            .bytes_written = bytes + extra};
    tsr__emit_op(e, &work);
}

void tsr__all_gather_copy_out(struct tsr_engine *e, struct tsr_group *g)
{
    if (g->result.local) {
        if (tsr__is_aliased(g))
            tsr__alias_unsharded(e, g);
        else
            copy_out_local(e, g);
        return;
    }
    struct tsr__gather a = tsr__plan_gather(e, g);
    tsr__wait_event(e, e->stream, g->result.event); /* W4 */
    if (g->result.async)
        tsr__wait_work(e, e->stream, g->result.event); /* W5 */
    if (g->result.direct)
        return;
    for (size_t i = 0; i < g->n_params && tsr__ok(e); i++) {
        struct tsr_fsdp_param *p = g->params[i];
        tsr__ensure_unsharded(e, g, p);
        if (p->extension)
            make_raw(e, g, p);
        if (p->shard_dim > 0 && p->unsharded)
            p->temp = tsr__storage_new(e, p->unsharded->storage->bytes, TSR_CAT_WORKSPACE);
    }
    struct tsr_storage *table =
        tsr__ok(e) ? tsr__storage_new(e, split_table_bytes(g, &a), TSR_CAT_WORKSPACE) : NULL;
    if (tsr__ok(e))
        emit_split_copy(e, g, &a, table);
    for (size_t i = 0; i < g->n_params && tsr__ok(e); i++)
        if (g->params[i]->extension)
            post_all_gather(e, g->params[i]);
    tsr__storage_release(e, &table);
    for (size_t i = 0; i < g->n_params; i++)
        tsr__storage_release(e, &g->params[i]->temp);
}
