/* diff_snapshot.c: reads a memory snapshot of PyTorch (torch.cuda.memory._dump_snapshot(): events,
 * segments and annotations as a pickle), of a real run or as `compare` writes it. Shown is the last
 * step that is whole: one ends with the optimizer, and with what is freed behind it. The level is
 * that of the golden data: requests, each rounded up to 512 bytes (blocks as large as they were in
 * a snapshot of the program's own, which has that), from their allocation until they are freed by
 * the host.
 */
#include "experiments/study/diff/diff_parts.h"

#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/gz.h"
#include "experiments/study/diff/snapshot_places.h"
#include "experiments/study/snapshot/unpickle.h"

enum event_kind { EVENT_ALLOC, EVENT_FREE, EVENT_SEGMENT, EVENT_SEGMENT_GONE };

struct event {
    uint8_t kind;
    uint32_t order, block; /* block: of an allocation or a free */
    uint64_t address, bytes;
    struct tsr_snapshot_place place;
};

struct block {
    uint64_t bytes;
    uint32_t from, to; /* events; from UINT32_MAX: before them, to UINT32_MAX: never freed */
    uint64_t address;
};

struct snapshot {
    const char *path;
    const struct tsr_pickle_value *root;
    struct tsr_pickle_value **trace; /* of the device */
    size_t n_trace, device;
    struct event *events;
    size_t n, cap;
    struct block *blocks;
    size_t n_blocks, cap_blocks;
    uint64_t reserved; /* at the end */
    size_t first, end; /* the step */
};

static tsr_status damaged(const struct snapshot *s, size_t event, const char *what)
{
    return tsr_fail(TSR_ECONFIG,
                    "%s: event %zu: %s; allowed: a snapshot of torch.cuda.memory._dump_snapshot()",
                    s->path, event, what);
}

/* ---- events ---------------------------------------------------------------------------------- */

/* Of the devices the one with most events. */
static tsr_status find_trace(struct snapshot *s)
{
    struct tsr_pickle_value **devices;
    size_t n = tsr_pickle_list(tsr_pickle_get(s->root, "device_traces"), &devices);
    for (size_t i = 0; i < n; i++) {
        struct tsr_pickle_value **trace;
        size_t length = tsr_pickle_list(devices[i], &trace);
        if (length <= s->n_trace)
            continue;
        s->trace = trace;
        s->n_trace = length;
        s->device = i;
    }
    if (s->n_trace && s->n_trace < UINT32_MAX / 2)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: has no events in \"device_traces\"; allowed: a snapshot of a run that "
                    "called torch.cuda.memory._record_memory_history() before",
                    s->path);
}

