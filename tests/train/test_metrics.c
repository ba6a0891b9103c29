/* test_metrics.c: JSON lines that stay whole, and lines for people. */
#define _XOPEN_SOURCE 700 /* pseudo-terminals */
#include "tests/files/data_testing.h"

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "exec/train/metrics.h"

static struct tsr_step_record example(uint64_t step)
{
    struct tsr_step_record r = tsr_step_record_of(step, 8.1309f);
    r.has_grad_norm = true;
    r.grad_norm = 1.25;
    r.lr = 3e-4;
    r.tokens = step * 8192;
    r.tokens_per_second = 1234.4;
    r.tflops = 0.1234;
    r.mfu = 0.0123;
    r.hfu = 0.0164;
    r.memory_allocated = UINT64_C(1) << 30;
    r.memory_reserved = UINT64_C(1288490189);
    r.memory_capacity = UINT64_C(42384545690);
    r.step_s = 0.5;
    r.data_s = 0.001;
    r.host_s = 0.002;
    r.time_s = 12.25;
    r.skipped = 0;
    return r;
}

static json_t *line_of(const char *path, size_t number)
{
    char *text = test_read(path, NULL), *line = text;
    for (size_t i = 0; i < number; i++) {
        line = strchr(line, '\n');
        assert_non_null(line);
        line++;
    }
    char *end = strchr(line, '\n');
    assert_non_null(end);
    json_error_t error;
    json_t *object = json_loadb(line, (size_t)(end - line), 0, &error);
    if (!object)
        fail_msg("line %zu: %s", number, error.text);
    free(text);
    return object;
}

