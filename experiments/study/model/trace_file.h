/* trace_file.h: a model as it was traced in PyTorch (TRACE.md of the tracer), read from its
 * file and checked. The engine plays it (engine/traced/traced_model.h).
 */
#ifndef TSR_STUDY_TRACE_FILE_H
#define TSR_STUDY_TRACE_FILE_H

#include "engine/traced/traced_model.h"

/* Hooking this module casts its inputs, or not hooking it leaves out a cast that was traced. */
struct tsr_trace_cast {
    uint32_t module;
    const char *dtype;
    uint64_t bytes;
};

/* The model under one set of conditions: what it was fed with, what it was traced under. */
struct tsr_trace_variant {
    const char *name, *checkpoint; /* "b2-s4096-full"; "none", "full", "every2", "selective" */
    uint64_t batch, seq;           /* seq 0: the model has none */
    uint64_t tokens;               /* per micro-batch and rank: what throughput counts */
    const char *param_dtype, *output_dtype, *autocast; /* as torch names them; NULL: none */
    const char *
        ddp_outputs; /* "find_unused", "static_graph": cloned as by DDP with this option; or NULL */
    bool cast_inputs;
    bool *checkpointed, *hooked, *needs, *cast_at; /* by module; cast_at: in `casts` */
    const char **cannot; /* by module: why it cannot be a group of its own; NULL: it can */
    size_t n_casts;
    const uint32_t *groups; /* as in tsr_traced_model */
    const struct tsr_trace_cast *casts;
    struct tsr_traced_steps plain[TSR_TRACED_LISTS], instrumented[TSR_TRACED_LISTS];
};

/* An option of `python -m tessera trace` that the trace was made with, other than sizes,
 * checkpointing and dtype: a command that traces the model again repeats it. */
struct tsr_trace_option {
    const char *name, *value; /* "--blocks", "model.layers.*" */
};

/* Owns its memory. `model` is complete but for what belongs to a variant. */
struct tsr_traced_file {
    struct tsr_arena arena;
    const char *path, *source, *type; /* of the model: "train.py:make", "LlamaForCausalLM" */
    char sha256[65];
    struct tsr_traced_model model;
    size_t n_blocks;
    const uint32_t *blocks; /* modules that repeat: what `wrap: block` means */
    size_t n_variants;
    struct tsr_trace_variant *variants;
    uint64_t n_elements; /* of all parameters */
    /* How it was asked for (made_by.asked). Files without that leave all of it 0. */
    bool was_asked, takes_batch, takes_seq; /* takes: the function has a parameter of this name */
    size_t n_options;
    const struct tsr_trace_option *options;
};

/* Reads and checks all of it: keys, types, limits, the hash, and every variant
 * (tsr_traced_check()). Errors: TSR_ECONFIG, one line with the file and the place; TSR_ENOMEM. On
 * failure nothing is to be freed. */
tsr_status tsr_traced_file_load(const char *path, struct tsr_traced_file *out) TSR_MUST_USE;
void tsr_traced_file_fini(struct tsr_traced_file *trace);
/* Its model becomes that of a variant. */
void tsr_traced_file_choose(struct tsr_traced_file *trace, const struct tsr_trace_variant *variant);
/* "b2-s128-none, b4-s128-none" for messages: as many as fit. */
void tsr_traced_file_list(const struct tsr_traced_file *trace, char *out, size_t size);

#endif
