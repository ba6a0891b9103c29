/* validated_class.c: configurations that are told apart, and how far they are from each other. */
#include "experiments/study/report/validated_class.h"

#include <stdio.h>
#include <string.h>

#include "experiments/study/config/settings.h"

/* Keys with a class_rank say how the same training is written, which is what a stack fixes. */
enum { N_TOLD = 46 };
_Static_assert(TSR_DIFFERS_KEY + N_TOLD <= 64, "a set of differences has 64 bits");

/* The key of a rank, which begin at 1. */
static const struct tsr_key *key_of(unsigned rank)
{
    size_t i = 0;
    while (i < TSR_N_KEYS && tsr_keys[i].class_rank != rank)
        i++;
    TSR_CHECK(i < TSR_N_KEYS);
    return &tsr_keys[i];
}

/* What kernels run on, and which API shards, decide more than any key. */
static const struct {
    const char *name;
    unsigned weight;
    bool decides;
} others[TSR_DIFFERS_KEY] = {
    [TSR_DIFFERS_API] = {"API", 6, true},
    [TSR_DIFFERS_CARD] = {"card", 3, true},
    [TSR_DIFFERS_NODES] = {"nodes", 2, true},
    [TSR_DIFFERS_GPUS] = {"number of GPUs", 1, false},
    [TSR_DIFFERS_MANY_GPUS] = {"number of GPUs (more than 4 times)", 1, true},
    [TSR_DIFFERS_MODEL] = {"model", 2, true},
    [TSR_DIFFERS_PARAMS] = {"number of parameters", 1, false},
    [TSR_DIFFERS_MANY_PARAMS] = {"number of parameters (more than 4 times)", 1, true},
    [TSR_DIFFERS_FEW_PARAMS] = {"number of parameters (less than a quarter)", 1, true},
    [TSR_DIFFERS_MESH] = {"mesh", 1, false}};
_Static_assert(TSR_FAR == 4, "the names have it in words");

const char *tsr_difference_name(unsigned difference)
{
    if (difference < TSR_DIFFERS_KEY)
        return others[difference].name;
    unsigned rank = difference - TSR_DIFFERS_KEY + 1;
    return rank <= N_TOLD ? key_of(rank)->name : NULL;
}

const char *tsr_family_name(enum tsr_family family)
{
    static const char *const names[] = {
        [TSR_FAMILY_LLAMA] = "llama", [TSR_FAMILY_GPT2] = "gpt2", [TSR_FAMILY_MPT] = "mpt",
        [TSR_FAMILY_TREE] = "tree",   [TSR_FAMILY_MOE] = "moe",   [TSR_FAMILY_TRACED] = "traced"};
    return names[family];
}

/* Whether "a, b" has the word. */
static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == 0 || at[n] == ','))
            return true;
    return false;
}

static void add_word(char *list, size_t size, const char *word)
{
    size_t used = strlen(list);
    snprintf(list + used, size - used, "%s%s", used ? ", " : "", word);
}

/* A value that cannot be written is no other one: that of `wrap` may be long. */
static bool key_differs(const struct tsr_key *key, const struct tsr_settings *a,
                        const struct tsr_settings *b)
{
    char x[2048] = "", y[2048] = "";
    if (tsr_key_format(key, a, x, sizeof x) != TSR_OK ||
        tsr_key_format(key, b, y, sizeof y) != TSR_OK)
        return false;
    return strcmp(x, y) != 0;
}

/* True for a key that the dialect of a strategy does not read. */
static bool is_idle(const struct tsr_key *key, const struct tsr_settings *s)
{
    return !strncmp(key->name, "compile.", 8) && s->dialect != TSR_DIALECT_COMPILE;
}

/* The set of told keys that two settings have otherwise; those that `a` does not read are left out.
 */
static uint64_t changes(const struct tsr_settings *a, const struct tsr_settings *b)
{
    uint64_t set = 0;
    for (size_t i = 0; i < TSR_N_KEYS; i++) {
        const struct tsr_key *key = &tsr_keys[i];
        if (key->class_rank && !is_idle(key, a) && key_differs(key, a, b))
            set |= UINT64_C(1) << (key->class_rank - 1);
    }
    return set;
}

