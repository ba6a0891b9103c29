/* check.c: the checker's ranks: what each kind of instruction means to it (check.h). */
#include "engine/check/check.h"

#include <stdlib.h>
#include <string.h>

#include "engine/check/check_impl.h"

/* ---- instructions ---------------------------------------------------------------------------- */

static bool is_call(uint8_t kind)
{
    return (kind >= TSR_ALL_GATHER && kind <= TSR_RECV) || kind == TSR_CUSTOM_COLLECTIVE;
}

static bool is_device_work(uint8_t kind)
{
    return (kind >= TSR_COPY && kind <= TSR_RECV) || kind == TSR_CUSTOM_COLLECTIVE;
}

static bool is_known_stream(const struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    switch (instr->kind) {
    case TSR_HOST_WAIT:
    case TSR_HOST_OP:
    case TSR_MARK:
    case TSR_HOST_ALLOC:
    case TSR_HOST_FREE:
    case TSR_PIN:
        return true;
    default:
        return !r->tables || instr->stream < r->tables->n_streams;
    }
}

static bool take_note(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    struct tsr__note note = {.number = r->number++,
                             .section = (uint32_t)(r->n_sections - 1),
                             .name = instr->work ? instr->work->name : NULL,
                             .origin = instr->origin,
                             .kind = instr->kind,
                             .stream = instr->stream,
                             .comm = instr->comm};
    r->now = (uint32_t)r->n_notes;
    return r->n_notes < TSR__NONE && TSR_PUSH(r->notes, r->n_notes, r->cap_notes, note);
}

static void malformed(struct tsr__check_rank *r, const char *what)
{
    char text[TSR__TEXT];
    tsr__find(r, TSR_CHECK_STRUCTURE, tsr_hash_u64(tsr__note_key(r, r->now), (uintptr_t)what),
              &r->now, 1, "%s %s", tsr__short(r, r->now, text, sizeof text), what);
}

static void begin_section(struct tsr__check_rank *r, const char *name)
{
    if (!TSR_PUSH(r->sections, r->n_sections, r->cap_sections, name))
        tsr__check_no_memory(r);
    r->number = 0;
}

static void on_mark(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    if (instr->mark == TSR_MARK_ITERATION) {
        tsr__events_prune(r);
        r->iterations++;
        r->work_hash = TSR_HASH_INIT;
    } else if (instr->mark == TSR_MARK_ITERATION_END) {
        tsr__iteration_end(r);
    } else if (instr->mark == TSR_MARK_DROPPED) {
        struct tsr__buffer *b = tsr__buffer_find(r, instr->buffer);
        if (b)
            b->is_dropped = true;
    }
}

static void on_launch(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    bool begins = instr->kind == TSR_GROUP_BEGIN;
    if (begins == r->in_launch)
        malformed(r, begins ? "begins a launch inside a launch" : "ends a launch that never began");
    r->in_launch = begins;
    if (!begins)
        return;
    r->launch = ++r->n_launches;
    r->n_units++;
    r->launch_note = r->now;
}

static void add_to_work_hash(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    uint64_t hash =
        tsr_hash_u64(r->work_hash, instr->kind | (uint64_t)instr->stream << 8 |
                                       (uint64_t)instr->comm << 24 | (uint64_t)instr->dtype << 40);
    r->work_hash = tsr_hash_u64(hash, instr->bytes ^ (uint64_t)instr->n_operands << 48);
}

static void on_device_work(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    uint32_t lane = instr->stream + 1U;
    bool call = is_call(instr->kind);
    tsr__lane_issue(r, lane);
    if (r->n_pending > 0)
        tsr__settle_pending(r, lane);
    if (call)
        tsr__on_call(r, instr);
    else
        tsr__check_kernel(r, instr);
    tsr__operands(r, instr, lane);
    add_to_work_hash(r, instr);
}

static void on_host_work(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    tsr__host_step(r);
    tsr__check_kernel(r, instr);
    tsr__operands(r, instr, TSR__HOST_LANE);
    add_to_work_hash(r, instr);
}

/* Work of a stream, or a place in it: inside a launch it would stand before all of its calls. */
static bool is_out_of_place(const struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    bool event = instr->kind == TSR_RECORD || instr->kind == TSR_WAIT ||
                 instr->kind == TSR_HOST_WAIT || instr->kind == TSR_HOST_READ;
    return r->in_launch && (event || (is_device_work(instr->kind) && !is_call(instr->kind)));
}

