/* cuda_device_stream.c: streams of the CUDA device: made when they are first used, with the
 * priority that the program gives them; marks tell how far each one is.
 */
#include "exec/cuda/device/cuda_device_impl.h"

/* Memory for the time of one call of a library; cuBLASLt's advice for Hopper. */
#define SCRATCH_BYTES (UINT64_C(32) << 20)

/* PyTorch's numbers: -1 is high, 0 is the default; a GPU may have fewer. */
static tsr_status priority_of(const struct tsr_cuda_device *d, uint16_t index, int *out)
{
    const struct tsr_tables *t = d->config.tables ? d->config.tables(d->config.user) : NULL;
    int least = 0, greatest = 0,
        wanted = t && index < t->n_streams ? t->streams[index].priority : 0;
    TSR_CUDA("priorities of streams", cudaDeviceGetStreamPriorityRange(&least, &greatest));
    wanted = wanted > least ? least : wanted;
    *out = wanted < greatest ? greatest : wanted;
    return TSR_OK;
}

/* At least so many bytes of scratch. What was scratch before is kept until the stream ends: work
 * and graphs may use it. */
static tsr_status set_scratch(struct tsr_cuda_device *d, struct tsr_cuda_stream *s, uint64_t bytes)
{
    struct tsr_cuda_context *c = &s->context;
    void *memory;
    if (c->scratch_bytes >= bytes)
        return TSR_OK;
    if (d->graphs.what == TSR_CUDA_CAPTURES)
        return tsr_fail(TSR_EBACKEND, "a captured task needs more scratch memory than before");
    if (c->scratch && s->n_retired == TSR_CUDA_RETIRED)
        return tsr_fail(TSR_EOOM, "a stream's scratch memory grew too often");
    TSR_CUDA("a stream's scratch memory", cudaMalloc(&memory, bytes));
    if (c->scratch)
        s->retired[s->n_retired++] = c->scratch;
    c->scratch = memory;
    c->scratch_bytes = bytes;
    d->library += bytes;
    return TSR_OK;
}

static tsr_status grow(void *owner, uint16_t index, uint64_t bytes)
{
    struct tsr_cuda_device *d = owner;
    return set_scratch(d, &d->streams[index], tsr_max_u64(bytes, SCRATCH_BYTES));
}

static tsr_status start(struct tsr_cuda_device *d, uint16_t index, struct tsr_cuda_stream *s)
{
    int priority = 0;
    TSR_TRY(priority_of(d, index, &priority));
    TSR_CUDA("an event", cudaEventCreateWithFlags(&s->tail, cudaEventDisableTiming));
    TSR_CUDA("a stream", cudaStreamCreateWithPriority(&s->handle, cudaStreamNonBlocking, priority));
    s->context = (struct tsr_cuda_context){.stream = s->handle,
                                           .index = index,
                                           .n_sms = d->gpu.n_sms,
                                           .architecture = d->gpu.architecture,
                                           .shared = d->gpu.shared,
                                           .deterministic = d->config.deterministic,
                                           .blas = d->blas,
                                           .attention = d->attention,
                                           .grow = grow,
                                           .owner = d};
    return TSR_OK;
}

tsr_status tsr__cuda_stream(struct tsr_cuda_device *d, uint16_t index, struct tsr_cuda_stream **out)
{
    if (index >= TSR_CUDA_STREAMS)
        return tsr_fail(TSR_EUNSUPPORTED, "a program with more than %d streams", TSR_CUDA_STREAMS);
    *out = &d->streams[index];
    return (*out)->handle ? TSR_OK : start(d, index, *out);
}

tsr_status tsr__cuda_first_scratch(struct tsr_cuda_device *d, struct tsr_cuda_stream *s)
{
    return set_scratch(d, s, SCRATCH_BYTES);
}

void tsr__cuda_stream_close(struct tsr_cuda_stream *s)
{
    if (s->handle)
        (void)cudaStreamDestroy(s->handle);
    if (s->tail)
        (void)cudaEventDestroy(s->tail);
    for (int i = 0; i < TSR_CUDA_MARKS; i++)
        if (s->own_marks[i])
            (void)cudaEventDestroy(s->own_marks[i]);
    (void)cudaFree(s->context.scratch);
    for (unsigned i = 0; i < s->n_retired; i++)
        (void)cudaFree(s->retired[i]);
    *s = (struct tsr_cuda_stream){.handle = NULL};
}

/* ---- how far it is --------------------------------------------------------------------------- */

static bool is_past(const struct tsr_cuda_mark *m)
{
    if (cudaEventQuery(m->event) == cudaSuccess)
        return true;
    (void)cudaGetLastError(); /* libraries take "not ready" for a failure of theirs */
    return false;
}

/* An event that was recorded anew since is later than the mark. */
uint64_t tsr__cuda_done(struct tsr_cuda_stream *s)
{
    while (s->n_marks > 0 && is_past(&s->marks[s->first_mark])) {
        s->done = tsr_max_u64(s->done, s->marks[s->first_mark].tasks);
        s->first_mark = (s->first_mark + 1) % TSR_CUDA_MARKS;
        s->n_marks--;
    }
    return s->done;
}

/* Without room the next mark says it. */
void tsr__cuda_mark(struct tsr_cuda_stream *s, cudaEvent_t event)
{
    if (s->n_marks == TSR_CUDA_MARKS)
        (void)tsr__cuda_done(s);
    if (s->n_marks == TSR_CUDA_MARKS)
        return;
    s->marks[(s->first_mark + s->n_marks++) % TSR_CUDA_MARKS] =
        (struct tsr_cuda_mark){s->submitted, event};
    s->marked = s->submitted;
}

/* A mark of one's own, where the program records no event for long. Its place in the ring is free,
 * so its event is done. */
static tsr_status mark_here(struct tsr_cuda_stream *s)
{
    unsigned place = (s->first_mark + s->n_marks) % TSR_CUDA_MARKS;
    cudaEvent_t *event = &s->own_marks[place];
    if (s->n_marks == TSR_CUDA_MARKS)
        return TSR_OK;
    if (!*event)
        TSR_CUDA("an event", cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    TSR_CUDA("an event", cudaEventRecord(*event, s->handle));
    tsr__cuda_mark(s, *event);
    return TSR_OK;
}

tsr_status tsr__cuda_count(struct tsr_cuda_stream *s)
{
    s->submitted++;
    if (s->submitted - s->marked < TSR_CUDA_MARK_EVERY)
        return TSR_OK;
    if (s->n_marks == TSR_CUDA_MARKS)
        (void)tsr__cuda_done(s);
    return mark_here(s);
}

tsr_status tsr__cuda_wait_stream(struct tsr_cuda_device *d, struct tsr_cuda_stream *s)
{
    if (!s->handle)
        return TSR_OK;
    uint64_t tasks = s->submitted;
    TSR_CUDA("an event", cudaEventRecord(s->tail, s->handle));
    TSR_TRY(tsr__cuda_wait(d, s->tail));
    s->done = tasks;
    s->n_marks = 0;
    return TSR_OK;
}
