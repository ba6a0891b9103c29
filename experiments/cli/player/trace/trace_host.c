/* trace_host.c: all ranks of a recorded scenario as threads that compute: their tensors (initial
 * parameters and data, as a source for an executor), what they computed, and the losses, norms
 * and parameters of the result. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/layout/tensor_parallel.h"
#include "exec/base/numeric.h"
#include "exec/host/host_device.h"
#include "experiments/cli/player/trace/trace.h"

/* ---- files of tensors ------------------------------------------------------------------------ */

/* scenarios/NAME.json names files relative to the folder above it. */
static tsr_status open_beside(const char *path, const char *name, struct tsr_safetensors **out)
{
    char full[4096];
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) : 1;
    snprintf(full, sizeof full, "%.*s/../%s", folder, slash ? path : ".", name);
    return tsr_safetensors_open(full, out);
}

/* `path`: the scenario's file. */
static void tsr_trace_tensors_close(struct tsr_trace_tensors *t)
{
    tsr_safetensors_close(t->init);
    tsr_safetensors_close(t->data);
    *t = (struct tsr_trace_tensors){0};
}

/* `path`: the scenario's file. */
static tsr_status tsr_trace_tensors_open(const struct tsr_scenario *s, const char *path,
                                         struct tsr_trace_tensors *out)
{
    const struct tsr_yaml_node *tensors = tsr_node_get(s->doc.root, "tensors");
    const char *init = tsr_text_or(tensors, "init", NULL);
    const char *data = tsr_text_or(tensors, "data", NULL);
    const struct tsr_yaml_node *model = tsr_node_get(s->doc.root, "model");
    *out =
        (struct tsr_trace_tensors){.shifts = strcmp(tsr_text_or(model, "kind", ""), "tree") != 0,
                                   .seq = tsr_u64_or(tsr_node_get(s->doc.root, "train"), "seq", 1)};
    if (!init || !data)
        return tsr_node_error(tensors ? tensors : s->doc.root,
                              "tensors: found no init or data; allowed: the names of two files");
    tsr_status status = open_beside(path, init, &out->init);
    if (status == TSR_OK)
        status = open_beside(path, data, &out->data);
    if (status != TSR_OK)
        tsr_trace_tensors_close(out);
    return status;
}

/* ---- initial values -------------------------------------------------------------------------- */

static const struct tsr_st_tensor *find_hashed(const struct tsr_safetensors *file, uint64_t hash)
{
    for (size_t i = 0; i < tsr_safetensors_count(file); i++) {
        const struct tsr_st_tensor *t = tsr_safetensors_tensor(file, i);
        if (tsr_hash_bytes(TSR_HASH_INIT, t->name, strlen(t->name)) == hash)
            return t;
    }
    return NULL;
}

static void store(void *out, tsr_dtype dtype, size_t i, float value)
{
    switch (dtype) {
    case TSR_BF16:
        ((uint16_t *)out)[i] = tsr_to_bf16(value);
        break;
    case TSR_F16:
        ((uint16_t *)out)[i] = tsr_to_f16(value);
        break;
    case TSR_F64:
        ((double *)out)[i] = value;
        break;
    default:
        ((float *)out)[i] = value;
        break;
    }
}

/* The box of a row-major tensor, rounded to the parameter's dtype. */
static void take_box(const struct tsr_piece *p, const float *whole, void *out)
{
    uint64_t stride[TSR_PIECE_DIMS], at[TSR_PIECE_DIMS] = {0}, n = 1, step = 1;
    for (int d = TSR_PIECE_DIMS - 1; d >= 0; d--) {
        stride[d] = step;
        step *= p->shape[d];
        n *= p->size[d];
    }
    for (uint64_t i = 0; i < n; i++) {
        uint64_t from = 0;
        for (int d = 0; d < TSR_PIECE_DIMS; d++)
            from += (d < p->n_dims ? p->start[d] + at[d] : 0) * stride[d];
        store(out, (tsr_dtype)p->dtype, i, whole[from]);
        for (int d = TSR_PIECE_DIMS - 1; d >= 0 && ++at[d] == p->size[d]; d--)
            at[d] = 0;
    }
}

