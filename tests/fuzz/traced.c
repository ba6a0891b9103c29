/* traced.c: targets of traced models, which go all the way: a file is read, built and wrapped for a
 * strategy, emitted for two ranks, checked, and written as code. `traced` takes any bytes,
 * `traced_edits` changes to recorded traces that leave them JSON. The hash is made right: a fuzzer
 * would not find it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/inspect/check_run.h"
#include "experiments/study/base/gz.h"
#include "experiments/study/code/code.h"
#include "experiments/study/model/trace_file.h"
#include "experiments/study/model/trace_json.h"
#include "fuzz/fuzz.h"
#include "sim/base/json_load.h"

enum { MOST_TEXT = 1 << 20 };

/* ---- a file through everything --------------------------------------------------------------- */

static const char *const strategies[] = {"{}",
                                         "{wrap: root}",
                                         "{api: replicate, wrap: block}",
                                         "{api: ddp}",
                                         "{mesh: {replicate: 2, shard: 1}, wrap: block}",
                                         "{offload: cpu, accumulation: {steps: 2}}"};

/* The experiment that asks for what the first variant of a trace was traced under. */
static void experiment_of(const struct tsr_traced_file *file, uint8_t which, char *out, size_t size)
{
    const struct tsr_trace_variant *v = file->variants;
    const char *dtype = v->param_dtype ? v->param_dtype : "none";
    const char *every = !strcmp(v->checkpoint, "every2")      ? "2"
                        : !strcmp(v->checkpoint, "selective") ? "selective_op"
                                                              : v->checkpoint;
    tsr_dtype param = tsr_dtype_parse(dtype);
    snprintf(out, size,
             "model: {trace: %s}\nworld: 2\ncheckpoint: %s\n"
             "precision: {param: %s, cast_inputs: %s}\nstrategies: {s: %s}\n",
             file->path, every, param == TSR_DTYPE_NONE ? "none" : tsr_dtype_name(param),
             v->cast_inputs ? "true" : "false",
             strategies[which % (sizeof strategies / sizeof *strategies)]);
}

static void go_through(const char *path, const struct tsr_job *job)
{
    static struct tsr_row row;
    const struct tsr_check_source source = tsr_check_job(job);
    char folder[4096], finding[64];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    if (tsr_check_quietly(&source, finding, sizeof finding) != TSR_OK)
        return;
    struct tsr_code_folder code = {.path = folder, .format = TSR_CODE_TORCH};
    if (tsr_code_write(&code, "s", NULL, job, &row) == TSR_OK && tsr_code_finish(&code) != TSR_OK)
        abort(); /* one file was written */
    tsr_code_folder_fini(&code);
}

static void play(const char *path, uint8_t which)
{
    static struct tsr_traced_file file;
    char text[8192];
    struct tsr_experiment e;
    struct tsr_job job;
    if (tsr_traced_file_load(path, &file) != TSR_OK)
        return;
    experiment_of(&file, which, text, sizeof text);
    tsr_traced_file_fini(&file);
    const struct tsr_study_request request = {.text = text};
    if (tsr_experiment_open(&request, &e) != TSR_OK)
        return;
    if (tsr_job_open(&e, e.strategies, TSR_MAY_LACK_CLUSTER, &job) == TSR_OK) {
        job.is_trial = true; /* remarks on it are no finding */
        go_through(path, &job);
        tsr_job_close(&job);
    }
    tsr_experiment_fini(&e);
}

/* Plays a document, which it frees. */
static void play_json(json_t *root, uint8_t which)
{
    char hash[TSR__TRACE_HASH], *text = NULL;
    if (json_is_object(root) && tsr__trace_hash(root, "fuzz.trace", hash) == TSR_OK &&
        json_object_set_new(root, "sha256", json_string(hash)) == 0)
        text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (text && strlen(text) < MOST_TEXT)
        play(tsr_fuzz_text_file("fuzz.trace", text), which);
    free(text);
}

/* ---- any bytes ------------------------------------------------------------------------------- */

static void traced(const uint8_t *data, size_t n)
{
    json_t *root = tsr_json_loadb((const char *)data, n, TSR_TEXT_VALUES, NULL);
    if (root)
        play_json(root, (uint8_t)n);
    else
        play(tsr_fuzz_file("fuzz.trace", data, n), (uint8_t)n);
}

/* ---- edits ----------------------------------------------------------------------------------- */

static const char *const recorded[] = {"front-4ranks-reshard2", "custom-fn-tiny-8ranks-prefetch",
                                       "dlrm-tiny-4ranks-sgd", "lora-tiny-8ranks",
                                       "vit-tiny-8ranks"};
enum { RECORDED = sizeof recorded / sizeof *recorded, EDIT_BYTES = 8, MOST_EDITS = 6 };
static json_t *whole[RECORDED];

