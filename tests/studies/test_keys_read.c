/* test_keys_read.c: every key of the table beside every API. Given in the strategy itself, some
 * value of it changes the programs, or it is refused; which of the two, is what the table says.
 * Inherited from the head of the file, a key that the API does not read changes nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "experiments/study/job/emit.h"
#include "experiments/study/job/job.h"

#define TINY      "model: " TSR_SOURCE_DIR "/tests/exec/tiny.json\nseq: 16\n"
#define OPTIMIZER "checkpoint: full\nclip: true\n"
#define FP32      "precision: {param: none, reduce: none}\n"

/* Heads of files: a key matters in one of them. */
static const char *const contexts[] = {
    TINY OPTIMIZER "world: 4\naccumulation: {steps: 2}\n",
    TINY FP32 "world: 2\noptimizer: {name: sgd}\ntrain: {decay: all}\n",
    TINY OPTIMIZER "world: 2\nphases: [init, load, step1, step2, eval, save]\n",
    TINY "world: 2\noptimizer: {variant: fused}\nclip: true\n",
    TINY "world: 4\ntp: 2\n",
    TINY "world: 2\ndialect: compile\nprecision: {linear: fp8_tensorwise}\n",
    TINY "world: 2\ndialect: compile\n",
    TINY "cluster: {nodes: 2, gpus: 2, gpu: h100-sxm5-80g}\n",
    "model: {name: " TSR_SOURCE_DIR
    "/tests/exec/tiny.json, implementation: transformers}\nseq: 16\n"
    "world: 2\n",
    "model: {tree: " TSR_SOURCE_DIR "/tests/plant/floats.yaml}\nseq: 4\nworld: 2\nwrap: root\n",
    "model: {name: mpt-125m, layers: 1}\nseq: 16\nworld: 2\nattention_unpad: true\n",
};
enum { N_CONTEXTS = sizeof contexts / sizeof *contexts, N_APIS = TSR_API_FSDP1 + 1 };

/* What is read behind the emission, alike for all APIs: prices of programs, the allocator, the loop
 * of a run, months; and names. tests/cli/keys.py has a value that matters for each of them. Casts
 * of inputs need a model that computes with floats as they come (tests/rules/test_dtypes.c). */
static bool is_elsewhere(const char *key)
{
    static const char *const prefixes[] = {
        "sim.",       "goodput.",      "allocator.",   "data.",        "train.",
        "eval.",      "checkpoints.",  "cluster.",     "model.trace",  "model.name",
        "model.tree", "model.variant", "model.blocks", "model.weights"};
    static const char *const names[] = {
        "stack", "nodes", "gpu", "gpus_per_node", "description", "api", "precision.cast_inputs"};
    if (!strcmp(key, "train.weight_decay") || !strcmp(key, "train.decay"))
        return false;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (!strncmp(key, prefixes[i], strlen(prefixes[i])) && strcmp(key, "model.names") != 0)
            return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(key, names[i]))
            return true;
    return false;
}

/* ---- values ---------------------------------------------------------------------------------- */

enum { MAX_VALUES = 8, MAX_VALUE = 64 };

static size_t values_of(const struct tsr_key *key, char out[MAX_VALUES][MAX_VALUE])
{
    static const char
        *const numbers[] = {"2", "1", "3", "32"},
               *const doubles[] = {"0.5", "0", "2"}, *const truth[] = {"true", "false"},
               *const shapes[] = {"[2, 2]", "[4]"}, *const reshards[] = {"true", "false", "2"},
               *const checkpoints[] = {"2", "none", "selective_op", "full"},
               *const wraps[] = {"root", "block_embed_head", "[{modules: [\"\"]}]"};
    const char *const *from = key->words;
    size_t n = 0;
#define TAKE(list) (from = (list), n = sizeof(list) / sizeof *(list))
    if (key->type == TSR_KEY_UINT || key->type == TSR_KEY_UINT32)
        TAKE(numbers);
    else if (key->type == TSR_KEY_BOOL)
        TAKE(truth);
    else if (key->type == TSR_KEY_DOUBLE)
        TAKE(doubles);
    else if (key->type == TSR_KEY_SHAPE)
        TAKE(shapes);
    else if (key->type == TSR_KEY_RESHARD)
        TAKE(reshards);
    else if (key->type == TSR_KEY_CHECKPOINT)
        TAKE(checkpoints);
    else if (key->type == TSR_KEY_WRAP)
        TAKE(wraps);
    else
        while (from && from[n])
            n++;
#undef TAKE
    size_t used = 0;
    bool is_list = key->type == TSR_KEY_LIST;
    for (size_t i = 0; i < n; i++)
        if (*from[i] && used < MAX_VALUES)
            (void)snprintf(out[used++], MAX_VALUE, is_list ? "[%s]" : "%s", from[i]);
    return used;
}

/* ---- programs -------------------------------------------------------------------------------- */

/* The strategy s of a file: what its programs are, of all classes; 0: it is refused. */
static uint64_t programs_of(const char *text, const char *set)
{
    struct tsr_study_request request = {.text = text, .sets = &set, .n_sets = set ? 1 : 0};
    struct tsr_experiment experiment;
    struct tsr_job job;
    struct tsr_emission emission;
    uint64_t hash = 0;
    if (tsr_experiment_open(&request, &experiment) != TSR_OK)
        return 0;
    if (tsr_job_open(&experiment, &experiment.strategies[0], TSR_MAY_LACK_CLUSTER, &job) ==
        TSR_OK) {
        if (tsr_emit(&job, &emission) == TSR_OK) {
            hash = tsr_hash_u64(TSR_HASH_INIT, emission.world);
            for (uint32_t c = 0; c < emission.n_classes; c++)
                for (uint32_t k = 0; k < emission.n_iterations; k++)
                    hash = tsr_hash_u64(hash, tsr_emitted_hash(&emission.classes[c], k));
            tsr_emission_fini(&emission);
        }
        tsr_job_close(&job);
    }
    tsr_experiment_fini(&experiment);
    return hash;
}

