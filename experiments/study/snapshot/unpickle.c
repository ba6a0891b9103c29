/* unpickle.c: a stack machine for the operations of a pickle that only make data (PEP 307, 3154 and
 * 574). It is no recursion: what is nested deeply costs no stack of ours.
 */
#include "experiments/study/snapshot/unpickle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/snapshot/pickle_codes.h"
#include "sim/base/text_check.h"

enum { LEAST_PROTOCOL = 2, MOST_PROTOCOL = 5 };
/* PyTorch's snapshots have 6 to 8 bytes a value, ours 7. A value takes 50 bytes of memory, so that
 * a pickle takes up to 20 times its own. */
enum { FREE_VALUES = 4096, LEAST_BYTES = 3 };

/* Those that import, call or build: c, R, b, i, o, P, Q, NEWOBJ, EXT1 to EXT4, NEWOBJ_EX,
 * STACK_GLOBAL. */
static const unsigned char runs_code[] = {'c',  'R',  'b',  'i',  'o',  'P', 'Q',
                                          0x81, 0x82, 0x83, 0x84, 0x92, 0x93};

struct machine {
    const char *name;
    const unsigned char *bytes;
    size_t n, at, op_at; /* op_at: of the operation of the moment */
    struct tsr_arena *arena;
    struct tsr_pickle_value **stack, **memo;
    size_t n_stack, cap_stack, n_memo, cap_memo, n_values, n_marks;
    size_t marks[TSR_PICKLE_DEPTH];
};

static tsr_status wrong(const struct machine *m, const char *what, const char *allowed)
{
    return tsr_fail(TSR_ECONFIG, "%s: byte %zu: found %s; allowed: %s", m->name, m->op_at, what,
                    allowed);
}

static tsr_status cut_short(const struct machine *m)
{
    return wrong(m, "the end of the file", "a whole pickle");
}

/* ---- what is read ---------------------------------------------------------------------------- */

/* An unsigned number of `n` bytes, the lowest first. */
static tsr_status take_count(struct machine *m, size_t n, uint64_t *out)
{
    *out = 0;
    if (n > m->n - m->at)
        return cut_short(m);
    for (size_t i = 0; i < n; i++)
        *out |= (uint64_t)m->bytes[m->at++] << 8 * i;
    return TSR_OK;
}

static tsr_status push(struct machine *m, struct tsr_pickle_value *value)
{
    return TSR_PUSH(m->stack, m->n_stack, m->cap_stack, value) ? TSR_OK : tsr_no_memory(m->name);
}

static tsr_status push_new(struct machine *m, struct tsr_pickle_value value)
{
    if (m->n_values++ == TSR_PICKLE_VALUES)
        return wrong(m, "more than 16000000 values", "up to that");
    if (m->n_values > FREE_VALUES + m->n / LEAST_BYTES)
        return wrong(m, "more values than a third of its bytes", "up to that");
    struct tsr_pickle_value *kept = tsr_arena_alloc(m->arena, sizeof *kept);
    if (!kept)
        return tsr_no_memory(m->name);
    *kept = value;
    return push(m, kept);
}

static tsr_status push_int(struct machine *m, int64_t value)
{
    return push_new(m, (struct tsr_pickle_value){.kind = TSR_PICKLE_INT, .integer = value});
}

static tsr_status take_long(struct machine *m, size_t length_bytes)
{
    uint64_t n, value, high = 0;
    TSR_TRY(take_count(m, length_bytes, &n));
    if (n > 9)
        return wrong(m, "a number of more than 64 bits", "numbers of up to 64 bits");
    TSR_TRY(take_count(m, n < 8 ? (size_t)n : 8, &value));
    if (n == 9) { /* unsigned: "no line" of a frame in C++ is 2^64 - 1 */
        TSR_TRY(take_count(m, 1, &high));
        if (high)
            return wrong(m, "a number of more than 64 bits", "numbers of up to 64 bits");
        return push_new(m, (struct tsr_pickle_value){TSR_PICKLE_REAL, .real = (double)value});
    }
    if (n > 0 && n < 8 && value >> (8 * n - 1) & 1)
        value |= UINT64_MAX << 8 * n;
    return push_int(m, (int64_t)value);
}

