/* executor.h: runs a step program on a device: the executor of one rank.
 *
 * It knows no sharding. It backs segments and buffers with memory, turns every instruction into a
 * task for a stream or does it on the host, and keeps account: a hash of what really ran, live and
 * backed bytes, the last instructions for a flight record, times for a profile.
 */
#ifndef TSR_EXEC_EXECUTOR_H
#define TSR_EXEC_EXECUTOR_H

#include "engine/program/executor.h"
#include "exec/base/source.h"
#include "exec/executor/device.h"

/* A timed instruction. Times in seconds on the device's clock. */
struct tsr_exec_span {
    uint64_t number; /* of the instruction: counts submissions */
    double begin, end;
};

/* What an executor is started with. The device is the executor's from then on; it drives it and
 * destroys it. */
struct tsr_exec_config {
    struct tsr_device *device;
    struct tsr_world *world;         /* borrowed; NULL: a world of one */
    const struct tsr_source *source; /* copied; functions that are NULL refuse */
    size_t n_kernels;
    const struct tsr_user_kernel *kernels; /* of user ops; copied; names borrowed */
    bool poison;  /* device memory of a new owner is filled with NaN patterns */
    bool profile; /* keep spans */
    bool verify;  /* the declared operands of all that runs (verify.h); needs a serial device */
    /* Optional: sees every instruction before it is executed (the checker). */
    struct tsr_executor *watcher; /* borrowed */
};

struct tsr_exec;

/* An executor and its device refer to each other: make the executor, hand tsr_exec_done and it to
 * the device (`done`, `user`), then give it the device. */
struct tsr_exec *tsr_exec_new(void); /* NULL: out of memory */
void tsr_exec_done(void *exec, uint16_t stream, const struct tsr_task *task, double begin,
                   double end);
/* The same for times that come later: tsr_task_times_fn. */
void tsr_exec_times(void *exec, uint16_t stream, uint64_t number, double begin, double end);
/* The tables that it was given; NULL: none yet. */
const struct tsr_tables *tsr_exec_tables(void *exec);
/* The executor, which owns the device (NULL is fine for one that is only destroyed) and `exec`.
 * Destroy through its ops. */
struct tsr_executor *tsr_exec_start(struct tsr_exec *exec, const struct tsr_exec_config *config);

/* The tables of the engine that emits: before its first instruction. Borrowed. */
void tsr_exec_set_tables(struct tsr_executor *x, const struct tsr_tables *tables);
/* Values of enum tsr_scalar for what is submitted from now on. */
void tsr_exec_set_scalar(struct tsr_executor *x, enum tsr_scalar which, double value);

/* Where the program is refused: TSR_EUNSUPPORTED if `device` (NULL: the host) lacks a kernel that
 * `instr` asks for. The text says which is missing. */
tsr_status tsr_exec_supports(const struct tsr_device_ops *device, const struct tsr_instr *instr,
                             const struct tsr_user_kernel *kernels, size_t n_kernels) TSR_MUST_USE;

/* Why steps that repeat are not run as graphs; NULL: they are, or nobody wants them to. */
const char *tsr_exec_graph_refusal(struct tsr_executor *x);

/* How many tasks so far took a way that is many times slower than the usual one; UINT64_MAX: the
 * device has only one. */
uint64_t tsr_exec_count_slow(const struct tsr_executor *x);

/* Memory of a buffer, for tests, after a drain; NULL if there is none. */
void *tsr_exec_peek(struct tsr_executor *x, uint32_t buffer);

/* `bytes` of a buffer from `offset` on, wherever it lies; after a drain. TSR_EDEFECT: it has no
 * such bytes. */
tsr_status tsr_exec_read(struct tsr_executor *x, uint32_t buffer, uint64_t offset, uint64_t bytes,
                         void *out) TSR_MUST_USE;

/* ---- accounts -------------------------------------------------------------------------------- */

/* Hash of what ran, in order of completion on each stream. After a drain. */
uint64_t tsr_exec_hash(struct tsr_executor *x);

struct tsr_exec_memory {
    uint64_t allocated, peak_allocated; /* block bytes of live device buffers */
    uint64_t mapped, peak_mapped;       /* backed segments */
    uint64_t host, pinned, held;        /* as struct tsr_host_level */
};
struct tsr_exec_memory tsr_exec_memory(struct tsr_executor *x);

/* Seconds that the host has spent waiting for the device, where the program says so. */
double tsr_exec_waited(struct tsr_executor *x);

/* Times are kept or not from here on. */
tsr_status tsr_exec_set_profile(struct tsr_executor *x, bool on) TSR_MUST_USE;
/* When each instruction was issued, by number, as far as times were kept. Valid until the next
 * instruction. */
const double *tsr_exec_issue_times(struct tsr_executor *x, size_t *n);
/* Spans of the instructions since the last call, in order of instruction; the host's own work too.
 * *out is the caller's to free(). After a drain. */
tsr_status tsr_exec_take_spans(struct tsr_executor *x, struct tsr_exec_span **out,
                               size_t *n) TSR_MUST_USE;

/* Writes the last instructions of this rank with their state as JSON (atomically). `why` is the
 * reason of the record. Safe while streams hang. */
tsr_status tsr_exec_write_flight_record(struct tsr_executor *x, const struct tsr_tables *tables,
                                        const char *path, const char *why) TSR_MUST_USE;

#endif
