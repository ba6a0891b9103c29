/* test_detail.c: the files of one strategy, from a made-up job with known times. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>

#include "experiments/study/detail/report_view.h"
#include "experiments/study/report/report.h"
#include "tests/report/scratch.h"
#include "tests/report/synthetic.h"

struct fixture {
    struct scratch scratch;
    struct synth *job;
    char folder[512];
};

static int set_up(void **state)
{
    static struct fixture fixture;
    struct synth_options options = {.n_blocks = 8, .world = 8, .tokens = 2048, .comm_slow = 2};
    fixture.scratch = scratch_create();
    fixture.job = synth_create("fsdp", &options);
    (void)snprintf(fixture.folder, sizeof fixture.folder, "%s/fsdp", fixture.scratch.path);
    *state = &fixture;
    return tsr_report_detail(fixture.scratch.path, &fixture.job->info, &fixture.job->detail) !=
           TSR_OK;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;
    scratch_destroy(&fixture->scratch);
    synth_destroy(fixture->job);
    return 0;
}

/* The next line of numbers in a CSV text: n of them, from the first field. NULL at the end. */
static const char *next_numbers(const char *at, double *values, int *n)
{
    char *end;
    *n = 0;
    while (*at == '#' || (*at >= 'a' && *at <= 'z')) { /* comments and the head */
        at = strchr(at, '\n');
        if (!at)
            return NULL;
        at++;
    }
    if (!*at)
        return NULL;
    while (true) {
        values[(*n)++] = strtod(at, &end);
        if (*end != ',')
            return *end ? end + 1 : end;
        at = end + 1;
    }
}

/* more: columns behind the total and the reserved bytes. */
static void check_sums(const char *text, int more, double *highest)
{
    double values[32], before = 0;
    int n = 0, rows = 0;
    *highest = 0;
    for (const char *at = next_numbers(text, values, &n); at; at = next_numbers(at, values, &n)) {
        double sum = 0, total = values[n - 2 - more];
        for (int i = 1; i < n - 2 - more; i++)
            sum += values[i];
        assert_true(sum == total); /* whole numbers below 2^53 */
        assert_true(!more || (values[n - 2] <= total && total - values[n - 2] < 512.0 * 5000));
        assert_true(values[0] >= before);
        before = values[0];
        *highest = total > *highest ? total : *highest;
        rows++;
    }
    assert_true(rows > 50);
}

static void test_memory__owners_sum_to_the_total(void **state)
{
    struct fixture *f = *state;
    double highest, plotted;
    char *text = scratch_read(f->folder, "memory.csv");
    assert_memory_equal(text, "# tessera ", 10);
    assert_non_null(strstr(text, ",total_bytes,reserved_bytes,requested_bytes,in_use_bytes\n"));
    check_sums(text, 2, &highest);
    free(text);
    assert_true(highest == (double)f->job->row.peak_allocated);
    text = scratch_read(f->folder, "memory-plot.csv");
    check_sums(text, 0, &plotted);
    free(text);
    assert_true(plotted == highest);
}

static void test_peak__is_on_the_curve(void **state)
{
    struct fixture *f = *state;
    char *peak = scratch_read(f->folder, "peak.csv");
    char *memory = scratch_read(f->folder, "memory.csv");
    double time = 0, bytes = 0, values[32];
    const char *row = strstr(peak, "\ntime_s");
    assert_non_null(row);
    assert_int_equal(sscanf(strchr(row + 1, '\n'), "%lf,%lf", &time, &bytes), 2);
    char place[256];
    (void)snprintf(place, sizeof place, ",%s,%s,85045870592,", f->job->row.peak_module,
                   f->job->row.peak_phase);
    assert_non_null(strstr(row, place));
    bool found = false;
    int n;
    for (const char *at = next_numbers(memory, values, &n); at; at = next_numbers(at, values, &n))
        found |= values[0] == time && values[n - 4] == bytes;
    assert_true(found);
    free(peak);
    free(memory);
}

static void test_phases__cover_the_step(void **state)
{
    struct fixture *f = *state;
    struct tsr__view view;
    struct tsr__phase *phases;
    size_t n;
    assert_int_equal(tsr__view_init(&view, &f->job->detail, f->job->detail.steady), TSR_OK);
    assert_int_equal(tsr__phases(&view, &phases, &n), TSR_OK);
    static const uint8_t expected[] = {TSR_PHASE_FORWARD, TSR_PHASE_LOSS, TSR_PHASE_BACKWARD,
                                       TSR_PHASE_OPTIMIZER};
    assert_int_equal(n, 4);
    assert_true(phases[0].start == view.start && phases[3].end == view.end);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(phases[i].phase, expected[i]);
        assert_true(phases[i].end > phases[i].start);
        assert_true(i == 0 || phases[i].start == phases[i - 1].end);
    }
    free(phases);
    tsr__view_fini(&view);
}

