/* torch_parts.h: what the files that write Python share. */
#ifndef TSR_STUDY_CODE_TORCH_PARTS_H
#define TSR_STUDY_CODE_TORCH_PARTS_H

#include "experiments/study/code/code.h"

/* ---- torch_blocks.c: modules that are replaced by a wrapper around them ---------------------- */

/* "register_module(name, around(module, options))" for each, in loops where that can be said. */
void tsr__code_put_replaced(const struct tsr_code_job *code, const struct tsr_modules *modules,
                            const char *around, const char *options, struct tsr_code_text *to);
void tsr__code_put_checkpointed(const struct tsr_code_job *code, struct tsr_code_text *to);
/* The function that a selective checkpoint is given. */
void tsr__code_put_selective(struct tsr_code_text *to);
/* torch.compile of each block. Errors: TSR_ENOMEM. */
tsr_status tsr__code_put_compiled(const struct tsr_code_job *code,
                                  struct tsr_code_text *to) TSR_MUST_USE;

/* ---- torch_older.c: DistributedDataParallel, FullyShardedDataParallel; they return ----------- */

bool tsr__code_ddp_is_mixed(const struct tsr_settings *settings);
void tsr__code_put_ddp(const struct tsr_code_job *code, struct tsr_code_text *to);
void tsr__code_put_fsdp1(const struct tsr_code_job *code, struct tsr_code_text *to);
/* "param_dtype=torch.bfloat16, reduce_dtype=torch.float32" */
void tsr__code_add_policy(struct tsr_code_text *to, const struct tsr_settings *settings);

#endif
