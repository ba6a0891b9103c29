/* user_emit.c: what a user's hook or custom collective may emit: transfers, a reduction, copies and
 * kernels, on the stream that the engine has chosen.
 */
#include "engine/graph/user_emit.h"
#include "engine/graph/engine.h"

static void emit_p2p(struct tsr_engine *e, uint8_t kind, struct tsr_tensor *t, uint64_t offset,
                     uint64_t bytes, uint16_t comm, uint32_t peer)
{
    if (!t || !tsr__ok(e))
        return;
    tsr__operand(e, t->storage, t->offset + offset, bytes, kind == TSR_SEND ? TSR_READ : TSR_WRITE,
                 (tsr_dtype)t->dtype);
    struct tsr_instr instr = {.kind = kind,
                              .dtype = t->dtype,
                              .stream = e->stream,
                              .comm = comm,
                              .peer = (uint16_t)peer,
                              .bytes = bytes};
    tsr__emit(e, &instr);
}

void tsr_emit_send(struct tsr_engine *e, struct tsr_tensor *t, uint64_t offset, uint64_t bytes,
                   uint16_t comm, uint32_t peer)
{
    emit_p2p(e, TSR_SEND, t, offset, bytes, comm, peer);
}

void tsr_emit_recv(struct tsr_engine *e, struct tsr_tensor *t, uint64_t offset, uint64_t bytes,
                   uint16_t comm, uint32_t peer)
{
    emit_p2p(e, TSR_RECV, t, offset, bytes, comm, peer);
}

static void emit_bracket(struct tsr_engine *e, uint8_t kind)
{
    struct tsr_instr instr = {.kind = kind, .stream = e->stream, .comm = UINT16_MAX};
    tsr__emit(e, &instr);
}

void tsr_emit_all_reduce(struct tsr_engine *e, struct tsr_tensor *t, uint16_t comm)
{
    if (!t || !tsr__ok(e))
        return;
    tsr__operand_tensor(e, t, TSR_READ_WRITE);
    struct tsr_instr instr = {.kind = TSR_ALL_REDUCE,
                              .dtype = t->dtype,
                              .reduce_op = TSR_REDUCE_SUM,
                              .stream = e->stream,
                              .comm = comm,
                              .bytes = tsr__tensor_bytes(t)};
    tsr__emit(e, &instr);
}

void tsr_emit_group_begin(struct tsr_engine *e)
{
    emit_bracket(e, TSR_GROUP_BEGIN);
}

void tsr_emit_group_end(struct tsr_engine *e)
{
    emit_bracket(e, TSR_GROUP_END);
}

void tsr_emit_device_copy(struct tsr_engine *e, struct tsr_tensor *to, uint64_t to_offset,
                          struct tsr_tensor *from, uint64_t from_offset, uint64_t bytes)
{
    if (!to || !from || !tsr__ok(e))
        return;
    tsr__operand(e, from->storage, from->offset + from_offset, bytes, TSR_READ,
                 (tsr_dtype)from->dtype);
    tsr__operand(e, to->storage, to->offset + to_offset, bytes, TSR_WRITE, (tsr_dtype)to->dtype);
    tsr__emit_copy(e, (tsr_dtype)to->dtype, bytes, bytes, "device_copy");
}

void tsr_emit_user_op(struct tsr_engine *e, struct tsr_tensor *buffer, const char *name,
                      double flops)
{
    if (!buffer || !tsr__ok(e))
        return;
    tsr__operand_tensor(e, buffer, TSR_READ_WRITE);
    struct tsr_work work = {.op = TSR_OP_USER,
                            .dtype = buffer->dtype,
                            .name = name,
                            .flops = flops,
                            .bytes_read = tsr__tensor_bytes(buffer),
                            .bytes_written = tsr__tensor_bytes(buffer)};
    tsr__emit_op(e, &work);
}
