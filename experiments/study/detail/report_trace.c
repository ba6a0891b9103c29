/* report_trace.c: trace.json for chrome://tracing, ui.perfetto.dev and readers of Kineto's traces.
 *
 * Tracks: steps, phases, fully_shard's hooks and actions, the host, one per stream, and memory
 * counters. A viewer refuses events of
 * one track that overlap, so each track remembers where its last event ended; times are whole
 * nanoseconds, since rounding start and duration apart would make neighbours overlap.
 */
#include "experiments/study/detail/report_detail.h"
#include "experiments/study/job/owner.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/snapshot/report_frames.h"

#include <inttypes.h>
#include <stdlib.h>

enum {
    TID_STEP,
    TID_PHASE,
    TID_HOOK,
    TID_ACTION,
    TID_HOST,
    TID_STREAMS,
    MAX_TRACKS = TID_STREAMS + 64
};

/* Neighbouring instructions of one hook, or of one action in it, while the last one is not known.
 */
struct label {
    const struct tsr_instr *first; /* NULL: none is open */
    double start, end;             /* host's time */
};

struct trace {
    FILE *out;
    double origin;             /* simulation's time of ts = 0 */
    int64_t ended[MAX_TRACKS]; /* [tid]: nanoseconds */
    uint32_t pid;
    uint64_t correlation;
    bool first; /* no event has been written */
    struct label hook, action;
};

static int64_t nanoseconds(const struct trace *t, double time)
{
    return (int64_t)((time - t->origin) * 1e9 + 0.5);
}

static void begin_event(struct trace *t)
{
    fputs(t->first ? "\n" : ",\n", t->out);
    t->first = false;
}

static void put_us(FILE *out, const char *key, int64_t ns)
{
    fprintf(out, "\"%s\":%" PRId64 ".%03" PRId64, key, ns / 1000, ns % 1000);
}

/* An X event up to its args, which the caller adds: `{...}}`. Returns its start in nanoseconds. */
static int64_t begin_slice(struct trace *t, int tid, double start, double end, const char *name,
                           const char *cat)
{
    int64_t from = nanoseconds(t, start), to = nanoseconds(t, end);
    from = from < t->ended[tid] ? t->ended[tid] : from;
    to = to < from ? from : to;
    t->ended[tid] = to;
    begin_event(t);
    fprintf(t->out, "{\"ph\":\"X\",\"pid\":%" PRIu32 ",\"tid\":%d,", t->pid, tid);
    put_us(t->out, "ts", from);
    fputc(',', t->out);
    put_us(t->out, "dur", to - from);
    fputs(",\"name\":", t->out);
    tsr__put_json(t->out, name);
    fprintf(t->out, ",\"cat\":\"%s\",\"args\":", cat);
    return from;
}

/* One end of the arrow from the host's launch ('s') to the work on the device ('f'), as Kineto's
 * traces have it. */
static void put_arrow(struct trace *t, char end, int tid, int64_t ns)
{
    begin_event(t);
    fprintf(t->out, "{\"ph\":\"%c\",\"id\":%" PRIu64 ",\"pid\":%" PRIu32 ",\"tid\":%d,", end,
            t->correlation, t->pid, tid);
    put_us(t->out, "ts", ns);
    fprintf(t->out, ",\"cat\":\"ac2g\",\"name\":\"ac2g\"%s}", end == 'f' ? ",\"bp\":\"e\"" : "");
}

/* ---- names of tracks ---------------------------------------------------------------------- */

static void put_meta(struct trace *t, const char *what, int tid, const char *name)
{
    begin_event(t);
    fprintf(t->out, "{\"ph\":\"M\",\"pid\":%" PRIu32 ",\"tid\":%d,\"name\":\"%s\",\"args\":{",
            t->pid, tid, what);
    fputs("\"name\":", t->out);
    tsr__put_json(t->out, name);
    fputs("}}", t->out);
}

static void put_track(struct trace *t, int tid, const char *name)
{
    put_meta(t, "thread_name", tid, name);
    begin_event(t);
    fprintf(t->out,
            "{\"ph\":\"M\",\"pid\":%" PRIu32
            ",\"tid\":%d,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}}",
            t->pid, tid, tid);
}

