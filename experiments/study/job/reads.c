/* reads.c: finds keys that a strategy gives and that nothing reads (job.h). */
#include "experiments/study/job/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/listener.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/model/trace_file.h"
#include "sim/base/text.h"

/* ---- keys that need another one -------------------------------------------------------------- */

static bool no_checkpoint(const struct tsr_settings *s)
{
    return !s->ckpt_every;
}

static bool no_tensor_parallel(const struct tsr_settings *s)
{
    return s->tp == 1;
}

static bool no_clipping(const struct tsr_settings *s)
{
    return !s->clip;
}

static bool no_sgd(const struct tsr_settings *s)
{
    return s->optimizer != TSR_OPTIM_SGD;
}

static bool not_compiled(const struct tsr_settings *s)
{
    return s->dialect != TSR_DIALECT_COMPILE;
}

static bool one_micro_batch(const struct tsr_settings *s)
{
    return s->accum_steps == 1;
}

/* DDP has no shards to keep and no second collective to leave out: its no_sync() is no_reduce. */
static bool no_shards(const struct tsr_settings *s)
{
    return s->api == TSR_API_DDP && s->accum_mode > TSR_ACCUM_NO_REDUCE;
}

static const struct need {
    enum tsr_key_id key, other; /* `key` is idle while is_idle(), which looks at `other` */
    bool (*is_idle)(const struct tsr_settings *s);
    const char *allowed; /* values of `other` with which it is not */
    const char *instead; /* values of `key` that are read; NULL: none */
} needs[] = {
    {TSR_K_CHECKPOINT_FIRST, TSR_K_CHECKPOINT_EVERY, no_checkpoint, "full or a number", NULL},
    {TSR_K_CHECKPOINT_COUNT, TSR_K_CHECKPOINT_EVERY, no_checkpoint,
     "full, selective_op or a number", NULL},
    {TSR_K_CHECKPOINT_SHARE, TSR_K_CHECKPOINT_EVERY, no_checkpoint, "full or selective_op", NULL},
    {TSR_K_CHECKPOINT_HOOKS, TSR_K_CHECKPOINT_EVERY, no_checkpoint, "full or a number", NULL},
    {TSR_K_CHECKPOINT_EARLY_STOP, TSR_K_CHECKPOINT_EVERY, no_checkpoint, "full or a number", NULL},
    {TSR_K_SEQUENCE_PARALLEL, TSR_K_TP, no_tensor_parallel, "2 and more", NULL},
    {TSR_K_CLIP_VARIANT, TSR_K_CLIP, no_clipping, "true", NULL},
    {TSR_K_COMPILE_COMPONENTS, TSR_K_DIALECT, not_compiled, "compile", NULL},
    {TSR_K_OPTIMIZER_MOMENTUM, TSR_K_OPTIMIZER_NAME, no_sgd, "sgd", NULL},
    {TSR_K_ACCUMULATION_MODE, TSR_K_ACCUMULATION_STEPS, one_micro_batch, "2 and more", NULL},
    {TSR_K_ACCUMULATION_MODE, TSR_K_API, no_shards, "fully_shard or replicate",
     "no_reduce (no_sync)"},
};
enum { N_NEEDS = sizeof needs / sizeof needs[0] };

static const struct need *idle_need(const struct tsr_settings *s, size_t key)
{
    for (size_t i = 0; i < N_NEEDS; i++)
        if (needs[i].key == key && needs[i].is_idle(s))
            return &needs[i];
    return NULL;
}

/* ---- where a key was given ------------------------------------------------------------------- */

static bool has_default(const struct tsr_key *key, const struct tsr_settings *s)
{
    char text[128];
    return tsr_key_format(key, s, text, sizeof text) == TSR_OK && key->def &&
           !strcmp(text, key->def);
}

static bool any_reads(const struct tsr_experiment *e, size_t key, const struct need *need)
{
    for (size_t i = 0; i < e->n; i++) {
        const struct tsr_settings *s = &e->strategies[i].settings;
        if (need ? !need->is_idle(s) : tsr_name_is_read(tsr_keys[key].name, s->api, s->world > 0))
            return true;
    }
    return false;
}

/* True if the strategy itself gives the key, and not before it was decided (by `other`) that
 * nothing reads it; or a --set for all strategies, of which none reads it, gives another value
 * than the default. A sweep over meshes is one over numbers of ranks; in one over two keys some
 * combinations may leave one of them idle. `need`: NULL if `other` is the API or the model. */
