/* train.c: the loop: a step, what it lost, evaluation, when to save and when to end. */
#include "exec/train/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/program/base.h"
#include "exec/files/init.h"
#include "exec/kernels/grid/grid_initial.h"
#include "exec/train/train_impl.h"

double tsr_train_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the source ------------------------------------------------------------------------------ */

static tsr_status init(void *user, const struct tsr_piece *piece, void *out)
{
    struct tsr_train *t = user;
    if (t->weights)
        return tsr_weights_read_piece(t->weights, &t->config.hf, &t->params, piece, out);
    return tsr_init_piece(t->config.seed, piece, t->init_threads, out);
}

static struct tsr_batch_split split_of(const struct tsr_train *t)
{
    return (struct tsr_batch_split){.rank = t->config.data_rank,
                                    .world = t->config.data_size,
                                    .n_micro = t->config.n_micro,
                                    .micro_batch = t->config.micro_batch};
}

/* Without data: token i of sample p is a function of (seed, p, i). */
static void random_sample(const struct tsr_train *t, uint64_t position, bool labels, int64_t *out)
{
    const uint32_t key[2] = {(uint32_t)t->config.seed, (uint32_t)(t->config.seed >> 32)};
    for (uint64_t i = 0; i < t->config.seq; i++) {
        uint64_t at = i + labels;
        const uint32_t counter[4] = {(uint32_t)at, (uint32_t)(at >> 32), (uint32_t)position,
                                     (uint32_t)(position >> 32)};
        uint32_t words[4];
        tsr_philox(counter, key, words);
        out[i] = (int64_t)(words[0] % t->config.n_vocab);
    }
}

static tsr_status random_batch(const struct tsr_train *t, uint64_t position,
                               const struct tsr_batch_split *s, uint32_t micro, bool labels,
                               int64_t *out, uint64_t bytes)
{
    if (bytes != s->micro_batch * t->config.seq * sizeof *out)
        return tsr_fail(TSR_EDEFECT, "a batch of %llu bytes", (unsigned long long)bytes);
    uint64_t first = position + ((uint64_t)s->rank * s->n_micro + micro) * s->micro_batch;
    for (uint32_t row = 0; row < s->micro_batch; row++)
        random_sample(t, first + row, labels, out + row * t->config.seq);
    return TSR_OK;
}

static tsr_status batch(void *user, uint32_t iteration, uint32_t micro, enum tsr_batch_part part,
                        bool eval, tsr_dtype dtype, void *out, uint64_t bytes)
{
    struct tsr_train *t = user;
    struct tsr_batch_split split = split_of(t);
    (void)iteration; /* of the program; positions are counted here */
    if (eval) {
        split.n_micro = 1;
        return tsr_data_part(t->val, t->eval_position, &split, 0, part, dtype, out, bytes);
    }
    if (t->train)
        return tsr_data_part(t->train, t->position, &split, micro, part, dtype, out, bytes);
    if (dtype != TSR_I64)
        return tsr_fail(TSR_EUNSUPPORTED, "a model without token input needs data");
    return random_batch(t, t->position, &split, micro, part == TSR_BATCH_LABELS, out, bytes);
}

static tsr_status report(void *user, uint32_t iteration, uint32_t micro, enum tsr_report what,
                         bool eval, double value)
{
    struct tsr_train *t = user;
    (void)iteration;
    (void)micro;
    if (what == TSR_REPORT_GRAD_NORM) {
        t->norm = value;
        t->has_norm = true;
    } else if (eval) {
        t->eval_sum += value;
        t->n_evals++;
    } else {
        t->loss_sum += value;
        t->n_losses++;
    }
    return TSR_OK;
}

static tsr_status read_piece(void *user, const struct tsr_piece *piece, void *out)
{
    struct tsr_train *t = user;
    if (!t->from)
        return tsr_fail(TSR_EDEFECT, "a checkpoint is read, and none is open");
    return tsr_checkpoint_read_piece(t->from, &t->params, t->config.rank, piece, out);
}

static tsr_status write_piece(void *user, const struct tsr_piece *piece, const void *in)
{
    return tsr_train_write_piece(user, piece, in, false);
}

static tsr_status lend_piece(void *user, const struct tsr_piece *piece, const void *in)
{
    return tsr_train_write_piece(user, piece, in, true);
}

static tsr_status join_pieces(void *user)
{
    tsr_train_wait_for_thread(user);
    return TSR_OK;
}

