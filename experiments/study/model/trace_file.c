/* trace_file.c: reads the file of a traced model, checks its hash, and hands its parts
 * to trace_parts.c and trace_variants.c.
 */
#include "experiments/study/model/trace_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/gz.h"
#include "experiments/study/model/model.h"
#include "experiments/study/model/trace_json.h"
#include "sim/base/json_load.h"
#include "sim/base/sha256.h"

enum { VERSION = 1, MAX_BYTES = 64 << 20 };

/* ---- the hash -------------------------------------------------------------------------------- */

/* Python escapes with small digits, jansson with capital ones. */
static void lower_escapes(char *text)
{
    for (char *at = strchr(text, '\\'); at; at = strchr(at, '\\')) {
        if (at[1] == 'u')
            for (int i = 2; i < 6 && at[i]; i++)
                if (at[i] >= 'A' && at[i] <= 'F')
                    at[i] = (char)(at[i] - 'A' + 'a');
        at += at[1] ? 2 : 1;
    }
}

tsr_status tsr__trace_hash(const json_t *root, const char *path, char out[TSR__TRACE_HASH])
{
    unsigned char hash[TSR_SHA256_BYTES];
    json_t *copy = json_copy((json_t *)(uintptr_t)root);
    if (copy) {
        (void)json_object_del(copy, "made_by");
        (void)json_object_del(copy, "sha256");
    }
    char *text = copy ? json_dumps(copy, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENSURE_ASCII) : NULL;
    json_decref(copy);
    if (!text)
        return tsr_no_memory(path);
    lower_escapes(text);
    struct tsr_sha256 sha = tsr_sha256_begin();
    tsr_sha256_add(&sha, text, strlen(text));
    tsr_sha256_end(&sha, hash);
    free(text);
    for (size_t i = 0; i < TSR_SHA256_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", hash[i]);
    return TSR_OK;
}

static tsr_status check_hash(const struct tsr__trace_reader *r, const json_t *root)
{
    struct tsr_traced_file *t = r->trace;
    struct tsr__trace_at at = {r, root, "sha256", SIZE_MAX};
    char first[17];
    TSR_TRY(tsr__trace_hash(root, r->path, t->sha256));
    snprintf(first, sizeof first, "%.16s", t->sha256);
    t->model.hash = strtoull(first, NULL, 16);
    const char *found = json_string_value(json_object_get(root, "sha256"));
    if (found && !strcmp(found, t->sha256))
        return TSR_OK;
    return tsr__trace_wrong(&at, json_object_get(root, "sha256"),
                            "the hash of what the file says: it was damaged or changed");
}

/* ---- the file -------------------------------------------------------------------------------- */

static tsr_status read_head(const struct tsr__trace_reader *r, const json_t *root)
{
    static const char *const keys[] = {"tessera_trace", "made_by", "model", "variants",
                                       "modules",       "params",  "ops",   "segments",
                                       "classes",       "sha256",  NULL};
    static const char *const model_keys[] = {"source", "class", "?blocks", NULL};
    struct tsr__trace_at at = {r, root, "the trace", SIZE_MAX};
    const json_t *version = json_object_get(root, "tessera_trace");
    if (!json_is_object(root) || !version)
        return tsr_fail(TSR_ECONFIG,
                        "%s: is no trace; allowed: a file that `python -m tessera "
                        "trace` wrote",
                        r->path);
    if (!json_is_integer(version) || json_integer_value(version) != VERSION)
        return tsr__trace_wrong(&at, version, "version 1");
    TSR_TRY(tsr__trace_keys(&at, keys));
    at.list = "model";
    at.value = json_object_get(root, "model");
    TSR_TRY(tsr__trace_keys(&at, model_keys));
    TSR_TRY(tsr__trace_text(&at, json_object_get(at.value, "source"), false, &r->trace->source));
    return tsr__trace_text(&at, json_object_get(at.value, "class"), false, &r->trace->type);
}

static tsr_status read_blocks(const struct tsr__trace_reader *r, const json_t *list)
{
    struct tsr_traced_file *t = r->trace;
    struct tsr__trace_at at = {r, list, "model.blocks", SIZE_MAX};
    if (!list)
        return TSR_OK;
    TSR_TRY(tsr__trace_list_of(&at, list, 0, t->model.n_modules));
    uint32_t *blocks = tsr__trace_memory(r, json_array_size(list), sizeof *blocks);
    if (!blocks)
        return tsr_no_memory(r->path);
    for (size_t i = 0; i < json_array_size(list); i++)
        TSR_TRY(tsr__trace_u32(&at, json_array_get(list, i), t->model.n_modules - 1, &blocks[i]));
    t->blocks = blocks;
    t->n_blocks = json_array_size(list);
    return TSR_OK;
}

static tsr_status check_variants(const struct tsr__trace_reader *r)
{
    struct tsr_traced_file *t = r->trace;
    for (size_t i = 0; i < t->n_variants; i++) {
        tsr_traced_file_choose(t, &t->variants[i]);
        tsr_status status = tsr_traced_check(&t->model);
        char text[256];
        snprintf(text, sizeof text, "%s", tsr_error_text());
        if (status == TSR_EVALUE)
            return tsr_fail(TSR_ECONFIG,
                            "%s: variants[%zu]: %s; allowed: a trace as TRACE.md has "
                            "it",
                            r->path, i, text);
        TSR_TRY(status);
    }
    return TSR_OK;
}

static tsr_status read_root(const struct tsr__trace_reader *r, const json_t *root)
{
    TSR_TRY(read_head(r, root));
    TSR_TRY(tsr__trace_read_asked(r, root));
    TSR_TRY(tsr__trace_read_parts(r, root));
    TSR_TRY(read_blocks(r, json_object_get(json_object_get(root, "model"), "blocks")));
    TSR_TRY(tsr__trace_read_variants(r, root));
    TSR_TRY(check_variants(r));
    return check_hash(r, root); /* the last: nothing before it is left unchecked because of it */
}

tsr_status tsr_traced_file_load(const char *path, struct tsr_traced_file *out)
{
    char *text = NULL;
    size_t n = 0;
    json_error_t error;
    memset(out, 0, sizeof *out);
    tsr_arena_init(&out->arena);
    struct tsr__trace_reader r = {path, &out->arena, out};
    out->path = tsr_arena_printf(&out->arena, "%s", path);
    tsr_status status = out->path ? tsr_gz_load(path, MAX_BYTES, &text, &n) : tsr_no_memory(path);
    json_t *root = NULL;
    if (status == TSR_OK) {
        root = tsr_json_loadb(text, n, TSR_TEXT_MANY_VALUES, &error);
        status = root ? read_root(&r, root)
                      : tsr_fail(TSR_ECONFIG, "%s:%d: %s", path, error.line, error.text);
    }
    json_decref(root);
    free(text);
    if (status != TSR_OK)
        tsr_traced_file_fini(out);
    return status;
}

void tsr_traced_file_fini(struct tsr_traced_file *trace)
{
    tsr_arena_fini(&trace->arena);
    memset(trace, 0, sizeof *trace);
}

void tsr_traced_file_choose(struct tsr_traced_file *t, const struct tsr_trace_variant *v)
{
    memcpy(t->model.plain, v->plain, sizeof t->model.plain);
    memcpy(t->model.instrumented, v->instrumented, sizeof t->model.instrumented);
    t->model.compute = v->param_dtype ? tsr_dtype_parse(v->param_dtype) : TSR_DTYPE_NONE;
    t->model.hooked = v->hooked;
    t->model.needs = v->needs;
    t->model.casts = v->cast_at;
    t->model.cannot = v->cannot;
    t->model.groups = v->groups;
}

void tsr_traced_file_list(const struct tsr_traced_file *t, char *out, size_t size)
{
    size_t used = 0;
    *out = 0;
    for (size_t i = 0; i < t->n_variants && used + 40 < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%.30s", i ? ", " : "",
                                 t->variants[i].name);
}

/* ---- as a model ------------------------------------------------------------------------------ */

void tsr__model_name_after(const char *path, struct tsr_model *out)
{
    const char *slash = strrchr(path, '/');
    snprintf(out->path, sizeof out->path, "%s", path);
    snprintf(out->name, sizeof out->name, "%s", slash ? slash + 1 : path);
    char *dot = strrchr(out->name, '.');
    if (dot && dot != out->name)
        *dot = 0;
}

tsr_status tsr_model_load_trace(const char *path, struct tsr_model *out)
{
    memset(out, 0, sizeof *out);
    tsr_arena_init(&out->doc.arena);
    struct tsr_traced_file *trace = malloc(sizeof *trace);
    if (!trace)
        return tsr_no_memory(path);
    tsr_status status = tsr_traced_file_load(path, trace);
    if (status != TSR_OK) {
        free(trace);
        return status;
    }
    tsr__model_name_after(path, out);
    out->type = "trace";
    out->family = TSR_FAMILY_TRACED;
    out->trace = trace;
    out->counts.total = out->counts.active = trace->n_elements;
    return TSR_OK;
}