static size_t n_lines(const char *path)
{
    size_t n, lines = 0;
    char *text = test_read(path, &n);
    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    assert_true(n == 0 || text[n - 1] == '\n');
    free(text);
    return lines;
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static const char *const keys[] = {"step",
                                   "loss",
                                   "grad_norm",
                                   "lr",
                                   "tokens",
                                   "tokens_per_second",
                                   "tflops",
                                   "mfu",
                                   "hfu",
                                   "step_s",
                                   "data_s",
                                   "host_s",
                                   "memory_allocated_bytes",
                                   "time_s",
                                   "skipped_updates",
                                   "slow_paths",
                                   "memory_reserved_bytes",
                                   "memory_capacity_bytes",
                                   "modelled_device"};

static void lines_have_all_figures(void **state)
{
    (void)state;
    const char *path = test_path("all.jsonl");
    struct tsr_metric_log *log;
    assert_int_equal(tsr_metric_log_open(path, 0, 0, &log), TSR_OK);
    struct tsr_step_record r = example(1);
    assert_int_equal(tsr_metric_log_step(log, &r), TSR_OK);
    assert_int_equal(tsr_metric_log_eval(log, 1, 3.5, 65536), TSR_OK);
    assert_int_equal(tsr_metric_log_sync(log), TSR_OK);
    tsr_metric_log_close(log);
    json_t *object = line_of(path, 0);
    assert_int_equal(json_object_size(object), sizeof keys / sizeof *keys);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_non_null(json_object_get(object, keys[i]));
    assert_true((float)number(object, "loss") == 8.1309f); /* bit for bit */
    assert_true(number(object, "lr") == 3e-4);
    assert_true(number(object, "tokens") == 8192);
    assert_true(number(object, "memory_capacity_bytes") == 42384545690.0);
    assert_true(number(object, "hfu") == 0.0164);
    assert_true(json_is_false(json_object_get(object, "modelled_device")));
    json_decref(object);
    object = line_of(path, 1);
    assert_true(number(object, "eval_loss") == 3.5 && number(object, "step") == 1);
    assert_true(number(object, "eval_tokens") == 65536);
    json_decref(object);
    assert_int_equal(n_lines(path), 2);
}

/* Every f32 comes back as it was. */
static void reals_come_back(void **state)
{
    (void)state;
    const char *path = test_path("reals.jsonl");
    struct tsr_metric_log *log;
    float losses[200];
    assert_int_equal(tsr_metric_log_open(path, 0, 0, &log), TSR_OK);
    for (unsigned i = 0; i < 200; i++) {
        losses[i] = 11.0f / (float)(i * i + 1) + 1e-7f * (float)i;
        struct tsr_step_record r = tsr_step_record_of(i + 1, (double)losses[i]);
        assert_int_equal(tsr_metric_log_step(log, &r), TSR_OK);
    }
    tsr_metric_log_close(log);
    for (unsigned i = 0; i < 200; i++) {
        json_t *object = line_of(path, i);
        assert_true((float)number(object, "loss") == losses[i]);
        json_decref(object);
    }
}

static void the_unknown_is_null_and_nan_is_text(void **state)
{
    (void)state;
    const char *path = test_path("unknown.jsonl");
    struct tsr_metric_log *log;
    assert_int_equal(tsr_metric_log_open(path, 0, 0, &log), TSR_OK);
    struct tsr_step_record r = tsr_step_record_of(1, NAN);
    assert_int_equal(tsr_metric_log_step(log, &r), TSR_OK);
    r.loss = -INFINITY;
    r.has_grad_norm = true;
    r.grad_norm = INFINITY;
    assert_int_equal(tsr_metric_log_step(log, &r), TSR_OK);
    tsr_metric_log_close(log);
    json_t *object = line_of(path, 0);
    assert_string_equal(json_string_value(json_object_get(object, "loss")), "nan");
    unsigned nulls = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        nulls += json_is_null(json_object_get(object, keys[i]));
    assert_int_equal(nulls, sizeof keys / sizeof *keys - 3); /* step, loss, modelled_device */
    json_decref(object);
    object = line_of(path, 1);
    assert_string_equal(json_string_value(json_object_get(object, "loss")), "-inf");
    assert_string_equal(json_string_value(json_object_get(object, "grad_norm")), "inf");
    json_decref(object);
}

/* ---- resuming -------------------------------------------------------------------------------- */

static const char five[] = "{\"step\": 1, \"loss\": 5.0}\n{\"step\": 2, \"loss\": 4.0}\n"
                           "{\"step\": 2, \"eval_loss\": 4.5}\n{\"step\": 3, \"loss\": 3.0}\n"
                           "{\"step\": 4, \"loss\": 2.0}\n";

static void resuming_drops_later_steps(void **state)
{
    (void)state;
    static const size_t lines[] = {0, 1, 3, 4, 5, 5};
    const char *path = test_path("resume.jsonl");
    for (uint64_t last = 0; last < 6; last++) {
        test_write(path, five, sizeof five - 1);
        struct tsr_metric_log *log;
        assert_int_equal(tsr_metric_log_open(path, last, 0, &log), TSR_OK);
        assert_int_equal(n_lines(path), lines[last]);
        char *kept = test_read(path, NULL);
        assert_memory_equal(kept, five, strlen(kept));
        free(kept);
        struct tsr_step_record r = tsr_step_record_of(last + 1, 1);
        assert_int_equal(tsr_metric_log_step(log, &r), TSR_OK);
        tsr_metric_log_close(log);
        assert_int_equal(n_lines(path), lines[last] + 1);
        json_t *object = line_of(path, lines[last]);
        assert_true(number(object, "step") == (double)(last + 1));
        json_decref(object);
    }
}

/* Cut at any byte, as a crash might: whole lines are left, and they are the first ones. */
static void half_lines_are_dropped(void **state)
{
    (void)state;
    const char *path = test_path("half.jsonl");
    for (size_t n = 0; n < sizeof five; n++) {
        test_write(path, five, n);
        size_t whole = 0, bytes = 0;
        for (size_t i = 0; i < n; i++)
            if (five[i] == '\n') {
                whole++;
                bytes = i + 1;
            }
        struct tsr_metric_log *log;
        assert_int_equal(tsr_metric_log_open(path, 100, 0, &log), TSR_OK);
        tsr_metric_log_close(log);
        assert_int_equal(n_lines(path), whole);
        char *kept = test_read(path, NULL);
        assert_int_equal(strlen(kept), bytes);
        assert_memory_equal(kept, five, bytes);
        free(kept);
    }
}

static void what_is_lost_is_said(void **state)
{
    static const struct {
        size_t cut;
        uint64_t last, every;
        const char *remark; /* behind the path */
    } cases[] = {
        {0, 4, 1, ""},
        {0, 4, 2, ""},
        {0, 5, 2, ""},
        {0, 5, 10, ""},
        {0, 3, 1, ""}, /* what is later is computed again */
        {0, 9, 0, ""},
        {0, 6, 1, ": no line of steps 5 to 6: they were lost, and are not computed again"},
        {0, 7, 3, ": no line of steps 5 to 7: they were lost, and are not computed again"},
        {1, 3, 1, ": line 5 was cut off (24 bytes), and is dropped"},
        {1, 4, 1,
         ": line 5 was cut off (24 bytes), and is dropped; no line of steps 4 to 4: they "
         "were lost, and are not computed again"},
        {25, 4, 1, ": no line of steps 4 to 4: they were lost, and are not computed again"}};
    const char *path = test_path("lost.jsonl");
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tsr_metric_log *log;
        test_write(path, five, sizeof five - 1 - cases[i].cut);
        assert_int_equal(tsr_metric_log_open(path, cases[i].last, cases[i].every, &log), TSR_OK);
        const char *remark = tsr_metric_log_remark(log);
        if (*cases[i].remark) {
            assert_memory_equal(remark, path, strlen(path));
            remark += strlen(path);
        }
        assert_string_equal(remark, cases[i].remark);
        tsr_metric_log_close(log);
    }
}