/* What is hatched in the picture is what the table counts. */
static void test_exposed__parts_sum_to_the_metric(void **state)
{
    struct fixture *f = *state;
    struct tsr__view view;
    double sum = 0, hatched = 0;
    assert_int_equal(tsr__view_init(&view, &f->job->detail, f->job->detail.steady), TSR_OK);
    for (size_t i = 0; i < view.program->n_instrs; i++) {
        struct tsr__interval parts[256], span = {view.spans[i].start, view.spans[i].end};
        uint8_t kind = view.program->instrs[i].kind;
        if (kind != TSR_ALL_GATHER && kind != TSR_REDUCE_SCATTER)
            continue;
        double mine = 0;
        size_t n = tsr__idle_parts(&view, span, parts, 256);
        assert_true(n <= 256);
        for (size_t p = 0; p < n; p++) {
            assert_true(parts[p].start >= span.start && parts[p].end <= span.end);
            mine += parts[p].end - parts[p].start;
        }
        assert_true(mine - view.exposed[i] < 1e-9 && view.exposed[i] - mine < 1e-9);
        hatched += mine;
        sum += view.exposed[i];
    }
    assert_true(sum > 1e-3);
    assert_true(hatched - sum < 1e-9 && sum - hatched < 1e-9);
    tsr__view_fini(&view);
}

static bool is_text(json_t *event, const char *key, const char *value)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text && strcmp(text, value) == 0;
}

/* Owners are stacked in one counter; what is no part of a whole has a counter of its own. */
static void test_trace__memory_counters(void **state)
{
    struct fixture *f = *state;
    char *text = scratch_read(f->folder, "trace.json");
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL), *event, *value;
    json_int_t owners = 0, allocated = 0, reserved = 0, requested = 0;
    const char *key;
    size_t i, n_in_use = 0;
    assert_non_null(root);
    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        json_int_t sum = 0;
        if (!is_text(event, "ph", "C"))
            continue;
        json_object_foreach(json_object_get(event, "args"), key, value) sum +=
            json_integer_value(value);
        assert_true(json_is_number(json_object_get(event, "ts")));
        if (is_text(event, "name", "memory (bytes)"))
            owners = sum > owners ? sum : owners;
        else if (is_text(event, "name", "allocated (bytes)"))
            allocated = sum > allocated ? sum : allocated;
        else if (is_text(event, "name", "requested (bytes)"))
            requested = sum > requested ? sum : requested;
        else if (is_text(event, "name", "reserved (bytes)"))
            reserved = sum > reserved ? sum : reserved;
        else
            n_in_use += is_text(event, "name", "in use on the device (bytes)") != 0;
    }
    assert_int_equal(allocated, f->job->row.peak_allocated);
    assert_int_equal(owners, allocated);
    assert_int_equal(reserved, f->job->row.peak_reserved);
    assert_true(requested < allocated && requested > allocated - 512 * 5000);
    assert_true(n_in_use >= 2); /* one a step at least */
    json_decref(root);
    free(text);
}

static void test_trace__is_valid_and_does_not_overlap(void **state)
{
    enum { MAX_TID = 64 };
    struct fixture *f = *state;
    char *text = scratch_read(f->folder, "trace.json");
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error), *event;
    if (!root)
        fail_msg("trace.json: line %d: %s", error.line, error.text);
    double ends[MAX_TID] = {0};
    size_t i, n_slices = 0, n_gathers = 0, n_counters = 0, n_names = 0;
    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        double ts = json_number_value(json_object_get(event, "ts"));
        n_names += is_text(event, "ph", "M") && is_text(event, "name", "thread_name");
        n_counters += is_text(event, "ph", "C") != 0;
        if (!is_text(event, "ph", "X"))
            continue;
        int tid = (int)json_integer_value(json_object_get(event, "tid"));
        double dur = json_number_value(json_object_get(event, "dur"));
        assert_true(tid >= 0 && tid < MAX_TID && dur >= 0);
        assert_true(ts >= ends[tid] - 1e-6);
        ends[tid] = ts + dur;
        n_slices++;
        const char *name = json_string_value(json_object_get(event, "name"));
        json_t *args = json_object_get(event, "args");
        if (strncmp(name, "ncclDevKernel_AllGather_RING_LL(", 32) != 0)
            continue;
        n_gathers++;
        assert_true(is_text(event, "cat", "kernel"));
        assert_non_null(json_object_get(args, "module"));
        assert_int_equal(json_integer_value(json_object_get(args, "Group size")), 8);
        assert_true(json_integer_value(json_object_get(args, "bytes")) > 0);
    }
    assert_int_equal(n_names, 5 + SYNTH_STREAMS);
    /* Two iterations; 9 groups gathered in forward, 7 again in backward. */
    assert_int_equal(n_gathers, 2 * (9 + 7));
    assert_true(n_slices > 500 && n_counters > 100);
    json_decref(root);
    free(text);
}

