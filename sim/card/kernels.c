/* kernels.c: reads kernel tables from kernels-*.json: products, attention, norms; and says
 * where the times of a card come from. */
#include "sim/card/kernels.h"

#include <math.h>
#include <stdio.h>

#include "sim/card/cost.h"
#include "sim/input/json_doc.h"

static const double MIN_SECONDS = 1e-9, MAX_SECONDS = 1e3, MAX_TFLOPS = 1e6, MAX_SIZE = 1e9;

/* One object of a list, read as a document of its own: "FILE: matmul[0]: key ..." */
struct item {
    struct tsr__doc doc;
    char path[600];
};

/* words: its keys. */
static tsr_status open_item(const struct tsr__doc *doc, const char *list, size_t i,
                            const char *const *words, struct item *out)
{
    json_t *value = json_array_get(tsr__doc_find(doc, list), i);
    char key[64];
    snprintf(key, sizeof key, "%s[%zu]", list, i);
    if (!json_is_object(value))
        return tsr__doc_fail(doc, key, value, "an object");
    snprintf(out->path, sizeof out->path, "%s: %s", doc->path, key);
    out->doc = (struct tsr__doc){.path = out->path, .root = value};
    return tsr__doc_check_item(&out->doc, "", value, words);
}

/* Number of objects of an optional list; more than `room` is an error. */
static tsr_status list_size(const struct tsr__doc *doc, const char *list, size_t room, size_t *n)
{
    char allowed[64];
    const json_t *value = tsr__doc_find(doc, list);
    *n = json_array_size(value);
    if (!value || (json_is_array(value) && *n <= room))
        return TSR_OK;
    snprintf(allowed, sizeof allowed, "a list of at most %zu more", room);
    return tsr__doc_fail(doc, list, value, allowed);
}

/* The index of a word; fails with the list of them. */
static tsr_status read_word(const struct tsr__doc *doc, const char *key, const char *const *words,
                            size_t n, uint8_t *out)
{
    char text[32], allowed[160] = "";
    size_t used = 0;
    TSR_TRY(tsr__doc_string(doc, key, TSR__REQUIRED, text, sizeof text));
    for (size_t i = 0; i < n; i++)
        if (words[i] && !strcmp(words[i], text)) {
            *out = (uint8_t)i;
            return TSR_OK;
        }
    for (size_t i = 0; i < n; i++)
        if (words[i])
            used += (size_t)snprintf(allowed + used, sizeof allowed - used, "%s%s",
                                     used ? ", " : "", words[i]);
    return tsr__doc_fail(doc, key, tsr__doc_find(doc, key), allowed);
}

static tsr_status read_backward(const struct tsr__doc *doc, bool *backward)
{
    static const char *const words[] = {"forward", "backward"};
    uint8_t word = 0;
    TSR_TRY(read_word(doc, "pass", words, 2, &word));
    *backward = word == 1;
    return TSR_OK;
}

/* Numbers that grow from one to the next: an axis. */
static tsr_status read_axis(const struct tsr__doc *doc, const char *key, float *out, uint32_t *n)
{
    TSR_TRY(tsr__doc_numbers(doc, key, 1.0, MAX_SIZE, TSR_KERNEL_AXIS, out, n));
    for (uint32_t i = 1; i < *n; i++)
        if (out[i] <= out[i - 1])
            return tsr__doc_fail(doc, key, tsr__doc_find(doc, key), "numbers that grow");
    return TSR_OK;
}

/* As many numbers as `n`. */
static tsr_status read_as_many(const struct tsr__doc *doc, const char *key, double high,
                               uint32_t room, float *out, uint32_t n)
{
    char allowed[64];
    uint32_t found;
    TSR_TRY(tsr__doc_numbers(doc, key, 1e-6, high, room, out, &found));
    if (found == n)
        return TSR_OK;
    snprintf(allowed, sizeof allowed, "%u numbers, as many as there are shapes", n);
    return tsr__doc_fail(doc, key, tsr__doc_find(doc, key), allowed);
}

