/* value_lists.c: values that are lists of small mappings: of the keys `wrap` (a word, or a list
 * of calls like those of the golden scenarios), sim.faults and sim.traffic. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "experiments/study/base/yaml.h"
#include "experiments/study/config/settings.h"

static const char *const entry_keys[] = {"modules", "group", "reshard_after_forward", NULL};

static tsr_status read_patterns(struct tsr_arena *arena, const char *path,
                                const struct tsr_yaml_node *node, struct tsr_wrap_entry *out)
{
    static const char allowed[] = "a pattern of module names, or a list of them";
    size_t n = node && node->kind == TSR_NODE_SEQ ? node->n : 1;
    const char **patterns = tsr_arena_alloc(arena, (n + 1) * sizeof(*patterns));
    if (!patterns)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < n; i++) {
        const struct tsr_yaml_node *item = node->kind == TSR_NODE_SEQ ? node->items[i] : node;
        if (item->kind != TSR_NODE_SCALAR)
            return tsr_node_error(item, "%s.modules: found %s; allowed: %s", path,
                                  tsr_node_show(item), allowed);
        patterns[i] = item->text;
    }
    if (n == 0)
        return tsr_node_error(node, "%s.modules: found an empty list; allowed: %s", path, allowed);
    out->modules = patterns;
    out->n_modules = n;
    return TSR_OK;
}

static tsr_status read_entry(struct tsr_arena *arena, const char *path,
                             const struct tsr_yaml_node *node, struct tsr_wrap_entry *out)
{
    if (node->kind != TSR_NODE_MAP)
        return tsr_node_error(node,
                              "%s: found %s; allowed: {modules: [PATTERN, ...], group: BOOL, "
                              "reshard_after_forward: VALUE}",
                              path, tsr_node_show(node));
    out->at = node;
    for (size_t i = 0; i < node->n; i++) {
        const struct tsr_yaml_node *value = node->items[i];
        if (!strcmp(value->key, "modules")) {
            TSR_TRY(read_patterns(arena, path, value, out));
        } else if (!strcmp(value->key, "group")) {
            if (!tsr_node_bool(value, &out->group))
                return tsr_node_error(value, "%s.group: found %s; allowed: true or false", path,
                                      tsr_node_show(value));
        } else if (!strcmp(value->key, "reshard_after_forward")) {
            out->has_reshard = true;
            if (!tsr_reshard_of(value, &out->reshard))
                return tsr_node_error(value,
                                      "%s.reshard_after_forward: found %s; allowed: null, true, "
                                      "false, or an integer from 1",
                                      path, tsr_node_show(value));
        } else {
            return tsr_unknown_key(value, path, entry_keys);
        }
    }
    if (!out->n_modules)
        return tsr_node_error(node,
                              "%s: has no key \"modules\"; allowed: modules, group, "
                              "reshard_after_forward",
                              path);
    return TSR_OK;
}

tsr_status tsr_wrap_read(struct tsr_arena *arena, const char *path,
                         const struct tsr_yaml_node *node, struct tsr_wrap_value *out, bool *ok)
{
    *ok = node->n > 0;
    if (!*ok)
        return TSR_OK;
    struct tsr_wrap_entry *entries = tsr_arena_alloc(arena, node->n * sizeof(*entries));
    if (!entries)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < node->n; i++)
        TSR_TRY(read_entry(arena, path, node->items[i], &entries[i]));
    *out = (struct tsr_wrap_value){TSR_WRAP_LIST, node->n, entries};
    return TSR_OK;
}

/* Appends formatted text; false when it does not fit. */
static bool add(char *out, size_t size, const char *text)
{
    size_t used = strlen(out), n = strlen(text);
    if (used + n + 1 > size)
        return false;
    memcpy(out + used, text, n + 1);
    return true;
}

static bool add_entry(char *out, size_t size, const struct tsr_wrap_entry *entry)
{
    char text[512];
    bool ok = add(out, size, "{modules: [");
    for (size_t i = 0; ok && i < entry->n_modules; i++) {
        ok = tsr_yaml_quote(entry->modules[i], text, sizeof text) == TSR_OK;
        ok = ok && (i == 0 || add(out, size, ", ")) && add(out, size, text);
    }
    ok = ok && add(out, size, "]");
    if (entry->group)
        ok = ok && add(out, size, ", group: true");
    if (entry->has_reshard) {
        static const char *const words[] = {"null", "false", "true"};
        if (entry->reshard.kind == TSR_RESHARD_INT)
            snprintf(text, sizeof text, ", reshard_after_forward: %" PRId64, entry->reshard.value);
        else
            snprintf(text, sizeof text, ", reshard_after_forward: %s", words[entry->reshard.kind]);
        ok = ok && add(out, size, text);
    }
    return ok && add(out, size, "}");
}

