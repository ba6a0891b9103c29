/* job_traced.c: a strategy whose model is a trace: which of its variants the keys mean, and what
 * the trace cannot say anything about. What does not fit is refused with the command that traces
 * anew.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/literals.h"
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

/* Appends the tracer's --wrap for a strategy's `wrap`; of blocks it needs none. Returns false if
 * there is no room. */
static bool say_wrap(const struct tsr_settings *s, char *out, size_t size)
{
    size_t used = strlen(out);
    if (s->wrap.kind == TSR_WRAP_ROOT)
        return (size_t)snprintf(out + used, size - used, " --wrap root") < size - used;
    for (size_t i = 0; s->wrap.kind == TSR_WRAP_LIST && i < s->wrap.n_entries; i++) {
        const struct tsr_wrap_entry *entry = &s->wrap.entries[i];
        for (size_t k = 0; k < entry->n_modules; k++) {
            char *pattern = *entry->modules[k] ? tsr_shell_text(entry->modules[k]) : NULL;
            int n = pattern ? snprintf(out + used, size - used, " --wrap %s", pattern) : 0;
            free(pattern);
            if (n < 0 || (size_t)n >= size - used)
                return false;
            used += (size_t)n;
        }
    }
    return true;
}

/* Writes the command that traces what the keys ask for, as a shell reads it; one that has no room
 * is left without its options, since a cut would end inside of quotes. `wraps`: the modules that
 * the strategy wraps are part of it. */
static void say_command(const struct tsr_job *job, bool wraps, char *out, size_t size)
{
    const struct tsr_settings *s = job->settings;
    const struct tsr_traced_file *t = job->model.trace;
    const char *checkpoint = checkpoint_of(s), *dtype = torch_dtype((tsr_dtype)s->param);
    const char *autocast = t->n_variants ? t->variants[0].autocast : NULL;
    if (autocast && effective((tsr_dtype)s->param) == TSR_DTYPE_NONE)
        dtype = tsr_dtype_parse(autocast) == TSR_F16 ? "autocast-fp16" : "autocast-bf16";
    char more[512] = "";
    if (tsr_setting_at(s, "batch"))
        snprintf(more, sizeof more, " --batch %llu", (unsigned long long)s->batch);
    if (tsr_setting_at(s, "seq"))
        snprintf(more + strlen(more), sizeof more - strlen(more), " --seq %llu",
                 (unsigned long long)s->seq);
    if (checkpoint && strcmp(checkpoint, "none") != 0)
        snprintf(more + strlen(more), sizeof more - strlen(more), " --checkpoint %s", checkpoint);
    bool fits = !wraps || say_wrap(s, more, sizeof more);
    char *source = fits ? tsr_shell_text(t->source) : NULL, *path = tsr_shell_text(job->model.path);
    int n = source && path ? snprintf(out, size, "python -m tessera trace %s%s --dtype %s -o %s",
                                      source, more, dtype, path)
                           : -1;
    if (n < 0 || (size_t)n >= size)
        snprintf(out, size, "python -m tessera trace");
    free(source);
    free(path);
}

static tsr_status refuse(const struct tsr_job *job, const char *key, const char *found,
                         const char *allowed)
{
    char command[640];
    say_command(job, false, command, sizeof command);
    return tsr_node_error(tsr_job_at(job, key),
                          "%s: found %s, model %s was traced with %s; "
                          "allowed: that, or another trace (%s)",
                          key, found, job->model.name, allowed, command);
}

/* ---- which variant --------------------------------------------------------------------------- */

static bool is_meant(const struct tsr_job *job, const struct tsr_trace_variant *v)
{
    const struct tsr_settings *s = job->settings;
    const char *checkpoint = checkpoint_of(s);
    if (s->model_variant)
        return !strcmp(v->name, s->model_variant);
    return checkpoint && !strcmp(v->checkpoint, checkpoint) &&
           (!tsr_setting_at(s, "batch") || v->batch == s->batch) &&
           (!tsr_setting_at(s, "seq") || !v->seq || v->seq == s->seq);
}

