/* trace_host.c: all ranks of a recorded scenario as threads that compute, from the scenario's
 * tensors (trace_tensors.c): what they computed, and the losses, norms and parameters of the
 * result. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/layout/tensor_parallel.h"
#include "exec/base/numeric.h"
#include "exec/host/host_device.h"
#include "experiments/cli/inspect/check_run.h"
#include "tests/player/events/trace.h"

enum { MAX_RANKS = 64 };

/* What is put together at the end: the parameters and the optimizer's state. */
static const enum tsr_param_part wholes[] = {TSR_PARAM_VALUE, TSR_PARAM_STATE0, TSR_PARAM_STATE1,
                                             TSR_PARAM_STATE2};
enum { N_WHOLE = sizeof wholes / sizeof *wholes };

/* What all ranks put together. Each writes only places of its own; rank 0 reads at the end. */
struct job {
    const struct tsr_scenario *scenario;
    struct tsr_gpus *gpus; /* NULL: the host computes */
    bool serial;           /* in the order of issue */
    struct tsr_trace_tensors tensors;
    uint32_t world, iters, micros;
    double *losses;          /* [iters][micros][world] */
    size_t n_params;         /* known once rank 0 has its engine */
    double *squares;         /* [iters][n_params][world]: of the gradient's local part */
    bool *has_grad;          /* [iters][n_params][world]: there is a gradient, of any value */
    float **values[N_WHOLE]; /* [n_params]: whole tensors, filled by all ranks */
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
        size_t cell = (iter * job->n_params + i) * job->world + r->rank;
        double sum = 0;
        if (!tsr_param_values(r->run.e, i, TSR_PARAM_GRAD, &v))
            continue;
        void *data;
        TSR_TRY(look(r, &v, &data));
        for (uint64_t k = 0; k < v.numel; k++)
            sum += load(data, v.dtype, k) * load(data, v.dtype, k);
        free(data);
        job->squares[cell] = is_first_holder(r, i) ? sum : 0;
        job->has_grad[cell] = true;
    }
    r->steps++;
    tsr_exec_set_scalar(r->executor, TSR_SCALAR_STEP, (double)r->steps);
    return TSR_OK;
}

static tsr_status put_values(struct rank *r, size_t i, int whole)
{
    struct tsr_values v;
    struct tsr_param_dtensor p;
    if (!tsr_param_values(r->run.e, i, wholes[whole], &v) || !is_first_holder(r, i))
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
        tsr_dtensor_put(&p.layout, r->rank, sizeof *local, local, r->job->values[whole][i]);
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
    const double values[TSR_N_SCALARS] = {[TSR_SCALAR_LR] = number_or(o, "lr", 1e-3),
                                          [TSR_SCALAR_BETA1] = beta[0],
                                          [TSR_SCALAR_BETA2] = beta[1],
                                          [TSR_SCALAR_EPS] = number_or(o, "eps", 1e-8),
                                          [TSR_SCALAR_WEIGHT_DECAY] =
                                              number_or(o, "weight_decay", adamw ? 1e-2 : 0),
                                          [TSR_SCALAR_MOMENTUM] = number_or(o, "momentum", 0),
                                          [TSR_SCALAR_DAMPENING] = number_or(o, "dampening", 0)};
    for (int i = 0; i < TSR_N_SCALARS; i++)
        tsr_exec_set_scalar(r->executor, (enum tsr_scalar)i, values[i]);
}

static uint64_t whole_numel(const struct tsr_param_layout *p)
{
    uint64_t numel = 1;
    for (int d = 0; d < p->n_dims; d++)
        numel *= p->shape[d];
    return numel;
}

