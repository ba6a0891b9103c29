/* trace_json.c: checked values of a trace. */
#include "experiments/study/model/trace_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/traced/traced_model.h"
#include "sim/base/text.h"

tsr_status tsr__trace_wrong(const struct tsr__trace_at *at, const json_t *found,
                            const char *allowed)
{
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    char shown[80], place[48];
    tsr_text_show(shown, sizeof shown, text ? text : "nothing");
    free(text);
    if (at->index == SIZE_MAX)
        snprintf(place, sizeof place, "%s", at->list);
    else
        snprintf(place, sizeof place, "%s[%zu]", at->list, at->index);
    return tsr_fail(TSR_ECONFIG, "%s: %s: found %s; allowed: %s", at->r->path, place, shown,
                    allowed);
}

static bool is_known(const char *key, const char *const *keys)
{
    for (; *keys; keys++)
        if (!strcmp(key, *keys + (**keys == '?')))
            return true;
    return false;
}

tsr_status tsr__trace_keys(const struct tsr__trace_at *at, const char *const *keys)
{
    const char *key;
    json_t *value;
    char allowed[96];
    if (!json_is_object(at->value))
        return tsr__trace_wrong(at, at->value, "an object");
    json_object_foreach((json_t *)(uintptr_t)at->value, key, value)
    {
        if (is_known(key, keys))
            continue;
        json_t *name = json_string(key);
        tsr_status status = tsr__trace_wrong(at, name, "the keys of TRACE.md");
        json_decref(name);
        return status;
    }
    for (; *keys; keys++)
        if (**keys != '?' && !json_object_get(at->value, *keys)) {
            snprintf(allowed, sizeof allowed, "a key \"%s\"", *keys);
            return tsr__trace_wrong(at, NULL, allowed);
        }
    return TSR_OK;
}

tsr_status tsr__trace_list_of(const struct tsr__trace_at *at, const json_t *list, size_t least,
                              size_t most)
{
    char allowed[80];
    if (json_is_array(list) && json_array_size(list) >= least && json_array_size(list) <= most)
        return TSR_OK;
    snprintf(allowed, sizeof allowed, "a list of %zu to %zu values", least, most);
    return tsr__trace_wrong(at, list, allowed);
}

tsr_status tsr__trace_u64(const struct tsr__trace_at *at, const json_t *value, uint64_t least,
                          uint64_t most, uint64_t *out)
{
    char allowed[80];
    json_int_t n = json_is_integer(value) ? json_integer_value(value) : -1;
    if (n >= 0 && (uint64_t)n >= least && (uint64_t)n <= most) {
        *out = (uint64_t)n;
        return TSR_OK;
    }
    snprintf(allowed, sizeof allowed, "an integer from %llu to %llu", (unsigned long long)least,
             (unsigned long long)most);
    return tsr__trace_wrong(at, value, allowed);
}

tsr_status tsr__trace_u32(const struct tsr__trace_at *at, const json_t *value, uint64_t most,
                          uint32_t *out)
{
    uint64_t wide = 0;
    TSR_TRY(tsr__trace_u64(at, value, 0, most < UINT32_MAX ? most : UINT32_MAX - 1, &wide));
    *out = (uint32_t)wide;
    return TSR_OK;
}

tsr_status tsr__trace_text(const struct tsr__trace_at *at, const json_t *value, bool null_too,
                           const char **out)
{
    *out = NULL;
    if (null_too && json_is_null(value))
        return TSR_OK;
    if (!json_is_string(value) || json_string_length(value) > 1000 ||
        strlen(json_string_value(value)) != json_string_length(value))
        return tsr__trace_wrong(at, value, "a text of up to 1000 bytes");
    *out = tsr_arena_printf(at->r->arena, "%s", json_string_value(value));
    return *out ? TSR_OK : tsr_no_memory(at->r->path);
}

tsr_status tsr__trace_bool(const struct tsr__trace_at *at, const json_t *value, bool *out)
{
    *out = json_is_true(value);
    return json_is_boolean(value) ? TSR_OK : tsr__trace_wrong(at, value, "true or false");
}

tsr_status tsr__trace_shape(const struct tsr__trace_at *at, const json_t *value, int *n_dims,
                            uint64_t *dims)
{
    TSR_TRY(tsr__trace_list_of(at, value, 0, TSR_TRACED_DIMS));
    *n_dims = (int)json_array_size(value);
    for (int i = 0; i < *n_dims; i++)
        TSR_TRY(
            tsr__trace_u64(at, json_array_get(value, (size_t)i), 0, UINT64_C(1) << 40, &dims[i]));
    return TSR_OK;
}

void *tsr__trace_memory(const struct tsr__trace_reader *r, size_t n, size_t bytes)
{
    return tsr_arena_alloc(r->arena, (n + 1) * bytes);
}

unsigned tsr__torch_dtype_bytes(const char *name)
{
    static const struct {
        const char *name;
        unsigned bytes;
    } sizes[] = {
        {"float64", 8},       {"float32", 4},     {"float16", 2},        {"bfloat16", 2},
        {"int64", 8},         {"int32", 4},       {"int16", 2},          {"int8", 1},
        {"uint8", 1},         {"bool", 1},        {"complex64", 8},      {"complex128", 16},
        {"float8_e4m3fn", 1}, {"float8_e5m2", 1}, {"complex32", 4},      {"uint16", 2},
        {"uint32", 4},        {"uint64", 8},      {"float8_e4m3fnuz", 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (!strcmp(sizes[i].name, name))
            return sizes[i].bytes;
    return 0;
}
