/* test_exact_memory.c: memory as the host holds it equals what the simulator replays from the
 * program, byte for byte, after every iteration and at its peak: blocks that lie apart from each
 * other in backed memory, segments as the kernel's list of mappings shows them, pageable and pinned
 * memory of the host.
 */
#include "engine/graph/host_memory.h"
#include "engine/program/memory.h"
#include "tests/exec/jobs_testing.h"

enum { STEPS = 3, MAX_LIVE = 4096, MAX_CHUNKS = 64, CHUNK_BITS = 34 };

/* Stands before the executor of a rank and keeps its own list of what is there. */
struct witness {
    struct tsr_executor base;
    struct tsr_executor *inner;
    const struct job_rank *rank;
    size_t n_live;
    struct {
        uint32_t buffer;
        const char *at;
        uint64_t bytes;
    } live[MAX_LIVE];
    uint64_t allocated, peak_allocated, peak_backed;
    size_t n_chunks; /* of addresses that segments lie in */
    uint64_t chunks[MAX_CHUNKS];
    struct tsr_memory *memory; /* the replay */
    struct tsr_host_level host, most_host;
};

static struct witness witnesses[JOB_RANKS];

/* Bytes of [from, to) that may be written. */
static uint64_t writable(FILE *maps, uintptr_t from, uintptr_t to)
{
    char line[4096], rights[8];
    unsigned long begin, end;
    uint64_t sum = 0;
    rewind(maps);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %7s", &begin, &end, rights) != 3 || strncmp(rights, "rw", 2) != 0)
            continue;
        begin = begin > from ? begin : from;
        end = end < to ? end : to;
        sum += begin < end ? end - begin : 0;
    }
    return sum;
}

/* Bytes of segments that the process holds for this rank, from /proc. */
static uint64_t backed(const struct witness *w)
{
    struct tsr_device *device = w->rank->device;
    uint64_t sum = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps)
        return UINT64_MAX;
    for (size_t i = 0; i < w->n_chunks; i++) {
        uintptr_t begin = (uintptr_t)device->ops->at(device, w->chunks[i] << CHUNK_BITS);
        sum += writable(maps, begin, begin + (UINT64_C(1) << CHUNK_BITS));
    }
    fclose(maps);
    return sum;
}

static tsr_status saw_segment(struct witness *w, const struct tsr_instr *instr)
{
    uint64_t chunk = instr->address >> CHUNK_BITS;
    size_t i = 0;
    while (i < w->n_chunks && w->chunks[i] != chunk)
        i++;
    if (i == MAX_CHUNKS)
        return tsr_fail(TSR_EDEFECT, "segments in too many places");
    if (i == w->n_chunks)
        w->chunks[w->n_chunks++] = chunk;
    w->peak_backed = tsr_max_u64(w->peak_backed, backed(w));
    return TSR_OK;
}

static tsr_status saw_alloc(struct witness *w, const struct tsr_instr *instr)
{
    const char *at = tsr_exec_peek(w->inner, instr->buffer);
    uint64_t bytes = instr->block_bytes;
    if (w->n_live == MAX_LIVE)
        return tsr_fail(TSR_EDEFECT, "too many buffers");
    for (size_t i = 0; i < w->n_live; i++)
        if (at < w->live[i].at + w->live[i].bytes && w->live[i].at < at + bytes)
            return tsr_fail(TSR_EDEFECT, "buffers %u and %u overlap", instr->buffer,
                            w->live[i].buffer);
    w->live[w->n_live].buffer = instr->buffer;
    w->live[w->n_live].at = at;
    w->live[w->n_live++].bytes = bytes;
    w->allocated += bytes;
    w->peak_allocated = tsr_max_u64(w->peak_allocated, w->allocated);
    return TSR_OK;
}

static tsr_status saw_free(struct witness *w, const struct tsr_instr *instr)
{
    size_t i = 0;
    while (i < w->n_live && w->live[i].buffer != instr->buffer)
        i++;
    if (i == w->n_live)
        return tsr_fail(TSR_EDEFECT, "buffer %u is freed and was not seen", instr->buffer);
    w->allocated -= w->live[i].bytes;
    w->live[i] = w->live[--w->n_live];
    return TSR_OK;
}

static void saw_host(struct witness *w)
{
    struct tsr_exec_memory m = tsr_exec_memory(w->inner);
    w->most_host.host = tsr_max_u64(w->most_host.host, m.host);
    w->most_host.pinned = tsr_max_u64(w->most_host.pinned, m.pinned);
    w->most_host.held = tsr_max_u64(w->most_host.held, m.held);
}

static tsr_status submit(struct tsr_executor *x, const struct tsr_instr *instr)
{
    struct witness *w = (struct witness *)x;
    TSR_TRY(w->inner->ops->submit(w->inner, instr));
    switch (instr->kind) {
    case TSR_SEGMENT_ALLOC:
        return saw_segment(w, instr);
    case TSR_ALLOC:
        return saw_alloc(w, instr);
    case TSR_FREE:
        return saw_free(w, instr);
    case TSR_HOST_ALLOC:
    case TSR_PIN:
        saw_host(w);
        return TSR_OK;
    default:
        return TSR_OK;
    }
}

