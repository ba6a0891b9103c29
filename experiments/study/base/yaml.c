/* yaml.c: files through libfyaml into tsr_node trees. */
#include "experiments/study/base/yaml.h"
#include "sim/base/files.h"

#include <errno.h>
#include <libfyaml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 64 << 20, MAX_DEPTH = 64 };

/* What is being converted: where its nodes come from and where they go. */
struct source {
    struct tsr_arena *arena;
    const char *name; /* file name, or the option that gave the text */
    bool is_option;
};

struct place {
    int line, column;
};

/* ---- reading ----------------------------------------------------------------------------- */

static tsr_status read_stream(FILE *file, const char *path, char **out, size_t *n_out)
{
    char *text = NULL;
    size_t n = 0, cap = 0;
    for (;;) {
        if (cap - n < 4096) {
            cap = cap ? 2 * cap : 16384;
            char *grown = realloc(text, cap + 1);
            if (!grown) {
                free(text);
                return tsr_no_memory(NULL);
            }
            text = grown;
        }
        size_t got = fread(text + n, 1, cap - n, file);
        n += got;
        if (got == 0 || n > MAX_FILE_BYTES)
            break;
    }
    if (ferror(file) || n > MAX_FILE_BYTES || memchr(text, 0, n)) {
        const char *why = ferror(file) ? strerror(errno)
                          : n > MAX_FILE_BYTES
                              ? "larger than 64 MiB, which no experiment or model file is"
                              : "a binary file; expected YAML or JSON text";
        free(text);
        return tsr_fail(TSR_ECONFIG, "%s: %s", path, why);
    }
    text[n] = 0;
    *out = text;
    *n_out = n;
    return TSR_OK;
}

static tsr_status read_file(const char *path, char **out, size_t *n_out)
{
    const char *why;
    FILE *file = tsr_file_stream(NULL, path, &why);
    if (!file)
        return tsr_fail(TSR_ECONFIG, "%s: cannot be opened: %s", path, why);
    tsr_status status = read_stream(file, path, out, n_out);
    fclose(file);
    return status;
}

/* ---- conversion -------------------------------------------------------------------------- */

static struct place place_of(struct fy_node *node, struct place fallback)
{
    struct fy_token *token =
        node && fy_node_is_scalar(node) ? fy_node_get_scalar_token(node) : NULL;
    const struct fy_mark *mark = token ? fy_token_start_mark(token) : NULL;
    if (!mark)
        return fallback;
    return (struct place){mark->line + 1, mark->column + 1};
}

static char *copy_scalar(struct tsr_arena *arena, struct fy_node *node)
{
    size_t n = 0;
    const char *text = fy_node_get_scalar(node, &n);
    char *copy = tsr_arena_alloc(arena, n + 1);
    if (copy && text)
        memcpy(copy, text, n);
    return copy;
}

static struct tsr_yaml_node *new_node(const struct source *src, enum tsr_node_kind kind,
                                      struct place at)
{
    struct tsr_yaml_node *node = tsr_arena_alloc(src->arena, sizeof *node);
    if (!node)
        return NULL;
    node->kind = kind;
    node->text = "";
    node->file = src->name;
    node->line = src->is_option ? 0 : at.line;
    node->column = at.column;
    return node;
}

/* Arrays grow in the arena: they double, the old ones are garbage until the document goes. */
static tsr_status append(struct tsr_arena *arena, struct tsr_yaml_node *parent,
                         struct tsr_yaml_node *child)
{
    if (parent->n == parent->cap) {
        size_t cap = parent->cap ? 2 * parent->cap : 8;
        struct tsr_yaml_node **items = tsr_arena_alloc(arena, cap * sizeof(*items));
        if (!items)
            return tsr_no_memory(NULL);
        if (parent->n)
            memcpy(items, parent->items, parent->n * sizeof(*items));
        parent->items = items;
        parent->cap = cap;
    }
    parent->items[parent->n++] = child;
    return TSR_OK;
}

static tsr_status convert(const struct source *src, struct fy_node *from, struct place at,
                          int depth, struct tsr_yaml_node **out);

static tsr_status convert_scalar(const struct source *src, struct fy_node *from, struct place at,
                                 struct tsr_yaml_node **out)
{
    struct tsr_yaml_node *node = new_node(src, TSR_NODE_SCALAR, place_of(from, at));
    char *text = copy_scalar(src->arena, from);
    if (!node || !text)
        return tsr_no_memory(NULL);
    node->text = text;
    node->quoted = fy_node_get_style(from) != FYNS_PLAIN;
    if (!node->quoted && (!*text || !strcmp(text, "null") || !strcmp(text, "~")))
        node->kind = TSR_NODE_NULL;
    *out = node;
    return TSR_OK;
}