static tsr_status init(void *user, const struct tsr_piece *piece, void *out)
{
    struct tsr_trace_reader *r = user;
    const struct tsr_st_tensor *t = find_hashed(r->tensors->init, piece->name);
    uint64_t numel = 1;
    for (int d = 0; d < TSR_PIECE_DIMS; d++)
        numel *= piece->shape[d];
    if (!t || t->dtype != TSR_F32 || t->bytes != 4 * numel)
        return tsr_fail(TSR_ECONFIG, "%s: tensor %s: found no f32 tensor of %" PRIu64 " elements",
                        tsr_safetensors_path(r->tensors->init), t ? t->name : "of a parameter",
                        numel);
    float *whole = malloc(t->bytes + 1);
    if (!whole)
        return tsr_no_memory(NULL);
    tsr_status status = tsr_safetensors_read(r->tensors->init, t, 0, whole, t->bytes);
    if (status == TSR_OK)
        take_box(piece, whole, out);
    free(whole);
    return status;
}

/* ---- batches --------------------------------------------------------------------------------- */

/* The last token of a sequence has no successor. */
static void shift_tokens(int64_t *tokens, uint64_t n, uint64_t seq)
{
    for (uint64_t i = 0; i < n; i++)
        tokens[i] = i % seq + 1 < seq ? tokens[i + 1] : -100;
}

static tsr_status batch(void *user, uint32_t iteration, uint32_t micro, enum tsr_batch_part part,
                        bool eval, tsr_dtype dtype, void *out, uint64_t bytes)
{
    struct tsr_trace_reader *r = user;
    bool shifts = part == TSR_BATCH_LABELS && r->tensors->shifts;
    char name[64];
    (void)eval;
    snprintf(name, sizeof name, "%s.%u.%u", part == TSR_BATCH_INPUT || shifts ? "input" : "target",
             iteration, micro);
    const struct tsr_st_tensor *t = tsr_safetensors_find(r->tensors->data, name);
    if (!t || t->dtype != dtype || t->bytes != bytes * r->world)
        return tsr_fail(TSR_ECONFIG,
                        "%s: tensor %s: found %" PRIu64 " bytes; needed: %" PRIu64 " of %s",
                        tsr_safetensors_path(r->tensors->data), name, t ? t->bytes : 0,
                        bytes * r->world, tsr_dtype_name(dtype));
    TSR_TRY(tsr_safetensors_read(r->tensors->data, t, bytes * r->rank, out, bytes));
    if (shifts)
        shift_tokens(out, bytes / sizeof(int64_t), r->tensors->seq);
    return TSR_OK;
}

static struct tsr_source tsr_trace_source(struct tsr_trace_reader *reader)
{
    return (struct tsr_source){.user = reader, .init = init, .batch = batch};
}

enum { MAX_RANKS = 64 };

/* What all ranks put together. Each writes only places of its own; rank 0 reads at the end. */
struct job {
    const struct tsr_scenario *scenario;
    struct tsr_gpus *gpus; /* NULL: the host computes */
    struct tsr_trace_tensors tensors;
    uint32_t world, iters, micros;
    double *losses;  /* [iters][micros][world] */
    size_t n_params; /* known once rank 0 has its engine */
    double *squares; /* [iters][n_params][world]: of the gradient's local part; NaN: none */
    float **values;  /* [n_params]: whole parameters, filled by all ranks */
};

struct rank {
    struct job *job;
    uint32_t rank;
    struct tsr_world *world;
    struct tsr_executor *executor;
    struct tsr_trace_run run;
    struct tsr_trace_reader reader;
    uint64_t steps;
    tsr_status status;
    char text[512];
};

