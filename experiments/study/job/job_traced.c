/* job_traced.c: a strategy whose model is a trace: which of its variants the keys mean, and what
 * the trace cannot say anything about. What does not fit is refused with the command that traces
 * anew.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/study/base/literals.h"
#include "experiments/study/base/paths.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/job/job.h"
#include "experiments/study/model/trace_file.h"
#include "sim/base/text.h"

/* As the tracer names it; NULL: it has no such choice. */
static const char *checkpoint_of(const struct tsr_settings *s)
{
    bool plain = s->ckpt_share >= 1 && !s->ckpt_count && s->ckpt_early_stop &&
                 s->ckpt_hooks != TSR_HOOKS_OUTSIDE;
    if (!s->ckpt_every)
        return "none";
    if (!plain)
        return NULL;
    if (s->ckpt_every == TSR_CKPT_SELECTIVE_OP)
        return "selective";
    if (s->ckpt_every == 1 && s->ckpt_first <= 1)
        return "full";
    return s->ckpt_every == 2 && s->ckpt_first <= 1 ? "every2" : NULL; /* the first one, too */
}

/* --dtype of the tracer for a policy's parameters; under autocast they stay as they are. */
static const char *torch_dtype(tsr_dtype dtype)
{
    static const char *const names[] = {
        [TSR_F32] = "fp32", [TSR_BF16] = "bf16", [TSR_F16] = "fp16"};
    return dtype == TSR_F32 || dtype == TSR_BF16 || dtype == TSR_F16 ? names[dtype] : "none";
}

static tsr_dtype effective(tsr_dtype dtype)
{
    return dtype == TSR_F32 ? TSR_DTYPE_NONE : dtype;
}

/* The `k`-th pattern of the tracer's --wrap for an entry of `wrap`: each of its own, or all in one,
 * as "norm+head". Returns false behind the last. */
static bool wrap_at(const struct tsr_wrap_entry *entry, size_t k, char *out, size_t size)
{
    size_t used = 0;
    if (k >= (entry->group ? entry->n_modules > 0 : entry->n_modules))
        return false;
    *out = 0;
    for (size_t i = entry->group ? 0 : k; i < (entry->group ? entry->n_modules : k + 1); i++) {
        int n = snprintf(out + used, size - used, "%s%s", used ? "+" : "", entry->modules[i]);
        used += n < 0 || (size_t)n >= size - used ? 0 : (size_t)n;
    }
    return true;
}

/* Writes the tracer's --wrap for a strategy's `wrap`; of blocks it needs none, and DDP has no
 * hooks at modules. */
static void put_wrap(FILE *f, const struct tsr_settings *s)
{
    char pattern[512];
    if (s->wrap.kind == TSR_WRAP_ROOT || s->api == TSR_API_DDP)
        fputs(" --wrap root", f);
    for (size_t i = 0; s->wrap.kind == TSR_WRAP_LIST && i < s->wrap.n_entries; i++)
        for (size_t k = 0; wrap_at(&s->wrap.entries[i], k, pattern, sizeof pattern); k++)
            if (*pattern) {
                fputs(" --wrap ", f);
                tsr__put_word(f, pattern);
            }
}

/* True if the model was traced with --wrap of what the strategy wraps: the same command makes the
 * same trace. */
static bool wraps_as_traced(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    const struct tsr_traced_file *t = job->model.trace;
    size_t wanted = 0, found = 0, options = 0;
    char pattern[512];
    for (size_t o = 0; o < t->n_options; o++)
        options += !strcmp(t->options[o].name, "--wrap");
    for (size_t i = 0; s->wrap.kind == TSR_WRAP_LIST && i < s->wrap.n_entries; i++)
        for (size_t k = 0; wrap_at(&s->wrap.entries[i], k, pattern, sizeof pattern); k++) {
            wanted += *pattern != 0;
            for (size_t o = 0; o < t->n_options; o++)
                found +=
                    !strcmp(t->options[o].name, "--wrap") && !strcmp(t->options[o].value, pattern);
        }
    return options && wanted == found && wanted == options;
}

