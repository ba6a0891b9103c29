/* train_save.c: checkpoints of a run: what is saved beside the tensors, from begin to end; with
 * async_save by a thread beside training (async_save.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/files/checkpoint_impl.h"
#include "exec/train/async_save.h"
#include "exec/train/train_impl.h"

static void folder_of(const struct tsr_train *t, char *path, size_t size)
{
    snprintf(path, size, "%s/checkpoints", t->config.dir ? t->config.dir : ".");
}

/* ---- what training is ------------------------------------------------------------------------ */

/* Names, shapes and dtypes of all parameters. */
uint64_t tsr_train_model_hash(const struct tsr_state_dict *params)
{
    uint64_t hash = TSR_HASH_INIT;
    for (size_t i = 0; i < params->n; i++) {
        const struct tsr_state_entry *e = &params->entries[i];
        const struct tsr_dtensor *layout = &params->layouts[e->layout];
        hash = tsr_hash_bytes(hash, e->fqn, strlen(e->fqn));
        hash = tsr_hash_u64(hash, e->dtype);
        for (int d = 0; d < layout->n_dims; d++)
            hash = tsr_hash_u64(hash, layout->shape[d]);
    }
    return hash;
}

/* Random tokens follow from these, too. */
uint64_t tsr_train_data_hash(const struct tsr_train *t)
{
    uint64_t hash = tsr_hash_u64(TSR_HASH_INIT, t->config.seed);
    if (t->train)
        return tsr_data_hash(t->train);
    return tsr_hash_u64(tsr_hash_u64(hash, t->config.seq), t->config.n_vocab);
}

/* A double holds half of it exactly. */
static double low_half(uint64_t hash)
{
    return (double)(hash & UINT32_MAX);
}

static tsr_status check_same(struct tsr_train *t, const struct tsr_checkpoint_info *info)
{
    double data = 0;
    const char *path = tsr_checkpoint_path(t->from);
    if (info->model_hash != tsr_train_model_hash(&t->params))
        return tsr_fail(TSR_ECONFIG,
                        "%s: found the checkpoint of another model (names, shapes or dtypes of "
                        "parameters differ); allowed: the model of this run",
                        path);
    if (tsr_checkpoint_scalar(t->from, "data_hash", &data) &&
        data != low_half(tsr_train_data_hash(t)))
        return tsr_fail(
            TSR_ECONFIG,
            "%s: found other training data (files, seq, vocabulary, order or seed differ); "
            "allowed: the data of the run that is resumed",
            path);
    int saved = tsr_checkpoint_layout(t->from)->n_states;
    if (saved != t->config.n_states)
        return tsr_fail(TSR_ECONFIG,
                        "%s: found the states of another optimizer (%d for each parameter); "
                        "allowed: %d, as in the run that is resumed",
                        path, saved, t->config.n_states);
    return TSR_OK;
}

/* What the checkpoint says of each parameter's optimizer. */
static void set_steps(struct tsr_train *t)
{
    const struct tsr_checkpoint_layout *saved = tsr_checkpoint_layout(t->from);
    const struct tsr_state_entry *entries = saved->params->entries;
    bool is_old = false;
    tsr_set_optimizer_steps(t->engine, t->step);
    for (size_t k = 0; k < tsr_n_param_layouts(t->engine); k++) {
        struct tsr_param_layout p = tsr_param_layout(t->engine, k);
        const struct tsr_state_entry *e = tsr_state_dict_find(saved->params, p.fqn);
        if (!e)
            continue;
        size_t i = entries[e - entries].alias_of;
        bool is_unknown = !saved->stateless[i] && saved->steps[i] == TSR_STEPS_UNKNOWN;
        tsr_param_set_steps(t->engine, k,
                            saved->stateless[i] ? 0
                            : is_unknown        ? t->step
                                                : saved->steps[i]);
        is_old |= is_unknown;
    }
    if (is_old && t->config.n_states > 0)
        tsr_train_note(t,
                       "%s: it has one number of optimizer steps, %llu, which is taken for each "
                       "parameter",
                       tsr_checkpoint_path(t->from), (unsigned long long)t->step);
}

tsr_status tsr_train_load(struct tsr_train *t)
{
    double tokens = 0;
    if (!t->from)
        return TSR_OK;
    const struct tsr_checkpoint_info *info = tsr_checkpoint_info(t->from);
    TSR_TRY(check_same(t, info));
    t->step = tsr_checkpoint_step(t->from);
    t->position = info->data_position;
    if (tsr_checkpoint_scalar(t->from, "tokens", &tokens))
        t->tokens = (uint64_t)tokens;
    set_steps(t);
    TSR_TRY(tsr_load_run(t->engine, TSR_LOAD_SHARDED, t->config.n_states > 0));
    TSR_TRY(t->executor->ops->drain(t->executor));
    tsr_checkpoint_close(t->from);
    t->from = NULL;
    if (t->step >= t->config.schedule.total_steps)
        tsr_train_note(t, "%s: all %llu steps are done already (train.steps)", t->saved,
                       (unsigned long long)t->config.schedule.total_steps);
    else
        tsr_train_note(t, "going on behind step %llu: %s", (unsigned long long)t->step, t->saved);
    return TSR_OK;
}