static tsr_status convert_seq(const struct source *src, struct fy_node *from, struct place at,
                              int depth, struct tsr_yaml_node **out)
{
    struct tsr_yaml_node *node = new_node(src, TSR_NODE_SEQ, at);
    if (!node)
        return tsr_no_memory(NULL);
    void *iter = NULL;
    struct fy_node *item;
    while ((item = fy_node_sequence_iterate(from, &iter))) {
        struct tsr_yaml_node *child = NULL;
        TSR_TRY(convert(src, item, at, depth + 1, &child));
        if (child->kind == TSR_NODE_MAP && child->n) {
            child->line = child->items[0]->line; /* the first key says where the item is */
            child->column = 0;
        }
        TSR_TRY(append(src->arena, node, child));
    }
    *out = node;
    return TSR_OK;
}

static tsr_status convert_map(const struct source *src, struct fy_node *from, struct place at,
                              int depth, struct tsr_yaml_node **out)
{
    struct tsr_yaml_node *node = new_node(src, TSR_NODE_MAP, at);
    if (!node)
        return tsr_no_memory(NULL);
    void *iter = NULL;
    struct fy_node_pair *pair;
    while ((pair = fy_node_mapping_iterate(from, &iter))) {
        struct fy_node *key = fy_node_pair_key(pair);
        struct place key_at = place_of(key, at);
        struct tsr_yaml_node *child = NULL;
        if (!key || !fy_node_is_scalar(key))
            return tsr_fail(TSR_ECONFIG, "%s:%d: a key must be plain text", src->name, at.line);
        TSR_TRY(convert(src, fy_node_pair_value(pair), key_at, depth + 1, &child));
        child->key = copy_scalar(src->arena, key);
        if (!child->key)
            return tsr_no_memory(NULL);
        if (tsr_node_get(node, child->key))
            return tsr_fail(TSR_ECONFIG, "%s:%d:%d: key \"%s\" is given twice", src->name,
                            key_at.line, key_at.column, child->key);
        TSR_TRY(append(src->arena, node, child));
    }
    *out = node;
    return TSR_OK;
}

static tsr_status convert(const struct source *src, struct fy_node *from, struct place at,
                          int depth, struct tsr_yaml_node **out)
{
    if (depth > MAX_DEPTH)
        return tsr_fail(TSR_ECONFIG, "%s:%d: nested deeper than %d levels", src->name, at.line,
                        MAX_DEPTH);
    if (!from) {
        *out = new_node(src, TSR_NODE_NULL, at);
        return *out ? TSR_OK : tsr_no_memory(NULL);
    }
    switch (fy_node_get_type(from)) {
    case FYNT_SEQUENCE:
        return convert_seq(src, from, at, depth, out);
    case FYNT_MAPPING:
        return convert_map(src, from, at, depth, out);
    case FYNT_SCALAR:
        break;
    }
    return convert_scalar(src, from, at, out);
}

static tsr_status syntax_error(const struct source *src, struct fy_diag *diag)
{
    void *iter = NULL;
    const struct fy_diag_error *first = fy_diag_errors_iterate(diag, &iter);
    if (!first)
        return tsr_fail(TSR_ECONFIG, "%s: is not YAML or JSON text", src->name);
    if (src->is_option)
        return tsr_fail(TSR_ECONFIG, "%s: malformed YAML: %s", src->name, first->msg);
    return tsr_fail(TSR_ECONFIG, "%s:%d:%d: malformed YAML: %s", src->name, first->line,
                    first->column, first->msg);
}

static tsr_status parse_with(struct fy_diag *diag, const struct source *src, const char *text,
                             size_t n, struct tsr_yaml_node **out)
{
    struct fy_parse_cfg cfg = {.flags = FYPCF_QUIET | FYPCF_COLLECT_DIAG | FYPCF_JSON_NONE |
                                        FYPCF_RESOLVE_DOCUMENT,
                               .diag = diag};
    struct fy_parser *parser = fy_parser_create(&cfg);
    struct fy_document *doc = NULL, *second = NULL;
    tsr_status status = tsr_no_memory(NULL);
    if (!parser || fy_parser_set_string(parser, text, n))
        goto done;
    doc = fy_parse_load_document(parser);
    if (doc && !fy_diag_got_error(diag))
        second = fy_parse_load_document(parser);
    if (fy_diag_got_error(diag) || fy_parser_get_stream_error(parser))
        status = syntax_error(src, diag);
    else if (second)
        status =
            tsr_fail(TSR_ECONFIG, "%s: holds more than one YAML document; allowed: one", src->name);
    else
        status = convert(src, doc ? fy_document_root(doc) : NULL, (struct place){1, 1}, 0, out);
done:
    if (second)
        fy_parse_document_destroy(parser, second);
    if (doc)
        fy_parse_document_destroy(parser, doc);
    if (parser)
        fy_parser_destroy(parser);
    return status;
}

