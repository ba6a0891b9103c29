/* values.c: reads, prints and describes the value of one key, by its type. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "experiments/study/base/yaml.h"
#include "experiments/study/config/settings.h"
#include "sim/base/text.h"

static void *field(struct tsr_settings *settings, const struct tsr_key *key)
{
    return (char *)settings + key->offset;
}

static const void *field_of(const struct tsr_settings *settings, const struct tsr_key *key)
{
    return (const char *)settings + key->offset;
}

static bool allows_null(const struct tsr_key *key)
{
    return key->type == TSR_KEY_RESHARD || (key->def && !strcmp(key->def, "null"));
}

static double scale_of(const struct tsr_key *key)
{
    return key->scale > 0 ? key->scale : 1;
}

/* ---- what is allowed --------------------------------------------------------------------- */

void tsr_key_allowed(const struct tsr_key *key, char *out, size_t size)
{
    char words[256], text[512];
    tsr_join_words(key->words, words, sizeof words);
    switch (key->type) {
    case TSR_KEY_STRING:
        snprintf(text, sizeof text, "a text");
        break;
    case TSR_KEY_BOOL:
        snprintf(text, sizeof text, "true or false");
        break;
    case TSR_KEY_ENUM:
        snprintf(text, sizeof text, "%s", words);
        break;
    case TSR_KEY_UINT:
    case TSR_KEY_UINT32:
        snprintf(text, sizeof text, "%s%san integer from %.0f to %.0f", words,
                 *words ? ", or " : "", key->min, key->max);
        break;
    case TSR_KEY_CHECKPOINT:
        snprintf(text, sizeof text, "%s, or an integer from %.0f to %.0f", words, key->min,
                 key->max);
        break;
    case TSR_KEY_DOUBLE:
        snprintf(text, sizeof text, "a number from %.10g to %.10g", key->min, key->max);
        break;
    case TSR_KEY_SHAPE:
        snprintf(text, sizeof text,
                 "[N], [REPLICATE, SHARD], or {replicate: N, shard: N}, sizes from 1");
        break;
    case TSR_KEY_RESHARD:
        snprintf(text, sizeof text, "null, true, false, or an integer from 1 to %.0f", 1048576.0);
        break;
    case TSR_KEY_WRAP:
        snprintf(text, sizeof text, "%s, or a list of {modules: [PATTERN, ...]}", words);
        break;
    case TSR_KEY_LIST:
        snprintf(text, sizeof text, "a list of %s, in this order", words);
        break;
    case TSR_KEY_FAULTS:
        snprintf(text, sizeof text, "%s", tsr_faults_allowed);
        break;
    case TSR_KEY_TRAFFIC:
        snprintf(text, sizeof text, "%s", tsr_traffic_allowed);
        break;
    case TSR_KEY_TREE:
        snprintf(text, sizeof text, "%s", tsr_tree_allowed);
        break;
    }
    snprintf(out, size, "%s%s", text,
             allows_null(key) && key->type != TSR_KEY_RESHARD && key->type != TSR_KEY_TREE
                 ? ", or null"
                 : "");
}

static tsr_status refuse(const struct tsr_key *key, const char *path,
                         const struct tsr_yaml_node *node)
{
    char allowed[512];
    tsr_key_allowed(key, allowed, sizeof allowed);
    return tsr_node_error(node, "%s: found %s; allowed: %s", path, tsr_node_show(node), allowed);
}

/* ---- storing ----------------------------------------------------------------------------- */

static int word_index(const char *const *words, const struct tsr_yaml_node *node)
{
    for (int i = 0; words && words[i] && node->kind == TSR_NODE_SCALAR; i++)
        if (*words[i] && !strcmp(words[i], node->text))
            return i;
    /* An unquoted `none` is a word, an unquoted `null` stands for it. */
    return words && node->kind == TSR_NODE_NULL && !strcmp(words[0], "none") ? 0 : -1;
}

static bool store_uint(const struct tsr_key *key, const struct tsr_yaml_node *node, uint64_t *out)
{
    int word = word_index(key->words, node);
    uint64_t value = 0;
    if (word >= 0) {
        *out = (uint64_t)word;
        return true;
    }
    if (tsr_node_is_null(node) && allows_null(key)) {
        *out = 0;
        return true;
    }
    if (!tsr_node_u64(node, &value) || (double)value < key->min || (double)value > key->max)
        return false;
    *out = value * (uint64_t)scale_of(key);
    return true;
}

