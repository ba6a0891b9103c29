/* calibrate_times.c: collects samples by kernel, collective and instruction, and what they come to.
 */
#include "experiments/cli/calibrate/calibrate_times.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tsr_status add_seconds(struct tsr_durations *s, double seconds)
{
    return TSR_PUSH(s->items, s->n, s->cap, seconds) ? TSR_OK : tsr_no_memory("times");
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double tsr_durations_median(struct tsr_durations *s)
{
    if (s->n == 0)
        return 0;
    qsort(s->items, s->n, sizeof *s->items, by_value);
    return (s->items[(s->n - 1) / 2] + s->items[s->n / 2]) / 2;
}

void tsr_times_fini(struct tsr_times *t)
{
    for (size_t i = 0; i < t->n_kernels; i++)
        free(t->kernels[i].seconds.items);
    for (size_t i = 0; i < t->n_collectives; i++)
        free(t->collectives[i].seconds.items);
    for (size_t i = 0; i < TSR_N_ISSUE_TIMES; i++)
        free(t->host[i].items);
    free(t->kernels);
    free(t->collectives);
    *t = (struct tsr_times){0};
}

/* ---- adding ---------------------------------------------------------------------------------- */

static struct tsr_kernel_times describe(const struct tsr_work *work)
{
    bool per_flop = (work->op == TSR_OP_GEMM || work->op == TSR_OP_ATTENTION ||
                     work->op == TSR_OP_ATTENTION_BWD) &&
                    work->flops > 0;
    struct tsr_kernel_times k = {
        .op = work->op,
        .dtype = work->dtype,
        .per_flop = per_flop,
        .work = per_flop ? work->flops : (double)work->bytes_read + (double)work->bytes_written};
    snprintf(k.name, sizeof k.name, "%s", work->name ? work->name : "");
    memcpy(k.dims, work->dims, sizeof k.dims);
    return k;
}

static bool same_kernel(const struct tsr_kernel_times *a, const struct tsr_kernel_times *b)
{
    return a->work == b->work && a->dtype == b->dtype &&
           !memcmp(a->dims, b->dims, sizeof a->dims) && !strcmp(a->name, b->name);
}

tsr_status tsr_times_kernel(struct tsr_times *t, const struct tsr_work *work, double seconds)
{
    const struct tsr_kernel_times mine = describe(work);
    size_t i = 0;
    if (!*mine.name || mine.work < 1 || seconds <= 0)
        return TSR_OK;
    while (i < t->n_kernels && !same_kernel(&t->kernels[i], &mine))
        i++;
    if (i == t->n_kernels && !TSR_PUSH(t->kernels, t->n_kernels, t->cap_kernels, mine))
        return tsr_no_memory("times");
    return add_seconds(&t->kernels[i].seconds, seconds);
}

tsr_status tsr_times_collective(struct tsr_times *t, const struct tsr_instr *instr, uint32_t ranks,
                                double seconds)
{
    const struct tsr_collective_times mine = {
        .kind = instr->kind, .ranks = ranks, .bytes = instr->bytes};
    size_t i = 0;
    if (seconds <= 0)
        return TSR_OK;
    while (i < t->n_collectives &&
           (t->collectives[i].kind != mine.kind || t->collectives[i].ranks != ranks ||
            t->collectives[i].bytes != mine.bytes))
        i++;
    if (i == t->n_collectives &&
        !TSR_PUSH(t->collectives, t->n_collectives, t->cap_collectives, mine))
        return tsr_no_memory("times");
    return add_seconds(&t->collectives[i].seconds, seconds);
}

/* What waits says nothing of the host. */
tsr_status tsr_times_host(struct tsr_times *t, const struct tsr_instr *instr, double seconds)
{
    enum tsr_issue_time which;
    switch (instr->kind) {
    case TSR_OP:
    case TSR_COPY:
    case TSR_FILL:
        which = TSR_ISSUE_LAUNCH;
        break;
    case TSR_ALL_GATHER:
    case TSR_REDUCE_SCATTER:
    case TSR_ALL_REDUCE:
        which = TSR_ISSUE_COLLECTIVE;
        break;
    case TSR_RECORD:
    case TSR_WAIT:
        which = TSR_ISSUE_EVENT;
        break;
    case TSR_ALLOC:
    case TSR_FREE:
        which = TSR_ISSUE_ALLOC;
        break;
    case TSR_SEGMENT_ALLOC:
        which = TSR_ISSUE_SEGMENT;
        break;
    default:
        return TSR_OK;
    }
    return seconds > 0 ? add_seconds(&t->host[which], seconds) : TSR_OK;
}

/* ---- using ----------------------------------------------------------------------------------- */

static int order(double a, double b)
{
    return (a > b) - (a < b);
}

static int by_kernel(const void *a, const void *b)
{
    const struct tsr_kernel_times *x = a, *y = b;
    int name = strcmp(x->name, y->name);
    if (name || x->dtype != y->dtype)
        return name ? name : order(x->dtype, y->dtype);
    return x->work != y->work ? order(x->work, y->work) : memcmp(x->dims, y->dims, sizeof x->dims);
}

static int by_collective(const void *a, const void *b)
{
    const struct tsr_collective_times *x = a, *y = b;
    if (x->kind != y->kind)
        return order(x->kind, y->kind);
    return x->ranks != y->ranks ? order(x->ranks, y->ranks)
                                : order((double)x->bytes, (double)y->bytes);
}

void tsr_times_sort(struct tsr_times *t)
{
    if (t->n_kernels)
        qsort(t->kernels, t->n_kernels, sizeof *t->kernels, by_kernel);
    if (t->n_collectives)
        qsort(t->collectives, t->n_collectives, sizeof *t->collectives, by_collective);
}

double tsr_times_best_rate(const struct tsr_times *t, bool per_flop, tsr_dtype dtype)
{
    double best = 0;
    for (size_t i = 0; i < t->n_kernels; i++) {
        struct tsr_kernel_times *k = &t->kernels[i];
        double seconds = tsr_durations_median(&k->seconds);
        bool counts = k->per_flop == per_flop && (!dtype || k->dtype == dtype);
        if (counts && k->work / seconds > best)
            best = k->work / seconds;
    }
    return best;
}