/* ---- reading values -------------------------------------------------------------------------- */

static double load(const void *data, tsr_dtype dtype, uint64_t i)
{
    switch (dtype) {
    case TSR_BF16:
        return tsr_from_bf16(((const uint16_t *)data)[i]);
    case TSR_F16:
        return tsr_from_f16(((const uint16_t *)data)[i]);
    case TSR_F64:
        return ((const double *)data)[i];
    default:
        return ((const float *)data)[i];
    }
}

/* A copy of them; to be freed. */
static tsr_status look(struct rank *r, const struct tsr_values *v, void **out)
{
    uint64_t bytes = v->numel * tsr_dtype_bytes(v->dtype);
    *out = malloc(bytes + 1);
    if (!*out)
        return tsr_no_memory(NULL);
    tsr_status status = tsr_exec_read(r->executor, v->buffer, v->offset, bytes, *out);
    if (status != TSR_OK)
        free(*out);
    return status;
}

/* Ranks that hold the same as one before them do not count. */
static bool is_first_holder(struct rank *r, size_t i)
{
    struct tsr_param_dtensor p;
    if (tsr_param_dtensor(r->run.e, i, &p) != TSR_OK)
        return false;
    for (int d = 0; d < p.layout.n_mesh; d++)
        if (p.layout.place[d].kind == TSR_PLACE_REPLICATE &&
            r->rank / p.layout.mesh[d].stride % p.layout.mesh[d].size != 0)
            return false;
    return p.layout.n_mesh > 0 || r->rank == 0;
}

static double *loss_place(const struct job *job, uint32_t iter, uint32_t micro)
{
    return job->losses + ((size_t)iter * job->micros + micro) * job->world;
}

static tsr_status take_report(void *user, uint32_t iteration, uint32_t micro, enum tsr_report what,
                              bool eval, double value)
{
    const struct tsr_trace_reader *reader = user;
    struct rank *r = reader->user;
    (void)eval;
    if (what == TSR_REPORT_LOSS)
        loss_place(r->job, iteration, micro)[r->rank] = value;
    return TSR_OK;
}

static tsr_status gradients(void *user, uint32_t iter)
{
    struct rank *r = user;
    struct job *job = r->job;
    TSR_TRY(r->executor->ops->drain(r->executor));
    for (size_t i = 0; i < job->n_params; i++) {
        struct tsr_values v;
        double *place = job->squares + (iter * job->n_params + i) * job->world + r->rank, sum = 0;
        if (!tsr_param_values(r->run.e, i, TSR_PARAM_GRAD, &v))
            continue;
        void *data;
        TSR_TRY(look(r, &v, &data));
        for (uint64_t k = 0; k < v.numel; k++)
            sum += load(data, v.dtype, k) * load(data, v.dtype, k);
        free(data);
        *place = is_first_holder(r, i) ? sum : 0;
    }
    r->steps++;
    tsr_exec_set_scalar(r->executor, TSR_SCALAR_STEP, (double)r->steps);
    return TSR_OK;
}

