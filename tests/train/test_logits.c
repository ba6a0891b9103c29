/* test_logits.c: the logits of a model of Hugging Face's files are those that transformers
 * computes.
 *
 * The executor's watcher looks at the input of the loss's log-softmax in an evaluation. As a
 * program, train_test_logits MODEL_FOLDER hf|torchtitan TOKENS.bin LENGTH OUT.safetensors writes
 * the logits [LENGTH, vocabulary] after the first tokens of a file, for
 * tests/oracle/export/compare.py.
 */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/layout/sharded_state.h"
#include "engine/tessera.h"
#include "exec/data/token_file.h"
#include "exec/files/safetensors.h"
#include "exec/files/weights.h"
#include "exec/host/host_device.h"

struct logits {
    struct tsr_executor watcher; /* first: tsr_executor * is cast to this */
    struct tsr_executor *executor;
    struct tsr_engine *engine;
    struct tsr_weights *weights;
    struct tsr_hf_model hf;
    struct tsr_state_dict params;
    uint64_t n_tokens, n_vocab;
    const int64_t *tokens;
    float *out; /* [n_tokens][n_vocab] */
    int n_seen; /* log-softmaxes */
};

/* ---- the model ------------------------------------------------------------------------------- */

static uint64_t field(const json_t *config, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(config, key));
}

static double real_field(const json_t *config, const char *key)
{
    return json_number_value(json_object_get(config, key));
}

static tsr_status make_llama(struct logits *l, const json_t *c, enum tsr_names names)
{
    const char *type = json_string_value(json_object_get(c, "model_type"));
    uint64_t head_dim = field(c, "head_dim");
    if (!head_dim)
        head_dim = field(c, "hidden_size") / field(c, "num_attention_heads");
    l->hf.family = TSR_HF_LLAMA;
    l->hf.tied = json_is_true(json_object_get(c, "tie_word_embeddings"));
    if (names == TSR_NAMES_PLAIN)
        l->hf.interleaved_head_dim = head_dim;
    struct tsr_llama_config config = {.hidden_size = field(c, "hidden_size"),
                                      .intermediate_size = field(c, "intermediate_size"),
                                      .n_layers = field(c, "num_hidden_layers"),
                                      .n_heads = field(c, "num_attention_heads"),
                                      .n_kv_heads = field(c, "num_key_value_heads"),
                                      .head_dim = head_dim,
                                      .vocab_size = field(c, "vocab_size"),
                                      .max_positions = field(c, "max_position_embeddings"),
                                      .norm_eps = real_field(c, "rms_norm_eps"),
                                      .rope = {.theta = real_field(c, "rope_theta")},
                                      .qkv_bias = !strcmp(type, "qwen2"),
                                      .qk_norm = !strcmp(type, "qwen3"),
                                      .tie_embeddings = l->hf.tied,
                                      .names = names};
    return tsr_model_llama(l->engine, &config);
}

static tsr_status make_gpt2(struct logits *l, const json_t *c, enum tsr_names names)
{
    struct tsr_gpt2_config config = {.n_embd = field(c, "n_embd"),
                                     .n_layer = field(c, "n_layer"),
                                     .n_head = field(c, "n_head"),
                                     .n_positions = field(c, "n_positions"),
                                     .vocab_size = field(c, "vocab_size"),
                                     .names = names};
    l->hf.family = TSR_HF_GPT2;
    l->hf.tied = true;
    return tsr_model_gpt2(l->engine, &config);
}

static tsr_status make_model(struct logits *l, const char *dir, enum tsr_names names)
{
    char path[1100];
    snprintf(path, sizeof path, "%s/config.json", dir);
    json_t *config = json_load_file(path, 0, NULL);
    const char *type = json_string_value(json_object_get(config, "model_type"));
    tsr_status status = TSR_ECONFIG;
    l->n_vocab = field(config, "vocab_size");
    if (type)
        status = !strcmp(type, "gpt2") ? make_gpt2(l, config, names) : make_llama(l, config, names);
    else
        status = tsr_fail(TSR_ECONFIG, "%s: found no model", path);
    json_decref(config);
    return status;
}

/* ---- values ---------------------------------------------------------------------------------- */