/* True if the strategy wraps modules by name that had no hooks when the model was traced. */
static bool wraps_more(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    const struct tsr_traced_file *t = job->model.trace;
    for (size_t i = 0; s->wrap.kind == TSR_WRAP_LIST && i < s->wrap.n_entries; i++)
        for (size_t k = 0; k < s->wrap.entries[i].n_modules; k++)
            for (size_t m = 1; m < t->model.n_modules; m++)
                if (!t->variants[0].hooked[m] &&
                    tsr_glob(s->wrap.entries[i].modules[k], t->model.modules[m].name))
                    return true;
    return false;
}

/* Returns the batch (or sequence) of variant `i`; behind the last one, that of the strategy. 0:
 * none. */
static uint64_t size_at(const struct tsr_job *job, enum tsr_key_id key, size_t i)
{
    const struct tsr_traced_file *t = job->model.trace;
    bool batch = key == TSR_K_BATCH;
    if (i < t->n_variants)
        return batch ? t->variants[i].batch : t->variants[i].seq;
    if (!tsr_setting_at(job->settings, key))
        return 0;
    return batch ? job->settings->batch : job->settings->seq;
}

/* Writes the option of `key` with the sizes that the trace has and the one that the strategy wants:
 * the new trace serves the other strategies of the experiment, too. */
static void put_sizes(FILE *f, const struct tsr_job *job, enum tsr_key_id key, bool takes)
{
    size_t n = job->model.trace->n_variants;
    bool known = job->model.trace->was_asked, first = true;
    if (known ? !takes : !size_at(job, key, n))
        return;
    for (size_t i = 0; i <= n; i++) {
        uint64_t size = size_at(job, key, i);
        bool seen = !size;
        for (size_t k = 0; k < i && !seen; k++)
            seen = size_at(job, key, k) == size;
        if (seen)
            continue;
        if (first)
            fprintf(f, " --%s ", tsr_keys[key].name);
        fprintf(f, "%s%llu", first ? "" : ",", (unsigned long long)size);
        first = false;
    }
}

/* Writes --checkpoint with what the trace has and what the strategy wants, unless that is `none`
 * alone, which the tracer takes by itself. */
static void put_checkpoints(FILE *f, const struct tsr_job *job)
{
    const struct tsr_traced_file *t = job->model.trace;
    const char *wanted = checkpoint_of(job->settings), *kinds[5] = {NULL};
    size_t n = 0;
    for (size_t i = 0; i <= t->n_variants; i++) {
        const char *kind = i < t->n_variants ? t->variants[i].checkpoint : wanted;
        bool seen = !kind;
        for (size_t k = 0; k < n && !seen; k++)
            seen = !strcmp(kinds[k], kind);
        if (!seen && n < 5)
            kinds[n++] = kind;
    }
    for (size_t i = 0; i < n && (n > 1 || strcmp(kinds[0], "none") != 0); i++)
        fprintf(f, "%s%s", i ? "," : " --checkpoint ", kinds[i]);
}

/* Writes the file that makes the model with the folder that it is in, which is this one or the
 * trace's. Returns false if it is in neither: the command then runs in another folder. */
static bool put_source(FILE *f, const struct tsr_job *job)
{
    const char *source = job->model.trace->source, *slash = strrchr(job->model.path, '/');
    char file[TSR_FILE_BYTES], path[2 * TSR_FILE_BYTES];
    int folder = slash ? (int)(slash + 1 - job->model.path) : 0;
    snprintf(file, sizeof file, "%.*s", (int)(strrchr(source, ':') - source), source);
    snprintf(path, sizeof path, "%.*s%s", folder, job->model.path, file);
    bool beside = access(file, F_OK) != 0 && access(path, F_OK) == 0;
    snprintf(path, sizeof path, "%.*s%s", beside ? folder : 0, job->model.path, source);
    tsr__put_word(f, path);
    return beside || access(file, F_OK) == 0;
}

/* Writes -o with a name that no file here has: the old trace, which other strategies may need,
 * stays. */
