/* plan_max.c: the largest batch, sequence or number of layers that fits, by doubling and bisection;
 * every probe is a full emission.
 *
 * What is found is a boundary: the value fits and the next one does not. Memory grows with these
 * sizes but for the allocator's rounding, so that a still larger value may fit by chance; that is
 * not looked for, since nobody should rely on it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "experiments/study/plan/plan.h"
#include "experiments/study/report/report_text.h"

struct solver {
    struct tsr_plan *plan;
    uint64_t most; /* the largest value that is allowed */
    struct tsr_plan_largest *out;
};

static tsr_status probe(const struct solver *s, uint64_t value, bool *fits)
{
    struct tsr_plan_largest *out = s->out;
    struct tsr_plan_measure m;
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    const char *set = tsr_plan_set(&s->plan->experiment, s->plan->base, out->key, text);
    if (!set)
        return tsr_no_memory(NULL);
    TSR_CHECK(out->n < TSR_PLAN_MAX_PROBES);
    tsr_status status = tsr_plan_measure(s->plan, &set, 1, false, &m);
    if (status != TSR_OK && status != TSR_EOOM)
        return status;
    bool known = status == TSR_OK;
    *fits = known && tsr_plan_need(&m.row) <= s->plan->budget;
    out->probes[out->n++] =
        (struct tsr_plan_probe){.value = value, .known = known, .fits = *fits, .row = m.row};
    return TSR_OK;
}

/* *best: in units; 0: none fits. */
static tsr_status solve(const struct solver *s, uint64_t *best)
{
    uint64_t low = 0, high = 1, unit = s->out->unit, most = s->most / unit;
    bool fits = false;
    for (;;) { /* low fits (0: by definition) */
        TSR_TRY(probe(s, high * unit, &fits));
        if (!fits)
            break;
        low = high;
        if (low == most)
            break;
        high = high <= most / 2 ? 2 * high : most;
    }
    while (!fits && high - low > 1) { /* low fits, high does not */
        uint64_t middle = low + (high - low) / 2;
        bool fits_there = false;
        TSR_TRY(probe(s, middle * unit, &fits_there));
        if (fits_there)
            low = middle;
        else
            high = middle;
    }
    *best = low;
    return TSR_OK;
}

static void begin(struct solver *s, enum tsr_plan_size size)
{
    static const struct tsr_plan_largest names[] = {
        [TSR_PLAN_BATCH] = {.what = "batch", .key = "batch", .words = "batch"},
        [TSR_PLAN_SEQ] = {.what = "seq", .key = "seq", .words = "seq"},
        [TSR_PLAN_LAYERS] = {.what = "layers", .key = "model.layers", .words = "number of layers"}};
    const struct tsr_job *job = &s->plan->job;
    struct tsr_plan_largest *out = s->out;
    *out = names[size];
    out->unit = 1;
    out->budget = s->plan->budget;
    s->most = 1048576;
    if (size != TSR_PLAN_SEQ)
        return;
    s->most = 16777216;
    if (job->model.positions_are_hard && job->model.max_positions < s->most)
        s->most = job->model.max_positions;
    if (job->settings->tp > 1 && job->settings->sequence_parallel)
        out->unit = job->settings->tp; /* the sequence is cut into that many parts */
}

static size_t find(const struct tsr_plan_largest *largest, uint64_t value)
{
    for (size_t i = 0; i < largest->n; i++)
        if (largest->probes[i].value == value)
            return i;
    return SIZE_MAX;
}

/* ---- results ----------------------------------------------------------------------------- */

static double gib(uint64_t bytes)
{
    return (double)bytes / TSR__GIB;
}

void tsr_plan_put_probes(FILE *out, const struct tsr_plan_largest *largest,
                         const struct tsr_plan_probe *const *probes, size_t n)
{
    fputs("schema_version,key,value,fits,peak_allocated_bytes,needed_bytes,"
          "first_peak_reserved_bytes,steady_peak_reserved_bytes,peak_phase,peak_module,"
          "budget_bytes\n",
          out);
    for (size_t i = 0; i < n; i++) {
        const struct tsr_row *row = &probes[i]->row;
        fprintf(out, "1,%s,%" PRIu64 ",%s,", largest->key, probes[i]->value,
                probes[i]->fits ? "yes" : "no");
        if (probes[i]->known) {
            fprintf(out, "%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%s,",
                    tsr_plan_allocated(row), tsr_plan_need(row), row->first_peak_reserved,
                    row->peak_reserved, row->peak_phase);
            tsr__put_csv(out, row->peak_module);
        } else {
            fputs(",,,,,", out);
        }
        fprintf(out, ",%" PRIu64 "\n", largest->budget);
    }
}

static tsr_status write_probes(FILE *stream, const void *user)
{
    const struct tsr_plan_largest *largest = user;
    const struct tsr_plan_probe *probes[TSR_PLAN_MAX_PROBES];
    for (size_t i = 0; i < largest->n; i++)
        probes[i] = &largest->probes[i];
    tsr_plan_put_probes(stream, largest, probes, largest->n);
    return TSR_OK;
}

static tsr_status write_out(const struct tsr_plan_largest *largest, const char *dir)
{
    char *path = tsr_path_join(dir, "max.csv");
    if (!path)
        return TSR_ENOMEM;
    tsr_status status = tsr_write_file(path, write_probes, largest);
    free(path);
    return status;
}

static tsr_status nothing(const struct tsr_plan *plan, const struct tsr_plan_largest *largest)
{
    const struct tsr_plan_probe *p = &largest->probes[0];
    if (!p->known)
        return tsr_fail(TSR_EOOM, "plan: no %s fits into %.2f GiB: %s", largest->words,
                        gib(largest->budget), p->row.failure);
    return tsr_fail(TSR_EOOM,
                    "plan: no %s fits into %.2f GiB: %" PRIu64 " needs %.2f GiB with strategy %s",
                    largest->words, gib(largest->budget), p->value, gib(tsr_plan_need(&p->row)),
                    plan->base->name);
}

tsr_status tsr_plan_solve(struct tsr_plan *plan, enum tsr_plan_size size, const char *dir,
                          struct tsr_plan_largest *out)
{
    struct solver s = {.plan = plan, .out = out};
    uint64_t units = 0;
    begin(&s, size);
    TSR_TRY(solve(&s, &units));
    if (dir)
        TSR_TRY(write_out(out, dir));
    if (!units)
        return nothing(plan, out);
    out->best = find(out, units * out->unit);
    out->next = find(out, (units + 1) * out->unit);
    TSR_CHECK(out->best != SIZE_MAX && out->probes[out->best].fits &&
              (out->next == SIZE_MAX || !out->probes[out->next].fits));
    return TSR_OK;
}