static void dispatch(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    if (is_out_of_place(r, instr))
        malformed(r, "stands inside a launch, which holds calls only");
    switch (instr->kind) {
    case TSR_SEGMENT_ALLOC:
    case TSR_SEGMENT_FREE:
        tsr__on_segment(r, instr);
        break;
    case TSR_ALLOC:
        tsr__on_alloc(r, instr);
        break;
    case TSR_FREE:
        tsr__on_free(r, instr);
        break;
    case TSR_HOST_ALLOC:
        tsr__on_host_alloc(r, instr);
        break;
    case TSR_HOST_FREE:
        tsr__on_host_free(r, instr);
        break;
    case TSR_RECORD:
        tsr__record(r, instr);
        break;
    case TSR_WAIT:
        tsr__wait(r, instr, instr->stream + 1U);
        break;
    case TSR_HOST_WAIT:
        tsr__wait(r, instr, TSR__HOST_LANE);
        break;
    case TSR_HOST_READ:
        tsr__lane_issue(r, instr->stream + 1U);
        tsr__operands(r, instr, instr->stream + 1U);
        tsr__host_read(r, instr->stream + 1U);
        break;
    case TSR_HOST_OP:
        on_host_work(r, instr);
        break;
    case TSR_GROUP_BEGIN:
    case TSR_GROUP_END:
        on_launch(r, instr);
        break;
    case TSR_MARK:
        on_mark(r, instr);
        break;
    case TSR_PIN:
        tsr__on_pin(r, instr);
        break;
    case TSR_COMM_CREATE:
        break;
    default:
        if (is_device_work(instr->kind))
            on_device_work(r, instr);
        else
            malformed(r, "is of a kind that the checker does not know");
        break;
    }
}

static tsr_status check_submit(struct tsr_executor *x, const struct tsr_instr *instr)
{
    struct tsr__check_rank *r = (struct tsr__check_rank *)x;
    struct tsr_checker *c = r->checker;
    uint64_t findings = c->counts.findings;
    if (r->status != TSR_OK)
        return r->status;
    if (instr->kind == TSR_MARK && instr->mark == TSR_MARK_ITERATION) {
        tsr__notes_forget(r);
        begin_section(r, NULL);
    }
    r->n_instrs++;
    if (!take_note(r, instr) || !tsr__lane_reserve(r, instr->stream + 1U)) {
        if (instr->stream + 1U >= TSR__MAX_LANES)
            return tsr_fail(TSR_EUNSUPPORTED, "stream %u: at most %d streams can be checked",
                            instr->stream, TSR__MAX_LANES - 1);
        tsr__check_no_memory(r);
        return r->status;
    }
    if (is_known_stream(r, instr))
        dispatch(r, instr);
    else
        malformed(r, "names a stream that does not exist");
    if (r->status != TSR_OK)
        return r->status;
    if (c->config.stop && c->counts.findings > findings)
        return tsr_fail(TSR_EDEFECT, "%s",
                        c->n_findings ? c->findings[c->n_findings - 1].headline : "a defect");
    return r->next ? r->next->ops->submit(r->next, instr) : TSR_OK;
}

/* ---- the executor ---------------------------------------------------------------------------- */

static tsr_status check_drain(struct tsr_executor *x)
{
    const struct tsr__check_rank *r = (const struct tsr__check_rank *)x;
    return r->next && r->next->ops->drain ? r->next->ops->drain(r->next) : TSR_OK;
}

static tsr_status check_exchange(struct tsr_executor *x, const struct tsr_comm *comm,
                                 const void *in, void *out, size_t bytes)
{
    const struct tsr__check_rank *r = (const struct tsr__check_rank *)x;
    return r->next->ops->exchange(r->next, comm, in, out, bytes);
}

static const struct tsr_executor_ops check_ops = {.size = sizeof(struct tsr_executor_ops),
                                                  .version = TSR_EXECUTOR_VERSION,
                                                  .name = "check",
                                                  .submit = check_submit,
                                                  .drain = check_drain};
/* Only in front of an executor that has one: without it ranks contribute the same (executor.h). */
static const struct tsr_executor_ops check_exchange_ops = {.size = sizeof(struct tsr_executor_ops),
                                                           .version = TSR_EXECUTOR_VERSION,
                                                           .name = "check",
                                                           .submit = check_submit,
                                                           .drain = check_drain,
                                                           .exchange = check_exchange};

/* ---- ranks ----------------------------------------------------------------------------------- */

tsr_status tsr_checker_create(const struct tsr_checker_config *config, struct tsr_checker **out)
{
    *out = NULL;
    struct tsr_checker *c = calloc(1, sizeof *c);
    if (c)
        c->ranks = calloc(config->world + 1UL, sizeof(*c->ranks));
    if (!c || !c->ranks) {
        free(c);
        return tsr_fail(TSR_ENOMEM, "no memory left for a checker of %u ranks", config->world);
    }
    c->config = *config;
    tsr_arena_init(&c->arena);
    *out = c;
    return TSR_OK;
}

