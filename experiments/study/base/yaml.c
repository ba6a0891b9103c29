/* yaml.c: files through libfyaml into tsr_node trees.
 *
 * libfyaml reads the events of a document and nothing more: its own trees take gigabytes for ten
 * lines of aliases, and minutes for ten thousand keys. What a document may grow into is counted
 * here.
 */
#include "experiments/study/base/yaml.h"
#include "sim/base/files.h"

#include <libfyaml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/names.h"
#include "sim/base/text_check.h"

/* Far above what people write: 1,000 strategies have 20,000 values and 1,000 aliases. */
enum { MAX_VALUES = 250000, MAX_KEYS = 10000, MAX_ALIASES = 10000 };

/* What is being converted: where its nodes come from and where they go. */
struct source {
    struct tsr_arena *arena;
    const char *name; /* file name, or the option that gave the text */
    bool is_option;
};

struct place {
    int line, column;
};

static tsr_status wrong(const struct source *src, struct place at, const char *fmt, ...)
    TSR_PRINTF(3, 4);
static tsr_status wrong(const struct source *src, struct place at, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (src->is_option)
        return tsr_fail(TSR_ECONFIG, "%s: %s", src->name, text);
    return tsr_fail(TSR_ECONFIG, "%s:%d:%d: %s", src->name, at.line, at.column, text);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

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

/* ---- events into a tree ---------------------------------------------------------------------- */

/* A mapping or sequence that is open. */
struct frame {
    struct tsr_yaml_node *node;
    const char *key; /* of a mapping: its value is awaited; else NULL */
    bool is_merge;   /* that key is << */
    struct place at, key_at;
};

struct builder {
    const struct source *src;
    struct tsr_names names;
    struct frame frames[TSR_TEXT_DEPTH];
    int depth; /* frames that are open */
    size_t n_values, n_aliases, n_documents;
    struct tsr_yaml_node *root;
};

static struct frame *top(struct builder *b)
{
    return b->depth ? &b->frames[b->depth - 1] : NULL;
}

/* Where a value stands that has no place of its own: at its key, or with its sequence. */
static struct place place_here(struct builder *b)
{
    const struct frame *frame = top(b);
    if (!frame)
        return (struct place){1, 1};
    return frame->key ? frame->key_at : frame->at;
}

static struct place place_of(struct fy_token *token, struct place fallback)
{
    const struct fy_mark *mark = token ? fy_token_start_mark(token) : NULL;
    return mark ? (struct place){mark->line + 1, mark->column + 1} : fallback;
}

static tsr_status count_value(struct builder *b, struct place at)
{
    if (++b->n_values > MAX_VALUES)
        return wrong(b->src, at, "more than %d values, those of aliases included", MAX_VALUES);
    return TSR_OK;
}

/* Text of a token that holds no 0. */
static tsr_status copy_text(struct builder *b, struct fy_token *token, struct place at, char **out)
{
    size_t n = 0;
    const char *text = token ? fy_token_get_text(token, &n) : "";
    *out = tsr_arena_alloc(b->src->arena, n + 1);
    if (!*out || !text)
        return tsr_no_memory(NULL);
    memcpy(*out, text, n);
    if (strlen(*out) != n)
        return wrong(b->src, at, "found a text with a 0 in it (\\0); allowed: none");
    return TSR_OK;
}

/* Puts a value into a mapping under its key. What is merged gives way to keys of its own. */
static tsr_status add_item(struct builder *b, struct tsr_yaml_node *map, const char *key,
                           struct place at, bool is_merged, struct tsr_yaml_node *child)
{
    bool is_new;
    struct tsr_name *name = tsr__name_put(&b->names, map, key, &is_new);
    if (!name)
        return tsr_no_memory(NULL);
    child->key = key;
    if (is_new) {
        name->item = map->n;
        name->is_merged = is_merged;
        if (map->n == MAX_KEYS)
            return wrong(b->src, at, "more than %d keys in a mapping", MAX_KEYS);
        return append(b->src->arena, map, child);
    }
    if (!is_merged && !name->is_merged)
        return wrong(b->src, at, "key \"%s\" is given twice", key);
    if (!is_merged) {
        name->is_merged = false;
        map->items[name->item] = child;
    }
    return TSR_OK;
}

/* A copy for an alias, which may be changed without the original. */
static tsr_status copy_node(struct builder *b, const struct tsr_yaml_node *from, struct place at,
                            int depth, struct tsr_yaml_node **out)
{
    struct tsr_yaml_node *node = tsr_arena_alloc(b->src->arena, sizeof *node);
    if (!node)
        return tsr_no_memory(NULL);
    TSR_TRY(count_value(b, at));
    if (depth > TSR_TEXT_DEPTH)
        return wrong(b->src, at, "nested deeper than %d levels", TSR_TEXT_DEPTH);
    *node = *from;
    node->items = NULL;
    node->n = node->cap = 0;
    for (size_t i = 0; i < from->n; i++) {
        struct tsr_yaml_node *child;
        TSR_TRY(copy_node(b, from->items[i], at, depth + 1, &child));
        if (from->kind == TSR_NODE_MAP)
            TSR_TRY(add_item(b, node, child->key, at, false, child));
        else
            TSR_TRY(append(b->src->arena, node, child));
    }
    *out = node;
    return TSR_OK;
}

/* The keys of a mapping, or of each in a list, that `map` does not have. */
static tsr_status merge(struct builder *b, struct tsr_yaml_node *map, struct place at,
                        const struct tsr_yaml_node *from)
{
    bool is_list = from->kind == TSR_NODE_SEQ;
    for (size_t i = 0; is_list && i < from->n; i++) {
        if (from->items[i]->kind != TSR_NODE_MAP)
            return wrong(b->src, at, "<<: allowed: a mapping, or a list of mappings");
        TSR_TRY(merge(b, map, at, from->items[i]));
    }
    if (is_list)
        return TSR_OK;
    if (from->kind != TSR_NODE_MAP)
        return wrong(b->src, at, "<<: allowed: a mapping, or a list of mappings");
    for (size_t i = 0; i < from->n; i++) {
        struct tsr_yaml_node *child;
        TSR_TRY(copy_node(b, from->items[i], at, b->depth + 1, &child));
        TSR_TRY(add_item(b, map, child->key, at, true, child));
    }
    return TSR_OK;
}

/* Puts a value where it belongs: it is the document, an item, or that of a key. Those of << have
 * been merged when they are complete. */
static tsr_status put_value(struct builder *b, struct tsr_yaml_node *node)
{
    struct frame *frame = top(b);
    if (!frame) {
        b->root = node;
        return TSR_OK;
    }
    if (frame->node->kind == TSR_NODE_SEQ) {
        if (node->kind == TSR_NODE_MAP && node->n) {
            node->line = node->items[0]->line; /* the first key says where the item is */
            node->column = 0;
        }
        return append(b->src->arena, frame->node, node);
    }
    const char *key = frame->key;
    frame->key = NULL;
    if (frame->is_merge)
        return merge(b, frame->node, frame->key_at, node);
    return add_item(b, frame->node, key, frame->key_at, false, node);
}

/* ---- events ---------------------------------------------------------------------------------- */

static tsr_status put_anchor(struct builder *b, struct fy_token *anchor, struct tsr_yaml_node *node)
{
    char *text;
    bool is_new;
    if (!anchor)
        return TSR_OK;
    TSR_TRY(copy_text(b, anchor, place_here(b), &text));
    struct tsr_name *name = tsr__name_put(&b->names, NULL, text, &is_new);
    if (!name)
        return tsr_no_memory(NULL);
    name->node = node; /* given again, it is another */
    return TSR_OK;
}

static tsr_status refuse_tag(struct builder *b, struct fy_token *tag)
{
    if (!tag)
        return TSR_OK;
    return wrong(b->src, place_of(tag, place_here(b)),
                 "found a tag (!...); allowed: none, quotes make a text of a value");
}

static tsr_status take_key(struct builder *b, const struct fy_event *event)
{
    struct frame *frame = top(b);
    struct fy_token *token = event->scalar.value;
    struct place at = place_of(token, frame->at);
    bool is_plain = !token || fy_token_scalar_style(token) == FYSS_PLAIN;
    char *text, *copy;
    bool is_new;
    TSR_TRY(copy_text(b, token, at, &text));
    frame->key = text;
    frame->key_at = at;
    frame->is_merge = is_plain && !strcmp(text, "<<");
    if (event->scalar.anchor) {
        struct tsr_yaml_node *node = new_node(b->src, TSR_NODE_SCALAR, at);
        copy = node ? tsr_arena_strdup(b->src->arena, text) : NULL;
        if (!copy)
            return tsr_no_memory(NULL);
        node->text = copy;
        node->quoted = !is_plain;
        TSR_TRY(put_anchor(b, event->scalar.anchor, node));
    }
    if (!frame->is_merge)
        return TSR_OK;
    if (!tsr__name_put(&b->names, frame->node, text, &is_new))
        return tsr_no_memory(NULL);
    return is_new ? TSR_OK : wrong(b->src, at, "key \"<<\" is given twice");
}

static tsr_status take_scalar(struct builder *b, const struct fy_event *event)
{
    struct frame *frame = top(b);
    struct fy_token *token = event->scalar.value;
    struct place at = place_of(token, place_here(b));
    TSR_TRY(refuse_tag(b, event->scalar.tag));
    TSR_TRY(count_value(b, at));
    if (frame && frame->node->kind == TSR_NODE_MAP && !frame->key)
        return take_key(b, event);
    struct tsr_yaml_node *node = new_node(b->src, TSR_NODE_SCALAR, at);
    char *text = NULL;
    if (!node)
        return tsr_no_memory(NULL);
    TSR_TRY(copy_text(b, token, at, &text));
    node->text = text;
    node->quoted = token && fy_token_scalar_style(token) != FYSS_PLAIN;
    if (!node->quoted && (!*text || !strcmp(text, "null") || !strcmp(text, "~")))
        node->kind = TSR_NODE_NULL;
    TSR_TRY(put_anchor(b, event->scalar.anchor, node));
    return put_value(b, node);
}

static bool awaits_key(struct builder *b)
{
    return b->depth && top(b)->node->kind == TSR_NODE_MAP && !top(b)->key;
}

static tsr_status take_alias(struct builder *b, const struct fy_event *event)
{
    struct place at = place_of(event->alias.anchor, place_here(b)), here = place_here(b);
    char *text;
    if (awaits_key(b))
        return wrong(b->src, at, "a key must be plain text");
    if (++b->n_aliases > MAX_ALIASES)
        return wrong(b->src, at, "more than %d aliases", MAX_ALIASES);
    TSR_TRY(copy_text(b, event->alias.anchor, at, &text));
    const struct tsr_name *name = tsr__name_find(&b->names, NULL, text);
    if (!name)
        return wrong(b->src, at, "alias *%s: nothing above it has the anchor &%s", text, text);
    for (int i = 0; i < b->depth; i++)
        if (b->frames[i].node == name->node)
            return wrong(b->src, at, "alias *%s stands inside of what it names", text);
    struct tsr_yaml_node *copy;
    TSR_TRY(copy_node(b, name->node, at, b->depth + 1, &copy));
    copy->key = NULL;
    if (copy->kind != TSR_NODE_SCALAR) {
        copy->line = b->src->is_option ? 0 : here.line;
        copy->column = here.column;
    }
    return put_value(b, copy);
}

static tsr_status open_node(struct builder *b, enum tsr_node_kind kind, struct fy_token *anchor,
                            struct fy_token *tag)
{
    struct place at = place_here(b);
    TSR_TRY(refuse_tag(b, tag));
    TSR_TRY(count_value(b, at));
    if (awaits_key(b))
        return wrong(b->src, at, "a key must be plain text");
    if (b->depth == TSR_TEXT_DEPTH)
        return wrong(b->src, at, "nested deeper than %d levels", TSR_TEXT_DEPTH);
    struct tsr_yaml_node *node = new_node(b->src, kind, at);
    if (!node)
        return tsr_no_memory(NULL);
    TSR_TRY(put_anchor(b, anchor, node));
    b->frames[b->depth++] = (struct frame){.node = node, .at = at};
    return TSR_OK;
}

static tsr_status close_node(struct builder *b)
{
    struct tsr_yaml_node *node = top(b)->node;
    b->depth--;
    return put_value(b, node);
}

static tsr_status take_event(struct builder *b, const struct fy_event *event)
{
    switch (event->type) {
    case FYET_DOCUMENT_START:
        if (++b->n_documents > 1)
            return tsr_fail(TSR_ECONFIG, "%s: holds more than one YAML document; allowed: one",
                            b->src->name);
        return TSR_OK;
    case FYET_MAPPING_START:
        return open_node(b, TSR_NODE_MAP, event->mapping_start.anchor, event->mapping_start.tag);
    case FYET_SEQUENCE_START:
        return open_node(b, TSR_NODE_SEQ, event->sequence_start.anchor, event->sequence_start.tag);
    case FYET_MAPPING_END:
    case FYET_SEQUENCE_END:
        return close_node(b);
    case FYET_SCALAR:
        return take_scalar(b, event);
    case FYET_ALIAS:
        return take_alias(b, event);
    case FYET_NONE:
    case FYET_STREAM_START:
    case FYET_STREAM_END:
    case FYET_DOCUMENT_END:
        break;
    }
    return TSR_OK;
}

/* ---- libfyaml -------------------------------------------------------------------------------- */

static tsr_status syntax_error(const struct source *src, struct fy_diag *diag)
{
    void *iter = NULL;
    const struct fy_diag_error *first = fy_diag_errors_iterate(diag, &iter);
    size_t length = strlen(src->name);
    if (length > 5 && !strcmp(src->name + length - 5, ".toml"))
        return tsr_fail(TSR_ECONFIG,
                        "%s: is TOML, not YAML; a configuration of torchtitan is read by "
                        "`python -m tessera config FILE --cluster NAME`",
                        src->name);
    if (!first)
        return tsr_fail(TSR_ECONFIG, "%s: is not YAML or JSON text", src->name);
    if (src->is_option)
        return tsr_fail(TSR_ECONFIG, "%s: malformed YAML: %s", src->name, first->msg);
    return tsr_fail(TSR_ECONFIG, "%s:%d:%d: malformed YAML: %s", src->name, first->line,
                    first->column, first->msg);
}

static tsr_status take_all(struct builder *b, struct fy_parser *parser, struct fy_diag *diag)
{
    struct fy_event *event;
    tsr_status status = TSR_OK;
    while (status == TSR_OK && (event = fy_parser_parse(parser))) {
        status = take_event(b, event);
        fy_parser_event_free(parser, event);
    }
    if (status == TSR_OK && (fy_diag_got_error(diag) || fy_parser_get_stream_error(parser)))
        return syntax_error(b->src, diag);
    return status;
}

static tsr_status parse_with(struct fy_diag *diag, const struct source *src, const char *text,
                             size_t n, struct tsr_yaml_node **out)
{
    struct fy_parse_cfg cfg = {.flags = FYPCF_QUIET | FYPCF_COLLECT_DIAG | FYPCF_JSON_NONE,
                               .diag = diag};
    struct builder b = {.src = src};
    struct fy_parser *parser = fy_parser_create(&cfg);
    tsr_status status = tsr_no_memory(NULL);
    if (parser && fy_parser_set_string(parser, text, n) == 0)
        status = take_all(&b, parser, diag);
    if (parser)
        fy_parser_destroy(parser);
    tsr__names_fini(&b.names);
    *out = b.root;
    if (status == TSR_OK && !b.root) {
        *out = new_node(src, TSR_NODE_NULL, (struct place){1, 1});
        status = *out ? TSR_OK : tsr_no_memory(NULL);
    }
    return status;
}

static tsr_status parse_text(const struct source *src, const char *text, size_t n,
                             struct tsr_yaml_node **out)
{
    struct fy_diag_cfg cfg;
    TSR_TRY(tsr_text_check(src->name, src->is_option, text, n));
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
    TSR_TRY(tsr_text_read(path, TSR_TEXT_BYTES, &text, &n));
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