/* A free is the host's request: that is when PyTorch counts it. */
static int kind_of(const char *action)
{
    static const struct {
        const char *action;
        enum event_kind kind;
    } kinds[] = {{"alloc", EVENT_ALLOC},
                 {"free_requested", EVENT_FREE},
                 {"segment_alloc", EVENT_SEGMENT},
                 {"segment_map", EVENT_SEGMENT},
                 {"segment_free", EVENT_SEGMENT_GONE},
                 {"segment_unmap", EVENT_SEGMENT_GONE}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (!strcmp(action, kinds[i].action))
            return (int)kinds[i].kind;
    return -1;
}

static uint64_t rounded(uint64_t bytes)
{
    return tsr_round_up(bytes + (bytes == 0), 512);
}

static tsr_status read_events(struct snapshot *s, struct tsr_arena *arena)
{
    struct tsr_snapshot_walk walk;
    tsr_snapshot_walk_begin(s->root, arena, &walk);
    for (size_t i = 0; i < s->n_trace; i++) {
        const struct tsr_pickle_value *from = s->trace[i];
        struct event event = {.order = (uint32_t)s->n};
        int kind = kind_of(tsr_pickle_text(from, "action"));
        if (kind < 0)
            continue; /* completed frees, marks of the user, kinds of later versions */
        event.kind = (uint8_t)kind;
        if (!tsr_pickle_count(from, "addr", &event.address) ||
            !(tsr_pickle_count(from, "block_size", &event.bytes) || /* of `compare` */
              tsr_pickle_count(from, "size", &event.bytes)) ||
            event.bytes > INT64_MAX / 2)
            return damaged(s, i, "has no address and size");
        TSR_TRY(tsr_snapshot_place(&walk, from, kind == EVENT_ALLOC, &event.place));
        if (!TSR_PUSH(s->events, s->n, s->cap, event))
            return tsr_no_memory(s->path);
    }
    return s->n ? TSR_OK : damaged(s, 0, "is no allocation, and none of the others is");
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b)
{
    const struct event *x = *(const struct event *const *)a, *y = *(const struct event *const *)b;
    if (x->address != y->address)
        return x->address < y->address ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static tsr_status add_block(struct snapshot *s, struct event *event)
{
    bool alloc = event->kind == EVENT_ALLOC;
    struct block block = {rounded(event->bytes), alloc ? event->order : UINT32_MAX,
                          alloc ? UINT32_MAX : event->order, event->address};
    event->block = (uint32_t)s->n_blocks;
    return TSR_PUSH(s->blocks, s->n_blocks, s->cap_blocks, block) ? TSR_OK : tsr_no_memory(s->path);
}

/* Events of one address take turns; what is freed first was there before the recording. */
static tsr_status pair_events(struct snapshot *s, struct event **sorted, size_t n)
{
    const struct event *open = NULL;
    for (size_t i = 0; i < n; i++) {
        struct event *event = sorted[i];
        bool first = i == 0 || sorted[i - 1]->address != event->address;
        open = first ? NULL : open;
        if (event->kind == EVENT_ALLOC) {
            if (open)
                return damaged(s, event->order, "allocates what is not free");
            TSR_TRY(add_block(s, event));
            open = event;
        } else if (open) {
            event->block = open->block;
            s->blocks[open->block].to = event->order;
            open = NULL;
        } else if (first) {
            TSR_TRY(add_block(s, event));
        } else {
            return damaged(s, event->order, "frees what is not allocated");
        }
    }
    return TSR_OK;
}

static tsr_status find_blocks(struct snapshot *s)
{
    size_t n = 0;
    struct event **sorted = malloc((s->n + 1) * sizeof(struct event *));
    if (!sorted)
        return tsr_no_memory(s->path);
    for (size_t i = 0; i < s->n; i++)
        if (s->events[i].kind <= EVENT_FREE)
            sorted[n++] = &s->events[i];
    if (n)
        qsort(sorted, n, sizeof *sorted, by_address);
    tsr_status status = pair_events(s, sorted, n);
    free(sorted);
    return status;
}

static int by_place(const void *a, const void *b)
{
    const struct block *x = a, *y = b;
    return (x->address > y->address) - (x->address < y->address);
}

/* Never freed, and allocated by an event. */
static bool is_recorded(const struct block *sorted, size_t n, uint64_t address)
{
    const struct block key = {.address = address};
    return n && bsearch(&key, sorted, n, sizeof *sorted, by_place) != NULL;
}

static tsr_status add_segment(struct snapshot *s, const struct tsr_pickle_value *segment,
                              const struct block *sorted, size_t n_sorted)
{
    struct tsr_pickle_value **blocks;
    uint64_t bytes, device;
    if (tsr_pickle_count(segment, "device", &device) && device != s->device)
        return TSR_OK;
    if (!tsr_pickle_count(segment, "total_size", &bytes) || bytes > INT64_MAX - s->reserved)
        return damaged(s, s->n, "is followed by a segment without a size");
    s->reserved += bytes;
    size_t n = tsr_pickle_list(tsr_pickle_get(segment, "blocks"), &blocks);
    for (size_t i = 0; i < n; i++) {
        struct event was = {.kind = EVENT_FREE, .order = UINT32_MAX};
        if (strcmp(tsr_pickle_text(blocks[i], "state"), "active_allocated") != 0)
            continue;
        if (!tsr_pickle_count(blocks[i], "address", &was.address) ||
            !(tsr_pickle_count(blocks[i], "requested_size", &was.bytes) ||
              tsr_pickle_count(blocks[i], "size", &was.bytes)) ||
            was.bytes > INT64_MAX / 2)
            return damaged(s, s->n, "is followed by a block without address and size");
        if (!is_recorded(sorted, n_sorted, was.address))
            TSR_TRY(add_block(s, &was));
    }
    return TSR_OK;
}

/* What lives at the end, and was there before the recording. */
static tsr_status read_segments(struct snapshot *s)
{
    struct tsr_pickle_value **segments;
    size_t n = tsr_pickle_list(tsr_pickle_get(s->root, "segments"), &segments), n_sorted = 0;
    struct block *sorted = malloc((s->n_blocks + 1) * sizeof *sorted);
    if (!sorted)
        return tsr_no_memory(s->path);
    for (size_t i = 0; i < s->n_blocks; i++)
        if (s->blocks[i].to == UINT32_MAX)
            sorted[n_sorted++] = s->blocks[i];
    if (n_sorted)
        qsort(sorted, n_sorted, sizeof *sorted, by_place);
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < n && status == TSR_OK; i++)
        status = add_segment(s, segments[i], sorted, n_sorted);
    free(sorted);
    return status;
}

/* ---- the step -------------------------------------------------------------------------------- */

/* What is freed behind the end of a step belongs to it, but for gradients that the next one drops.
 */
static bool is_behind(const struct event *event, uint32_t step)
{
    return event->place.step < step || (event->place.step == step && event->kind == EVENT_FREE &&
                                        strcmp(event->place.phase, "zero_grad") != 0);
}

static size_t begin_of(const struct snapshot *s, uint32_t step)
{
    size_t i = 0;
    while (i < s->n && is_behind(&s->events[i], step))
        i++;
    return i;
}

/* The last step that ended; if none did, all is one. */
static void find_step(struct snapshot *s)
{
    uint32_t last = s->events[s->n - 1].place.step;
    bool own = s->events[s->n - 1].place.own;
    s->end = s->n;
    s->first = 0;
    if (own) { /* of `compare`: each event says its step */
        while (s->first < s->n && s->events[s->first].place.step != last)
            s->first++;
    } else if (last > 0) {
        s->first = last > 1 ? begin_of(s, last - 1) : 0;
        s->end = begin_of(s, last);
    }
}

/* ---- a run ----------------------------------------------------------------------------------- */

static tsr_status add_known(struct tsr_diff_run *run, const struct block *block,
                            const struct event *alloc)
{
    struct tsr_diff_block known = {block->bytes, TSR_DIFF_UNKNOWN, "(before the recording)"};
    if (alloc) {
        known.category = alloc->place.category;
        known.owner = *alloc->place.module ? alloc->place.module : "(root)";
    }
    if (TSR_PUSH(run->blocks, run->n_blocks, run->cap_blocks, known))
        return TSR_OK;
    return tsr_no_memory("blocks of a run");
}

static bool lives_at(const struct block *block, size_t event)
{
    bool before = block->from == UINT32_MAX || block->from < event;
    return before && (block->to == UINT32_MAX || block->to >= event);
}

struct aged {
    uint32_t block, from;
};

/* What was there before the recording comes first. */
static int by_age(const void *a, const void *b)
{
    const struct aged *x = a, *y = b;
    uint32_t p = x->from + 1, q = y->from + 1; /* UINT32_MAX: 0 */
    return p != q ? (p > q) - (p < q) : (x->block > y->block) - (x->block < y->block);
}

/* index[i]: of block i in the run. */
static tsr_status list_blocks(const struct snapshot *s, struct tsr_diff_run *run, uint32_t *index,
                              struct aged *aged, uint64_t *level)
{
    for (size_t i = 0; i < s->n_blocks; i++)
        aged[i] = (struct aged){(uint32_t)i, s->blocks[i].from};
    if (s->n_blocks)
        qsort(aged, s->n_blocks, sizeof *aged, by_age);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t k = 0; k < s->n_blocks; k++) {
            const struct block *block = &s->blocks[aged[k].block];
            bool at_start = lives_at(block, s->first);
            bool in_step =
                block->from != UINT32_MAX && block->from >= s->first && block->from < s->end;
            if (pass == 0 ? !at_start : !in_step)
                continue;
            index[aged[k].block] = (uint32_t)run->n_blocks;
            *level += at_start ? block->bytes : 0;
            TSR_TRY(
                add_known(run, block, block->from == UINT32_MAX ? NULL : &s->events[block->from]));
        }
        run->n_start = pass == 0 ? run->n_blocks : run->n_start;
    }
    return TSR_OK;
}

