/* traced.h: the player of a traced model: what it keeps between events, and what steps ask of it.
 * Private to engine/.
 */
#ifndef TSR_ENGINE_TRACED_H
#define TSR_ENGINE_TRACED_H

#include "engine/graph/engine.h"
#include "engine/graph/walk.h"
#include "engine/traced/traced_model.h"

/* ---- instances of segments (instances.c) ----------------------------------------------------- */

enum tsr__slot_state {
    TSR__SLOT_DEAD,
    TSR__SLOT_LIVE,
    TSR__SLOT_GIVEN /* a gradient: whoever has the parameter frees it */
};

struct tsr__slot {
    struct tsr_storage *storage; /* LIVE, of the player: owned */
    uint8_t state;
    uint32_t sum;   /* 1 + the sum whose result it is (sums.c); 0: none */
    uint64_t bytes; /* for sums.c */
};

/* A segment that was played and of which something lives. */
struct tsr__instance {
    struct tsr__instance *older, *newer; /* of its class */
    uint32_t class_of, step;             /* step: index in the list that was played */
    uint32_t n_slots, n_used;            /* used: not dead */
    bool running, is_batch;              /* is_batch: of the phase INPUTS */
    struct tsr__slot *slots;
};

/* Invariant: instances that do not run have n_used > 0. Memory is the arena's; instances that went
 * are used again. */
struct tsr__instances {
    struct tsr_arena *arena;
    size_t n_classes;
    struct tsr__instance **latest, **unused; /* by class */
};

bool tsr__instances_init(struct tsr__instances *t, struct tsr_arena *arena, size_t n_classes);
struct tsr__instance *tsr__instance_begin(struct tsr__instances *t,
                                          const struct tsr_traced_segment *segment, uint32_t step,
                                          bool is_batch);
void tsr__instance_end(struct tsr__instances *t, struct tsr__instance *instance);
/* The slot that an event of the running instance names, or NULL; *owner gets its instance. */
struct tsr__slot *tsr__instance_find(struct tsr__instances *t, struct tsr__instance *running,
                                     const struct tsr_traced_event *event,
                                     struct tsr__instance **owner);
/* The slot is dead from now on; its storage must be somebody else's or gone. */
void tsr__slot_drop(struct tsr__instances *t, struct tsr__instance *instance,
                    struct tsr__slot *slot);
/* Gradients of an earlier backward are not counted any more. */
void tsr__drop_given(struct tsr__instances *t);
/* The batches of a step are over: what is left of them. e NULL: there are no storages. */
void tsr__drop_batches(struct tsr__instances *t, struct tsr_engine *e);

/* ---- what becomes a gradient (traced_check.c) ------------------------------------------------ */

/* Storage n of a step of a list becomes the gradient of a parameter; is_part: it is added to
 * another one on the way there, and the trace frees it. By step. */
struct tsr__give {
    uint32_t step, n, param;
    bool is_part;
};
struct tsr__gives {
    size_t n, cap;
    struct tsr__give *items;
};

/* A kernel that added two tensors of equal shape, and what was freed behind it. */
struct tsr__sum {
    const struct tsr_traced_op *op;
    uint32_t step;                /* in which it ran */
    uint32_t result_step, result; /* the storage that was allocated for it; TSR_NO_ID: in place */
    uint64_t bytes;               /* of the storages that count as its parts */
    struct {
        uint32_t step, n;
    } parts[2];
    uint32_t n_parts;
    uint32_t param; /* whose gradient it adds up; TSR_NO_ID: not known, or none */
    uint32_t into;  /* the sum that has its result as a part; TSR_NO_ID: none */
};

/* The sums of a list, in order (sums.c). The items are freed by tsr__sums_fini(). `open`: the
 * latest event of the running segment was a sum, or a free behind one. */
struct tsr__sums {
    size_t n, cap;
    struct tsr__sum *items;
    bool open;
};
/* Notes event `at` of the segment that runs, before it takes effect; `owner` has the storage that
 * it names, if any. Errors: TSR_ENOMEM. */
tsr_status tsr__sums_event(struct tsr__sums *sums, const struct tsr_traced_model *model,
                           const struct tsr_traced_steps *list, struct tsr__instance *running,
                           size_t at, struct tsr__instance *owner) TSR_MUST_USE;
/* Adds what was summed up on the way to gradients; `gives` is by step, before and after. Errors:
 * TSR_ENOMEM. */
tsr_status tsr__sums_give(struct tsr__sums *sums, struct tsr_arena *arena,
                          struct tsr__gives *gives) TSR_MUST_USE;
void tsr__sums_fini(struct tsr__sums *sums);

/* Sorts by step and storage. */
void tsr__gives_sort(struct tsr__gives *gives);
bool tsr__gives_push(struct tsr__gives *gives, struct tsr_arena *arena, struct tsr__give give);

/* Checks the model and fills `gives` of the lists, in the arena; gives may be NULL. */
tsr_status tsr__traced_resolve(const struct tsr_traced_model *model,
                               const struct tsr_traced_steps lists[TSR_TRACED_LISTS],
                               struct tsr_arena *arena, struct tsr__gives gives[TSR_TRACED_LISTS]);

/* ---- the player ------------------------------------------------------------------------------ */

enum { TSR__TRACED_NESTING = 256 };

/* Invariant: between steps no instance runs, and `fresh` and the stack of modules are empty. */
struct tsr_traced {
    const struct tsr_traced_model *model;
    struct tsr_module **modules; /* by index in the description */
    struct tsr_param **params;
    struct tsr_module **owners; /* by parameter: the module that has it first */
    struct tsr_work *works;     /* by op */
    struct tsr_traced_steps lists[TSR_TRACED_LISTS];
    struct tsr__gives gives[TSR_TRACED_LISTS];
    struct tsr__instances instances;
    struct tsr_storage **fresh; /* allocated since the latest kernel; borrowed */
    size_t n_fresh, cap_fresh;
    struct tsr_module *stack[TSR__TRACED_NESTING]; /* that run, or whose backward does */
    size_t depth;
    uint32_t steady; /* index of the last list, which is played again and again */
    uint32_t played; /* micro-batches of steps that have ended, at most `steady` */
    bool finished;   /* callbacks of the running backward have run */
};

/* traced_ops.c. A kernel as the cost model knows it; its name is the arena's. */
bool tsr__traced_work(struct tsr_arena *arena, const struct tsr_traced_op *op,
                      struct tsr_work *out);
/* It is none: the host waits for a value. */
bool tsr__traced_reads_back(const struct tsr_work *work);

/* The parts of an iteration; micro counts from 0. Phases are the step's to set, but for LOSS. */
void tsr__traced_inputs(struct tsr_engine *e, uint32_t micro);
void tsr__traced_forward(struct tsr_engine *e, uint32_t micro);
void tsr__traced_backward(struct tsr_engine *e, uint32_t micro);
void tsr__traced_end(struct tsr_engine *e, uint32_t n_micro);
void tsr__walk_traced(struct tsr_state_walk *w, const struct tsr_traced *t);

#endif
