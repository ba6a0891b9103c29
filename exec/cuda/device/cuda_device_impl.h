/* cuda_device_impl.h: the CUDA device's own structures, for cuda_device*.c and graphs.c. */
#ifndef TSR_EXEC_CUDA_DEVICE_IMPL_H
#define TSR_EXEC_CUDA_DEVICE_IMPL_H

#include <cuda_runtime_api.h>
#include <stdatomic.h>

#include "exec/cuda/comms/watchdog.h"
#include "exec/cuda/device/cuda_device.h"
#include "exec/cuda/gpu/gpu.h"
#include "exec/cuda/gpu/slow.h"
#include "exec/cuda/gpu/space.h"
#include "exec/executor/device.h"

/* ---- graphs ---------------------------------------------------------------------------------- */

/* Stretches of a program as CUDA graphs (struct tsr_device_graphs of
 * exec/executor/device.h). Private to the CUDA device.
 *
 * A graph is captured on the program's first stream, from which the others fork, and which they
 * join at its end. It is launched there, too, after everything that the streams in it have been
 * given before; what comes later on them waits for it. Events that are recorded inside count as
 * done when the whole graph is. Values of enum tsr_scalar are read from a table in device memory,
 * which is written before each launch. */

struct tsr_cuda_device;
struct tsr_cuda_stream;

enum {
    TSR_CUDA_GRAPHS = 24,  /* that are kept: a few states of a few stretches */
    TSR_CUDA_LAUNCHES = 64 /* whose ends are remembered one by one */
};

struct tsr_cuda_graph {
    uint64_t key, last_use;
    cudaGraphExec_t exec; /* NULL: it was refused */
    bool is_used;
    uint64_t tasks[64]; /* by stream */
};

/* An event that a captured stream has recorded, by its number in the program. */
struct tsr_cuda_captured {
    uint32_t number;
    cudaEvent_t event;
};

/* Owns the graphs, their events and the table of scalars. `now` is the graph that is captured or
 * run, and means nothing while `what` is TSR_CUDA_DIRECT. A full `all` gives up the graph whose
 * last use is the oldest. */
struct tsr_cuda_graphs {
    enum { TSR_CUDA_DIRECT, TSR_CUDA_CAPTURES, TSR_CUDA_RUNS } what;
    struct tsr_cuda_graph all[TSR_CUDA_GRAPHS], *now;
    uint64_t n_uses;
    double *scalars; /* on the device */
    cudaEvent_t fork;
    cudaEvent_t done[TSR_CUDA_LAUNCHES]; /* a ring: the end of a launch */
    uint64_t n_launches;
    /* of a capture; events are used again by the next one */
    size_t n_captured, cap_captured, n_events;
    struct tsr_cuda_captured *captured;
    bool has_joined[64]; /* by stream */
    bool is_refused;     /* CUDA did not begin the capture; until capture_end() */
    char why[256];       /* the latest refusal */
};

extern const struct tsr_device_graphs tsr_cuda_device_graphs;

/* A task while `what` is not TSR_CUDA_DIRECT. */
tsr_status tsr__cuda_graph_task(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                                const struct tsr_task *task) TSR_MUST_USE;
void tsr__cuda_graphs_close(struct tsr_cuda_device *d);

/* ---- the device ------------------------------------------------------------------------------ */

enum {
    TSR_CUDA_STREAMS = 64,
    TSR_CUDA_MARKS = 64,      /* of a stream, on their way */
    TSR_CUDA_MARK_EVERY = 32, /* tasks, where the program records no event */
    TSR_CUDA_RETIRED = 16,    /* times that the scratch of a stream grows */
    TSR_CUDA_TEXT = 512,
    TSR_CUDA_LATEST = 4 /* names of tasks that a failure tells */
};

/* A point of a stream and how many of its tasks lie before. */
struct tsr_cuda_mark {
    uint64_t tasks;
    cudaEvent_t event;
};

/* Invariants: done <= submitted; the marks that wait are in the order of their tasks, so the first
 * that has come tells of all before it. Owns its events and its scratch, old scratch included,
 * which lives as long as the stream. */
struct tsr_cuda_stream {
    cudaStream_t handle; /* NULL: no task yet */
    struct tsr_cuda_context context;
    void *retired[TSR_CUDA_RETIRED]; /* scratch that was too small */
    unsigned n_retired;
    uint64_t submitted, done; /* tasks that are instructions */
    uint64_t joined;          /* submitted when a graph came after all of them */
    cudaEvent_t tail;         /* of waits for the whole stream */
    /* a ring: [first, first + n) */
    struct tsr_cuda_mark marks[TSR_CUDA_MARKS];
    unsigned first_mark, n_marks;
    uint64_t marked; /* `tasks` of the last mark */
    cudaEvent_t own_marks[TSR_CUDA_MARKS];
};

/* Pinned memory through which a source's values go to the device. */
struct tsr_cuda_staging {
    void *memory;
    cudaEvent_t used; /* the last copy from it */
    bool busy;
};

