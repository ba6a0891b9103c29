/* validated.c: says how good predicted times are: where they come from, the error of what was
 * measured, or that no error is known (validated.h). */
#include "experiments/study/report/validated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/json.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/report/validated_class.h"

static const char *const node_words[] = {"one", "many"};

/* ---- sources ----------------------------------------------------------------------------- */

/* "tables sm90 of h100-sxm5-80g, h200 of h200-sxm" */
static void put_tables(const struct tsr_gpu *gpu, char *out, size_t size)
{
    size_t used = 0;
    snprintf(out, size, "no table");
    for (uint32_t i = 0; i < tsr_gpu_kernels(gpu)->n_files && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s of %s", i ? ", " : "tables ",
                                 tsr_gpu_kernels(gpu)->files[i].name,
                                 tsr_gpu_kernels(gpu)->files[i].card.name);
}

/* "fitted by X on Y", or what stands for it. */
static void put_calibration(const struct tsr_calibration *c, enum tsr_calibration_id id, char *out,
                            size_t size)
{
    bool data = c->data[id][0] != '\0';
    snprintf(out, size, "%s%s%s%s", c->source[id], data ? " (" : "", c->data[id], data ? ")" : "");
}

tsr_status tsr_time_sources(const struct tsr_job *job, struct tsr_arena *arena, const char **out)
{
    char tables[512], kernels[600], links[600];
    const struct tsr_gpu *gpu = &job->cluster.gpu;
    bool many = job->world > job->cluster.gpus_per_node;
    put_tables(gpu, tables, sizeof tables);
    put_calibration(&gpu->calibration, TSR_CAL_MATMUL_SUSTAINED, kernels, sizeof kernels);
    put_calibration(&gpu->calibration, many ? TSR_CAL_INTER_EFFICIENCY : TSR_CAL_INTRA_EFFICIENCY,
                    links, sizeof links);
    *out = tsr_arena_printf(arena,
                            "kernels: %s, sustained rates %s; collectives: NCCL's tuner, rates %s",
                            tables, kernels, links);
    return *out ? TSR_OK : tsr_no_memory(NULL);
}

/* ---- the groups of a study ------------------------------------------------------------------- */

/* True if an error stands in the group of `v`: what is known is of one class, what is not known is
 * one group. */
static bool belongs(const struct tsr_validated *v, const struct tsr_time_error *e)
{
    const struct tsr_time_error *first = &v->first;
    return !strcmp(first->api, e->api) && !strcmp(first->gpu, e->gpu) &&
           first->many_nodes == e->many_nodes && first->extrapolated == e->extrapolated &&
           (e->extrapolated || first->nearest == e->nearest);
}

static void join_group(struct tsr_validated *v, const struct tsr_time_error *e)
{
    v->beyond |= tsr_decisive_differences(e->differs);
    if (e->nodes > v->largest.nodes)
        v->largest = *e;
    if (e->nearest != v->first.nearest) /* of another class: it has differences of its own */
        return;
    uint64_t any = v->differs | v->some_differ | e->differs;
    v->differs &= e->differs;
    v->some_differ = any & ~v->differs;
}

tsr_status tsr_validated_group(const struct tsr_measured_classes *all,
                               const struct tsr_time_error *errors, size_t n,
                               struct tsr_arena *arena, const struct tsr_validated **out,
                               size_t *n_out)
{
    struct tsr_validated *groups = tsr_arena_alloc(arena, (n + 1) * sizeof *groups);
    size_t n_groups = 0;
    if (!groups)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        if (!errors[i].is_predicted)
            continue;
        while (k < n_groups && !belongs(&groups[k], &errors[i]))
            k++;
        if (k == n_groups)
            groups[n_groups++] =
                (struct tsr_validated){.first = errors[i],
                                       .largest = errors[i],
                                       .nearest = *tsr_measured_class(all, &errors[i]),
                                       .differs = errors[i].differs};
        join_group(&groups[k], &errors[i]);
    }
    *out = groups;
    *n_out = n_groups;
    return TSR_OK;
}

tsr_status tsr_validated_of(const struct tsr_job *jobs, size_t n, struct tsr_arena *arena,
                            const struct tsr_validated **out, size_t *n_out)
{
    struct tsr_time_error *errors = calloc(n + 1, sizeof *errors);
    if (!errors)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < n; i++)
        tsr_time_error_of(&jobs[i], &errors[i]);
    tsr_status status =
        tsr_validated_group(n ? jobs[0].experiment->measured : NULL, errors, n, arena, out, n_out);
    free(errors);
    return status;
}