/* ---- saving ---------------------------------------------------------------------------------- */

static tsr_status exchange(void *user, const void *in, void *out, size_t bytes)
{
    struct tsr_world *world = user;
    return world->ops->exchange(world, in, out, bytes);
}

/* As in PyTorch: states and steps of parameters that had a gradient. */
static tsr_status find_states(struct tsr_train *t)
{
    struct tsr_saving *s = &t->saving;
    s->stateless = calloc(t->params.n + 1, sizeof *s->stateless);
    s->steps = calloc(t->params.n + 1, sizeof *s->steps);
    if (!s->stateless || !s->steps)
        return tsr_no_memory("a checkpoint");
    for (size_t i = 0; i < t->params.n; i++)
        for (size_t k = 0; k < tsr_n_param_layouts(t->engine); k++) {
            struct tsr_param_layout p = tsr_param_layout(t->engine, k);
            if (strcmp(p.fqn, t->params.entries[i].fqn) != 0)
                continue;
            s->steps[i] = tsr_param_steps(t->engine, k);
            s->stateless[i] = s->steps[i] == 0;
        }
    return TSR_OK;
}

static tsr_status commit(struct tsr_train *t)
{
    const struct tsr_checkpoint_scalar scalars[] = {
        {"optimizer_step", (double)t->saving.step},
        {"tokens", (double)t->saving.tokens},
        {"data_hash", low_half(tsr_train_data_hash(t))}};
    const struct tsr_checkpoint_info info = {.model_hash = tsr_train_model_hash(&t->params),
                                             .seed = t->config.seed,
                                             .data_position = t->saving.position,
                                             .n_scalars = sizeof scalars / sizeof *scalars,
                                             .scalars = scalars};
    if (t->log)
        TSR_TRY(tsr_metric_log_sync(t->log));
    TSR_TRY(tsr_checkpoint_commit(t->writer, &info));
    if (tsr_checkpoint_trouble(t->writer))
        tsr_train_note(t, "%s", tsr_checkpoint_trouble(t->writer));
    return TSR_OK;
}

/* True if there is an infinity or a NaN: all bits of an exponent are set. */
static bool is_spoilt(tsr_dtype dtype, const void *data, uint64_t n)
{
    const uint16_t *half = data, mask = dtype == TSR_BF16 ? 0x7f80 : 0x7c00;
    const uint32_t *single = data;
    const uint64_t *twice = data, exponent = UINT64_C(0x7ff0000000000000);
    bool found = false;
    if (dtype == TSR_BF16 || dtype == TSR_F16)
        for (uint64_t i = 0; i < n; i++)
            found |= (half[i] & mask) == mask;
    else if (dtype == TSR_F32)
        for (uint64_t i = 0; i < n; i++)
            found |= (single[i] & 0x7f800000U) == 0x7f800000U;
    else if (dtype == TSR_F64)
        for (uint64_t i = 0; i < n; i++)
            found |= (twice[i] & exponent) == exponent;
    return found;
}

/* A piece that is saved: a parameter that is not finite is noted. */
static tsr_status put(struct tsr_train *t, const struct tsr_piece *piece, const void *data)
{
    uint64_t n = 1;
    for (int i = 0; i < piece->n_dims; i++)
        n *= piece->size[i];
    if (is_spoilt((tsr_dtype)piece->dtype, data, n))
        atomic_store(&t->spoilt_name, piece->name);
    return tsr_checkpoint_put_piece(t->writer, piece, data);
}

static uint64_t bytes_of(const struct tsr_piece *piece)
{
    uint64_t n = tsr_dtype_bytes((tsr_dtype)piece->dtype);
    for (int i = 0; i < piece->n_dims; i++)
        n *= piece->size[i];
    return n;
}

tsr_status tsr_train_write_piece(struct tsr_train *t, const struct tsr_piece *piece,
                                 const void *data, bool is_lent)
{
    if (!t->writer)
        return tsr_fail(TSR_EDEFECT, "a checkpoint is written, and none is open");
    if (t->saving.thread && is_lent)
        return tsr_async_save_lend(t->saving.thread, piece, data);
    if (t->saving.thread)
        return tsr_async_save_add(t->saving.thread, piece, data, bytes_of(piece));
    return put(t, piece, data);
}

/* A checkpoint of a model that is lost would only push out good ones. */
static tsr_status check_spoilt(struct tsr_train *t)
{
    size_t entry = 0;
    uint64_t name = atomic_exchange(&t->spoilt_name, 0);
    if (!name || !tsr__entry_by_hash(&t->params, name, &entry))
        return TSR_OK;
    return tsr_fail(TSR_EBACKEND,
                    "step %llu: parameter %s or its optimizer state is not finite, so that nothing "
                    "is saved",
                    (unsigned long long)t->saving.step, t->params.entries[entry].fqn);
}

/* ---- from begin to end ----------------------------------------------------------------------- */

