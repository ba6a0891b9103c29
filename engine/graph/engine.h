/* engine.h: the engine's core, as every folder above engine/graph sees it: the graph's own state by
 * value, and one pointer to the state of each folder that builds on it. What such a state holds is
 * in a header of its folder; nobody below that folder looks inside. Private to engine/.
 *
 * Reading order: module.h (the tree), graph.h (tensors, nodes, backward), the sections here (how
 * instructions leave), fsdp/fsdp.h (the hook state machines) and what they emit; then step/step.c
 * (an iteration).
 *
 * Errors inside an emission are sticky: the first one is kept in engine->status, later emission
 * does nothing, and the step function returns it. So model code and hooks read like the PyTorch
 * code they stand for, without a check after each operation.
 */
#ifndef TSR_ENGINE_ENGINE_H
#define TSR_ENGINE_ENGINE_H

#include "engine/graph/architecture.h"
#include "engine/graph/config.h"
#include "engine/graph/device_memory.h"
#include "engine/graph/graph.h"
#include "engine/graph/module.h"
#include "engine/graph/step_config.h"

/* ---- blocks that wait ------------------------------------------------------------------------ */

/* Blocks that are given back later (record_stream): FSDP1 frees memory that another
 * stream than its own still uses. Private to engine/.
 *
 * PyTorch's caching allocator notes an event on the other stream at the free, and returns the block
 * to its pool when a later allocation finds that event over. The engine never asks whether
 * something is finished, so here a block returns when the host must know that its last use is over:
 * when it has waited for an event that comes after it (the rate limiter's, the batch of the next
 * iteration), or when it has launched so much since that event that CUDA's launch queue cannot hold
 * it any more. For the second the host waits for the event before it allocates, which takes no time
 * behind a queue of that depth and makes the order known to every executor. So blocks return as in
 * a run whose host is as far ahead as it can be; until then they count as allocated. */

struct tsr_deferral;
struct tsr_instr;

/* Device instructions that the host may be ahead: the depth of CUDA's launch queue. */
enum { TSR__LAUNCH_QUEUE = 1024 };
/* Begins to keep the clocks of streams and host; once, before anything is emitted to streams whose
 * frees are deferred. */
void tsr__deferral_begin(struct tsr_engine *e, uint64_t launch_queue);
void tsr__deferral_end(struct tsr_engine *e);
/* What an instruction orders; called for each one that is emitted. */
void tsr__deferral_note(struct tsr_engine *e, const struct tsr_instr *instr);
/* The storage loses its block now, which returns to the pool when the host knows that what `stream`
 * has been given so far is over. */
void tsr__storage_unback_after(struct tsr_engine *e, struct tsr_storage *s, uint16_t stream);
/* Drops a reference; the block, if it was the last one, as above. */
void tsr__storage_release_after(struct tsr_engine *e, struct tsr_storage **s, uint16_t stream);
/* Returns the blocks that may return; before each allocation. */
void tsr__deferral_settle(struct tsr_engine *e);
/* The host waits for what was given back in the iteration before this one. It does so anyway: the
 * next iteration begins when this one's inputs are there. */
void tsr__deferral_end_iteration(struct tsr_engine *e);
/* The device is full: the host waits for everything, and all blocks return. False: there were none.
 */
bool tsr__deferral_flush(struct tsr_engine *e);

/* ---- how instructions leave ------------------------------------------------------------------ */

/* How instructions leave the engine: storages that get and lose blocks, operands, streams
 * and events, the trace. Private to engine/; included by engine.h. */

struct tsr_deferral;

/* ---- the state of emission ------------------------------------------------------------------- */

/* Who takes what would leave the engine while a block is traced (compile.h). */
struct tsr_capture_table {
    /* A storage gets memory: nothing is allocated. */
    void (*storage)(struct tsr_engine *e, struct tsr_storage *s);
    /* An operand of the next instruction. *offset: into the storage; becomes that into the value.
     */
    void (*operand)(struct tsr_engine *e, const struct tsr_storage *s, uint64_t *offset);
    void (*emit)(struct tsr_engine *e, const struct tsr_instr *instr);
    /* The gradient of a leaf is complete. */
    void (*leaf)(struct tsr_engine *e, const struct tsr_tensor *leaf, struct tsr_tensor *grad);
};