static tsr_status refuse_variant(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    char names[320], found[160];
    const char *checkpoint = checkpoint_of(s);
    tsr_traced_file_list(job->model.trace, names, sizeof names);
    if (s->model_variant) {
        snprintf(found, sizeof found, "%s", s->model_variant);
        return refuse(job, "model.variant", found, tsr_show_line(names).text);
    }
    if (!checkpoint)
        return tsr_node_error(tsr_job_at(job, "checkpoint.every"),
                              "checkpoint: found a choice that traces do not have; allowed: none, "
                              "full, selective_op or 2");
    bool batch = tsr_setting_at(s, "batch") != NULL, seq = tsr_setting_at(s, "seq") != NULL;
    snprintf(found, sizeof found, "%s", checkpoint);
    if (batch)
        snprintf(found, sizeof found, "%llu with checkpoint: %s", (unsigned long long)s->batch,
                 checkpoint);
    else if (seq)
        snprintf(found, sizeof found, "%llu with checkpoint: %s", (unsigned long long)s->seq,
                 checkpoint);
    return refuse(job,
                  batch ? "batch"
                  : seq ? "seq"
                        : "checkpoint.every",
                  found, tsr_show_line(names).text);
}

/* ---- what the trace decided ------------------------------------------------------------------ */

static tsr_status check_conditions(const struct tsr_job *job, const struct tsr_trace_variant *v)
{
    const struct tsr_settings *s = job->settings;
    if (s->master != TSR_F32)
        return tsr_node_error(
            tsr_job_at(job, "precision.master"),
            "precision.master: found %s beside model %s, which was traced with the "
            "dtypes that its function gave the parameters; allowed: f32, and weights "
            "in another dtype made there (model.to(torch.bfloat16), traced with "
            "--dtype bf16, precision.param: bf16)",
            tsr_dtype_name((tsr_dtype)s->master), job->model.name);
    tsr_dtype traced = v->param_dtype ? tsr_dtype_parse(v->param_dtype) : TSR_DTYPE_NONE;
    if (effective((tsr_dtype)s->param) != effective(traced))
        return refuse(job, "precision.param", torch_dtype((tsr_dtype)s->param),
                      v->param_dtype ? v->param_dtype : "none");
    if (s->cast_inputs != v->cast_inputs)
        return refuse(job, "precision.cast_inputs", s->cast_inputs ? "true" : "false",
                      v->cast_inputs ? "true" : "false");
    const struct {
        const char *key, *allowed;
        bool found;
    } misfits[] = {{"precision.linear", "plain", s->linear != TSR_LINEAR_PLAIN},
                   {"dialect", "eager", s->dialect != TSR_DIALECT_EAGER},
                   {"tp", "1", s->tp > 1},
                   {"loss.chunks", "1", s->loss_chunks > 1},
                   {"loss.kernel", "eager", s->loss_kernel != TSR_LOSS_EAGER},
                   {"loss.metrics", "0", s->metrics > 0},
                   {"phases", "without eval", s->phases >> TSR_SECTION_EVAL & 1},
                   /* Gradients of views are summed into flat ones by autograd, between hooks that a
                    * trace, made of modules with parameters of their own, does not have. */
                   {"api",
                    "fully_shard, replicate or ddp (PyTorch runs fsdp1, but on views of flat "
                    "parameters, whose gradients no trace has)",
                    s->api == TSR_API_FSDP1}};
    for (size_t i = 0; i < sizeof misfits / sizeof misfits[0]; i++) {
        char found[64] = "?";
        if (!misfits[i].found)
            continue;
        TSR_TRY(tsr_key_format(&tsr_keys[tsr_key_find(misfits[i].key)], s, found, sizeof found));
        return tsr_node_error(tsr_job_at(job, misfits[i].key),
                              "%s: found %s beside model %s, which was traced; allowed: %s",
                              misfits[i].key, found, job->model.name, misfits[i].allowed);
    }
    return TSR_OK;
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
        return tsr_node_error(tsr_job_at(job, "model.variant"),
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
    say_command(job, true, command, sizeof command);
    return tsr_node_error(tsr_job_at(job, "wrap"),
                          "strategy %s: wrap: found that %s; allowed: other modules, or another "
                          "trace (%s)",
                          job->strategy->name, text, command);
}

uint64_t tsr_job_tokens(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    if (job->model.variant)
        return job->model.variant->tokens * s->accum_steps;
    return s->batch * s->seq * s->accum_steps / s->tp; /* which work on the same tokens */
}
