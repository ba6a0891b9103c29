/* test_recorded_peaks.c: peak memory of whole steps against what PyTorch's allocator recorded in
 * the same scenarios (tests/golden-memory), to the byte. */
#include "physics.h"

#include <jansson.h>

static json_t *golden(const char *name)
{
    char path[512];
    json_error_t error;
    snprintf(path, sizeof path, "%s/tests/golden-memory/%s.json", TSR_SOURCE_DIR, name);
    json_t *doc = json_load_file(path, 0, &error);
    if (!doc)
        fail_msg("%s: %s", path, error.text);
    return doc;
}

static const char *text_of(const json_t *object, const char *key, const char *missing)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : missing;
}

static long long number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value))
        fail_msg("no number: %s", key);
    return (long long)json_integer_value(value);
}

/* The scenario's own model as a configuration file of the same sizes. */
static void write_model(const json_t *scenario, const char *path)
{
    const json_t *config = json_object_get(scenario, "model_config");
    long long width = number_of(config, "hidden_size");
    long long layers = number_of(config, "num_hidden_layers");
    long long heads = number_of(config, "num_attention_heads");
    long long vocab = number_of(config, "vocab_size");
    long long positions = number_of(config, "max_position_embeddings");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    if (!strcmp(text_of(config, "family", ""), "gpt2"))
        fprintf(file,
                "{\"model_type\": \"gpt2\", \"n_embd\": %lld, \"n_layer\": %lld, \"n_head\": %lld, "
                "\"vocab_size\": %lld, \"n_positions\": %lld, \"n_ctx\": %lld}\n",
                width, layers, heads, vocab, positions, positions);
    else
        fprintf(file,
                "{\"model_type\": \"llama\", \"hidden_size\": %lld, \"num_hidden_layers\": %lld, "
                "\"num_attention_heads\": %lld, \"vocab_size\": %lld, "
                "\"max_position_embeddings\": %lld, \"intermediate_size\": %lld, "
                "\"num_key_value_heads\": %lld, \"tie_word_embeddings\": false}\n",
                width, layers, heads, vocab, positions, number_of(config, "intermediate_size"),
                number_of(config, "num_key_value_heads"));
    assert_int_equal(fclose(file), 0);
}

static const char *dtype_of(const json_t *scenario, const char *key)
{
    const char *name = text_of(scenario, key, "none");
    return strcmp(name, "fp32") ? name : "f32";
}

/* Blocks with the recorded value of reshard_after_forward, the root with its default. */
static void write_experiment(const json_t *scenario, const char *model, char *out, size_t size)
{
    const json_t *config = json_object_get(scenario, "model_config");
    bool gpt2 = !strcmp(text_of(config, "family", ""), "gpt2");
    const json_t *reshard = json_object_get(scenario, "reshard_after_forward");
    char *mesh = json_dumps(json_object_get(scenario, "mesh"), 0);
    char *value = json_dumps(reshard, JSON_ENCODE_ANY);
    assert_string_equal(text_of(scenario, "wrap", ""), "block_root");
    assert_string_equal(text_of(scenario, "optimizer", ""), "adamw_foreach");
    assert_int_equal(number_of(scenario, "grad_accum"), 1);
    int n =
        snprintf(out, size,
                 "model: %s\nmesh: {shape: %s}\nbatch: %lld\nseq: %lld\n"
                 "precision: {param: %s, reduce: %s}\ncheckpoint: %s\napi: %s\n"
                 "wrap:\n  - {modules: [\"%s\"], reshard_after_forward: %s}\n"
                 "  - {modules: [\"\"], reshard_after_forward: null}\n",
                 model, mesh, number_of(scenario, "batch"), number_of(scenario, "seq"),
                 dtype_of(scenario, "param_dtype"), dtype_of(scenario, "reduce_dtype"),
                 text_of(scenario, "ac", ""),
                 strcmp(text_of(scenario, "kind", ""), "replicate") ? "fully_shard" : "replicate",
                 gpt2 ? "transformer.h.*" : "model.layers.*", value);
    assert_true(n > 0 && (size_t)n < size);
    free(mesh);
    free(value);
}

static void check(const char *name, int iteration)
{
    char model[] = "/tmp/tessera-model-XXXXXX.json", text[1024];
    int fd = mkstemps(model, 5);
    json_t *doc = golden(name);
    const json_t *scenario = json_object_get(doc, "scenario");
    const json_t *recorded = json_array_get(
        json_object_get(json_object_get(doc, "allocator"), "iterations"), (size_t)iteration);
    struct study study;
    struct tsr_memory *memory;
    struct tsr_memory_peak peak = {0};
    assert_true(fd >= 0);
    close(fd);
    write_model(scenario, model);
    write_experiment(scenario, model, text, sizeof text);
    study_open(&study, text);
    unlink(model);
    study_ok(tsr_memory_create(&memory));
    uint32_t class = study.sim.class_of[number_of(scenario, "rank")];
    for (int it = 0; it <= iteration + 1; it++) /* the initialisation is before iteration 0 */
        study_ok(tsr_memory_replay(memory, study.programs[class][it], NULL, NULL, &peak));
    if (peak.allocated != (uint64_t)number_of(recorded, "peak_allocated") ||
        peak.reserved != (uint64_t)number_of(recorded, "peak_reserved"))
        fail_msg("%s, iteration %d: allocated %llu (recorded %lld), reserved %llu (recorded %lld)",
                 name, iteration, (unsigned long long)peak.allocated,
                 number_of(recorded, "peak_allocated"), (unsigned long long)peak.reserved,
                 number_of(recorded, "peak_reserved"));
    tsr_memory_destroy(memory);
    study_close(&study);
    json_decref(doc);
}

static void the_first_iteration(void **state)
{
    static const char *const names[] = {"tiny-base",
                                        "tiny-hsdp-2x4",
                                        "tiny-hsdp-2x4-bf16-reduce",
                                        "tiny-replicate-4",
                                        "tiny-reshard-2",
                                        "llama-160m-4ranks",
                                        "llama-2-7b-8ranks-ac",
                                        "llama-3-8b-8ranks-noac",
                                        "gpt2-xl-64ranks-ac"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        check(names[i], 0);
}

static void the_steady_iteration(void **state)
{
    static const char *const names[] = {"tiny-base",
                                        "tiny-hsdp-2x4",
                                        "tiny-hsdp-2x4-bf16-reduce",
                                        "tiny-replicate-4",
                                        "tiny-reshard-2",
                                        "llama-160m-4ranks",
                                        "llama-2-7b-8ranks-ac",
                                        "llama-3-8b-8ranks-noac",
                                        "gpt2-8ranks",
                                        "gpt2-xl-64ranks-ac"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        check(names[i], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_iteration),
        cmocka_unit_test(the_steady_iteration),
    };
    return cmocka_run_group_tests_name("recorded peaks", tests, NULL, NULL);
}
