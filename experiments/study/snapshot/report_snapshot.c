/* report_snapshot.c: snapshot.pickle, the memory of a run as PyTorch's memory snapshots have it.
 *
 * The dictionary is that of torch.cuda.memory._snapshot() (torch 2.11): what the allocator holds at
 * the end (segments), every event since the start of the process (device_traces), steps and phases
 * (external_annotations) and the allocator's settings. As there, the size of an event is what was
 * requested, the size of a block what it took. Addresses are relative to the device's lowest; times
 * are those of the host's issue. Added: the category of an allocation, by which the viewer colours.
 */
#include "experiments/study/base/files.h"
#include "experiments/study/report/report.h"
#include "experiments/study/snapshot/report_frames.h"
#include "experiments/study/snapshot/report_heap.h"

#include <stdlib.h>
#include <string.h>

struct snapshot {
    const struct tsr_history *history;
    struct tsr__frames frames;
    struct tsr__heap heap;
    uint32_t n_buffers;
    const char **purpose; /* [n_buffers]: the operation that uses it first; NULL: none */
};

/* ---- small parts of dictionaries ---------------------------------------------------------- */

static void put_text(struct snapshot *s, const char *key, const char *value)
{
    tsr__frames_text(&s->frames, key);
    tsr__frames_text(&s->frames, value);
    tsr__pickle_set(&s->frames.pickle);
}

static void put_int(struct snapshot *s, const char *key, uint64_t value)
{
    tsr__frames_text(&s->frames, key);
    tsr__pickle_int(&s->frames.pickle, (int64_t)value);
    tsr__pickle_set(&s->frames.pickle);
}

static void put_stack(struct snapshot *s, const struct tsr_program *program,
                      const struct tsr_instr *instr, const char *op)
{
    tsr__frames_text(&s->frames, "frames");
    tsr__frames_stack(&s->frames, program, instr, op);
    tsr__pickle_set(&s->frames.pickle);
}

static void put_no_stack(struct snapshot *s)
{
    tsr__frames_text(&s->frames, "frames");
    tsr__pickle_list(&s->frames.pickle);
    tsr__pickle_set(&s->frames.pickle);
}

/* The host's time; unknown, the key is left out. */
static void put_time(struct snapshot *s, uint32_t program, size_t instr)
{
    if (s->history->spans)
        put_int(s, "time_us", (uint64_t)(s->history->spans[program][instr].issue * 1e6 + 0.5));
}

static size_t n_instrs(const struct tsr_history *history, uint32_t i)
{
    return i + 1 == history->n ? history->n_last : history->programs[i]->n_instrs;
}

static const struct tsr_program *program_of(const struct tsr_history *history,
                                            const struct tsr_instr *instr)
{
    uint32_t i = 0;
    while (i + 1 < history->n &&
           (instr < history->programs[i]->instrs ||
            instr >= history->programs[i]->instrs + history->programs[i]->n_instrs))
        i++;
    return history->programs[i];
}

/* ---- what buffers are for ----------------------------------------------------------------- */

static const char *name_of(const struct tsr_instr *instr)
{
    return instr->work && instr->work->name ? instr->work->name : tsr_instr_kind_name(instr->kind);
}

static tsr_status find_purposes(struct snapshot *s)
{
    s->n_buffers = tsr__n_buffers(s->history->programs, s->history->n);
    s->purpose = calloc(s->n_buffers ? s->n_buffers : 1, sizeof *s->purpose);
    if (!s->purpose)
        return tsr_fail(TSR_ENOMEM, "no memory left for a snapshot");
    for (uint32_t i = 0; i < s->history->n; i++) {
        for (size_t k = 0; k < n_instrs(s->history, i); k++) {
            const struct tsr_instr *instr = &s->history->programs[i]->instrs[k];
            for (uint32_t o = 0; o < instr->n_operands; o++) {
                uint32_t buffer = instr->operands[o].buffer;
                if (buffer < s->n_buffers && !s->purpose[buffer])
                    s->purpose[buffer] = name_of(instr);
            }
        }
    }
    return TSR_OK;
}

/* The viewer has ten colours: owners in families. Once an event has a category, the viewer wants
 * one that is "unknown": segments are. */