static void rank_destroy(struct tsr__check_rank *r)
{
    for (size_t i = 0; i < r->n_regions; i++)
        free(r->regions[i].spans);
    tsr_map_fini(&r->segments);
    tsr_map_fini(&r->pinned);
    tsr_map_fini(&r->ids);
    free(r->sections);
    free(r->notes);
    free(r->clocks);
    free(r->events);
    free(r->event_clocks);
    free(r->regions);
    free(r->free_regions);
    free(r->readers);
    free(r->buffers);
    free(r->free_buffers);
    free(r->pending);
    free(r->alive);
    free(r->calls);
    free(r);
}

void tsr_checker_destroy(struct tsr_checker *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < c->config.world; i++)
        if (c->ranks[i] && c->ranks[i]->rank != i)
            c->ranks[i] = NULL; /* like another one */
    for (uint32_t i = 0; i < c->config.world; i++)
        if (c->ranks[i])
            rank_destroy(c->ranks[i]);
    free(c->ranks);
    free(c->comms);
    free(c->findings);
    tsr_arena_fini(&c->arena);
    free(c);
}

static tsr_status check_new_rank(const struct tsr_checker *c, uint32_t rank)
{
    if (rank >= c->config.world)
        return tsr_fail(TSR_EVALUE, "rank %u; allowed: 0 to %u", rank, c->config.world - 1);
    if (c->ranks[rank])
        return tsr_fail(TSR_EVALUE, "rank %u is checked twice", rank);
    return TSR_OK;
}

tsr_status tsr_checker_rank(struct tsr_checker *c, uint32_t rank, const struct tsr_tables *tables,
                            struct tsr_executor *next, struct tsr_executor **out)
{
    TSR_TRY(check_new_rank(c, rank));
    struct tsr__check_rank *r = calloc(1, sizeof *r);
    if (!r)
        return tsr_fail(TSR_ENOMEM, "no memory left to check rank %u", rank);
    bool exchanges = next && next->ops->size >= sizeof *next->ops && next->ops->exchange;
    r->base.ops = exchanges ? &check_exchange_ops : &check_ops;
    r->checker = c;
    r->next = next;
    r->tables = tables;
    r->rank = rank;
    r->free_reader = TSR__NONE;
    r->work_hash = TSR_HASH_INIT;
    begin_section(r, "init");
    if (r->status == TSR_OK && !tsr__lane_reserve(r, TSR__HOST_LANE))
        tsr__check_no_memory(r);
    tsr_status status = r->status;
    if (status != TSR_OK) {
        rank_destroy(r);
        return status;
    }
    c->ranks[rank] = r;
    *out = &r->base;
    return TSR_OK;
}

void tsr_checker_set_tables(struct tsr_checker *c, uint32_t rank, const struct tsr_tables *tables)
{
    c->ranks[rank]->tables = tables;
}

tsr_status tsr_checker_same(struct tsr_checker *c, uint32_t rank, uint32_t as)
{
    TSR_TRY(check_new_rank(c, rank));
    if (as >= c->config.world || !c->ranks[as])
        return tsr_fail(TSR_EVALUE, "rank %u does what rank %u does, which is not known", rank, as);
    c->ranks[rank] = c->ranks[as];
    return TSR_OK;
}

void tsr_checker_section(struct tsr_checker *c, uint32_t rank, const char *name)
{
    begin_section(c->ranks[rank], name);
}

tsr_status tsr_checker_finish(struct tsr_checker *c)
{
    for (uint32_t i = 0; i < c->config.world; i++) {
        struct tsr__check_rank *r = c->ranks[i];
        if (!r || r->rank != i)
            continue;
        TSR_TRY(r->status);
        tsr__report_refused(r);
        if (r->in_launch) {
            r->now = r->launch_note;
            malformed(r, "begins a launch that never ends");
            r->in_launch = false;
        }
    }
    return tsr__compare_ranks(c);
}

/* ---- results --------------------------------------------------------------------------------- */

size_t tsr_checker_n_findings(const struct tsr_checker *c)
{
    return c->n_findings;
}

const struct tsr_finding *tsr_checker_finding(const struct tsr_checker *c, size_t i)
{
    return &c->findings[i];
}

struct tsr_checker_counts tsr_checker_counts(const struct tsr_checker *c)
{
    struct tsr_checker_counts counts = c->counts;
    for (uint32_t i = 0; i < c->config.world; i++) {
        const struct tsr__check_rank *r = c->ranks[i];
        counts.n_ranks += r != NULL;
        if (!r || r->rank != i)
            continue;
        counts.n_programs++;
        counts.instrs += r->n_instrs;
        counts.collectives += r->n_calls;
    }
    return counts;
}
