/* run_folder.c: the folder of a run: whose it is (lock), what it says about its model
 * (run.json), and `tessera export RUN --out DIR`, which reads that. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "exec/files/checkpoint.h"
#include "exec/files/export.h"
#include "exec/kernels/call/kernel.h"
#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/run/run.h"
#include "experiments/study/base/files.h"
#include "experiments/study/base/json.h"
#include "experiments/study/base/literals.h"
#include "experiments/study/simulate/open.h"
#include "sim/base/json_load.h"
#include "sim/base/text.h"

/* ---- whose folder it is ---------------------------------------------------------------------- */

static bool exists(const char *dir, const char *name)
{
    char path[TSR_PATH_BYTES];
    return tsr_path(path, "%s/%s", dir, name) == TSR_OK && tsr_kind_of(NULL, path) != TSR_KIND_NONE;
}

static bool has_checkpoints(const char *dir)
{
    char folder[TSR_PATH_BYTES], path[TSR_PATH_BYTES];
    unsigned damaged = 0;
    if (tsr_path(folder, "%s/checkpoints", dir) != TSR_OK)
        return false;
    return tsr_checkpoint_latest(folder, path, &damaged) == TSR_OK || damaged > 0;
}

static tsr_status check_resume(const char *dir, const char *resume)
{
    bool one = exists(resume, "COMMIT") || exists(resume, "meta.json");
    if (one && !strcmp(dir, resume))
        return tsr_fail(TSR_ECONFIG,
                        "--resume: %s: found one checkpoint; allowed: with --out DIR, or the "
                        "folder of a run",
                        resume);
    if (one || has_checkpoints(resume))
        return TSR_OK;
    return tsr_fail(
        TSR_ECONFIG,
        "--resume: %s: found no checkpoint; allowed: the folder of a run that saved one", resume);
}

static tsr_status lock_file(const char *dir, int *lock)
{
    struct tsr_folder folder;
    const char *why = "";
    int fd = -1;
    if (tsr_folder_open(dir, &folder) != TSR_OK)
        why = strerror(errno);
    else
        fd = tsr_file_open(&folder, "lock", TSR_OPEN_UPDATE, NULL, &why);
    int reason = errno;
    bool in_the_way = fd < 0 && reason == EINVAL;
    tsr_folder_close(&folder);
    if (fd < 0 && (reason == EMFILE || reason == ENFILE || reason == ENOSPC || reason == EIO))
        return tsr_fail(TSR_EIO, "--out %s: %s; nothing was written", dir, why);
    if (fd < 0)
        return tsr_fail(TSR_ECONFIG,
                        "--out: %s%s: cannot be written: %s; allowed: a folder that can", dir,
                        in_the_way ? "/lock" : "", why);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        *lock = fd;
        return TSR_OK;
    }
    int error = errno;
    (void)close(fd);
    if (error == EWOULDBLOCK)
        return tsr_fail(TSR_ECONFIG,
                        "--out: %s: found a run that is still writing there; allowed: a folder for "
                        "each run",
                        dir);
    fprintf(stderr,
            "tessera: %s: this file system has no locks (%s): let no other run write there\n",
            tsr_show_line(dir).text, strerror(error));
    return TSR_OK;
}

tsr_status tsr_run_folder_claim(const char *dir, const char *resume, int *lock)
{
    char why[512];
    *lock = -1;
    if (resume)
        TSR_TRY(check_resume(dir, resume));
    if (!dir[0] || tsr_make_folder(dir) != TSR_OK) {
        snprintf(why, sizeof why, "%s", dir[0] ? tsr_error_text() : "found an empty name");
        return tsr_fail(TSR_ECONFIG, "--out: %s; allowed: a folder that can be written", why);
    }
    TSR_TRY(lock_file(dir, lock));
    if (!has_checkpoints(dir) || (resume && tsr_folder_is_same(dir, resume)))
        return TSR_OK;
    if (*lock >= 0)
        (void)close(*lock);
    *lock = -1;
    char *word = tsr_shell_text(dir);
    tsr_status status = tsr_fail(TSR_ECONFIG,
                                 "--out: %s: found the checkpoints of a run; allowed: --resume %s, "
                                 "or another folder",
                                 dir, word ? word : "DIR");
    free(word);
    return status;
}

/* ---- its model ------------------------------------------------------------------------------- */

static const char *const families[] = {
    [TSR_HF_LLAMA] = "llama", [TSR_HF_GPT2] = "gpt2", [TSR_HF_AS_IS] = "other"};