static void put_output(FILE *f, const struct tsr_job *job)
{
    char name[sizeof job->model.name + 24];
    const char *dash = *job->model.name == '-' ? "./" : "";
    for (unsigned i = 2; i < 1000; i++) {
        snprintf(name, sizeof name, "%s%s-%u.trace", dash, job->model.name, i);
        if (access(name, F_OK) != 0)
            break;
    }
    fputs(" -o ", f);
    tsr__put_word(f, name);
}

/* What DDP does to the model's outputs under the strategy's options: the name of the option that a
 * trace must have been made with; NULL: it leaves them alone. */
static const char *clones_outputs(const struct tsr_settings *s)
{
    if (s->api != TSR_API_DDP)
        return NULL;
    return s->ddp_static_graph ? "static_graph" : s->ddp_find_unused ? "find_unused" : NULL;
}

static void put_dtype(FILE *f, const struct tsr_job *job)
{
    const struct tsr_traced_file *t = job->model.trace;
    const char *autocast = t->n_variants ? t->variants[0].autocast : NULL;
    tsr_dtype param = (tsr_dtype)job->settings->param;
    const char *dtype = torch_dtype(param);
    if (autocast && effective(param) == TSR_DTYPE_NONE)
        dtype = tsr_dtype_parse(autocast) == TSR_F16 ? "autocast-fp16" : "autocast-bf16";
    fprintf(f, " --dtype %s", dtype);
    if (job->settings->output != TSR_DTYPE_NONE)
        fprintf(f, " --output %s", torch_dtype((tsr_dtype)job->settings->output));
    if (clones_outputs(job->settings))
        fprintf(f, " --ddp %s", clones_outputs(job->settings));
}

/* Writes the whole command. Returns whether it runs in the current folder. */
static bool put_command(FILE *f, const struct tsr_job *job, bool wraps)
{
    const struct tsr_traced_file *t = job->model.trace;
    fputs("python -m tessera trace ", f);
    bool here = put_source(f, job);
    put_sizes(f, job, TSR_K_BATCH, t->takes_batch);
    put_sizes(f, job, TSR_K_SEQ, t->takes_seq);
    put_checkpoints(f, job);
    for (size_t i = 0; i < t->n_options; i++) {
        if (wraps && !strcmp(t->options[i].name, "--wrap"))
            continue;
        fprintf(f, " %s ", t->options[i].name);
        tsr__put_word(f, t->options[i].value);
    }
    if (wraps)
        put_wrap(f, job->settings);
    put_dtype(f, job);
    put_output(f, job);
    return here;
}

/* Writes " (COMMAND)", which traces what the keys ask for, as a shell reads it; "" if no command
 * can, or if it has no room, since a cut would end inside of quotes. `wraps`: the modules that the
 * strategy wraps are part of it. */
static void say_command(const struct tsr_job *job, bool wraps, char *out, size_t size)
{
    const char *source = job->model.trace->source, *suffix = strstr(source, ".py:");
    char *text = NULL;
    size_t n = 0;
    FILE *f = suffix && !strchr(source, '/') && !strchr(suffix + 4, ':') ? open_memstream(&text, &n)
                                                                         : NULL;
    *out = 0;
    if (!f)
        return;
    bool here = put_command(f, job, wraps);
    if (fclose(f) == 0 && text) {
        int file = (int)(suffix + 3 - source);
        int used = here ? snprintf(out, size, " (%s)", text)
                        : snprintf(out, size, " (where %.*s is: %s)", file, source, text);
        if (used < 0 || (size_t)used >= size)
            *out = 0;
    }
    free(text);
}

/* True if the function that made the model is known to have no parameter for this size. */
static bool has_one_size(const struct tsr_job *job, enum tsr_key_id key)
{
    const struct tsr_traced_file *t = job->model.trace;
    return t->was_asked &&
           ((key == TSR_K_BATCH && !t->takes_batch) || (key == TSR_K_SEQ && !t->takes_seq));
}

