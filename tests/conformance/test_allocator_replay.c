/* test_allocator_replay.c: the recorded allocator events of real FSDP2 runs, replayed.
 *
 * Every address, every device allocation and the reserved total of PyTorch's caching allocator must
 * come out. Files: tests/golden-memory/NAME.timeline.json.gz and NAME.json. Without zlib the test
 * is skipped; with arguments (a folder) it replays that folder's timelines instead.
 */
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/allocator.h"

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
    size_t n_made, n_compared;
    uint64_t reserved;
    const char *name;
    size_t event;
};

static const char *golden_folder;

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

static void replay_file(const char *timeline_path, const char *scenario_path)
{
    json_t *timeline = read_json(timeline_path), *result = read_json(scenario_path);
    const json_t *scenario = json_object_get(result, "scenario");
    const json_t *events = json_object_get(timeline, "events");
    const json_t *tables = json_object_get(timeline, "tables");
    struct tsr_allocator_config config = {
        .device_bytes = (uint64_t)json_integer_value(json_object_get(scenario, "device_bytes")),
        .expandable_segments = json_is_true(json_object_get(scenario, "expandable_segments")),
    };
    size_t n = json_array_size(events), first_segment = 0;
    struct replay r = {.name = json_string_value(json_object_get(timeline, "name"))};
    r.handles = calloc(n, sizeof *r.handles);
    assert_int_equal(tsr_allocator_create(&config, on_segment, NULL, &r, &r.allocator), TSR_OK);
    set_stream_orders(r.allocator, tables);
    for (r.event = 0; r.event < n; r.event++) {
        const json_t *event = json_array_get(events, r.event);
        uint64_t kind = field(event, 0);
        if (kind == 2)
            continue;
        if (kind == 1)
            replay_alloc(&r, event);
        else
            tsr_allocator_free(r.allocator, r.handles[field(event, 1)]);
        compare_segments(&r, events, first_segment, r.event, tables);
        first_segment = r.event + 1;
    }
    printf("%s: %zu events, %zu of segments: exact\n", r.name, n, r.n_compared);
    tsr_allocator_destroy(r.allocator);
    free(r.handles);
    json_decref(timeline);
    json_decref(result);
}

static void test_replay__every_address_and_segment__recorded_runs(void **state)
{
    (void)state;
    static const char suffix[] = ".timeline.json.gz";
    char pattern[4096];
    snprintf(pattern, sizeof pattern, "%s/*%s", golden_folder, suffix);
    glob_t found;
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char scenario[4096];
        size_t stem = strlen(found.gl_pathv[i]) - (sizeof suffix - 1);
        snprintf(scenario, sizeof scenario, "%.*s.json", (int)stem, found.gl_pathv[i]);
        replay_file(found.gl_pathv[i], scenario);
    }
    printf("%zu timelines replayed exactly\n", found.gl_pathc);
    globfree(&found);
}

int main(int argc, char **argv)
{
    golden_folder = argc > 1 ? argv[1] : TSR_SOURCE_DIR "/tests/golden-memory";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replay__every_address_and_segment__recorded_runs),
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
