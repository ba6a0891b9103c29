/* test_recorded_peaks.c: peak memory of whole steps against what PyTorch's allocator recorded in
 * the same scenarios (tests/golden-memory), to the byte. */
#include "tests/physics/physics.h"

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

static bool is_hf(const json_t *scenario)
{
    return !strcmp(text_of(json_object_get(scenario, "model_config"), "impl", "own"), "hf");
}

static bool is_gpt2(const json_t *scenario)
{
    return !strcmp(text_of(json_object_get(scenario, "model_config"), "family", ""), "gpt2");
}

/* The recorded models have torchtitan's names, or are those of transformers, whose stand-in device
 * finds sequences packed. */
static void put_model(FILE *out, const json_t *scenario, const char *model)
{
    const json_t *config = json_object_get(scenario, "model_config");
    fprintf(out, "model: {name: %s, %s%s}\ngqa_repeat: %s\n", model,
            is_hf(scenario) ? "implementation: transformers, packed: true" : "names: torchtitan",
            strcmp(text_of(config, "norm", ""), "hand") ? "" : ", norm: hand",
            strcmp(text_of(config, "gqa", ""), "repeat") ? "false" : "true");
}

/* Every second block: the recorded ones begin with the first. */
static void put_checkpoint(FILE *out, const json_t *scenario)
{
    const char *mode = text_of(scenario, "ac", "");
    fprintf(out, "checkpoint: %s\n", strcmp(mode, "every2") ? mode : "{every: 2, first: 1}");
}

/* "adamw_fused": AdamW, the fused one. */
static void put_optimizer(FILE *out, const json_t *scenario)
{
    const char *name = text_of(scenario, "optimizer", "");
    assert_memory_equal(name, "adamw_", 6);
    fprintf(out, "optimizer: {name: adamw, variant: %s}\nclip: %s\n", name + 6,
            json_is_true(json_object_get(scenario, "clip")) ? "true" : "false");
}

/* Blocks with the recorded value of reshard_after_forward, the root with its default; a tail never
 * reshards. */
static void put_wrap(FILE *out, const json_t *scenario)
{
    const char *wrap = text_of(scenario, "wrap", "");
    bool tail = !strcmp(wrap, "embed_block_tail_root"), hf = is_hf(scenario);
    char *value = json_dumps(json_object_get(scenario, "reshard_after_forward"), JSON_ENCODE_ANY);
    const char *blocks = hf ? "model.layers.*" : is_gpt2(scenario) ? "h.*" : "layers.*";
    if (!tail)
        assert_string_equal(wrap, "block_root");
    fprintf(out, "wrap:\n");
    if (tail)
        fprintf(out, "  - {modules: [tok_embeddings], reshard_after_forward: %s}\n", value);
    fprintf(out, "  - {modules: [\"%s\"], reshard_after_forward: %s}\n", blocks, value);
    if (tail)
        fprintf(out, "  - {modules: [norm, output], group: true, reshard_after_forward: false}\n");
    fprintf(out, "  - {modules: [\"\"], reshard_after_forward: null}\n");
    free(value);
}

static void write_experiment(const json_t *scenario, const char *model, char *out, size_t size)
{
    FILE *text = fmemopen(out, size, "w");
    const json_t *shape = json_object_get(scenario, "mesh");
    bool replicates = !strcmp(text_of(scenario, "kind", ""), "replicate");
    char *mesh = json_dumps(shape, 0);
    assert_non_null(text);
    assert_int_equal(number_of(scenario, "grad_accum"), 1);
    put_model(text, scenario, model);
    put_checkpoint(text, scenario);
    put_optimizer(text, scenario);
    put_wrap(text, scenario);
    if (!replicates)
        fprintf(text, "mesh: {shape: %s}\n", mesh);
    else /* it reads no mesh: all ranks are replicas */
        fprintf(text, "world: %lld\n", (long long)json_integer_value(json_array_get(shape, 0)));
    fprintf(text, "batch: %lld\nseq: %lld\n", number_of(scenario, "batch"),
            number_of(scenario, "seq"));
    fprintf(text, "precision: {param: %s, reduce: %s}\napi: %s\n",
            dtype_of(scenario, "param_dtype"), dtype_of(scenario, "reduce_dtype"),
            replicates ? "replicate" : "fully_shard");
    assert_int_equal(fclose(text), 0);
    assert_true(strlen(out) + 1 < size);
    free(mesh);
}

static void check(const char *name, int iteration)
{
    char model[] = "/tmp/tessera-model-XXXXXX.json", text[2048];
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

static const char *const names[] = {"tiny-base",
                                    "tiny-hsdp-2x4",
                                    "tiny-hsdp-2x4-bf16-reduce",
                                    "tiny-replicate-4",
                                    "tiny-reshard-2",
                                    "llama-160m-4ranks",
                                    "llama-2-7b-8ranks-ac",
                                    "llama-3-8b-8ranks-noac",
                                    "gpt2-8ranks",
                                    "gpt2-xl-64ranks-ac",
                                    "tiny-ac-selective-op",
                                    "tiny-ac-every2",
                                    "tiny-hand-rmsnorm-repeat-kv",
                                    "tiny-clip",
                                    "tiny-adamw-fused",
                                    "tiny-hf-llama",
                                    "tiny-embed-tail",
                                    "llama-3-70b-8layers-64ranks-selective-op"};
enum { N_NAMES = sizeof names / sizeof *names };

static void the_first_iteration(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_NAMES; i++)
        check(names[i], 0);
}

static void the_steady_iteration(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_NAMES; i++)
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
