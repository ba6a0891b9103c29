/* reducer.h: the bucketed replicate's reducer: its buckets and what it knows of each parameter,
 * shared by reducer.c (buckets, forward), reducer_mixed.c (DDP's own mixed precision) and
 * reducer_backward.c (readiness, all-reduces, hooks).
 * Private to engine/.
 */
#ifndef TSR_ENGINE_REDUCER_H
#define TSR_ENGINE_REDUCER_H

#include "engine/ddp/ddp.h"
#include "engine/fsdp1/fsdp1.h"
#include "engine/graph/engine.h"

/* Gradients that travel together.
 *
 * Invariant: `waiting` is the number of its parameters that are not ready in the running backward;
 * `buffer` is made once and serves every backward until buckets are rebuilt. The last three are of
 * mixed precision: `stale` is what PyTorch made for gradients of the parameters' dtype and holds
 * until it rebuilds; `cast`, this backward's gradients in the dtype of the reduction, becomes
 * `reduced` with its end, which stays until the next one ends. */
struct bucket {
    size_t n, waiting;
    struct tsr_param **params;
    uint64_t *offsets; /* bytes into the buffer */
    uint64_t numel, bytes;
    struct tsr_storage *buffer, *stale, *cast, *reduced;
    uint32_t event; /* of the running all-reduce */
    bool launched;
};

struct slot { /* per parameter, by parameter id */
    uint32_t bucket, index;
    bool member, ready;
    bool used;         /* by the running backward; in a static graph by its first one */
    bool has_new_grad; /* a backward made one since the last reduction (static_graph: ever) */
    bool delayed;      /* outside the buckets: in the delayed buffer */
    uint64_t delayed_offset;
};

/* Invariant: every trainable parameter is in one bucket, or in the delayed buffer (`member` says
 * which). While a backward reduces, buckets before `next` are launched and no other is: they start
 * in order of index, whatever becomes ready first, so that all ranks reduce in one order. */
struct tsr_reducer {
    struct tsr_wrapper base;
    struct tsr_ddp_options options;
    size_t n_caps; /* limits of a dtype's first bucket, second ...; the last one for the rest */
    uint64_t *caps;
    size_t n_params;
    struct tsr_param **params; /* trainable, definition order */
    struct slot *slots;
    size_t n_buckets, next;
    struct bucket *buckets;
    size_t n_ready;
    struct tsr_param **ready_order; /* of the running backward */
    bool sync, rebuilt, has_order;
    uint32_t n_synced;  /* backwards with reduction so far */
    bool reducing;      /* this backward reduces */
    bool marked_unused; /* its unused parameters count as ready */
    uint16_t comm, stream;
    bool has_launched; /* any bucket since the last look (tsr_ddp_bucket) */
    bool has_hook;
    enum tsr_ddp_hook hook;
    tsr_all_reduce_hook user_hook;
    void *user;
    size_t n_device_ids; /* 1 if device_id names a device, else 0 (R217) */
    size_t n_mixed;      /* what mixed precision copies: frozen ones, too; definition order */
    struct tsr_param **mixed;
    size_t n_delayed; /* parameters whose gradients are reduced together, after the hook's (5.3) */
    struct tsr_param **delayed, *delayed_after;
    struct tsr_storage *delayed_buffer;
    uint64_t delayed_bytes;
    uint32_t delayed_event;            /* 0: not running */
    struct tsr_storage *used_map;      /* which parameters a rank used: find_unused, static_graph */
    uint16_t mp_stream, upcast_stream; /* mixed precision: copies of parameters; what ends as f32 */
    uint32_t *copied; /* by module: the event after the copies of its parameters; 0: waited for */
    bool has_run_backward; /* any, also one that reduces nothing */
    bool skips_buffers;    /* the last forward was not synced: the next one broadcasts no buffers */
    bool holds_copies;     /* of parameters: from a forward to the end of a backward that reduces */
};

/* reducer_backward.c, reducer.c, walk.c: its table of functions (graph/wrapper.h). */
extern const struct tsr_wrapper_ops tsr__reducer_wrapper;
/* After the parameters got their values: those of the first rank are broadcast. */
void tsr__reducer_init_end(struct tsr_engine *e, struct tsr_wrapper *w);
void tsr__walk_reducer(struct tsr_state_walk *walk, struct tsr_wrapper *w);
bool tsr__reducer_is_mixed(const struct tsr_reducer *r);

/* sync_state.c: all parameters and buffers are broadcast from rank 0; before a forward the buffers,
 * unless the forward before it was not synced. */
void tsr__reducer_sync_state(struct tsr_engine *e, struct tsr_reducer *r);
void tsr__reducer_sync_buffers(struct tsr_engine *e, struct tsr_reducer *r);

/* reducer_mixed.c: what happens in mixed precision only. Construction: streams and hooks; then
 * handles of parameters in the dtype of the computation, whose storage comes and goes. */
void tsr__reducer_mix(struct tsr_engine *e, struct tsr_reducer *r);
void tsr__reducer_make_handles(struct tsr_engine *e, struct tsr_reducer *r);
/* Root's pre-forward: parameters are copied, with the gradients that they have. reads: the copies
 * of what `m` owns are waited for, once. */
void tsr__reducer_reads(struct tsr_engine *e, const struct tsr_module *m);
void tsr__reducer_copy_params(struct tsr_engine *e, struct tsr_reducer *r);
/* Backward: a full bucket in the dtype of the reduction; a reduced one's gradients in that of the
 * optimizer, the copies of its parameters freed; the end of it all. */
void tsr__reducer_cast_bucket(struct tsr_engine *e, struct tsr_reducer *r, struct bucket *b);
void tsr__reducer_upcast(struct tsr_engine *e, struct tsr_reducer *r, struct bucket *b);
void tsr__reducer_end_upcast(struct tsr_engine *e, struct tsr_reducer *r);

/* Dtypes of a parameter's gradient in its bucket, and as it travels. */
tsr_dtype tsr__bucket_dtype(const struct tsr_reducer *r, const struct tsr_param *p);
tsr_dtype tsr__reduce_dtype(const struct tsr_reducer *r, const struct tsr_param *p);
/* reducer_backward.c: what waits for an event, what follows a stream, a sum that becomes a mean. */
void tsr__reducer_wait(struct tsr_engine *e, uint32_t event);
void tsr__reducer_order(struct tsr_engine *e, uint16_t from, uint16_t to, uint32_t event);
void tsr__reducer_divide(struct tsr_engine *e, struct tsr_storage *buffer, tsr_dtype dtype);
/* Before a forward: buckets are rebuilt, and delayed gradients attached. */
void tsr__reducer_prepare(struct tsr_engine *e);
/* Forward: delayed gradients become views of their buffer again, zeroed. */
void tsr__reducer_attach_delayed(struct tsr_engine *e, struct tsr_reducer *r);

#endif