static const char *family(int category)
{
    static const char *const names[TSR_N_CATEGORIES] = {
        [TSR_CAT_SHARDED_PARAM] = "parameters",
        [TSR_CAT_BUFFER] = "parameters",
        [TSR_CAT_INIT] = "parameters",
        [TSR_CAT_INPUTS] = "inputs",
        [TSR_CAT_ALL_GATHER] = "gathered parameters",
        [TSR_CAT_ALL_GATHER_INPUT] = "gathered parameters",
        [TSR_CAT_UNSHARDED_PARAM] = "gathered parameters",
        [TSR_CAT_POST_FORWARD_SHARD] = "gathered parameters",
        [TSR_CAT_UNSHARDED_GRAD] = "unsharded gradients",
        [TSR_CAT_UNSHARDED_ACC_GRAD] = "unsharded gradients",
        [TSR_CAT_REDUCE_SCATTER] = "reduction",
        [TSR_CAT_REDUCE_SCATTER_OUTPUT] = "reduction",
        [TSR_CAT_PARTIAL_REDUCE_OUTPUT] = "reduction",
        [TSR_CAT_SHARDED_GRAD] = "gradients",
        [TSR_CAT_OPT_STATE] = "optimizer state",
        [TSR_CAT_ACTIVATION] = "activations",
        [TSR_CAT_OPT_TEMP] = "scratch",
        [TSR_CAT_TEMP] = "scratch",
        [TSR_CAT_WORKSPACE] = "scratch",
    };
    const char *name = category >= 0 && category < TSR_N_CATEGORIES ? names[category] : NULL;
    return name ? name : "unknown";
}

/* ---- events ------------------------------------------------------------------------------- */

/* PyTorch's events have only what was requested. Where the block is larger than that, rounded up to
 * 512 bytes, because a remainder was not split off, the event says so for `tessera diff`. */
static void put_block_size(struct snapshot *s, const struct tsr_instr *instr)
{
    bool of_block = instr->kind == TSR_ALLOC || instr->kind == TSR_FREE;
    if (of_block && instr->block_bytes != tsr_round_up(instr->bytes + !instr->bytes, 512))
        put_int(s, "block_size", instr->block_bytes);
}

static void put_event(struct snapshot *s, const char *action, uint32_t i, size_t k)
{
    const struct tsr_program *program = s->history->programs[i];
    const struct tsr_instr *instr = &program->instrs[k];
    bool is_alloc = instr->kind == TSR_ALLOC;
    tsr__pickle_dict(&s->frames.pickle);
    put_text(s, "action", action);
    put_int(s, "addr", instr->address);
    put_int(s, "size", instr->bytes);
    put_block_size(s, instr);
    put_int(s, "stream", instr->stream);
    put_stack(s, program, instr,
              is_alloc && instr->buffer < s->n_buffers ? s->purpose[instr->buffer] : NULL);
    put_time(s, i, k);
    if (is_alloc)
        put_text(s, "category", family(instr->category));
    else if (instr->kind != TSR_FREE)
        put_text(s, "category", "unknown");
    tsr__pickle_append(&s->frames.pickle);
}

static void put_events_of(struct snapshot *s, uint32_t i, size_t k)
{
    bool expandable = s->history->allocator && s->history->allocator->expandable_segments;
    switch (s->history->programs[i]->instrs[k].kind) {
    case TSR_ALLOC:
        put_event(s, "alloc", i, k);
        break;
    case TSR_FREE: /* no stream holds a block back: both at once */
        put_event(s, "free_requested", i, k);
        put_event(s, "free_completed", i, k);
        break;
    case TSR_SEGMENT_ALLOC:
        put_event(s, expandable ? "segment_map" : "segment_alloc", i, k);
        break;
    case TSR_SEGMENT_FREE:
        put_event(s, expandable ? "segment_unmap" : "segment_free", i, k);
        break;
    default:
        break;
    }
}

static void put_oom(struct snapshot *s)
{
    const struct tsr_oom *oom = s->history->oom;
    struct tsr_instr request = {.kind = TSR_ALLOC,
                                .category = oom->category,
                                .bytes = oom->memory.requested,
                                .origin = oom->origin};
    tsr__pickle_dict(&s->frames.pickle);
    put_text(s, "action", "oom");
    put_int(s, "device_free", oom->memory.free);
    put_int(s, "size", oom->memory.requested);
    put_int(s, "stream", oom->memory.stream);
    put_stack(s, s->history->programs[s->history->n - 1], &request, NULL);
    tsr__pickle_append(&s->frames.pickle);
}

