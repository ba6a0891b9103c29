/* program_dump.c: a program as text, one line per instruction.
 *
 *     number kind stream what operands | module group phase hook micro-batch
 *
 * Buffers and events carry canonical numbers (b0, e0, ... by first appearance), so that the dumps
 * of two iterations or ranks can be compared by diff.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/program/program.h"

/* One line while it is built. `failed`: the host has no memory left; the line stays short. */
struct line {
    char *text;
    size_t n, cap;
    bool failed;
};

TSR_PRINTF(2, 3) static void put(struct line *line, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    /* tsr_grow() makes room for one item more than the count it is given. */
    if (n < 0 || !tsr_grow(&line->text, line->n + (size_t)n, &line->cap, 1)) {
        line->failed = true;
    } else {
        (void)vsnprintf(line->text + line->n, (size_t)n + 1, fmt, again);
        line->n += (size_t)n;
    }
    va_end(again);
}

struct dumper {
    const struct tsr_tables *tables;
    struct tsr_canonical buffers, events;
    struct line line;
};

static uint32_t number_of(struct dumper *d, struct tsr_canonical *map, uint32_t id)
{
    uint32_t number = id;
    if (!tsr_canonical_number(map, id, &number))
        d->line.failed = true;
    return number;
}

static void put_operands(struct dumper *d, const struct tsr_instr *instr)
{
    static const char *const access[] = {"-", "r", "w", "rw"};
    static const char *const space[] = {"", "host:", "pinned:"};
    for (uint32_t i = 0; i < instr->n_operands; i++) {
        const struct tsr_operand *o = &instr->operands[i];
        put(&d->line, " %s:%sb%" PRIu32 "[%" PRIu64 "+%" PRIu64 "]", access[o->access & 3],
            o->space < 3 ? space[o->space] : "?:", number_of(d, &d->buffers, o->buffer), o->offset,
            o->bytes);
    }
}

static void put_work(struct line *line, const struct tsr_instr *instr)
{
    const struct tsr_work *work = instr->work;
    put(line, " %s", tsr_op_kind_name(work->op));
    if (work->name)
        put(line, ":%s", work->name);
    if (work->dtype != TSR_DTYPE_NONE && work->dtype != instr->dtype)
        put(line, " %s", tsr_dtype_name((tsr_dtype)work->dtype));
    int n_dims = TSR_MAX_DIMS;
    while (n_dims > 0 && work->dims[n_dims - 1] == 0)
        n_dims--;
    for (int i = 0; i < n_dims; i++)
        put(line, "%s%" PRIu64, i ? "x" : " ", work->dims[i]);
    if (work->causal)
        put(line, " causal");
    if (work->flops > 0)
        put(line, " flops=%.17g", work->flops);
    if (work->model_flops > 0)
        put(line, " model_flops=%.17g", work->model_flops);
    if (work->bytes_read || work->bytes_written)
        put(line, " moved=%" PRIu64 "+%" PRIu64, work->bytes_read, work->bytes_written);
}

static void put_collective(struct dumper *d, const struct tsr_instr *instr)
{
    struct line *line = &d->line;
    if (instr->dtype != TSR_DTYPE_NONE)
        put(line, " %s", tsr_dtype_name((tsr_dtype)instr->dtype));
    if (instr->reduce_op == TSR_REDUCE_PREMUL_SUM)
        put(line, " premul_sum(%.17g)", instr->factor);
    else if (instr->reduce_op != TSR_REDUCE_NONE)
        put(line, " %s", tsr_reduce_op_name(instr->reduce_op));
    if (instr->comm != UINT16_MAX && instr->comm < d->tables->n_comms)
        put(line, " comm=%s/%" PRIu32, d->tables->comms[instr->comm].name,
            d->tables->comms[instr->comm].size);
    if (instr->kind == TSR_SEND || instr->kind == TSR_RECV)
        put(line, " peer=%u", instr->peer);
}

/* What the instruction does, by kind. */
static void put_what(struct dumper *d, const struct tsr_instr *instr)
{
    struct line *line = &d->line;
    switch (instr->kind) {
    case TSR_SEGMENT_ALLOC:
    case TSR_SEGMENT_FREE:
        put(line, " s%" PRIu32 " @%" PRIu64, instr->segment, instr->address);
        break;
    case TSR_ALLOC:
    case TSR_FREE:
        put(line, " b%" PRIu32 " s%" PRIu32 " @%" PRIu64 " block=%" PRIu64 " \"%s\"",
            number_of(d, &d->buffers, instr->buffer), instr->segment, instr->address,
            instr->block_bytes, tsr_category_name(instr->category));
        break;
    case TSR_HOST_ALLOC:
    case TSR_HOST_FREE:
        put(line, " b%" PRIu32 " block=%" PRIu64 " %s \"%s\"",
            number_of(d, &d->buffers, instr->buffer), instr->block_bytes,
            instr->space == TSR_SPACE_PINNED ? "pinned" : "host",
            tsr_category_name(instr->category));
        break;
    case TSR_PIN:
        put(line, " block=%" PRIu64, instr->block_bytes);
        break;
    case TSR_RECORD:
    case TSR_WAIT:
    case TSR_HOST_WAIT:
        put(line, " e%" PRIu32, number_of(d, &d->events, instr->event));
        break;
    case TSR_MARK:
        put(line, " %s %" PRIu32, tsr_mark_name(instr->mark), instr->value);
        break;
    default:
        put_collective(d, instr);
        break;
    }
    if (instr->work)
        put_work(line, instr);
    if (instr->scalar)
        put(line, " scalar=%u", instr->scalar - 1U);
    if (instr->bytes)
        put(line, " bytes=%" PRIu64, instr->bytes);
}

static void put_origin(struct dumper *d, const struct tsr_origin *origin)
{
    struct line *line = &d->line;
    put(line, " |");
    if (origin->module < d->tables->n_modules) {
        const char *fqn = d->tables->modules[origin->module];
        put(line, " %s", fqn[0] ? fqn : "(root)");
    }
    if (origin->group < d->tables->n_groups) {
        const char *group = d->tables->groups[origin->group];
        put(line, " group=%s", group[0] ? group : "(root)");
    }
    put(line, " %s", tsr_phase_name(origin->phase));
    if (origin->hook != TSR_HOOK_NONE)
        put(line, " hook=%s", tsr_hook_name(origin->hook));
    put(line, " micro=%u", origin->micro);
    if (origin->recompute)
        put(line, " recompute");
}

void tsr_program_dump(const struct tsr_program *program,
                      void (*write)(void *user, const char *text), void *user)
{
    static const struct tsr_tables no_tables = {0};
    struct dumper d = {.tables = program->tables ? program->tables : &no_tables};
    for (size_t i = 0; i < program->n_instrs && !d.line.failed; i++) {
        const struct tsr_instr *instr = &program->instrs[i];
        d.line.n = 0;
        put(&d.line, "%zu %s", i, tsr_instr_kind_name(instr->kind));
        if (instr->stream < d.tables->n_streams)
            put(&d.line, " %s", d.tables->streams[instr->stream].name);
        put_what(&d, instr);
        put_operands(&d, instr);
        put_origin(&d, &instr->origin);
        put(&d.line, "\n");
        if (!d.line.failed)
            write(user, d.line.text);
    }
    if (d.line.failed)
        write(user, "... (out of memory)\n");
    tsr_canonical_fini(&d.buffers);
    tsr_canonical_fini(&d.events);
    free(d.line.text);
}
