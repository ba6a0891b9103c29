/* executor_impl.h: the executor's own structures, for executor*.c. */
#ifndef TSR_EXEC_EXECUTOR_IMPL_H
#define TSR_EXEC_EXECUTOR_IMPL_H

#include <stdatomic.h>

#include "exec/executor/buffers.h"
#include "exec/executor/executor.h"
#include "exec/executor/verify.h"

enum { TSR_EXEC_STREAMS = 64, TSR_FLIGHT_INSTRS = 2048 };

/* What the flight recorder keeps of an instruction. Written by the host only. */
struct tsr_flight_entry {
    uint64_t number;
    uint64_t bytes, sequence; /* of its stream: its place there */
    uint8_t kind, dtype, phase;
    uint16_t stream, comm, iteration, micro;
    uint32_t module, group, event;
    const char *name;
};

/* What a stream's thread writes; nobody else does while it runs. */
struct tsr_exec_lane {
    _Atomic uint64_t done; /* tasks; relaxed */
    size_t n_spans, cap_spans;
    struct tsr_exec_span *spans;
    bool lost_spans; /* no memory for one */
};

/* The host thread of the rank alone submits, and owns all of it but for what a stream's thread says
 * from tsr_exec_done(): its lane, and its entry of the hash. So nothing here has a lock, and none
 * may be added: it would order streams that the program leaves unordered, and hide a missing wait.
 *
 * Once `failed` is set every instruction ends with it; device and world are told, so that waits
 * end. `number` counts instructions of all kinds from 0, on all executors of a program alike: it is
 * how spans, issue times and flight records are matched. */
struct tsr_exec {
    struct tsr_executor base;
    struct tsr_exec_config config;
    struct tsr_source source;
    struct tsr_device *device;
    struct tsr_buffers buffers;
    double scalars[TSR_N_SCALARS];
    uint64_t number;   /* of the next instruction */
    tsr_status failed; /* the first instruction that failed; from then on all do */
    char why[512];
    struct tsr_exec_hash hash; /* every stream's thread writes its own entry */

    /* by stream; lane TSR_EXEC_STREAMS is the host's */
    struct tsr_exec_lane lanes[TSR_EXEC_STREAMS + 1];
    uint64_t submitted[TSR_EXEC_STREAMS]; /* tasks */
    uint64_t run_ahead;

    /* collectives, by communicator */
    uint64_t *sequences;
    size_t n_sequences;
    const struct tsr_tables *tables; /* borrowed from the engine */

    /* the launch between GROUP_BEGIN and GROUP_END */
    bool in_group;
    size_t n_messages, cap_messages, n_group_views, cap_group_views;
    struct tsr_message *messages;
    struct tsr_view *group_views;
    const struct tsr_comm *group_comm;
    uint16_t group_comm_id;

    size_t cap_views;
    struct tsr_view *views; /* of the instruction at hand */
    size_t cap_collectives;
    struct tsr_collective *collectives;

    size_t n_pinned;
    void **pinned; /* by block id; owned */

    bool times_tasks; /* the device was told to */
    size_t n_issues, cap_issues;
    double *issues;            /* by number, while profiling; owned */
    struct tsr_verify *verify; /* NULL: nothing is verified */
    bool repeats;              /* the second run of a verified instruction: not accounted */
    bool captures;             /* tasks are captured: not accounted either */
    double waited;             /* seconds of the host in waits of the program */

    struct tsr_exec_memory memory;
    struct tsr_flight_entry flight[TSR_FLIGHT_INSTRS]; /* ring, by number */
};

/* executor_memory.c: instructions about memory. False: `instr` is not one. */
bool tsr_exec_memory_instr(struct tsr_exec *x, const struct tsr_instr *instr, tsr_status *status);
/* The operands of an instruction as places in memory: x->views. */
tsr_status tsr_exec_resolve(struct tsr_exec *x, const struct tsr_instr *instr);

void tsr_exec_undo_memory_instr(struct tsr_exec *x, const struct tsr_instr *instr);

/* executor_replay.c */
tsr_status tsr_exec_replay(struct tsr_executor *executor, const struct tsr_program *program,
                           uint64_t key);
/* executor.c: one instruction, and no account of it but of tasks. */
tsr_status tsr_exec_execute(struct tsr_exec *x, const struct tsr_instr *instr);
/* Keeps the first failure. */
tsr_status tsr_exec_keep_first(struct tsr_exec *x, tsr_status status);
/* Before an instruction is executed: watcher, flight record, times. */
tsr_status tsr_exec_announce(struct tsr_exec *x, const struct tsr_instr *instr);

/* executor.c: `run` once, or twice over different poisons, between the verifier's looks. */
typedef tsr_status (*tsr_exec_run_fn)(struct tsr_exec *x, uint16_t stream,
                                      const struct tsr_task *task);
/* The number of the next call on a communicator. */
tsr_status tsr_exec_next_sequence(struct tsr_exec *x, uint16_t comm, uint64_t *out);

/* executor_source.c: kernels that ask the source. NULL: `name` is none of them. */
typedef tsr_status (*tsr_exec_source_fn)(const struct tsr_source *source,
                                         const struct tsr_instr *instr,
                                         const struct tsr_kernel_call *call);
tsr_exec_source_fn tsr_exec_source_kernel(const char *name);

/* executor_account.c: what ran, as the back end was told; times; the flight recorder. */
void tsr_exec_account_host(struct tsr_exec *x, const struct tsr_instr *instr, double begin);
void tsr_exec_note(struct tsr_exec *x, const struct tsr_instr *instr);
tsr_status tsr_exec_note_issue(struct tsr_exec *x);
void tsr_exec_count_submitted(struct tsr_exec *x, uint16_t stream);
/* Tasks of a stream that are known to be done. */
uint64_t tsr_exec_done_of(const struct tsr_exec *x, uint16_t stream);
/* The device takes times if, and only if, they are kept. */
tsr_status tsr_exec_follow_profile(struct tsr_exec *x);

#endif
