/* transfer.c: values that are copied or set outside of operators: between host and device, zeros,
 * initial values.
 */
#include "engine/ops/transfer.h"

#include <string.h>

#include "engine/layout/layout.h"
#include "engine/ops/ops_common.h"

/* ---- copies ---------------------------------------------------------------------------------- */

void tsr__host_waits(struct tsr_engine *e)
{
    struct tsr_instr read = {.kind = TSR_HOST_READ, .stream = e->stream, .comm = UINT16_MAX};
    tsr__emit(e, &read);
}

void tsr__host_work(struct tsr_engine *e, const char *name, tsr_dtype dtype, uint64_t read,
                    uint64_t written)
{
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)dtype,
                            .name = name,
                            .bytes_read = read,
                            .bytes_written = written};
    struct tsr_instr instr = {.kind = TSR_HOST_OP, .comm = UINT16_MAX, .work = &work};
    tsr__emit(e, &instr);
}

void tsr__transfer(struct tsr_engine *e, const struct tsr_storage *from, uint64_t offset,
                   const struct tsr_storage *to, uint64_t bytes, tsr_dtype dtype, const char *name)
{
    if (!from || !to || bytes == 0 || !tsr__ok(e))
        return;
    bool on_host = from->space != TSR_SPACE_DEVICE && to->space != TSR_SPACE_DEVICE;
    tsr__operand(e, from, offset, bytes, TSR_READ, dtype);
    tsr__operand(e, to, 0, bytes, TSR_WRITE, dtype);
    if (on_host) {
        tsr__host_work(e, name, dtype, bytes, bytes);
        return;
    }
    tsr__emit_copy(e, dtype, bytes, bytes, name);
    if (from->space == TSR_SPACE_HOST || to->space == TSR_SPACE_HOST)
        tsr__host_waits(e);
}

void tsr__fill(struct tsr_engine *e, const struct tsr_storage *s)
{
    if (!s || s->bytes == 0 || !tsr__ok(e))
        return;
    if (s->space == TSR_SPACE_DEVICE) {
        tsr__emit_fill(e, s, TSR_DTYPE_NONE, 0);
        return;
    }
    tsr__operand_storage(e, s, TSR_WRITE, TSR_DTYPE_NONE);
    tsr__host_work(e, "fill", TSR_F32, 0, s->bytes);
}

void tsr__param_to_device(struct tsr_engine *e, struct tsr_param *p, enum tsr_category category)
{
    if (!p->master || p->master->space == TSR_SPACE_DEVICE)
        return;
    uint64_t bytes = p->numel * tsr_dtype_bytes(p->dtype);
    struct tsr_storage *device = tsr__storage_new(e, bytes, category);
    tsr__transfer(e, p->master, 0, device, bytes, p->dtype, "h2d_param");
    tsr__storage_release(e, &p->master);
    p->master = device;
}

/* ---- initial values -------------------------------------------------------------------------- */

void tsr__piece_args(struct tsr_engine *e, const struct tsr_param *p, unsigned what, uint64_t name)
{
    struct tsr_param_dtensor where;
    uint64_t start[TSR_DT_MAX_DIMS] = {0}, size[TSR_DT_MAX_DIMS] = {0};
    tsr_status status = tsr__param_dtensor(e, p, &where);
    if (status != TSR_OK) {
        tsr__set_error(e, status);
        return;
    }
    tsr_dtensor_box(&where.layout, e->config.rank, start, size);
    const uint64_t *lists[3] = {where.layout.shape, start, size};
    tsr__push_arg(e, what);
    tsr__push_arg(e, name);
    tsr__push_arg(e, (uint64_t)p->n_dims);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 4 || i < p->n_dims; i++)
            tsr__push_arg(e, i < p->n_dims ? lists[k][i] : 1);
}

static uint64_t name_hash(const char *fqn)
{
    return tsr_hash_bytes(TSR_HASH_INIT, fqn, strlen(fqn));
}

uint64_t tsr__param_hash(const struct tsr_param *p)
{
    return name_hash(p->fqn);
}

void tsr__init_values(struct tsr_engine *e, const struct tsr_param *p, struct tsr_storage *s,
                      uint64_t bytes)
{
    if (!s)
        return;
    if (s->bytes > bytes)
        tsr__fill(e, s);
    if (bytes == 0 || !tsr__ok(e))
        return;
    const struct tsr_param *source = p->untied_from ? p->untied_from : p;
    tsr__operand(e, s, 0, bytes, TSR_WRITE, p->dtype);
    tsr__piece_args(e, p, p->init, tsr__param_hash(source));
    bool normal = p->init == TSR_INIT_NORMAL && p->init_constant == 0;
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)p->dtype,
                            .name = "init_param",
                            .bytes_written = bytes,
                            .constants = {normal ? e->model->init_std : p->init_constant}};
    struct tsr_instr instr = {.kind = s->space == TSR_SPACE_DEVICE ? TSR_OP : TSR_HOST_OP,
                              .dtype = (uint8_t)p->dtype,
                              .comm = UINT16_MAX,
                              .work = &work};
    tsr__emit(e, &instr);
}
