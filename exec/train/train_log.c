/* train_log.c: what the ranks tell each other after a step, the metrics file and the console. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "exec/train/metrics.h"
#include "exec/train/train_impl.h"
#include "sim/base/text.h"

/* ---- agreeing -------------------------------------------------------------------------------- */

static tsr_status gather(struct tsr_train *t, const struct tsr_train_vote *mine,
                         struct tsr_train_vote *all)
{
    struct tsr_world *world = t->config.world;
    if (world)
        return world->ops->exchange(world, mine, all, sizeof *mine);
    all[0] = *mine;
    return TSR_OK;
}

/* The first bad rank counts. */
static void add_vote(struct tsr_train_vote *mean, const struct tsr_train_vote *one, uint32_t rank)
{
    bool finite = isfinite(one->loss) && (!one->has_norm || isfinite(one->norm));
    if (!finite && !mean->bad)
        mean->bad = rank + 1;
    mean->loss += one->loss;
    mean->stop |= one->stop;
    mean->saving |= one->saving;
}

tsr_status tsr_train_agree(struct tsr_train *t, struct tsr_train_vote *vote)
{
    uint32_t size = t->config.world ? t->config.size : 1;
    struct tsr_train_vote *all = calloc(size, sizeof *all);
    struct tsr_train_vote mean = {.norm = vote->norm, .has_norm = vote->has_norm};
    if (!all)
        return tsr_no_memory("the losses of all ranks");
    tsr_status status = gather(t, vote, all);
    for (uint32_t i = 0; status == TSR_OK && i < size; i++)
        add_vote(&mean, &all[i], i);
    free(all);
    TSR_TRY(status);
    mean.loss /= size; /* the norm is of all gradients: the same on every rank */
    *vote = mean;
    return TSR_OK;
}

static const char *word_for(double value)
{
    return isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

tsr_status tsr_train_check(const struct tsr_train *t, const struct tsr_train_vote *vote)
{
    if (!vote->bad)
        return TSR_OK;
    if (t->config.world) /* all know of it before one leaves */
        (void)!tsr_world_barrier(t->config.world);
    if (isfinite(vote->loss))
        return tsr_fail(TSR_EBACKEND, "step %llu: the norm of the gradients on rank %u is %s",
                        (unsigned long long)t->step, vote->bad - 1, word_for(vote->norm));
    return tsr_fail(TSR_EBACKEND, "step %llu: the loss of rank %u is %s",
                    (unsigned long long)t->step, vote->bad - 1, word_for(vote->loss));
}

void tsr_train_note(const struct tsr_train *t, const char *fmt, ...)
{
    char line[1024];
    va_list args;
    if (!t->config.notes || t->config.rank != 0)
        return;
    va_start(args, fmt);
    (void)vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    fputs("tessera: ", t->config.notes);
    tsr_text_put(t->config.notes, line);
    fputc('\n', t->config.notes);
}

/* ---- writing --------------------------------------------------------------------------------- */

tsr_status tsr_train_open_log(struct tsr_train *t)
{
    char path[TSR_PATH_BYTES];
    if (!t->config.dir || t->config.rank != 0)
        return TSR_OK;
    /* What another folder has of the steps before is not expected in this one. */
    bool same = t->config.resume_from && tsr_folder_is_same(t->config.resume_from, t->config.dir);
    TSR_TRY(tsr_path(path, "%s/metrics.jsonl", t->config.dir));
    TSR_TRY(tsr_metric_log_open(path, t->step, same ? t->config.log_every : 0, &t->log));
    if (*tsr_metric_log_remark(t->log))
        tsr_train_note(t, "%s", tsr_metric_log_remark(t->log));
    return TSR_OK;
}

static struct tsr_step_record record_of(struct tsr_train *t, const struct tsr_train_vote *vote,
                                        double lr, double step_s, double waited_s)
{
    struct tsr_step_record r = tsr_step_record_of(t->step, vote->loss);
    struct tsr_exec_memory memory = tsr_exec_memory(t->executor);
    double now = tsr_train_clock(),
           tokens = (double)t->config.seq * t->config.n_micro * t->config.micro_batch;
    double seconds = (now - t->last_log) / (double)(t->step - t->logged_step);
    r.has_grad_norm = vote->has_norm;
    r.grad_norm = vote->norm;
    r.lr = lr;
    r.tokens = t->tokens;
    r.tokens_per_second = tokens / seconds;
    if (t->config.flops_per_token)
        r.tflops = 1e-12 * (double)t->config.flops_per_token * r.tokens_per_second;
    r.memory_allocated = memory.peak_allocated;
    r.memory_reserved = memory.peak_mapped;
    if (t->config.memory_capacity)
        r.memory_capacity = t->config.memory_capacity;
    r.modelled_device = true;
    r.step_s = step_s;
    r.host_s = step_s - waited_s;
    r.time_s = now - t->started;
    r.slow_paths = tsr_exec_count_slow(t->executor);
    return r;
}

tsr_status tsr_train_log_step(struct tsr_train *t, const struct tsr_train_vote *vote, double lr,
                              double step_s, double waited_s)
{
    bool last = t->step == t->config.schedule.total_steps || vote->stop || vote->bad;
    bool due = t->config.log_every && t->step % t->config.log_every == 0;
    if (t->config.rank != 0 || !(due || last))
        return TSR_OK;
    const struct tsr_step_record r = record_of(t, vote, lr, step_s, waited_s);
    if (t->log)
        TSR_TRY(tsr_metric_log_step(t->log, &r));
    if (t->config.console)
        TSR_TRY(tsr_console_step(t->config.console, tsr_console_has_colour(t->config.console), &r));
    t->last_log = tsr_train_clock();
    t->logged_step = t->step;
    return TSR_OK;
}

tsr_status tsr_train_log_eval(struct tsr_train *t, double loss, double seconds)
{
    uint64_t tokens = (uint64_t)t->n_evals * t->config.micro_batch * t->config.seq;
    if (t->config.rank != 0)
        return TSR_OK;
    if (t->log)
        TSR_TRY(tsr_metric_log_eval(t->log, t->step, loss, tokens * t->config.data_size));
    if (t->config.console)
        TSR_TRY(tsr_console_eval(t->config.console, tsr_console_has_colour(t->config.console),
                                 t->step, loss, (double)tokens / seconds));
    t->last_log += seconds; /* evaluating is no training */
    return TSR_OK;
}
