/* json_doc.c: typed access to a JSON file, with one-line errors that name file, key and value. */
#include "sim/input/json_doc.h"
#include "sim/base/files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/base/json_load.h"
#include "sim/base/words.h"

/* Bounds of a rate that catch a wrong unit (GB/s instead of B/s). */
static const double MIN_BYTES_PER_S = 1e6, MAX_BYTES_PER_S = 1e16;

tsr_status tsr__doc_open(const char *path, const char *kind, struct tsr__doc *doc)
{
    *doc = (struct tsr__doc){.path = path};
    TSR_TRY(tsr_json_load(path, TSR_TEXT_VALUES, &doc->root));
    doc->asked = json_object();
    if (!doc->asked) {
        tsr__doc_close(doc);
        return tsr_no_memory(NULL);
    }
    if (!json_is_object(doc->root)) {
        tsr__doc_close(doc);
        return tsr_fail(TSR_ECONFIG, "%s:1: allowed is one JSON object", path);
    }
    const json_t *found = tsr__doc_find(doc, "kind");
    if (!kind || (json_is_string(found) && !strcmp(json_string_value(found), kind)))
        return TSR_OK;
    char allowed[64];
    snprintf(allowed, sizeof allowed, "\"%s\"", kind);
    tsr_status status = tsr__doc_fail(doc, "kind", found, allowed);
    tsr__doc_close(doc);
    return status;
}

void tsr__doc_close(struct tsr__doc *doc)
{
    json_decref(doc->root);
    json_decref(doc->asked);
    doc->root = doc->asked = NULL;
}

json_t *tsr__doc_find(const struct tsr__doc *doc, const char *key)
{
    json_t *at = doc->root;
    if (doc->asked)
        json_object_set_new(doc->asked, key, json_true());
    while (at && *key) {
        size_t n = strcspn(key, ".");
        char name[64];
        if (n >= sizeof name)
            return NULL;
        memcpy(name, key, n);
        name[n] = '\0';
        at = json_object_get(at, name); /* NULL when `at` is no object */
        key += n + (key[n] == '.');
    }
    return at;
}

tsr_status tsr__doc_fail(const struct tsr__doc *doc, const char *key, const json_t *found,
                         const char *allowed)
{
    char text[80] = "nothing";
    if (found) {
        size_t n = json_dumpb(found, text, sizeof text - 1,
                              JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS);
        size_t shown = n < 60 ? n : 57;
        memcpy(text + shown, shown < n ? "..." : "", shown < n ? 4 : 1);
    }
    return tsr_fail(TSR_ECONFIG, "%s: key \"%s\": found %s, allowed %s", doc->path, key, text,
                    allowed);
}

/* ---- keys that are left over ----------------------------------------------------------------- */

static bool is_word(const char *word, const char *const *words)
{
    for (size_t i = 0; words[i]; i++)
        if (!strcmp(words[i], word))
            return true;
    return false;
}

/* Something below the key was looked for. */
static bool is_asked_into(const struct tsr__doc *doc, const char *key)
{
    size_t n = strlen(key);
    const char *asked;
    json_t *value;
    json_object_foreach(doc->asked, asked,
                        value) if (!strncmp(asked, key, n) && asked[n] == '.') return true;
    return false;
}

/* The keys beside `key`: those that are looked for there, also into objects, and the facts. */
enum { MAX_BESIDE = 96, BESIDE_BYTES = 4096 };

struct beside {
    size_t n, used;
    const char *names[MAX_BESIDE + 1];
    char text[BESIDE_BYTES];
};

static void add_beside(struct beside *b, const char *name, size_t length)
{
    if (!length || b->n == MAX_BESIDE || b->used + length + 1 > BESIDE_BYTES)
        return;
    char *at = b->text + b->used;
    memcpy(at, name, length);
    at[length] = '\0';
    if (is_word(at, b->names))
        return;
    b->used += length + 1;
    b->names[b->n++] = at;
}

static void list_beside(const struct tsr__doc *doc, const char *key, const char *const *facts,
                        struct beside *b)
{
    const char *dot = strrchr(key, '.'), *asked;
    size_t n = dot ? (size_t)(dot - key) + 1 : 0;
    json_t *value;
    memset(b, 0, sizeof *b);
    json_object_foreach(doc->asked, asked, value) if (!strncmp(asked, key, n))
        add_beside(b, asked + n, strcspn(asked + n, "."));
    for (size_t i = 0; facts[i]; i++)
        if (!strncmp(facts[i], key, n))
            add_beside(b, facts[i] + n, strcspn(facts[i] + n, "."));
}

