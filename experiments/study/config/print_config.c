/* print_config.c: the resolved experiment as YAML, driven by the table of keys. Remarks say which
 * values are those of the stack, and what it has where the experiment has another one. */
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/paths.h"
#include "experiments/study/config/experiment.h"
#include "experiments/study/config/settings.h"
#include "sim/base/text.h"

enum { VALUE_BYTES = TSR_VALUE_BYTES, REMARK_BYTES = VALUE_BYTES + 64 };

/* The output, and texts that are too large for a stack: of a value, of the one that it
 * is compared with, of the remark behind it. */
struct printer {
    FILE *out;
    const struct tsr_experiment *experiment;
    char value[VALUE_BYTES], other[VALUE_BYTES], note[REMARK_BYTES];
};

/* " # stack torchtitan-2024-12", or " # the stack has hand"; nothing of keys that it has not. */
static tsr_status remark(struct printer *p, const struct tsr_settings *settings,
                         const struct tsr_key *key)
{
    const struct tsr_stack *stack = tsr_stacks_of(&p->experiment->stacks, settings);
    char *has = p->other, *out = p->note;
    out[0] = 0;
    if (!stack || !stack->settings.from[key - tsr_keys])
        return TSR_OK;
    TSR_TRY(tsr_key_format(key, &stack->settings, has, VALUE_BYTES));
    if (!strcmp(has, p->value))
        snprintf(out, REMARK_BYTES, " # stack %s", tsr_show_line(settings->stack).text);
    else
        snprintf(out, REMARK_BYTES, " # the stack has %s", has);
    return TSR_OK;
}

/* Writes "name: value" below its prefix; *open is the prefix whose mapping is being written. */
static void put_line(FILE *out, int indent, const char *name, const char *value, const char *remark,
                     char *open, size_t open_bytes)
{
    const char *dot = strchr(name, '.');
    size_t n = dot ? (size_t)(dot - name) : 0;
    if (!dot) {
        *open = 0;
        fprintf(out, "%*s%s: %s%s\n", indent, "", name, value, remark);
        return;
    }
    if (strlen(open) != n || strncmp(open, name, n)) {
        snprintf(open, open_bytes, "%.*s", (int)n, name);
        fprintf(out, "%*s%s:\n", indent, "", open);
    }
    fprintf(out, "%*s%s: %s%s\n", indent + 2, "", dot + 1, value, remark);
}

static bool prefix_of(const struct tsr_key *key, char *out, size_t size)
{
    const char *dot = strchr(key->name, '.');
    snprintf(out, size, "%.*s", dot ? (int)(dot - key->name) : 0, key->name);
    return dot != NULL;
}

/* Leaves the value of `a` in p->value. */
static tsr_status differs(struct printer *p, const struct tsr_key *key,
                          const struct tsr_settings *a, const struct tsr_settings *b, bool *out)
{
    TSR_TRY(tsr_key_format(key, a, p->value, VALUE_BYTES));
    TSR_TRY(tsr_key_format(key, b, p->other, VALUE_BYTES));
    *out = strcmp(p->value, p->other) != 0;
    return TSR_OK;
}

/* Does any key below this (resetting) prefix differ? Then all of them are written. */
static tsr_status prefix_differs(struct printer *p, const char *prefix,
                                 const struct tsr_settings *a, const struct tsr_settings *b,
                                 bool *differ, bool *all_null)
{
    char mine[64];
    *differ = false;
    *all_null = true;
    for (size_t i = 0; i < TSR_N_KEYS; i++) {
        bool one = false;
        if (!prefix_of(&tsr_keys[i], mine, sizeof mine) || strcmp(mine, prefix))
            continue;
        TSR_TRY(differs(p, &tsr_keys[i], a, b, &one));
        *differ = *differ || one;
        *all_null = *all_null && !strcmp(p->value, "null");
    }
    return TSR_OK;
}

/* Returns the number of ranks that a mesh gives to an API without meshes; 0: it gives none. */
static uint64_t ranks_of_mesh(const struct tsr_settings *s)
{
    uint64_t ranks = s->mesh.n || s->mesh_shard ? s->tp : 0;
    for (uint32_t i = 0; i < s->mesh.n; i++)
        ranks *= s->mesh.size[i];
    if (s->mesh_shard)
        ranks *= s->mesh_shard * (s->mesh_replicate ? s->mesh_replicate : 1);
    return ranks;
}

/* Keys that a strategy's API does not read become those of the head, which are not printed again:
 * in the strategy they would be mistakes. */
static void leave_unread(const struct tsr_experiment *experiment, struct tsr_settings *s)
{
    if (!s->world && !tsr_name_is_read("mesh", s->api, true))
        s->world = ranks_of_mesh(s);
    for (size_t i = 0; i < TSR_N_KEYS; i++)
        if (!tsr_key_is_read(&tsr_keys[i], s->api))
            tsr_key_copy(&tsr_keys[i], &experiment->top, s);
}

/* A trace has its batch and sequence length itself; given they choose among its variants, so that
 * their defaults must not be written as if they were given. */
static bool is_of_trace(const struct tsr_settings *s, const struct tsr_key *key)
{
    return s->model_trace && (!strcmp(key->name, "batch") || !strcmp(key->name, "seq"));
}

/* True if a strategy has a trace that decides on a key which the head does not give. */
static bool is_left_open(const struct tsr_experiment *experiment, size_t key)
{
    bool any = is_of_trace(&experiment->top, &tsr_keys[key]);
    for (size_t i = 0; i < experiment->n && !any; i++)
        any = is_of_trace(&experiment->strategies[i].settings, &tsr_keys[key]);
    return any && !experiment->top.from[key];
}

