/* code.h: a strategy as the code or the configuration that makes PyTorch do it.
 *
 * torch: a Python module with build_mesh() and apply(model, mesh), which needs PyTorch alone;
 * torchtitan: its TOML; accelerate: its YAML. Each file says at its top what was predicted, and
 * which keys of the strategy it does not say: nothing that was asked for is left out in silence.
 *
 * What is written follows from the same list of calls that the engine was wrapped with
 * (job/wrapping.h).
 */
#ifndef TSR_STUDY_CODE_CODE_H
#define TSR_STUDY_CODE_CODE_H

#include "experiments/study/code/text.h"
#include "experiments/study/job/job.h"
#include "experiments/study/job/result.h"
#include "experiments/study/job/wrapping.h"

enum tsr_code_format { TSR_CODE_TORCH, TSR_CODE_TORCHTITAN, TSR_CODE_ACCELERATE, TSR_N_CODES };
extern const char *const tsr_words_code[]; /* NULL-terminated */
/* Errors: TSR_ECONFIG. */
tsr_status tsr_code_format_of(const char *word, enum tsr_code_format *out) TSR_MUST_USE;

/* Writes strategy after strategy into a folder, and what is in it at the end. */
struct tsr_code_folder {
    const char *path; /* there is such a folder; borrowed */
    enum tsr_code_format format;
    struct tsr_code_text names, list; /* used names; lines of the README */
};

/* Writes one file. `name`: what it is called after ("fsdp@batch=2" is fsdp_batch_2.py); `with`: in
 * what it differs from the strategy, NULL: not; `row`: what was predicted for `job`. Errors:
 * TSR_EIO, TSR_ENOMEM, those of the engine. */
tsr_status tsr_code_write(struct tsr_code_folder *folder, const char *name, const char *with,
                          const struct tsr_job *job, const struct tsr_row *row) TSR_MUST_USE;
/* Writes README.md. Errors: TSR_EIO, TSR_ENOMEM. */
tsr_status tsr_code_finish(struct tsr_code_folder *folder) TSR_MUST_USE;
void tsr_code_folder_fini(struct tsr_code_folder *folder);

/* ---- inside ---------------------------------------------------------------------------------- */

/* One strategy while it is written. */
struct tsr_code_job {
    const struct tsr_job *job;
    const struct tsr_settings *settings; /* of the job */
    struct tsr_engine *engine;           /* wrapped */
    struct tsr_wrapping wrapping;
    enum tsr_code_format format;
};

/* torch.c, torchtitan.c, accelerate.c: everything below the comment at the top. */
tsr_status tsr_code_put_torch(const struct tsr_code_job *code,
                              struct tsr_code_text *to) TSR_MUST_USE;
tsr_status tsr_code_put_torchtitan(const struct tsr_code_job *code,
                                   struct tsr_code_text *to) TSR_MUST_USE;
tsr_status tsr_code_put_accelerate(const struct tsr_code_job *code,
                                   struct tsr_code_text *to) TSR_MUST_USE;

/* What depends on more than one key, as comments that begin with "Not said". */
void tsr_code_put_torchtitan_lacks(const struct tsr_code_job *code, struct tsr_code_text *to);
tsr_status tsr_code_put_accelerate_lacks(const struct tsr_code_job *code,
                                         struct tsr_code_text *to) TSR_MUST_USE;
/* The dtype of reductions, which is also that of what is not said. */
unsigned tsr_code_reduce_dtype(const struct tsr_settings *settings);

/* keys.c: the keys that the file does not say, as comments. Of every key that was given, or is not
 * its default. */
tsr_status tsr_code_put_unsaid(const struct tsr_code_job *code,
                               struct tsr_code_text *to) TSR_MUST_USE;

/* Calls of the root, which has the name "". */
bool tsr_code_wraps_root(const struct tsr_wrapping *wrapping);
/* "expandable_segments:True,...": PYTORCH_CUDA_ALLOC_CONF; "": the default. */
void tsr_code_add_allocator(struct tsr_code_text *to, const struct tsr_settings *settings);

#endif
