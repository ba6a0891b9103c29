/* emit.c: storages and instructions: the only place that calls the executor.
 *
 * Every function does nothing once the engine has failed or a recomputation has stopped early.
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine/graph/engine.h"

void tsr__emitter_fini(struct tsr_engine *e)
{
    struct tsr_emitter *emit = &e->emit;
    tsr__deferral_end(e);
    tsr_allocator_destroy(emit->allocator);
    free(emit->streams);
    free(emit->stream_busy);
    free(emit->comms);
    free(emit->operands);
    free(emit->kernel_args);
    free(emit->trace_events);
}

void tsr__set_error(struct tsr_engine *e, tsr_status status)
{
    if (e->status == TSR_OK)
        e->status = status;
}

/* ---- operands and instructions --------------------------------------------------------------- */

void tsr__slot(struct tsr_engine *e, unsigned slot)
{
    e->emit.next_slot = (uint8_t)slot;
}

static void push_operand(struct tsr_engine *e, const struct tsr_storage *s,
                         struct tsr_operand operand)
{
    operand.slot = e->emit.next_slot++;
    if (!tsr__ok(e) || operand.bytes == 0)
        return;
    if (!s->live) { /* e.g. unshard_in_backward off for a parameter that backward needs (R136) */
        TSR__RAISE(e, TSR_ERUNTIME,
                   "an operation of '%s' uses memory that was freed: setStorage of %llu bytes is "
                   "out of bounds for storage of size 0",
                   e->origin.module < e->tree.n_modules ? e->tree.module_names[e->origin.module]
                                                        : "",
                   (unsigned long long)operand.bytes);
        return;
    }
    tsr__pinned_use(e, s);
    if (e->capture)
        e->emit.capture->operand(e, s, &operand.offset);
    operand.buffer = s->buffer;
    operand.space = s->space;
    if (!TSR_PUSH(e->emit.operands, e->emit.n_operands, e->emit.cap_operands, operand))
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
}

void tsr__operand(struct tsr_engine *e, const struct tsr_storage *s, uint64_t offset,
                  uint64_t bytes, uint8_t access, tsr_dtype dtype)
{
    push_operand(
        e, s,
        (struct tsr_operand){
            .access = access, .dtype = (uint8_t)dtype, .offset = offset, .bytes = s ? bytes : 0});
}

void tsr__operand_storage(struct tsr_engine *e, const struct tsr_storage *s, uint8_t access,
                          tsr_dtype dtype)
{
    tsr__operand(e, s, 0, s ? s->bytes : 0, access, dtype);
}

/* From the first byte to the last, of a slice of columns too. */
static uint64_t extent(const struct tsr_tensor *t)
{
    uint64_t bytes = tsr__tensor_bytes(t);
    if (t->pitch == 0 || bytes == 0)
        return bytes;
    uint64_t rows = bytes / t->width;
    return (rows - 1) * t->pitch + tsr_min_u64(t->width, t->pitch);
}

void tsr__operand_tensor(struct tsr_engine *e, const struct tsr_tensor *t, uint8_t access)
{
    struct tsr_operand operand = {.access = access};
    if (t) {
        operand.dtype = t->dtype;
        operand.offset = t->offset;
        operand.bytes = extent(t);
        operand.width = t->width;
        operand.pitch = t->pitch;
    }
    push_operand(e, t ? t->storage : NULL, operand);
}

void tsr__push_arg(struct tsr_engine *e, uint64_t value)
{
    if (tsr__ok(e) &&
        !TSR_PUSH(e->emit.kernel_args, e->emit.n_kernel_args, e->emit.cap_kernel_args, value))
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
}

bool tsr__occupies_stream(uint8_t kind)
{
    return (kind >= TSR_COPY && kind <= TSR_RECV) || kind == TSR_CUSTOM_COLLECTIVE;
}

/* A report of memory that is not there, and who asked for it. */
static tsr_status say_when(const struct tsr_engine *e, const char *what)
{
    char report[512];
    const char *module =
        e->origin.module < e->tree.n_modules ? e->tree.module_names[e->origin.module] : "";
    snprintf(report, sizeof report, "%s", tsr_error_text());
    return tsr_fail(TSR_EOOM, "%s; in phase %s, module %s, for %s", report,
                    tsr_phase_name(e->origin.phase), *module ? module : "(root)", what);
}

