/* outside_step.h: what the files for the parts of a run outside its steps share: copies between
 * device and host, and the tensors of a state dict. Private to engine/.
 */
#ifndef TSR_OUTSIDE_STEP_H
#define TSR_OUTSIDE_STEP_H

#include "engine/graph/engine.h"
#include "engine/step/load_save.h"
#include "engine/step/step.h"
#include "engine/step/step_impl.h"

/* ---- copies ---------------------------------------------------------------------------------- */

uint64_t tsr__local_bytes(const struct tsr_param *p); /* of this rank, without padding */
/* The copies of pageable memory, and those that nobody asked to be asynchronous, block. */
void tsr__host_waits(struct tsr_engine *e);
/* Work on the host with the operands collected so far. */
void tsr__host_work(struct tsr_engine *e, const char *name, tsr_dtype dtype, uint64_t read,
                    uint64_t written);
/* `bytes` at `offset` of a storage to the begin of another one; blocks if pageable memory is part.
 */
void tsr__transfer(struct tsr_engine *e, const struct tsr_storage *from, uint64_t offset,
                   const struct tsr_storage *to, uint64_t bytes, tsr_dtype dtype, const char *name);
/* Zeros. */
void tsr__fill(struct tsr_engine *e, const struct tsr_storage *s);
/* Args that say which piece this rank holds; what and name: KERNELS.md. */
void tsr__piece_args(struct tsr_engine *e, const struct tsr_param *p, unsigned what, uint64_t name);
uint64_t tsr__param_hash(const struct tsr_param *p);
/* The values of the iteration are there: HOST_OPs tell the host. */
void tsr__deliver_reports(struct tsr_engine *e);
/* The host waits until the memory of the latest batch may be written again. */
void tsr__settle_inputs(struct tsr_engine *e);

/* ---- state dicts ----------------------------------------------------------------------------- */

/* A tensor of a state dict: a parameter or one of its optimizer states. */
struct tsr__item {
    struct tsr_param *p;
    struct tsr_storage *s; /* this rank's part; NULL: a state of an empty one */
    bool state;
    unsigned what;   /* 0: parameter; 1, 2: first, second state */
    tsr_dtype dtype; /* that it is kept in */
    size_t place;    /* in the state dict */
    uint32_t module; /* that owns the parameter: where its instructions come from */
};

struct tsr__items {
    struct tsr__item *v;
    size_t n, cap;
    uint32_t *owners; /* module of each parameter, by its id; until all items are there */
};

/* The model's part first, then (states) the optimizer's. v is to be freed. */
struct tsr__items tsr__items_collect(struct tsr_engine *e, bool states);
uint64_t tsr__item_full_bytes(const struct tsr__item *item);
uint64_t tsr__item_local_bytes(const struct tsr__item *item); /* without padding */
enum tsr_category tsr__item_category(const struct tsr__item *item);
/* What follows is about this tensor. */
void tsr__item_origin(struct tsr_engine *e, const struct tsr__item *item);
/* Cut over several ranks, not replicated. */
bool tsr__is_cut(const struct tsr_param *p);

/* ---- saving beside training (outside_save.c) ------------------------------------------------- */

struct tsr__save_copy {
    const struct tsr__item *item;
    struct tsr_storage *storage; /* in host memory */
};

tsr_status tsr__section_begin(struct tsr_engine *e, enum tsr_phase phase);
/* Full state dicts of tensor-parallel models are not modelled. */
tsr_status tsr__check_full(const struct tsr_engine *e);

#endif
