/* overlap_what_if.c: changes of a strategy that may hide its communication, each simulated; and the
 * overlap of a step with them as a JSON object.
 *
 * Two rows are no settings but bounds: an infinitely fast host, and links of twice the rate. They
 * say how much there is to gain by a lighter host or a better network.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/explain/what_if.h"
#include "experiments/study/job/job.h"
#include "experiments/study/overlap/overlap.h"

enum { MAX_CHANGES = 24 };
#define NONE     TSR_OVERLAP_NONE /* shorter, for the table */
#define NUMBERS  TSR_OVERLAP_NUMBERS
#define BATCH    TSR_OVERLAP_BATCH
#define IMAGINED TSR_OVERLAP_IMAGINED
enum who { ANY, SHARDS, GROUPS, LISTS, FLAT, DDP, ACCUMULATES };

static const struct choice {
    const char *words;
    enum tsr_overlap_effect effect;
    enum who who;
    enum tsr_key_id key;
    const char *value;
} choices[] = {
    {"prefetch one group in forward", NONE, LISTS, TSR_K_FORWARD_PREFETCH, "1"},
    {"prefetch two groups in forward", NONE, LISTS, TSR_K_FORWARD_PREFETCH, "2"},
    {"prefetch one group in backward", NONE, LISTS, TSR_K_BACKWARD_PREFETCH, "1"},
    {"prefetch two groups in backward", NONE, LISTS, TSR_K_BACKWARD_PREFETCH, "2"},
    {"prefetch in forward", NONE, FLAT, TSR_K_FSDP1_FORWARD_PREFETCH, "true"},
    {"prefetch when a backward begins", NONE, FLAT, TSR_K_FSDP1_BACKWARD_PREFETCH, "pre"},
    {"prefetch when gradients are there", NONE, FLAT, TSR_K_FSDP1_BACKWARD_PREFETCH, "post"},
    {"no limit on all-gathers", NONE, FLAT, TSR_K_FSDP1_LIMIT_ALL_GATHERS, "false"},
    {"fully_shard", NONE, FLAT, TSR_K_API, "fully_shard"},
    {"buckets of 100 MiB", NONE, DDP, TSR_K_DDP_BUCKET_CAP_MB, "100"},
    {"buckets of 10 MiB", NONE, DDP, TSR_K_DDP_BUCKET_CAP_MB, "10"},
    {"keep parameters after forward", NONE, SHARDS, TSR_K_RESHARD_AFTER_FORWARD, "false"},
    {"keep parameters after forward", NONE, FLAT, TSR_K_RESHARD_AFTER_FORWARD, "false"},
    {"gather embedding and head apart", NONE, GROUPS, TSR_K_WRAP, "block_embed_head"},
    {"own communicator for reduce-scatter", NONE, SHARDS, TSR_K_SEPARATE_REDUCE_SCATTER_GROUP,
     "true"},
    {"reduce with the last micro-batch", NONE, ACCUMULATES, TSR_K_ACCUMULATION_MODE, "no_reduce"},
    {"reduce in bf16", NUMBERS, ANY, TSR_K_PRECISION_REDUCE, "bf16"},
    {"a hardware queue per stream", NONE, ANY, TSR_K_SIM_CUDA_DEVICE_MAX_CONNECTIONS, "0"},
    {"no synchronisation in the step", NONE, ANY, TSR_K_SYNC_EACH_STEP, "none"},
    {"communication that slows no kernel", IMAGINED, ANY,
     TSR_K_SIM_CALIBRATION_COMM_COMPUTE_SLOWDOWN, "0"},
    {"an infinitely fast host", IMAGINED, ANY, TSR_K_SIM_HOST_SCALE, "0"},
};

/* One change; the texts that its variant points to lie in it. */
struct change {
    const char *words;
    enum tsr_overlap_effect effect;
    struct tsr_variant variant;
    char values[TSR_OVERLAP_SETS][TSR_WHAT_IF_VALUE];
    struct tsr_what_if_result result;
    double gain; /* of tokens per second; as a share */
};

struct study {
    struct tsr_experiment *experiment;
    const struct tsr_job *job;
    struct change changes[MAX_CHANGES];
    size_t n;
};