static bool begin_edits(void)
{
    for (size_t i = 0; i < RECORDED; i++) {
        char path[4096], *text;
        size_t n;
        snprintf(path, sizeof path, "%s/tests/golden-bridge/%s.trace", TSR_SOURCE_DIR, recorded[i]);
        if (tsr_gz_load(path, MOST_TEXT, &text, &n) != TSR_OK)
            return false;
        whole[i] = json_loadb(text, n, 0, NULL);
        free(text);
        if (!whole[i])
            return false;
    }
    return true;
}

/* A value inside of another. */
struct place {
    json_t *parent, *value;
    const char *key; /* of an object; NULL: `index` of an array */
    size_t index;
};

/* Finds value number *at of a document, depth first; counts *at down. */
static bool find_place(json_t *value, size_t *at, struct place *out)
{
    const char *key = NULL;
    json_t *child;
    size_t i;
    if (json_is_object(value)) {
        json_object_foreach(value, key, child)
        {
            if ((*at)-- == 0) {
                *out = (struct place){value, child, key, 0};
                return true;
            }
            if (find_place(child, at, out))
                return true;
        }
    }
    json_array_foreach(value, i, child)
    {
        if ((*at)-- == 0) {
            *out = (struct place){value, child, NULL, i};
            return true;
        }
        if (find_place(child, at, out))
            return true;
    }
    return false;
}

static size_t count_values(json_t *value)
{
    struct place out;
    size_t at = SIZE_MAX;
    (void)find_place(value, &at, &out);
    return SIZE_MAX - at;
}

/* Puts `value`, which the document then owns, in a place. */
static void put_at(const struct place *to, json_t *value)
{
    if (to->key)
        (void)json_object_set_new(to->parent, to->key, value);
    else
        (void)json_array_set_new(to->parent, to->index, value);
}

enum edit { COPY, SET, ADD, POWER, REMOVE, REPEAT, SWAP, TEXT, N_EDITS };

/* Most values are events: half of the edits are of the other parts. */
static json_t *part_of(json_t *root, uint8_t which)
{
    static const char *const parts[] = {"modules", "params", "ops", "variants", "model", "classes"};
    json_t *part = json_object_get(root, parts[which % (sizeof parts / sizeof *parts)]);
    return which & 0x80 && part ? part : root;
}

static void edit_once(json_t *whole_root, const uint8_t *bytes)
{
    json_t *root = part_of(whole_root, bytes[2]);
    size_t n = count_values(root), from = bytes[3] | bytes[4] << 8 | (size_t)bytes[5] << 16;
    size_t at = (bytes[0] | bytes[1] << 8 | (size_t)bytes[2] << 16) % (n ? n : 1), other = from;
    struct place a, b;
    other %= n ? n : 1;
    if (!n || !find_place(root, &at, &a) || !find_place(root, &other, &b))
        return;
    json_int_t value = json_integer_value(a.value), small = bytes[7];
    switch (bytes[6] % N_EDITS) {
    case COPY:
        put_at(&a, json_deep_copy(b.value));
        break;
    case SET:
        put_at(&a, json_integer(small));
        break;
    case ADD:
        put_at(&a, json_integer(value > INT32_MAX ? value : value + small - 128));
        break;
    case POWER:
        put_at(&a, json_integer((json_int_t)1 << small % 63));
        break;
    case REMOVE:
        if (a.key)
            (void)json_object_del(a.parent, a.key);
        else
            (void)json_array_remove(a.parent, a.index);
        break;
    case REPEAT:
        if (!a.key)
            (void)json_array_insert_new(a.parent, a.index, json_deep_copy(a.value));
        break;
    case SWAP: {
        json_t *here = json_deep_copy(a.value), *there = json_deep_copy(b.value);
        put_at(&b, here); /* `a` may lie in `b`: it is gone then */
        at = (bytes[0] | bytes[1] << 8 | (size_t)bytes[2] << 16) % n;
        if (find_place(root, &at, &a))
            put_at(&a, there);
        else
            json_decref(there);
        break;
    }
    default:
        put_at(&a, json_sprintf("%.*s", bytes[7] % 32, "evil\"'\n);exec(1)#evil.evil.evil.x"));
        break;
    }
}

static void traced_edits(const uint8_t *data, size_t n)
{
    json_t *root = json_deep_copy(whole[n ? data[0] % RECORDED : 0]);
    for (size_t at = 2, k = 0; at + EDIT_BYTES <= n && k < MOST_EDITS; at += EDIT_BYTES, k++)
        edit_once(root, data + at);
    play_json(root, n > 1 ? data[1] : 0);
}

const struct tsr_fuzz_target tsr_fuzz_traced[] = {
    {.name = "traced", .run = traced, .dictionary = "json"},
    {.name = "traced_edits", .run = traced_edits, .dictionary = "json", .begin = begin_edits},
    {.name = NULL},
};