/* ---- beside a comparison --------------------------------------------------------------------- */

enum { SHOWN_DIFFERENCES = 8 };

/* "card, model.norm, and 3 more" */
static void put_differences(FILE *out, uint64_t set)
{
    unsigned n = 0;
    for (unsigned i = 0; tsr_difference_name(i); i++) {
        if (!(set >> i & 1))
            continue;
        if (n < SHOWN_DIFFERENCES)
            fprintf(out, "%s%s", n ? ", " : "", tsr_difference_name(i));
        n++;
    }
    if (n > SHOWN_DIFFERENCES)
        fprintf(out, " and %u more", n - SHOWN_DIFFERENCES);
}

/* "fully_shard on h100-sxm5-96g-500w, 8 GPUs, llama, torchtitan-2024-12" */
static void put_class(FILE *out, const struct tsr_measured_class *c)
{
    fprintf(out, "%s on %s, %u", c->api, c->gpu, (unsigned)c->min_gpus);
    if (c->max_gpus > c->min_gpus)
        fprintf(out, " to %u", (unsigned)c->max_gpus);
    fprintf(out, " GPU%s, %s, %s", c->max_gpus > 1 ? "s" : "", c->models,
            *c->stack ? c->stack : "no stack");
}

static bool same_class(const struct tsr_measured_class *a, const struct tsr_measured_class *b)
{
    return a->rows == b->rows && a->min_gpus == b->min_gpus && a->max_gpus == b->max_gpus &&
           !strcmp(a->api, b->api) && !strcmp(a->gpu, b->gpu) && !strcmp(a->models, b->models) &&
           !strcmp(a->stack, b->stack) && !strcmp(a->source, b->source);
}

/* `before`: of the lines above this one. */
static void put_measured(FILE *out, const struct tsr_validated *before, size_t n_before,
                         const struct tsr_measured_class *c)
{
    for (size_t i = 0; i < n_before; i++)
        if (same_class(&before[i].nearest, c)) {
            fprintf(out, "measured: as for %s", before[i].first.api);
            return;
        }
    fputs("measured: ", out);
    put_class(out, c);
    fprintf(out, ": median %.1f %%, 90 %% within %.1f %%, largest %.1f %% (%u row%s of %s",
            100 * c->median, 100 * c->p90, 100 * c->max, (unsigned)c->rows, c->rows == 1 ? "" : "s",
            c->source);
    fputs(c->rows < TSR_VALIDATED_CLAIM ? ": too few to claim an error)" : ")", out);
}

const char *tsr_time_error_word(const struct tsr_time_error *e)
{
    return !e->is_predicted ? "" : e->extrapolated ? "extrapolated, no error known" : "measured";
}

static void put_changed(FILE *out, const struct tsr_validated *v)
{
    if (v->differs)
        fputs("; yours differs in ", out);
    put_differences(out, v->differs);
    if (v->some_differ)
        fputs(v->differs ? "; some strategies also in " : "; some strategies differ in ", out);
    put_differences(out, v->some_differ);
}

/* Writes the assumption that decides where no error is known: nothing else says what more nodes
 * cost beside communication. */
static void put_assumption(FILE *out, const struct tsr_time_error *e)
{
    if (e->extrapolated && e->nodes > 1)
        fprintf(out,
                " Assumed there, not measured: the slowest of %u nodes takes %.1f %% longer "
                "(sim.calibration.straggler_share %g, a constant per doubling of the nodes).",
                (unsigned)e->nodes, 100 * e->slowest, e->straggler_share);
}

/* "fully_shard on h100-sxm5-80g, one node: " */
static void put_group(FILE *out, const struct tsr_time_error *e)
{
    fprintf(out, "%s on %s, %s: ", e->api, e->gpu,
            e->many_nodes ? "more than one node" : "one node");
}

static void put_error(FILE *out, const struct tsr_validated *all, size_t i)
{
    const struct tsr_validated *v = &all[i];
    const struct tsr_time_error *e = &v->first;
    fputs(e->nearest && !v->differs ? "Validated error of time, " : "Error of time, ", out);
    put_group(out, e);
    if (e->extrapolated) {
        fputs(tsr_time_error_word(e), out);
        if (v->beyond)
            fputs(": beyond what was measured in ", out);
        put_differences(out, v->beyond);
    } else {
        put_measured(out, all, i, &v->nearest);
        put_changed(out, v);
    }
    fputc('.', out);
    put_assumption(out, &v->largest);
    fputc('\n', out);
}