/* A word or a k; the last word stands for no number. */
static bool store_checkpoint(const struct tsr_key *key, const struct tsr_yaml_node *node,
                             uint64_t *out)
{
    if (node->kind == TSR_NODE_SCALAR && !strcmp(node->text, "selective_op")) {
        *out = TSR_CKPT_SELECTIVE_OP;
        return true;
    }
    return store_uint(key, node, out);
}

static bool store_shape(const struct tsr_yaml_node *node, struct tsr_shape_value *out)
{
    struct tsr_shape_value shape = {0};
    if (!tsr_node_is_null(node)) {
        if (node->kind != TSR_NODE_SEQ || node->n < 1 || node->n > 2)
            return false;
        for (size_t i = 0; i < node->n; i++) {
            uint64_t value = 0;
            if (!tsr_node_u64(node->items[i], &value) || value < 1 || value > 1048576)
                return false;
            shape.size[shape.n++] = (uint32_t)value;
        }
    }
    *out = shape;
    return true;
}

bool tsr_reshard_of(const struct tsr_yaml_node *node, struct tsr_reshard_value *out)
{
    struct tsr_reshard_value value = {TSR_RESHARD_DEFAULT, 0};
    bool flag = false;
    if (tsr_node_bool(node, &flag))
        value.kind = flag ? TSR_RESHARD_TRUE : TSR_RESHARD_FALSE;
    else if (tsr_node_i64(node, &value.value))
        value.kind = TSR_RESHARD_INT;
    else if (!tsr_node_is_null(node))
        return false;
    if (value.kind == TSR_RESHARD_INT && (value.value < 1 || value.value > 1048576))
        return false;
    *out = value;
    return true;
}

static bool store_number(const struct tsr_key *key, const struct tsr_yaml_node *node, double *out)
{
    double value = 0;
    if (tsr_node_is_null(node) && allows_null(key)) {
        *out = (double)NAN;
        return true;
    }
    if (!tsr_node_double(node, &value) || value < key->min || value > key->max)
        return false;
    *out = value * scale_of(key);
    return true;
}

static bool store_string(const struct tsr_key *key, const struct tsr_yaml_node *node,
                         const char **out)
{
    if (tsr_node_is_null(node) && allows_null(key)) {
        *out = NULL;
        return true;
    }
    if (node->kind != TSR_NODE_SCALAR || !*node->text)
        return false;
    *out = node->text;
    return true;
}

static bool store_word(const struct tsr_key *key, const struct tsr_yaml_node *node, unsigned *out)
{
    int word = word_index(key->words, node);
    bool is_dtype = key->words == tsr_words_dtype || key->words == tsr_words_real;
    if (word < 0 && is_dtype && node->kind == TSR_NODE_SCALAR) { /* bfloat16, fp32, ... */
        struct tsr_yaml_node canonical = *node;
        canonical.text = tsr_dtype_name(tsr_dtype_parse(node->text));
        if (tsr_dtype_parse(node->text) != TSR_DTYPE_NONE)
            word = word_index(key->words, &canonical);
    }
    if (word >= 0)
        *out = (unsigned)word;
    return word >= 0;
}

/* Words in their order, each once. */
static bool store_list(const struct tsr_key *key, const struct tsr_yaml_node *node, unsigned *out)
{
    unsigned set = 0;
    if (tsr_node_is_null(node) && allows_null(key)) {
        *out = 0;
        return true;
    }
    if (node->kind != TSR_NODE_SEQ || node->n == 0)
        return false;
    for (size_t i = 0; i < node->n; i++) {
        int word = word_index(key->words, node->items[i]);
        if (word < 0 || set >> word)
            return false;
        set |= 1U << word;
    }
    *out = set;
    return true;
}