/* The log of a run lies in its folder. */
static void links_and_fifos_are_refused(void **state)
{
    const char *path = test_path("strange.jsonl"), *victim = test_path("victim.jsonl");
    struct tsr_metric_log *log;
    (void)state;
    test_write(victim, five, sizeof five - 1);
    assert_int_equal(symlink(victim, path), 0);
    assert_int_equal(tsr_metric_log_open(path, 0, 1, &log), TSR_ECONFIG);
    test_error_names("strange.jsonl: is a symbolic link", NULL);
    char *text = test_read(victim, NULL);
    assert_string_equal(text, five);
    free(text);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0666), 0);
    assert_int_equal(tsr_metric_log_open(path, 0, 1, &log), TSR_ECONFIG);
    test_error_names("strange.jsonl: is a FIFO", NULL);
}

static void files_of_others_are_left_alone(void **state)
{
    (void)state;
    static const char *const texts[] = {"hello\n",         "[1, 2]\n",
                                        "{\"loss\": 1}\n", "{\"step\": 1}\n\n{\"step\": 2}\n",
                                        "{\"step\": 0}\n", "{\"step\": \"1\"}\n"};
    const char *path = test_path("other.jsonl");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        test_write(path, texts[i], strlen(texts[i]));
        struct tsr_metric_log *log;
        assert_int_equal(tsr_metric_log_open(path, 0, 0, &log), TSR_ECONFIG);
        assert_null(log);
        test_error_names("other.jsonl", i == 3 ? ":2:" : ":1:", "step", NULL);
        char *kept = test_read(path, NULL);
        assert_string_equal(kept, texts[i]);
        free(kept);
    }
    struct tsr_metric_log *log;
    assert_int_equal(tsr_metric_log_open(test_path("no/such.jsonl"), 0, 0, &log), TSR_EIO);
    test_error_names("no/such.jsonl", NULL);
}