static tsr_status add_change(const struct snapshot *s, const struct event *event, uint32_t block,
                             struct tsr_diff_point *point, struct tsr_diff_run *run)
{
    uint64_t bytes = s->blocks[event->block].bytes;
    point->total += event->kind == EVENT_ALLOC ? bytes : -bytes;
    point->phase = event->place.phase;
    point->module = event->place.module;
    point->operation = event->place.operation;
    run->of_point[run->n] = block;
    return tsr_diff_add_point(run, point);
}

/* The level of the segments is known at the end, and followed back to the start. */
static tsr_status reserved_at(const struct snapshot *s, size_t event, uint64_t *out)
{
    *out = s->reserved;
    for (size_t i = s->n; i-- > event;) {
        uint64_t bytes = s->events[i].bytes;
        if (s->events[i].kind == EVENT_SEGMENT_GONE)
            *out += bytes;
        if (s->events[i].kind != EVENT_SEGMENT)
            continue;
        if (bytes > *out)
            return damaged(s, i, "reserves more than the segments at the end have");
        *out -= bytes;
    }
    return TSR_OK;
}

static tsr_status fill_run(const struct snapshot *s, struct tsr_diff_run *run, uint32_t *index,
                           struct aged *aged)
{
    struct tsr_diff_point point = {.phase = "", .module = "", .hook = "", .operation = ""};
    TSR_TRY(reserved_at(s, s->first, &point.reserved));
    TSR_TRY(list_blocks(s, run, index, aged, &point.total));
    TSR_TRY(tsr_diff_add_point(run, &point));
    for (size_t i = s->first; i < s->end; i++) {
        const struct event *event = &s->events[i];
        if (event->kind == EVENT_SEGMENT)
            point.reserved += event->bytes;
        else if (event->kind == EVENT_SEGMENT_GONE)
            point.reserved -= event->bytes;
        else
            TSR_TRY(add_change(s, event, index[event->block], &point, run));
    }
    return tsr_diff_count_blocks(run);
}

