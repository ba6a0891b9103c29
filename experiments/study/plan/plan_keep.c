/* plan_keep.c: what an interrupted search leaves for --resume: plan.resume in the folder of its
 * results, with every figure that was found, for this program and this question only (plan.h).
 *
 * The file is a line of JSON with the digest of the question, the number of records and the hash of
 * all that follows, and a line for each record. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/study/base/files.h"
#include "experiments/study/base/listener.h"
#include "experiments/study/base/paths.h"
#include "experiments/study/plan/plan.h"
#include "experiments/study/simulate/row_json.h"
#include "sim/base/json_load.h"

static const char NAME[] = "plan.resume";
static const char FORMAT[] = "tessera.plan.2";
enum { MAX_VALUES = 2048 }; /* of a line */

struct record {
    uint64_t index;
    bool simulated;
    struct tsr_plan_measure m;
};

#define IS(field) TSR_MEMBER_IS(struct record, field)
static const struct tsr_member members[] = {
    IS(index),
    IS(simulated),
    TSR_MEMBER_LIST_OF(struct record, m.row, tsr_row_members, 1),
    IS(m.bound.known),
    IS(m.bound.step_s),
    IS(m.bound.model_s),
    IS(m.bound.optimizer_s),
    IS(m.bound.model_kernels_s),
    IS(m.bound.optimizer_kernels_s),
    IS(m.bound.hooks_s),
    IS(m.bound.wires_s),
    IS(m.kept),
    IS(m.saved),
    IS(m.saved_at_loss),
    IS(m.gathered_at_loss),
    IS(m.key),
    {NULL},
};

struct tsr_plan_past {
    size_t n;
    struct record *records;
    struct record **of; /* [space.n]; NULL: nothing is known */
};

static uint64_t mix(uint64_t hash, const char *text)
{
    return tsr_hash_bytes(hash, text, strlen(text) + 1);
}

static uint64_t mix_file(uint64_t hash, const char *path)
{
    enum { MOST = 1 << 24 };
    char *data = NULL;
    size_t n = 0;
    if (tsr_read_file(path, MOST, &data, &n) == TSR_OK)
        hash = tsr_hash_bytes(hash, data, n);
    free(data);
    return mix(hash, path);
}

/* All that a figure may follow from: the program, the files, every key (a stack's, too), what was
 * set besides, the strategy and the space. */
static tsr_status question_of(const struct tsr_plan *plan, uint64_t *out)
{
    const struct tsr_plan_space *space = &plan->space;
    char errors[TSR_FILE_BYTES];
    uint64_t hash = mix(TSR_HASH_INIT, plan->base->name);
    hash = mix_file(hash, "/proc/self/exe");
    TSR_TRY(tsr_settings_hash(plan->job.settings, &hash));
    hash = mix_file(hash, plan->experiment.path);
    hash = mix_file(hash, plan->job.model.path);
    hash = mix_file(hash, plan->job.cluster.path);
    hash = mix_file(hash, plan->job.cluster.gpu.path);
    hash = tsr_hash_u64(hash, plan->job.cluster.host_memory_bytes); /* of another file */
    if (tsr_find_validation("errors.json", plan->experiment.path, errors))
        hash = mix_file(hash, errors);
    for (size_t i = 0; i < plan->request.n_sets; i++)
        hash = mix(hash, plan->request.sets[i]);
    for (size_t k = 0; k < space->n_axes; k++)
        for (size_t v = 0; v < space->axes[k].n; v++)
            hash = mix(mix(hash, space->axes[k].key), space->axes[k].values[v].text);
    *out = tsr_hash_bytes(hash, &plan->budget, sizeof plan->budget);
    return TSR_OK;
}

struct text {
    const char *at, *end;
};

static void put_digest(uint64_t digest, char out[24])
{
    (void)snprintf(out, 24, "%016" PRIx64, digest);
}

/* The next line of the file as JSON, a new reference; NULL: there is none, or it is no JSON. */
static json_t *next_line(struct text *text)
{
    size_t left = (size_t)(text->end - text->at);
    const char *end = left ? memchr(text->at, '\n', left) : NULL;
    if (!end)
        return NULL;
    json_t *line = tsr_json_loadb(text->at, (size_t)(end - text->at), MAX_VALUES, NULL);
    text->at = end + 1;
    return line;
}

/* The first line; false: it is none, or what follows is not what was written. */
static bool read_head(struct text *text, char question[24], size_t *n)
{
    char check[24];
    json_t *head = next_line(text);
    const char *format = json_string_value(json_object_get(head, "format"));
    const char *asked = json_string_value(json_object_get(head, "question"));
    const char *sum = json_string_value(json_object_get(head, "check"));
    json_int_t records = json_integer_value(json_object_get(head, "records"));
    put_digest(tsr_hash_bytes(TSR_HASH_INIT, text->at, (size_t)(text->end - text->at)), check);
    bool good =
        format && !strcmp(format, FORMAT) && asked && records >= 0 && sum && !strcmp(sum, check);
    (void)snprintf(question, 24, "%s", asked ? asked : "");
    *n = (size_t)records;
    json_decref(head);
    return good;
}