static tsr_status take_real(struct machine *m)
{
    uint64_t bits = 0;
    double real;
    if (m->n - m->at < 8)
        return cut_short(m);
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | m->bytes[m->at++];
    memcpy(&real, &bits, sizeof real);
    return push_new(m, (struct tsr_pickle_value){.kind = TSR_PICKLE_REAL, .real = real});
}

static tsr_status take_text(struct machine *m, size_t length_bytes)
{
    uint64_t n;
    struct tsr_text_flaw flaw;
    TSR_TRY(take_count(m, length_bytes, &n));
    if (n > m->n - m->at)
        return cut_short(m);
    const char *from = (const char *)m->bytes + m->at;
    if (tsr_text_find_flaw(from, (size_t)n, &flaw))
        return tsr_fail(TSR_ECONFIG, "%s: byte %zu: in a text: %s", m->name, m->op_at, flaw.text);
    char *text = tsr_arena_alloc(m->arena, (size_t)n + 1);
    if (!text)
        return tsr_no_memory(m->name);
    memcpy(text, from, (size_t)n);
    text[n] = 0;
    m->at += (size_t)n;
    return push_new(m, (struct tsr_pickle_value){.kind = TSR_PICKLE_TEXT, .text = text});
}

/* ---- the stack ------------------------------------------------------------------------------- */

/* Lowest place of the stack that an operation may take: below are values of open levels. */
static size_t floor_of(const struct machine *m)
{
    return m->n_marks ? m->marks[m->n_marks - 1] : 0;
}

static tsr_status need(const struct machine *m, size_t n)
{
    if (m->n_stack - floor_of(m) < n)
        return wrong(m, "an operation without its values", "a whole pickle");
    return TSR_OK;
}

static tsr_status pop_mark(struct machine *m, size_t *first)
{
    if (!m->n_marks)
        return wrong(m, "an operation without its values", "a whole pickle");
    *first = m->marks[--m->n_marks];
    return TSR_OK;
}

/* Adds the values of the stack from `first` on. */
static tsr_status add_items(struct machine *m, struct tsr_pickle_value *list, size_t first)
{
    size_t more = m->n_stack - first;
    if (list->list.cap - list->list.n < more) {
        size_t twice = 2 * list->list.cap, least = list->list.n + more;
        size_t cap = twice > least ? twice : least;
        struct tsr_pickle_value **items = tsr_arena_alloc(m->arena, cap * sizeof *items);
        if (!items)
            return tsr_no_memory(m->name);
        if (list->list.n)
            memcpy(items, list->list.items, list->list.n * sizeof *items);
        list->list.items = items;
        list->list.cap = cap;
    }
    if (more)
        memcpy(list->list.items + list->list.n, m->stack + first, more * sizeof *m->stack);
    list->list.n += more;
    m->n_stack = first;
    return TSR_OK;
}

/* Moves the values from `first` on into the container below them. */
static tsr_status put_in(struct machine *m, size_t first, uint8_t kind)
{
    if (first <= floor_of(m))
        return wrong(m, "an operation without its values", "a whole pickle");
    struct tsr_pickle_value *into = m->stack[first - 1];
    bool odd = kind == TSR_PICKLE_DICT && (m->n_stack - first) % 2;
    if (into->kind != kind || into->closed || odd)
        return wrong(m, "members of what has none", "a list or a dictionary");
    return add_items(m, into, first);
}

/* Replaces the values from `first` on by a container of them. */
static tsr_status wrap(struct machine *m, size_t first, struct tsr_pickle_value empty)
{
    size_t n = m->n_stack - first;
    TSR_TRY(push_new(m, empty));
    struct tsr_pickle_value *made = m->stack[m->n_stack - 1];
    if (made->kind == TSR_PICKLE_DICT && n % 2)
        return wrong(m, "members of what has none", "a list or a dictionary");
    m->n_stack--;
    TSR_TRY(add_items(m, made, first));
    return push(m, made);
}

static tsr_status wrap_marked(struct machine *m, struct tsr_pickle_value empty)
{
    size_t first = 0;
    TSR_TRY(pop_mark(m, &first));
    return wrap(m, first, empty);
}

static tsr_status put_marked(struct machine *m, uint8_t kind)
{
    size_t first = 0;
    TSR_TRY(pop_mark(m, &first));
    return put_in(m, first, kind);
}

/* ---- what is remembered ---------------------------------------------------------------------- */