/* ---- candidates -------------------------------------------------------------------------- */

static struct change *begin(struct study *study, const char *words, enum tsr_overlap_effect effect)
{
    TSR_CHECK(study->n < MAX_CHANGES);
    struct change *change = &study->changes[study->n];
    *change = (struct change){.words = words, .effect = effect};
    return change;
}

static void set(struct change *change, enum tsr_key_id key, const char *value)
{
    tsr_variant_add(&change->variant, change->values, TSR_OVERLAP_SETS, tsr_keys[key].name, value);
}

static void set_number(struct change *change, enum tsr_key_id key, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.17g", value);
    set(change, key, text);
}

/* Keeps the change unless the strategy has it already. */
static void end(struct study *study)
{
    struct change *change = &study->changes[study->n];
    struct tsr_strategy changed;
    if (!change->variant.n || tsr_variant_apply(study->experiment, study->job->strategy,
                                                &change->variant, &changed) != TSR_OK)
        return;
    study->n += !tsr_what_if_equal(&change->variant, study->job->settings, &changed.settings);
}

static bool applies(const struct tsr_settings *s, enum who who)
{
    switch (who) {
    case SHARDS:
        return s->api == TSR_API_FULLY_SHARD;
    case GROUPS:
        return s->api != TSR_API_DDP;
    case DDP:
        return s->api == TSR_API_DDP;
    case LISTS:
        return s->api == TSR_API_FULLY_SHARD || s->api == TSR_API_REPLICATE;
    case FLAT:
        return s->api == TSR_API_FSDP1;
    case ACCUMULATES:
        return s->api != TSR_API_DDP && s->accum_steps > 1;
    default:
        return true;
    }
}

/* The last set has the mesh: "[16, 8]" has a dimension of replicas, "[128]" and "null" do not. */
static const char *mesh_words(const struct tsr_what_if *mesh)
{
    return strchr(mesh->values[mesh->variant.n - 1], ',') ? "HSDP: replicas of a smaller group"
                                                          : "one group instead of replicas (HSDP)";
}

static void list(struct study *study)
{
    const struct tsr_settings *s = study->job->settings;
    const struct tsr_cluster *c = &study->job->cluster;
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        if (!applies(s, choices[i].who) || !tsr_job_reads(study->job, choices[i].key))
            continue;
        set(begin(study, choices[i].words, choices[i].effect), choices[i].key, choices[i].value);
        end(study);
    }
    struct tsr_what_if mesh = {0};
    if (tsr_what_if_other_mesh(study->job, &mesh)) {
        struct change *other = begin(study, mesh_words(&mesh), NONE);
        for (size_t i = 0; i < mesh.variant.n; i++)
            tsr_variant_add(&other->variant, other->values, TSR_OVERLAP_SETS,
                            mesh.variant.set[i].key, mesh.values[i]);
        end(study);
    }
    if (s->api == TSR_API_FULLY_SHARD && s->tp <= 1) {
        struct change *tp = begin(study, "tensor parallelism over two GPUs", NONE);
        set(tp, TSR_K_TP, "2");
        set_number(tp, TSR_K_BATCH, 2.0 * (double)s->batch); /* the same tokens per GPU and step */
        end(study);
    }
    set_number(begin(study, "twice the micro-batch", BATCH), TSR_K_BATCH, 2.0 * (double)s->batch);
    end(study);
    struct change *links = begin(study, "links of twice the rate", IMAGINED);
    double intra = s->sim.intra_bw > 0 ? s->sim.intra_bw : c->intra_bw;
    double nic = s->sim.nic_bw > 0 ? s->sim.nic_bw : c->nic_bw;
    if (intra > 0)
        set_number(links, TSR_K_SIM_INTRA_BW, 2 * intra);
    if (nic > 0)
        set_number(links, TSR_K_SIM_NIC_BW, 2 * nic);
    end(study);
}

/* ---- results ----------------------------------------------------------------------------- */