tsr_status tsr_key_store(struct tsr_arena *arena, const struct tsr_key *key, const char *path,
                         const struct tsr_yaml_node *node, struct tsr_settings *settings)
{
    void *to = field(settings, key);
    uint64_t number = 0;
    bool ok = false;
    switch (key->type) {
    case TSR_KEY_STRING:
        ok = store_string(key, node, to);
        break;
    case TSR_KEY_UINT:
        ok = store_uint(key, node, to);
        break;
    case TSR_KEY_CHECKPOINT:
        ok = store_checkpoint(key, node, to);
        break;
    case TSR_KEY_UINT32:
        ok = store_uint(key, node, &number);
        if (ok)
            *(uint32_t *)to = (uint32_t)number;
        break;
    case TSR_KEY_BOOL:
        ok = tsr_node_bool(node, to);
        break;
    case TSR_KEY_DOUBLE:
        ok = store_number(key, node, to);
        break;
    case TSR_KEY_ENUM:
        ok = store_word(key, node, to);
        break;
    case TSR_KEY_SHAPE:
        ok = store_shape(node, to);
        break;
    case TSR_KEY_RESHARD:
        ok = tsr_reshard_of(node, to);
        break;
    case TSR_KEY_LIST:
        ok = store_list(key, node, to);
        break;
    case TSR_KEY_FAULTS:
        TSR_TRY(tsr_faults_read(arena, path, node, to, &ok));
        break;
    case TSR_KEY_TRAFFIC:
        TSR_TRY(tsr_traffic_read(arena, path, node, to, &ok));
        break;
    case TSR_KEY_TREE:
        TSR_TRY(tsr_tree_store(path, node, to, &ok));
        break;
    case TSR_KEY_WRAP:
        if (node->kind == TSR_NODE_SEQ)
            TSR_TRY(tsr_wrap_read(arena, path, node, to, &ok));
        else if (word_index(key->words, node) >= 0) {
            *(struct tsr_wrap_value *)to =
                (struct tsr_wrap_value){.kind = (enum tsr_wrap_kind)word_index(key->words, node)};
            ok = true;
        }
        break;
    }
    if (!ok)
        return refuse(key, path, node);
    settings->from[key - tsr_keys] = node;
    return TSR_OK;
}

/* ---- printing ---------------------------------------------------------------------------- */

void tsr_format_double(double value, char *out, size_t size)
{
    if (isnan(value)) {
        snprintf(out, size, "null");
        return;
    }
    for (int digits = 6; digits <= 17; digits++) {
        char again[64];
        snprintf(out, size, "%.*g", digits, value);
        double back = 0;
        snprintf(again, sizeof again, "%s", out);
        if (sscanf(again, "%lf", &back) == 1 && fabs(back - value) <= 1e-15 * fabs(value))
            return;
    }
}

static void format_uint(const struct tsr_key *key, uint64_t value, char *out, size_t size)
{
    uint64_t shown = value / (uint64_t)scale_of(key);
    size_t n_words = 0;
    while (key->words && key->words[n_words])
        n_words++;
    if (shown < n_words)
        snprintf(out, size, "%s", key->words[shown]);
    else if (shown == 0 && allows_null(key))
        snprintf(out, size, "null");
    else
        snprintf(out, size, "%" PRIu64, shown);
}

static void format_checkpoint(uint64_t value, char *out, size_t size)
{
    if (value == TSR_CKPT_SELECTIVE_OP)
        snprintf(out, size, "selective_op");
    else if (value < 2)
        snprintf(out, size, "%s", tsr_words_ckpt[value]);
    else
        snprintf(out, size, "%" PRIu64, value);
}

static void format_reshard(const struct tsr_reshard_value *value, char *out, size_t size)
{
    static const char *const words[] = {
        [TSR_RESHARD_DEFAULT] = "null", [TSR_RESHARD_FALSE] = "false", [TSR_RESHARD_TRUE] = "true"};
    if (value->kind == TSR_RESHARD_INT)
        snprintf(out, size, "%" PRId64, value->value);
    else
        snprintf(out, size, "%s", words[value->kind]);
}

static void format_shape(const struct tsr_shape_value *shape, char *out, size_t size)
{
    if (shape->n == 0)
        snprintf(out, size, "null");
    else if (shape->n == 1)
        snprintf(out, size, "[%u]", shape->size[0]);
    else
        snprintf(out, size, "[%u, %u]", shape->size[0], shape->size[1]);
}