/* A disk that is full in the middle of a line (here: a limit on the size of files). */
static void a_full_disk_leaves_whole_lines(void **state)
{
    (void)state;
    const char *path = test_path("full.jsonl");
    struct tsr_metric_log *log;
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(tsr_metric_log_open(path, 0, 0, &log), TSR_OK);
    struct tsr_step_record r = example(1);
    assert_int_equal(tsr_metric_log_step(log, &r), TSR_OK);
    limit = before;
    limit.rlim_cur = 500; /* between the first and the second line */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    r = example(2);
    assert_int_equal(tsr_metric_log_step(log, &r), TSR_EIO);
    test_error_names("full.jsonl", NULL);
    assert_int_equal(n_lines(path), 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(tsr_metric_log_step(log, &r), TSR_OK);
    assert_int_equal(n_lines(path), 2);
    tsr_metric_log_close(log);
    (void)signal(SIGXFSZ, handler);
}

/* A process that is killed while it writes: what is left are the first lines, whole. */
static void killed_writers_leave_whole_lines(void **state)
{
    (void)state;
    const char *path = test_path("killed.jsonl");
    struct tsr_metric_log *log;
    uint64_t last = 0;
    for (int round = 0; round < 5; round++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            if (tsr_metric_log_open(path, last, 0, &log) != TSR_OK)
                _exit(1);
            for (uint64_t step = last + 1;; step++) {
                struct tsr_step_record r = example(step);
                if (tsr_metric_log_step(log, &r) != TSR_OK)
                    _exit(1);
            }
        }
        struct stat before = {0}, now = {0}; /* let it begin, then write for some time */
        (void)stat(path, &before);
        for (int i = 0; i < 20000 && now.st_size <= before.st_size; i++) {
            (void)usleep(500);
            (void)stat(path, &now);
        }
        (void)usleep(1000U * (unsigned)round);
        int status;
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(tsr_metric_log_open(path, UINT64_MAX, 0, &log), TSR_OK);
        tsr_metric_log_close(log);
        uint64_t n = n_lines(path);
        assert_true(n > last);
        for (uint64_t i = last; i<n; i += n - last> 20 ? (n - last) / 20 : 1) {
            json_t *object = line_of(path, i);
            assert_true(number(object, "step") == (double)(i + 1));
            json_decref(object);
        }
        last = n;
    }
}

/* ---- console --------------------------------------------------------------------------------- */

static char *console(bool colour, const struct tsr_step_record *r)
{
    const char *path = test_path("console.txt");
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_int_equal(tsr_console_step(out, colour, r), TSR_OK);
    (void)fclose(out);
    return test_read(path, NULL);
}

static void check_console(const struct tsr_step_record *r, const char *want)
{
    char *got = console(false, r);
    assert_string_equal(got, want);
    free(got);
}

static void console_lines_are_torchtitans(void **state)
{
    (void)state;
    struct tsr_step_record r = example(1);
    check_console(&r, "step:  1  loss:  8.1309  grad_norm:  1.2500  memory:  1.20GiB(3.04%)  "
                      "tps: 1,234  tflops: 0.12  mfu: 1.23%\n");
    r.step = 12345;
    r.tokens_per_second = 1234567.5;
    r.tflops = 1234567.891;
    r.mfu = 0.4567;
    r.memory_reserved = UINT64_C(75) << 30;
    check_console(&r, "step: 12345  loss:  8.1309  grad_norm:  1.2500  memory: 75.00GiB(190.00%)  "
                      "tps: 1,234,568  tflops: 1,234,567.89  mfu: 45.67%\n");
    r.tflops = 999.999;
    r.tokens_per_second = 999;
    r.modelled_device = true;
    r.mfu = NAN;
    r.memory_reserved = UINT64_C(1288490189);
    check_console(&r, "step: 12345  loss:  8.1309  grad_norm:  1.2500  "
                      "memory:  1.20GiB(3.04% of the modelled device)  "
                      "tps: 999  tflops: 1,000.00  mfu: n/a\n");
    r = tsr_step_record_of(3, NAN);
    check_console(&r, "step:  3  loss:     nan  grad_norm: n/a  memory: n/a  "
                      "tps: n/a  tflops: n/a  mfu: n/a\n");
    r.memory_reserved = UINT64_C(1) << 30;
    check_console(&r, "step:  3  loss:     nan  grad_norm: n/a  memory:  1.00GiB  "
                      "tps: n/a  tflops: n/a  mfu: n/a\n");
    r.loss = INFINITY;
    r.has_grad_norm = true;
    r.grad_norm = copysign(NAN, -1);
    check_console(&r, "step:  3  loss:     inf  grad_norm:     nan  memory:  1.00GiB  "
                      "tps: n/a  tflops: n/a  mfu: n/a\n");
}