static void submit(struct tsr_engine *e, struct tsr_instr *instr)
{
    if (instr->kind == TSR_HOST_WAIT || instr->kind == TSR_HOST_READ)
        tsr__pinned_settle(e);
    if (tsr__occupies_stream(instr->kind))
        e->emit.stream_busy[instr->stream] = true;
    instr->origin = e->origin;
    instr->operands = e->emit.operands;
    instr->n_operands = (uint32_t)e->emit.n_operands;
    tsr_status status = e->config.executor->ops->submit(e->config.executor, instr);
    if (status == TSR_EOOM && instr->work) /* a kernel's own memory; segments: see below */
        status = say_when(e, instr->work->name);
    if (status != TSR_OK)
        tsr__set_error(e, status);
    if (e->emit.deferral)
        tsr__deferral_note(e, instr);
}

void tsr__emit(struct tsr_engine *e, struct tsr_instr *instr)
{
    struct tsr_work work;
    if (tsr__ok(e)) {
        const struct tsr_work *own = instr->work;
        if (own && e->emit.n_kernel_args) {
            work = *own;
            work.n_args = (uint32_t)e->emit.n_kernel_args;
            work.args = e->emit.kernel_args;
            instr->work = &work;
        }
        if (e->capture)
            e->emit.capture->emit(e, instr);
        else
            submit(e, instr);
        instr->work = own;
    }
    e->emit.n_operands = 0;
    e->emit.next_slot = 0;
    e->emit.n_kernel_args = 0;
}

static struct tsr_instr blank(uint8_t kind, uint16_t stream)
{
    return (struct tsr_instr){.kind = kind, .stream = stream, .comm = UINT16_MAX};
}

void tsr__emit_op(struct tsr_engine *e, const struct tsr_work *work)
{
    struct tsr_instr instr = blank(TSR_OP, e->stream);
    struct tsr_work w = *work;
    w.recompute = e->autograd.recompute_depth > 0;
    if (w.recompute)
        w.model_flops = 0;
    instr.work = &w;
    instr.dtype = w.dtype;
    tsr__emit(e, &instr);
}

void tsr__emit_copy(struct tsr_engine *e, tsr_dtype dtype, uint64_t bytes_read,
                    uint64_t bytes_written, const char *name)
{
    struct tsr_instr instr = blank(TSR_COPY, e->stream);
    struct tsr_work w = {.op = TSR_OP_POINTWISE,
                         .dtype = (uint8_t)dtype,
                         .recompute = e->autograd.recompute_depth > 0,
                         .name = name,
                         .bytes_read = bytes_read,
                         .bytes_written = bytes_written};
    instr.work = &w;
    instr.dtype = (uint8_t)dtype;
    instr.bytes = bytes_written;
    tsr__emit(e, &instr);
}

void tsr__emit_fill(struct tsr_engine *e, const struct tsr_storage *s, tsr_dtype dtype,
                    double value)
{
    if (!s || s->bytes == 0)
        return;
    struct tsr_instr instr = blank(TSR_FILL, e->stream);
    tsr__operand_storage(e, s, TSR_WRITE, dtype);
    instr.dtype = (uint8_t)dtype;
    instr.bytes = s->bytes;
    instr.factor = value;
    tsr__emit(e, &instr);
}

void tsr__emit_mark(struct tsr_engine *e, enum tsr_mark mark, uint32_t value)
{
    struct tsr_instr instr = blank(TSR_MARK, 0);
    instr.mark = (uint8_t)mark;
    instr.value = value;
    tsr__emit(e, &instr);
}

void tsr__set_phase(struct tsr_engine *e, enum tsr_phase phase, uint32_t micro)
{
    e->origin.phase = (uint8_t)phase;
    e->origin.micro = (uint16_t)micro;
    e->origin.module = TSR_NO_ID;
    e->origin.group = TSR_NO_ID;
    e->origin.hook = TSR_HOOK_NONE;
    tsr__emit_mark(e, TSR_MARK_PHASE, micro);
}

/* ---- storages -------------------------------------------------------------------------------- */

struct tsr_storage *tsr__storage_empty(struct tsr_engine *e, uint64_t bytes,
                                       enum tsr_category category, uint8_t space)
{
    struct tsr_storage *s = e->emit.free_storages;
    if (s)
        e->emit.free_storages = s->next_free;
    else
        s = tsr_arena_alloc(&e->arena, sizeof *s);
    if (!s) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
        return NULL;
    }
    *s = (struct tsr_storage){.refs = 1,
                              .category = (uint8_t)category,
                              .space = space,
                              .stream = e->stream,
                              .buffer = e->emit.next_buffer++,
                              .bytes = bytes};
    s->live = space != TSR_SPACE_DEVICE;
    if (s->live)
        tsr__host_alloc(e, s);
    return s;
}

