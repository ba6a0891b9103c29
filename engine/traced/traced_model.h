/* traced_model.h: a model as a recorder of PyTorch saw it run: modules, parameters, and every
 * allocation, free and kernel of an unsharded step between the points where wrappers have their
 * hooks (TRACE.md of the tracer). tsr_model_traced() builds it; steps then play it in the place
 * of forward, loss and backward, with the hooks of whatever wraps its modules.
 *
 * Nothing here is owned: the arrays belong to whoever made the description (a reader of files),
 * and live as long as the engine.
 */
#ifndef TSR_ENGINE_TRACED_MODEL_H
#define TSR_ENGINE_TRACED_MODEL_H

#include "engine/program/program.h"

struct tsr_engine;

enum { TSR_TRACED_DIMS = TSR_MAX_DIMS, TSR_TRACED_SHAPES = 12 };

/* Dtypes that parameters cannot have are given by their size. */
struct tsr_traced_param {
    const char *name; /* FQN of its first place */
    int n_dims;       /* up to TSR_TRACED_DIMS */
    uint64_t shape[TSR_TRACED_DIMS];
    tsr_dtype dtype; /* before a policy casts it */
    bool trainable;
};

struct tsr_traced_place {
    const char *name; /* attribute of the module */
    uint32_t index;   /* of the parameter, or of the child module */
};

struct tsr_traced_buffer {
    const char *name;
    tsr_dtype dtype; /* TSR_U8 for those that the engine does not have, too */
    uint64_t bytes;
};

/* In pre-order, the root first; a child has a higher index than its parent unless it stands at
 * several places, of which the first one counts. */
struct tsr_traced_module {
    const char *name, *type; /* FQN; class */
    const struct tsr_traced_place *params, *children;
    const struct tsr_traced_buffer *buffers;
    size_t n_params, n_children, n_buffers;
    bool is_container; /* without a forward of its own: cannot be wrapped */
};

/* A kernel; flops < 0: not known. Shapes are those of its tensor arguments. */
struct tsr_traced_op {
    const char *name; /* "aten.mm.default" */
    size_t n_shapes;
    struct tsr_traced_shape {
        uint8_t n_dims;
        uint64_t dims[TSR_TRACED_DIMS];
    } shapes[TSR_TRACED_SHAPES];
    tsr_dtype dtype;
    bool causal;                        /* attention: half of the FLOP is not computed */
    double flops;                       /* by the formula of a full one */
    uint64_t bytes_read, bytes_written; /* of distinct memory, once */
};

enum tsr_traced_event_kind {
    TSR_TRACED_ALLOC,  /* storage n of the segment, `bytes` */
    TSR_TRACED_FREE,   /* storage n of the segment, or of another one */
    TSR_TRACED_KERNEL, /* op n, which reads `n_reads` parameters */
    TSR_TRACED_GRAD    /* the gradient of `param` is complete and lies in storage n */
};
enum tsr_traced_use { TSR_TRACED_PLAIN, TSR_TRACED_WORKSPACE, TSR_TRACED_RECOMPUTED };

/* What an event names of another segment is of the back-th latest instance, running ones left out,
 * of all segments of class `of` in which storage n is still there; TSR_NO_ID: of its own. */
struct tsr_traced_event {
    uint8_t kind; /* enum tsr_traced_event_kind */
    uint8_t use;  /* ALLOC: enum tsr_traced_use */
    uint32_t n, of, back;
    uint32_t param; /* GRAD: parameter, relative to the step's base. KERNEL: first of `reads` */
    uint32_t n_reads;
    uint64_t bytes;
};

struct tsr_traced_segment {
    size_t n_events;
    const struct tsr_traced_event *events;
    const uint32_t *reads; /* parameters, relative to the step's base */
    uint32_t n_storages;
    uint32_t class_of; /* segments with equal allocations: the first of them */
};

enum tsr_traced_mark {
    TSR_TRACED_INPUTS,
    TSR_TRACED_ZERO_GRAD,
    TSR_TRACED_FORWARD,
    TSR_TRACED_LOSS,
    TSR_TRACED_BACKWARD,
    TSR_TRACED_OPTIMIZER,
    TSR_TRACED_END,
    TSR_TRACED_PRE_FORWARD,
    TSR_TRACED_RECOMPUTE, /* a pre-forward inside a recomputation */
    TSR_TRACED_POST_FORWARD,
    TSR_TRACED_PRE_BACKWARD,
    TSR_TRACED_POST_BACKWARD,
    TSR_TRACED_FINAL, /* callbacks at the end of a backward */
    TSR_TRACED_N_MARKS
};

/* A mark, and the segment of events from there to the next mark. */
struct tsr_traced_step {
    uint8_t mark;    /* enum tsr_traced_mark */
    uint32_t module; /* TSR_NO_ID: of the whole model */
    uint32_t segment, base;
};

/* One iteration of one micro-batch, from INPUTS to END, phases in that order. */
struct tsr_traced_steps {
    size_t n;
    const struct tsr_traced_step *steps;
};

enum { TSR_TRACED_LISTS = 3 };

struct tsr_traced_model {
    uint64_t hash; /* of the file: part of what every kernel's program is */
    size_t n_modules, n_params, n_ops, n_segments;
    const struct tsr_traced_module *modules;
    const struct tsr_traced_param *params;
    const struct tsr_traced_op *ops;
    const struct tsr_traced_segment *segments;
    /* The first iteration, the second, and every later one; the last may be empty: as the second.
     * It differs where a model keeps tensors from step to step that the second one frees under
     * other names than its own. */
    struct tsr_traced_steps plain[TSR_TRACED_LISTS];
    /* The same while every operation was recorded (tsr_engine_config.instrumented); n 0: as plain.
     */
    struct tsr_traced_steps instrumented[TSR_TRACED_LISTS];
    tsr_dtype compute;      /* that parameters are cast to by wrappers; NONE: not cast */
    const bool *hooked;     /* by module: it has marks */
    const bool *casts;      /* by module: its hooks cast its inputs; NULL: none does */
    const bool *needs;      /* by module: its hooks change what is allocated, so it must be wrapped;
                               NULL:  those of none do */
    const uint32_t *groups; /* by module: modules of one number, not 0, had the hooks of one call,
                               and are wrapped so; NULL: each had its own */
    const char *const
        *cannot; /* by module: why it cannot be wrapped; NULL: it can; NULL: all can */
};

/* Indices are in range, frees and gradients find their storages, also when the steady iteration
 * comes twice, and marks nest. Errors: TSR_EVALUE with the place; TSR_ENOMEM. */
tsr_status tsr_traced_check(const struct tsr_traced_model *model) TSR_MUST_USE;
/* Builds the model as the engine's root; it has passed tsr_traced_check(), and is borrowed while
 * the engine lives. Errors: TSR_EVALUE if there is a model already; TSR_EUNSUPPORTED for dialects
 * that it was not traced in; TSR_ENOMEM. */
tsr_status tsr_model_traced(struct tsr_engine *engine,
                            const struct tsr_traced_model *model) TSR_MUST_USE;
/* Once it is wrapped: does what wraps it go with the trace? tsr_engine_init_params() asks, too. An
 * engine without a traced model: TSR_OK. Errors: TSR_EUNSUPPORTED with the module. */
tsr_status tsr_traced_check_wrapping(const struct tsr_engine *engine) TSR_MUST_USE;

#endif