static tsr_status put_values(struct rank *r, size_t i)
{
    struct tsr_values v;
    struct tsr_param_dtensor p;
    if (!tsr_param_values(r->run.e, i, TSR_PARAM_VALUE, &v) || !is_first_holder(r, i))
        return TSR_OK;
    TSR_TRY(tsr_param_dtensor(r->run.e, i, &p));
    void *data;
    TSR_TRY(look(r, &v, &data));
    float *local = malloc((v.numel + 1) * sizeof *local);
    for (uint64_t k = 0; local && k < v.numel; k++)
        local[k] = (float)load(data, v.dtype, k);
    free(data);
    if (!local)
        return tsr_no_memory(NULL);
    tsr_status status =
        tsr_dtensor_put(&p.layout, r->rank, sizeof *local, local, r->job->values[i]);
    free(local);
    return status;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static double number_or(const struct tsr_yaml_node *map, const char *key, double fallback)
{
    double value;
    const struct tsr_yaml_node *node = tsr_node_get(map, key);
    return node && tsr_node_double(node, &value) ? value : fallback;
}

static void set_scalars(struct rank *r)
{
    const struct tsr_yaml_node *o =
        tsr_node_get(tsr_node_get(r->job->scenario->doc.root, "train"), "optimizer");
    const struct tsr_yaml_node *betas = tsr_node_get(o, "betas");
    bool adamw = !strcmp(tsr_text_or(o, "name", "sgd"), "adamw");
    double beta[2] = {0.9, 0.999};
    for (size_t i = 0; betas && betas->kind == TSR_NODE_SEQ && i < betas->n && i < 2; i++)
        tsr_node_double(betas->items[i], &beta[i]);
    const double values[TSR_N_SCALARS] = {
        [TSR_SCALAR_LR] = number_or(o, "lr", 1e-3),
        [TSR_SCALAR_BETA1] = beta[0],
        [TSR_SCALAR_BETA2] = beta[1],
        [TSR_SCALAR_EPS] = number_or(o, "eps", 1e-8),
        [TSR_SCALAR_WEIGHT_DECAY] = number_or(o, "weight_decay", adamw ? 1e-2 : 0),
        [TSR_SCALAR_MOMENTUM] = number_or(o, "momentum", 0),
        [TSR_SCALAR_DAMPENING] = number_or(o, "dampening", 0),
        [TSR_SCALAR_MAXIMIZE] = tsr_bool_or(o, "maximize", false)};
    for (int i = 0; i < TSR_N_SCALARS; i++)
        tsr_exec_set_scalar(r->executor, (enum tsr_scalar)i, values[i]);
}

static tsr_status make_lists(struct rank *r)
{
    struct job *job = r->job;
    size_t n = tsr_n_param_layouts(r->run.e), cells = job->iters * n * job->world;
    job->values = calloc(n + 1, sizeof *job->values);
    job->squares = malloc((cells + 1) * sizeof *job->squares);
    if (!job->values || !job->squares)
        return tsr_no_memory(NULL);
    job->n_params = n;
    for (size_t i = 0; i < cells; i++)
        job->squares[i] = NAN;
    for (size_t i = 0; i < n; i++) {
        struct tsr_param_layout p = tsr_param_layout(r->run.e, i);
        uint64_t numel = 1;
        for (int d = 0; d < p.n_dims; d++)
            numel *= p.shape[d];
        job->values[i] = calloc(numel + 1, sizeof **job->values);
        if (!job->values[i])
            return tsr_no_memory(NULL);
    }
    return TSR_OK;
}

/* Rank 0 makes the lists that all write to. */
static tsr_status ready(void *user)
{
    struct rank *r = user;
    if (r->rank == 0)
        TSR_TRY(make_lists(r));
    return tsr_world_barrier(r->world);
}

static tsr_status make_executor(struct rank *r, const struct tsr_source *source)
{
    struct tsr_device *device;
    const struct tsr_gpu_rank gpu = {.rank = r->rank, .world = r->world, .source = source};
    const struct tsr_host_rank_config host = {.world = r->world, .source = source, .poison = true};
    if (r->job->gpus)
        return r->job->gpus->ops->rank(r->job->gpus, &gpu, &r->executor, &device);
    return tsr_host_rank_create(&host, &r->executor);
}

static tsr_status start_rank(struct rank *r)
{
    r->reader = (struct tsr_trace_reader){&r->job->tensors, r->rank, r->job->world, r};
    struct tsr_source source = tsr_trace_source(&r->reader);
    source.report = take_report;
    TSR_TRY(make_executor(r, &source));
    r->run.scenario = r->job->scenario;
    r->run.executor = r->executor;
    TSR_TRY(tsr_trace_create(&r->run, r->rank));
    tsr_exec_set_tables(r->executor, tsr_engine_tables(r->run.e));
    set_scalars(r);
    return TSR_OK;
}

static tsr_status run_rank(struct rank *r)
{
    const struct tsr_trace_probe probe = {r, ready, gradients};
    r->run.probe = &probe;
    TSR_TRY(tsr_trace_train(&r->run));
    TSR_TRY(r->executor->ops->drain(r->executor));
    for (size_t i = 0; i < r->job->n_params; i++)
        TSR_TRY(put_values(r, i));
    return TSR_OK;
}

static void *rank_main(void *user)
{
    struct rank *r = user;
    r->status = start_rank(r);
    if (r->status == TSR_OK)
        r->status = run_rank(r);
    if (r->status != TSR_OK) {
        snprintf(r->text, sizeof r->text, "%s", tsr_error_text());
        r->world->ops->abort(r->world, r->status, r->text);
    }
    return NULL;
}

/* ---- the result ------------------------------------------------------------------------------ */

static void add_losses(const struct job *job, json_t *result)
{
    json_t *means = json_array(), *all = json_array();
    for (uint32_t i = 0; i < job->iters; i++) {
        json_t *mean = json_array(), *each = json_array();
        for (uint32_t m = 0; m < job->micros; m++) {
            const double *losses = loss_place(job, i, m);
            json_t *ranks = json_array();
            double sum = 0;
            for (uint32_t r = 0; r < job->world; r++) {
                sum += losses[r];
                json_array_append_new(ranks, tsr_trace_number(losses[r]));
            }
            json_array_append_new(mean, tsr_trace_number(sum / job->world));
            json_array_append_new(each, ranks);
        }
        json_array_append_new(means, mean);
        json_array_append_new(all, each);
    }
    json_object_set_new(result, "loss", means);
    json_object_set_new(result, "loss_per_rank", all);
}

static json_t *norm_of(const struct job *job, uint32_t iter, size_t param)
{
    const double *squares = job->squares + (iter * job->n_params + param) * job->world;
    double sum = 0;
    bool any = false;
    for (uint32_t r = 0; r < job->world; r++)
        if (!isnan(squares[r])) {
            sum += squares[r];
            any = true;
        }
    return any ? tsr_trace_number(sqrt(sum)) : json_null();
}

static void add_norms(const struct job *job, struct tsr_engine *e, json_t *result)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < job->iters; i++) {
        json_t *norms = json_object();
        for (size_t p = 0; p < job->n_params; p++)
            json_object_set_new(norms, tsr_param_layout(e, p).fqn, norm_of(job, i, p));
        json_array_append_new(list, norms);
    }
    json_object_set_new(result, "grad_norm", list);
}