static tsr_status drain(struct tsr_executor *x)
{
    struct witness *w = (struct witness *)x;
    return w->inner->ops->drain(w->inner);
}

static tsr_status exchange(struct tsr_executor *x, const struct tsr_comm *comm, const void *in,
                           void *out, size_t bytes)
{
    struct witness *w = (struct witness *)x;
    return w->inner->ops->exchange(w->inner, comm, in, out, bytes);
}

static const struct tsr_executor_ops ops = {.size = sizeof ops,
                                            .version = TSR_EXECUTOR_VERSION,
                                            .name = "witness",
                                            .submit = submit,
                                            .drain = drain,
                                            .exchange = exchange};

static struct tsr_executor *insert(struct job_rank *rank, struct tsr_executor *executor)
{
    struct witness *w = &witnesses[rank->rank];
    *w = (struct witness){.base = {.ops = &ops}, .inner = executor, .rank = rank};
    (void)!tsr_memory_create(&w->memory);
    return &w->base;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* On the rank's own thread: what differs is told by the rank's failure. */
static void expect(struct job_rank *r, uint32_t i, const char *what, uint64_t is, uint64_t replayed)
{
    if (is == replayed || r->text[0])
        return;
    snprintf(r->text, sizeof r->text, "program %u: %s: %llu bytes, %llu replayed", i, what,
             (unsigned long long)is, (unsigned long long)replayed);
}

static void expect_host(struct job_rank *r, uint32_t i, const struct tsr_host_level *level)
{
    struct tsr_exec_memory m = tsr_exec_memory(r->executor);
    expect(r, i, "pageable memory", m.host, level->host);
    expect(r, i, "pinned memory", m.pinned, level->pinned);
    expect(r, i, "page-locked memory", m.held, level->held);
}

static void ran(struct job_rank *r, uint32_t i)
{
    struct witness *w = &witnesses[r->rank];
    struct tsr_exec_memory m = tsr_exec_memory(r->executor);
    struct tsr_memory_peak peak;
    struct tsr_host_peak host;
    uint64_t mapped, most;
    if (!w->memory || tsr_memory_replay(w->memory, &r->programs[i], NULL, NULL, &peak) != TSR_OK ||
        tsr_host_replay(&w->host, &r->programs[i], &host) != TSR_OK) {
        snprintf(r->text, sizeof r->text, "program %u: %s", i, tsr_error_text());
        return;
    }
    struct tsr_memory_level level = tsr_memory_level_of(w->memory);
    expect(r, i, "live blocks, as counted", m.allocated, level.total);
    expect(r, i, "live blocks, as seen", w->allocated, level.total);
    expect(r, i, "peak of live blocks, as counted", m.peak_allocated, peak.allocated);
    expect(r, i, "peak of live blocks, as seen", w->peak_allocated, peak.allocated);
    expect(r, i, "segments, as counted", m.mapped, level.reserved);
    expect(r, i, "segments, of the process", backed(w), level.reserved);
    expect(r, i, "peak of segments, as counted", m.peak_mapped, peak.reserved);
    expect(r, i, "peak of segments, of the process", w->peak_backed, peak.reserved);
    test_device_mapped(r->device, &mapped, &most);
    expect(r, i, "segments of the device", mapped, level.reserved);
    expect_host(r, i, &w->host);
    expect(r, i, "peak of pageable memory", w->most_host.host, host.most.host);
    expect(r, i, "peak of pinned memory", w->most_host.pinned, host.most.pinned);
    expect(r, i, "peak of page-locked memory", w->most_host.held, host.most.held);
    w->most_host = w->host;
    w->peak_allocated = w->allocated;
    w->peak_backed = backed(w);
}

static uint64_t compare(const struct strategies *s, const char *name)
{
    const struct job_config config = {
        .n_steps = STEPS, .poison = true, .hooks = {.executor = insert, .ran = ran}};
    struct tsr_job job;
    struct job_rank *ranks;
    strategies_job(s, name, &job);
    job_run_ok(&job, &config, &ranks);
    uint64_t pinned = witnesses[0].host.held;
    for (uint32_t r = 0; r < job.world; r++) {
        if (ranks[r].text[0])
            fail_msg("%s: rank %u: %s", name, r, ranks[r].text);
        assert_true(witnesses[r].allocated > 0 && witnesses[r].peak_backed > 0);
        tsr_memory_destroy(witnesses[r].memory);
    }
    job_close(ranks);
    tsr_job_close(&job);
    return pinned;
}

static void memory__every_strategy__as_the_simulator_has_it(void **state)
{
    struct strategies s;
    (void)state;
    strategies_open(&s);
    const struct strategies_walk walk = strategies_walk(4, 1);
    for (size_t i = walk.first; i < s.file.n; i += walk.stride) {
        uint64_t pinned = compare(&s, s.file.strategies[i].name);
        assert_true(pinned > 0); /* batches come from there */
    }
    strategies_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory__every_strategy__as_the_simulator_has_it),
    };
    return cmocka_run_group_tests_name("exact memory", tests, NULL, NULL);
}