static void put_names(struct trace *t, const struct tsr__page *page)
{
    const struct tsr_tables *tables = page->view->tables;
    char name[160];
    (void)snprintf(name, sizeof name, "rank %" PRIu32 " (%s, simulated)", t->pid,
                   page->info->gpu_name);
    put_meta(t, "process_name", TID_STEP, name);
    put_track(t, TID_STEP, "step");
    put_track(t, TID_PHASE, "phase");
    put_track(t, TID_HOOK, "hook of fully_shard");
    put_track(t, TID_ACTION, "action of fully_shard");
    put_track(t, TID_HOST, "host");
    for (int s = 0; s < tables->n_streams && s < MAX_TRACKS - TID_STREAMS; s++) {
        bool compute = s == page->view->compute;
        (void)snprintf(name, sizeof name, "stream %d: %s", s,
                       compute ? "compute" : tables->streams[s].name);
        put_track(t, TID_STREAMS + s, name);
    }
}

/* ---- slices ------------------------------------------------------------------------------- */

static tsr_status put_annotations(struct trace *t, const struct tsr__view *view)
{
    char name[64];
    (void)snprintf(name, sizeof name, "ProfilerStep#%d", view->program->iteration);
    (void)begin_slice(t, TID_STEP, view->start, view->end, name, "user_annotation");
    fprintf(t->out, "{\"iteration\":%d}}", view->program->iteration);
    struct tsr__phase *phases;
    size_t n;
    TSR_TRY(tsr__phases(view, &phases, &n));
    for (size_t i = 0; i < n; i++) {
        (void)begin_slice(t, TID_PHASE, phases[i].start, phases[i].end,
                          tsr_phase_name(phases[i].phase), "user_annotation");
        fprintf(t->out, "{\"micro_batch\":%u}}", phases[i].micro);
    }
    free(phases);
    return TSR_OK;
}

/* The keys that PyTorch's profiler gives to a collective. */
static void put_collective_args(struct trace *t, const struct tsr__view *view, size_t i)
{
    const struct tsr_instr *instr = &view->program->instrs[i];
    const char *name = tsr__collective_name(instr);
    unsigned item = tsr_dtype_bytes((tsr_dtype)instr->dtype);
    if (name && instr->comm < view->tables->n_comms && item) {
        const struct tsr_comm *comm = &view->tables->comms[instr->comm];
        uint64_t big = instr->bytes / item, small = big / (comm->size ? comm->size : 1);
        bool gathers = instr->kind == TSR_ALL_GATHER, scatters = instr->kind == TSR_REDUCE_SCATTER;
        fprintf(t->out,
                ",\"Collective name\":\"%s\",\"dtype\":\"%s\",\"In msg nelems\":%" PRIu64
                ",\"Out msg nelems\":%" PRIu64 ",\"Group size\":%" PRIu32
                ",\"Process Group Name\":",
                name, tsr_dtype_name((tsr_dtype)instr->dtype), gathers ? small : big,
                scatters ? small : big, comm->size);
        tsr__put_json(t->out, comm->name);
    }
    fprintf(t->out, ",\"exposed_us\":%.3f", view->exposed[i] * 1e6);
    if (view->why[i] < TSR_N_EXPOSURES)
        fprintf(t->out, ",\"exposed_because\":\"%s\"", tsr_exposure_name(view->why[i]));
}