static tsr_status refuse(const struct tsr_job *job, enum tsr_key_id key, const char *found,
                         const char *allowed)
{
    char command[640];
    const char *name = tsr_keys[key].name;
    if (has_one_size(job, key))
        return tsr_node_error(tsr_job_at(job, key),
                              "%s: found %s, model %s was traced with %s; allowed: that, or a "
                              "trace of another function: %s has no parameter `%s`",
                              name, found, job->model.name, allowed, job->model.trace->source,
                              name);
    say_command(job, wraps_more(job), command, sizeof command);
    return tsr_node_error(tsr_job_at(job, key),
                          "%s: found %s, model %s was traced with %s; "
                          "allowed: that, or another trace%s",
                          name, found, job->model.name, allowed, command);
}

/* ---- which variant --------------------------------------------------------------------------- */

static bool is_meant(const struct tsr_job *job, const struct tsr_trace_variant *v)
{
    const struct tsr_settings *s = job->settings;
    const char *checkpoint = checkpoint_of(s);
    if (s->model_variant)
        return !strcmp(v->name, s->model_variant);
    return checkpoint && !strcmp(v->checkpoint, checkpoint) &&
           (!tsr_setting_at(s, TSR_K_BATCH) || v->batch == s->batch) &&
           (!tsr_setting_at(s, TSR_K_SEQ) || !v->seq || v->seq == s->seq);
}

static tsr_status refuse_variant(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    char names[320], found[160];
    const char *checkpoint = checkpoint_of(s);
    tsr_traced_file_list(job->model.trace, names, sizeof names);
    if (s->model_variant) {
        return tsr_node_error(tsr_job_at(job, TSR_K_MODEL_VARIANT),
                              "model.variant: found %s; allowed: %s", s->model_variant,
                              tsr_show_line(names).text);
    }
    if (!checkpoint)
        return tsr_node_error(tsr_job_at(job, TSR_K_CHECKPOINT_EVERY),
                              "checkpoint: found a choice that traces do not have; allowed: none, "
                              "full, selective_op or 2");
    bool batch = tsr_setting_at(s, TSR_K_BATCH) != NULL, seq = tsr_setting_at(s, TSR_K_SEQ) != NULL;
    snprintf(found, sizeof found, "%s", checkpoint);
    if (batch)
        snprintf(found, sizeof found, "%llu with checkpoint: %s", (unsigned long long)s->batch,
                 checkpoint);
    else if (seq)
        snprintf(found, sizeof found, "%llu with checkpoint: %s", (unsigned long long)s->seq,
                 checkpoint);
    return refuse(job,
                  batch ? TSR_K_BATCH
                  : seq ? TSR_K_SEQ
                        : TSR_K_CHECKPOINT_EVERY,
                  found, tsr_show_line(names).text);
}

/* ---- what the trace decided ------------------------------------------------------------------ */

/* DDP clones the model's outputs with some options, which changes what lives how long behind it. */
static tsr_status check_outputs(const struct tsr_job *job, const struct tsr_trace_variant *v)
{
    const struct tsr_settings *s = job->settings;
    const char *wanted = clones_outputs(s), *has = v->ddp_outputs;
    bool is_static = s->api == TSR_API_DDP && s->ddp_static_graph;
    if (wanted == has || (wanted && has && !strcmp(wanted, has)))
        return TSR_OK;
    return refuse(job, is_static ? TSR_K_DDP_STATIC_GRAPH : TSR_K_DDP_FIND_UNUSED,
                  wanted ? "true" : "false", has ? has : "outputs that are not cloned");
}