static tsr_status take_init(void *user, const struct tsr_piece *piece, void *out)
{
    struct logits *l = user;
    return tsr_weights_read_piece(l->weights, &l->hf, &l->params, piece, out);
}

static tsr_status take_batch(void *user, uint32_t iteration, uint32_t micro,
                             enum tsr_batch_part part, bool eval, tsr_dtype dtype, void *out,
                             uint64_t bytes)
{
    const struct logits *l = user;
    (void)iteration, (void)micro, (void)part, (void)eval, (void)dtype;
    if (bytes != l->n_tokens * sizeof *l->tokens)
        return tsr_fail(TSR_EDEFECT, "a batch of %llu bytes", (unsigned long long)bytes);
    memcpy(out, l->tokens, bytes); /* also as labels: the loss is not looked at */
    return TSR_OK;
}

/* The operands of log_softmax: x, out. What comes before it has to be done to be looked at. */
static tsr_status watch(struct tsr_executor *x, const struct tsr_instr *instr)
{
    struct logits *l = (struct logits *)x;
    if (instr->kind != TSR_OP || !instr->work || !instr->work->name ||
        strcmp(instr->work->name, "log_softmax") != 0)
        return TSR_OK;
    const struct tsr_operand *in = &instr->operands[0];
    if (in->dtype != TSR_F32 || in->bytes != l->n_tokens * l->n_vocab * sizeof *l->out)
        return tsr_fail(TSR_EDEFECT, "logits of %llu bytes", (unsigned long long)in->bytes);
    TSR_TRY(l->executor->ops->drain(l->executor));
    memcpy(l->out, (const char *)tsr_exec_peek(l->executor, in->buffer) + in->offset, in->bytes);
    l->n_seen++;
    return TSR_OK;
}

static tsr_status run_model(struct logits *l, const char *dir, enum tsr_names names)
{
    static const struct tsr_executor_ops ops = {
        .size = sizeof ops, .version = TSR_EXECUTOR_VERSION, .name = "logits", .submit = watch};
    const struct tsr_source source = {.user = l, .init = take_init, .batch = take_batch};
    l->watcher.ops = &ops;
    const struct tsr_host_rank_config host = {
        .source = &source, .poison = true, .watcher = &l->watcher};
    TSR_TRY(tsr_host_rank_create(&host, &l->executor));
    const struct tsr_engine_config config = {
        .mesh = {1, {1}, {"shard"}}, .executor = l->executor, .init = TSR_INIT_META};
    TSR_TRY(tsr_engine_create(&config, &l->engine));
    TSR_TRY(make_model(l, dir, names));
    struct tsr_module *root = tsr_module_root(l->engine);
    TSR_TRY(tsr_fully_shard(l->engine, &root, 1, NULL));
    const struct tsr_step_config step = {.batch = 1, .seq = l->n_tokens, .n_micro = 1};
    TSR_TRY(tsr_step_configure(l->engine, &step));
    tsr_exec_set_tables(l->executor, tsr_engine_tables(l->engine));
    TSR_TRY(tsr_state_dict_of(l->engine, NULL, &l->params));
    TSR_TRY(tsr_weights_open(dir, &l->weights));
    TSR_TRY(tsr_weights_check(l->weights, &l->hf, &l->params));
    TSR_TRY(tsr_engine_init_params(l->engine));
    TSR_TRY(tsr_eval_run(l->engine));
    TSR_TRY(l->executor->ops->drain(l->executor));
    return l->n_seen == 1 ? TSR_OK : tsr_fail(TSR_EDEFECT, "%d losses", l->n_seen);
}

/* *out is the caller's to free(). */
static tsr_status logits_of(const char *dir, enum tsr_names names, const int64_t *tokens,
                            uint64_t n_tokens, uint64_t n_vocab, float *out)
{
    struct logits l = {.tokens = tokens, .n_tokens = n_tokens, .out = out};
    tsr_status status = run_model(&l, dir, names);
    if (status == TSR_OK && l.n_vocab != n_vocab)
        status = tsr_fail(TSR_ECONFIG, "a vocabulary of %llu", (unsigned long long)l.n_vocab);
    if (l.executor)
        l.executor->ops->destroy(l.executor);
    tsr_engine_destroy(l.engine);
    tsr_state_dict_fini(&l.params);
    tsr_weights_close(l.weights);
    return status;
}

