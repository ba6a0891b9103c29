/* weights.h: weights of Hugging Face models, read by the ranks that hold them: each reads only the
 * byte ranges of its pieces, converted to the dtype that it wants.
 *
 * A folder has model.safetensors, or several files and model.safetensors.index.json. Every mistake
 * is one line that names file, tensor and both shapes (TSR_ECONFIG).
 */
#ifndef TSR_EXEC_WEIGHTS_H
#define TSR_EXEC_WEIGHTS_H

#include "engine/layout/sharded_state.h"
#include "exec/base/source.h"
#include "exec/files/hf_names.h"
#include "exec/files/safetensors.h"

struct tsr_weights;

/* A .safetensors file, an index file, or a folder that has one. TSR_ECONFIG: files or tensors that
 * the index names are not there (all are named). */
tsr_status tsr_weights_open(const char *path, struct tsr_weights **out) TSR_MUST_USE;
void tsr_weights_close(struct tsr_weights *w); /* NULL is fine */

/* All parameters of a state are there with their shapes, and nothing else but buffers is. */
tsr_status tsr_weights_check(const struct tsr_weights *w, const struct tsr_hf_model *model,
                             const struct tsr_state_dict *params) TSR_MUST_USE;
/* A piece of the parameter `fqn` (a name of the engine's model); name, what and init of the piece
 * are not looked at. From any thread. Tied models: a head that is in the file is compared. */
tsr_status tsr_weights_read(struct tsr_weights *w, const struct tsr_hf_model *model,
                            const char *fqn, const struct tsr_piece *piece, void *out) TSR_MUST_USE;
/* The same for a piece of a step program, whose name is the hash of one in `params`. TSR_EDEFECT:
 * there is none, or it is no parameter. */
tsr_status tsr_weights_read_piece(struct tsr_weights *w, const struct tsr_hf_model *model,
                                  const struct tsr_state_dict *params,
                                  const struct tsr_piece *piece, void *out) TSR_MUST_USE;

/* ---- the table behind it --------------------------------------------------------------------- */

/* The files of a model as one table of tensors. Private to exec/. */

struct tsr_weight {
    struct tsr_safetensors *file;
    const struct tsr_st_tensor *tensor;
};

struct tsr_weights {
    char path[TSR_PATH_BYTES];
    size_t n_files, cap_files, n, cap;
    struct tsr_safetensors **files; /* owned */
    struct tsr_weight *tensors;     /* by name */
};

#endif
