/* executor_flight.c: the flight recorder: the last instructions of a rank and how far each stream
 * is, written when a run fails. Streams may hang meanwhile: only counters of theirs are read.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/base/disk.h"
#include "exec/executor/executor_impl.h"

void tsr_exec_note(struct tsr_exec *x, const struct tsr_instr *instr)
{
    bool on_stream = tsr_instr_is_work(instr) && instr->kind != TSR_HOST_WAIT &&
                     instr->kind != TSR_HOST_READ && instr->kind != TSR_HOST_OP;
    uint64_t place = on_stream ? x->submitted[instr->stream % TSR_EXEC_STREAMS] : 0;
    x->flight[x->number % TSR_FLIGHT_INSTRS] =
        (struct tsr_flight_entry){.number = x->number,
                                  .bytes = instr->bytes,
                                  .sequence = place,
                                  .kind = instr->kind,
                                  .dtype = instr->dtype,
                                  .phase = instr->origin.phase,
                                  .stream = on_stream ? instr->stream : UINT16_MAX,
                                  .comm = instr->comm,
                                  .iteration = instr->origin.iteration,
                                  .micro = instr->origin.micro,
                                  .module = instr->origin.module,
                                  .group = instr->origin.group,
                                  .event = instr->event,
                                  .name = instr->work ? instr->work->name : NULL};
}

/* ---- writing --------------------------------------------------------------------------------- */

static const char *state_of(const struct tsr_exec *x, const struct tsr_flight_entry *f)
{
    if (f->stream == UINT16_MAX)
        return "done"; /* by the host, in order */
    uint64_t done = tsr_exec_done_of(x, f->stream % TSR_EXEC_STREAMS);
    return f->sequence < done ? "done" : f->sequence == done ? "running" : "waiting";
}

static void set_name(json_t *o, const char *key, const char *const *names, uint32_t n, uint32_t i)
{
    if (i < n)
        json_object_set_new(o, key, json_string(names[i]));
}

static json_t *entry_json(const struct tsr_exec *x, const struct tsr_tables *t,
                          const struct tsr_flight_entry *f)
{
    json_t *o =
        json_pack("{s:I, s:s, s:s, s:s, s:i, s:i}", "number", (json_int_t)f->number, "kind",
                  tsr_instr_kind_name(f->kind), "state", state_of(x, f), "phase",
                  tsr_phase_name(f->phase), "iteration", (int)f->iteration, "micro", (int)f->micro);
    if (!o)
        return NULL;
    if (f->name)
        json_object_set_new(o, "kernel", json_string(f->name));
    if (f->stream < t->n_streams)
        json_object_set_new(o, "stream", json_string(t->streams[f->stream].name));
    if (f->comm < t->n_comms)
        json_object_set_new(o, "communicator", json_string(t->comms[f->comm].name));
    if (f->kind == TSR_RECORD || f->kind == TSR_WAIT || f->kind == TSR_HOST_WAIT)
        json_object_set_new(o, "event", json_integer(f->event));
    if (f->bytes)
        json_object_set_new(o, "bytes", json_integer((json_int_t)f->bytes));
    set_name(o, "module", t->modules, t->n_modules, f->module);
    set_name(o, "group", t->groups, t->n_groups, f->group);
    return o;
}

static json_t *record_json(struct tsr_exec *x, const struct tsr_tables *t, const char *why)
{
    json_t *list = json_array();
    uint64_t first = x->number > TSR_FLIGHT_INSTRS ? x->number - TSR_FLIGHT_INSTRS : 0;
    for (uint64_t i = first; list && i < x->number; i++)
        json_array_append_new(list, entry_json(x, t, &x->flight[i % TSR_FLIGHT_INSTRS]));
    return json_pack("{s:s, s:i, s:i, s:I, s:o}", "why", why, "rank", (int)t->rank, "world",
                     (int)t->world, "instructions", (json_int_t)x->number, "last", list);
}

tsr_status tsr_exec_write_flight_record(struct tsr_executor *executor,
                                        const struct tsr_tables *tables, const char *path,
                                        const char *why)
{
    json_t *record = record_json((struct tsr_exec *)executor, tables, why);
    char *text = record ? json_dumps(record, JSON_INDENT(1)) : NULL;
    json_decref(record);
    if (!text)
        return tsr_no_memory("the flight record");
    tsr_status status = tsr_disk_replace_file(&tsr_disk_posix, path, text, strlen(text));
    free(text);
    return status;
}
