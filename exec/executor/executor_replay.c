/* executor_replay.c: a whole step that has come before (engine/replay/replay.h). Where the device
 * can, its stretches between two interactions with the host are captured once and then run by one
 * call each. Accounts are the same as if every instruction had been submitted.
 */
#include <stdlib.h>
#include <string.h>

#include "exec/executor/executor_impl.h"

enum { FEWEST_TASKS = 8 }; /* of a stretch that is worth a graph */

struct stretch {
    size_t begin, end; /* instructions */
    size_t n_tasks;
};

/* ---- where programs are cut ------------------------------------------------------------------ */

static bool is_task(const struct tsr_instr *instr)
{
    switch (instr->kind) {
    case TSR_COPY:
    case TSR_FILL:
    case TSR_OP:
    case TSR_ALL_GATHER:
    case TSR_REDUCE_SCATTER:
    case TSR_ALL_REDUCE:
    case TSR_BROADCAST:
    case TSR_ALL_TO_ALL:
    case TSR_SEND:
    case TSR_RECV:
    case TSR_GROUP_BEGIN:
    case TSR_GROUP_END:
    case TSR_RECORD:
    case TSR_WAIT:
        return true;
    default:
        return false;
    }
}

static bool is_bookkeeping(const struct tsr_instr *instr)
{
    bool is_host = instr->kind == TSR_HOST_ALLOC || instr->kind == TSR_HOST_FREE;
    return instr->kind == TSR_MARK || instr->kind == TSR_ALLOC || instr->kind == TSR_FREE ||
           (is_host && instr->space == TSR_SPACE_PINNED);
}

static bool has_pageable_operand(const struct tsr_instr *instr)
{
    for (uint32_t i = 0; i < instr->n_operands; i++)
        if (instr->operands[i].space == TSR_SPACE_HOST)
            return true;
    return false;
}

/* Events that the host waits for are recorded between two stretches, so that it does not wait for
 * more: those of this program, and those of the inputs, for which the next one waits. */
struct waits {
    size_t n, cap;
    uint32_t *events;
};

static tsr_status find_waits(const struct tsr_program *program, struct waits *out)
{
    for (size_t i = 0; i < program->n_instrs; i++)
        if (program->instrs[i].kind == TSR_HOST_WAIT &&
            !TSR_PUSH(out->events, out->n, out->cap, program->instrs[i].event))
            return tsr_no_memory("a step that is replayed");
    return TSR_OK;
}

static bool is_cut(const struct tsr_instr *instr, const struct waits *waits)
{
    if (is_bookkeeping(instr))
        return false;
    if (!is_task(instr) || has_pageable_operand(instr) ||
        (instr->work && tsr_exec_source_kernel(instr->work->name)))
        return true;
    if (instr->kind != TSR_RECORD)
        return false;
    if (instr->origin.phase == TSR_PHASE_INPUTS)
        return true;
    for (size_t i = 0; i < waits->n; i++)
        if (waits->events[i] == instr->event)
            return true;
    return false;
}

static struct stretch stretch_from(const struct tsr_program *program, size_t begin,
                                   const struct waits *waits)
{
    struct stretch s = {.begin = begin, .end = begin};
    while (s.end < program->n_instrs && !is_cut(&program->instrs[s.end], waits))
        s.n_tasks += is_task(&program->instrs[s.end++]);
    return s;
}

/* ---- capturing ------------------------------------------------------------------------------- */

/* Instructions [begin, end) once more, and then as if they had not been. One that cannot be
 * captured is no failure of the run: all are submitted then. */
static tsr_status submit_captured(struct tsr_exec *x, const struct tsr_program *program,
                                  const struct stretch *s, size_t *end)
{
    for (*end = s->begin; *end < s->end; (*end)++) {
        const struct tsr_instr *instr = &program->instrs[*end];
        tsr_status status = tsr_exec_execute(x, instr);
        if (status == TSR_OK)
            continue;
        /* a block is there before it is poisoned, which may have failed */
        *end += instr->kind == TSR_ALLOC && tsr_buffers_find(&x->buffers, instr->buffer);
        return status;
    }
    return TSR_OK;
}