/* The arrows that Kineto's traces have: from the call of the host to the kernel. */
static void test_trace__arrows_lead_from_launch_to_kernel(void **state)
{
    enum { MAX_IDS = 1 << 16 };
    struct fixture *f = *state;
    char *text = scratch_read(f->folder, "trace.json");
    json_t *root = json_loads(text, 0, NULL), *event;
    double *launched = calloc(MAX_IDS, sizeof *launched), *began = calloc(MAX_IDS, sizeof *began);
    size_t i, n = 0, ends = 0;
    assert_non_null(launched);
    assert_non_null(began);
    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        bool from = is_text(event, "ph", "s"), to = is_text(event, "ph", "f");
        size_t id = (size_t)json_integer_value(json_object_get(event, "id"));
        json_t *args = json_object_get(event, "args");
        double ts = json_number_value(json_object_get(event, "ts"));
        if (is_text(event, "ph", "X") && json_object_get(args, "stream")) {
            id = (size_t)json_integer_value(json_object_get(args, "correlation"));
            assert_true(id < MAX_IDS);
            began[id] = ts;
        }
        if (!from && !to)
            continue;
        assert_true(is_text(event, "cat", "ac2g") && id < MAX_IDS);
        if (from) {
            launched[id] = ts + 1;
            n++;
            continue;
        }
        assert_true(launched[id] > 0 && launched[id] - 1 <= ts);
        assert_true(fabs(began[id] - ts) < 1e-6);
        ends++;
    }
    assert_true(n > 200);
    assert_int_equal(n, ends);
    free(launched);
    free(began);
    json_decref(root);
    free(text);
}

static void test_streams__one_row_per_work(void **state)
{
    struct fixture *f = *state;
    char *text = scratch_read(f->folder, "streams.csv");
    const struct tsr_program *program = &f->job->programs[SYNTH_ITERATIONS - 1];
    size_t expected = 0, rows = 0;
    for (size_t i = 0; i < program->n_instrs; i++) {
        uint8_t kind = program->instrs[i].kind;
        expected += kind == TSR_OP || kind == TSR_ALL_GATHER || kind == TSR_REDUCE_SCATTER;
    }
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        rows += *line && *line != '#' && strncmp(line, "stream,", 7) != 0;
    }
    assert_int_equal(rows, expected);
    assert_non_null(strstr(text, "AG layers.3"));
    free(text);
}

/* The windows of two panels show three neighbouring blocks, and boxes stay inside their panel. */
static void test_timeline__shows_three_blocks(void **state)
{
    struct fixture *f = *state;
    char *text = scratch_read(f->folder, "timeline.csv");
    static const char *const shown[] = {"layers.2\n", "layers.3\n", "layers.4\n"};
    double window[2] = {0, 0};
    size_t blocks = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char panel[16], kind[32];
        int lane;
        double start, end;
        if (sscanf(line, "%15[a-z],%d,%31[a-z_],%lf,%lf", panel, &lane, kind, &start, &end) != 5)
            continue;
        if (strcmp(kind, "window") == 0) {
            window[0] = start;
            window[1] = end;
        } else if (strcmp(kind, "title") != 0) {
            assert_true(start >= window[0] && end <= window[1] && end > start);
        }
        bool middle = strcmp(panel, "forward") == 0 || strcmp(panel, "backward") == 0;
        for (int i = 0; i < 3 && middle; i++)
            blocks += strcmp(kind, "block") == 0 && strstr(line, "layers.") &&
                      strncmp(strstr(line, "layers."), shown[i], 8) == 0;
    }
    assert_int_equal(blocks, 6);
    free(text);
}

/* A panel of timeline.csv, and the seconds of it that are hatched. */
struct panel {
    bool found;
    double start, end, exposed;
    char title[64];
};

static struct panel panel_of(const char *folder, const char *name)
{
    struct panel out = {.found = false};
    char *text = scratch_read(folder, "timeline.csv");
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char panel[16], kind[32], label[64] = "";
        int lane;
        double start, end;
        if (sscanf(line, "%15[a-z],%d,%31[a-z_],%lf,%lf,%63[^\n]", panel, &lane, kind, &start, &end,
                   label) < 5 ||
            strcmp(panel, name) != 0)
            continue;
        if (strcmp(kind, "window") == 0) {
            out.found = true;
            out.start = start;
            out.end = end;
            (void)snprintf(out.title, sizeof out.title, "%s", label);
        }
        out.exposed += strcmp(kind, "exposed") == 0 ? end - start : 0;
    }
    free(text);
    return out;
}