tsr_status tsr_wrap_format(const struct tsr_wrap_value *wrap, char *out, size_t size)
{
    if (wrap->kind != TSR_WRAP_LIST) {
        snprintf(out, size, "%s", tsr_words_wrap[wrap->kind]);
        return TSR_OK;
    }
    out[0] = 0;
    bool ok = add(out, size, "[");
    for (size_t i = 0; ok && i < wrap->n_entries; i++)
        ok = (i == 0 || add(out, size, ", ")) && add_entry(out, size, &wrap->entries[i]);
    if (!ok || !add(out, size, "]"))
        return tsr_fail(TSR_ECONFIG, "a wrap list is longer than %zu bytes", size);
    return TSR_OK;
}

/* ---- faults and traffic ---------------------------------------------------------------------- */

/* What the numbers mean and which are possible for a job: sim/input/conditions.h. */

const char *const tsr_faults_allowed =
    "a list of {gpu: RANK, slow: FACTOR}, {port: RANK, share: S}, {nic: N, share: S} and "
    "{uplink: N, share: S}, S from 0 to 1";
const char *const tsr_traffic_allowed =
    "a list of {from: RANK, to: RANK, gb: SIZE, every_ms: PERIOD, start_ms: TIME}";

/* One number of a mapping; false: it is there and no such number. *found is left alone if it is
 * missing. */
static bool number(const struct tsr_yaml_node *map, const char *key, bool whole, double *out,
                   bool *found)
{
    const struct tsr_yaml_node *value = tsr_node_get(map, key);
    uint64_t integer;
    if (!value)
        return true;
    *found = true;
    if (!whole)
        return tsr_node_double(value, out) && *out >= 0;
    if (!tsr_node_u64(value, &integer) || integer >= UINT32_MAX)
        return false;
    *out = (double)integer;
    return true;
}

static tsr_status refuse(const char *path, const struct tsr_yaml_node *node, const char *allowed)
{
    return tsr_node_error(node, "%s: found %s; allowed: %s", path, tsr_node_show(node), allowed);
}

/* Keys of a mapping that are none of `words` (NULL-terminated). */
static tsr_status check_words(const char *path, const struct tsr_yaml_node *map,
                              const char *const *words)
{
    for (size_t i = 0; map->kind == TSR_NODE_MAP && i < map->n; i++) {
        size_t k = 0;
        while (words[k] && strcmp(words[k], map->items[i]->key) != 0)
            k++;
        if (!words[k])
            return tsr_unknown_key(map->items[i], path, words);
    }
    return TSR_OK;
}

/* ---- faults ------------------------------------------------------------------------------ */

static tsr_status read_fault(const char *path, const struct tsr_yaml_node *node,
                             struct tsr_slow_gpu *slow, struct tsr_link_fault *link, bool *is_link)
{
    double index = 0, value = 0;
    bool gpu = false, has_slow = false, has_share = false, known = false, good;
    const char *words[TSR_N_LINK_CLASSES + 4] = {"gpu", "slow", "share"};
    for (int i = 0; i < TSR_N_LINK_CLASSES; i++)
        words[3 + i] = tsr_link_class_name((enum tsr_link_class)i);
    TSR_TRY(check_words(path, node, words));
    good = node->kind == TSR_NODE_MAP && node->n == 2 && number(node, "gpu", true, &index, &gpu);
    *is_link = good && !gpu;
    for (int i = 0; good && *is_link && i < TSR_N_LINK_CLASSES && !known; i++) {
        link->link = (enum tsr_link_class)i;
        good = number(node, tsr_link_class_name(link->link), true, &index, &known);
    }
    good =
        good && number(node, gpu ? "slow" : "share", false, &value, gpu ? &has_slow : &has_share);
    good = good && ((gpu && has_slow && value > 0) || (known && has_share && value <= 1));
    if (!good)
        return refuse(path, node, tsr_faults_allowed);
    *slow = (struct tsr_slow_gpu){(uint32_t)index, value};
    link->index = (uint32_t)index;
    link->share = value;
    return TSR_OK;
}

tsr_status tsr_faults_read(struct tsr_arena *arena, const char *path,
                           const struct tsr_yaml_node *node, struct tsr_faults *out, bool *ok)
{
    *ok = node->kind == TSR_NODE_SEQ || tsr_node_is_null(node);
    if (*ok)
        *out = (struct tsr_faults){0};
    if (node->kind != TSR_NODE_SEQ)
        return TSR_OK;
    struct tsr_slow_gpu *slow = tsr_arena_alloc(arena, (node->n + 1) * sizeof *slow);
    struct tsr_link_fault *links = tsr_arena_alloc(arena, (node->n + 1) * sizeof *links);
    if (!slow || !links)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < node->n; i++) {
        bool is_link;
        TSR_TRY(
            read_fault(path, node->items[i], &slow[out->n_slow], &links[out->n_links], &is_link));
        out->n_slow += !is_link;
        out->n_links += is_link;
    }
    out->slow = slow;
    out->links = links;
    return TSR_OK;
}