/* ---- the test -------------------------------------------------------------------------------- */

enum { T = 64, VOCAB = 256 }; /* of the recorded models */

static void read_recorded(const char *dir, int64_t *tokens, float *logits)
{
    char path[1100];
    struct tsr_safetensors *f = NULL;
    snprintf(path, sizeof path, "%s/logits.safetensors", dir);
    assert_int_equal(tsr_safetensors_open(path, &f), TSR_OK);
    const struct tsr_st_tensor *t = tsr_safetensors_find(f, "tokens"),
                               *l = tsr_safetensors_find(f, "logits");
    assert_true(t && l && t->dtype == TSR_I64 && l->dtype == TSR_F32);
    assert_int_equal(t->bytes, T * sizeof *tokens);
    assert_int_equal(l->bytes, T * VOCAB * sizeof *logits);
    assert_int_equal(tsr_safetensors_read(f, t, 0, tokens, t->bytes), TSR_OK);
    assert_int_equal(tsr_safetensors_read(f, l, 0, logits, l->bytes), TSR_OK);
    tsr_safetensors_close(f);
}

static void logits_are_those_of_transformers(void **state)
{
    (void)state;
    static const char *const models[] = {"llama", "gpt2"};
    static int64_t tokens[T];
    static float gold[T * VOCAB], mine[T * VOCAB];
    for (int i = 0; i < 4; i++) {
        char dir[1024];
        double worst = 0;
        enum tsr_names names = i % 2 ? TSR_NAMES_PLAIN : TSR_NAMES_HF;
        snprintf(dir, sizeof dir, "%s/tests/oracle/train/recorded/%s", getenv("TSR_SOURCE_DIR"),
                 models[i / 2]);
        read_recorded(dir, tokens, gold);
        if (logits_of(dir, names, tokens, T, VOCAB, mine) != TSR_OK)
            fail_msg("%s: %s", models[i / 2], tsr_error_text());
        for (size_t k = 0; k < T * VOCAB; k++)
            worst = fmax(worst, fabs((double)gold[k] - mine[k]));
        printf("%s, %s names: largest difference of a logit %.1e\n", models[i / 2],
               i % 2 ? "plain" : "HF", worst);
        assert_true(worst <= 2e-6);
    }
}

/* ---- the program ----------------------------------------------------------------------------- */

static tsr_status write_logits(const char *path, uint64_t rows, uint64_t columns, const float *data)
{
    struct tsr_safetensors_writer *w = NULL;
    const uint64_t shape[2] = {rows, columns};
    TSR_TRY(tsr_safetensors_create(path, NULL, &w));
    tsr_status status = tsr_safetensors_declare(w, "logits", TSR_F32, 2, shape, NULL);
    if (status == TSR_OK)
        status = tsr_safetensors_begin(w);
    if (status == TSR_OK)
        status = tsr_safetensors_put(w, "logits", data, rows * columns * sizeof *data);
    if (status == TSR_OK)
        status = tsr_safetensors_finish(w);
    tsr_safetensors_destroy(w);
    return status;
}

static tsr_status dump(char **argv, int64_t *tokens, uint64_t n, float *out)
{
    struct tsr_token_file file;
    enum tsr_names names = strcmp(argv[2], "hf") ? TSR_NAMES_PLAIN : TSR_NAMES_HF;
    TSR_TRY(tsr_token_file_open(argv[3], true, &file));
    tsr_status status = tsr_token_file_read(&file, 0, n, VOCAB, tokens);
    tsr_token_file_close(&file);
    TSR_TRY(status);
    TSR_TRY(logits_of(argv[1], names, tokens, n, VOCAB, out));
    return write_logits(argv[5], n, VOCAB, out);
}

static int dump_main(char **argv)
{
    uint64_t n = strtoull(argv[4], NULL, 10);
    int64_t *tokens = calloc(n + 1, sizeof *tokens);
    float *out = calloc(n * VOCAB + 1, sizeof *out);
    tsr_status status = tokens && out ? dump(argv, tokens, n, out) : TSR_ENOMEM;
    if (status != TSR_OK)
        fprintf(stderr, "%s\n", tsr_error_text());
    free(tokens);
    free(out);
    return status != TSR_OK;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_are_those_of_transformers)};
    if (argc == 6)
        return dump_main(argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