static tsr_status check_conditions(const struct tsr_job *job, const struct tsr_trace_variant *v)
{
    const struct tsr_settings *s = job->settings;
    if (s->master != TSR_F32)
        return tsr_node_error(
            tsr_job_at(job, TSR_K_PRECISION_MASTER),
            "precision.master: found %s beside model %s, which was traced with the "
            "dtypes that its function gave the parameters; allowed: f32, and weights "
            "in another dtype made there (model.to(torch.bfloat16), traced with "
            "--dtype bf16, precision.param: bf16)",
            tsr_dtype_name((tsr_dtype)s->master), job->model.name);
    tsr_dtype traced = v->param_dtype ? tsr_dtype_parse(v->param_dtype) : TSR_DTYPE_NONE;
    if (effective((tsr_dtype)s->param) != effective(traced))
        return refuse(job, TSR_K_PRECISION_PARAM, torch_dtype((tsr_dtype)s->param),
                      v->param_dtype ? v->param_dtype : "none");
    tsr_dtype output = v->output_dtype ? tsr_dtype_parse(v->output_dtype) : TSR_DTYPE_NONE;
    if ((tsr_dtype)s->output != output)
        return refuse(job, TSR_K_PRECISION_OUTPUT, torch_dtype((tsr_dtype)s->output),
                      v->output_dtype ? v->output_dtype : "none");
    TSR_TRY(check_outputs(job, v));
    const struct tsr_misfit misfits[] = {
        {TSR_K_PRECISION_CAST_INPUTS, v->cast_inputs ? "true" : "false",
         s->cast_inputs != v->cast_inputs},
        {TSR_K_PRECISION_LINEAR, "plain", s->linear != TSR_LINEAR_PLAIN},
        {TSR_K_DIALECT, "eager", s->dialect != TSR_DIALECT_EAGER},
        {TSR_K_TP, "1", s->tp > 1},
        {TSR_K_LOSS_CHUNKS, "1", s->loss_chunks > 1},
        {TSR_K_LOSS_KERNEL, "eager", s->loss_kernel != TSR_LOSS_EAGER},
        {TSR_K_LOSS_METRICS, "0", s->metrics > 0},
        {TSR_K_PHASES, "without eval", s->phases >> TSR_SECTION_EVAL & 1}};
    char why[sizeof job->model.name + 40];
    snprintf(why, sizeof why, " beside model %s, which was traced", job->model.name);
    return tsr_job_refuse_misfits(job, misfits, sizeof misfits / sizeof *misfits, why);
}

/* What the trace was fed with is the batch. */
static tsr_status take_sizes(struct tsr_job *job, const struct tsr_trace_variant *v)
{
    uint64_t seq = v->seq ? v->seq : 1;
    if (job->settings->batch == v->batch && job->settings->seq == seq)
        return TSR_OK;
    job->own_settings = malloc(sizeof *job->own_settings);
    if (!job->own_settings)
        return tsr_no_memory(NULL);
    *job->own_settings = *job->settings;
    job->own_settings->batch = v->batch;
    job->own_settings->seq = seq;
    job->settings = job->own_settings;
    return TSR_OK;
}

tsr_status tsr_job_choose_trace(struct tsr_job *job)
{
    struct tsr_traced_file *t = job->model.trace;
    const struct tsr_settings *s = job->settings;
    const struct tsr_trace_variant *v = NULL;
    if (!t) {
        if (!s->model_variant)
            return TSR_OK;
        return tsr_node_error(tsr_job_at(job, TSR_K_MODEL_VARIANT),
                              "model.variant: found %s beside model %s; allowed: null, or beside "
                              "model.trace",
                              s->model_variant, job->model.name);
    }
    for (size_t i = 0; i < t->n_variants && !v; i++)
        if (is_meant(job, &t->variants[i]))
            v = &t->variants[i];
    if (!v)
        return refuse_variant(job);
    tsr_traced_file_choose(t, v);
    job->model.variant = v;
    TSR_TRY(check_conditions(job, v));
    return take_sizes(job, v);
}

tsr_status tsr_job_refuse_wrap(const struct tsr_job *job, tsr_status status)
{
    char command[640], text[512];
    if (status != TSR_EUNSUPPORTED)
        return status;
    snprintf(text, sizeof text, "%s", tsr_error_text());
    if (wraps_as_traced(job))
        return tsr_node_error(tsr_job_at(job, TSR_K_WRAP),
                              "strategy %s: wrap: found that %s; allowed: other modules",
                              job->strategy->name, text);
    say_command(job, true, command, sizeof command);
    return tsr_node_error(tsr_job_at(job, TSR_K_WRAP),
                          "strategy %s: wrap: found that %s; allowed: other modules, or another "
                          "trace%s",
                          job->strategy->name, text, command);
}

uint64_t tsr_job_tokens(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    if (job->model.variant)
        return job->model.variant->tokens * s->accum_steps;
    return s->batch * s->seq * s->accum_steps / s->tp; /* which work on the same tokens */
}