/* Without its codes a coloured line is the plain one. */
static void colours_change_nothing_else(void **state)
{
    (void)state;
    struct tsr_step_record r = example(7);
    char *plain = console(false, &r), *colour = console(true, &r), *to = colour;
    assert_null(strchr(plain, '\033'));
    assert_non_null(strchr(colour, '\033'));
    for (const char *from = colour; *from; from++) {
        if (*from == '\033')
            while (*from != 'm')
                from++;
        else
            *to++ = *from;
    }
    *to = '\0';
    assert_string_equal(plain, colour);
    free(plain);
    free(colour);
}

static void evaluation_has_a_line(void **state)
{
    (void)state;
    const char *path = test_path("eval.txt");
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_int_equal(tsr_console_eval(out, false, 100, 2.5, 4321), TSR_OK);
    (void)fclose(out);
    char *got = test_read(path, NULL);
    assert_string_equal(got, "validate step: 100  loss:  2.5000  tps: 4,321\n");
    free(got);
}

/* A terminal is coloured unless the user says no; a file never is. */
static void colours_are_for_terminals(void **state)
{
    (void)state;
    FILE *file = fopen(test_path("plain.txt"), "w");
    assert_non_null(file);
    assert_int_equal(unsetenv("NO_COLOR"), 0);
    assert_int_equal(setenv("TERM", "xterm", 1), 0);
    assert_false(tsr_console_has_colour(file));
    (void)fclose(file);
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0)
        skip(); /* no terminals here */
    FILE *terminal = fopen(ptsname(master), "w");
    assert_non_null(terminal);
    assert_true(tsr_console_has_colour(terminal));
    assert_int_equal(setenv("NO_COLOR", "1", 1), 0);
    assert_false(tsr_console_has_colour(terminal));
    assert_int_equal(setenv("NO_COLOR", "", 1), 0);
    assert_true(tsr_console_has_colour(terminal));
    assert_int_equal(setenv("TERM", "dumb", 1), 0);
    assert_false(tsr_console_has_colour(terminal));
    (void)fclose(terminal);
    (void)close(master);
}

static void a_full_console_is_an_error(void **state)
{
    (void)state;
    FILE *full = fopen("/dev/full", "w");
    if (!full)
        skip();
    struct tsr_step_record r = example(1);
    assert_int_equal(tsr_console_step(full, false, &r), TSR_EIO);
    test_error_names("No space left", NULL);
    (void)fclose(full);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lines_have_all_figures),
                                       cmocka_unit_test(reals_come_back),
                                       cmocka_unit_test(the_unknown_is_null_and_nan_is_text),
                                       cmocka_unit_test(resuming_drops_later_steps),
                                       cmocka_unit_test(half_lines_are_dropped),
                                       cmocka_unit_test(what_is_lost_is_said),
                                       cmocka_unit_test(links_and_fifos_are_refused),
                                       cmocka_unit_test(files_of_others_are_left_alone),
                                       cmocka_unit_test(a_full_disk_leaves_whole_lines),
                                       cmocka_unit_test(killed_writers_leave_whole_lines),
                                       cmocka_unit_test(console_lines_are_torchtitans),
                                       cmocka_unit_test(colours_change_nothing_else),
                                       cmocka_unit_test(evaluation_has_a_line),
                                       cmocka_unit_test(colours_are_for_terminals),
                                       cmocka_unit_test(a_full_console_is_an_error)};
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