static bool is_mistake(const struct tsr_experiment *e, const struct tsr_strategy *strategy,
                       size_t key, enum tsr_key_id other, const struct need *need)
{
    enum tsr_setting_source mine = tsr_setting_source(e, strategy, key);
    enum tsr_setting_source deciding = tsr_setting_source(e, strategy, other);
    if (mine == TSR_FROM_HEAD_SET)
        return !has_default(&tsr_keys[key], &strategy->settings) && !any_reads(e, key, need);
    if (deciding == TSR_FROM_HEAD_SET)
        deciding = TSR_FROM_SET;
    bool counts = mine == TSR_FROM_SWEEP &&
                  (!strncmp(tsr_keys[key].name, "mesh.", 5) || (need && any_reads(e, key, need)));
    return mine >= TSR_FROM_STRATEGY && mine >= deciding && !counts;
}

/* Nothing is asked for: a default that says so (none, false, ...), or one that is given over
 * another value of a stack or of the head of the file. */
static bool asks_nothing(const struct tsr_job *job, size_t key)
{
    static const char *const off[] = {"none", "null", "false", "0", "1"};
    const struct tsr_experiment *e = job->experiment;
    const struct tsr_stack *stack = tsr_stacks_of(&e->stacks, job->settings);
    bool above = job->strategy->at != e->doc.root && !has_default(&tsr_keys[key], &e->top);
    bool is_off = false;
    if (!has_default(&tsr_keys[key], job->settings))
        return false;
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        is_off = is_off || !strcmp(off[i], tsr_keys[key].def);
    return is_off || above || (stack && stack->settings.from[key]);
}

/* ---- mistakes -------------------------------------------------------------------------------- */

static const char *shown(const struct tsr_job *job, size_t key, char out[TSR_SHOWN_BYTES])
{
    const struct tsr_yaml_node *at = job->settings->from[key];
    if (at->kind == TSR_NODE_SEQ || at->kind == TSR_NODE_MAP ||
        tsr_key_format(&tsr_keys[key], job->settings, out, TSR_SHOWN_BYTES) != TSR_OK)
        return tsr__node_show(at, out);
    return out;
}

static tsr_status refuse_api(const struct tsr_job *job, size_t key)
{
    char found[TSR_SHOWN_BYTES], readers[96], own[80];
    const char *api = tsr_words_api[job->settings->api];
    tsr_key_readers(&tsr_keys[key], readers, sizeof readers);
    snprintf(own, sizeof own, "%s.%s", api, tsr_keys[key].name);
    bool has_own = tsr_key_find(own) < TSR_N_KEYS;
    return tsr_node_error(job->settings->from[key],
                          "%s: found %s, which api: %s does not read; allowed: %s, or api: %s",
                          tsr_keys[key].name, shown(job, key, found), api,
                          has_own ? own : "no such key", readers);
}

static tsr_status refuse_need(const struct tsr_job *job, size_t key, const struct need *need)
{
    char found[TSR_SHOWN_BYTES], other[64] = "?";
    TSR_TRY(tsr_key_format(&tsr_keys[need->other], job->settings, other, sizeof other));
    return tsr_node_error(job->settings->from[key],
                          "%s: found %s beside %s: %s, where nothing reads it; allowed: %s, or "
                          "%s: %s",
                          tsr_keys[key].name, shown(job, key, found), tsr_keys[need->other].name,
                          other, need->instead ? need->instead : "no such key",
                          tsr_keys[need->other].name, need->allowed);
}

static uint32_t shard_ranks(const struct tsr_job *job)
{
    for (int i = 0; i < job->mesh.n_dims; i++)
        if (!strcmp(job->mesh.name[i], "shard"))
            return job->mesh.shape[i];
    return 1;
}

const char tsr_decays_nothing_words[] =
    "train.decay: matrices: FSDP1's shards have one dimension: an optimizer that is made after "
    "wrapping, by p.dim() > 1, decays nothing (train.decay: all)";

bool tsr_decays_nothing(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    return s->api == TSR_API_FSDP1 && shard_ranks(job) > 1 && s->run.decay == TSR_DECAY_MATRICES &&
           s->run.weight_decay > 0 && s->optimizer != TSR_OPTIM_NONE;
}

/* FSDP1's wrapper clips its shards in a loop, whatever is asked for. */
static tsr_status check_loop(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    size_t key = TSR_K_CLIP_VARIANT;
    if (s->api != TSR_API_FSDP1 || !s->from[key] || s->clip_how != TSR_CLIP_FOREACH ||
        shard_ranks(job) == 1 || asks_nothing(job, key) ||
        !is_mistake(job->experiment, job->strategy, key, TSR_K_API, NULL))
        return TSR_OK;
    return tsr_node_error(s->from[key],
                          "clip_variant: found foreach, which api: fsdp1 does not read: its "
                          "clip_grad_norm_ is a loop; allowed: loop or loop_read");
}

