/* node.c: scalars of a tsr_node, and complaints about one. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/yaml.h"

static void place_text(const struct tsr_yaml_node *at, char *out, size_t size)
{
    if (at->line == 0)
        snprintf(out, size, "%s", at->file);
    else if (at->column == 0)
        snprintf(out, size, "%s:%d", at->file, at->line);
    else
        snprintf(out, size, "%s:%d:%d", at->file, at->line, at->column);
}

const char *tsr_node_place(struct tsr_arena *arena, const struct tsr_yaml_node *at)
{
    char text[512];
    place_text(at, text, sizeof text);
    return tsr_arena_strdup(arena, text);
}

tsr_status tsr_node_error(const struct tsr_yaml_node *at, const char *fmt, ...)
{
    char place[512], text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!at)
        return tsr_fail(TSR_ECONFIG, "%s", text);
    place_text(at, place, sizeof place);
    return tsr_fail(TSR_ECONFIG, "%s: %s", place, text);
}

tsr_status tsr_node_wrap_error(const struct tsr_yaml_node *at, tsr_status status, const char *what)
{
    char place[512], text[1024];
    snprintf(text, sizeof text, "%s", tsr_error_text());
    if (!at)
        return tsr_fail(status, "%s: %s", what, text);
    place_text(at, place, sizeof place);
    return tsr_fail(status, "%s: %s: %s", place, what, text);
}

/* Appends to a text of TSR_SHOWN_BYTES. Once it is full it ends in "..." and takes nothing more. */
static void append(char *out, const char *text)
{
    enum { END = TSR_SHOWN_BYTES - 4 }; /* room for "..." and 0 */
    size_t used = strlen(out), n = strlen(text);
    if (used > END)
        return;
    if (used + n <= END) {
        memcpy(out + used, text, n + 1);
        return;
    }
    memcpy(out + used, text, END - used);
    used = END;
    while (used > 0 && ((unsigned char)out[used - 1] & 0xC0U) == 0x80U) /* inside a UTF-8 letter */
        used--;
    if (used > 0 && (unsigned char)out[used - 1] >= 0xC0U)
        used--;
    memset(out + used, '.', TSR_SHOWN_BYTES - 1 - used);
    out[TSR_SHOWN_BYTES - 1] = 0;
}

static void append_node(char *out, const struct tsr_yaml_node *node)
{
    bool is_map = node->kind == TSR_NODE_MAP;
    if (node->kind == TSR_NODE_NULL || node->kind == TSR_NODE_SCALAR) {
        const char *quote = node->kind == TSR_NODE_SCALAR && !*node->text ? "''" : "";
        append(out, node->kind == TSR_NODE_NULL ? "null" : node->text);
        append(out, quote);
        return;
    }
    append(out, is_map ? "{" : "[");
    for (size_t i = 0; i < node->n && strlen(out) < TSR_SHOWN_BYTES - 1; i++) {
        append(out, i ? ", " : "");
        append(out, is_map ? node->items[i]->key : "");
        append(out, is_map ? ": " : "");
        append_node(out, node->items[i]);
    }
    append(out, is_map ? "}" : "]");
}

const char *tsr__node_show(const struct tsr_yaml_node *node, char room[TSR_SHOWN_BYTES])
{
    if (!node || node->kind == TSR_NODE_NULL)
        return "null";
    if (node->kind == TSR_NODE_SCALAR)
        return *node->text ? node->text : "an empty text";
    *room = 0;
    append_node(room, node);
    return room;
}

static bool is_plain(const struct tsr_yaml_node *node)
{
    return node && node->kind == TSR_NODE_SCALAR && !node->quoted;
}

bool tsr_node_is_null(const struct tsr_yaml_node *node)
{
    return !node || node->kind == TSR_NODE_NULL;
}

bool tsr_node_bool(const struct tsr_yaml_node *node, bool *out)
{
    if (!is_plain(node))
        return false;
    if (strcmp(node->text, "true") && strcmp(node->text, "false"))
        return false;
    *out = node->text[0] == 't';
    return true;
}

bool tsr_node_i64(const struct tsr_yaml_node *node, int64_t *out)
{
    if (!is_plain(node) || strspn(node->text, "-0123456789") != strlen(node->text))
        return false;
    char *end = NULL;
    errno = 0;
    long long value = strtoll(node->text, &end, 10);
    if (errno || end == node->text || *end)
        return false;
    *out = value;
    return true;
}

bool tsr_node_u64(const struct tsr_yaml_node *node, uint64_t *out)
{
    int64_t value = 0;
    if (!tsr_node_i64(node, &value) || value < 0)
        return false;
    *out = (uint64_t)value;
    return true;
}

bool tsr_node_double(const struct tsr_yaml_node *node, double *out)
{
    if (!is_plain(node) || strspn(node->text, "+-.0123456789eE") != strlen(node->text))
        return false;
    char *end = NULL;
    double value = strtod(node->text, &end);
    if (end == node->text || *end || !isfinite(value))
        return false;
    *out = value;
    return true;
}

/* ---- words ----------------------------------------------------------------------------------- */

void tsr_join_words(const char *const *words, char *out, size_t size)
{
    size_t n = 0, used = 0;
    while (words && words[n])
        n++;
    out[0] = 0;
    for (size_t i = 0; i < n; i++) {
        if (!*words[i])
            continue;
        const char *between = !out[0] ? "" : i + 1 == n ? " or " : ", ";
        int written = snprintf(out + used, size - used, "%s%s", between, words[i]);
        if (written < 0 || (size_t)written >= size - used)
            return;
        used += (size_t)written;
    }
}

tsr_status tsr_unknown_key(const struct tsr_yaml_node *node, const char *path,
                           const char *const *allowed)
{
    char words[512];
    const char *near = tsr_nearest(node->key, allowed);
    tsr_join_words(allowed, words, sizeof words);
    if (near)
        return tsr_node_error(node, "%s%sunknown key \"%s\"; nearest: \"%s\"; allowed: %s", path,
                              *path ? ": " : "", node->key, near, words);
    return tsr_node_error(node, "%s%sunknown key \"%s\"; allowed: %s", path, *path ? ": " : "",
                          node->key, words);
}