static double step_of(const struct synth *job)
{
    const struct tsr_detail *d = &job->detail;
    return d->iteration_end[d->steady] - d->iteration_end[d->steady - 1];
}

static void write_timeline(const struct synth_options *options, struct scratch *scratch,
                           struct synth **job, char folder[512])
{
    *scratch = scratch_create();
    *job = synth_create("fsdp", options);
    assert_int_equal(tsr_report_detail(scratch->path, &(*job)->info, &(*job)->detail), TSR_OK);
    (void)snprintf(folder, 512, "%s/fsdp", scratch->path);
}

/* Beside the blocks: the first and the last 60 ms, with what is exposed there. */
static void test_timeline__shows_both_ends(void **state)
{
    struct synth_options options = {.n_blocks = 32, .world = 8, .tokens = 8192, .comm_slow = 2};
    struct scratch scratch;
    struct synth *job;
    char folder[512];
    (void)state;
    write_timeline(&options, &scratch, &job, folder);
    struct panel start = panel_of(folder, "start"), end = panel_of(folder, "end");
    assert_true(start.found && start.start == 0 && fabs(start.end - 0.06) < 1e-6);
    assert_true(start.exposed > 0);
    assert_string_equal(start.title, "first 60 ms");
    assert_true(end.found && fabs(end.end - step_of(job)) < 1e-6);
    assert_true(fabs(end.end - end.start - 0.06) < 1e-6);
    assert_string_equal(end.title, "last 60 ms");
    assert_true(!panel_of(folder, "step").found);
    assert_true(panel_of(folder, "forward").found && panel_of(folder, "backward").found);
    scratch_destroy(&scratch);
    synth_destroy(job);
}

/* A gather that is longer than 60 ms is shown to its end. */
static void test_timeline__shows_the_whole_head(void **state)
{
    struct synth_options options = {.n_blocks = 32, .world = 8, .tokens = 65536, .comm_slow = 40};
    struct scratch scratch;
    struct synth *job;
    char folder[512];
    (void)state;
    write_timeline(&options, &scratch, &job, folder);
    struct panel start = panel_of(folder, "start");
    assert_true(start.found && start.end > 0.07 && start.end < step_of(job) / 2);
    assert_true(start.exposed > 0.06);
    scratch_destroy(&scratch);
    synth_destroy(job);
}

/* Where the two ends meet, they are one panel. */
static void test_timeline__shows_a_short_step_whole(void **state)
{
    struct synth_options options = {.n_blocks = 4, .world = 8, .tokens = 256, .comm_slow = 1};
    struct scratch scratch;
    struct synth *job;
    char folder[512];
    (void)state;
    write_timeline(&options, &scratch, &job, folder);
    struct panel step = panel_of(folder, "step");
    assert_true(step.found && step.start == 0 && fabs(step.end - step_of(job)) < 1e-6);
    assert_string_equal(step.title, "whole step");
    assert_true(!panel_of(folder, "start").found && !panel_of(folder, "end").found);
    scratch_destroy(&scratch);
    synth_destroy(job);
}

static void test_detail__disk_errors_are_reported(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(tsr_report_detail("/dev/full", &f->job->info, &f->job->detail), TSR_EIO);
    assert_non_null(strstr(tsr_error_text(), "/dev/full"));
}

/* No gnuplot is no error. */
static void test_plots__are_skipped_without_gnuplot(void **state)
{
    struct fixture *f = *state;
    bool skipped = false;
    char *path = getenv("PATH") ? strdup(getenv("PATH")) : NULL;
    assert_int_equal(setenv("PATH", "/nonexistent", 1), 0);
    tsr_status status =
        tsr_report_plots(f->scratch.path, &f->job->row, 1, TSR_PICTURES_ALL, &skipped);
    if (path)
        (void)setenv("PATH", path, 1);
    free(path);
    assert_int_equal(status, TSR_OK);
    assert_true(skipped);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory__owners_sum_to_the_total),
        cmocka_unit_test(test_peak__is_on_the_curve),
        cmocka_unit_test(test_phases__cover_the_step),
        cmocka_unit_test(test_exposed__parts_sum_to_the_metric),
        cmocka_unit_test(test_trace__memory_counters),
        cmocka_unit_test(test_trace__is_valid_and_does_not_overlap),
        cmocka_unit_test(test_trace__arrows_lead_from_launch_to_kernel),
        cmocka_unit_test(test_streams__one_row_per_work),
        cmocka_unit_test(test_timeline__shows_three_blocks),
        cmocka_unit_test(test_timeline__shows_both_ends),
        cmocka_unit_test(test_timeline__shows_the_whole_head),
        cmocka_unit_test(test_timeline__shows_a_short_step_whole),
        cmocka_unit_test(test_detail__disk_errors_are_reported),
        cmocka_unit_test(test_plots__are_skipped_without_gnuplot),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
