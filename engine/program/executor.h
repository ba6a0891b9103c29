/* executor.h: the interface that every executor implements.
 *
 * The engine calls submit() once per instruction, in host issue order of one rank. An executor
 * never calls back into the engine. Adding one: copy the recorder (program.c), fill the table.
 */
#ifndef TSR_ENGINE_EXECUTOR_H
#define TSR_ENGINE_EXECUTOR_H

#include "engine/program/program.h"

#define TSR_EXECUTOR_VERSION 1u

struct tsr_executor;

struct tsr_executor_ops {
    size_t size;      /* sizeof this struct: lets older back ends miss newer slots */
    unsigned version; /* TSR_EXECUTOR_VERSION */
    const char *name; /* "record", "sim", "host", "cuda", "check" */
    /* Takes one instruction. `instr` and what it points to are valid during the call only. */
    tsr_status (*submit)(struct tsr_executor *x, const struct tsr_instr *instr);
    /* Returns when everything submitted is done. */
    tsr_status (*drain)(struct tsr_executor *x);
    /* Host-side all-gather among the ranks of `comm`: `bytes` of `in` from each member into `out`.
     * NULL: the executor stands for every member (rank classes), each contributes the same. */
    tsr_status (*exchange)(struct tsr_executor *x, const struct tsr_comm *comm, const void *in,
                           void *out, size_t bytes);
    void (*destroy)(struct tsr_executor *x); /* NULL: nothing to do */
    /* Optional (NULL): a whole step of which the executor has had the like before, as submit() of
     * each instruction would take it (replay.h). Programs with one key differ in nothing but the
     * numbers of buffers and events and in the iteration; addresses are the same. `program` is
     * valid during the call only. */
    tsr_status (*replay)(struct tsr_executor *x, const struct tsr_program *program, uint64_t key);
};

/* Executors embed this as their first member. */
struct tsr_executor {
    const struct tsr_executor_ops *ops;
};

/* The recorder: appends every instruction to the program in `into` (borrowed; may be switched
 * between iterations). */
struct tsr_recorder {
    struct tsr_executor base;
    struct tsr_program *into;
};
/* `recorder` is the caller's; its base is the executor. */
void tsr_recorder_init(struct tsr_recorder *recorder, struct tsr_program *into);

#endif