static tsr_status allocate(struct tsr_plan *plan, size_t n)
{
    struct tsr_plan_past *past = plan->past = calloc(1, sizeof *past);
    if (!past)
        return tsr_no_memory(NULL);
    past->records = calloc(n + 1, sizeof *past->records);
    past->of = calloc(plan->space.n, sizeof(struct record *));
    return past->records && past->of ? TSR_OK : tsr_no_memory(NULL);
}

/* False: the next line is no record. */
static bool take_record(struct tsr_plan_past *past, size_t n_space, struct text *text)
{
    struct record *record = &past->records[past->n];
    json_t *line = next_line(text);
    bool good = tsr_members_unpack(members, line, record) && record->index < n_space;
    json_decref(line);
    if (good)
        past->of[record->index] = record;
    past->n += good;
    return good;
}

static tsr_status take(struct tsr_plan *plan, const char *path, const char *data, size_t bytes)
{
    struct text text = {data, data + bytes};
    char question[24], want[24];
    uint64_t digest;
    size_t n;
    bool good = read_head(&text, question, &n) && n <= plan->space.n;
    TSR_TRY(question_of(plan, &digest));
    put_digest(digest, want);
    bool same = good && !strcmp(question, want);
    tsr_status status = TSR_OK;
    if (same)
        status = allocate(plan, n);
    for (size_t i = 0; status == TSR_OK && same && good && i < n; i++)
        good = take_record(plan->past, plan->space.n, &text);
    if (status != TSR_OK)
        return status;
    if (!good || (same && text.at != text.end))
        return tsr_fail(TSR_ECONFIG,
                        "%s: is no search that this program has left; allowed: --resume "
                        "with the program that was interrupted",
                        path);
    return same ? TSR_OK
                : tsr_fail(TSR_ECONFIG,
                           "%s: was left by a search in another space or of other files; allowed: "
                           "--resume with the same experiment, model, cluster, --set and "
                           "--strategy",
                           path);
}

tsr_status tsr_plan_resume(struct tsr_plan *plan)
{
    enum { MOST = 1 << 30 };
    char path[4096], *data = NULL;
    size_t bytes = 0;
    if (!plan->options.resume)
        return TSR_OK;
    snprintf(path, sizeof path, "%s/%s", plan->options.dir, NAME);
    if (access(path, F_OK) != 0)
        return tsr_fail(
            TSR_ECONFIG,
            "--resume: found no %s; allowed: the folder of a search that was interrupted", path);
    tsr_status status = tsr_read_file(path, MOST, &data, &bytes);
    if (status == TSR_OK)
        status = take(plan, path, data, bytes);
    free(data);
    return status;
}

void tsr_plan_past_destroy(struct tsr_plan_past *past)
{
    if (!past)
        return;
    free(past->records);
    free(past->of);
    free(past);
}

const struct tsr_plan_measure *tsr_plan_kept_of(const struct tsr_plan *plan, size_t i,
                                                bool simulated)
{
    const struct record *record = plan->past ? plan->past->of[i] : NULL;
    return record && (record->simulated || !simulated) ? &record->m : NULL;
}

/* A line, to be freed; NULL: out of memory. */
static char *line_of(const struct tsr_plan *plan, size_t i)
{
    const struct tsr_plan_point *point = &plan->points[i];
    const struct record record = {
        .index = i, .simulated = point->state == TSR_PLAN_SIMULATED, .m = *point->m};
    return tsr_members_line(members, &record);
}

/* Writes the lines (out), or only adds them to *check. */
static tsr_status put_records(FILE *out, const struct tsr_plan *plan, size_t *n, uint64_t *check)
{
    for (size_t i = 0; i < plan->space.n; i++) {
        if (!plan->points[i].m)
            continue;
        char *line = line_of(plan, i);
        if (!line)
            return tsr_no_memory(NULL);
        *check = tsr_hash_bytes(*check, line, strlen(line));
        ++*n;
        if (out)
            fputs(line, out);
        free(line);
    }
    return TSR_OK;
}

static tsr_status write_all(FILE *out, const void *user)
{
    const struct tsr_plan *plan = user;
    uint64_t digest, check = TSR_HASH_INIT;
    size_t n = 0;
    TSR_TRY(question_of(plan, &digest));
    TSR_TRY(put_records(NULL, plan, &n, &check));
    fprintf(out,
            "{\"format\": \"%s\", \"question\": \"%016" PRIx64 "\", \"records\": %zu, \"check\": "
            "\"%016" PRIx64 "\"}\n",
            FORMAT, digest, n, check);
    return put_records(out, plan, &n, &check);
}

tsr_status tsr_plan_keep(const struct tsr_plan *plan)
{
    char path[4096];
    if (!plan->options.dir)
        return TSR_OK;
    if (plan->counts.interrupted)
        return tsr_write_in(plan->options.dir, NAME, write_all, plan);
    snprintf(path, sizeof path, "%s/%s", plan->options.dir, NAME);
    if (plan->options.resume)
        tsr_file_remove(NULL, path);
    return TSR_OK;
}
