/* test_allocator_replay.c: recorded events of PyTorch's own caching allocator, replayed: those of
 * real FSDP2 runs (tests/golden-memory) and random requests with every option that is modelled
 * (tests/golden-allocator).
 *
 * Every address, every device allocation or release, what is refused, and the statistics must come
 * out. Without zlib the test is skipped; with an argument (a folder) it replays that folder's
 * timelines instead.
 */
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/empty_cache.h"

#if TSR_HAVE_ZLIB
#include <zlib.h>

struct segment_event {
    enum tsr_segment_action action;
    uint64_t bytes, address;
    uint16_t stream;
};

struct replay {
    struct tsr_allocator *allocator;
    void **handles; /* of the live allocations, by id */
    struct segment_event made[4096];
    size_t n_made, n_compared, n_refused, n_stats;
    size_t first_segment; /* of the recorded segment events that wait to be compared */
    uint64_t reserved;
    const char *name;
    size_t event;
};

static const char *only_folder;

static json_t *read_json(const char *path)
{
    gzFile file = gzopen(path, "rb"); /* reads plain files as well */
    if (!file)
        fail_msg("cannot open %s", path);
    size_t n = 0, cap = 1 << 20;
    char *text = malloc(cap);
    for (int got; (got = gzread(file, text + n, (unsigned)(cap - n))) > 0;) {
        n += (size_t)got;
        if (n == cap)
            text = realloc(text, cap *= 2);
    }
    gzclose(file);
    json_error_t error;
    json_t *json = json_loadb(text, n, 0, &error);
    free(text);
    if (!json)
        fail_msg("%s: %s", path, error.text);
    return json;
}

static uint64_t field(const json_t *event, size_t i)
{
    return (uint64_t)json_integer_value(json_array_get(event, i));
}

static const char *entry(const json_t *tables, const char *table, uint64_t i)
{
    return json_string_value(json_array_get(json_object_get(tables, table), i));
}

static void on_segment(void *user, enum tsr_segment_action action, uint32_t segment,
                       uint64_t address, uint64_t bytes, uint16_t stream)
{
    struct replay *r = user;
    (void)segment;
    assert_true(r->n_made < sizeof r->made / sizeof r->made[0]);
    r->made[r->n_made++] = (struct segment_event){action, bytes, address, stream};
    bool grows = action == TSR_SEG_ALLOC || action == TSR_SEG_MAP;
    r->reserved = grows ? r->reserved + bytes : r->reserved - bytes;
}

/* Order of release between streams, as in the recorded runs. */
static void set_stream_orders(struct tsr_allocator *allocator, const json_t *tables)
{
    static const char *const order[] = {"default", "all_reduce", "all_gather_copy_in",
                                        "reduce_scatter"};
    const json_t *streams = json_object_get(tables, "stream");
    for (size_t i = 0; i < json_array_size(streams); i++)
        for (uint16_t k = 0; k < 4; k++)
            if (strcmp(json_string_value(json_array_get(streams, i)), order[k]) == 0)
                tsr_allocator_set_stream_order(allocator, (uint16_t)i, k);
}

/* The events before an allocation: `pending` recorded ones against those that were made. */
static void compare_segments(struct replay *r, const json_t *events, size_t first, size_t end,
                             const json_t *tables)
{
    static const char *const names[] = {"segment_alloc", "segment_free", "segment_map",
                                        "segment_unmap"};
    if (r->n_made != end - first)
        fail_msg("%s: event %zu: %zu segment events, recorded %zu", r->name, r->event, r->n_made,
                 end - first);
    for (size_t i = 0; i < r->n_made; i++) {
        const json_t *recorded = json_array_get(events, first + i);
        const struct segment_event *made = &r->made[i];
        const char *action = entry(tables, "segment_action", field(recorded, 1));
        if (strcmp(action, names[made->action]) != 0 || made->bytes != field(recorded, 2) ||
            made->address != field(recorded, 3) || made->stream != field(recorded, 4))
            fail_msg("%s: event %zu: %s of %llu at %llu, recorded %s of %llu at %llu", r->name,
                     first + i, names[made->action], (unsigned long long)made->bytes,
                     (unsigned long long)made->address, action,
                     (unsigned long long)field(recorded, 2),
                     (unsigned long long)field(recorded, 3));
        r->n_compared++;
    }
    r->n_made = 0;
}

static void replay_alloc(struct replay *r, const json_t *event)
{
    struct tsr_block block;
    tsr_status status =
        tsr_allocator_alloc(r->allocator, field(event, 2), (uint16_t)field(event, 4), &block);
    if (status != TSR_OK)
        fail_msg("%s: event %zu: %s", r->name, r->event, tsr_error_text());
    if (block.address != field(event, 3))
        fail_msg("%s: event %zu: %llu bytes at %llu, recorded at %llu", r->name, r->event,
                 (unsigned long long)field(event, 2), (unsigned long long)block.address,
                 (unsigned long long)field(event, 3));
    r->handles[field(event, 1)] = block.handle;
    assert_int_equal(tsr_allocator_stats(r->allocator).reserved, r->reserved);
}

static void replay_refusal(struct replay *r, const json_t *event)
{
    struct tsr_block block;
    tsr_status status =
        tsr_allocator_alloc(r->allocator, field(event, 1), (uint16_t)field(event, 2), &block);
    if (status != TSR_EOOM)
        fail_msg("%s: event %zu: %llu bytes were not refused", r->name, r->event,
                 (unsigned long long)field(event, 1));
    struct tsr_allocator_oom oom = tsr_allocator_oom_info(r->allocator);
    assert_int_equal(oom.requested, field(event, 1));
    assert_true(oom.largest_usable < oom.rounded || oom.reserved + oom.device > oom.limit);
    assert_int_equal(oom.reserved, oom.allocated + oom.cached);
    assert_int_equal(oom.reserved, oom.reserved_small + oom.reserved_large);
    r->n_refused++;
}

