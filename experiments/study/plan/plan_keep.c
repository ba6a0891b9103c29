/* plan_keep.c: what an interrupted search leaves for --resume: plan.resume in the folder of its
 * results, with every figure that was found, for this program and this question only (plan.h).
 *
 * The file is a head and records as they are in memory: it is read by the program that wrote it, on
 * the machine that wrote it, or refused. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/study/base/files.h"
#include "experiments/study/base/listener.h"
#include "experiments/study/plan/plan.h"
#include "experiments/study/simulate/row_check.h"

static const char NAME[] = "plan.resume";
static const char MAGIC[16] = "tessera.plan.1";

struct head {
    char magic[sizeof MAGIC];
    uint64_t question, record_bytes, n;
    uint64_t check; /* hash of the records */
};

struct record {
    uint64_t index;
    bool simulated;
    struct tsr_plan_measure m;
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
    uint64_t hash = mix(TSR_HASH_INIT, plan->base->name);
    hash = mix_file(hash, "/proc/self/exe");
    TSR_TRY(tsr_settings_hash(plan->job.settings, &hash));
    hash = mix_file(hash, plan->experiment.path);
    hash = mix_file(hash, plan->job.model.path);
    hash = mix_file(hash, plan->job.cluster.path);
    hash = mix_file(hash, plan->job.cluster.gpu.path);
    hash = tsr_hash_u64(hash, plan->job.cluster.host_memory_bytes); /* of another file */
    for (size_t i = 0; i < plan->request.n_sets; i++)
        hash = mix(hash, plan->request.sets[i]);
    for (size_t k = 0; k < space->n_axes; k++)
        for (size_t v = 0; v < space->axes[k].n; v++)
            hash = mix(mix(hash, space->axes[k].key), space->axes[k].values[v].text);
    *out = tsr_hash_bytes(hash, &plan->budget, sizeof plan->budget);
    return TSR_OK;
}

static bool is_bool(const char *at)
{
    return (unsigned char)*at <= 1;
}

/* What a search has left is taken as it is; a record that none can have would be read beyond. */
static bool is_possible(const char *record, size_t n_space)
{
    uint64_t index;
    memcpy(&index, record + offsetof(struct record, index), sizeof index);
    return index < n_space && is_bool(record + offsetof(struct record, simulated)) &&
           is_bool(record + offsetof(struct record, m.bound.known)) &&
           tsr_row_is_possible(record + offsetof(struct record, m.row));
}

static bool all_possible(const char *records, size_t n, size_t n_space)
{
    bool good = true;
    for (size_t i = 0; i < n && good; i++)
        good = is_possible(records + i * sizeof(struct record), n_space);
    return good;
}

static tsr_status take(struct tsr_plan *plan, const char *path, const char *data, size_t bytes)
{
    struct head head = {0};
    uint64_t question;
    TSR_TRY(question_of(plan, &question));
    if (bytes >= sizeof head)
        memcpy(&head, data, sizeof head);
    if (memcmp(head.magic, MAGIC, sizeof MAGIC) != 0 ||
        head.record_bytes != sizeof(struct record) || head.n > plan->space.n ||
        bytes != sizeof head + head.n * sizeof(struct record) ||
        head.check != tsr_hash_bytes(TSR_HASH_INIT, data + sizeof head, bytes - sizeof head) ||
        !all_possible(data + sizeof head, head.n, plan->space.n))
        return tsr_fail(TSR_ECONFIG,
                        "%s: is no search that this program has left; allowed: --resume "
                        "with the program that was interrupted",
                        path);
    if (head.question != question)
        return tsr_fail(TSR_ECONFIG,
                        "%s: was left by a search in another space or of other files; allowed: "
                        "--resume with the same experiment, model, cluster, --set and --strategy",
                        path);
    struct tsr_plan_past *past = plan->past = calloc(1, sizeof *past);
    if (!past)
        return tsr_no_memory(NULL);
    past->n = head.n;
    past->records = malloc((past->n + 1) * sizeof *past->records);
    past->of = calloc(plan->space.n, sizeof(struct record *));
    if (!past->records || !past->of)
        return tsr_no_memory(NULL);
    memcpy(past->records, data + sizeof head, past->n * sizeof *past->records);
    for (size_t i = 0; i < past->n; i++)
        past->of[past->records[i].index] = &past->records[i];
    return TSR_OK;
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

/* False: nothing is known of configuration i. */
static bool fill(const struct tsr_plan *plan, size_t i, struct record *out)
{
    const struct tsr_plan_point *point = &plan->points[i];
    if (!point->m)
        return false;
    memset(out, 0, sizeof *out); /* holes, too: they are part of the hash */
    out->index = i;
    out->simulated = point->state == TSR_PLAN_SIMULATED;
    memcpy(&out->m, point->m, sizeof out->m);
    return true;
}

static tsr_status write_all(FILE *out, const void *user)
{
    const struct tsr_plan *plan = user;
    struct head head = {.record_bytes = sizeof(struct record), .check = TSR_HASH_INIT};
    struct record record;
    TSR_TRY(question_of(plan, &head.question));
    memcpy(head.magic, MAGIC, sizeof MAGIC);
    for (size_t i = 0; i < plan->space.n; i++) {
        if (!fill(plan, i, &record))
            continue;
        head.n++;
        head.check = tsr_hash_bytes(head.check, &record, sizeof record);
    }
    fwrite(&head, sizeof head, 1, out);
    for (size_t i = 0; i < plan->space.n; i++)
        if (fill(plan, i, &record))
            fwrite(&record, sizeof record, 1, out);
    return TSR_OK;
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