/* ---- matrix products ------------------------------------------------------------------------- */

static tsr_status read_tiles(const struct tsr__doc *doc, struct tsr_tile_model *m)
{
    static const char allowed[] = "1 to 8 lists [m, n, share], m and n from 1 to 1024, share from "
                                  "0.01 to 1";
    const json_t *list = tsr__doc_find(doc, "tiles");
    m->n_tiles = (uint32_t)json_array_size(list);
    if (!m->n_tiles || m->n_tiles > TSR_KERNEL_TILES)
        return tsr__doc_fail(doc, "tiles", list, allowed);
    for (uint32_t i = 0; i < m->n_tiles; i++) {
        const json_t *tile = json_array_get(list, i);
        double rows = json_number_value(json_array_get(tile, 0));
        double columns = json_number_value(json_array_get(tile, 1));
        double share = json_number_value(json_array_get(tile, 2));
        if (json_array_size(tile) != 3 || !(rows >= 1.0 && rows <= 1024.0) ||
            !(columns >= 1.0 && columns <= 1024.0) || !(share >= 0.01 && share <= 1.0))
            return tsr__doc_fail(doc, "tiles", tile, allowed);
        m->tiles[i].m = (uint32_t)rows;
        m->tiles[i].n = (uint32_t)columns;
        m->tiles[i].share = share;
    }
    return TSR_OK;
}

static tsr_status read_tile_model(const struct tsr__doc *doc, struct tsr_tile_model *m)
{
    TSR_TRY(tsr__doc_number(doc, "start_s", TSR__REQUIRED, 0.0, 1e-3, &m->start_s));
    TSR_TRY(tsr__doc_number(doc, "extra_k", TSR__REQUIRED, 0.0, 1e4, &m->extra_k));
    TSR_TRY(tsr__doc_number(doc, "peak_share", TSR__REQUIRED, 0.01, 1.0, &m->peak_share));
    TSR_TRY(tsr__doc_number(doc, "memory_share", TSR__REQUIRED, 0.01, 1.0, &m->memory_share));
    return read_tiles(doc, m);
}

/* TFLOP/s with batch fastest; null: not measured. */
static tsr_status read_rates(const struct tsr__doc *doc, const struct tsr_card *card,
                             struct tsr_matmul_table *t)
{
    const json_t *list = tsr__doc_find(doc, "tflops");
    size_t n = (size_t)t->n[0] * t->n[1] * t->n[2] * t->n[3];
    char allowed[96];
    snprintf(allowed, sizeof allowed, "%zu numbers above 0 or nulls (at most %d)", n,
             TSR_KERNEL_POINTS);
    if (json_array_size(list) != n || n > TSR_KERNEL_POINTS)
        return tsr__doc_fail(doc, "tflops", list, allowed);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, i);
        double tflops = json_number_value(value);
        size_t rest = i;
        uint64_t dims[4];
        for (int axis = 3; axis >= 0; axis--) {
            dims[axis] = (uint64_t)t->axis[axis][rest % t->n[axis]];
            rest /= t->n[axis];
        }
        if (json_is_null(value))
            continue;
        if (!(tflops > 0.0 && tflops <= MAX_TFLOPS))
            return tsr__doc_fail(doc, "tflops", value, allowed);
        double flops = 2.0 * (double)dims[0] * (double)dims[1] * (double)dims[2] * (double)dims[3];
        double seconds = flops / (tflops * 1e12);
        t->log_ratio[i] = (float)log(seconds / tsr__matmul_reference_seconds(t, card, dims));
        t->measured[i] = true;
        t->best_flops = tflops * 1e12 > t->best_flops ? tflops * 1e12 : t->best_flops;
    }
    return TSR_OK;
}