struct tsr_source tsr_train_source(struct tsr_train *t)
{
    return (struct tsr_source){.user = t,
                               .init = init,
                               .init_seed = t->weights ? NULL : &t->config.seed,
                               .batch = batch,
                               .report = report,
                               .read = read_piece,
                               .write = write_piece,
                               .lend = lend_piece,
                               .join = join_pieces};
}

/* ---- opening --------------------------------------------------------------------------------- */

static tsr_status open_data(struct tsr_train *t)
{
    const struct tsr_train_config *c = &t->config;
    struct tsr_data_config data = {.files = c->train_files,
                                   .n_files = c->n_train_files,
                                   .seq = c->seq,
                                   .n_vocab = c->n_vocab,
                                   .seed = c->seed,
                                   .sequential = c->sequential};
    if (c->n_train_files)
        TSR_TRY(tsr_data_open(&data, &t->train));
    if (c->n_val_files == 0)
        return TSR_OK;
    data.files = c->val_files;
    data.n_files = c->n_val_files;
    data.sequential = true;
    return tsr_data_open(&data, &t->val);
}

static tsr_status open_all(struct tsr_train *t)
{
    TSR_TRY(tsr_schedule_check(&t->config.schedule));
    if (t->config.dir && t->config.rank == 0)
        TSR_TRY(tsr_folder_open(t->config.dir, &t->home));
    TSR_TRY(open_data(t));
    if (t->config.weights)
        TSR_TRY(tsr_weights_open(t->config.weights, &t->weights));
    return TSR_OK;
}

tsr_status tsr_train_create(const struct tsr_train_config *config, struct tsr_train **out)
{
    *out = NULL;
    struct tsr_train *t = calloc(1, sizeof *t);
    if (!t)
        return tsr_no_memory("training");
    t->config = *config;
    t->home = TSR_NO_FOLDER;
    tsr_status status = tsr_world_agree(config->world, open_all(t));
    if (status == TSR_OK && config->resume_from)
        status = tsr_train_open_checkpoint(t);
    if (status != TSR_OK) {
        tsr_train_destroy(t);
        return status;
    }
    *out = t;
    return TSR_OK;
}