static tsr_status put_later(void *user, const struct tsr_piece *piece, const void *data)
{
    return put(user, piece, data);
}

static tsr_status finish_later(void *user)
{
    return tsr_checkpoint_finish(((struct tsr_train *)user)->writer);
}

/* A folder that was moved away would be made again, and the run end up in two. All ranks. */
static tsr_status check_home(struct tsr_train *t)
{
    tsr_status status = TSR_OK;
    if (t->home.fd >= 0 && !tsr_folder_is_in_place(&t->home))
        status = tsr_fail(TSR_EIO,
                          "%s: the folder of this run was moved or removed while it ran; what was "
                          "written before is where that is now, and the run ends here",
                          t->home.path);
    return tsr_world_agree(t->config.world, status);
}

/* All ranks get a thread, or none. */
static tsr_status start_thread(struct tsr_train *t)
{
    tsr_status status = TSR_OK;
    if (!t->config.async_save && t->config.save != TSR_SAVE_SHARDED_ASYNC)
        return TSR_OK;
    status = tsr_async_save_start(put_later, finish_later, t, &t->saving.thread);
    return tsr_world_agree(t->config.world, status);
}

static tsr_status begin(struct tsr_train *t)
{
    char path[4096];
    folder_of(t, path, sizeof path);
    const struct tsr_checkpoint_config config = {.dir = path,
                                                 .keep = t->config.keep,
                                                 .rank = t->config.rank,
                                                 .world = t->config.world ? t->config.size : 1,
                                                 .exchange = t->config.world ? exchange : NULL,
                                                 .user = t->config.world};
    t->saving = (struct tsr_saving){.step = t->step, .position = t->position, .tokens = t->tokens};
    TSR_TRY(check_home(t));
    TSR_TRY(find_states(t));
    const struct tsr_checkpoint_layout layout = {.params = &t->params,
                                                 .n_states = t->config.n_states,
                                                 .state_dtype = t->config.state_dtype,
                                                 .stateless = t->saving.stateless,
                                                 .steps = t->saving.steps};
    TSR_TRY(tsr_path(t->saving.path, "%s/step_%08llu", path, (unsigned long long)t->step));
    TSR_TRY(tsr_checkpoint_begin(&config, t->step, &layout, &t->writer));
    return start_thread(t);
}

/* A rank whose thread has failed tells the others in commit(). */
static tsr_status end(struct tsr_train *t)
{
    if (t->saving.thread)
        (void)!tsr_async_save_wait(t->saving.thread);
    TSR_TRY(tsr_world_agree(t->config.world, check_spoilt(t)));
    TSR_TRY(commit(t));
    TSR_TRY(check_home(t));
    return tsr_path(t->saved, "%s", t->saving.path);
}

void tsr_train_drop_save(struct tsr_train *t)
{
    tsr_async_save_destroy(t->saving.thread);
    tsr_checkpoint_writer_destroy(t->writer);
    free(t->saving.stateless);
    free(t->saving.steps);
    t->writer = NULL;
    t->saving = (struct tsr_saving){.step = 0};
}

bool tsr_train_is_saving(const struct tsr_train *t)
{
    return t->saving.thread && !tsr_async_save_is_done(t->saving.thread);
}

tsr_status tsr_train_end_save(struct tsr_train *t)
{
    if (!t->writer)
        return TSR_OK;
    tsr_status status = end(t);
    tsr_train_drop_save(t);
    return status;
}

void tsr_train_close_save(struct tsr_train *t)
{
    if (t->saving.thread && !tsr_save_is_copying(t->engine))
        tsr_async_save_close(t->saving.thread);
}

void tsr_train_wait_for_thread(struct tsr_train *t)
{
    if (!t->saving.thread)
        return;
    tsr_async_save_close(t->saving.thread);
    (void)!tsr_async_save_wait(t->saving.thread);
}

tsr_status tsr_train_join_save(struct tsr_train *t)
{
    if (t->config.save != TSR_SAVE_SHARDED_ASYNC)
        return TSR_OK;
    TSR_TRY(tsr_step_cache_settle(t->steps));
    return tsr_save_end(t->engine);
}

/* Where the copies are made beside the next step, nobody waits for them here. */
static tsr_status write_all(struct tsr_train *t)
{
    TSR_TRY(begin(t));
    TSR_TRY(tsr_save_run(t->engine, t->config.save));
    if (t->config.save == TSR_SAVE_SHARDED_ASYNC)
        return TSR_OK;
    TSR_TRY(t->executor->ops->drain(t->executor));
    tsr_train_close_save(t);
    return TSR_OK;
}

tsr_status tsr_train_save(struct tsr_train *t)
{
    TSR_TRY(tsr_train_join_save(t)); /* one at a time */
    TSR_TRY(tsr_train_end_save(t));
    tsr_status status = write_all(t);
    if (status == TSR_OK && t->saving.thread)
        return TSR_OK;
    if (status == TSR_OK)
        return tsr_train_end_save(t);
    tsr_train_drop_save(t);
    return status;
}