static tsr_status capture(struct tsr_exec *x, const struct tsr_program *program,
                          const struct stretch *s, uint64_t key)
{
    const struct tsr_device_graphs *graphs = x->device->ops->graphs;
    uint64_t *sequences = malloc((x->n_sequences + 1) * sizeof *sequences);
    struct tsr_exec_memory memory = x->memory;
    size_t n_sequences = x->n_sequences, end = s->begin;
    if (!sequences)
        return tsr_no_memory("a step that is captured");
    if (n_sequences)
        memcpy(sequences, x->sequences, n_sequences * sizeof *sequences);
    x->captures = true;
    tsr_status status = graphs->capture_begin(x->device, key);
    if (status == TSR_OK)
        status = submit_captured(x, program, s, &end);
    status = graphs->capture_end(x->device, status == TSR_OK);
    x->captures = false;
    while (end-- > s->begin)
        tsr_exec_undo_memory_instr(x, &program->instrs[end]);
    x->memory = memory;
    x->in_group = false;
    x->n_messages = x->n_group_views = 0;
    if (n_sequences)
        memcpy(x->sequences, sequences, n_sequences * sizeof *sequences);
    free(sequences);
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

static tsr_status count_collective(struct tsr_exec *x, const struct tsr_instr *instr)
{
    bool in_place = instr->kind == TSR_ALL_REDUCE || instr->kind == TSR_BROADCAST;
    uint64_t sequence;
    for (uint32_t i = 0; i < (in_place ? instr->n_operands : 1); i++)
        TSR_TRY(tsr_exec_next_sequence(x, instr->comm, &sequence));
    return TSR_OK;
}

/* One launch of messages is one task, and one call on their communicator. */
static tsr_status count_messages(struct tsr_exec *x, const struct tsr_instr *instr)
{
    uint64_t sequence;
    if (instr->kind == TSR_GROUP_BEGIN) {
        x->in_group = true;
        x->group_comm_id = UINT16_MAX;
        return TSR_OK;
    }
    if (instr->kind != TSR_GROUP_END)
        x->group_comm_id = instr->comm;
    if (instr->kind == TSR_GROUP_END)
        x->in_group = false;
    if (x->in_group)
        return TSR_OK;
    tsr_exec_count_submitted(x, instr->stream);
    if (x->group_comm_id == UINT16_MAX)
        return TSR_OK;
    TSR_TRY(tsr_exec_next_sequence(x, x->group_comm_id, &sequence));
    return TSR_OK;
}

static tsr_status count_task(struct tsr_exec *x, const struct tsr_instr *instr)
{
    switch (instr->kind) {
    case TSR_GROUP_BEGIN:
    case TSR_GROUP_END:
    case TSR_SEND:
    case TSR_RECV:
        return count_messages(x, instr);
    case TSR_ALL_GATHER:
    case TSR_REDUCE_SCATTER:
    case TSR_ALL_REDUCE:
    case TSR_BROADCAST:
    case TSR_ALL_TO_ALL:
        TSR_TRY(count_collective(x, instr));
        break;
    default:
        break;
    }
    tsr_exec_count_submitted(x, instr->stream);
    return TSR_OK;
}

static tsr_status tell_event(struct tsr_exec *x, const struct tsr_instr *instr)
{
    const struct tsr_task task = {.kind =
                                      instr->kind == TSR_RECORD ? TSR_TASK_RECORD : TSR_TASK_WAIT,
                                  .number = x->number,
                                  .instr = instr,
                                  .event = instr->event};
    return x->device->ops->submit(x->device, instr->stream, &task);
}

/* An instruction that runs as part of what was captured. */
static tsr_status account(struct tsr_exec *x, const struct tsr_instr *instr)
{
    tsr_status status;
    TSR_TRY(tsr_exec_announce(x, instr));
    if (tsr_exec_memory_instr(x, instr, &status))
        return status;
    if (!is_task(instr))
        return TSR_OK;
    const struct tsr_exec_record record = tsr_exec_record_of(instr);
    tsr_exec_record_done(&x->hash, &record);
    TSR_TRY(count_task(x, instr));
    return instr->kind == TSR_RECORD || instr->kind == TSR_WAIT ? tell_event(x, instr) : TSR_OK;
}

static tsr_status run_kept(struct tsr_exec *x, const struct tsr_program *program,
                           const struct stretch *s, uint64_t key)
{
    const struct tsr_device_graphs *graphs = x->device->ops->graphs;
    TSR_TRY(graphs->run_begin(x->device, key));
    for (size_t i = s->begin; i < s->end; i++) {
        TSR_TRY(account(x, &program->instrs[i]));
        x->number++;
    }
    return graphs->run_end(x->device, x->scalars);
}

static tsr_status run_direct(struct tsr_exec *x, const struct tsr_program *program, size_t begin,
                             size_t end)
{
    for (size_t i = begin; i < end; i++)
        TSR_TRY(x->base.ops->submit(&x->base, &program->instrs[i]));
    return TSR_OK;
}

static tsr_status run_stretch(struct tsr_exec *x, const struct tsr_program *program,
                              const struct stretch *s, uint64_t key)
{
    const struct tsr_device_graphs *graphs = x->device->ops->graphs;
    if (s->n_tasks < FEWEST_TASKS)
        return run_direct(x, program, s->begin, s->end);
    if (graphs->find(x->device, key) == TSR_STRETCH_NEW)
        TSR_TRY(capture(x, program, s, key));
    if (graphs->find(x->device, key) != TSR_STRETCH_KEPT)
        return run_direct(x, program, s->begin, s->end);
    return run_kept(x, program, s, key);
}

static tsr_status run_all(struct tsr_exec *x, const struct tsr_program *program, uint64_t key,
                          const struct waits *waits)
{
    size_t i = 0;
    while (i < program->n_instrs) {
        struct stretch s = stretch_from(program, i, waits);
        TSR_TRY(run_stretch(x, program, &s, tsr_hash_u64(key, s.begin)));
        i = s.end;
        if (i < program->n_instrs) {
            TSR_TRY(run_direct(x, program, i, i + 1));
            i++;
        }
    }
    return TSR_OK;
}

tsr_status tsr_exec_replay(struct tsr_executor *executor, const struct tsr_program *program,
                           uint64_t key)
{
    struct tsr_exec *x = (struct tsr_exec *)executor;
    struct waits waits = {.n = 0};
    if (!x->device->ops->graphs || x->config.profile || x->config.verify || x->failed != TSR_OK)
        return run_direct(x, program, 0, program->n_instrs);
    tsr_status status = find_waits(program, &waits);
    if (status == TSR_OK)
        status = run_all(x, program, key, &waits);
    free(waits.events);
    return tsr_exec_keep_first(x, status);
}

const char *tsr_exec_graph_refusal(struct tsr_executor *executor)
{
    const struct tsr_device *device = ((const struct tsr_exec *)executor)->device;
    const struct tsr_device_graphs *graphs = device->ops->graphs;
    return graphs ? graphs->refusal(device) : NULL;
}

uint64_t tsr_exec_count_slow(const struct tsr_executor *executor)
{
    const struct tsr_device *device = ((const struct tsr_exec *)executor)->device;
    return device->ops->count_slow ? device->ops->count_slow(device) : UINT64_MAX;
}