static bool is_hybrid(const struct tsr_job *job)
{
    return job->mesh.n_dims > 1;
}

static bool has_many_nodes(const struct tsr_job *job)
{
    return job->world > job->cluster.gpus_per_node;
}

uint64_t tsr_differences(const struct tsr_job *job, const struct tsr_measured_class *class,
                         const struct tsr_settings *settings)
{
    bool many = has_many_nodes(job);
    double gpus = job->world, params = (double)job->model.counts.total;
    double min_params = (double)class->min_params, max_params = (double)class->max_params;
    bool is_far = gpus > TSR_FAR * (double)class->max_gpus;
    bool is_large = params > TSR_FAR * max_params, is_small = params < min_params / TSR_FAR;
    const bool found[] = {
        [TSR_DIFFERS_API] = strcmp(class->api, tsr_words_api[job->settings->api]) != 0,
        [TSR_DIFFERS_CARD] = strcmp(class->gpu, job->cluster.gpu.name) != 0,
        [TSR_DIFFERS_NODES] = class->many_nodes != many,
        [TSR_DIFFERS_GPUS] = class->many_nodes == many && !is_far &&
                             (job->world < class->min_gpus || job->world > class->max_gpus),
        [TSR_DIFFERS_MANY_GPUS] = is_far,
        [TSR_DIFFERS_MODEL] = !has_word(class->models, tsr_family_name(job->model.family)),
        [TSR_DIFFERS_PARAMS] =
            !is_large && !is_small && (params < min_params || params > max_params),
        [TSR_DIFFERS_MANY_PARAMS] = is_large,
        [TSR_DIFFERS_FEW_PARAMS] = is_small,
        [TSR_DIFFERS_MESH] =
            is_hybrid(job) && !has_word(class->varied, others[TSR_DIFFERS_MESH].name)};
    uint64_t set = 0, keys = changes(job->settings, settings);
    for (unsigned i = 0; i < TSR_DIFFERS_KEY; i++)
        set |= (uint64_t)found[i] << i;
    for (unsigned i = 0; i < N_TOLD; i++)
        if (keys >> i & 1 && !has_word(class->varied, key_of(i + 1)->name))
            set |= UINT64_C(1) << (TSR_DIFFERS_KEY + i);
    return set;
}

unsigned tsr_difference_cost(uint64_t differences)
{
    enum { DECISIVE = 1000 }; /* more than all others together */
    unsigned cost = 0;
    for (unsigned i = 0; i < 64; i++)
        if (differences >> i & 1)
            cost += i < TSR_DIFFERS_KEY ? others[i].weight + DECISIVE * others[i].decides : 1;
    return cost;
}

uint64_t tsr_decisive_differences(uint64_t differences)
{
    uint64_t decisive = 0;
    for (unsigned i = 0; i < TSR_DIFFERS_KEY; i++)
        decisive |= (uint64_t)others[i].decides << i;
    return differences & decisive;
}

void tsr_class_of(const struct tsr_job *job, struct tsr_measured_class *out)
{
    const struct tsr_stack *stack = tsr_stacks_of(&job->experiment->stacks, job->settings);
    struct tsr_settings defaults;
    tsr_settings_default(&defaults);
    uint64_t keys = changes(job->settings, stack ? &stack->settings : &defaults);
    memset(out, 0, sizeof *out);
    snprintf(out->api, sizeof out->api, "%s", tsr_words_api[job->settings->api]);
    snprintf(out->gpu, sizeof out->gpu, "%s", job->cluster.gpu.name);
    snprintf(out->stack, sizeof out->stack, "%s", stack ? stack->name : "");
    snprintf(out->models, sizeof out->models, "%s", tsr_family_name(job->model.family));
    out->many_nodes = has_many_nodes(job);
    out->min_gpus = out->max_gpus = job->world;
    out->min_params = out->max_params = job->model.counts.total;
    if (is_hybrid(job))
        add_word(out->varied, sizeof out->varied, others[TSR_DIFFERS_MESH].name);
    for (unsigned i = 0; i < N_TOLD; i++)
        if (keys >> i & 1)
            add_word(out->varied, sizeof out->varied, key_of(i + 1)->name);
}
