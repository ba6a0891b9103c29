/* files.c: targets of files that runs leave: weights, checkpoints, tokens, metrics; and texts of a
 * corpus. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "exec/data/corpus.h"
#include "exec/data/token_file.h"
#include "exec/files/checkpoint_impl.h"
#include "exec/files/safetensors.h"
#include "exec/files/weights.h"
#include "exec/train/metrics.h"
#include "fuzz/fuzz.h"

/* Reads every tensor in two pieces, and checks those that have a checksum. */
static void safetensors(const uint8_t *data, size_t n)
{
    struct tsr_safetensors *file;
    if (tsr_safetensors_open(tsr_fuzz_file("a.safetensors", data, n), &file) != TSR_OK)
        return;
    char *out = malloc(n + 1);
    for (size_t i = 0; out && i < tsr_safetensors_count(file); i++) {
        const struct tsr_st_tensor *t = tsr_safetensors_tensor(file, i);
        if (t->bytes > n || tsr_safetensors_find(file, t->name) != t)
            abort();
        if (tsr_safetensors_read(file, t, 0, out, t->bytes / 2) != TSR_OK ||
            tsr_safetensors_read(file, t, t->bytes / 2, out, t->bytes - t->bytes / 2) != TSR_OK)
            abort(); /* the file is as long as it says */
        if (tsr_safetensors_verify(file, t) == TSR_OK)
            (void)t->name;
    }
    free(out);
    tsr_safetensors_close(file);
}

/* An index, with one file of weights beside it. */
static bool begin_index(void)
{
    struct tsr_safetensors_writer *w;
    const uint64_t shape[] = {2, 3};
    const float values[6] = {0};
    char path[4096];
    snprintf(path, sizeof path, "%s", tsr_fuzz_text_file("model-00001-of-00002.safetensors", ""));
    if (tsr_safetensors_create(path, NULL, &w) != TSR_OK)
        return false;
    bool ok = tsr_safetensors_declare(w, "a.weight", TSR_F32, 2, shape, NULL) == TSR_OK &&
              tsr_safetensors_begin(w) == TSR_OK &&
              tsr_safetensors_put(w, "a.weight", values, sizeof values) == TSR_OK &&
              tsr_safetensors_finish(w) == TSR_OK;
    tsr_safetensors_destroy(w);
    return ok;
}

static void weights_index(const uint8_t *data, size_t n)
{
    struct tsr_weights *weights;
    const char *path = tsr_fuzz_file("model.safetensors.index.json", data, n);
    if (tsr_weights_open(path, &weights) == TSR_OK)
        tsr_weights_close(weights);
}

/* The checksum of the last line is made right: a fuzzer would not find it. */
static void commit(const uint8_t *data, size_t n)
{
    struct tsr_commit out;
    char *text = malloc(n + 64);
    if (!text)
        abort();
    memcpy(text, data, n);
    size_t all = n + (size_t)snprintf(text + n, 64, "xxh64 %016llx\n",
                                      (unsigned long long)XXH64(data, n, 0));
    for (int whole = 0; whole < 2; whole++) {
        char *exact = tsr_fuzz_string((const uint8_t *)text, whole ? all : n);
        if (tsr__commit_read("COMMIT", exact, whole ? all : n, &out) == TSR_OK)
            tsr__commit_fini(&out);
        free(exact);
    }
    free(text);
}

static void meta(const uint8_t *data, size_t n)
{
    static struct tsr_meta out;
    char *text = tsr_fuzz_string(data, n), *written = NULL;
    if (tsr__meta_read("meta.json", text, n, &out) == TSR_OK) {
        if (tsr__meta_write(out.step, &out.layout, &out.info, &written) == TSR_OK)
            free(written);
        tsr__meta_fini(&out);
    }
    free(text);
}

static void metrics(const uint8_t *data, size_t n)
{
    struct tsr_metric_log *log;
    if (tsr_metric_log_open(tsr_fuzz_file("metrics.jsonl", data, n), 5, 1, &log) == TSR_OK)
        tsr_metric_log_close(log);
}

static void tokens(const uint8_t *data, size_t n)
{
    struct tsr_token_file file;
    int64_t out[64];
    if (tsr_token_file_open(tsr_fuzz_file("tokens.bin", data, n), true, &file) != TSR_OK)
        return;
    uint64_t some = tsr_min_u64(file.n_tokens, sizeof out / sizeof *out);
    if (tsr_token_file_read(&file, file.n_tokens - some, some, 50257, out) == TSR_OK && some > 0 &&
        out[0] < 0)
        abort();
    tsr_token_file_close(&file);
}

/* Two texts, halves of the input: near-duplicates are looked for. */
static void corpus(const uint8_t *data, size_t n)
{
    struct tsr_corpus out = {0};
    if (tsr_corpus_add(&out, tsr_fuzz_file("one.txt", data, n / 2)) == TSR_OK &&
        tsr_corpus_add(&out, tsr_fuzz_file("two.txt", data + n / 2, n - n / 2)) == TSR_OK &&
        tsr_corpus_select(&out) == TSR_OK)
        (void)out.n_duplicates;
    tsr_corpus_fini(&out);
}

const struct tsr_fuzz_target tsr_fuzz_files[] = {
    {.name = "safetensors", .run = safetensors, .dictionary = "json"},
    {.name = "weights_index", .run = weights_index, .dictionary = "json", .begin = begin_index},
    {.name = "commit", .run = commit, .dictionary = "csv"},
    {.name = "meta", .run = meta, .dictionary = "json"},
    {.name = "metrics", .run = metrics, .dictionary = "json"},
    {.name = "tokens", .run = tokens, .dictionary = "csv"},
    {.name = "corpus", .run = corpus, .dictionary = "csv"},
    {.name = NULL},
};