/* No pickle remembers more values than it has bytes. */
static tsr_status remember(struct machine *m, uint64_t place)
{
    TSR_TRY(need(m, 1));
    if (place > m->n)
        return wrong(m, "a value that is remembered far away", "places below the file's size");
    while (m->n_memo <= place)
        if (!TSR_PUSH(m->memo, m->n_memo, m->cap_memo, NULL))
            return tsr_no_memory(m->name);
    m->memo[place] = m->stack[m->n_stack - 1];
    return TSR_OK;
}

static tsr_status remember_at(struct machine *m, size_t length_bytes)
{
    uint64_t place;
    TSR_TRY(take_count(m, length_bytes, &place));
    return remember(m, place);
}

static tsr_status recall(struct machine *m, size_t length_bytes)
{
    uint64_t place;
    TSR_TRY(take_count(m, length_bytes, &place));
    if (place >= m->n_memo || !m->memo[place])
        return wrong(m, "a value that was not remembered", "a whole pickle");
    return push(m, m->memo[place]);
}

/* ---- operations ------------------------------------------------------------------------------ */

static const struct tsr_pickle_value empty_list = {.kind = TSR_PICKLE_LIST},
                                     empty_tuple = {.kind = TSR_PICKLE_LIST, .closed = true},
                                     empty_dict = {.kind = TSR_PICKLE_DICT};

static tsr_status refuse(const struct machine *m, int op)
{
    char what[64];
    bool runs = memchr(runs_code, op, sizeof runs_code) != NULL;
    snprintf(what, sizeof what, runs ? "code to run (operation 0x%02x)" : "operation 0x%02x", op);
    return wrong(m, what,
                 "dictionaries, lists, tuples, texts, numbers, True, False and None in a pickle of "
                 "protocol 2 to 5");
}

static tsr_status begin(struct machine *m)
{
    uint64_t protocol;
    TSR_TRY(take_count(m, 1, &protocol));
    if (protocol < LEAST_PROTOCOL || protocol > MOST_PROTOCOL)
        return wrong(m, "a pickle of another protocol", "2 to 5");
    return TSR_OK;
}

static tsr_status mark(struct machine *m)
{
    if (m->n_marks == TSR_PICKLE_DEPTH)
        return wrong(m, "more than 64 levels", "up to that");
    m->marks[m->n_marks++] = m->n_stack;
    return TSR_OK;
}

static tsr_status drop(struct machine *m)
{
    TSR_TRY(need(m, 1));
    m->n_stack--;
    return TSR_OK;
}

static tsr_status wrap_last(struct machine *m, size_t n)
{
    TSR_TRY(need(m, n));
    return wrap(m, m->n_stack - n, empty_tuple);
}

static tsr_status take_number(struct machine *m, size_t n)
{
    uint64_t value;
    TSR_TRY(take_count(m, n, &value));
    return push_int(m, n == 4 ? (int64_t)(int32_t)(uint32_t)value : (int64_t)value);
}

static tsr_status push_bool(struct machine *m, bool value)
{
    return push_new(m, (struct tsr_pickle_value){.kind = TSR_PICKLE_BOOL, .integer = value});
}

static tsr_status put_last(struct machine *m, size_t n, uint8_t kind)
{
    TSR_TRY(need(m, n + 1));
    return put_in(m, m->n_stack - n, kind);
}

/* What makes and moves values on the stack. */
static tsr_status step_stack(struct machine *m, int op)
{
    size_t first = 0;
    switch (op) {
    case OP_MARK:
        return mark(m);
    case OP_POP:
        return drop(m);
    case OP_POP_MARK:
        TSR_TRY(pop_mark(m, &first));
        m->n_stack = first;
        return TSR_OK;
    case OP_DUP:
        TSR_TRY(need(m, 1));
        return push(m, m->stack[m->n_stack - 1]);
    case OP_APPEND:
        return put_last(m, 1, TSR_PICKLE_LIST);
    case OP_APPENDS:
        return put_marked(m, TSR_PICKLE_LIST);
    case OP_SET_ITEM:
        return put_last(m, 2, TSR_PICKLE_DICT);
    case OP_SET_ITEMS:
        return put_marked(m, TSR_PICKLE_DICT);
    case OP_LIST_OF:
        return wrap_marked(m, empty_list);
    case OP_DICT_OF:
        return wrap_marked(m, empty_dict);
    case OP_TUPLE:
        return wrap_marked(m, empty_tuple);
    case OP_TUPLE_1:
        return wrap_last(m, 1);
    case OP_TUPLE_2:
        return wrap_last(m, 2);
    case OP_TUPLE_3:
        return wrap_last(m, 3);
    case OP_GET:
        return recall(m, 1);
    case OP_LONG_GET:
        return recall(m, 4);
    case OP_PUT:
        return remember_at(m, 1);
    case OP_LONG_PUT:
        return remember_at(m, 4);
    case OP_REMEMBER:
        return remember(m, m->n_memo);
    default:
        return refuse(m, op);
    }
}

