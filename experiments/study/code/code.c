/* code.c: a folder of written strategies: names of files, the comment at the top of each, and what
 * the folder says of itself. */
#include "experiments/study/code/code.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "sim/base/text.h"

const char *const tsr_words_code[] = {"torch", "torchtitan", "accelerate", NULL};
static const char *const endings[] = {".py", ".toml", ".yaml"};
static const double GIB = 1073741824.0;

tsr_status tsr_code_format_of(const char *word, enum tsr_code_format *out)
{
    char words[64];
    for (int i = 0; i < TSR_N_CODES; i++) {
        *out = (enum tsr_code_format)i;
        if (!strcmp(word, tsr_words_code[i]))
            return TSR_OK;
    }
    tsr_join_words(tsr_words_code, words, sizeof words);
    return tsr_fail(TSR_ECONFIG, "--emit: found %s; allowed: %s, and a folder", word, words);
}

/* ---- the comment at the top ------------------------------------------------------------------ */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void put_prediction(const struct tsr_job *job, const struct tsr_row *row,
                           struct tsr_code_text *to)
{
    const struct tsr_settings *s = job->settings;
    if (row->failure[0]) {
        tsr_code_comment(to, "# ", 2, "Predicted: it does not run: %s", row->failure);
        return;
    }
    char micro[64] = "";
    if (s->accum_steps > 1)
        snprintf(micro, sizeof micro, ", %" PRIu64 " micro-batches", s->accum_steps);
    tsr_code_comment(to, "# ", 2,
                     "Predicted for batch %" PRIu64 " x %" PRIu64 "%s: a step of %.1f ms, at its "
                     "peak %.2f GiB allocated, %.2f GiB reserved%s.",
                     s->batch, s->seq, micro, 1e3 * row->steady.step_s,
                     (double)row->peak_allocated / GIB, (double)row->peak_reserved / GIB,
                     row->fits == TSR_FITS_NO ? ", which does not fit" : "");
    tsr_code_comment(to, "# ", 2, "Program %016" PRIx64 ".", row->program_hash);
}

static void put_use(const struct tsr_code_job *c, const char *file, struct tsr_code_text *to)
{
    bool on_host = c->settings->offload != TSR_OFFLOAD_NONE;
    struct tsr_code_text conf = {.s = NULL};
    tsr_code_add_allocator(&conf, c->settings);
    if (conf.n)
        tsr_code_comment(to, "# ", 2, "PYTORCH_CUDA_ALLOC_CONF=%s before it starts.", conf.s);
    to->failed |= conf.failed;
    tsr_code_text_fini(&conf);
    if (c->format == TSR_CODE_ACCELERATE)
        tsr_code_comment(to, "# ", 2, "accelerate launch --config_file %s train.py", file);
    if (c->format == TSR_CODE_TORCHTITAN)
        tsr_code_comment(to, "# ", 2, "CONFIG_FILE=%s ./run_train.sh", file);
    if (c->format != TSR_CODE_TORCH)
        return;
    if (c->settings->api == TSR_API_DDP || c->settings->api == TSR_API_FSDP1) {
        tsr_code_comment(to, "# ", 2, "Use: model = apply(model.cuda(), build_mesh()).");
        return;
    }
    tsr_code_comment(to, "# ", 2,
                     "Use: build the model on the meta device; model = apply(model, "
                     "build_mesh()); model.to_empty(device=\"%s\"); then initialise or load it, "
                     "and make the optimizer.%s",
                     on_host ? "cpu" : "cuda", on_host ? " Buffers go to the GPU." : "");
}

unsigned tsr_code_reduce_dtype(const struct tsr_settings *s)
{
    return s->reduce ? s->reduce : s->param ? s->param : s->master;
}

void tsr_code_add_allocator(struct tsr_code_text *to, const struct tsr_settings *s)
{
    const struct tsr_allocator_config *a = &s->allocator;
    if (a->expandable_segments)
        tsr_code_add(to, ",expandable_segments:True");
    if (a->max_split_bytes)
        tsr_code_add(to, ",max_split_size_mb:%llu", (unsigned long long)a->max_split_bytes >> 20);
    if (a->roundup_power2_divisions)
        tsr_code_add(to, ",roundup_power2_divisions:%u", (unsigned)a->roundup_power2_divisions);
    if (a->gc_threshold > 0)
        tsr_code_add(to, ",garbage_collection_threshold:%g", a->gc_threshold);
    if (a->large_segment_bytes)
        tsr_code_add(to, ",large_segment_size_mb:%llu",
                     (unsigned long long)a->large_segment_bytes >> 20);
    if (to->n)
        memmove(to->s, to->s + 1, to->n--); /* the first comma */
}

