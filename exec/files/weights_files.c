/* weights_files.c: which files a model has, and which tensors are in them. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "exec/files/weights_impl.h"

enum { INDEX_MAX_BYTES = 100000000, NAMED = 8 };

/* ---- lists in error lines -------------------------------------------------------------------- */

/* "a, b, c and 12 more" */
struct list {
    char text[700];
    size_t used, n;
};

static void add_name(struct list *l, const char *name)
{
    if (l->n++ < NAMED && l->used < sizeof l->text - 80)
        l->used += (size_t)snprintf(l->text + l->used, sizeof l->text - l->used, "%s%.70s",
                                    l->used ? ", " : "", tsr_show(name).text);
    else
        snprintf(l->text + l->used, sizeof l->text - l->used, " and more, %zu in all", l->n);
}

/* ---- opening --------------------------------------------------------------------------------- */

static tsr_status add_file(struct tsr_weights *w, const char *path, struct tsr_safetensors **out)
{
    TSR_TRY(tsr_safetensors_open(path, out));
    if (TSR_PUSH(w->files, w->n_files, w->cap_files, *out))
        return TSR_OK;
    tsr_safetensors_close(*out);
    return tsr_no_memory(NULL);
}

static tsr_status open_single(struct tsr_weights *w, const char *path)
{
    struct tsr_safetensors *file = NULL;
    TSR_TRY(add_file(w, path, &file));
    for (size_t i = 0; i < tsr_safetensors_count(file); i++) {
        struct tsr_weight weight = {file, tsr_safetensors_tensor(file, i)};
        if (!TSR_PUSH(w->tensors, w->n, w->cap, weight))
            return tsr_no_memory(NULL);
    }
    return TSR_OK;
}

struct index {
    struct tsr_weights *w;
    const char *path; /* of the index */
    char folder[TSR_PATH_BYTES];
    struct list missing_files, missing_tensors;
};

static struct tsr_safetensors *opened(const struct tsr_weights *w, const char *path)
{
    for (size_t i = 0; i < w->n_files; i++)
        if (!strcmp(tsr_safetensors_path(w->files[i]), path))
            return w->files[i];
    return NULL;
}

static tsr_status check_entry(const struct index *x, const char *tensor, const json_t *value)
{
    const char *file = json_string_value(value);
    if (!file || !*file || strchr(file, '/'))
        return tsr_fail(TSR_ECONFIG, "%s: weight_map: \"%s\": not the name of a file beside it",
                        x->path, tsr_show(tensor).text);
    return TSR_OK;
}

static tsr_status open_indexed_files(struct index *x, json_t *map)
{
    const char *name;
    const json_t *value;
    char path[TSR_PATH_BYTES];
    json_t *seen = json_object();
    tsr_status status;
    TSR_GOTO(end, seen ? TSR_OK : tsr_no_memory(NULL));
    json_object_foreach(map, name, value)
    {
        struct stat info;
        struct tsr_safetensors *file = NULL;
        TSR_GOTO(end, check_entry(x, name, value));
        if (json_object_get(seen, json_string_value(value)))
            continue;
        json_object_set_new(seen, json_string_value(value), json_true());
        TSR_GOTO(end, tsr_path(path, "%s/%s", x->folder, json_string_value(value)));
        if (stat(path, &info) != 0)
            add_name(&x->missing_files, json_string_value(value));
        else
            TSR_GOTO(end, add_file(x->w, path, &file));
    }
end:
    json_decref(seen);
    return status;
}

static tsr_status add_indexed_tensors(struct index *x, json_t *map)
{
    const char *name;
    const json_t *value;
    char path[TSR_PATH_BYTES];
    json_object_foreach(map, name, value)
    {
        TSR_TRY(tsr_path(path, "%s/%s", x->folder, json_string_value(value)));
        struct tsr_safetensors *file = opened(x->w, path);
        struct tsr_weight weight = {file, file ? tsr_safetensors_find(file, name) : NULL};
        if (!weight.tensor)
            add_name(&x->missing_tensors, name);
        else if (!TSR_PUSH(x->w->tensors, x->w->n, x->w->cap, weight))
            return tsr_no_memory(NULL);
    }
    return TSR_OK;
}