static tsr_status put_trace(struct snapshot *s)
{
    tsr__frames_text(&s->frames, "device_traces");
    tsr__pickle_list(&s->frames.pickle);
    tsr__pickle_list(&s->frames.pickle);
    for (uint32_t i = 0; i < s->history->n; i++) {
        for (size_t k = 0; k < n_instrs(s->history, i); k++) {
            TSR_TRY(tsr__heap_apply(&s->heap, s->history->programs[i], k));
            put_events_of(s, i, k);
        }
    }
    if (s->history->oom)
        put_oom(s);
    tsr__pickle_append(&s->frames.pickle); /* of the one device */
    tsr__pickle_set(&s->frames.pickle);
    return TSR_OK;
}

/* ---- segments ----------------------------------------------------------------------------- */

static void put_free_block(struct snapshot *s, uint64_t address, uint64_t bytes)
{
    if (!bytes)
        return;
    tsr__pickle_dict(&s->frames.pickle);
    put_int(s, "address", address);
    put_int(s, "size", bytes);
    put_int(s, "requested_size", 0);
    put_text(s, "state", "inactive");
    put_no_stack(s);
    tsr__pickle_append(&s->frames.pickle);
}

static void put_block(struct snapshot *s, const struct tsr_instr *alloc)
{
    tsr__pickle_dict(&s->frames.pickle);
    put_int(s, "address", alloc->address);
    put_int(s, "size", alloc->block_bytes);
    put_int(s, "requested_size", alloc->bytes);
    put_text(s, "state", "active_allocated");
    put_stack(s, program_of(s->history, alloc), alloc, s->purpose[alloc->buffer]);
    tsr__pickle_append(&s->frames.pickle);
}

static bool is_in(const struct tsr__range *range, const struct tsr_instr *alloc)
{
    return alloc->address >= range->address &&
           alloc->address + alloc->block_bytes <= range->address + range->bytes;
}

static void put_sums(struct snapshot *s, const struct tsr__range *range,
                     const struct tsr_instr *const *live, size_t n)
{
    uint64_t allocated = 0, requested = 0;
    for (size_t i = 0; i < n && is_in(range, live[i]); i++) {
        allocated += live[i]->block_bytes;
        requested += live[i]->bytes;
    }
    put_int(s, "total_size", range->bytes);
    put_int(s, "allocated_size", allocated);
    put_int(s, "active_size", allocated);
    put_int(s, "requested_size", requested);
}

/* `live` begins at the first block of the range; returns how many are in it. */
static size_t put_segment(struct snapshot *s, const struct tsr__range *range,
                          const struct tsr_instr *const *live, size_t n)
{
    const uint64_t small_segment = UINT64_C(2) << 20; /* large ones are never this size */
    struct tsr__pickle *pickle = &s->frames.pickle;
    uint64_t at = range->address;
    size_t i = 0;
    tsr__pickle_dict(pickle);
    put_int(s, "device", 0);
    put_int(s, "address", range->address);
    put_sums(s, range, live, n);
    put_int(s, "stream", range->stream);
    put_text(s, "segment_type", range->first_bytes == small_segment ? "small" : "large");
    tsr__frames_text(&s->frames, "segment_pool_id");
    tsr__pickle_int(pickle, 0);
    tsr__pickle_int(pickle, 0);
    tsr__pickle_pair(pickle);
    tsr__pickle_set(pickle);
    tsr__frames_text(&s->frames, "is_expandable");
    tsr__pickle_bool(pickle, s->history->allocator && s->history->allocator->expandable_segments);
    tsr__pickle_set(pickle);
    put_stack(s, program_of(s->history, range->origin), range->origin, NULL);
    tsr__frames_text(&s->frames, "blocks");
    tsr__pickle_list(pickle);
    for (; i < n && is_in(range, live[i]); i++) {
        put_free_block(s, at, live[i]->address - at);
        put_block(s, live[i]);
        at = live[i]->address + live[i]->block_bytes;
    }
    put_free_block(s, at, range->address + range->bytes - at);
    tsr__pickle_set(pickle);
    tsr__pickle_append(pickle);
    return i;
}

