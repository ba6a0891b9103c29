/* optimizer_impl.h: kernels over lists of parameters, for the optimizer and for clipping. Private
 * to engine/.
 */
#ifndef TSR_OPTIMIZER_IMPL_H
#define TSR_OPTIMIZER_IMPL_H

#include "engine/step/step_impl.h"

struct tsr__step {
    struct tsr_engine *e;
    struct tsr_param *const *params;
    size_t n;
    int n_states;         /* per parameter: Adam 2, momentum 1 */
    bool host;            /* offloaded parameters step on the host */
    uint64_t bytes;       /* local bytes of the parameters that step */
    uint64_t grad_bytes;  /* of their gradients */
    uint64_t state_bytes; /* of one of their states */
    uint64_t numel;
};

bool tsr__is_offloaded(const struct tsr_param *p);
/* A parameter that this step updates on this rank. */
bool tsr__is_stepped(const struct tsr_param *p);
/* Sums over the parameters that step on s->host. */
void tsr__step_count(struct tsr__step *s);

enum {
    TSR__GRAD = 1,
    TSR__STATE0 = 2,
    TSR__STATE1 = 4,
    TSR__PARAM = 8,
    TSR__TEMP_READ = 16,
    TSR__MIRROR = 32, /* written, where there is one (mirror.c) */
    TSR__SCALED = 64  /* gradients are read times what is left to do (reduce.c) */
};
/* KERNELS.md */
enum { TSR__SLOT_TEMP = 4, TSR__SLOT_EXTRA = 5, TSR__SLOT_NORMS = 6, TSR__SLOT_MIRROR = 7 };
/* One kernel over all parameters that step on s->host, with the operands that were collected
 * before. Reads and writes (the bits above) say which of gradient, states, parameter it touches. */
void tsr__foreach_kernel(struct tsr__step *s, const char *name, unsigned reads, unsigned writes,
                         struct tsr_storage *const *temps, double flops_per_element);

/* Composer's DecoupledAdamW (optimizer_decoupled.c). */
void tsr__adamw_decoupled(struct tsr__step *s);

/* ---- shared by the two ways of clipping (clip.c, clip_loop.c) -------------------------------- */

/* The sum over the ranks that hold other pieces: one all-reduce per mesh dimension that shards. */
void tsr__reduce_norms(struct tsr_engine *e, struct tsr_storage *norms);
/* A kernel over a few numbers. */
void tsr__small_kernel(struct tsr_engine *e, const char *name, struct tsr_storage *from,
                       struct tsr_storage *to);
/* n numbers side by side in one new storage. */
struct tsr_storage *tsr__stack_norms(struct tsr_engine *e, struct tsr_storage *const *each,
                                     size_t n);
/* max_norm / (norm + 1e-6), at most 1; a new storage. */
/* Says in what norms are kept from here to the end of the step (e->clip_dtype). */
void tsr__clip_begin(struct tsr_engine *e, const struct tsr__step *s);
struct tsr_storage *tsr__clip_factor(struct tsr_engine *e, struct tsr_storage *total);

#endif
