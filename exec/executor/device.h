/* device.h: what an executor needs of a device: an address space, streams that run tasks in order
 * and beside each other, and events between them. host_device.c is one; CUDA is another.
 *
 * A device belongs to one rank. Its functions are called by the rank's host thread only. submit()
 * returns at once; the device copies the task and runs it later. Errors of tasks are kept: every
 * later call returns the first one.
 */
#ifndef TSR_EXEC_DEVICE_H
#define TSR_EXEC_DEVICE_H

#include "exec/base/source.h"
#include "exec/kernels/call/kernel.h"
#include "exec/world/world.h"

enum tsr_task_kind {
    TSR_TASK_KERNEL,     /* call */
    TSR_TASK_SOURCE,     /* source_fn(source, instr, call): values come from outside the program */
    TSR_TASK_COLLECTIVE, /* collectives[n_collectives], one after the other */
    TSR_TASK_MESSAGES,   /* messages[n_messages], one launch */
    TSR_TASK_RECORD,     /* event := done */
    TSR_TASK_WAIT,       /* until event is done */
    TSR_TASK_POISON      /* fills view 0 with NaN patterns: memory of a new owner */
};

/* Work for a stream. All pointers are borrowed until submit() returns, but for the memory that
 * views point to, and `work->name`, which live as long as the program's engine. */
struct tsr_task {
    uint8_t kind;    /* enum tsr_task_kind */
    uint64_t number; /* of the instruction: counts submissions of the rank */
    const struct tsr_instr *instr;
    tsr_kernel_fn kernel;
    tsr_status (*source_fn)(const struct tsr_source *source, const struct tsr_instr *instr,
                            const struct tsr_kernel_call *call);
    const struct tsr_source *source;
    struct tsr_kernel_call call; /* every kind: its views are the operands */
    size_t n_collectives, n_messages;
    struct tsr_collective *collectives;
    struct tsr_message *messages;
    const struct tsr_comm *comm; /* of messages */
    uint16_t comm_id;
    uint64_t sequence;
    uint32_t event;
};

/* A task of kind SOURCE with one view: where its values are initial ones that a device can make by
 * itself, the device that task->call names does (kernel.h: launch), and *is_done is true. */
tsr_status tsr_task_initial(const struct tsr_task *task, bool *is_done) TSR_MUST_USE;

/* Called by the device when a task is done, on the thread that ran it: what really ran is in
 * `task`. begin and end: seconds on the device's clock; NAN: not known yet (tsr_task_times_fn). */
typedef void (*tsr_task_done_fn)(void *user, uint16_t stream, const struct tsr_task *task,
                                 double begin, double end);

/* When a task ran, of a device that knows it only later: after a drain. On the host's thread. */
typedef void (*tsr_task_times_fn)(void *user, uint16_t stream, uint64_t number, double begin,
                                  double end);

struct tsr_device;

/* What a device has of a stretch of tasks (struct tsr_device_graphs). */
enum tsr_stretch {
    TSR_STRETCH_NEW,    /* nothing: it may be captured */
    TSR_STRETCH_KEPT,   /* it can be run as it was captured */
    TSR_STRETCH_REFUSED /* it cannot be captured: its tasks are submitted */
};

/* Stretches of tasks that come again and again are captured once, and then run by one call (CUDA
 * graphs). Tasks of equal keys differ in their numbers of events and instructions only, and in
 * values of enum tsr_scalar. */
struct tsr_device_graphs {
    enum tsr_stretch (*find)(struct tsr_device *device, uint64_t key);
    /* Why some stretch was refused, though nobody asked for it; NULL: none was. */
    const char *(*refusal)(const struct tsr_device *device);
    /* Tasks that are submitted between the two are captured, neither run nor told to `done`. After
     * an error among them, capture_end(device, false) comes all the same. Whether it is kept or
     * refused, find() says then. */
    tsr_status (*capture_begin)(struct tsr_device *device, uint64_t key);
    tsr_status (*capture_end)(struct tsr_device *device, bool is_whole);
    /* Runs it. Between the two only its tasks of kind RECORD and WAIT are submitted (not told to
     * `done` either): whose events these are now. scalars: [TSR_N_SCALARS]. */
    tsr_status (*run_begin)(struct tsr_device *device, uint64_t key);
    tsr_status (*run_end)(struct tsr_device *device, const double *scalars);
};

/* A device is driven by one host thread, the executor's; only abort() may come from another.
 * Addresses are those of the program; at() says where one lies. A failure of something submitted
 * comes later: by `done`, a wait, or drain(). */
struct tsr_device_ops {
    const char *name; /* "host", "cuda" */
    /* The kernel of engine/ops/KERNELS.md that runs on the streams of this device; NULL: it has
     * none. What HOST_OPs run are the host's (tsr_host_kernel()). */
    tsr_kernel_fn (*kernel)(const char *name);
    tsr_kernel_fn fill; /* FILL, as tsr_host_fill() */
    /* Host memory from which the device copies without a detour; NULL: out of memory. */
    void *(*pin)(struct tsr_device *device, uint64_t bytes);
    void (*unpin)(struct tsr_device *device, void *memory);
    /* Backs [address, address + bytes) with memory; gives it back. TSR_EOOM, TSR_EVALUE. */
    tsr_status (*map)(struct tsr_device *device, uint64_t address, uint64_t bytes);
    tsr_status (*unmap)(struct tsr_device *device, uint64_t address, uint64_t bytes);
    void *(*at)(struct tsr_device *device, uint64_t address);
    tsr_status (*submit)(struct tsr_device *device, uint16_t stream, const struct tsr_task *task);
    /* Blocks until the event, or all of the stream, is done. */
    tsr_status (*wait_event)(struct tsr_device *device, uint32_t event);
    tsr_status (*wait_stream)(struct tsr_device *device, uint16_t stream);
    tsr_status (*drain)(struct tsr_device *device);
    /* Device memory as the host sees it, when nothing runs. NULL: it is the host's. */
    tsr_status (*read)(struct tsr_device *device, const void *from, void *to, uint64_t bytes);
    /* Seconds on the clock of `done`. */
    double (*now)(struct tsr_device *device);
    /* How many tasks of a stream are known to be done (but those of TSR_TASK_POISON). NULL: as many
     * as `done` was told of. */
    uint64_t (*count_done)(struct tsr_device *device, uint16_t stream);
    /* How many tasks took a way that is many times slower than the usual one (CUDA: slow.h). NULL:
     * it has one way. */
    uint64_t (*count_slow)(const struct tsr_device *device);
    /* Times of tasks are taken or not from here on. NULL: they always are. */
    tsr_status (*set_timing)(struct tsr_device *device, bool on);
    /* Its streams keep workspaces beside the program's memory: struct tsr_workspaces. */
    bool has_workspaces;
    /* Tells every waiting task to give up. May be called by any thread. */
    void (*abort)(struct tsr_device *device, tsr_status status, const char *why);
    void (*destroy)(struct tsr_device *device);
    const struct tsr_device_graphs *graphs; /* NULL: every task is submitted each time */
};

/* Implementations embed this as their first member. */
struct tsr_device {
    const struct tsr_device_ops *ops;
};

#endif
