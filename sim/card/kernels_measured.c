/* kernels_measured.c: kernels by name, as `tessera calibrate` timed them on the card itself:
 *
 *   "measured": [{"kernel": "rms_norm", "dtype": "f32", "per": "byte", "source": "...",
 *                 "runs": [[WORK, MICROSECONDS, DIM, DIM, ...], ...]}, ...]
 *
 * A run of the same work and dims takes what was measured. Between runs, time per work (FLOP or
 * bytes) is the mean of the runs, those of similar sizes (in logarithms) far before the others.
 * What was timed on another card says nothing here.
 */
#include <math.h>
#include <stdio.h>

#include "sim/card/cost.h"
#include "sim/input/json_doc.h"

static const double MIN_WORK = 1.0, MAX_WORK = 1e18, MAX_US = 1e9, MAX_DIM = 1e12;
/* Below this distance two sizes are one. */
static const double SAME = 1e-5;

/* ---- reading ----------------------------------------------------------------------------- */

static const char runs_allowed[] =
    "lists [work, microseconds, dims...] of numbers above 0 (dims: 0 and more, up to 6)";

static bool number_in(const json_t *list, size_t i, double low, double high, double *out)
{
    const json_t *value = json_array_get(list, i);
    *out = json_number_value(value);
    return json_is_number(value) && *out >= low && *out <= high;
}

static float log_size(double value)
{
    return (float)(value > 1.0 ? log(value) : 0.0);
}

static tsr_status read_run(const struct tsr__doc *doc, const json_t *list,
                           struct tsr_kernel_run *out)
{
    double work, us, dim;
    size_t n = json_array_size(list);
    bool ok = n >= 2 && n <= 2 + TSR_MAX_DIMS && number_in(list, 0, MIN_WORK, MAX_WORK, &work) &&
              number_in(list, 1, 1e-6, MAX_US, &us);
    *out = (struct tsr_kernel_run){{0}, 0};
    for (size_t i = 2; ok && i < n; i++) {
        ok = number_in(list, i, 0.0, MAX_DIM, &dim);
        out->size[i - 1] = log_size(dim);
    }
    if (!ok)
        return tsr__doc_fail(doc, "runs", list, runs_allowed);
    out->size[0] = log_size(work);
    out->seconds = (float)log(us * 1e-6);
    return TSR_OK;
}

static tsr_status read_runs(const struct tsr__doc *doc, struct tsr_measured_kernel *kernel,
                            struct tsr_kernels *out)
{
    const json_t *list = tsr__doc_find(doc, "runs");
    size_t n = json_array_size(list), room = TSR_KERNEL_RUNS - out->n_runs;
    char allowed[64];
    snprintf(allowed, sizeof allowed, "a list of 1 to %zu runs", room);
    if (!n || n > room)
        return tsr__doc_fail(doc, "runs", list, allowed);
    kernel->first = (uint16_t)out->n_runs;
    kernel->n = (uint16_t)n;
    for (size_t i = 0; i < n; i++)
        TSR_TRY(read_run(doc, json_array_get(list, i), &out->runs[out->n_runs++]));
    return TSR_OK;
}

static tsr_status read_dtype(const struct tsr__doc *doc, uint8_t *out)
{
    char name[16];
    TSR_TRY(tsr__doc_string(doc, "dtype", TSR__REQUIRED, name, sizeof name));
    for (int i = 0; i < TSR_N_DTYPES; i++)
        if (!strcmp(name, tsr_dtype_name((tsr_dtype)i))) {
            *out = (uint8_t)i;
            return TSR_OK;
        }
    return tsr__doc_fail(doc, "dtype", tsr__doc_find(doc, "dtype"), "the name of a dtype");
}