static tsr_status step(struct machine *m, int op)
{
    uint64_t ignored;
    switch (op) {
    case OP_PROTO:
        return begin(m);
    case OP_FRAME:
        return take_count(m, 8, &ignored); /* for readers of streams */
    case OP_NONE:
        return push_new(m, (struct tsr_pickle_value){.kind = TSR_PICKLE_NONE});
    case OP_TRUE:
        return push_bool(m, true);
    case OP_FALSE:
        return push_bool(m, false);
    case OP_UINT8:
        return take_number(m, 1);
    case OP_UINT16:
        return take_number(m, 2);
    case OP_INT32:
        return take_number(m, 4);
    case OP_LONG:
        return take_long(m, 1);
    case OP_LONG4:
        return take_long(m, 4);
    case OP_FLOAT:
        return take_real(m);
    case OP_SHORT_TEXT:
        return take_text(m, 1);
    case OP_TEXT:
        return take_text(m, 4);
    case OP_LONG_TEXT:
        return take_text(m, 8);
    case OP_LIST:
        return push_new(m, empty_list);
    case OP_DICT:
        return push_new(m, empty_dict);
    case OP_EMPTY_TUPLE:
        return push_new(m, empty_tuple);
    default:
        return step_stack(m, op);
    }
}

static tsr_status run(struct machine *m)
{
    if (m->n < 2 || m->bytes[0] != OP_PROTO)
        return wrong(m, "no pickle", "a pickle of protocol 2 to 5");
    for (;;) {
        m->op_at = m->at;
        if (m->at == m->n)
            return cut_short(m);
        int op = m->bytes[m->at++];
        if (op != OP_STOP)
            TSR_TRY(step(m, op));
        else if (m->n_stack != 1 || m->n_marks)
            return wrong(m, "an end with more values than one, or none", "a whole pickle");
        else
            return TSR_OK;
    }
}

tsr_status tsr_unpickle(const char *name, const void *bytes, size_t n, struct tsr_arena *arena,
                        struct tsr_pickle_value **out)
{
    struct machine m = {.name = name, .bytes = bytes, .n = n, .arena = arena};
    tsr_status status = run(&m);
    *out = status == TSR_OK ? m.stack[0] : NULL;
    free(m.stack);
    free(m.memo);
    return status;
}

/* ---- what is asked --------------------------------------------------------------------------- */

const struct tsr_pickle_value *tsr_pickle_get(const struct tsr_pickle_value *dict, const char *key)
{
    if (!dict || dict->kind != TSR_PICKLE_DICT || dict->list.n > 2 * (size_t)TSR_PICKLE_KEYS)
        return NULL;
    for (size_t i = 0; i + 1 < dict->list.n; i += 2)
        if (dict->list.items[i]->kind == TSR_PICKLE_TEXT && !strcmp(dict->list.items[i]->text, key))
            return dict->list.items[i + 1];
    return NULL;
}

size_t tsr_pickle_list(const struct tsr_pickle_value *list, struct tsr_pickle_value ***items)
{
    bool is_list = list && list->kind == TSR_PICKLE_LIST;
    *items = is_list ? list->list.items : NULL;
    return is_list ? list->list.n : 0;
}

const char *tsr_pickle_text(const struct tsr_pickle_value *dict, const char *key)
{
    const struct tsr_pickle_value *value = tsr_pickle_get(dict, key);
    return value && value->kind == TSR_PICKLE_TEXT ? value->text : "";
}

bool tsr_pickle_count(const struct tsr_pickle_value *dict, const char *key, uint64_t *out)
{
    const struct tsr_pickle_value *value = tsr_pickle_get(dict, key);
    if (!value || value->kind != TSR_PICKLE_INT || value->integer < 0)
        return false;
    *out = (uint64_t)value->integer;
    return true;
}