static void compare_stats(struct replay *r, const json_t *event)
{
    struct tsr_allocator_stats s = tsr_allocator_stats(r->allocator);
    const uint64_t ours[] = {s.allocated,      s.requested,       s.reserved,
                             s.inactive_split, s.n_alloc_retries, s.n_ooms};
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (ours[i] != field(event, i + 1))
            fail_msg("%s: event %zu: statistic %zu is %llu, recorded %llu", r->name, r->event, i,
                     (unsigned long long)ours[i], (unsigned long long)field(event, i + 1));
    r->n_stats++;
}

enum { EVENT_FREE, EVENT_ALLOC, EVENT_SEGMENT, EVENT_REFUSAL, EVENT_EMPTY_CACHE, EVENT_STATS };

static void replay_event(struct replay *r, const json_t *events, const json_t *tables)
{
    const json_t *event = json_array_get(events, r->event);
    switch (field(event, 0)) {
    case EVENT_FREE:
        tsr_allocator_free(r->allocator, r->handles[field(event, 1)]);
        break;
    case EVENT_ALLOC:
        replay_alloc(r, event);
        break;
    case EVENT_REFUSAL:
        replay_refusal(r, event);
        break;
    case EVENT_EMPTY_CACHE: /* its segment events follow it: compared with the next ones */
        empty_cache(r->allocator);
        r->first_segment = r->event + 1;
        return;
    case EVENT_STATS:
        if (r->first_segment != r->event) /* in the middle of segment events */
            compare_segments(r, events, r->first_segment, r->event, tables);
        compare_stats(r, event);
        r->first_segment = r->event + 1;
        return;
    default:
        return;
    }
    compare_segments(r, events, r->first_segment, r->event, tables);
    r->first_segment = r->event + 1;
}

static uint64_t option(const json_t *scenario, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(scenario, key));
}

static struct tsr_allocator_config read_config(const json_t *scenario)
{
    struct tsr_allocator_config config = {
        .device_bytes = option(scenario, "device_bytes"),
        .expandable_segments = json_is_true(json_object_get(scenario, "expandable_segments")),
        .max_split_bytes = option(scenario, "max_split_bytes"),
        .max_non_split_rounding_bytes = option(scenario, "max_non_split_rounding_bytes"),
        .roundup_power2_divisions = (unsigned)option(scenario, "roundup_power2_divisions"),
        .gc_threshold = json_number_value(json_object_get(scenario, "gc_threshold")),
        .large_segment_bytes = option(scenario, "large_segment_bytes"),
    };
    const json_t *classes = json_object_get(scenario, "roundup_classes");
    for (size_t i = 0; i < json_array_size(classes); i++)
        config.roundup_classes[i] = (unsigned)field(classes, i);
    return config;
}

static void replay_file(const char *timeline_path, const char *scenario_path)
{
    json_t *timeline = read_json(timeline_path), *result = read_json(scenario_path);
    const json_t *events = json_object_get(timeline, "events");
    const json_t *tables = json_object_get(timeline, "tables");
    struct tsr_allocator_config config = read_config(json_object_get(result, "scenario"));
    size_t n = json_array_size(events);
    struct replay r = {.name = json_string_value(json_object_get(timeline, "name"))};
    r.handles = calloc(n, sizeof *r.handles);
    assert_int_equal(tsr_allocator_create(&config, on_segment, NULL, &r, &r.allocator), TSR_OK);
    set_stream_orders(r.allocator, tables);
    for (r.event = 0; r.event < n; r.event++)
        replay_event(&r, events, tables);
    printf("%s: %zu events, %zu of segments, %zu refusals, %zu times statistics: exact\n", r.name,
           n, r.n_compared, r.n_refused, r.n_stats);
    tsr_allocator_destroy(r.allocator);
    free(r.handles);
    json_decref(timeline);
    json_decref(result);
}

static size_t replay_folder(const char *folder)
{
    static const char suffix[] = ".timeline.json.gz";
    char pattern[4096];
    snprintf(pattern, sizeof pattern, "%s/*%s", folder, suffix);
    glob_t found;
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char scenario[4096];
        size_t stem = strlen(found.gl_pathv[i]) - (sizeof suffix - 1);
        snprintf(scenario, sizeof scenario, "%.*s.json", (int)stem, found.gl_pathv[i]);
        replay_file(found.gl_pathv[i], scenario);
    }
    size_t n = found.gl_pathc;
    globfree(&found);
    return n;
}

static void replay_set(const char *name)
{
    char folder[4096];
    snprintf(folder, sizeof folder, "%s/tests/%s", TSR_SOURCE_DIR, name);
    if (only_folder)
        skip();
    printf("%zu timelines replayed exactly\n", replay_folder(folder));
}

static void test_replay__every_address_and_segment__recorded_runs(void **state)
{
    (void)state;
    replay_set("golden-memory");
}

static void test_replay__every_address_and_segment__every_option(void **state)
{
    (void)state;
    replay_set("golden-allocator");
}

static void test_replay__every_address_and_segment__named_folder(void **state)
{
    (void)state;
    if (!only_folder)
        skip();
    printf("%zu timelines replayed exactly\n", replay_folder(only_folder));
}

int main(int argc, char **argv)
{
    only_folder = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replay__every_address_and_segment__recorded_runs),
        cmocka_unit_test(test_replay__every_address_and_segment__every_option),
        cmocka_unit_test(test_replay__every_address_and_segment__named_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    puts("skipped: built without zlib, the recorded timelines cannot be read");
    return 77; /* ctest: skipped */
}

#endif