/* What a key may have been meant for: one of its name elsewhere in the file, or one beside it. */
static const char *nearest_key(const struct tsr__doc *doc, const char *key, const struct beside *b)
{
    const char *dot = strrchr(key, '.'), *name = dot ? dot + 1 : key, *asked;
    json_t *value;
    json_object_foreach(doc->asked, asked, value)
    {
        const char *last = strrchr(asked, '.');
        if (!strcmp(last ? last + 1 : asked, name))
            return asked;
    }
    return tsr_nearest(name, b->names);
}

static tsr_status fail_unknown(const struct tsr__doc *doc, const char *key, const json_t *value,
                               const char *near, const char *known)
{
    char allowed[640];
    snprintf(allowed, sizeof allowed, "nothing (it is not read here)%s%s%s; known: %s",
             near ? "; nearest: \"" : "", near ? near : "", near ? "\"" : "", known);
    return tsr__doc_fail(doc, key, value, allowed);
}

/* "a, b, c", as far as they fit. */
static void join(const char *const *words, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; words[i]; i++) {
        int more = snprintf(out + used, size - used, "%s%s", i ? ", " : "", words[i]);
        if (more < 0 || (size_t)more >= size - used) {
            out[used] = '\0';
            return;
        }
        used += (size_t)more;
    }
}

static tsr_status refuse_key(const struct tsr__doc *doc, const char *key, const json_t *value,
                             const char *const *facts)
{
    struct beside beside;
    char known[400];
    list_beside(doc, key, facts, &beside);
    join(beside.names, known, sizeof known);
    return fail_unknown(doc, key, value, nearest_key(doc, key, &beside), known);
}

static tsr_status check_object(const struct tsr__doc *doc, const char *prefix, json_t *object,
                               const char *const *facts)
{
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        char key[256];
        snprintf(key, sizeof key, "%s%s%.100s", prefix, *prefix ? "." : "", name);
        if (is_word(key, facts))
            continue;
        if (json_is_object(value) && is_asked_into(doc, key)) {
            TSR_TRY(check_object(doc, key, value, facts));
            continue;
        }
        if (!json_object_get(doc->asked, key))
            return refuse_key(doc, key, value, facts);
    }
    return TSR_OK;
}

tsr_status tsr__doc_check(const struct tsr__doc *doc, const char *const *facts)
{
    return check_object(doc, "", doc->root, facts);
}

tsr_status tsr__doc_check_item(const struct tsr__doc *doc, const char *name, const json_t *item,
                               const char *const *words)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)item, key, value)
    {
        char full[256], known[400];
        if (is_word(key, words))
            continue;
        join(words, known, sizeof known);
        snprintf(full, sizeof full, "%s%s%.100s", name, *name ? "." : "", key);
        return fail_unknown(doc, full, value, tsr_nearest(key, words), known);
    }
    return TSR_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* True when the value is absent in a way that `need` allows. */
static bool may_lack(const json_t *value, enum tsr__need need)
{
    if (!value)
        return need == TSR__OPTIONAL;
    return json_is_null(value) && need != TSR__REQUIRED;
}

tsr_status tsr__doc_number(const struct tsr__doc *doc, const char *key, enum tsr__need need,
                           double low, double high, double *out)
{
    const json_t *value = tsr__doc_find(doc, key);
    *out = 0.0;
    if (may_lack(value, need))
        return TSR_OK;
    double number = json_is_number(value) ? json_number_value(value) : (double)NAN;
    if (number >= low && number <= high) {
        *out = number;
        return TSR_OK;
    }
    char allowed[96];
    snprintf(allowed, sizeof allowed, "a number from %g to %g%s", low, high,
             need == TSR__REQUIRED ? "" : ", or null");
    return tsr__doc_fail(doc, key, value, allowed);
}

tsr_status tsr__doc_rate(const struct tsr__doc *doc, const char *key, enum tsr__need need,
                         double *out)
{
    return tsr__doc_number(doc, key, need, MIN_BYTES_PER_S, MAX_BYTES_PER_S, out);
}

