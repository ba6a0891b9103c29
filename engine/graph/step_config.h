/* step_config.h: what a step is told: batch, optimizer, accumulation, clipping, loss.
 * tsr_step_configure() (engine/step/step.h) takes it; models, operations and groups read it.
 */
#ifndef TSR_ENGINE_STEP_CONFIG_H
#define TSR_ENGINE_STEP_CONFIG_H

#include "engine/program/base.h"

enum tsr_optimizer {
    TSR_OPT_ADAMW_FOREACH,
    TSR_OPT_ADAMW_FUSED,
    TSR_OPT_ADAMW_LOOP,
    TSR_OPT_SGD,
    TSR_OPT_SGD_MOMENTUM,
    TSR_OPT_NONE,
    TSR_OPT_DECOUPLED,     /* composer's DecoupledAdamW: eight kernels for each parameter */
    TSR_OPT_DECOUPLED_READ /* the same; the host reads each parameter's step from the device */
};
/* How torch.optim.SGD is done. */
enum tsr_sgd {
    TSR_SGD_FOREACH, /* kernels over lists of parameters */
    TSR_SGD_FUSED,   /* one kernel */
    TSR_SGD_LOOP     /* kernels for each parameter */
};
/* What micro-batches before the last of an iteration do (section 3.12). */
enum tsr_accumulate {
    TSR_ACCUM_REDUCE_EACH,
    TSR_ACCUM_NO_REDUCE,            /* no-sync: unsharded gradients are kept */
    TSR_ACCUM_NO_REDUCE_NO_RESHARD, /* and parameters stay unsharded */
    TSR_ACCUM_NO_ALL_REDUCE         /* HSDP: reduce-scatter only */
};
/* How gradients are clipped by their global norm. */
enum tsr_clip {
    TSR_CLIP_FOREACH,  /* torch's clip_grad_norm_: kernels over all gradients */
    TSR_CLIP_LOOP,     /* FSDP1's: a norm and a product for each gradient */
    TSR_CLIP_LOOP_READ /* as in torch 2.1 and before: the host waits once */
};
/* How the cross-entropy of logits is made (the eager dialect). */
enum tsr_loss_kernel {
    TSR_LOSS_EAGER,         /* fp32 copy, log-softmax, nll */
    TSR_LOSS_FLASH,         /* flash-attn's: one kernel in the dtype of the logits */
    TSR_LOSS_FLASH_INPLACE, /* the same with inplace_backward: gradients take the logits' place */
    TSR_LOSS_COMPILED /* torch.compile's of the eager one: nothing in fp32 of their size; simulated
                         only */
};
enum { TSR_MAX_METRICS = 8 };
/* Where the host stops until the device has come so far. */
enum tsr_sync {
    TSR_SYNC_NONE,
    TSR_SYNC_LOSS, /* it reads the loss of each micro-batch before backward: loss.item() */
    TSR_SYNC_STEP  /* it waits for all streams at the end of the iteration */
};

struct tsr_step_config {
    uint64_t batch, seq; /* sequences and tokens per micro-batch and rank */
    uint32_t n_micro;    /* micro-batches per iteration */
    enum tsr_optimizer optimizer;
    enum tsr_accumulate accumulate;
    bool clip; /* by the global norm */
    enum tsr_clip clip_how;
    enum tsr_loss_kernel loss_kernel;
    /* Plain cross-entropies over the logits of every micro-batch, after its backward and without
     * gradients, as a trainer's metrics have them. Logits then live until the next micro-batch has
     * its own. Not with a loss in chunks. At most TSR_MAX_METRICS. */
    uint32_t metrics;
    /* The host reads the loss at the end of the iteration, as a logger does, and so waits for all
     * of the compute stream. */
    bool reads_loss;
    /* > 1: the head makes the loss in so many chunks of tokens, with its gradients, and returns it
     * instead of logits (ops_chunked_loss.c). Llama family and GPT-2 without tensor parallelism. */
    uint64_t loss_chunks;
    bool decay_matrices_only; /* weight decay leaves out parameters of one dimension */
    enum tsr_sgd sgd;         /* SGD: how */
    bool sgd_decay;           /* SGD adds decayed parameters to the gradient */
    bool nesterov;            /* SGD with momentum steps by gradient + momentum x buffer */
    bool maximize;            /* against the gradient; not DecoupledAdamW */
    bool amsgrad;             /* AdamW, not decoupled: a third state, the maximum of the second */
    /* The loss of every micro-batch, and the norm when gradients are clipped, go to the host: a
     * copy that nobody waits for before the end of the iteration, then HOST_OPs "report". */
    bool report;
    enum tsr_sync sync;
    /* In which optimizer states are kept; NONE: that of the parameter. Kernels load and store it
     * and compute in the dtype of the parameter, without a cast copy of the states; temporaries of
     * foreach and loop, made from a state, have its dtype. */
    tsr_dtype state_dtype;
};

#endif
