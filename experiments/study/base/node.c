/* node.c: scalars of a tsr_node, complaints about one, and the word that a user probably meant. */
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

const char *tsr_node_show(const struct tsr_yaml_node *node)
{
    if (!node || node->kind == TSR_NODE_NULL)
        return "null";
    if (node->kind == TSR_NODE_SCALAR)
        return *node->text ? node->text : "an empty text";
    return node->kind == TSR_NODE_SEQ ? "a list" : "a mapping";
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

/* ---- the word that was meant ----------------------------------------------------------------- */

enum { MAX_WORD = 64 };

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;
    return m < c ? m : c;
}

/* Longer words are cut: what differs after 64 letters is no slip of the pen. */
size_t tsr_edit_distance(const char *a, const char *b)
{
    size_t n_a = strlen(a), n_b = strlen(b);
    n_a = n_a < MAX_WORD ? n_a : MAX_WORD;
    n_b = n_b < MAX_WORD ? n_b : MAX_WORD;
    size_t row[3][MAX_WORD + 1]; /* two rows back, the last row, this row */
    memset(row, 0, sizeof row);
    size_t *older = row[0], *last = row[1], *now = row[2];
    for (size_t j = 0; j <= n_b; j++)
        last[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        now[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t replace = last[j - 1] + (a[i - 1] != b[j - 1]);
            now[j] = min3(last[j] + 1, now[j - 1] + 1, replace);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                older[j - 2] + 1 < now[j])
                now[j] = older[j - 2] + 1;
        }
        size_t *spare = older;
        older = last;
        last = now;
        now = spare;
    }
    return last[n_b];
}

const char *tsr_nearest(const char *word, const char *const *words)
{
    const char *best = NULL;
    size_t best_distance = strlen(word) / 2 + 1;
    for (size_t i = 0; words[i]; i++) {
        size_t distance = tsr_edit_distance(word, words[i]);
        if (*words[i] && distance < best_distance) {
            best = words[i];
            best_distance = distance;
        }
    }
    return best;
}

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