static tsr_status write_final(const struct job *job, struct tsr_engine *e, const char *path)
{
    struct tsr_safetensors_writer *w = NULL;
    TSR_TRY(tsr_safetensors_create(path, NULL, &w));
    tsr_status status;
    for (size_t i = 0; i < job->n_params; i++) {
        struct tsr_param_layout p = tsr_param_layout(e, i);
        TSR_GOTO(done, tsr_safetensors_declare(w, p.fqn, TSR_F32, p.n_dims, p.shape, NULL));
    }
    TSR_GOTO(done, tsr_safetensors_begin(w));
    for (size_t i = 0; i < job->n_params; i++) {
        struct tsr_param_layout p = tsr_param_layout(e, i);
        uint64_t numel = 1;
        for (int d = 0; d < p.n_dims; d++)
            numel *= p.shape[d];
        TSR_GOTO(done, tsr_safetensors_put(w, p.fqn, job->values[i], 4 * numel));
    }
    TSR_GOTO(done, tsr_safetensors_finish(w));

done:
    tsr_safetensors_destroy(w);
    return status;
}

static tsr_status add_final(const struct job *job, struct tsr_engine *e, const char *out,
                            json_t *result)
{
    char path[4096];
    const char *slash = strrchr(out, '/');
    snprintf(path, sizeof path, "%s.final.safetensors", out);
    TSR_TRY(write_final(job, e, path));
    const char *name = slash ? path + (slash - out) + 1 : path;
    json_object_set_new(result, "tensors", json_pack("{s:s}", "final", name));
    return TSR_OK;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

/* The rank that failed by itself says why; the others only lost it. */
static tsr_status first_failure(const struct rank *ranks, uint32_t n)
{
    const struct rank *worst = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (ranks[i].status != TSR_OK && (!worst || worst->status == TSR_EPEER))
            worst = &ranks[i];
    return worst ? tsr_fail(worst->status, "%s", worst->text) : TSR_OK;
}

static tsr_status run_ranks(struct job *job, const char *out, json_t *result)
{
    struct tsr_world *worlds[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    struct rank *ranks = calloc(job->world, sizeof *ranks);
    if (!ranks)
        return tsr_no_memory(NULL);
    tsr_status status = tsr_world_threads(job->world, 60, worlds);
    if (status != TSR_OK) {
        free(ranks);
        return status;
    }
    for (uint32_t i = 0; i < job->world; i++) {
        ranks[i].job = job;
        ranks[i].rank = i;
        ranks[i].world = worlds[i];
        if (pthread_create(&threads[i], NULL, rank_main, &ranks[i]) != 0)
            tsr_check_failed("pthread_create", __FILE__, __LINE__);
    }
    for (uint32_t i = 0; i < job->world; i++)
        pthread_join(threads[i], NULL);
    status = first_failure(ranks, job->world);
    if (status == TSR_OK) {
        tsr_trace_add_run(result, &ranks[0].run);
        add_losses(job, result);
        add_norms(job, ranks[0].run.e, result);
        status = add_final(job, ranks[0].run.e, out, result);
    }
    /* streams that failed may still refer to names of the engine: they end first */
    for (uint32_t i = 0; i < job->world; i++)
        if (ranks[i].executor)
            ranks[i].executor->ops->destroy(ranks[i].executor);
    for (uint32_t i = 0; i < job->world; i++) {
        tsr_trace_fini(&ranks[i].run);
        worlds[i]->ops->destroy(worlds[i]);
    }
    free(ranks);
    return status;
}

tsr_status tsr_trace_on_host(const struct tsr_scenario *scenario, const char *path, const char *out,
                             const struct tsr_gpu_ops *gpus, json_t *result)
{
    const struct tsr_yaml_node *train = tsr_node_get(scenario->doc.root, "train");
    struct job job = {.scenario = scenario,
                      .world = 1,
                      .iters = (uint32_t)tsr_u64_or(train, "iters", 1),
                      .micros = (uint32_t)tsr_u64_or(train, "micro", 1)};
    for (int i = 0; i < scenario->mesh.n_dims; i++)
        job.world *= scenario->mesh.shape[i];
    if (job.world > MAX_RANKS)
        return tsr_fail(TSR_ECONFIG, "mesh: found %u ranks; allowed as threads: up to %d",
                        job.world, MAX_RANKS);
    TSR_TRY(tsr_trace_tensors_open(scenario, path, &job.tensors));
    job.losses = calloc((size_t)job.iters * job.micros * job.world + 1, sizeof *job.losses);
    tsr_status status = job.losses ? TSR_OK : tsr_no_memory(NULL);
    if (!job.losses)
        goto done;
    if (gpus)
        TSR_GOTO(done, gpus->share(job.world, &job.gpus));
    TSR_GOTO(done, run_ranks(&job, out, result));

done:
    if (gpus)
        gpus->close(job.gpus);
    for (size_t i = 0; i < job.n_params; i++)
        free(job.values[i]);
    free(job.values);
    free(job.squares);
    free(job.losses);
    tsr_trace_tensors_close(&job.tensors);
    return status;
}