static tsr_status simulate(struct study *study, const struct tsr_row *row, uint64_t jobs)
{
    const struct tsr_variant *variants[MAX_CHANGES];
    struct tsr_what_if_result results[MAX_CHANGES];
    for (size_t i = 0; i < study->n; i++)
        variants[i] = &study->changes[i].variant;
    TSR_TRY(tsr_what_if_run(study->experiment, study->job->strategy, variants, study->n, jobs, true,
                            results));
    double base = row->steady.step_s > 0 ? (double)row->tokens_per_rank / row->steady.step_s : 0.0;
    for (size_t i = 0; i < study->n; i++) {
        struct change *change = &study->changes[i];
        const struct tsr_what_if_result *r = &results[i];
        change->result = *r;
        change->gain = -1;
        if (!r->status && r->step_s > 0 && base > 0)
            change->gain = (double)r->tokens_per_rank / r->step_s / base - 1;
    }
    return TSR_OK;
}

static int by_gain(const void *a, const void *b)
{
    const struct change *x = a, *y = b;
    if ((x->result.status != 0) != (y->result.status != 0))
        return x->result.status ? 1 : -1;
    return x->gain != y->gain ? (x->gain < y->gain) - (x->gain > y->gain)
                              : strcmp(x->words, y->words);
}

static void fill(const struct change *from, struct tsr_overlap_change *out)
{
    const struct tsr_what_if_result *r = &from->result;
    *out = (struct tsr_overlap_change){.words = from->words,
                                       .effect = from->effect,
                                       .n_sets = from->variant.n,
                                       .failed = r->status != 0,
                                       .step_s = r->step_s,
                                       .exposed_s = r->exposed_s,
                                       .gain = from->gain,
                                       .fits = r->fits};
    for (size_t i = 0; i < from->variant.n; i++)
        snprintf(out->sets[i], sizeof out->sets[i], "%s=%s", from->variant.set[i].key,
                 from->values[i]);
    snprintf(out->failure, sizeof out->failure, "%s", r->failure);
}

tsr_status tsr_overlap_what_if(struct tsr_experiment *experiment, const struct tsr_job *job,
                               const struct tsr_row *row, uint64_t jobs,
                               struct tsr_overlap_result *out)
{
    struct study *study = calloc(1, sizeof *study);
    tsr_status status = TSR_OK;
    if (!study)
        return tsr_no_memory("what-ifs");
    study->experiment = experiment;
    study->job = job;
    list(study);
    TSR_GOTO(done, simulate(study, row, jobs));
    qsort(study->changes, study->n, sizeof *study->changes, by_gain);
    out->changes = calloc(study->n + 1, sizeof *out->changes);
    if (!out->changes)
        TSR_GOTO(done, tsr_no_memory("what-ifs"));
    for (size_t i = 0; i < study->n; i++)
        fill(&study->changes[i], &out->changes[i]);
    out->n_changes = study->n;
    out->has_changes = true;
    out->step_s = row->steady.step_s;
    out->exposed_s = row->steady.exposed_s;
    out->tokens_per_rank = row->tokens_per_rank;
done:
    free(study);
    return status;
}

/* ---- the overlap as an object ---------------------------------------------------------------- */

static json_t *why_json(const double why[TSR_N_EXPOSURES])
{
    json_t *out = json_object();
    char key[64];
    for (int i = 0; i < TSR_N_EXPOSURES; i++) {
        snprintf(key, sizeof key, "%s_s", tsr_exposure_key(i));
        json_object_set_new(out, key, json_real(why[i]));
    }
    return out;
}

static json_t *total_json(const char *kind, const struct tsr_overlap_total *total)
{
    return json_pack("{s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:o}", "kind", kind, "collectives",
                     (json_int_t)total->n, "bytes", (json_int_t)total->bytes, "seconds",
                     total->seconds, "hidden_s", total->hidden, "exposed_s", total->exposed,
                     "beside_s", total->beside, "why", why_json(total->why));
}