static void put_device_slice(struct trace *t, const struct tsr__view *view, size_t i)
{
    const struct tsr_instr *instr = &view->program->instrs[i];
    const struct tsr_sim_span *span = &view->spans[i];
    char name[160], buffer[32];
    tsr__kernel_name(instr, name, sizeof name);
    int tid = TID_STREAMS + instr->stream;
    int64_t start = begin_slice(t, tid, span->start, span->end, name, tsr__kernel_category(instr));
    fprintf(t->out,
            "{\"device\":%" PRIu32 ",\"stream\":%u,\"correlation\":%" PRIu64 ",\"module\":", t->pid,
            instr->stream, t->correlation);
    tsr__put_json(t->out, tsr_owner_of(view->tables, &instr->origin, buffer));
    fprintf(t->out, ",\"phase\":\"%s\",\"micro_batch\":%u", tsr_phase_name(instr->origin.phase),
            instr->origin.micro);
    if (instr->origin.recompute)
        fputs(",\"recompute\":true", t->out);
    if (instr->bytes)
        fprintf(t->out, ",\"bytes\":%" PRIu64, instr->bytes);
    if (instr->work && instr->work->flops > 0)
        fprintf(t->out, ",\"flop\":%.0f", instr->work->flops);
    if (tsr__is_collective(instr))
        put_collective_args(t, view, i);
    fputs("}}", t->out);
    if (tsr__host_call(instr))
        put_arrow(t, 'f', tid, start);
}

static bool has_track(const struct tsr_instr *instr)
{
    return tsr__is_busy_work(instr) && instr->stream < MAX_TRACKS - TID_STREAMS;
}

/* The host is busy with an instruction from the end of the one before to its issue. */
static void put_host_slice(struct trace *t, const struct tsr__view *view, size_t i, double before)
{
    const struct tsr_instr *instr = &view->program->instrs[i];
    const struct tsr_sim_span *span = &view->spans[i];
    bool waits = instr->kind == TSR_HOST_WAIT || instr->kind == TSR_HOST_READ;
    double end = waits && span->end > span->issue ? span->end : span->issue;
    int64_t start = begin_slice(t, TID_HOST, before, end, tsr__host_call(instr), "cuda_runtime");
    fprintf(t->out, "{\"correlation\":%" PRIu64 "}}", t->correlation);
    if (has_track(instr))
        put_arrow(t, 's', TID_HOST, start);
}

static void put_label(struct trace *t, int tid, const struct label *label, const char *name)
{
    (void)begin_slice(t, tid, label->start, label->end, name, "user_annotation");
    fprintf(t->out, "{\"micro_batch\":%u}}", label->first->origin.micro);
}

static void close_action(struct trace *t, const struct tsr_tables *tables)
{
    char name[256];
    if (!t->action.first)
        return;
    tsr__action_label(tables, t->action.first,
                      t->hook.first ? t->hook.first->origin.group : TSR_NO_ID, name, sizeof name);
    put_label(t, TID_ACTION, &t->action, name);
    t->action.first = NULL;
}

static void close_hook(struct trace *t, const struct tsr_tables *tables)
{
    char name[256];
    close_action(t, tables);
    if (t->hook.first && tsr__hook_label(tables, t->hook.first, name, sizeof name))
        put_label(t, TID_HOOK, &t->hook, name);
    t->hook.first = NULL;
}

static bool begins_hook(const struct trace *t, const struct tsr_instr *instr)
{
    return instr->kind == TSR_MARK || !t->hook.first ||
           instr->origin.hook != t->hook.first->origin.hook;
}

/* Records, waits and allocations between two instructions of an action do not end it. */
static void follow_labels(struct trace *t, const struct tsr_tables *tables,
                          const struct tsr_instr *instr, double before, double end)
{
    if (begins_hook(t, instr)) {
        close_hook(t, tables);
        t->hook = (struct label){instr, before, before};
    }
    t->hook.end = end;
    enum tsr__action action = tsr__action_of(instr);
    if (action == TSR__ACTION_NONE)
        return;
    if (!t->action.first || tsr__action_of(t->action.first) != action ||
        t->action.first->origin.group != instr->origin.group) {
        close_action(t, tables);
        t->action = (struct label){instr, before, before};
    }
    t->action.end = end;
}

static void put_slices(struct trace *t, const struct tsr__view *view)
{
    double before = view->program->n_instrs ? view->spans[0].issue : view->start;
    for (size_t i = 0; i < view->program->n_instrs; i++) {
        const struct tsr_instr *instr = &view->program->instrs[i];
        t->correlation++;
        if (tsr__host_call(instr))
            put_host_slice(t, view, i, before);
        follow_labels(t, view->tables, instr, before, view->spans[i].issue);
        before = view->spans[i].issue;
        if (has_track(instr))
            put_device_slice(t, view, i);
    }
    close_hook(t, view->tables);
}

