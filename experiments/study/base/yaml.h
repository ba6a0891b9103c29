/* yaml.h: a small tree of YAML (or JSON) values that remembers where each value was written.
 *
 * The files of a user are read with libfyaml and turned into tsr_node trees, so that the rest of
 * the program knows nothing of the parser and every complaint can name file, line and column.
 */
#ifndef TSR_STUDY_YAML_H
#define TSR_STUDY_YAML_H

#include "engine/program/base.h"
#include "sim/base/words.h"

enum tsr_node_kind { TSR_NODE_NULL, TSR_NODE_SCALAR, TSR_NODE_SEQ, TSR_NODE_MAP };

/* A node and where it stands. Its document's arena owns it, with its texts. A mapping's items are
 * its values, in the file's order; their `key` says under what. */
struct tsr_yaml_node {
    enum tsr_node_kind kind;
    bool quoted;      /* a scalar in quotes is never a number, a boolean or null */
    const char *key;  /* inside a mapping; else NULL */
    const char *text; /* scalars; "" otherwise */
    const char *file; /* as the user wrote it; line 0: `file` is the option, "--set batch=3" */
    int line, column;
    size_t n, cap; /* items of a sequence or mapping */
    struct tsr_yaml_node **items;
};

struct tsr_doc {
    struct tsr_arena arena; /* owns every node and text */
    struct tsr_yaml_node *root;
};

/* Reads one YAML document. Errors: TSR_ECONFIG with file:line:column, TSR_ENOMEM. On failure *out
 * needs no tsr_doc_fini(). */
tsr_status tsr_doc_load(const char *path, struct tsr_doc *out) TSR_MUST_USE;
/* The same of a text of `n` bytes; messages call it `name`. */
tsr_status tsr_doc_read(const char *name, const char *text, size_t n,
                        struct tsr_doc *out) TSR_MUST_USE;
void tsr_doc_fini(struct tsr_doc *doc);

/* Value of `key`; NULL if `map` is no mapping or has no such key. */
const struct tsr_yaml_node *tsr_node_get(const struct tsr_yaml_node *map, const char *key);

/* Applies "a.b.c=VALUE" (VALUE is YAML). Mappings on the way are made where they are missing;
 * an existing key that contains dots is found too. */
tsr_status tsr_doc_set(struct tsr_doc *doc, const char *assignment) TSR_MUST_USE;

/* Fails with TSR_ECONFIG and "FILE:LINE:COLUMN: " (or "--set ...: ") before the text. */
tsr_status tsr_node_error(const struct tsr_yaml_node *at, const char *fmt, ...) TSR_PRINTF(2, 3);
/* That place, "FILE:LINE:COLUMN"; NULL: out of memory. */
const char *tsr_node_place(struct tsr_arena *arena, const struct tsr_yaml_node *at);
/* Puts the place before the text of the last failure and returns `status`. */
tsr_status tsr_node_wrap_error(const struct tsr_yaml_node *at, tsr_status status, const char *what);
/* What a message shows as the value found: the text, "null", "[9, 8]", "{nic: 2, share: 0.5}";
 * lists and mappings that are longer end in "...". It lives as long as the block that asks for it.
 */
enum { TSR_SHOWN_BYTES = 80 };
#define tsr_node_show(node) tsr__node_show(node, (char[TSR_SHOWN_BYTES]){0})
const char *tsr__node_show(const struct tsr_yaml_node *node, char room[TSR_SHOWN_BYTES]);

/* Scalars. False if the node is something else or out of range. */
bool tsr_node_bool(const struct tsr_yaml_node *node, bool *out);
bool tsr_node_u64(const struct tsr_yaml_node *node, uint64_t *out);
bool tsr_node_i64(const struct tsr_yaml_node *node, int64_t *out);
bool tsr_node_double(const struct tsr_yaml_node *node, double *out);
bool tsr_node_is_null(const struct tsr_yaml_node *node); /* absent, empty, `null` or `~` */

/* ---- words that were meant ------------------------------------------------------------------- */

/* "a, b or c" of those `words` (NULL-terminated) that are not empty. */
void tsr_join_words(const char *const *words, char *out, size_t size);
/* Fails with "PATH: unknown key "KEY"; nearest: ...; allowed: ...". */
tsr_status tsr_unknown_key(const struct tsr_yaml_node *node, const char *path,
                           const char *const *allowed);

#endif