static tsr_status make_lists(struct rank *r)
{
    struct job *job = r->job;
    size_t n = tsr_n_param_layouts(r->run.e), cells = job->iters * n * job->world;
    job->squares = calloc(cells + 1, sizeof *job->squares);
    job->has_grad = calloc(cells + 1, sizeof *job->has_grad);
    if (!job->squares || !job->has_grad)
        return tsr_no_memory(NULL);
    for (int w = 0; w < N_WHOLE; w++)
        if (!(job->values[w] = calloc(n + 1, sizeof *job->values[w])))
            return tsr_no_memory(NULL);
    job->n_params = n;
    for (size_t i = 0; i < n * N_WHOLE; i++) {
        struct tsr_param_layout p = tsr_param_layout(r->run.e, i % n);
        float **place = &job->values[i / n][i % n];
        *place = calloc(whole_numel(&p) + 1, sizeof **place);
        if (!*place)
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
    const struct tsr_host_rank_config host = {
        .world = r->world, .source = source, .serial = r->job->serial, .poison = true};
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
    r->run = (struct tsr_trace_run){.scenario = r->job->scenario, .executor = r->executor};
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
        for (int w = 0; w < N_WHOLE; w++)
            TSR_TRY(put_values(r, i, w));
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

/* Returns the norm of a gradient, which may be "nan" or "inf"; null: no rank has a gradient. */
static json_t *norm_of(const struct job *job, uint32_t iter, size_t param)
{
    size_t first = (iter * job->n_params + param) * job->world;
    double sum = 0;
    bool any = false;
    for (size_t cell = first; cell < first + job->world; cell++) {
        sum += job->squares[cell];
        any = any || job->has_grad[cell];
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

/* A tensor of the file that is written. */
struct tensor {
    struct tsr_param_layout param;
    const float *values;
    uint64_t numel;
    char name[1024];
};

/* Parameters, then their states (`state0.NAME` to `state2.NAME`); false: there is no such state. */
static bool tensor_of(const struct job *job, struct tsr_engine *e, size_t i, struct tensor *out)
{
    static const char *const prefix[N_WHOLE] = {"", "state0.", "state1.", "state2."};
    size_t whole = i / job->n_params, param = i % job->n_params;
    struct tsr_values v;
    out->param = tsr_param_layout(e, param);
    out->values = job->values[whole][param];
    out->numel = whole_numel(&out->param);
    snprintf(out->name, sizeof out->name, "%s%s", prefix[whole], out->param.fqn);
    return whole == 0 || tsr_param_values(e, param, wholes[whole], &v);
}

static tsr_status write_final(const struct job *job, struct tsr_engine *e, const char *path)
{
    struct tsr_safetensors_writer *w = NULL;
    struct tensor t;
    TSR_TRY(tsr_safetensors_create(path, NULL, &w));
    tsr_status status;
    for (size_t i = 0; i < job->n_params * N_WHOLE; i++)
        if (tensor_of(job, e, i, &t))
            TSR_GOTO(done, tsr_safetensors_declare(w, t.name, TSR_F32, t.param.n_dims,
                                                   t.param.shape, NULL));
    TSR_GOTO(done, tsr_safetensors_begin(w));
    for (size_t i = 0; i < job->n_params * N_WHOLE; i++)
        if (tensor_of(job, e, i, &t))
            TSR_GOTO(done, tsr_safetensors_put(w, t.name, t.values, 4 * t.numel));
    TSR_GOTO(done, tsr_safetensors_finish(w));

done:
    tsr_safetensors_destroy(w);
    return status;
}

static tsr_status add_final(const struct job *job, struct tsr_engine *e, const char *out,
                            json_t *result)
{
    char path[4096];
    snprintf(path, sizeof path, "%s.final.safetensors", out);
    TSR_TRY(write_final(job, e, path));
    const char *slash = strrchr(path, '/');
    json_object_set_new(result, "tensors", json_pack("{s:s}", "final", slash ? slash + 1 : path));
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
        tsr_note_races(job->scenario->name, &ranks[0].run.e, 1);
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
    else
        job.serial = tsr_trace_has_race(scenario);
    TSR_GOTO(done, run_ranks(&job, out, result));

done:
    if (gpus)
        gpus->close(job.gpus);
    for (int w = 0; w < N_WHOLE; w++) {
        for (size_t i = 0; i < job.n_params; i++)
            free(job.values[w][i]);
        free(job.values[w]);
    }
    free(job.squares);
    free(job.has_grad);
    free(job.losses);
    tsr_trace_tensors_close(&job.tensors);
    return status;
}