/* Appends "{a: 1, b: 2}"; returns what is used then, at most `size`. */
static size_t add_pair(char *out, size_t size, size_t used, const char *a, uint32_t index,
                       const char *b, double value)
{
    char text[40];
    tsr_format_double(value, text, sizeof text);
    int n = used < size ? snprintf(out + used, size - used, "%s{%s: %u, %s: %s}",
                                   used == 1 ? "" : ", ", a, index, b, text)
                        : 0;
    return used + (size_t)(n > 0 ? n : 0);
}

static tsr_status close_list(char *out, size_t size, size_t used)
{
    if (used + 2 > size)
        return tsr_fail(TSR_ECONFIG, "a list is longer than %zu bytes", size);
    memcpy(out + used, "]", 2);
    return TSR_OK;
}

tsr_status tsr_faults_format(const struct tsr_faults *f, char *out, size_t size)
{
    size_t used = 1;
    snprintf(out, size, "%s", f->n_slow + f->n_links ? "[" : "null");
    if (f->n_slow + f->n_links == 0)
        return TSR_OK;
    for (size_t i = 0; i < f->n_slow; i++)
        used = add_pair(out, size, used, "gpu", f->slow[i].rank, "slow", f->slow[i].factor);
    for (size_t i = 0; i < f->n_links; i++)
        used = add_pair(out, size, used, tsr_link_class_name(f->links[i].link), f->links[i].index,
                        "share", f->links[i].share);
    return close_list(out, size, used);
}

/* ---- traffic ----------------------------------------------------------------------------- */

static tsr_status read_traffic(const char *path, const struct tsr_yaml_node *node,
                               struct tsr_traffic *out)
{
    static const char *const words[] = {"from", "to", "gb", "every_ms", "start_ms", NULL};
    double from = 0, to = 0, gb = 0, every = 0, start = 0;
    bool has[5] = {false};
    size_t n = 0;
    TSR_TRY(check_words(path, node, words));
    bool good = node->kind == TSR_NODE_MAP && number(node, "from", true, &from, &has[0]) &&
                number(node, "to", true, &to, &has[1]) && number(node, "gb", false, &gb, &has[2]) &&
                number(node, "every_ms", false, &every, &has[3]) &&
                number(node, "start_ms", false, &start, &has[4]);
    for (int i = 0; i < 5; i++)
        n += has[i];
    if (!good || !has[0] || !has[1] || !has[2] || !has[3] || n != node->n)
        return refuse(path, node, tsr_traffic_allowed);
    *out = (struct tsr_traffic){(uint32_t)from, (uint32_t)to, gb * 1e9, every * 1e-3, start * 1e-3};
    return TSR_OK;
}

tsr_status tsr_traffic_read(struct tsr_arena *arena, const char *path,
                            const struct tsr_yaml_node *node, struct tsr_traffic_list *out,
                            bool *ok)
{
    *ok = node->kind == TSR_NODE_SEQ || tsr_node_is_null(node);
    if (*ok)
        *out = (struct tsr_traffic_list){0};
    if (node->kind != TSR_NODE_SEQ)
        return TSR_OK;
    struct tsr_traffic *items = tsr_arena_alloc(arena, (node->n + 1) * sizeof *items);
    if (!items)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < node->n; i++)
        TSR_TRY(read_traffic(path, node->items[i], &items[i]));
    *out = (struct tsr_traffic_list){node->n, items};
    return TSR_OK;
}

tsr_status tsr_traffic_format(const struct tsr_traffic_list *traffic, char *out, size_t size)
{
    size_t used = 1;
    snprintf(out, size, "%s", traffic->n ? "[" : "null");
    if (!traffic->n)
        return TSR_OK;
    for (size_t i = 0; i < traffic->n && used < size; i++) {
        const struct tsr_traffic *t = &traffic->items[i];
        char gb[40], every[40], start[40];
        tsr_format_double(t->bytes / 1e9, gb, sizeof gb);
        tsr_format_double(t->period_s / 1e-3, every, sizeof every);
        tsr_format_double(t->start_s / 1e-3, start, sizeof start);
        int n = snprintf(out + used, size - used,
                         "%s{from: %u, to: %u, gb: %s, every_ms: %s, start_ms: %s}", i ? ", " : "",
                         t->from, t->to, gb, every, start);
        used += (size_t)(n > 0 ? n : 0);
    }
    return close_list(out, size, used);
}