static tsr_status parse_text(const struct source *src, const char *text, size_t n,
                             struct tsr_yaml_node **out)
{
    struct fy_diag_cfg cfg;
    fy_diag_cfg_default(&cfg);
    cfg.fp = NULL;
    cfg.output_fn = NULL;
    cfg.colorize = false;
    struct fy_diag *diag = fy_diag_create(&cfg);
    if (!diag)
        return tsr_no_memory(NULL);
    fy_diag_set_collect_errors(diag, true);
    tsr_status status = parse_with(diag, src, text, n, out);
    fy_diag_set_collect_errors(diag, false); /* frees what was collected */
    fy_diag_unref(diag);
    return status;
}

tsr_status tsr_doc_read(const char *name, const char *text, size_t n, struct tsr_doc *out)
{
    memset(out, 0, sizeof(*out));
    tsr_arena_init(&out->arena);
    struct source src = {&out->arena, tsr_arena_strdup(&out->arena, name), false};
    tsr_status status = src.name ? parse_text(&src, text, n, &out->root) : tsr_no_memory(NULL);
    if (status != TSR_OK)
        tsr_doc_fini(out);
    return status;
}

tsr_status tsr_doc_load(const char *path, struct tsr_doc *out)
{
    char *text = NULL;
    size_t n = 0;
    memset(out, 0, sizeof(*out));
    TSR_TRY(read_file(path, &text, &n));
    tsr_status status = tsr_doc_read(path, text, n, out);
    free(text);
    return status;
}

void tsr_doc_fini(struct tsr_doc *doc)
{
    tsr_arena_fini(&doc->arena);
    doc->root = NULL;
}

/* ---- --set ------------------------------------------------------------------------------- */

static struct tsr_yaml_node *get_n(const struct tsr_yaml_node *map, const char *key, size_t n)
{
    if (!map || map->kind != TSR_NODE_MAP)
        return NULL;
    for (size_t i = 0; i < map->n; i++)
        if (strlen(map->items[i]->key) == n && !memcmp(map->items[i]->key, key, n))
            return map->items[i];
    return NULL;
}

/* Length of the first component of `path`: the longest existing key, else up to the first dot. */
static size_t component(const struct tsr_yaml_node *map, const char *path, size_t n)
{
    for (size_t end = n; end > 0; end--)
        if ((end == n || path[end] == '.') && get_n(map, path, end))
            return end;
    const char *dot = memchr(path, '.', n);
    return dot ? (size_t)(dot - path) : n;
}

static tsr_status put(const struct source *src, struct tsr_yaml_node *map, const char *key,
                      size_t n, struct tsr_yaml_node *value)
{
    char *copy = tsr_arena_alloc(src->arena, n + 1);
    if (!copy)
        return tsr_no_memory(NULL);
    memcpy(copy, key, n);
    value->key = copy;
    for (size_t i = 0; i < map->n; i++) {
        if (!strcmp(map->items[i]->key, copy)) {
            map->items[i] = value;
            return TSR_OK;
        }
    }
    return append(src->arena, map, value);
}

tsr_status tsr_doc_set(struct tsr_doc *doc, const char *assignment)
{
    const char *equals = strchr(assignment, '=');
    if (!equals || equals == assignment)
        return tsr_fail(TSR_ECONFIG, "--set %s: allowed: KEY=VALUE, for example batch=2",
                        assignment);
    struct source src = {&doc->arena, tsr_arena_printf(&doc->arena, "--set %s", assignment), true};
    if (!src.name)
        return tsr_no_memory(NULL);
    struct tsr_yaml_node *value = NULL;
    TSR_TRY(parse_text(&src, equals + 1, strlen(equals + 1), &value));

    const char *path = assignment;
    struct tsr_yaml_node *map = doc->root;
    for (;;) {
        size_t left = (size_t)(equals - path), n = component(map, path, left);
        if (n == 0)
            return tsr_fail(TSR_ECONFIG, "%s: a key is empty", src.name);
        if (n == left)
            return put(&src, map, path, n, value);
        struct tsr_yaml_node *next = get_n(map, path, n);
        if (!next || next->kind != TSR_NODE_MAP) {
            next = new_node(&src, TSR_NODE_MAP, (struct place){0, 0});
            if (!next)
                return tsr_no_memory(NULL);
            TSR_TRY(put(&src, map, path, n, next));
        }
        map = next;
        path += n + 1;
    }
}

const struct tsr_yaml_node *tsr_node_get(const struct tsr_yaml_node *map, const char *key)
{
    return get_n(map, key, strlen(key));
}