/* ---- memory ------------------------------------------------------------------------------- */

/* A counter up to its args; several args are stacked by viewers, so lines that are not parts of a
 * whole are counters of their own. */
static void begin_counter(struct trace *t, const char *name, int64_t ns)
{
    begin_event(t);
    fprintf(t->out, "{\"ph\":\"C\",\"pid\":%" PRIu32 ",", t->pid);
    put_us(t->out, "ts", ns);
    fprintf(t->out, ",\"name\":\"%s (bytes)\",\"args\":{", name);
}

static void put_counter(struct trace *t, const char *name, int64_t ns, uint64_t bytes)
{
    begin_counter(t, name, ns);
    fprintf(t->out, "\"%s\":%" PRIu64 "}}", name, bytes);
}

static void put_counters(struct trace *t, const struct tsr__curve *curve,
                         const struct tsr_memory_sample *sample, int64_t ns)
{
    bool comma = false;
    begin_counter(t, "memory", ns);
    for (int i = 0; i < TSR_N_CATEGORIES; i++) {
        int c = tsr__stack_order[i];
        if (!curve->occurs[c])
            continue;
        fprintf(t->out, "%s\"%s\":%" PRIu64, comma ? "," : "", tsr_category_name(c),
                sample->by_category[c]);
        comma = true;
    }
    fputs("}}", t->out);
    put_counter(t, "allocated", ns, sample->total);
    put_counter(t, "requested", ns, sample->requested);
    put_counter(t, "reserved", ns, sample->reserved);
}

static int64_t sample_time(const struct trace *t, const struct tsr__page *page, size_t i)
{
    const struct tsr__view *view = page->view;
    return nanoseconds(t, i ? view->clock[page->curve->samples[i].instr] : view->start);
}

/* One counter per moment of the device's clock: the fullest of the changes that fall on it. */
static void put_memory(struct trace *t, const struct tsr__page *page)
{
    const struct tsr__curve *curve = page->curve;
    size_t best = 0;
    for (size_t i = 0; i < curve->n; i++) {
        int64_t now = sample_time(t, page, i);
        if (curve->samples[i].total > curve->samples[best].total)
            best = i;
        if (i + 1 < curve->n && sample_time(t, page, i + 1) == now)
            continue;
        put_counters(t, curve, &curve->samples[best], now);
        best = i + 1;
    }
    for (size_t i = 0; i < page->in_use->n; i++)
        put_counter(t, "in use on the device", nanoseconds(t, page->in_use->levels[i].time),
                    page->in_use->levels[i].bytes);
}

tsr_status tsr__write_trace(FILE *out, const void *user)
{
    const struct tsr__pages *pages = user;
    if (!pages->n)
        return TSR_OK;
    const struct tsr__page *page = &pages->pages[0];
    struct trace *t = calloc(1, sizeof *t);
    if (!t)
        return tsr_fail(TSR_ENOMEM, "no memory left for a trace");
    *t = (struct trace){
        .out = out, .origin = page->view->start, .pid = page->view->detail->rank, .first = true};
    fprintf(out,
            "{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"distributedInfo\":{\"backend\":"
            "\"nccl\",\"rank\":%" PRIu32 ",\"world_size\":%" PRIu32 "},\n\"otherData\":{",
            t->pid, page->info->world);
    fprintf(out, "\"tessera\":\"%s\",\"times\":\"simulated\",\"experiment\":", tsr__version());
    tsr__put_json(out, page->info->config_path);
    fputs(",\"strategy\":", out);
    tsr__put_json(out, page->view->detail->row->strategy);
    fputs("},\n\"traceEvents\":[", out);
    put_names(t, page);
    tsr_status status = TSR_OK;
    for (size_t p = 0; status == TSR_OK && p < pages->n; p++) {
        status = put_annotations(t, pages->pages[p].view);
        put_slices(t, pages->pages[p].view);
        put_memory(t, &pages->pages[p]);
    }
    fputs("\n]}\n", out);
    free(t);
    return status;
}