static const char *architecture(const char *type)
{
    static const char *const table[][2] = {{"llama", "LlamaForCausalLM"},
                                           {"mistral", "MistralForCausalLM"},
                                           {"qwen2", "Qwen2ForCausalLM"},
                                           {"qwen3", "Qwen3ForCausalLM"},
                                           {"gpt2", "GPT2LMHeadModel"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(type, table[i][0]))
            return table[i][1];
    return NULL;
}

/* The model's own file, with what the experiment changed. */
static json_t *config_of(const struct tsr_job *job)
{
    const struct tsr_model *m = &job->model;
    const char *arch = architecture(m->type);
    json_t *config = NULL;
    if (!arch || tsr_json_load(m->path, TSR_TEXT_VALUES, &config) != TSR_OK ||
        !json_is_object(config)) {
        json_decref(config);
        return json_null();
    }
    if (!json_object_get(config, "architectures"))
        json_object_set_new(config, "architectures", json_pack("[s]", arch));
    bool gpt2 = m->family == TSR_FAMILY_GPT2;
    json_object_set_new(config, gpt2 ? "n_layer" : "num_hidden_layers",
                        json_integer((json_int_t)(gpt2 ? m->gpt2.n_layer : m->llama.n_layers)));
    return config;
}

tsr_status tsr_run_folder_write(const char *dir, const struct tsr_job *job,
                                const struct tsr_hf_model *hf)
{
    char path[TSR_PATH_BYTES];
    TSR_TRY(tsr_path(path, "%s/run.json", dir));
    json_t *run = json_pack("{s:s, s:s, s:b, s:I, s:s, s:o}", "strategy", job->strategy->name,
                            "family", families[hf->family], "tied", (int)hf->tied,
                            "interleaved_head_dim", (json_int_t)hf->interleaved_head_dim,
                            "host_products", tsr_kernels_products(), "config", config_of(job));
    char *text = run ? json_dumps(run, JSON_INDENT(1)) : NULL;
    json_decref(run);
    if (!text)
        return tsr_no_memory(NULL);
    tsr_status status = tsr_disk_replace_path(&tsr_disk_posix, path, text, strlen(text));
    free(text);
    return status;
}

static tsr_status read_fields(const char *path, json_t *run, struct tsr_hf_model *hf, char **config)
{
    const char *family = json_string_value(json_object_get(run, "family"));
    json_t *object = json_object_get(run, "config");
    *hf = (struct tsr_hf_model){.family = TSR_HF_AS_IS};
    for (size_t i = 0; family && i < sizeof families / sizeof *families; i++)
        if (!strcmp(family, families[i]))
            hf->family = (enum tsr_hf_family)i;
    hf->tied = json_is_true(json_object_get(run, "tied"));
    hf->interleaved_head_dim =
        (uint64_t)json_integer_value(json_object_get(run, "interleaved_head_dim"));
    if (hf->family == TSR_HF_AS_IS || !json_is_object(object))
        return tsr_fail(TSR_ECONFIG,
                        "%s: family: found %s; allowed: llama or gpt2 (models that transformers "
                        "has)",
                        path, family ? family : "nothing");
    *config = json_dumps(object, JSON_INDENT(2));
    return *config ? TSR_OK : tsr_no_memory(NULL);
}

/* *config: text of config.json, to be freed. TSR_ECONFIG: no folder of a run, or the model is not
 * one of Hugging Face's families. */
static tsr_status tsr_run_folder_read(const char *dir, struct tsr_hf_model *hf, char **config)
{
    char path[TSR_PATH_BYTES];
    json_t *run;
    TSR_TRY(tsr_path(path, "%s/run.json", dir));
    tsr_status status = tsr_json_load(path, TSR_TEXT_VALUES, &run);
    if (status != TSR_OK)
        return tsr_fail(status, "%s: found no run that was written with --out (%s)", dir,
                        tsr_error_text());
    status = read_fields(path, run, hf, config);
    json_decref(run);
    return status;
}

/* ---- tessera export -------------------------------------------------------------------------- */

/* The latest checkpoint of a run as a model of Hugging Face. */

static tsr_status dtype_of(const struct tsr_args *args, tsr_dtype *out)
{
    *out = args->dtype ? tsr_dtype_parse(args->dtype) : TSR_F32;
    if (*out == TSR_F32 || *out == TSR_BF16 || *out == TSR_F16)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "--dtype: found %s; allowed: f32, bf16 or f16", args->dtype);
}

static tsr_status export_from(const char *path, const char *out,
                              const struct tsr_export_options *options)
{
    struct tsr_checkpoint *checkpoint = NULL;
    TSR_TRY(tsr_checkpoint_open(path, true, &checkpoint));
    tsr_status status = tsr_export(checkpoint, out, options);
    if (status == TSR_OK)
        printf("%s: step %llu of %s\n", tsr_show_line(out).text,
               (unsigned long long)tsr_checkpoint_step(checkpoint),
               tsr_show_line(tsr_checkpoint_path(checkpoint)).text);
    tsr_checkpoint_close(checkpoint);
    return status;
}

tsr_status tsr_cmd_export(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    struct tsr_export_options options = {0};
    char path[4096], *config = NULL;
    (void)success;
    TSR_TRY(tsr_args_need_file(usage, args));
    if (!args->out)
        return tsr_fail(TSR_ECONFIG, "export: --out: found none; allowed: a folder");
    TSR_TRY(dtype_of(args, &options.dtype));
    TSR_TRY(tsr_run_folder_read(args->file, &options.model, &config));
    options.config = config;
    snprintf(path, sizeof path, "%s/checkpoints", args->file);
    tsr_status status = tsr_prepare_out(args->out);
    if (status == TSR_OK)
        status = export_from(path, args->out, &options);
    free(config);
    return status;
}