static json_t *row_json(const struct tsr_overlap_row *row)
{
    enum tsr_exposure main = tsr_overlap_main_reason(row->why);
    json_t *out = json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:s, s:s, s:I}", "kind", tsr_overlap_kind_key(row->kind), "name",
        row->name, "module", row->module, "phase", row->phase, "micro_batch", (int)row->micro,
        "stream", row->stream, "communicator", row->comm, "bytes", (json_int_t)row->bytes);
    if (!out)
        return NULL;
    json_object_set_new(out, "issue_s", json_real(row->issue));
    json_object_set_new(out, "start_s", json_real(row->start));
    json_object_set_new(out, "end_s", json_real(row->end));
    json_object_set_new(out, "hidden_s", json_real(row->hidden));
    json_object_set_new(out, "exposed_s", json_real(row->exposed));
    json_object_set_new(out, "beside_s", json_real(row->beside));
    json_object_set_new(
        out, "reason", main == TSR_N_EXPOSURES ? json_null() : json_string(tsr_exposure_key(main)));
    json_object_set_new(out, "why", why_json(row->why));
    return out;
}

static json_t *change_json(const struct tsr_overlap_change *change)
{
    static const char *const effects[] = {"none", "numbers", "batch", "imagined"};
    json_t *sets = json_array();
    for (size_t i = 0; i < change->n_sets; i++)
        json_array_append_new(sets, json_string(change->sets[i]));
    bool known = !change->failed;
    json_t *out =
        json_pack("{s:s, s:s, s:o, s:o}", "words", change->words, "effect", effects[change->effect],
                  "set", sets, "failure", known ? json_null() : json_string(change->failure));
    json_object_set_new(out, "step_s", known ? json_real(change->step_s) : json_null());
    json_object_set_new(out, "exposed_s", known ? json_real(change->exposed_s) : json_null());
    json_object_set_new(out, "gain_share", known ? json_real(change->gain) : json_null());
    json_object_set_new(out, "fits",
                        known && change->fits >= 0 ? json_boolean(change->fits) : json_null());
    json_object_set_new(out, "verdict",
                        known ? json_string(tsr_fits_word(change->fits)) : json_null());
    return out;
}

static json_t *changes_json(const struct tsr_overlap_result *overlap)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < overlap->n_changes; i++)
        json_array_append_new(rows, change_json(&overlap->changes[i]));
    return json_pack("{s:f, s:f, s:I, s:o}", "step_s", overlap->step_s, "exposed_s",
                     overlap->exposed_s, "tokens_per_rank", (json_int_t)overlap->tokens_per_rank,
                     "rows", rows);
}

json_t *tsr_overlap_json(const char *run, const struct tsr_overlap_result *overlap)
{
    const struct tsr_overlap_table *table = &overlap->table;
    json_t *kinds = json_array(), *rows = json_array();
    for (int i = 0; i < TSR_N_OVERLAP_KINDS; i++)
        if (table->kinds[i].n)
            json_array_append_new(kinds, total_json(tsr_overlap_kind_key(i), &table->kinds[i]));
    for (size_t i = 0; i < table->n; i++)
        json_array_append_new(rows, row_json(&table->rows[i]));
    const struct {
        const char *key;
        double seconds;
    } times[] = {{"step_s", table->step_s},
                 {"compute_s", table->compute_s},
                 {"communication_s", table->comm_s},
                 {"exposed_s", table->exposed_s},
                 {"exposed_share", table->step_s > 0 ? table->exposed_s / table->step_s : 0.0},
                 {"host_bound_s", table->host_bound_s},
                 {"unlaunched_s", table->unlaunched_s}};
    json_t *out = json_pack("{s:s, s:s, s:b}", "run", run, "title", table->title, "measured",
                            table->measured);
    for (size_t i = 0; out && i < sizeof times / sizeof *times; i++)
        json_object_set_new(out, times[i].key, json_real(times[i].seconds));
    json_object_set_new(out, "rank", table->has_rank ? json_integer(table->rank) : json_null());
    bool slow = table->slow_factor != 0 && table->slow_factor != 1;
    json_object_set_new(out, "slow_rank", slow ? json_integer(table->slow_rank) : json_null());
    json_object_set_new(out, "slow_factor", slow ? json_real(table->slow_factor) : json_null());
    json_object_set_new(out, "total", total_json("all", &table->all));
    json_object_set_new(out, "kinds", kinds);
    json_object_set_new(out, "collectives", rows);
    if (overlap->has_changes)
        json_object_set_new(out, "what_if", changes_json(overlap));
    return out;
}