static tsr_status make_run(const struct snapshot *s, struct tsr_diff_run *run)
{
    uint32_t *index = calloc(s->n_blocks + 1, sizeof *index);
    struct aged *aged = malloc((s->n_blocks + 1) * sizeof *aged);
    run->of_point = calloc(s->n + 2, sizeof *run->of_point);
    bool there = index && aged && run->of_point;
    tsr_status status = there ? fill_run(s, run, index, aged) : tsr_no_memory(s->path);
    free(index);
    free(aged);
    return status;
}

static tsr_status take(struct snapshot *s, struct tsr_diff_run *run)
{
    TSR_TRY(find_trace(s));
    TSR_TRY(read_events(s, &run->arena));
    TSR_TRY(find_blocks(s));
    TSR_TRY(read_segments(s));
    find_step(s);
    return make_run(s, run);
}

tsr_status tsr_diff_load_snapshot(const char *path, struct tsr_diff_run *run)
{
    struct snapshot s = {.path = path};
    struct tsr_pickle_value *root = NULL;
    char *bytes = NULL;
    size_t n = 0;
    run->kind = "snapshot";
    TSR_TRY(tsr_gz_load(path, TSR_GZ_BYTES, &bytes, &n));
    tsr_status status = tsr_unpickle(path, bytes, n, &run->arena, &root);
    free(bytes);
    s.root = root;
    if (status == TSR_OK)
        status = take(&s, run);
    free(s.events);
    free(s.blocks);
    return status;
}