static uint64_t with(const char *head, unsigned api, const char *key, const char *value)
{
    char text[2048];
    (void)snprintf(text, sizeof text, "%sstrategies: {s: {api: %s%s%s%s%s}}\n", head,
                   tsr_words_api[api], key ? ", " : "", key ? key : "", key ? ": " : "",
                   key ? value : "");
    return programs_of(text, NULL);
}

/* ---- the property ---------------------------------------------------------------------------- */

struct verdict {
    bool changes, is_accepted; /* by some value in some context */
};

/* A default that says that there is none: of any API. */
static bool asks_nothing(const struct tsr_key *key, const char *value)
{
    return key->def && !strcmp(value, key->def) && strstr("none null false 0 1", value) != NULL;
}

static struct verdict judge(const struct tsr_key *key, unsigned api,
                            const uint64_t bases[N_CONTEXTS])
{
    char values[MAX_VALUES][MAX_VALUE];
    size_t n = values_of(key, values);
    struct verdict v = {.changes = false};
    bool reads = tsr_key_is_read(key, api);
    for (size_t c = 0; c < N_CONTEXTS && !v.changes; c++)
        for (size_t i = 0; i < n && bases[c] && !v.changes; i++) {
            if (!reads && asks_nothing(key, values[i]))
                continue;
            uint64_t hash = with(contexts[c], api, key->name, values[i]);
            v.is_accepted |= hash != 0;
            v.changes = hash != 0 && hash != bases[c];
        }
    if (v.is_accepted && !v.changes && reads)
        print_error("%s beside api: %s is accepted, and changes nothing\n", key->name,
                    tsr_words_api[api]);
    if (v.is_accepted && !reads)
        print_error("%s beside api: %s is accepted; the table says that it is not read\n",
                    key->name, tsr_words_api[api]);
    return v;
}

static void test_every_key__beside_every_api__changes_or_is_refused(void **state)
{
    int failures = 0, checks = 0;
    (void)state;
    for (unsigned api = 0; api < N_APIS; api++) {
        uint64_t bases[N_CONTEXTS];
        for (size_t c = 0; c < N_CONTEXTS; c++)
            bases[c] = with(contexts[c], api, NULL, NULL);
        for (size_t i = 0; i < TSR_N_KEYS; i++) {
            const struct tsr_key *key = &tsr_keys[i];
            if (is_elsewhere(key->name)) {
                failures += !tsr_key_is_read(key, api) && strchr(key->name, '.') == NULL;
                continue;
            }
            struct verdict v = judge(key, api, bases);
            failures += tsr_key_is_read(key, api) ? v.is_accepted && !v.changes : v.is_accepted;
            checks++;
        }
    }
    assert_int_equal(failures, 0);
    assert_in_range(checks, 60 * N_APIS, TSR_N_KEYS * N_APIS);
}

/* Meshes that are not of the world's size; what DDP or FSDP1 have in PyTorch and not here; what no
 * strategy of the file would read. */
static bool is_refused_always(const char *key)
{
    return !strncmp(key, "mesh.", 5) || !strcmp(key, "tp") || !strcmp(key, "sequence_parallel") ||
           !strcmp(key, "init") || !strcmp(key, "offload");
}

static void test_keys_of_the_head__that_the_api_does_not_read__change_nothing(void **state)
{
    int alike = 0;
    (void)state;
    for (unsigned api = 0; api < N_APIS; api++)
        for (size_t i = 0; i < TSR_N_KEYS; i++) {
            char values[MAX_VALUES][MAX_VALUE], set[MAX_VALUE + 64], text[1024];
            if (tsr_key_is_read(&tsr_keys[i], api))
                continue;
            (void)snprintf(text, sizeof text,
                           "%sstrategies: {s: {api: %s}, f: {}, d: {api: ddp}, o: {api: fsdp1}}\n",
                           contexts[0], tsr_words_api[api]);
            size_t n = values_of(&tsr_keys[i], values);
            uint64_t base = programs_of(text, NULL);
            for (size_t k = 0; k < n; k++) {
                (void)snprintf(set, sizeof set, "%s=%s", tsr_keys[i].name, values[k]);
                uint64_t hash = programs_of(text, set);
                if (hash != 0 && hash != base)
                    fail_msg("%s of the head changes api: %s", set, tsr_words_api[api]);
                alike += hash != 0;
                if (hash == 0 && !is_refused_always(tsr_keys[i].name))
                    fail_msg("%s of the head is refused: %s", set, tsr_error_text());
            }
        }
    assert_in_range(alike, 100, 1000);
}

/* The sets of differences of a measured class have a bit a rank. */
static void class_ranks__from_one__each_once(void **state)
{
    bool seen[TSR_N_KEYS + 1] = {false};
    size_t n = 0;
    (void)state;
    for (size_t i = 0; i < TSR_N_KEYS; i++) {
        unsigned rank = tsr_keys[i].class_rank;
        assert_in_range(rank, 0, TSR_N_KEYS);
        assert_false(rank && seen[rank]);
        seen[rank] = true;
        n += rank > 0;
    }
    for (size_t rank = 1; rank <= n; rank++)
        assert_true(seen[rank]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_key__beside_every_api__changes_or_is_refused),
        cmocka_unit_test(test_keys_of_the_head__that_the_api_does_not_read__change_nothing),
        cmocka_unit_test(class_ranks__from_one__each_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