static tsr_status read_kernel(const struct tsr__doc *doc, uint8_t card, struct tsr_kernels *out)
{
    static const char *const known[] = {"kernel", "dtype", "per", "runs", "source", NULL};
    struct tsr_measured_kernel *kernel = &out->measured[out->n_measured];
    char per[8];
    TSR_TRY(tsr__doc_check_item(doc, "", doc->root, known));
    *kernel = (struct tsr_measured_kernel){.card = card};
    TSR_TRY(tsr__doc_string(doc, "kernel", TSR__REQUIRED, kernel->name, sizeof kernel->name));
    TSR_TRY(read_dtype(doc, &kernel->dtype));
    TSR_TRY(tsr__doc_string(doc, "per", TSR__REQUIRED, per, sizeof per));
    kernel->per_flop = !strcmp(per, "flop");
    if (!kernel->per_flop && strcmp(per, "byte") != 0)
        return tsr__doc_fail(doc, "per", tsr__doc_find(doc, "per"), "\"flop\" or \"byte\"");
    TSR_TRY(read_runs(doc, kernel, out));
    out->n_measured++;
    return TSR_OK;
}

tsr_status tsr__measured_read(const struct tsr__doc *doc, uint8_t card, struct tsr_kernels *out)
{
    json_t *list = tsr__doc_find(doc, "measured");
    size_t n = json_array_size(list), room = TSR_KERNEL_NAMES - out->n_measured;
    char text[640];
    snprintf(text, sizeof text, "a list of at most %zu kernels", room);
    if (list && (!json_is_array(list) || n > room))
        return tsr__doc_fail(doc, "measured", list, text);
    for (size_t i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%s: measured[%zu]", doc->path, i);
        struct tsr__doc item = {.path = text, .root = json_array_get(list, i)};
        if (!json_is_object(item.root))
            return tsr__doc_fail(doc, "measured", item.root, "objects");
        TSR_TRY(read_kernel(&item, card, out));
    }
    return TSR_OK;
}

/* ---- time -------------------------------------------------------------------------------- */

/* The kernel of that name in the dtype of `work`; else in another one. */
static const struct tsr_measured_kernel *find(const struct tsr_gpu *gpu,
                                              const struct tsr_work *work)
{
    const struct tsr_kernels *k = tsr_gpu_kernels(gpu);
    const struct tsr_measured_kernel *any = NULL;
    for (uint32_t i = 0; i < k->n_measured; i++) {
        const struct tsr_measured_kernel *m = &k->measured[i];
        if (strcmp(m->name, work->name) || strcmp(k->files[m->card].card.name, gpu->name))
            continue;
        if (m->dtype == work->dtype)
            return m;
        any = any ? any : m;
    }
    return any;
}

static double work_of(const struct tsr_measured_kernel *m, const struct tsr_work *work)
{
    double amount =
        m->per_flop ? work->flops : (double)work->bytes_read + (double)work->bytes_written;
    return amount > MIN_WORK ? amount : MIN_WORK;
}

static double squared_distance(const struct tsr_kernel_run *run, const float *size)
{
    double sum = 0.0;
    for (int i = 0; i < TSR_KERNEL_SIZES; i++) {
        double d = (double)run->size[i] - (double)size[i];
        sum += d * d;
    }
    return sum;
}

bool tsr__cost_measured(const struct tsr_gpu *gpu, const struct tsr_work *work,
                        struct tsr__cost *out)
{
    const struct tsr_measured_kernel *m = work->name ? find(gpu, work) : NULL;
    float size[TSR_KERNEL_SIZES];
    double sum = 0.0, weights = 0.0;
    if (!m)
        return false;
    size[0] = log_size(work_of(m, work));
    for (int i = 0; i < TSR_MAX_DIMS; i++)
        size[i + 1] = log_size((double)work->dims[i]);
    for (uint32_t i = m->first; i < (uint32_t)m->first + m->n; i++) {
        const struct tsr_kernel_run *run = &tsr_gpu_kernels(gpu)->runs[i];
        double d = squared_distance(run, size) + SAME * SAME, weight = 1.0 / (d * d);
        sum += weight * ((double)run->seconds + (double)size[0] - (double)run->size[0]);
        weights += weight;
    }
    *out = (struct tsr__cost){.body_s = exp(sum / weights)};
    return true;
}

