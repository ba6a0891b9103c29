/* step_impl.h: what the engine keeps of steps, and what their files share: inputs and losses,
 * gradients as optimizer and clipping see them, reports, metrics, saving, and what a run does
 * besides its iterations. Private to the steps and their replay.
 */
#ifndef TSR_ENGINE_STEP_IMPL_H
#define TSR_ENGINE_STEP_IMPL_H

#include "engine/fsdp1/fsdp1.h"
#include "engine/graph/engine.h"
#include "engine/graph/walk.h"
#include "engine/ops/ops_common.h"
#include "engine/ops/transfer.h"
#include "engine/step/load_save.h"
#include "engine/step/step.h"

struct tsr__item;
struct tsr__save_copy;

enum { TSR__MAX_REPORTS = TSR_MAX_MICRO + 1 }; /* losses and a norm */

/* Shards that are saved beside training (outside_save.c).
 *
 * Invariant: copies is NULL exactly while nothing is being saved; is_copying until the end of the
 * next step, when the copies are lent to whoever writes them. */
struct tsr__save {
    struct tsr__item *items;       /* owned */
    struct tsr__save_copy *copies; /* owned; NULL: nothing is being saved */
    size_t n;
    uint16_t stream;
    bool has_stream, has_device_copies;
    bool is_copying; /* not handed over yet */
    bool is_guarded; /* the compute stream has waited for the copies */
    uint32_t event;  /* after the copies of device memory; 0: there are none */
};

/* Invariant: between steps nothing is held here but what the next step reads again: workspaces of
 * metrics, the latest logits, a save that is not over. */
struct tsr_step_state {
    struct tsr_step_config config;
    struct tsr_tensor *inputs[TSR_MAX_MICRO], *labels[TSR_MAX_MICRO], *losses[TSR_MAX_MICRO];
    struct tsr_tensor *kept_logits; /* of the latest micro-batch, for metrics */
    struct tsr_tensor *metric_states[TSR_MAX_METRICS][2];
    struct tsr_pending_report { /* a value on its way to the host */
        struct tsr_storage *host;
        uint8_t what; /* enum tsr_report */
        uint8_t dtype;
        uint32_t micro;
    } reports[TSR__MAX_REPORTS];
    size_t n_reports;
    uint32_t report_event; /* after the latest of them */
    uint32_t input_event;  /* after the copies of the latest batch; 0: none */
    bool optimizer_ran;
    uint64_t optimizer_steps;        /* so far; those of a parameter: less missed_steps */
    struct tsr_storage **opt_temps;  /* scratch of the optimizer, by parameter */
    struct tsr_storage **clip_norms; /* scratch of clipping, two for each parameter */
    tsr_dtype clip_dtype;            /* of norms and factor: f64 if a gradient is */
    struct tsr_storage *clip_factor; /* for the optimizer of this step (tsr__folded_scale) */
    struct tsr__save save;
};

/* ---- step.c ---------------------------------------------------------------------------------- */

void tsr__make_inputs(struct tsr_engine *e, uint32_t n_micro);
void tsr__zero_grad(struct tsr_engine *e);
/* The forward of the root and the loss of a micro-batch; a new reference. */
struct tsr_tensor *tsr__forward_loss(struct tsr_engine *e, struct tsr_module *entry,
                                     uint32_t micro); /* entry NULL: the root */
/* The value of one f32 on the device goes to the host, asynchronously (step.report). */
void tsr__report_value(struct tsr_engine *e, uint8_t what, uint32_t micro, struct tsr_storage *s,
                       tsr_dtype dtype);

/* ---- metrics.c ------------------------------------------------------------------------------- */

/* Refuses losses and metrics that the model or the dialect cannot have. */
tsr_status tsr__check_loss(const struct tsr_engine *e);
/* Logits for the metrics of a micro-batch; nothing without metrics. */
void tsr__keep_logits(struct tsr_engine *e, const struct tsr_tensor *logits);
/* The metrics of a micro-batch whose backward is over. */
void tsr__run_metrics(struct tsr_engine *e, uint32_t micro);

/* ---- optimizer.c, optimizer_state.c, sgd.c, clip.c ------------------------------------------- */

/* In which the states of a parameter are kept. */
tsr_dtype tsr__state_dtype(const struct tsr_engine *e, const struct tsr_param *p);
/* Returns how many state tensors of the parameter's size the optimizer keeps: 3 for AdamW with
 * amsgrad, 2 without, 1 for SGD with momentum, else 0. */
int tsr__n_opt_states(const struct tsr_step_config *config);
void tsr__optimizer_step(struct tsr_engine *e);
/* The same to make states, before what is loaded: nobody's step is counted. */
void tsr__optimizer_init(struct tsr_engine *e);
void tsr__clip(struct tsr_engine *e);
/* With kernels for each gradient (TSR_CLIP_LOOP). */
void tsr__clip_loop(struct tsr_engine *e);
/* The gradient of a parameter as the optimizer sees it: its storage; NULL if there is none. */
struct tsr_storage *tsr__param_grad(const struct tsr_param *p);
uint64_t tsr__param_local_numel(const struct tsr_param *p);
struct tsr_storage *tsr__param_storage(const struct tsr_param *p);