/* ---- models ---------------------------------------------------------------------------------- */

/* The attention kernel that a trace was made with; -1: none that is one operator. */
static int traced_attention(const struct tsr_model *m)
{
    static const char *const parts[] = {
        [TSR_SDPA_FLASH] = "_flash_attention", [TSR_SDPA_EFFICIENT] = "_efficient_attention"};
    for (size_t i = 0; i < m->trace->model.n_ops; i++)
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
            if (strstr(m->trace->model.ops[i].name, parts[k]))
                return (int)k;
    return -1;
}

bool tsr_model_ignores(const struct tsr_job *job, size_t key, const char **allowed)
{
    const struct tsr_settings *s = job->settings;
    const struct tsr_model *m = &job->model;
    if (key == TSR_K_ATTENTION && m->family == TSR_FAMILY_TRACED) {
        int traced = traced_attention(m);
        bool is_one = s->attention == TSR_SDPA_FLASH || s->attention == TSR_SDPA_EFFICIENT;
        *allowed = traced < 0 ? "no such key" : tsr_words_attention[traced];
        return traced < 0 ? is_one : s->attention != (unsigned)traced;
    }
    if (key == TSR_K_SEQ) {
        *allowed = "no such key";
        return m->variant && !m->variant->seq;
    }
    *allowed = "false";
    if (key == TSR_K_GQA_REPEAT)
        return s->gqa_repeat && m->family != TSR_FAMILY_LLAMA;
    return key == TSR_K_ATTENTION_UNPAD && s->attention_unpad && m->family != TSR_FAMILY_MPT;
}

static tsr_status check_model(const struct tsr_job *job, size_t key)
{
    enum tsr_key_id source = job->settings->model_trace ? TSR_K_MODEL_TRACE
                             : job->settings->model     ? TSR_K_MODEL_NAME
                                                        : TSR_K_MODEL_TREE;
    const char *allowed;
    char found[TSR_SHOWN_BYTES];
    if (!tsr_model_ignores(job, key, &allowed) ||
        !is_mistake(job->experiment, job->strategy, key, source, NULL))
        return TSR_OK;
    /* The settings have the sizes of the trace by now, the node has what was given. */
    const struct tsr_yaml_node *at = job->settings->from[key];
    bool is_traced = job->model.family == TSR_FAMILY_TRACED;
    return tsr_node_error(
        at, "%s: found %s, which model %s does not read; allowed: %s", tsr_keys[key].name,
        is_traced ? tsr__node_show(at, found) : shown(job, key, found), job->model.name, allowed);
}

tsr_status tsr_check_reads(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    for (size_t i = 0; i < TSR_N_KEYS; i++) {
        if (!s->from[i])
            continue;
        const struct need *need = idle_need(s, i);
        bool reads = tsr_key_is_read(&tsr_keys[i], s->api);
        if (!reads && !asks_nothing(job, i) &&
            is_mistake(job->experiment, job->strategy, i, TSR_K_API, NULL))
            return refuse_api(job, i);
        if (need && !has_default(&tsr_keys[i], s) &&
            is_mistake(job->experiment, job->strategy, i, need->other, need))
            return refuse_need(job, i, need);
        TSR_TRY(check_model(job, i));
    }
    return check_loop(job);
}

static bool is_dropped(const struct tsr_settings *s, size_t key)
{
    return s->from[key] && !tsr_key_is_read(&tsr_keys[key], s->api) &&
           strncmp(tsr_keys[key].name, "mesh.", 5) != 0;
}

tsr_status tsr_job_drop_unread(struct tsr_job *job)
{
    size_t first = 0, n = TSR_N_KEYS;
    while (first < n && !is_dropped(job->settings, first))
        first++;
    if (first == n)
        return TSR_OK;
    if (!job->own_settings) {
        job->own_settings = malloc(sizeof *job->own_settings);
        if (!job->own_settings)
            return tsr_no_memory(NULL);
        *job->own_settings = *job->settings;
        job->settings = job->own_settings;
    }
    for (size_t i = first; i < n; i++)
        if (is_dropped(job->settings, i))
            tsr_key_reset(&tsr_keys[i], job->own_settings);
    return TSR_OK;
}

bool tsr_job_reads(const struct tsr_job *job, enum tsr_key_id key)
{
    bool is_traced = job->model.family == TSR_FAMILY_TRACED && key == TSR_K_ATTENTION;
    return !is_traced &&
           tsr_name_is_read(tsr_keys[key].name, job->settings->api, job->settings->world > 0);
}

/* ---- remarks --------------------------------------------------------------------------------- */