static tsr_status read_matmul(const struct tsr__doc *doc, const struct tsr_card *card,
                              struct tsr_matmul_table *t)
{
    static const char *const axes[] = {"m", "n", "k", "batch"};
    static const char *const dtypes[TSR_N_PEAKS] = {
        [TSR_PEAK_BF16] = "bf16", [TSR_PEAK_TF32] = "tf32"};
    TSR_TRY(read_word(doc, "dtype", dtypes, TSR_N_PEAKS, &t->peak));
    if (card->peak_flops[t->peak] <= 0.0 || card->memory_bw <= 0.0 || !card->sm_count)
        return tsr__doc_fail(doc, "dtype", tsr__doc_find(doc, "dtype"),
                             "one whose peak the card of the file has, with its multiprocessors "
                             "and bandwidth");
    TSR_TRY(read_tile_model(doc, &t->model));
    for (int i = 0; i < 4; i++)
        TSR_TRY(read_axis(doc, axes[i], t->axis[i], &t->n[i]));
    TSR_TRY(read_rates(doc, card, t));
    tsr_matmul_fill(t);
    return TSR_OK;
}

/* ---- attention and norms --------------------------------------------------------------------- */

static tsr_status read_attention(const struct tsr__doc *doc, struct tsr_attention_curve *c)
{
    const char *kernels[TSR_N_ATTENTION_KERNELS] = {NULL};
    uint64_t head;
    for (int i = TSR_ATTN_AUTO + 1; i < TSR_N_ATTENTION_KERNELS; i++)
        kernels[i] = tsr_attention_kernel_name((enum tsr_attention_kernel)i);
    TSR_TRY(read_word(doc, "kernel", kernels, TSR_N_ATTENTION_KERNELS, &c->kernel));
    TSR_TRY(read_backward(doc, &c->backward));
    const json_t *causal = tsr__doc_find(doc, "causal");
    if (!json_is_boolean(causal))
        return tsr__doc_fail(doc, "causal", causal, "true or false");
    c->causal = json_is_true(causal);
    TSR_TRY(tsr__doc_count(doc, "head_size", TSR__REQUIRED, 1024, &head));
    c->head_size = (uint16_t)head;
    TSR_TRY(read_axis(doc, "seq", c->length, &c->n));
    TSR_TRY(read_as_many(doc, "tflops", MAX_TFLOPS, TSR_KERNEL_AXIS, c->flops, c->n));
    for (uint32_t i = 0; i < c->n; i++)
        c->flops[i] *= 1e12F;
    return TSR_OK;
}

static tsr_status read_norm(const struct tsr__doc *doc, struct tsr_norm_table *t)
{
    static const char *const kernels[TSR_N_NORM_KERNELS] = {NULL, "eager", "compiled", "cudnn"};
    float us[TSR_KERNEL_SHAPES];
    double per_element;
    TSR_TRY(read_word(doc, "backend", kernels, TSR_N_NORM_KERNELS, &t->kernel));
    TSR_TRY(read_backward(doc, &t->backward));
    TSR_TRY(tsr__doc_number(doc, "start_s", TSR__REQUIRED, MIN_SECONDS, MAX_SECONDS, &t->start_s));
    TSR_TRY(tsr__doc_number(doc, "bytes_per_s", TSR__REQUIRED, 1e6, 1e16, &t->bytes_per_s));
    TSR_TRY(tsr__doc_number(doc, "bytes_per_element", TSR__REQUIRED, 1.0, 64.0, &per_element));
    if (!tsr__doc_find(doc, "rows")) /* the straight line alone */
        return TSR_OK;
    TSR_TRY(tsr__doc_numbers(doc, "rows", 1.0, MAX_SIZE, TSR_KERNEL_SHAPES, t->rows, &t->n));
    TSR_TRY(read_as_many(doc, "columns", MAX_SIZE, TSR_KERNEL_SHAPES, t->columns, t->n));
    TSR_TRY(read_as_many(doc, "us", 1e9, TSR_KERNEL_SHAPES, us, t->n));
    for (uint32_t i = 0; i < t->n; i++) {
        double bytes = (double)t->rows[i] * (double)t->columns[i] * per_element;
        t->log_ratio[i] = (float)log((double)us[i] * 1e-6 / (t->start_s + bytes / t->bytes_per_s));
    }
    return TSR_OK;
}