static tsr_status put_segments(struct snapshot *s)
{
    const struct tsr_instr **live;
    size_t n, k = 0;
    tsr__heap_tidy(&s->heap);
    TSR_TRY(tsr__heap_live(&s->heap, &live, &n));
    tsr__frames_text(&s->frames, "segments");
    tsr__pickle_list(&s->frames.pickle);
    for (size_t i = 0; i < s->heap.n_ranges; i++) {
        while (k < n && live[k]->address < s->heap.ranges[i].address)
            k++;
        k += put_segment(s, &s->heap.ranges[i], live + k, n - k);
    }
    tsr__pickle_set(&s->frames.pickle);
    free(live);
    return TSR_OK;
}

/* ---- the rest ----------------------------------------------------------------------------- */

static void put_annotation(struct snapshot *s, const char *name, const char *stage, uint32_t i,
                           size_t k)
{
    tsr__pickle_dict(&s->frames.pickle);
    put_text(s, "name", name);
    put_text(s, "stage", stage);
    put_int(s, "device", 0);
    put_time(s, i, k);
    tsr__pickle_append(&s->frames.pickle);
}

/* Phases follow one another; each ends where the next begins. */
static void put_phases(struct snapshot *s, uint32_t i)
{
    const struct tsr_program *program = s->history->programs[i];
    const char *open = NULL;
    for (size_t k = 0; k < n_instrs(s->history, i); k++) {
        const struct tsr_instr *instr = &program->instrs[k];
        if (instr->kind != TSR_MARK || instr->mark != TSR_MARK_PHASE)
            continue;
        if (open)
            put_annotation(s, open, "END", i, k);
        open = tsr_phase_name(instr->origin.phase);
        put_annotation(s, open, "START", i, k);
    }
    if (open)
        put_annotation(s, open, "END", i, n_instrs(s->history, i) - 1);
}

static void put_annotations(struct snapshot *s)
{
    tsr__frames_text(&s->frames, "external_annotations");
    tsr__pickle_list(&s->frames.pickle);
    for (uint32_t i = 0; s->history->spans && i < s->history->n; i++) {
        char name[64];
        if (!n_instrs(s->history, i))
            continue;
        if (s->history->programs[i]->iteration < 0)
            (void)snprintf(name, sizeof name, "initialisation");
        else
            (void)snprintf(name, sizeof name, "ProfilerStep#%d",
                           s->history->programs[i]->iteration);
        put_annotation(s, name, "START", i, 0);
        put_phases(s, i);
        put_annotation(s, name, "END", i, n_instrs(s->history, i) - 1);
    }
    tsr__pickle_set(&s->frames.pickle);
}

static void put_settings(struct snapshot *s)
{
    static const struct tsr_allocator_config defaults;
    const struct tsr_allocator_config *config =
        s->history->allocator ? s->history->allocator : &defaults;
    struct tsr__pickle *pickle = &s->frames.pickle;
    tsr__frames_text(&s->frames, "allocator_settings");
    tsr__pickle_dict(pickle);
    tsr__frames_text(&s->frames, "max_split_size");
    tsr__pickle_int(pickle, config->max_split_bytes ? (int64_t)config->max_split_bytes : -1);
    tsr__pickle_set(pickle);
    tsr__frames_text(&s->frames, "garbage_collection_threshold");
    tsr__pickle_real(pickle, config->gc_threshold);
    tsr__pickle_set(pickle);
    tsr__frames_text(&s->frames, "expandable_segments");
    tsr__pickle_bool(pickle, config->expandable_segments);
    tsr__pickle_set(pickle);
    tsr__pickle_set(pickle);
}

static tsr_status put_all(struct snapshot *s)
{
    TSR_TRY(find_purposes(s));
    tsr__pickle_dict(&s->frames.pickle);
    TSR_TRY(put_trace(s));
    TSR_TRY(put_segments(s));
    put_settings(s);
    put_annotations(s);
    tsr__pickle_end(&s->frames.pickle);
    return s->frames.failed ? tsr_fail(TSR_ENOMEM, "no memory left for a snapshot") : TSR_OK;
}

static tsr_status write_snapshot(FILE *out, const void *user)
{
    struct snapshot s = {.history = user};
    TSR_TRY(tsr__heap_init(&s.heap));
    tsr__frames_init(&s.frames, out);
    tsr_status status = put_all(&s);
    tsr__frames_fini(&s.frames);
    free(s.purpose);
    tsr__heap_fini(&s.heap);
    return status;
}

tsr_status tsr_report_snapshot(const char *folder, const struct tsr_history *history)
{
    return tsr_write_in(folder, "snapshot.pickle", write_snapshot, history);
}
