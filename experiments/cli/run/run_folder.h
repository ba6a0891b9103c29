/* run_folder.h: the folder of a run: whose it is, and what it says about its model, for `tessera
 * export`: run.json.
 */
#ifndef TSR_CLI_RUN_FOLDER_H
#define TSR_CLI_RUN_FOLDER_H

#include "exec/files/hf_names.h"
#include "experiments/study/job/job.h"

/* Makes DIR if need be and claims it (DIR/lock) until *lock, a descriptor, is closed or the process
 * ends. resume: the run to go on from, or NULL. TSR_ECONFIG, naming the option: DIR cannot be
 * written, another run writes there, or it has checkpoints of a run that this one does not go on
 * from; resume is none. */
tsr_status tsr_run_folder_claim(const char *dir, const char *resume, int *lock) TSR_MUST_USE;
/* Writes DIR/run.json (atomically): how the model's names relate to Hugging Face's, and the
 * config.json that belongs to the model as it was run. */
tsr_status tsr_run_folder_write(const char *dir, const struct tsr_job *job,
                                const struct tsr_hf_model *hf) TSR_MUST_USE;
/* *config: text of config.json, to be freed. TSR_ECONFIG: no folder of a run, or the model is not
 * one of Hugging Face's families. */
tsr_status tsr_run_folder_read(const char *dir, struct tsr_hf_model *hf,
                               char **config) TSR_MUST_USE;

#endif