tsr_status tsr__doc_count(const struct tsr__doc *doc, const char *key, enum tsr__need need,
                          uint64_t high, uint64_t *out)
{
    const json_t *value = tsr__doc_find(doc, key);
    *out = 0;
    if (may_lack(value, need))
        return TSR_OK;
    json_int_t number = json_is_integer(value) ? json_integer_value(value) : 0;
    if (number >= 1 && (uint64_t)number <= high) {
        *out = (uint64_t)number;
        return TSR_OK;
    }
    char allowed[96];
    snprintf(allowed, sizeof allowed, "an integer from 1 to %llu%s", (unsigned long long)high,
             need == TSR__REQUIRED ? "" : ", or null");
    return tsr__doc_fail(doc, key, value, allowed);
}

tsr_status tsr__doc_string(const struct tsr__doc *doc, const char *key, enum tsr__need need,
                           char *out, size_t size)
{
    const json_t *value = tsr__doc_find(doc, key);
    *out = '\0';
    if (may_lack(value, need))
        return TSR_OK;
    if (json_is_string(value) && json_string_length(value) < size &&
        (json_string_length(value) > 0 || need != TSR__REQUIRED)) {
        memcpy(out, json_string_value(value), json_string_length(value) + 1);
        return TSR_OK;
    }
    char allowed[64];
    snprintf(allowed, sizeof allowed, "a string of 1 to %zu bytes", size - 1);
    return tsr__doc_fail(doc, key, value, allowed);
}

tsr_status tsr__doc_copy_path(const char *path, char *out, size_t size)
{
    size_t n = strlen(path);
    if (n >= size)
        return tsr_fail(TSR_ECONFIG, "%s: the path is longer than %zu bytes", path, size - 1);
    memcpy(out, path, n + 1);
    return TSR_OK;
}

tsr_status tsr__doc_numbers(const struct tsr__doc *doc, const char *key, double low, double high,
                            uint32_t room, float *out, uint32_t *n)
{
    const json_t *list = tsr__doc_find(doc, key);
    char allowed[96];
    size_t size = json_array_size(list);
    snprintf(allowed, sizeof allowed, "a list of 1 to %u numbers from %g to %g", room, low, high);
    if (!size || size > room)
        return tsr__doc_fail(doc, key, list, allowed);
    for (size_t i = 0; i < size; i++) {
        const json_t *value = json_array_get(list, i);
        double number = json_is_number(value) ? json_number_value(value) : (double)NAN;
        if (!(number >= low && number <= high))
            return tsr__doc_fail(doc, key, value, allowed);
        out[i] = (float)number;
    }
    *n = (uint32_t)size;
    return TSR_OK;
}

/* ---- a file beside another --------------------------------------------------------------- */

/* Path of PREFIX-NAME.json in the folder of `length` bytes. NULL when the name is none of a file,
 * or out of memory. */
static char *in_folder(const char *folder, size_t length, const char *prefix, const char *name)
{
    if (!*name || strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                               "0123456789._-") != strlen(name))
        return NULL;
    const char *between = length && folder[length - 1] != '/' ? "/" : "";
    size_t size = length + 1 + strlen(prefix) + strlen(name) + sizeof "-.json";
    char *out = malloc(size);
    if (out)
        snprintf(out, size, "%.*s%s%s-%s.json", (int)length, folder, between, prefix, name);
    return out;
}

static char *find_file(const struct tsr__doc *doc, const char *prefix, const char *name)
{
    const char *slash = strrchr(doc->path, '/');
    char *path = in_folder(doc->path, slash ? (size_t)(slash - doc->path) + 1 : 0, prefix, name);
    for (size_t i = 0; path && doc->folders && doc->folders[i]; i++) {
        if (tsr_kind_of(NULL, path) == TSR_KIND_FILE)
            return path;
        free(path);
        path = in_folder(doc->folders[i], strlen(doc->folders[i]), prefix, name);
    }
    return path;
}

tsr_status tsr__doc_open_sibling(const struct tsr__doc *doc, const char *key, const json_t *found,
                                 const char *prefix, struct tsr__doc *out, char **path)
{
    char allowed[128];
    const char *name = json_is_string(found) ? json_string_value(found) : "";
    *path = find_file(doc, prefix, name);
    if (!*path || tsr_kind_of(NULL, *path) != TSR_KIND_FILE) {
        snprintf(allowed, sizeof allowed, "a NAME with a file %s-NAME.json in the same folder%s",
                 prefix, doc->folders ? ", or that comes with tessera" : "");
        return tsr__doc_fail(doc, key, found, allowed);
    }
    TSR_TRY(tsr__doc_open(*path, prefix, out));
    out->folders = doc->folders;
    out->kernels = doc->kernels;
    return TSR_OK;
}
