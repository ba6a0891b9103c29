/* run_folder.c: see run_folder.h. */
#include "run_folder.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../exec/disk.h"

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
    json_t *config = arch ? json_load_file(m->path, 0, NULL) : NULL;
    if (!json_is_object(config)) {
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
    char path[4096];
    snprintf(path, sizeof path, "%s/run.json", dir);
    json_t *run = json_pack("{s:s, s:s, s:b, s:I, s:o}", "strategy", job->strategy->name, "family",
                            families[hf->family], "tied", (int)hf->tied, "interleaved_head_dim",
                            (json_int_t)hf->interleaved_head_dim, "config", config_of(job));
    char *text = run ? json_dumps(run, JSON_INDENT(1)) : NULL;
    json_decref(run);
    if (!text)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    tsr_status status = tsr_disk_replace_file(&tsr_disk_posix, path, text, strlen(text));
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
    return *config ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory");
}

tsr_status tsr_run_folder_read(const char *dir, struct tsr_hf_model *hf, char **config)
{
    char path[4096];
    json_error_t error;
    snprintf(path, sizeof path, "%s/run.json", dir);
    json_t *run = json_load_file(path, 0, &error);
    if (!run)
        return tsr_fail(TSR_ECONFIG, "%s: found no run that was written with --out (%s)", path,
                        error.text);
    tsr_status status = read_fields(path, run, hf, config);
    json_decref(run);
    return status;
}