/* ---- a file ---------------------------------------------------------------------------------- */

static tsr_status read_lists(const struct tsr__doc *doc, const struct tsr_card *card,
                             struct tsr_kernels *out)
{
    static const char *const of_matmul[] = {
        "dtype", "source", "start_s", "extra_k", "peak_share", "memory_share", "tiles", "m",
        "n",     "k",      "batch",   "tflops",  NULL};
    static const char *const of_attention[] = {"kernel", "pass", "causal", "head_size",
                                               "source", "seq",  "tflops", NULL};
    static const char *const of_norm[] = {
        "backend", "pass", "start_s", "bytes_per_s", "bytes_per_element",
        "source",  "rows", "columns", "us",          NULL};
    uint8_t file = (uint8_t)(out->n_files - 1);
    struct item item;
    size_t n;
    TSR_TRY(list_size(doc, "matmul", sizeof out->matmul / sizeof *out->matmul - out->n_matmul, &n));
    for (size_t i = 0; i < n; i++) {
        struct tsr_matmul_table *t = &out->matmul[out->n_matmul++];
        t->card = file;
        TSR_TRY(open_item(doc, "matmul", i, of_matmul, &item));
        TSR_TRY(read_matmul(&item.doc, card, t));
    }
    TSR_TRY(list_size(doc, "attention", TSR_KERNEL_CURVES - out->n_attention, &n));
    for (size_t i = 0; i < n; i++) {
        struct tsr_attention_curve *c = &out->attention[out->n_attention++];
        c->card = file;
        TSR_TRY(open_item(doc, "attention", i, of_attention, &item));
        TSR_TRY(read_attention(&item.doc, c));
    }
    TSR_TRY(list_size(doc, "norms", TSR_KERNEL_NORMS - out->n_norms, &n));
    for (size_t i = 0; i < n; i++) {
        struct tsr_norm_table *t = &out->norms[out->n_norms++];
        t->card = file;
        TSR_TRY(open_item(doc, "norms", i, of_norm, &item));
        TSR_TRY(read_norm(&item.doc, t));
    }
    return tsr__measured_read(doc, file, out);
}

tsr_status tsr__kernels_read(const struct tsr__doc *doc, const struct tsr_card *card,
                             struct tsr_kernels *out)
{
    uint32_t i = out->n_files++;
    TSR_CHECK(i < TSR_KERNEL_FILES);
    out->files[i].card = *card;
    TSR_TRY(
        tsr__doc_string(doc, "name", TSR__REQUIRED, out->files[i].name, sizeof out->files[i].name));
    TSR_TRY(tsr__doc_string(doc, "description", TSR__REQUIRED, out->files[i].description,
                            sizeof out->files[i].description));
    TSR_TRY(read_lists(doc, card, out));
    return tsr__doc_check(doc, (const char *const[]){"source", "notes", NULL});
}

/* ---- where the times come from --------------------------------------------------------------- */

/* Says where the kernel times of a card come from (tsr_kernel_sources). */

static const char *file_name(const struct tsr_gpu *gpu, uint8_t card)
{
    return tsr_gpu_kernels(gpu)->files[card].name;
}

static const char *card_name(const struct tsr_gpu *gpu, uint8_t card)
{
    return tsr_gpu_kernels(gpu)->files[card].card.name;
}

static void matmul_text(const struct tsr_gpu *gpu, char *out, size_t size)
{
    const struct tsr_kernels *k = tsr_gpu_kernels(gpu);
    if (!k->n_matmul)
        snprintf(out, size, "matrix products: no table; model of tiles at the best published rate");
    else if (tsr__matmul_is_measured(gpu, &k->matmul[0]))
        snprintf(out, size, "matrix products: table %s, measured on %s%s",
                 file_name(gpu, k->matmul[0].card), card_name(gpu, k->matmul[0].card),
                 strcmp(gpu->name, card_name(gpu, k->matmul[0].card)) ? ", taken as it is" : "");
    else
        snprintf(out, size,
                 "matrix products: scaled; the model of tiles of table %s (%s) at the best "
                 "published rate of this card",
                 file_name(gpu, k->matmul[0].card), card_name(gpu, k->matmul[0].card));
}

