/* program_text.c: a program without its ids: as text, one line per instruction, and as hashes (the
 * last section).
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

/* ---- hashes ---------------------------------------------------------------------------------- */

/* Program hash, offsets hash and executed hash (see program.h). */

/* ---- hashes ---------------------------------------------------------------------------------- */

static uint64_t hash_double(uint64_t hash, double value)
{
    uint64_t bits;
    value += 0.0; /* -0 and 0 are the same amount of work */
    memcpy(&bits, &value, sizeof bits);
    return tsr_hash_u64(hash, bits);
}

static uint64_t hash_work(uint64_t hash, const struct tsr_work *work)
{
    hash = tsr_hash_u64(hash, work->op | (uint64_t)work->dtype << 8 | (uint64_t)work->causal << 16 |
                                  (uint64_t)work->recompute << 24 | (uint64_t)work->compiled << 32);
    if (work->name)
        hash = tsr_hash_u64(hash, tsr_hash_bytes(TSR_HASH_INIT, work->name, strlen(work->name)));
    hash = hash_double(hash, work->flops);
    hash = hash_double(hash, work->model_flops);
    hash = tsr_hash_u64(hash, work->bytes_read);
    hash = tsr_hash_u64(hash, work->bytes_written);
    for (int i = 0; i < TSR_MAX_DIMS; i++)
        hash = tsr_hash_u64(hash, work->dims[i]);
    for (int i = 0; i < 2; i++)
        hash = hash_double(hash, work->constants[i]);
    for (uint32_t i = 0; i < work->n_args; i++)
        hash = tsr_hash_u64(hash, work->args[i]);
    return hash;
}

struct hasher {
    const struct tsr_tables *tables;
    struct tsr_canonical buffers, events;
    uint64_t hash;
};

static bool hash_buffer(struct hasher *h, uint32_t buffer)
{
    uint32_t number;
    if (!tsr_canonical_number(&h->buffers, buffer, &number))
        return false;
    h->hash = tsr_hash_u64(h->hash, number);
    return true;
}

static uint64_t operand_codes(const struct tsr_operand *o)
{
    return o->access | (uint64_t)o->space << 8 | (uint64_t)o->dtype << 16 | (uint64_t)o->slot << 24;
}

static bool hash_operands(struct hasher *h, const struct tsr_instr *instr)
{
    for (uint32_t i = 0; i < instr->n_operands; i++) {
        const struct tsr_operand *o = &instr->operands[i];
        if (!hash_buffer(h, o->buffer))
            return false;
        h->hash = tsr_hash_u64(h->hash, operand_codes(o));
        h->hash = tsr_hash_u64(h->hash, (uint64_t)o->width << 32 | o->pitch);
        h->hash = tsr_hash_u64(h->hash, o->offset);
        h->hash = tsr_hash_u64(h->hash, o->bytes);
    }
    return true;
}

/* The index alone would make two jobs with other communicators look alike. */
static uint64_t hash_comm(const struct tsr_tables *tables, uint64_t hash, uint16_t comm)
{
    hash = tsr_hash_u64(hash, comm);
    if (!tables || comm >= tables->n_comms)
        return hash;
    hash = tsr_hash_u64(hash, tables->comms[comm].size);
    return tsr_hash_u64(hash, tables->comms[comm].stride);
}

/* The number of an iteration is not part of what the iteration does. */
static bool mark_has_value(const struct tsr_instr *instr)
{
    return instr->mark != TSR_MARK_ITERATION && instr->mark != TSR_MARK_ITERATION_END;
}

static bool hash_instr(struct hasher *h, const struct tsr_instr *instr)
{
    uint64_t codes = instr->kind | (uint64_t)instr->dtype << 8 | (uint64_t)instr->reduce_op << 16 |
                     (uint64_t)instr->scalar << 24 | (uint64_t)instr->stream << 32 |
                     (uint64_t)instr->peer << 48;
    h->hash = tsr_hash_u64(h->hash, codes);
    h->hash = tsr_hash_u64(h->hash, instr->bytes);
    h->hash = tsr_hash_u64(h->hash, instr->n_operands);
    h->hash = hash_comm(h->tables, h->hash, instr->comm);
    if (instr->factor != 0.0)
        h->hash = hash_double(h->hash, instr->factor);
    if (instr->work)
        h->hash = hash_work(h->hash, instr->work);
    switch (instr->kind) {
    case TSR_ALLOC:
    case TSR_FREE:
        return hash_buffer(h, instr->buffer);
    case TSR_HOST_ALLOC:
    case TSR_HOST_FREE:
        h->hash = tsr_hash_u64(h->hash, instr->space);
        return hash_buffer(h, instr->buffer);
    case TSR_PIN:
        h->hash = tsr_hash_u64(h->hash, instr->block_bytes);
        return true;
    case TSR_RECORD:
    case TSR_WAIT:
    case TSR_HOST_WAIT: {
        uint32_t event;
        if (!tsr_canonical_number(&h->events, instr->event, &event))
            return false;
        h->hash = tsr_hash_u64(h->hash, event);
        return true;
    }
    case TSR_MARK:
        h->hash = tsr_hash_u64(h->hash, instr->mark);
        if (mark_has_value(instr))
            h->hash = tsr_hash_u64(h->hash, instr->value);
        return true;
    default:
        return hash_operands(h, instr);
    }
}