static tsr_status put_all(const struct tsr_code_job *c, const char *with, const char *file,
                          const struct tsr_row *row, struct tsr_code_text *to)
{
    static tsr_status (*const put[])(const struct tsr_code_job *, struct tsr_code_text *) = {
        tsr_code_put_torch, tsr_code_put_torchtitan, tsr_code_put_accelerate};
    const struct tsr_job *job = c->job;
    const char *cluster = job->cluster.name;
    tsr_code_comment(
        to, "# ", 2, "%s on %u GPUs%s%s: strategy %s of %s%s%s, written by tessera %s.",
        job->model.name, job->world, *cluster ? " of " : "", cluster, job->strategy->name,
        base_name(job->experiment->path), with ? " with " : "", with ? with : "", TSR_VERSION);
    if (job->settings->description)
        tsr_code_comment(to, "# ", 2, "%s", job->settings->description);
    put_prediction(job, row, to);
    tsr_code_add(to, "#\n");
    put_use(c, file, to);
    if (c->format == TSR_CODE_TORCHTITAN)
        tsr_code_put_torchtitan_lacks(c, to);
    if (c->format == TSR_CODE_ACCELERATE)
        TSR_TRY(tsr_code_put_accelerate_lacks(c, to));
    bool asks = job->settings->accum_steps > 1 && job->settings->accum_mode;
    if (c->format == TSR_CODE_TORCH && asks && c->wrapping.n_calls &&
        !tsr_code_wraps_root(&c->wrapping))
        tsr_code_comment(to, "# ", 2,
                         "Not said: accumulation.mode=%s: the root is in no group, so every "
                         "micro-batch reduces, as was predicted.",
                         tsr_words_accum[job->settings->accum_mode]);
    TSR_TRY(tsr_code_put_unsaid(c, to));
    bool stops;
    const char *fault = tsr_ddp_mixed_fault(job, &stops);
    if (fault && c->format == TSR_CODE_TORCH)
        tsr_code_comment(to, "# ", 2, "Note: precision.param=%s " TSR_DDP_MIXED_FAULT ".",
                         tsr_dtype_name((tsr_dtype)job->settings->param), fault);
    if (c->format == TSR_CODE_TORCH)
        tsr_code_add(to, "\n");
    return put[c->format](c, to);
}

/* ---- names of files -------------------------------------------------------------------------- */

/* A name that Python can import, and no other strategy has. */
static void name_file(struct tsr_code_folder *folder, const char *strategy, char out[128])
{
    char plain[96];
    size_t n = 0;
    if (isdigit((unsigned char)strategy[0]))
        plain[n++] = 's';
    for (const char *at = strategy; *at && n + 1 < sizeof plain; at++)
        plain[n++] = isalnum((unsigned char)*at) ? *at : '_';
    plain[n] = '\0';
    for (int copy = 1;; copy++) {
        char listed[160];
        if (copy == 1)
            snprintf(out, 128, "%s%s", plain, endings[folder->format]);
        else
            snprintf(out, 128, "%s_%d%s", plain, copy, endings[folder->format]);
        snprintf(listed, sizeof listed, "/%s/", out);
        if (!strstr(tsr_code_str(&folder->names), listed)) {
            tsr_code_add(&folder->names, "%s", listed);
            return;
        }
    }
}

/* ---- writing --------------------------------------------------------------------------------- */

struct writing {
    struct tsr_code_folder *folder;
    const char *with;
    const struct tsr_row *row;
    char file[128];
};

static tsr_status write_engine(const struct tsr_job *job, struct tsr_engine *engine, void *user)
{
    struct writing *w = user;
    struct tsr_code_job code = {
        .job = job, .settings = job->settings, .engine = engine, .format = w->folder->format};
    struct tsr_code_text text = {.s = NULL};
    TSR_TRY(tsr_wrapping_of(job, engine, &code.wrapping));
    tsr_status status = put_all(&code, w->with, w->file, w->row, &text);
    if (status == TSR_OK && text.failed)
        status = tsr_no_memory("a written strategy");
    if (status == TSR_OK)
        status = tsr_write_in(w->folder->path, w->file, tsr_put_text, tsr_code_str(&text));
    tsr_code_text_fini(&text);
    tsr_wrapping_fini(&code.wrapping);
    return status;
}

tsr_status tsr_code_write(struct tsr_code_folder *folder, const char *name, const char *with,
                          const struct tsr_job *job, const struct tsr_row *row)
{
    struct writing w = {.folder = folder, .with = with, .row = row};
    name_file(folder, name, w.file);
    TSR_TRY(tsr_build_aside(job, write_engine, &w));
    struct tsr_shown shown = tsr_show(name);
    if (row->failure[0])
        tsr_code_add(&folder->list, "| [`%s`](%s) | %s | does not run | |\n", w.file, w.file,
                     shown.text);
    else
        tsr_code_add(&folder->list, "| [`%s`](%s) | %s | %.1f ms | %.2f GiB |\n", w.file, w.file,
                     shown.text, 1e3 * row->steady.step_s, (double)row->peak_reserved / GIB);
    return TSR_OK;
}

tsr_status tsr_code_finish(struct tsr_code_folder *folder)
{
    static const char *const about[] = {
        "Each file has `build_mesh()` and `apply(model, mesh)` and needs PyTorch alone, 2.9 or "
        "newer; the calls\nare those of PyTorch 2.11.",
        "Options are those of torchtitan's `config/job_config.py` while it read TOML (2025; since "
        "February 2026 its\nconfiguration is Python, with the same names).",
        "Options are those of Accelerate 1.10 and newer (`fsdp_version: 2`)."};
    struct tsr_code_text text = {.s = NULL};
    tsr_code_add(&text,
                 "# Strategies for %s\n\nWritten by tessera %s. %s\nThe comment at the top of each "
                 "says what was predicted, and what the file does not say.\n\n"
                 "| file | strategy | step | reserved |\n| --- | --- | ---: | ---: |\n%s",
                 tsr_words_code[folder->format], TSR_VERSION, about[folder->format],
                 tsr_code_str(&folder->list));
    tsr_status status = text.failed || folder->list.failed || folder->names.failed
                            ? tsr_no_memory("a list of strategies")
                            : tsr_write_in(folder->path, "README.md", tsr_put_text, text.s);
    tsr_code_text_fini(&text);
    return status;
}

void tsr_code_folder_fini(struct tsr_code_folder *folder)
{
    tsr_code_text_fini(&folder->names);
    tsr_code_text_fini(&folder->list);
}