/* ---- kernels forget -------------------------------------------------------------------------- */

/* Tables without one measured point, to tell how well the others predict it. */

static bool is_place(float axis, uint64_t value)
{
    return (uint64_t)axis == value;
}

/* Index of a value on an axis; n if it is not there. */
static uint32_t index_on(const float *axis, uint32_t n, uint64_t value)
{
    uint32_t i = 0;
    while (i < n && !is_place(axis[i], value))
        i++;
    return i;
}

static bool forget_matmul(struct tsr_kernels *k, uint8_t peak, const uint64_t dims[4])
{
    for (uint32_t i = 0; i < k->n_matmul; i++) {
        struct tsr_matmul_table *t = &k->matmul[i];
        size_t at = 0;
        bool there = t->peak == peak;
        for (int axis = 0; axis < 4; axis++) {
            uint32_t place = index_on(t->axis[axis], t->n[axis], dims[axis]);
            there = there && place < t->n[axis];
            at = at * t->n[axis] + place;
        }
        if (!there || !t->measured[at])
            continue;
        t->measured[at] = false;
        tsr_matmul_fill(t);
        return true;
    }
    return false;
}

static bool forget_attention(struct tsr_kernels *k, uint8_t kernel, const struct tsr_work *work)
{
    bool backward = work->op == TSR_OP_ATTENTION_BWD;
    for (uint32_t i = 0; i < k->n_attention; i++) {
        struct tsr_attention_curve *c = &k->attention[i];
        uint32_t at = index_on(c->length, c->n, work->dims[4]);
        if (c->kernel != kernel || c->backward != backward || c->causal != work->causal ||
            c->head_size != work->dims[5] || at == c->n || c->n == 1)
            continue;
        c->n--;
        memmove(c->length + at, c->length + at + 1, (c->n - at) * sizeof *c->length);
        memmove(c->flops + at, c->flops + at + 1, (c->n - at) * sizeof *c->flops);
        return true;
    }
    return false;
}

static bool forget_norm(struct tsr_kernels *k, uint8_t kernel, const struct tsr_work *work)
{
    for (uint32_t i = 0; i < k->n_norms; i++) {
        struct tsr_norm_table *t = &k->norms[i];
        if (t->kernel != kernel || t->backward != (work->op == TSR_OP_NORM_BWD))
            continue;
        for (uint32_t at = 0; at < t->n; at++) {
            if (!is_place(t->rows[at], work->dims[0]) || !is_place(t->columns[at], work->dims[1]))
                continue;
            t->n--;
            t->rows[at] = t->rows[t->n];
            t->columns[at] = t->columns[t->n];
            t->log_ratio[at] = t->log_ratio[t->n];
            return true;
        }
    }
    return false;
}

bool tsr_kernels_forget(struct tsr_kernels *kernels, const struct tsr_kernel_choice *choice,
                        const struct tsr_work *work)
{
    uint8_t attention =
        (uint8_t)(choice->attention == TSR_ATTN_AUTO ? TSR_ATTN_FLASH2 : choice->attention);
    switch (work->op) {
    case TSR_OP_GEMM:
        if (work->dtype == TSR_F8)
            return false;
        return forget_matmul(kernels, choice->tf32 ? TSR_PEAK_TF32 : TSR_PEAK_BF16, work->dims);
    case TSR_OP_ATTENTION:
    case TSR_OP_ATTENTION_BWD:
        return forget_attention(kernels, attention, work);
    case TSR_OP_NORM:
    case TSR_OP_NORM_BWD:
        return forget_norm(
            kernels, (uint8_t)(choice->norm == TSR_NORMS_AUTO ? TSR_NORMS_EAGER : choice->norm),
            work);
    default:
        return false;
    }
}
