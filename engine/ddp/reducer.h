/* reducer.h: the bucketed replicate's reducer: its buckets and what it knows of each parameter,
 * shared by reducer.c (buckets, forward), reducer_mixed.c (computation in another dtype) and
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
 * `buffer` is made once and serves every backward until buckets are rebuilt. */
struct bucket {
    size_t n, waiting;
    struct tsr_param **params;
    uint64_t *offsets; /* bytes into the buffer */
    uint64_t numel, bytes;
    struct tsr_storage *buffer;
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
    size_t n_frozen;     /* they take part in nothing, but compute in the same dtype */
    struct tsr_param **frozen;
    size_t n_delayed; /* parameters whose gradients are reduced together, after the hook's (5.3) */
    struct tsr_param **delayed, *delayed_after;
    struct tsr_storage *delayed_buffer;
    uint64_t delayed_bytes;
    uint32_t delayed_event;       /* 0: not running */
    struct tsr_storage *used_map; /* which parameters a rank used: find_unused, static_graph */
};

extern const struct tsr_backward_observer tsr__reducer_observer;
/* After the parameters got their values: the root rank's are broadcast. */
void tsr__reducer_init_params(struct tsr_engine *e);
/* reducer_mixed.c: parameters of another dtype than that of the computation get a handle in it,
 * whose storage comes and goes; in forward they are cast, with the gradients that they have. */
void tsr__reducer_make_handles(struct tsr_engine *e, struct tsr_reducer *r);
void tsr__reducer_cast(struct tsr_engine *e, struct tsr_reducer *r);
/* Dtype in which a parameter's gradient travels. */
tsr_dtype tsr__bucket_dtype(const struct tsr_reducer *r, const struct tsr_param *p);
/* Forward: delayed gradients become views of their buffer again, zeroed. */
void tsr__reducer_attach_delayed(struct tsr_engine *e, struct tsr_reducer *r);

#endif