/* A line of keys, each with the place that gives it; a place of several is said once. */
struct line {
    char text[512];
    char place[160]; /* of the last key */
    bool has[TSR_N_KEYS];
};

static void close_place(struct line *line)
{
    size_t used = strlen(line->text);
    if (used)
        snprintf(line->text + used, sizeof line->text - used, " (%s)", line->place);
}

static void add_name(struct line *line, const char *name, const char *place)
{
    if (strcmp(line->place, place) != 0)
        close_place(line);
    size_t used = strlen(line->text);
    snprintf(line->text + used, sizeof line->text - used, "%s%s", used ? ", " : "", name);
    snprintf(line->place, sizeof line->place, "%s", place);
}

static void add_key(struct line *line, size_t key, const char *place)
{
    if (!line->has[key])
        add_name(line, tsr_keys[key].name, place);
    line->has[key] = true;
}

/* Names the place from which a strategy inherits the key: a stack that gives it also where it was
 * left out because it is another API's. False: it is not inherited, or is the default. */
static bool is_inherited(const struct tsr_experiment *e, const struct tsr_strategy *strategy,
                         size_t key, char *place, size_t size)
{
    const struct tsr_settings *s = &strategy->settings;
    const struct tsr_stack *stack = tsr_stacks_of(&e->stacks, s);
    bool of_stack = stack && stack->settings.from[key] &&
                    (!s->from[key] || s->from[key] == stack->settings.from[key]);
    if (of_stack) {
        snprintf(place, size, "stack %.140s", tsr_show_line(s->stack).text);
        return !has_default(&tsr_keys[key], &stack->settings);
    }
    if (!s->from[key] || has_default(&tsr_keys[key], s))
        return false;
    if (s->from[key]->line == 0)
        snprintf(place, size, "%.150s", tsr_show_line(s->from[key]->file).text);
    else
        snprintf(place, size, "line %d of %.130s", s->from[key]->line,
                 tsr_show_line(s->from[key]->file).text);
    return true;
}

static void tell_api(const struct tsr_experiment *e, const struct tsr_strategy *only, unsigned api)
{
    struct line line = {.text = ""};
    const struct tsr_yaml_node *sweeps = tsr_node_get(e->doc.root, "sweeps");
    const struct tsr_settings *any = NULL;
    char place[160];
    for (size_t i = 0; i < e->n; i++) {
        const struct tsr_strategy *s = &e->strategies[i];
        any = s->settings.api == api && (!only || only == s) ? &s->settings : any;
        for (size_t k = 0; k < TSR_N_KEYS && s->settings.api == api && (!only || only == s); k++)
            if (!tsr_key_is_read(&tsr_keys[k], api) &&
                tsr_setting_source(e, s, k) != TSR_FROM_SWEEP &&
                is_inherited(e, s, k, place, sizeof place))
                add_key(&line, k, place);
    }
    for (size_t k = 0; any && sweeps && k < sweeps->n; k++)
        if (!tsr_name_is_read(sweeps->items[k]->key, api, any->world > 0))
            add_name(&line, sweeps->items[k]->key, "sweeps, taken once");
    close_place(&line);
    if (line.text[0])
        tsr_tell("note: api: %s does not read %s", tsr_words_api[api], line.text);
}

/* A stack says how training is written, whether an experiment makes use of all of it or not. */
static void tell_need(const struct tsr_experiment *e, const struct tsr_strategy *only,
                      const struct need *first)
{
    struct line line = {.text = ""};
    char place[160];
    for (size_t i = 0; i < e->n; i++) {
        const struct tsr_strategy *s = &e->strategies[i];
        for (size_t k = 0; k < N_NEEDS && (!only || only == s); k++) {
            size_t key = needs[k].key;
            if (needs[k].other == first->other && needs[k].is_idle(&s->settings) &&
                tsr_setting_source(e, s, key) > TSR_FROM_STACK &&
                tsr_key_is_read(&tsr_keys[key], s->settings.api) &&
                is_inherited(e, s, key, place, sizeof place))
                add_key(&line, key, place);
        }
    }
    close_place(&line);
    if (line.text[0])
        tsr_tell("note: nothing reads %s without %s: %s%s%s", line.text,
                 tsr_keys[first->other].name, first->allowed,
                 first->instead ? "; it is taken as " : "", first->instead ? first->instead : "");
}

void tsr_tell_unread(const struct tsr_experiment *experiment, const struct tsr_strategy *only)
{
    for (unsigned api = 0; tsr_words_api[api]; api++)
        tell_api(experiment, only, api);
    for (size_t i = 0; i < N_NEEDS; i++)
        if (i == 0 || needs[i].other != needs[i - 1].other)
            tell_need(experiment, only, &needs[i]);
}