/* Writes the class that was measured nearest to what is extrapolated. */
static void put_nearest(FILE *out, const struct tsr_validated *all, size_t i)
{
    const struct tsr_validated *v = &all[i];
    if (!v->first.extrapolated || !v->first.nearest)
        return;
    fputs("Nearest to ", out);
    put_group(out, &v->first);
    put_measured(out, all, i, &v->nearest);
    put_changed(out, v);
    fputs(".\n", out);
}

void tsr_put_validated(FILE *out, FILE *notes, const struct tsr_study_info *info)
{
    if (notes && info->time_sources)
        fprintf(notes, "Times come from %s.\n", info->time_sources);
    for (size_t i = 0; i < info->n_validated; i++)
        put_error(out, info->validated, i);
    for (size_t i = 0; notes && i < info->n_validated; i++)
        put_nearest(notes, info->validated, i);
}

void tsr_put_validated_row(FILE *out, const struct tsr_study_info *info, const struct tsr_row *row)
{
    const struct tsr_time_error *e = &row->time_error;
    for (size_t i = 0; i < info->n_validated; i++) {
        const struct tsr_time_error *first = &info->validated[i].first;
        if (first->extrapolated == e->extrapolated && first->many_nodes == e->many_nodes &&
            !strcmp(first->api, e->api) && !strcmp(first->gpu, e->gpu) &&
            (e->extrapolated || first->nearest == e->nearest)) {
            put_error(out, info->validated, i);
            return;
        }
    }
}

static json_t *error_json(const struct tsr_measured_class *c)
{
    return json_pack("{s:i, s:f, s:f, s:f, s:s, s:b}", "rows", (int)c->rows, "median", c->median,
                     "p90", c->p90, "max", c->max, "source", c->source, "claimed",
                     c->rows >= TSR_VALIDATED_CLAIM);
}

static json_t *nearest_json(const struct tsr_validated *v)
{
    const struct tsr_measured_class *c = &v->nearest;
    if (v->first.extrapolated)
        return json_null();
    return json_pack("{s:s, s:s, s:s, s:s?, s:s, s:[i, i], s:o}", "api", c->api, "gpu", c->gpu,
                     "nodes", node_words[c->many_nodes], "stack", *c->stack ? c->stack : NULL,
                     "models", c->models, "gpus", (int)c->min_gpus, (int)c->max_gpus, "error",
                     error_json(c));
}

static json_t *differences_json(uint64_t set)
{
    json_t *out = json_array();
    for (unsigned i = 0; out && tsr_difference_name(i); i++)
        if (set >> i & 1)
            json_array_append_new(out, json_string(tsr_difference_name(i)));
    return out;
}

/* The sentence that tables print, for pages to show. NULL when out of memory. */
static json_t *sentence_json(const struct tsr_validated *all, size_t i)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    if (!out)
        return NULL;
    put_error(out, all, i);
    json_t *sentence =
        fclose(out) == 0 ? json_stringn(text, n ? n - 1 : 0) : NULL; /* no line end */
    free(text);
    return sentence;
}

static json_t *assumption_json(const struct tsr_time_error *e)
{
    json_t *list = json_array();
    if (e->extrapolated && e->nodes > 1)
        json_array_append_new(list, json_pack("{s:s, s:f, s:i, s:f}", "key",
                                              tsr_keys[TSR_K_SIM_CALIBRATION_STRAGGLER_SHARE].name,
                                              "value", e->straggler_share, "nodes", (int)e->nodes,
                                              "slowest_node_takes_longer_by", e->slowest));
    return list;
}

static json_t *class_json(const struct tsr_validated *all, size_t i)
{
    const struct tsr_validated *v = &all[i];
    const struct tsr_time_error *e = &v->first;
    bool is_it = !e->extrapolated && !v->differs;
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "api", e->api,
                     "gpu", e->gpu, "nodes", node_words[e->many_nodes], "time_error",
                     tsr_time_error_word(e), "error", is_it ? error_json(&v->nearest) : json_null(),
                     "nearest", nearest_json(v), "beyond", differences_json(v->beyond), "differs",
                     differences_json(v->differs), "some_differ", differences_json(v->some_differ),
                     "assumptions", assumption_json(&v->largest), "text", sentence_json(all, i));
}

json_t *tsr_validated_json(const struct tsr_study_info *info)
{
    json_t *out = json_array();
    bool ok = out != NULL;
    for (size_t i = 0; ok && i < info->n_validated; i++)
        ok = json_array_append_new(out, class_json(info->validated, i)) == 0;
    if (ok)
        return out;
    json_decref(out);
    return NULL;
}