void tsr_train_destroy(struct tsr_train *t)
{
    if (!t)
        return;
    tsr_step_cache_destroy(t->steps);
    tsr_train_drop_save(t);
    tsr_checkpoint_close(t->from);
    tsr_metric_log_close(t->log);
    tsr_weights_close(t->weights);
    tsr_data_close(t->train);
    tsr_data_close(t->val);
    tsr_folder_close(&t->home);
    if (t->has_params)
        tsr_state_dict_fini(&t->params);
    free(t);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void set_scalars(struct tsr_train *t, double lr, uint64_t step)
{
    const struct tsr_train_config *c = &t->config;
    const double values[TSR_N_SCALARS] = {[TSR_SCALAR_LR] = lr,
                                          [TSR_SCALAR_BETA1] = c->beta1,
                                          [TSR_SCALAR_BETA2] = c->beta2,
                                          [TSR_SCALAR_EPS] = c->eps,
                                          [TSR_SCALAR_WEIGHT_DECAY] = c->weight_decay,
                                          [TSR_SCALAR_MOMENTUM] = c->momentum,
                                          [TSR_SCALAR_DAMPENING] = c->dampening,
                                          [TSR_SCALAR_STEP] = (double)step,
                                          [TSR_SCALAR_MAX_NORM] = c->max_norm};
    for (int i = 0; i < TSR_N_SCALARS; i++)
        tsr_exec_set_scalar(t->executor, (enum tsr_scalar)i, values[i]);
}

/* Before anything is computed. */
static tsr_status compare_ranks(struct tsr_train *t)
{
    struct tsr_world *world = t->config.world;
    if (!world)
        return TSR_OK;
    TSR_TRY(tsr_world_same(world, "the job", t->config.config_hash));
    TSR_TRY(tsr_world_same(world, "the model", tsr_train_model_hash(&t->params)));
    TSR_TRY(tsr_world_same(world, "the training data", tsr_train_data_hash(t)));
    return tsr_world_same(world, "the held-out data", t->val ? tsr_data_hash(t->val) : 0);
}

/* Ranks of one machine share its cores. */
static tsr_status count_init_threads(struct tsr_train *t)
{
    struct tsr_world *world = t->config.world;
    char name[256] = "";
    t->init_threads = tsr_init_threads(1);
    if (!world)
        return TSR_OK;
    (void)gethostname(name, sizeof name - 1);
    uint64_t mine = tsr_hash_bytes(TSR_HASH_INIT, name, strlen(name));
    uint64_t *all = malloc(world->size * sizeof *all);
    if (!all)
        return tsr_no_memory("the names of the machines");
    tsr_status status = world->ops->exchange(world, &mine, all, sizeof mine);
    uint32_t n = 0;
    for (uint32_t i = 0; status == TSR_OK && i < world->size; i++)
        n += all[i] == mine;
    free(all);
    t->init_threads = tsr_init_threads(n);
    return status;
}

static tsr_status start(struct tsr_train *t)
{
    tsr_exec_set_tables(t->executor, tsr_engine_tables(t->engine));
    TSR_TRY(tsr_state_dict_of(t->engine, NULL, &t->params));
    t->has_params = true;
    TSR_TRY(compare_ranks(t));
    TSR_TRY(count_init_threads(t));
    if (t->weights)
        TSR_TRY(tsr_weights_check(t->weights, &t->config.hf, &t->params));
    set_scalars(t, 0, 1);
    TSR_TRY(tsr_engine_init_params(t->engine));
    TSR_TRY(tsr_train_load(t));
    return t->executor->ops->drain(t->executor);
}

/* Once. */
static void tell_graphs(struct tsr_train *t)
{
    const char *why = t->told_graphs ? NULL : tsr_exec_graph_refusal(t->executor);
    if (!why)
        return;
    tsr_train_note(t, "not all of a step runs as CUDA graphs: %s", why);
    t->told_graphs = true;
}

static tsr_status run_step(struct tsr_train *t, struct tsr_train_vote *vote)
{
    const struct tsr_train_config *c = &t->config;
    double begin = tsr_train_clock(), lr = tsr_learning_rate(&c->schedule, t->step);
    double waited = tsr_exec_waited(t->executor);
    struct tsr_batch_split split = split_of(t);
    t->loss_sum = 0;
    t->n_losses = 0;
    t->norm = NAN;
    t->has_norm = false;
    set_scalars(t, lr, t->step + 1);
    TSR_TRY(tsr_step_run_cached(t->steps, (uint32_t)(t->step & 0xffff)));
    tell_graphs(t);
    tsr_train_close_save(t);
    t->step++;
    if (c->after_step)
        TSR_TRY(c->after_step(c->after_step_user, t->executor, t->step));
    t->position += tsr_global_batch(&split);
    t->tokens += tsr_global_batch(&split) * c->seq;
    *vote = (struct tsr_train_vote){.loss = t->n_losses ? t->loss_sum / t->n_losses : NAN,
                                    .norm = t->norm,
                                    .has_norm = t->has_norm,
                                    .stop = c->stop && *c->stop,
                                    .saving = tsr_train_is_saving(t)};
    TSR_TRY(tsr_train_agree(t, vote));
    waited = tsr_exec_waited(t->executor) - waited;
    TSR_TRY(tsr_train_log_step(t, vote, lr, tsr_train_clock() - begin, waited));
    TSR_TRY(tsr_train_check(t, vote));
    return vote->saving ? TSR_OK : tsr_train_end_save(t);
}

static tsr_status evaluate(struct tsr_train *t, double *loss)
{
    double begin = tsr_train_clock();
    struct tsr_batch_split split = split_of(t);
    TSR_TRY(tsr_step_cache_settle(t->steps));
    split.n_micro = 1;
    uint64_t batch = tsr_global_batch(&split), most = tsr_data_samples(t->val) / batch;
    uint64_t n = tsr_min_u64(t->config.eval_batches, tsr_max_u64(most, 1));
    t->eval_sum = 0;
    t->n_evals = 0;
    for (uint64_t i = 0; i < n; i++) {
        t->eval_position = i * batch;
        TSR_TRY(tsr_eval_run(t->engine));
    }
    struct tsr_train_vote vote = {.loss = t->n_evals ? t->eval_sum / t->n_evals : NAN};
    TSR_TRY(tsr_train_agree(t, &vote));
    *loss = vote.loss;
    TSR_TRY(tsr_train_log_eval(t, vote.loss, tsr_train_clock() - begin));
    return tsr_train_check(t, &vote);
}

/* Saving is no training: its time does not count in tokens per second. */
static tsr_status save(struct tsr_train *t)
{
    double begin = tsr_train_clock();
    TSR_TRY(tsr_step_cache_settle(t->steps));
    TSR_TRY(tsr_train_save(t));
    t->last_log += tsr_train_clock() - begin;
    return TSR_OK;
}

static bool is_due(uint64_t step, uint64_t every)
{
    return every && step % every == 0;
}

static tsr_status run_all(struct tsr_train *t, struct tsr_train_result *r)
{
    const struct tsr_train_config *c = &t->config;
    uint64_t end = c->schedule.total_steps;
    while (t->step < end && !r->stopped) {
        struct tsr_train_vote vote;
        TSR_TRY(run_step(t, &vote));
        r->loss = vote.loss;
        r->stopped = vote.stop && t->step < end;
        bool last = t->step == end;
        if (t->val && c->eval_every && (last || is_due(t->step, c->eval_every)))
            TSR_TRY(evaluate(t, &r->eval_loss));
        if (c->dir && ((last && !c->leave_last) || r->stopped || is_due(t->step, c->save_every)))
            TSR_TRY(save(t));
    }
    TSR_TRY(tsr_train_join_save(t));
    TSR_TRY(t->executor->ops->drain(t->executor));
    return tsr_train_end_save(t);
}

#define SAFE         "the last checkpoint is "
#define NOTHING_SAFE "no checkpoint was saved"

static tsr_status say_what_is_safe(const struct tsr_train *t, tsr_status status)
{
    char why[512];
    snprintf(why, sizeof why, "%s", tsr_error_text());
    if (strstr(why, SAFE) || strstr(why, NOTHING_SAFE)) /* as another rank said */
        return status;
    return tsr_fail(status, "%s; %s%s", why, t->saved[0] ? SAFE : NOTHING_SAFE, t->saved);
}

tsr_status tsr_train_run(struct tsr_train *t, struct tsr_engine *engine,
                         struct tsr_executor *executor, struct tsr_train_result *result)
{
    *result = (struct tsr_train_result){.loss = NAN, .eval_loss = NAN};
    t->engine = engine;
    t->executor = executor;
    t->started = t->last_log = tsr_train_clock();
    TSR_TRY(tsr_step_cache_create(engine, &t->steps));
    TSR_TRY(start(t));
    if (t->config.when_ready)
        TSR_TRY(t->config.when_ready(t->config.when_ready_user));
    TSR_TRY(tsr_train_open_log(t));
    result->first_step = t->logged_step = t->step;
    result->had_ended = t->step >= t->config.schedule.total_steps;
    t->last_log = tsr_train_clock();
    tsr_status status = run_all(t, result);
    result->last_step = t->step;
    if (status != TSR_OK) {
        status = say_what_is_safe(t, status);
        tsr_train_drop_save(t); /* names in it are the engine's */
        return status;
    }
    if (t->saved[0] && !result->had_ended)
        tsr_train_note(t, "saved after step %llu: %s", (unsigned long long)t->step, t->saved);
    return TSR_OK;
}

/* ---- the learning rate ----------------------------------------------------------------------- */

tsr_status tsr_schedule_check(const struct tsr_schedule *s)
{
    if (!(s->base >= 0) || !isfinite(s->base))
        return tsr_fail(TSR_ECONFIG, "learning rate is %g; allowed: a number from 0 on", s->base);
    if (!(s->min_ratio >= 0 && s->min_ratio <= 1))
        return tsr_fail(TSR_ECONFIG, "minimum ratio of the learning rate is %g; allowed: 0 to 1",
                        s->min_ratio);
    if (s->total_steps == 0)
        return tsr_fail(TSR_ECONFIG, "number of steps is 0; allowed: from 1 on");
    if (s->warmup_steps > s->total_steps)
        return tsr_fail(TSR_ECONFIG,
                        "train.warmup: found %" PRIu64 "; allowed: up to train.steps, %" PRIu64,
                        s->warmup_steps, s->total_steps);
    return TSR_OK;
}

double tsr_schedule_factor(const struct tsr_schedule *s, uint64_t step)
{
    static const double pi = 3.14159265358979323846;
    if (step < s->warmup_steps)
        return (double)(step + 1) / (double)(s->warmup_steps + 1);
    if (s->kind == TSR_SCHEDULE_CONSTANT)
        return 1;
    step = tsr_min_u64(step, s->total_steps);
    double p =
        (double)(step + 1 - s->warmup_steps) / (double)(s->total_steps - s->warmup_steps + 1);
    double shape = s->kind == TSR_SCHEDULE_LINEAR ? 1 - p : 0.5 * (1 + cos(pi * p));
    return s->min_ratio + (1 - s->min_ratio) * shape;
}

double tsr_learning_rate(const struct tsr_schedule *s, uint64_t step)
{
    return s->base * tsr_schedule_factor(s, step);
}