uint64_t tsr_program_hash(const struct tsr_program *program)
{
    struct hasher h = {.tables = program->tables, .hash = TSR_HASH_INIT};
    bool ok = true;
    for (size_t i = 0; i < program->n_instrs && ok; i++)
        ok = hash_instr(&h, &program->instrs[i]);
    tsr_canonical_fini(&h.buffers);
    tsr_canonical_fini(&h.events);
    /* 0 stands for "no hash": it is never compared as equal to a real one. */
    return ok ? h.hash : 0;
}

uint64_t tsr_program_offsets_hash(const struct tsr_program *program)
{
    uint64_t hash = TSR_HASH_INIT;
    for (size_t i = 0; i < program->n_instrs; i++) {
        const struct tsr_instr *instr = &program->instrs[i];
        if (instr->kind == TSR_ALLOC) {
            hash = tsr_hash_u64(hash, instr->address);
            hash = tsr_hash_u64(hash, instr->block_bytes);
        }
    }
    return hash;
}

/* ---- executed hash --------------------------------------------------------------------------- */

void tsr_exec_hash_init(struct tsr_exec_hash *hash)
{
    for (size_t i = 0; i < sizeof hash->stream / sizeof hash->stream[0]; i++)
        hash->stream[i] = TSR_HASH_INIT;
    hash->host = TSR_HASH_INIT;
}

static bool on_host(uint8_t kind)
{
    return kind == TSR_HOST_WAIT || kind == TSR_HOST_READ || kind == TSR_HOST_OP;
}

void tsr_exec_record_done(struct tsr_exec_hash *hash, const struct tsr_exec_record *record)
{
    size_t n_streams = sizeof hash->stream / sizeof hash->stream[0];
    uint64_t *into =
        on_host(record->kind) ? &hash->host : &hash->stream[record->stream % n_streams];
    uint64_t codes = record->kind | (uint64_t)record->dtype << 8 |
                     (uint64_t)record->reduce_op << 16 | (uint64_t)record->op << 24 |
                     (uint64_t)record->stream << 32 | (uint64_t)record->comm << 48;
    uint64_t h = tsr_hash_u64(*into, codes);
    h = tsr_hash_u64(h, record->bytes);
    h = hash_double(h, record->flops);
    *into = tsr_hash_u64(h, record->operands);
}

uint64_t tsr_exec_hash_value(const struct tsr_exec_hash *hash)
{
    uint64_t value = TSR_HASH_INIT;
    for (size_t i = 0; i < sizeof hash->stream / sizeof hash->stream[0]; i++)
        value = tsr_hash_u64(value, hash->stream[i]);
    return tsr_hash_u64(value, hash->host);
}

uint64_t tsr_operands_hash(const struct tsr_operand *operands, uint32_t n)
{
    uint64_t hash = tsr_hash_u64(TSR_HASH_INIT, n);
    for (uint32_t i = 0; i < n; i++) {
        hash = tsr_hash_u64(hash, operands[i].buffer | operand_codes(&operands[i]) << 32);
        hash = tsr_hash_u64(hash, (uint64_t)operands[i].width << 32 | operands[i].pitch);
        hash = tsr_hash_u64(hash, operands[i].offset);
        hash = tsr_hash_u64(hash, operands[i].bytes);
    }
    return hash;
}

bool tsr_instr_is_work(const struct tsr_instr *instr)
{
    switch (instr->kind) {
    case TSR_MARK:
    case TSR_ALLOC:
    case TSR_FREE:
    case TSR_SEGMENT_ALLOC:
    case TSR_SEGMENT_FREE:
    case TSR_HOST_ALLOC:
    case TSR_HOST_FREE:
    case TSR_PIN:
        return false;
    default:
        return true;
    }
}

struct tsr_exec_record tsr_exec_record_of(const struct tsr_instr *instr)
{
    struct tsr_exec_record record = {
        .kind = instr->kind,
        .dtype = instr->dtype,
        .reduce_op = instr->reduce_op,
        .op = instr->work ? instr->work->op : 0,
        .stream = instr->stream,
        .comm = instr->comm,
        .bytes = instr->bytes,
        .flops = instr->work ? instr->work->flops : 0.0,
        .operands = tsr_operands_hash(instr->operands, instr->n_operands),
    };
    /* An event has no bytes: its number takes their place, so that a wait for another event, or a
     * message to another peer, does not pass for the right one. */
    if (instr->kind == TSR_RECORD || instr->kind == TSR_WAIT || instr->kind == TSR_HOST_WAIT)
        record.bytes = instr->event;
    else if (instr->kind == TSR_SEND || instr->kind == TSR_RECV)
        record.flops = instr->peer;
    return record;
}

uint64_t tsr_program_expected_exec_hash(const struct tsr_program *program)
{
    struct tsr_exec_hash hash;
    tsr_exec_hash_init(&hash);
    for (size_t i = 0; i < program->n_instrs; i++) {
        if (!tsr_instr_is_work(&program->instrs[i]))
            continue;
        struct tsr_exec_record record = tsr_exec_record_of(&program->instrs[i]);
        tsr_exec_record_done(&hash, &record);
    }
    return tsr_exec_hash_value(&hash);
}