/* ---- outside_step.c, outside_save.c ---------------------------------------------------------- */

/* Parameters that are not built on the meta device: full ones, then their shards. Nothing for
 * TSR_INIT_META. */
void tsr__init_unsharded(struct tsr_engine *e);
/* Before parameters or optimizer states are written: copies that are saved come first. */
void tsr__save_guard(struct tsr_engine *e);
/* At the end of a step: the copies are there and can be written. */
void tsr__save_hand_over(struct tsr_engine *e);
/* Emits nothing. */
void tsr__save_drop(struct tsr_engine *e);
void tsr__walk_save(struct tsr_state_walk *w);

/* ---- lists of parameters --------------------------------------------------------------------- */

/* Kernels over lists of parameters, for the optimizer and for clipping. Private
 * to engine/. */

struct tsr__step {
    struct tsr_engine *e;
    struct tsr_param *const *params;
    size_t n;
    int n_states;         /* per parameter: Adam 2 or 3, momentum 1 */
    unsigned max_slot;    /* of AMSGrad's maximum in the next kernel; 0: it has none */
    bool host;            /* offloaded parameters step on the host */
    bool counts;          /* steps of each parameter: of the optimizer, not of clipping */
    tsr_dtype dtype;      /* only parameters of this one; NONE: of any */
    bool groups;          /* of a recipe: only those that decay, or only those that do not */
    bool decaying;        /* groups: which */
    bool like_grads;      /* temporaries have the parameter's dtype, not the state's */
    bool negated;         /* TSR__SCALED: gradients are read against their sign */
    uint64_t bytes;       /* local bytes of the parameters that step */
    uint64_t grad_bytes;  /* of their gradients */
    uint64_t state_bytes; /* of one of their states */
    uint64_t numel;
};

bool tsr__is_offloaded(const struct tsr_param *p);
/* A parameter that this step updates on this rank. */
bool tsr__is_stepped(const struct tsr_param *p);
/* One of the list that `s` is about, and is_stepped(). */
bool tsr__takes(const struct tsr__step *s, const struct tsr_param *p);
/* PyTorch decays what it is given; many recipes leave out biases and weights of norms. */
bool tsr__decays(const struct tsr_engine *e, const struct tsr_param *p);
/* Sums over the parameters that step on s->host. */
void tsr__step_count(struct tsr__step *s);

enum {
    TSR__GRAD = 1,
    TSR__STATE0 = 2,
    TSR__STATE1 = 4,
    TSR__PARAM = 8,
    TSR__TEMP_READ = 16,
    TSR__MIRROR = 32,     /* written, where there is one (mirror.c) */
    TSR__SCALED = 64,     /* gradients are read times what is left to do (reduce.c) */
    TSR__TEMP_KEPT = 128, /* beside TEMP_READ: the temporary is not written */
    TSR__TEMP_NEW = 256   /* the temporary is written, and nothing is read in its place */
};
/* KERNELS.md */
enum { TSR__SLOT_TEMP = 4, TSR__SLOT_EXTRA = 5, TSR__SLOT_NORMS = 6, TSR__SLOT_MIRROR = 7 };
/* One kernel over all parameters that step on s->host, with the operands that were collected
 * before. Reads and writes (the bits above) say which of gradient, states, parameter it touches. */
void tsr__foreach_kernel(struct tsr__step *s, const char *name, unsigned reads, unsigned writes,
                         struct tsr_storage *const *temps, double flops_per_element);
/* A temporary of each parameter that steps on s->host, by parameter; released by tsr__drop_temps().
 * The engine has one such list. NULL after an error. */
struct tsr_storage **tsr__make_temps(struct tsr__step *s);
/* Emits composer's DecoupledAdamW for the parameters that step on s->host. Errors are the engine's.
 */
void tsr__adamw_decoupled(struct tsr__step *s);
void tsr__drop_temps(struct tsr__step *s);
/* A buffer for `p`, on the host or the device. */
struct tsr_storage *tsr__step_storage(struct tsr__step *s, const struct tsr_param *p,
                                      enum tsr_category category);
/* torch.optim.SGD. */
void tsr__sgd(struct tsr__step *s);
/* Every parameter with a gradient counts a step. */
void tsr__count_steps(struct tsr__step *s);
/* What an argument of a kernel says of its parameter's steps (KERNELS.md). */
uint64_t tsr__missed_bits(const struct tsr__step *s, const struct tsr_param *p);
/* _foreach_add_(state_steps, 1) of the counters that lie on the device. */
void tsr__add_steps(struct tsr__step *s);

/* ---- beside the iterations ------------------------------------------------------------------- */

/* What the files for the parts of a run outside its steps share: copies between
 * device and host, and the tensors of a state dict. Private to engine/. */

/* ---- copies ---------------------------------------------------------------------------------- */

uint64_t tsr__local_bytes(const struct tsr_param *p); /* of this rank, without padding */
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
    unsigned what;   /* 0: parameter; 1 to 3: first to third state */
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
