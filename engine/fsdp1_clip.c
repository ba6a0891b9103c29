/* fsdp1_clip.c: FullyShardedDataParallel.clip_grad_norm_ (FSDP1.md, F29): a norm for each original
 * parameter of the shard, one number reduced over the shard group, a product for each.
 *
 * Which original parameters a shard holds differs by rank. So that ranks remain alike, a shard
 * counts as so many equal pieces as the rank with the most original parameters holds.
 */
#include "fsdp1.h"

static struct tsr_storage *temp(struct tsr_engine *e, uint64_t n)
{
    return tsr__storage_new(e, 4 * n, TSR_CAT_TEMP);
}

/* Original parameters that the fullest rank holds some of. */
static uint64_t most_pieces(const struct tsr_flat *f)
{
    uint64_t shard = f->shard->shard_numel, most = 1, first = 0;
    for (uint64_t begin = 0; begin < f->param->numel; begin += shard) {
        uint64_t n = 0;
        while (first < f->n && f->begin[first] + f->params[first]->numel <= begin)
            first++;
        while (first + n < f->n && f->begin[first + n] < begin + shard)
            n++;
        most = tsr_max_u64(most, n);
    }
    return most;
}

struct pieces {
    struct tsr_engine *e;
    struct tsr_storage **norms;
    size_t n, cap;
};

static void emit(struct tsr_engine *e, uint8_t op, const char *name, uint64_t read,
                 uint64_t written)
{
    struct tsr_work work = {.op = op,
                            .dtype = TSR_F32,
                            .name = name,
                            .flops = (double)read / 4,
                            .bytes_read = read,
                            .bytes_written = written,
                            .dims = {1, read / 4}};
    struct tsr_instr instr = {.kind = TSR_OP,
                              .dtype = TSR_F32,
                              .stream = e->stream,
                              .comm = UINT16_MAX,
                              .scalar = 1,
                              .work = &work};
    tsr__emit(e, &instr);
}

/* Calls fn for every piece of every gradient: its bytes in the shard's gradient. */
static void each_piece(struct pieces *p, void (*fn)(struct pieces *p, const struct tsr_flat *f,
                                                    uint64_t begin, uint64_t bytes))
{
    const struct tsr_fsdp1 *all = p->e->fsdp1;
    for (size_t i = 0; i < all->n_flats; i++) {
        const struct tsr_flat *f = all->flats[i];
        if (!f->group || !f->shard->grad)
            continue;
        uint64_t item = tsr_dtype_bytes(f->param->dtype), numel = f->shard->shard_numel;
        uint64_t n = tsr_min_u64(most_pieces(f), numel);
        for (uint64_t k = 0; k < n && tsr__ok(p->e); k++)
            fn(p, f, numel * k / n * item, (numel * (k + 1) / n - numel * k / n) * item);
    }
}

static void norm(struct pieces *p, const struct tsr_flat *f, uint64_t begin, uint64_t bytes)
{
    struct tsr_storage *out = temp(p->e, 1);
    if (!out || !TSR__ARENA_PUSH(p->e, p->norms, p->n, p->cap, out))
        return;
    tsr__operand(p->e, f->shard->grad, begin, bytes, TSR_READ, f->param->dtype);
    tsr__operand_storage(p->e, out, TSR_WRITE, TSR_F32);
    emit(p->e, TSR_OP_REDUCTION, "vector_norm", bytes, 4);
}

/* p->norms[0] is the factor. */
static void scale(struct pieces *p, const struct tsr_flat *f, uint64_t begin, uint64_t bytes)
{
    tsr__operand_storage(p->e, p->norms[0], TSR_READ, TSR_F32);
    tsr__operand(p->e, f->shard->grad, begin, bytes, TSR_READ_WRITE, f->param->dtype);
    emit(p->e, TSR_OP_POINTWISE, "mul_clip", bytes, bytes);
}

/* A kernel on a number, in a new one; `from` is given up. */
static struct tsr_storage *next(struct tsr_engine *e, const char *name, struct tsr_storage *from)
{
    struct tsr_storage *to = temp(e, 1);
    if (from && to && tsr__ok(e)) {
        tsr__operand_storage(e, from, TSR_READ, TSR_F32);
        tsr__operand_storage(e, to, TSR_WRITE, TSR_F32);
        emit(e, TSR_OP_REDUCTION, name, from->bytes, 4);
    }
    tsr__storage_release(e, &from);
    return to;
}

static struct tsr_storage *stack(struct pieces *p)
{
    struct tsr_storage *all = temp(p->e, p->n);
    for (size_t i = 0; i < p->n; i++) {
        tsr__slot(p->e, 0);
        tsr__operand_storage(p->e, p->norms[i], TSR_READ, TSR_F32);
    }
    tsr__slot(p->e, 1);
    tsr__operand_storage(p->e, all, TSR_WRITE, TSR_F32);
    emit(p->e, TSR_OP_POINTWISE, "stack", 4 * p->n, 4 * p->n);
    for (size_t i = 0; i < p->n; i++)
        tsr__storage_release(p->e, &p->norms[i]);
    p->n = 0;
    return all;
}

static struct tsr_storage *total_norm(struct pieces *p)
{
    struct tsr_engine *e = p->e;
    const struct tsr_fsdp1 *all = e->fsdp1;
    struct tsr_storage *power = next(e, "norm_power", next(e, "total_norm", stack(p)));
    struct tsr_instr instr = {.kind = TSR_ALL_REDUCE,
                              .dtype = TSR_F32,
                              .reduce_op = TSR_REDUCE_SUM,
                              .comm = all->shard_comm,
                              .bytes = 4};
    if (power && tsr__ok(e))
        tsr__fsdp1_collective(e, all->shard_wire, &instr, NULL, power);
    return next(e, "root", power);
}

bool tsr__fsdp1_clip(struct tsr_engine *e)
{
    const struct tsr_fsdp1 *all = e->fsdp1;
    struct pieces p = {.e = e};
    if (!all || all->shard_comm == UINT16_MAX) /* NO_SHARD: PyTorch's own function */
        return false;
    each_piece(&p, norm);
    if (p.n == 0 || !tsr__ok(e))
        return true;
    struct tsr_storage *total = total_norm(&p);
    tsr__report_value(e, TSR_REPORT_GRAD_NORM, 0, total);
    struct tsr_storage *factor =
        next(e, "clamp", next(e, "mul_max_norm", next(e, "add_eps", total)));
    if (factor && tsr__ok(e)) {
        p.norms[0] = factor;
        each_piece(&p, scale);
    }
    tsr__storage_release(e, &factor);
    return true;
}