struct tsr_storage *tsr__storage_new(struct tsr_engine *e, uint64_t bytes,
                                     enum tsr_category category)
{
    struct tsr_storage *s = tsr__storage_empty(e, bytes, category, TSR_SPACE_DEVICE);
    if (s)
        tsr__storage_back(e, s);
    return s;
}

/* What could not be served, and how things stood then: the unwinding frees what it holds. */
static void note_oom(struct tsr_engine *e, const struct tsr_storage *s)
{
    e->emit.is_oom = true;
    e->emit.oom = (struct tsr_oom){.category = s->category,
                                   .origin = e->origin,
                                   .memory = tsr_allocator_oom_info(e->emit.allocator)};
}

/* ALLOC or FREE of the block that the storage has. */
static struct tsr_instr of_block(uint8_t kind, const struct tsr_storage *s)
{
    struct tsr_instr instr = blank(kind, s->stream);
    instr.category = s->category;
    instr.buffer = s->buffer;
    instr.segment = s->block.segment;
    instr.address = s->block.address;
    instr.bytes = s->bytes;
    instr.block_bytes = s->block.bytes;
    instr.value = s->is_dropped;
    return instr;
}

void tsr__storage_back(struct tsr_engine *e, struct tsr_storage *s)
{
    if (!tsr__ok(e) || s->live)
        return;
    s->stream = e->stream;
    if (e->capture) {
        e->emit.capture->storage(e, s);
        return;
    }
    s->live = true;
    s->buffer = e->emit.next_buffer++;
    if (s->bytes == 0) /* an empty tensor gets no block */
        return;
    if (e->emit.deferral)
        tsr__deferral_settle(e);
    tsr_status status = tsr_allocator_alloc(e->emit.allocator, s->bytes, s->stream, &s->block);
    if (status == TSR_EOOM && tsr__deferral_flush(e))
        status = tsr_allocator_alloc(e->emit.allocator, s->bytes, s->stream, &s->block);
    if (status != TSR_OK) {
        s->live = false;
        if (status == TSR_EOOM) {
            note_oom(e, s);
            status = say_when(e, tsr_category_name(s->category));
        }
        tsr__set_error(e, status);
        return;
    }
    if (e->status == TSR_EOOM) /* the executor has no memory for a new segment */
        (void)!say_when(e, tsr_category_name(s->category));
    struct tsr_instr instr = of_block(TSR_ALLOC, s);
    TSR_CHECK(e->emit.n_operands == 0 &&
              e->emit.n_kernel_args == 0); /* nothing is being put together */
    tsr__emit(e, &instr);
}

/* Locals of a stopped recomputation, or of a failed step (which may be reset), are dropped after
 * the stop: frees are emitted then, too. */
static void free_anyway(struct tsr_engine *e, struct tsr_storage *s,
                        void (*emit)(struct tsr_engine *e, struct tsr_storage *s))
{
    bool stopped = e->stopped;
    tsr_status status = e->status;
    e->stopped = false;
    e->status = TSR_OK;
    emit(e, s);
    e->stopped = stopped;
    if (status != TSR_OK)
        e->status = status;
}

static void emit_free(struct tsr_engine *e, struct tsr_storage *s)
{
    struct tsr_instr instr = of_block(TSR_FREE, s);
    tsr_allocator_free(e->emit.allocator, s->block.handle);
    s->block.handle = NULL;
    tsr__emit(e, &instr);
}

void tsr__storage_unback(struct tsr_engine *e, struct tsr_storage *s)
{
    if (!s->live || s->space != TSR_SPACE_DEVICE)
        return;
    s->live = false;
    if (s->block.handle)
        free_anyway(e, s, emit_free);
}

void tsr__storage_retain(struct tsr_storage *s)
{
    s->refs++;
}

void tsr__storage_release(struct tsr_engine *e, struct tsr_storage **ps)
{
    struct tsr_storage *s = *ps;
    *ps = NULL;
    if (!s)
        return;
    TSR_CHECK(s->refs > 0);
    if (--s->refs > 0)
        return;
    tsr__storage_unback(e, s);
    if (s->space != TSR_SPACE_DEVICE)
        free_anyway(e, s, tsr__host_free);
    s->next_free = e->emit.free_storages;
    e->emit.free_storages = s;
}

void tsr__storage_set_category(struct tsr_storage *s, enum tsr_category category)
{
    s->category = (uint8_t)category;
}
