/* export.c: tensor by tensor from shards to one file. */
#include "exec/files/export.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "exec/base/convert.h"
#include "exec/files/safetensors.h"
#include "sim/base/json_load.h"
#include "sim/base/text.h"

struct export
{
    struct tsr_checkpoint *from;
    const struct tsr_export_options *options;
    const struct tsr_state_dict *params;
    struct tsr_disk disk;
    struct tsr_safetensors_writer *file;
};

static const struct tsr_dtensor *layout_of(const struct export *x, size_t entry)
{
    return &x->params->layouts[x->params->entries[entry].layout];
}

static bool is_turned(const struct tsr_hf_name *hf, const struct tsr_dtensor *t)
{
    return hf->transposed && t->n_dims == 2;
}

static tsr_status declare(struct export *x, size_t entry)
{
    const struct tsr_dtensor *t = layout_of(x, entry);
    struct tsr_hf_name hf;
    uint64_t shape[TSR_DT_MAX_DIMS];
    TSR_TRY(tsr_hf_name(&x->options->model, x->params->entries[entry].fqn, &hf));
    for (int i = 0; i < t->n_dims; i++)
        shape[i] = t->shape[is_turned(&hf, t) ? t->n_dims - 1 - i : i];
    if (hf.head_dim && (t->n_dims == 0 || t->shape[0] % hf.head_dim != 0 || hf.head_dim % 2 != 0))
        return tsr_fail(TSR_ECONFIG, "%s: %s does not consist of heads of %llu",
                        tsr_checkpoint_path(x->from), x->params->entries[entry].fqn,
                        (unsigned long long)hf.head_dim);
    return tsr_safetensors_declare(x->file, hf.name, x->options->dtype, t->n_dims, shape, NULL);
}

/* From the model's order of values to the file's. */
static void arrange(const struct export *x, const struct tsr_hf_name *hf,
                    const struct tsr_dtensor *t, const char *in, char *out)
{
    unsigned bytes = tsr_dtype_bytes(x->options->dtype);
    uint64_t row_bytes = t->shape[0] ? tsr_dtensor_numel(t) / t->shape[0] * bytes : 0;
    if (is_turned(hf, t)) {
        tsr_transpose(in, t->shape[0], t->shape[1], bytes, out);
        return;
    }
    for (uint64_t r = 0; r < t->shape[0]; r++)
        memcpy(out + tsr_hf_row(hf->head_dim, r) * row_bytes, in + r * row_bytes,
               (size_t)row_bytes);
}

/* a, b: room for the tensor in either dtype. */
static tsr_status export_tensor(struct export *x, size_t entry, char *a, char *b)
{
    const struct tsr_state_entry *e = &x->params->entries[entry];
    const struct tsr_dtensor *t = layout_of(x, entry);
    struct tsr_dtensor whole = *t;
    struct tsr_hf_name hf;
    uint64_t numel = tsr_dtensor_numel(t);
    if (!tsr_can_convert(e->dtype, x->options->dtype))
        return tsr_fail(TSR_ECONFIG, "%s: %s is %s, which cannot be exported",
                        tsr_checkpoint_path(x->from), e->fqn, tsr_dtype_name(e->dtype));
    whole.n_mesh = 0;
    TSR_TRY(tsr_hf_name(&x->options->model, e->fqn, &hf));
    TSR_TRY(tsr_checkpoint_read(x->from, TSR_PART_PARAM, e->fqn, e->dtype, &whole, 0, a,
                                numel * tsr_dtype_bytes(e->dtype)));
    tsr_convert(e->dtype, a, x->options->dtype, b, numel);
    char *values = b;
    if (is_turned(&hf, t) || hf.head_dim) {
        arrange(x, &hf, t, b, a);
        values = a;
    }
    return tsr_safetensors_put(x->file, hf.name, values,
                               numel * tsr_dtype_bytes(x->options->dtype));
}

static uint64_t largest(const struct export *x)
{
    uint64_t most = 1;
    for (size_t i = 0; i < x->params->n; i++) {
        unsigned bytes = tsr_dtype_bytes(x->params->entries[i].dtype);
        bytes = (unsigned)tsr_max_u64(bytes, tsr_dtype_bytes(x->options->dtype));
        most = tsr_max_u64(most, tsr_dtensor_numel(layout_of(x, i)) * bytes);
    }
    return most;
}

static tsr_status write_tensors(struct export *x)
{
    TSR_TRY(tsr_safetensors_add_metadata(x->file, "format", "pt")); /* transformers asks for it */
    for (size_t i = 0; i < x->params->n; i++)
        if (x->params->entries[i].alias_of == i)
            TSR_TRY(declare(x, i));
    TSR_TRY(tsr_safetensors_begin(x->file));
    char *a = malloc((size_t)largest(x)), *b = malloc((size_t)largest(x));
    tsr_status status;
    TSR_GOTO(end, a && b ? TSR_OK : tsr_no_memory(NULL));
    for (size_t i = 0; i < x->params->n; i++)
        if (x->params->entries[i].alias_of == i)
            TSR_GOTO(end, export_tensor(x, i, a, b));
    status = tsr_safetensors_finish(x->file);
end:
    free(a);
    free(b);
    return status;
}

static tsr_status write_model(struct export *x, const struct tsr_folder *out)
{
    static const char name[] = "model.safetensors", part[] = "model.safetensors.tmp";
    const struct tsr_st_writer_options options = {.disk = &x->disk, .in = out};
    TSR_TRY(tsr_safetensors_create(part, &options, &x->file));
    tsr_status status = write_tensors(x);
    bool made = status == TSR_OK;
    tsr_safetensors_destroy(x->file);
    if (made)
        status = tsr_disk_move(&x->disk, out, part, name);
    if (made && status != TSR_OK)
        x->disk.remove(x->disk.user, out, part);
    return status;
}

static tsr_status check(const struct export *x)
{
    tsr_dtype dtype = x->options->dtype;
    json_error_t error;
    if (dtype != TSR_F32 && dtype != TSR_BF16 && dtype != TSR_F16)
        return tsr_fail(TSR_EVALUE, "export: dtype %s; allowed: f32, bf16, f16",
                        tsr_dtype_name(dtype));
    json_t *config =
        tsr_json_loadb(x->options->config, strlen(x->options->config), TSR_TEXT_VALUES, &error);
    bool parsed = config != NULL, ok = json_is_object(config);
    json_decref(config);
    if (!ok)
        return tsr_fail(TSR_ECONFIG, "export: config.json is not an object%s%s", parsed ? "" : ": ",
                        parsed ? "" : tsr_show(error.text).text);
    return TSR_OK;
}

tsr_status tsr_export(struct tsr_checkpoint *from, const char *out_dir,
                      const struct tsr_export_options *options)
{
    struct export x = {.from = from,
                       .options = options,
                       .params = tsr_checkpoint_layout(from)->params,
                       .disk = options->disk ? *options->disk : tsr_disk_posix};
    struct tsr_folder out;
    TSR_TRY(check(&x));
    TSR_TRY(tsr_disk_make_dirs(&x.disk, out_dir));
    TSR_TRY(tsr_folder_open(out_dir, &out));
    tsr_status status = write_model(&x, &out);
    if (status == TSR_OK)
        status = tsr_disk_replace_file(&x.disk, &out, "config.json", options->config,
                                       strlen(options->config));
    tsr_folder_close(&out);
    return status;
}