/* Page-locked memory: PyTorch's cache of it (host_memory.c). */
struct tsr_pinned_cache {
    struct tsr_pinned *free[64]; /* by log2 of the size */
    struct tsr_pinned *pending;  /* freed, perhaps still used by a copy */
    uint64_t uses, settled;      /* uses up to `settled` are over */
    uint32_t n_blocks;
};

/* Invariant: operands and kernel_args are those of one instruction that is put together, and empty
 * between instructions; nothing is allocated meanwhile, so that no other comes between. */
struct tsr_emitter {
    struct tsr_trace_sink trace;
    bool has_trace;
    struct tsr_tables tables;
    struct tsr_stream_info *streams;
    size_t n_streams, cap_streams;
    bool *stream_busy; /* by stream: work was launched since the host last waited for all */
    size_t n_stream_busy, cap_stream_busy;
    struct tsr_comm *comms;
    size_t n_comms, cap_comms;
    struct tsr_allocator *allocator;
    bool is_oom; /* oom is set */
    struct tsr_oom oom;
    uint32_t next_buffer, next_event;
    uint32_t *trace_events; /* recorded events in order, for the numbers in a trace */
    size_t n_trace_events, cap_trace_events;
    struct tsr_operand *operands;
    size_t n_operands, cap_operands;
    uint8_t next_slot;     /* of the operands */
    uint64_t *kernel_args; /* of the instruction that is put together */
    size_t n_kernel_args, cap_kernel_args;
    struct tsr_storage *free_storages;
    struct tsr_deferral *deferral; /* NULL: every free is in stream order */
    struct tsr_pinned_cache pinned;
    uint32_t n_walks;                        /* of digests, so far (walk.h) */
    const struct tsr_capture_table *capture; /* NULL: no block is traced */
};
void tsr__emitter_fini(struct tsr_engine *e);

/* ---- emit.c ---------------------------------------------------------------------------------- */

struct tsr_storage *tsr__storage_new(struct tsr_engine *e, uint64_t bytes,
                                     enum tsr_category category);
/* A storage without a block. */
struct tsr_storage *tsr__storage_empty(struct tsr_engine *e, uint64_t bytes,
                                       enum tsr_category category, uint8_t space);
void tsr__storage_back(struct tsr_engine *e,
                       struct tsr_storage *s); /* gets a block (a new buffer) */
void tsr__storage_unback(struct tsr_engine *e, struct tsr_storage *s); /* loses it */
void tsr__storage_retain(struct tsr_storage *s);
void tsr__storage_release(struct tsr_engine *e, struct tsr_storage **s);
void tsr__storage_set_category(struct tsr_storage *s, enum tsr_category category);

/* Operands of the next instruction. Each takes the next slot, also when it is NULL or empty and
 * leaves its slot out; tsr__slot() says which slot the next one takes. */
void tsr__slot(struct tsr_engine *e, unsigned slot);
void tsr__operand(struct tsr_engine *e, const struct tsr_storage *s, uint64_t offset,
                  uint64_t bytes, uint8_t access, tsr_dtype dtype);
void tsr__operand_tensor(struct tsr_engine *e, const struct tsr_tensor *t, uint8_t access);
void tsr__operand_storage(struct tsr_engine *e, const struct tsr_storage *s, uint8_t access,
                          tsr_dtype dtype);
/* Appends to the args of the next instruction (struct tsr_work). */
void tsr__push_arg(struct tsr_engine *e, uint64_t value);
/* A kernel, copy or collective: work of its stream. */
bool tsr__occupies_stream(uint8_t kind);
/* Emits what `instr` says with the operands and args collected so far (and forgets them). */
void tsr__emit(struct tsr_engine *e, struct tsr_instr *instr);
void tsr__emit_op(struct tsr_engine *e, const struct tsr_work *work);
void tsr__emit_copy(struct tsr_engine *e, tsr_dtype dtype, uint64_t bytes_read,
                    uint64_t bytes_written, const char *name);
/* The storage becomes `value` in every element. */
void tsr__emit_fill(struct tsr_engine *e, const struct tsr_storage *s, tsr_dtype dtype,
                    double value);
void tsr__emit_mark(struct tsr_engine *e, enum tsr_mark mark, uint32_t value);
void tsr__set_phase(struct tsr_engine *e, enum tsr_phase phase, uint32_t micro);

/* ---- streams.c ------------------------------------------------------------------------------- */