/* Two events around a task, until the times are known. */
struct tsr_cuda_timed {
    uint16_t stream;
    uint64_t number;
    cudaEvent_t begin, end;
};

/* The host thread of the rank makes all calls of CUDA, but for the watchdog's: it reads `failed`,
 * and writes `text` once, if it sets `failing` first. What is submitted but not done is not freed:
 * scratch that grew is retired, events and timers go back when what was behind them is done, memory
 * of a segment is unmapped after the streams that the program names. */
struct tsr_cuda_device {
    struct tsr_device base;
    struct tsr_cuda_device_config config;
    struct tsr_cuda_gpu gpu;
    struct tsr_cuda_space space;
    struct tsr_cuda_events events;
    struct tsr_cuda_timers timers;
    struct tsr_cuda_graphs graphs;
    struct tsr_cuda_ranges ranges;
    struct tsr_cuda_stream streams[TSR_CUDA_STREAMS];
    struct tsr_cuda_staging staging[2];
    unsigned next_staging;
    uint64_t library; /* bytes of scratch, of all streams */
    struct tsr_blas *blas;
    struct tsr_cuda_attention *attention; /* NULL: without cuDNN ... */
    char no_attention[256];               /* ... and why */
    struct tsr_slow slow;
    struct tsr_watchdog *watchdog; /* NULL: a world of one */

    /* failing */
    _Atomic bool failing; /* somebody writes `text` */
    _Atomic int failed;   /* enum tsr_status, once it is there */
    char text[TSR_CUDA_TEXT];
    struct {
        const char *name;
        uint64_t number;
    } latest[TSR_CUDA_LATEST]; /* tasks that were submitted; a ring */
    unsigned n_latest;
    bool stuck; /* work that does not end */

    /* times */
    double start;
    bool timing;
    cudaEvent_t anchor; /* an event whose time on the host's clock is known */
    double anchor_s;
    size_t n_timed, cap_timed;
    struct tsr_cuda_timed *timed;
};

static inline struct tsr_cuda_device *tsr__cuda_device(struct tsr_device *device)
{
    return (struct tsr_cuda_device *)device;
}

/* cuda_device.c */
double tsr__cuda_now(const struct tsr_cuda_device *d);
/* The first failure counts; the communicators end with it. Any thread. */
void tsr__cuda_give_up(struct tsr_cuda_device *d, tsr_status status, const char *why);
tsr_status tsr__cuda_check(struct tsr_cuda_device *d) TSR_MUST_USE;
/* Until the event is done; ends with the device's failure, with the communicators', or when nothing
 * moves any more. */
tsr_status tsr__cuda_wait(struct tsr_cuda_device *d, cudaEvent_t event) TSR_MUST_USE;

/* cuda_device_stream.c */
tsr_status tsr__cuda_stream(struct tsr_cuda_device *d, uint16_t index,
                            struct tsr_cuda_stream **out) TSR_MUST_USE;
tsr_status tsr__cuda_first_scratch(struct tsr_cuda_device *d,
                                   struct tsr_cuda_stream *s) TSR_MUST_USE;
/* The event is a mark: all tasks of the stream before it are done when it is. */
void tsr__cuda_mark(struct tsr_cuda_stream *s, cudaEvent_t event);
/* A task has been handed over. */
tsr_status tsr__cuda_count(struct tsr_cuda_stream *s) TSR_MUST_USE;
uint64_t tsr__cuda_done(struct tsr_cuda_stream *s);
tsr_status tsr__cuda_wait_stream(struct tsr_cuda_device *d, struct tsr_cuda_stream *s) TSR_MUST_USE;
void tsr__cuda_stream_close(struct tsr_cuda_stream *s);

/* cuda_device_task.c */
tsr_status tsr__cuda_run(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                         const struct tsr_task *task) TSR_MUST_USE;

/* The place of an event becomes another one's. */
tsr_status tsr__cuda_leave_slot(struct tsr_cuda_device *d, const struct tsr_cuda_event *e,
                                uint32_t number) TSR_MUST_USE;

/* Waits for the copy. */
tsr_status tsr__cuda_read(struct tsr_cuda_device *d, const void *from, void *to,
                          uint64_t bytes) TSR_MUST_USE;
void tsr__cuda_staging_close(struct tsr_cuda_device *d);

/* cuda_device_stream.c: times of tasks */
tsr_status tsr__cuda_time_begin(struct tsr_cuda_device *d, uint16_t stream,
                                const struct tsr_task *task) TSR_MUST_USE;
tsr_status tsr__cuda_time_end(struct tsr_cuda_device *d) TSR_MUST_USE;
/* The device is idle: tells the times that are known now. */
tsr_status tsr__cuda_time_resolve(struct tsr_cuda_device *d) TSR_MUST_USE;
tsr_status tsr__cuda_set_timing(struct tsr_cuda_device *d, bool on) TSR_MUST_USE;
void tsr__cuda_time_close(struct tsr_cuda_device *d);

#endif