/* A double-quoted YAML scalar, or plain text where that reads back as itself. */
tsr_status tsr_yaml_quote(const char *text, char *out, size_t size)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
    size_t safe =
        strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+=@");
    /* In whatever case: other readers are of YAML 1.1, where these are no texts, either. */
    static const char *const reserved[] = {"null", "true", "false", "yes", "no",
                                           "on",   "off",  "y",     "n"};
    bool is_word = safe == strlen(text) && *text && strchr(plain, *text);
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        is_word = is_word && strcasecmp(text, reserved[i]) != 0;
    if (is_word) {
        if ((size_t)snprintf(out, size, "%s", text) < size)
            return TSR_OK;
        return tsr_fail(TSR_ECONFIG, "a text is too long");
    }
    size_t used = 0;
    if (size > 3)
        out[used++] = '"';
    if (!*text && size > 3) {
        snprintf(out, size, "\"\"");
        return TSR_OK;
    }
    while (*text && used + TSR_TEXT_PIECE + 2 < size) {
        unsigned code;
        bool escaped;
        (void)tsr_text_character(text, TSR_TEXT_LONGEST, &code);
        if (*text == '"' || *text == '\\')
            out[used++] = '\\';
        size_t n = tsr_text_next(&text, out + used, &escaped);
        used += escaped ? (size_t)snprintf(out + used, size - used,
                                           code < 0x100 ? "\\x%02x" : "\\u%04x", code)
                        : n;
    }
    if (!*text) {
        out[used++] = '"';
        out[used] = 0;
        return TSR_OK;
    }
    return tsr_fail(TSR_ECONFIG, "a text is longer than %zu bytes", size);
}

static void format_list(const struct tsr_key *key, unsigned set, char *out, size_t size)
{
    size_t used = 0;
    if (set == 0) {
        snprintf(out, size, "null");
        return;
    }
    for (size_t i = 0; key->words[i] && used < size; i++)
        if (set >> i & 1)
            used +=
                (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "[", key->words[i]);
    if (used < size)
        snprintf(out + used, size - used, "]");
}

tsr_status tsr_key_format(const struct tsr_key *key, const struct tsr_settings *settings, char *out,
                          size_t size)
{
    const void *from = field_of(settings, key);
    switch (key->type) {
    case TSR_KEY_STRING: {
        const char *text = *(const char *const *)from;
        if (text)
            return tsr_yaml_quote(text, out, size);
        snprintf(out, size, "null");
        break;
    }
    case TSR_KEY_UINT:
        format_uint(key, *(const uint64_t *)from, out, size);
        break;
    case TSR_KEY_CHECKPOINT:
        format_checkpoint(*(const uint64_t *)from, out, size);
        break;
    case TSR_KEY_UINT32:
        format_uint(key, *(const uint32_t *)from, out, size);
        break;
    case TSR_KEY_BOOL:
        snprintf(out, size, "%s", *(const bool *)from ? "true" : "false");
        break;
    case TSR_KEY_DOUBLE:
        tsr_format_double(*(const double *)from / scale_of(key), out, size);
        break;
    case TSR_KEY_ENUM:
        snprintf(out, size, "%s", key->words[*(const unsigned *)from]);
        break;
    case TSR_KEY_SHAPE:
        format_shape(from, out, size);
        break;
    case TSR_KEY_RESHARD:
        format_reshard(from, out, size);
        break;
    case TSR_KEY_LIST:
        format_list(key, *(const unsigned *)from, out, size);
        break;
    case TSR_KEY_WRAP:
        return tsr_wrap_format(from, out, size);
    case TSR_KEY_FAULTS:
        return tsr_faults_format(from, out, size);
    case TSR_KEY_TRAFFIC:
        return tsr_traffic_format(from, out, size);
    case TSR_KEY_TREE:
        return tsr_tree_format(from, out, size);
    }
    return TSR_OK;
}

tsr_status tsr_settings_hash(const struct tsr_settings *settings, uint64_t *hash)
{
    char *value = malloc(TSR_VALUE_BYTES);
    tsr_status status = value ? TSR_OK : tsr_no_memory("the keys of a strategy");
    for (size_t i = 0; i < TSR_N_KEYS && status == TSR_OK; i++) {
        status = tsr_key_format(&tsr_keys[i], settings, value, TSR_VALUE_BYTES);
        if (status != TSR_OK)
            break;
        *hash = tsr_hash_bytes(*hash, tsr_keys[i].name, strlen(tsr_keys[i].name) + 1);
        *hash = tsr_hash_bytes(*hash, value, strlen(value) + 1);
    }
    free(value);
    return status;
}