uint32_t tsr__new_event(struct tsr_engine *e);
/* The host waits for all that was launched: a wait per stream that has work. */
void tsr__host_wait_all(struct tsr_engine *e);
enum { TSR__HIGH_PRIORITY_ORDER = 128 }; /* of streams in the allocator's sets */
uint16_t tsr__stream_add(struct tsr_engine *e, const char *name, uint8_t role, int8_t priority);
uint16_t tsr__comm_add(struct tsr_engine *e, const char *name, uint32_t size, uint32_t stride,
                       uint16_t queue);

/* Streams and events; each is traced as the golden stream events are. */
void tsr__wait_stream(struct tsr_engine *e, uint16_t stream, uint16_t on);
uint32_t tsr__record_event(struct tsr_engine *e, uint16_t stream);
void tsr__wait_event(struct tsr_engine *e, uint16_t stream, uint32_t event);
void tsr__host_wait_event(struct tsr_engine *e, uint32_t event);
void tsr__wait_work(struct tsr_engine *e, uint16_t stream, uint32_t event);

/* ---- host_memory.c --------------------------------------------------------------------------- */

void tsr__host_alloc(struct tsr_engine *e, struct tsr_storage *s);
void tsr__host_free(struct tsr_engine *e, struct tsr_storage *s);
/* A pinned block is named by an instruction; everything that was issued is over. */
void tsr__pinned_use(struct tsr_engine *e, const struct tsr_storage *s);
void tsr__pinned_settle(struct tsr_engine *e);

/* ---- trace_event.c --------------------------------------------------------------------------- */

void tsr__event_begin(struct tsr_event *ev, const char *name);
void tsr__event_str(struct tsr_event *ev, const char *key, const char *value); /* NULL: null */
void tsr__event_int(struct tsr_event *ev, const char *key, int64_t value);
void tsr__event_bool(struct tsr_event *ev, const char *key, bool value);
void tsr__event_num(struct tsr_event *ev, const char *key, double value); /* 0: null */
void tsr__event_strs(struct tsr_event *ev, const char *key, const char *const *v, size_t n);
void tsr__event_send(struct tsr_engine *e, const struct tsr_event *ev);

/* ---- the engine ------------------------------------------------------------------------------ */

/* What an iteration computes on, per micro-batch and rank. */
struct tsr_step_shape {
    uint64_t batch, seq;
    uint32_t n_micro;
};

enum { TSR__MAX_WRAPPERS = 4 }; /* of one engine */

/* Invariant: `stopped` only inside a recomputation; `origin` and `stream` say where the next
 * instruction comes from, so whoever changes them for a while puts them back. The pointers below
 * are set as long as the engine lives, but for the wrappers that a job may do without. */
struct tsr_engine {
    tsr_status status; /* sticky */
    bool stopped;      /* early stop: nothing runs until the region's call has returned */
    struct tsr_engine_config config;
    uint32_t world;
    struct tsr_arena
        arena; /* names, modules, states: everything that lives as long as the engine */
    struct tsr_step_shape shape;
    uint32_t iteration;
    bool grad_enabled;
    uint16_t stream; /* current */
    struct tsr_origin origin;
    struct tsr_module_tree tree;
    struct tsr_emitter emit;
    struct tsr_autograd autograd;
    struct tsr_wrapper *wrappers[TSR__MAX_WRAPPERS]; /* graph/wrapper.h; in order of first use */
    size_t n_wrappers;

    struct tsr_tp_use *tp;        /* layout/layout.h */
    struct tsr_model_info *model; /* ops/ops_common.h */
    struct tsr_op_state *ops;     /* ops/ops_common.h */
    struct tsr_capture *capture;  /* compile/compile.h; NULL: no block is traced */
    struct tsr_wrapped *fsdp;     /* fsdp/fsdp.h */
    struct tsr_fsdp1 *fsdp1;      /* fsdp1/fsdp1.h; NULL: it was not asked for */
    struct tsr_reducer *reducer;  /* ddp/reducer.h; NULL: likewise */
    struct tsr_traced *traced;    /* traced/traced.h; NULL: the model is made of operations */
    struct tsr_step_state *step;  /* step/step_impl.h */
};

static inline bool tsr__ok(const struct tsr_engine *e)
{
    return e->status == TSR_OK && !e->stopped;
}
/* Keeps the first error. */
void tsr__set_error(struct tsr_engine *e, tsr_status status);
#define TSR__RAISE(e, status_code, ...)                                    \
    do {                                                                   \
        if ((e)->status == TSR_OK) /* keeps the text of the first error */ \
            (e)->status = tsr_fail((status_code), __VA_ARGS__);            \
    } while (0)

#endif