static tsr_status print_strategy(struct printer *p, const struct tsr_strategy *original)
{
    char open[64] = "", name[1024], prefix[64], nulled[64] = "";
    const struct tsr_settings *top = &p->experiment->top;
    struct tsr_strategy copy = *original, *strategy = &copy;
    FILE *out = p->out;
    leave_unread(p->experiment, &copy.settings);
    bool any = false;
    long start = ftell(out);
    TSR_TRY(tsr_yaml_quote(strategy->name, name, sizeof name));
    fprintf(out, "  %s:\n", name);
    for (size_t i = 0; i < TSR_N_KEYS; i++) {
        const struct tsr_key *key = &tsr_keys[i];
        bool write = false, all_null = false;
        if (prefix_of(key, prefix, sizeof prefix) && tsr_key_prefix_resets(prefix)) {
            TSR_TRY(prefix_differs(p, prefix, &strategy->settings, top, &write, &all_null));
            TSR_TRY(tsr_key_format(key, &strategy->settings, p->value, VALUE_BYTES));
            if (write && all_null && strcmp(nulled, prefix)) {
                snprintf(nulled, sizeof nulled, "%s", prefix);
                fprintf(out, "    %s: null\n", prefix);
                any = true;
            }
            write = write && strcmp(p->value, "null");
        } else {
            TSR_TRY(differs(p, key, &strategy->settings, top, &write));
            if (is_of_trace(&strategy->settings, key))
                write = strategy->settings.from[i] != NULL;
        }
        if (write) {
            TSR_TRY(remark(p, &strategy->settings, key));
            put_line(out, 4, key->name, p->value, p->note, open, sizeof open);
        }
        any = any || write;
    }
    if (!any) {
        fseek(out, start, SEEK_SET);
        fprintf(out, "  %s: {}\n", name);
    }
    return TSR_OK;
}

/* Paths count from the folder of the file that they stand in: elsewhere only absolute ones mean the
 * same. Names of models/ and clusters/ stay names; `is_file`: the key has no names. */
static tsr_status make_absolute(struct tsr_arena *arena, const char *experiment, bool is_file,
                                const char **value)
{
    char found[TSR_FILE_BYTES];
    if (!*value || !(is_file || tsr_is_path(*value)) || **value == '/' ||
        tsr_find_file("path", *value, NULL, experiment, found) != TSR_OK)
        return TSR_OK; /* what is not there stays as it was written */
    char *path = realpath(found, NULL);
    *value = path ? tsr_arena_strdup(arena, path) : NULL;
    free(path);
    return *value ? TSR_OK : tsr_no_memory(NULL);
}

static tsr_status make_paths_absolute(struct tsr_experiment *experiment,
                                      struct tsr_settings *settings)
{
    struct tsr_arena *arena = &experiment->doc.arena;
    TSR_TRY(make_absolute(arena, experiment->path, false, &settings->model));
    TSR_TRY(make_absolute(arena, experiment->path, true, &settings->model_tree.path));
    TSR_TRY(make_absolute(arena, experiment->path, true, &settings->model_trace));
    TSR_TRY(make_absolute(arena, experiment->path, false, &settings->stack));
    TSR_TRY(make_absolute(arena, experiment->path, false, &settings->own.gpu));
    return make_absolute(arena, experiment->path, false, &settings->cluster);
}

static tsr_status print_all(struct printer *p)
{
    const struct tsr_experiment *experiment = p->experiment;
    char open[64] = "";
    TSR_TRY(tsr_yaml_quote(experiment->title, p->value, VALUE_BYTES));
    fprintf(p->out, "title: %s\n", p->value);
    for (size_t i = 0; i < TSR_N_KEYS; i++) {
        if (is_left_open(experiment, i))
            continue;
        TSR_TRY(tsr_key_format(&tsr_keys[i], &experiment->top, p->value, VALUE_BYTES));
        TSR_TRY(remark(p, &experiment->top, &tsr_keys[i]));
        put_line(p->out, 0, tsr_keys[i].name, p->value, p->note, open, sizeof open);
    }
    fprintf(p->out, "strategies:\n");
    for (size_t i = 0; i < experiment->n; i++)
        TSR_TRY(print_strategy(p, &experiment->strategies[i]));
    return TSR_OK;
}

static tsr_status print_to(FILE *out, const struct tsr_experiment *experiment)
{
    struct printer *p = malloc(sizeof *p);
    if (!p)
        return tsr_no_memory(NULL);
    p->out = out;
    p->experiment = experiment;
    tsr_status status = print_all(p);
    free(p);
    return status;
}

tsr_status tsr_experiment_print(struct tsr_experiment *experiment, char **out)
{
    char *text = NULL;
    size_t n = 0;
    TSR_TRY(make_paths_absolute(experiment, &experiment->top));
    for (size_t i = 0; i < experiment->n; i++)
        TSR_TRY(make_paths_absolute(experiment, &experiment->strategies[i].settings));
    FILE *stream = open_memstream(&text, &n);
    if (!stream)
        return tsr_no_memory(NULL);
    tsr_status status = print_to(stream, experiment);
    if (fclose(stream) != 0 && status == TSR_OK)
        status = tsr_no_memory(NULL);
    if (status != TSR_OK) {
        free(text);
        return status;
    }
    *out = text;
    return TSR_OK;
}
