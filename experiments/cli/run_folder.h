/* run_folder.h: what a run's folder says about its model, for `tessera export`: run.json. */
#ifndef TSR_CLI_RUN_FOLDER_H
#define TSR_CLI_RUN_FOLDER_H

#include "../../exec/hf_names.h"
#include "job.h"

/* Writes DIR/run.json (atomically): how the model's names relate to Hugging Face's, and the
 * config.json that belongs to the model as it was run. */
tsr_status tsr_run_folder_write(const char *dir, const struct tsr_job *job,
                                const struct tsr_hf_model *hf) TSR_MUST_USE;
/* *config: text of config.json, to be freed. TSR_ECONFIG: no folder of a run, or the model is not
 * one of Hugging Face's families. */
tsr_status tsr_run_folder_read(const char *dir, struct tsr_hf_model *hf,
                               char **config) TSR_MUST_USE;

#endif
