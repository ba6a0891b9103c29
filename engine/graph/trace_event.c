/* trace_event.c: an event of the trace, put together field by field and handed to the sink
 * (program/trace.h).
 */
#include "engine/graph/engine.h"

void tsr__event_begin(struct tsr_event *ev, const char *name)
{
    ev->name = name;
    ev->is_stream_event = false;
    ev->n_fields = 0;
}

static struct tsr_field *field(struct tsr_event *ev, const char *key, enum tsr_field_type type)
{
    TSR_CHECK(ev->n_fields < TSR_MAX_FIELDS);
    struct tsr_field *f = &ev->fields[ev->n_fields++];
    *f = (struct tsr_field){.key = key, .type = type};
    return f;
}

void tsr__event_str(struct tsr_event *ev, const char *key, const char *value)
{
    field(ev, key, value ? TSR_FIELD_STRING : TSR_FIELD_NULL)->s = value;
}

void tsr__event_int(struct tsr_event *ev, const char *key, int64_t value)
{
    field(ev, key, TSR_FIELD_INT)->i = value;
}

void tsr__event_bool(struct tsr_event *ev, const char *key, bool value)
{
    field(ev, key, TSR_FIELD_BOOL)->i = value;
}

void tsr__event_num(struct tsr_event *ev, const char *key, double value)
{
    field(ev, key, value != 0 ? TSR_FIELD_DOUBLE : TSR_FIELD_NULL)->d = value;
}

void tsr__event_strs(struct tsr_event *ev, const char *key, const char *const *v, size_t n)
{
    struct tsr_field *f = field(ev, key, TSR_FIELD_STRINGS);
    f->strings = v;
    f->i = (int64_t)n;
}

void tsr__event_send(struct tsr_engine *e, const struct tsr_event *ev)
{
    if (e->emit.has_trace && tsr__ok(e))
        e->emit.trace.event(e->emit.trace.user, ev);
}
