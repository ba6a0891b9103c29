/* export.h: a model for Hugging Face's transformers out of a sharded checkpoint: model.safetensors
 * and config.json. One tensor after the other: memory is twice the largest one.
 */
#ifndef TSR_EXEC_EXPORT_H
#define TSR_EXEC_EXPORT_H

#include "exec/files/checkpoint.h"
#include "exec/files/hf_names.h"

struct tsr_export_options {
    struct tsr_hf_model model;
    tsr_dtype dtype;             /* f32, bf16 or f16 */
    const char *config;          /* text of config.json */
    const struct tsr_disk *disk; /* NULL: the real one */
};

/* Makes the folder. Each file is there whole or not at all; an older one is replaced. Tied heads
 * are left out, as transformers does. TSR_ECONFIG: a parameter without a name there; config is not
 * a JSON object. */
tsr_status tsr_export(struct tsr_checkpoint *from, const char *out_dir,
                      const struct tsr_export_options *options) TSR_MUST_USE;

#endif