static tsr_status read_index(struct index *x, json_t *map)
{
    if (!json_is_object(map))
        return tsr_fail(TSR_ECONFIG, "%s: weight_map: missing or not an object", x->path);
    TSR_TRY(open_indexed_files(x, map));
    if (x->missing_files.n)
        return tsr_fail(TSR_ECONFIG, "%s: weight_map: files that are not there: %s", x->path,
                        x->missing_files.text);
    TSR_TRY(add_indexed_tensors(x, map));
    if (x->missing_tensors.n)
        return tsr_fail(TSR_ECONFIG, "%s: weight_map: tensors that are not in their files: %s",
                        x->path, x->missing_tensors.text);
    return TSR_OK;
}

static tsr_status open_index(struct tsr_weights *w, const char *path)
{
    struct index x = {.w = w, .path = path};
    const char *slash = strrchr(path, '/');
    char *text = NULL;
    size_t n = 0;
    json_error_t error;
    TSR_TRY(tsr_path(x.folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : "."));
    TSR_TRY(tsr_disk_read_file(path, INDEX_MAX_BYTES, &text, &n));
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (!root)
        return tsr_fail(TSR_ECONFIG, "%s:%d: %s", path, error.line, tsr_show(error.text).text);
    tsr_status status = read_index(&x, json_object_get(root, "weight_map"));
    json_decref(root);
    return status;
}

static bool ends(const char *text, const char *with)
{
    size_t n = strlen(text), m = strlen(with);
    return n >= m && !strcmp(text + n - m, with);
}

static tsr_status open_path(struct tsr_weights *w)
{
    struct stat info;
    char path[TSR_PATH_BYTES];
    if (ends(w->path, ".json"))
        return open_index(w, w->path);
    if (stat(w->path, &info) != 0 || !S_ISDIR(info.st_mode))
        return open_single(w, w->path);
    TSR_TRY(tsr_path(path, "%s/model.safetensors", w->path));
    if (stat(path, &info) == 0)
        return open_single(w, path);
    TSR_TRY(tsr_path(path, "%s/model.safetensors.index.json", w->path));
    if (stat(path, &info) == 0)
        return open_index(w, path);
    return tsr_fail(TSR_ECONFIG,
                    "%s: has neither model.safetensors nor model.safetensors.index.json", w->path);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tsr_weight *)a)->tensor->name,
                  ((const struct tsr_weight *)b)->tensor->name);
}

tsr_status tsr_weights_open(const char *path, struct tsr_weights **out)
{
    struct tsr_weights *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w)
        return tsr_no_memory(NULL);
    tsr_status status = tsr_path(w->path, "%s", path);
    if (status == TSR_OK)
        status = open_path(w);
    if (status != TSR_OK) {
        tsr_weights_close(w);
        return status;
    }
    if (w->n)
        qsort(w->tensors, w->n, sizeof *w->tensors, by_name);
    *out = w;
    return TSR_OK;
}

void tsr_weights_close(struct tsr_weights *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->n_files; i++)
        tsr_safetensors_close(w->files[i]);
    free(w->files);
    free(w->tensors);
    free(w);
}

/* ---- questions ------------------------------------------------------------------------------- */

static int name_against(const void *name, const void *weight)
{
    return strcmp(name, ((const struct tsr_weight *)weight)->tensor->name);
}

struct tsr_weight tsr__weight_find(const struct tsr_weights *w, const char *name)
{
    const struct tsr_weight *found =
        w->n ? bsearch(name, w->tensors, w->n, sizeof *w->tensors, name_against) : NULL;
    return found ? *found : (struct tsr_weight){0};
}