/* Kernels of one file, "flash2, cudnn"; "" when an earlier file has them all. */
static void kernels_of(const struct tsr_gpu *gpu, uint8_t card, bool *seen, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < tsr_gpu_kernels(gpu)->n_attention && used < size; i++) {
        const struct tsr_attention_curve *c = &tsr_gpu_kernels(gpu)->attention[i];
        bool here = c->kernel != TSR_ATTN_FLASH3 || gpu->traits.has_flash3;
        if (c->card != card || seen[c->kernel] || !here)
            continue;
        seen[c->kernel] = true;
        used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "",
                                 tsr_attention_kernel_name((enum tsr_attention_kernel)c->kernel));
    }
}

static void measured_text(const struct tsr_gpu *gpu, char *out, size_t size)
{
    const struct tsr_kernels *k = tsr_gpu_kernels(gpu);
    snprintf(out, size,
             "by name: table %s, %u kernels in %u runs on %s%s; what follows is for others",
             file_name(gpu, k->measured[0].card), k->n_measured, k->n_runs,
             card_name(gpu, k->measured[0].card),
             strcmp(gpu->name, card_name(gpu, k->measured[0].card)) ? ", not used here" : "");
}

static void norm_text(const struct tsr_gpu *gpu, char *out, size_t size)
{
    const struct tsr_kernels *k = tsr_gpu_kernels(gpu);
    if (!k->n_norms)
        snprintf(out, size, "norms: no table; a share of the nominal bandwidth");
    else
        snprintf(out, size, "norms: table %s, measured on %s%s", file_name(gpu, k->norms[0].card),
                 card_name(gpu, k->norms[0].card),
                 strcmp(gpu->name, card_name(gpu, k->norms[0].card))
                     ? ", scaled by bandwidth, multiprocessors and clock"
                     : "");
}

static const char *attention_scaling(const struct tsr_gpu *gpu, const struct tsr_card *from)
{
    double here = gpu->peak_flops[TSR_PEAK_BF16], there = from->peak_flops[TSR_PEAK_BF16];
    if (!strcmp(gpu->name, from->name))
        return "";
    if (here <= 0.0) /* in fp16, which runs at the same rate */
        return ", scaled by the ratio of its fp16 peak to the bf16 peak there";
    return fabs(here - there) <= 1e-9 * there ? ", taken as it is"
                                              : ", scaled by the ratio of bf16 peaks";
}

size_t tsr_kernel_sources(const struct tsr_gpu *gpu, char (*out)[256], size_t n)
{
    bool seen[TSR_N_ATTENTION_KERNELS] = {false};
    char kernels[128];
    size_t used = 0;
    if (tsr_gpu_kernels(gpu)->n_measured && used < n)
        measured_text(gpu, out[used++], sizeof *out);
    if (used < n)
        matmul_text(gpu, out[used++], sizeof *out);
    for (uint32_t card = 0; card < tsr_gpu_kernels(gpu)->n_files; card++) {
        kernels_of(gpu, (uint8_t)card, seen, kernels, sizeof kernels);
        if (!*kernels || used >= n)
            continue;
        const struct tsr_card *from = &tsr_gpu_kernels(gpu)->files[card].card;
        snprintf(out[used++], sizeof *out, "attention: table %s, measured on %s%s: %s",
                 tsr_gpu_kernels(gpu)->files[card].name, from->name, attention_scaling(gpu, from),
                 kernels);
    }
    if (!tsr_gpu_kernels(gpu)->n_attention && used < n)
        snprintf(out[used++], sizeof *out, "attention: no table; share of the peak on an H100");
    if (used < n)
        norm_text(gpu, out[used++], sizeof *out);
    if (used < n)
        snprintf(out[used++], sizeof *out,
                 "eager losses: shares of the nominal bandwidth as on an A100 and an H100; other "
                 "kernels: assumed shares");
    return used;
}
