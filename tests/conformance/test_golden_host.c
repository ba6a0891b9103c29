/* test_golden_host.c: every recorded scenario of kind train or ddp (tests/golden,
 * tests/golden-found) runs on the host, all ranks as threads, and computes what PyTorch computed:
 * losses, norms of gradients and final parameters within the tolerance that the result itself
 * gives. Its decisions are compared again, since here they are those of a program that really runs.
 * Scenarios without tensors are passed over.
 *
 * [Note: key bias] One kind of element cannot be met. The gradient of an attention's key bias is
 * zero by mathematics: a bias of all keys adds the same number to all scores of a query, and
 * softmax does not see it. What PyTorch got there is rounding noise of its kernels, which Adam
 * scales up to steps of the size of the learning rate. With Adam those elements, the second third
 * of GPT-2's c_attn.bias, may differ by learning rate x steps (one recording, gpt2-w2); all others
 * may not.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "exec/base/convert.h"
#include "exec/files/safetensors.h"
#include "tests/conformance/golden_testing.h"
#include "tests/thorough.h"

enum { LEAST_WORKERS = 2, MOST_WORKERS = 8 };

#ifdef TSR_TEST_CUDA
#define TEST_EXECUTOR "cuda" /* ranks share a GPU */
#define FIRST         1      /* the short form takes other scenarios than the host's */
#define N_FOUND       40     /* without PyTorch's own races: a GPU has streams */
#else
#define TEST_EXECUTOR "host"
#define FIRST         0
#define N_FOUND       42
#endif

struct scenario {
    char root[1024], name[256]; /* of tests/golden; NAME.json */
    json_t *input, *gold, *mine;
    char final[1100]; /* our final parameters */
};

/* ---- numbers --------------------------------------------------------------------------------- */

static double tolerance(const struct scenario *s, const char *key)
{
    return json_number_value(json_object_get(json_object_get(s->gold, "tolerance"), key));
}

static bool is_close(double a, double b, double rel, double abs)
{
    return fabs(a - b) <= fmax(abs, rel * fmax(fabs(a), fabs(b)));
}

/* What is not finite is a text; with `loose` it is equal to all that is not finite. */
static bool same_text(const json_t *a, const json_t *b, bool loose)
{
    return loose ? json_is_string(a) && json_is_string(b) : json_equal(a, b);
}

/* Lists and objects of numbers, texts or null, to any depth. */
static bool close_values(const json_t *a, const json_t *b, double rel, double abs, bool loose)
{
    if (json_is_number(a) && json_is_number(b))
        return is_close(json_number_value(a), json_number_value(b), rel, abs);
    if (json_is_array(a) && json_is_array(b)) {
        bool all = json_array_size(a) == json_array_size(b);
        for (size_t i = 0; all && i < json_array_size(a); i++)
            all = close_values(json_array_get(a, i), json_array_get(b, i), rel, abs, loose);
        return all;
    }
    if (json_is_object(a) && json_is_object(b)) {
        const char *key;
        json_t *value;
        bool all = json_object_size(a) == json_object_size(b);
        json_object_foreach((json_t *)(uintptr_t)a, key, value) all =
            all && close_values(value, json_object_get(b, key), rel, abs, loose);
        return all;
    }
    return json_is_null(a) ? json_is_null(b) : same_text(a, b, loose);
}

/* Returns true if some gradient had no finite norm. Then rounding decides what is "nan" and what is
 * "inf": whether infinities of both signs meet depends on whether a kernel rounds products before
 * it adds. Parameters are not compared. */
static bool is_lost(const struct scenario *s)
{
    const char *name;
    json_t *row, *norm;
    size_t i;
    json_array_foreach(json_object_get(s->gold, "grad_norm"), i, row)
    {
        json_object_foreach(row, name, norm) if (json_is_string(norm)) return true;
    }
    return false;
}

static int compare_numbers(const struct scenario *s, const char *key, const char *rel_key,
                           double abs)
{
    const json_t *gold = json_object_get(s->gold, key), *mine = json_object_get(s->mine, key);
    if (gold && mine && close_values(gold, mine, tolerance(s, rel_key), abs, is_lost(s)))
        return 0;
    print_difference(s->name, key, gold, mine);
    return 1;
}

static int compare_exact(const struct scenario *s, const char *key)
{
    const json_t *gold = json_object_get(s->gold, key), *mine = json_object_get(s->mine, key);
    if (gold && mine && same(gold, mine))
        return 0;
    print_difference(s->name, key, gold, mine);
    return 1;
}

/* ---- final parameters ------------------------------------------------------------------------ */

/* The elements of a parameter that [Note: key bias] is about; none: first == end. */
static void key_bias(const struct scenario *s, const char *fqn, size_t n, size_t *first,
                     size_t *end)
{
    const char *tail = ".attn.c_attn.bias";
    json_t *optimizer = json_object_get(json_object_get(s->input, "train"), "optimizer");
    const char *name = json_string_value(json_object_get(optimizer, "name"));
    bool is_it = name && !strncmp(name, "adam", 4) && strlen(fqn) > strlen(tail) &&
                 !strcmp(fqn + strlen(fqn) - strlen(tail), tail);
    *first = is_it ? n / 3 : 0;
    *end = is_it ? 2 * n / 3 : 0;
}

/* How far Adam can have moved an element: learning rate x steps. */
static double adam_reach(const struct scenario *s)
{
    json_t *train = json_object_get(s->input, "train");
    double lr = json_number_value(json_object_get(json_object_get(train, "optimizer"), "lr"));
    return lr * json_number_value(json_object_get(train, "iters"));
}

/* A whole tensor as f32; NULL: it cannot be read or has no such type. */
static float *read_tensor(struct tsr_safetensors *file, const struct tsr_st_tensor *t, size_t *n)
{
    size_t size = tsr_dtype_bytes(t->dtype);
    void *raw = malloc(t->bytes + 1);
    *n = size ? t->bytes / size : 0;
    float *out = malloc(*n * sizeof *out + 1);
    bool can = raw && out && tsr_can_convert(t->dtype, TSR_F32);
    if (can && tsr_safetensors_read(file, t, 0, raw, t->bytes) == TSR_OK) {
        tsr_convert(t->dtype, raw, TSR_F32, out, *n);
    } else {
        free(out);
        out = NULL;
    }
    free(raw);
    return out;
}

static bool same_shape(const struct tsr_st_tensor *a, const struct tsr_st_tensor *b)
{
    return a->n_dims == b->n_dims &&
           memcmp(a->shape, b->shape, (size_t)a->n_dims * sizeof *a->shape) == 0;
}

static int compare_tensor(const struct scenario *s, const char *fqn, const float *gold,
                          const float *mine, size_t n)
{
    size_t first, end;
    double allowed = tolerance(s, "param_abs"), reach = adam_reach(s);
    key_bias(s, fqn, n, &first, &end);
    for (size_t i = 0; i < n; i++) {
        double most = i >= first && i < end ? reach : allowed;
        if (fabs((double)gold[i] - mine[i]) <= most)
            continue;
        fprintf(stderr, "%s: final %s[%zu]: recorded %g, ours %g, allowed difference %g\n", s->name,
                fqn, i, (double)gold[i], (double)mine[i], most);
        return 1;
    }
    return 0;
}

static int compare_pair(const struct scenario *s, struct tsr_safetensors *gold,
                        const struct tsr_st_tensor *g, struct tsr_safetensors *mine)
{
    const struct tsr_st_tensor *m = tsr_safetensors_find(mine, g->name);
    size_t n_gold, n_mine;
    if (!m || !same_shape(g, m)) {
        fprintf(stderr, "%s: final %s is absent or has another shape\n", s->name, g->name);
        return 1;
    }
    float *a = read_tensor(gold, g, &n_gold), *b = read_tensor(mine, m, &n_mine);
    int bad = a && b && n_gold == n_mine ? compare_tensor(s, g->name, a, b, n_gold) : 1;
    if (!a || !b)
        fprintf(stderr, "%s: final %s cannot be read\n", s->name, g->name);
    free(a);
    free(b);
    return bad;
}

/* Without the optimizer's states, which were not recorded. */
static size_t count_params(const struct tsr_safetensors *file)
{
    size_t n = 0;
    for (size_t i = 0; i < tsr_safetensors_count(file); i++)
        n += strncmp(tsr_safetensors_tensor(file, i)->name, "state", strlen("state")) != 0;
    return n;
}

static int compare_files(const struct scenario *s, struct tsr_safetensors *gold,
                         struct tsr_safetensors *mine)
{
    int bad = tsr_safetensors_count(gold) != count_params(mine);
    if (bad)
        fprintf(stderr, "%s: other final parameters\n", s->name);
    for (size_t i = 0; i < tsr_safetensors_count(gold); i++)
        bad += compare_pair(s, gold, tsr_safetensors_tensor(gold, i), mine);
    return bad;
}

static int compare_final(const struct scenario *s)
{
    char path[2200];
    const char *name =
        json_string_value(json_object_get(json_object_get(s->gold, "tensors"), "final"));
    struct tsr_safetensors *gold = NULL, *mine = NULL;
    snprintf(path, sizeof path, "%s/%s", s->root, name ? name : "");
    int bad = 1;
    if (tsr_safetensors_open(path, &gold) == TSR_OK &&
        tsr_safetensors_open(s->final, &mine) == TSR_OK)
        bad = compare_files(s, gold, mine);
    else
        fprintf(stderr, "%s: final: %s\n", s->name, tsr_error_text());
    tsr_safetensors_close(gold);
    tsr_safetensors_close(mine);
    return bad;
}

/* ---- scenarios ------------------------------------------------------------------------------- */

/* Recorded in 16 bits, with sums whose order changes no loss: the tolerance of 16 bits would hide a
 * result that is rounded elsewhere than PyTorch's. */
static bool has_exact_losses(const struct scenario *s)
{
    return !strcmp(s->name, "m-scale-f16.json");
}

static int compare(const struct scenario *s)
{
    static const char *const train[] = {"process_groups", "layout", "events", "stream_events"};
    bool is_train = !strcmp(json_string_value(json_object_get(s->gold, "kind")), "train");
    int bad = 0;
    for (size_t i = 0; is_train && i < sizeof train / sizeof *train; i++)
        bad += compare_exact(s, train[i]);
    if (!is_train)
        bad += compare_exact(s, "buckets");
    if (has_exact_losses(s))
        bad += compare_exact(s, "loss_per_rank");
    bad += compare_numbers(s, "loss", "loss_rel", tolerance(s, "loss_abs"));
    bad += compare_numbers(s, "loss_per_rank", "loss_rel", tolerance(s, "loss_abs"));
    bad += compare_numbers(s, "grad_norm", "grad_norm_rel", 1e-6);
    return is_lost(s) ? bad : bad + compare_final(s);
}

static int check(struct scenario *s, const char *out)
{
    char path[1400];
    snprintf(path, sizeof path, "%s/scenarios/%s", s->root, s->name);
    s->mine = trace(path, TEST_EXECUTOR, out);
    snprintf(s->final, sizeof s->final, "%s.final.safetensors", out);
    if (!s->mine)
        fprintf(stderr, "%s: no result\n", s->name);
    int bad = s->mine ? compare(s) : 1;
    unlink(s->final);
    json_decref(s->mine);
    return bad;
}

/* Whether this one is to be run: it trains, and its numbers were recorded. */
static bool load(const char *root, const char *name, struct scenario *s)
{
    char path[1400];
    *s = (struct scenario){0};
    snprintf(s->root, sizeof s->root, "%s", root);
    snprintf(s->name, sizeof s->name, "%s", name);
    snprintf(path, sizeof path, "%s/results/%s", root, name);
    s->gold = json_load_file(path, 0, NULL);
    snprintf(path, sizeof path, "%s/scenarios/%s", root, name);
    s->input = json_load_file(path, 0, NULL);
    const char *kind = json_string_value(json_object_get(s->gold, "kind"));
    return s->input && kind && (!strcmp(kind, "train") || !strcmp(kind, "ddp")) &&
           json_object_get(s->gold, "loss");
}

static int is_json(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    bool races = !strncmp(d->d_name, "m-race-", 7);
    return n > 5 && n < 250 && !strcmp(d->d_name + n - 5, ".json") &&
           (!races || strcmp(TEST_EXECUTOR, "cuda"));
}

struct tally {
    int checked, bad;
};

/* A worker per core, within limits: most of a scenario on a GPU is the start of its process. */
static int workers_for(long cores)
{
    return cores < LEAST_WORKERS ? LEAST_WORKERS : cores > MOST_WORKERS ? MOST_WORKERS : (int)cores;
}

/* At once, in one line: a test that is cut off has said what it found. */
static void tell(const char *name, bool bad, time_t begin)
{
    char line[320];
    int n = snprintf(line, sizeof line, "%s: %s, %d s\n", name, bad ? "differs" : "as recorded",
                     (int)(time(NULL) - begin));
    (void)!write(STDOUT_FILENO, line, (size_t)n);
}

/* The short form computes every QUICK_STRIDE-th scenario, from number FIRST on. */
enum { QUICK_STRIDE = 4 };

/* Every `workers`-th scenario of those. */
static struct tally work(const char *root, struct dirent *const *files, int n, int worker,
                         int workers)
{
    char out[] = "/tmp/tessera-golden-host-XXXXXX";
    struct tally t = {0, 0};
    int fd = mkstemp(out);
    if (fd < 0)
        return (struct tally){0, 1};
    close(fd);
    const int stride = (int)tests_stride(QUICK_STRIDE);
    for (int i = FIRST % stride + worker * stride; i < n; i += workers * stride) {
        struct scenario s;
        time_t begin = time(NULL);
        if (load(root, files[i]->d_name, &s)) {
            bool bad = check(&s, out) != 0;
            t.checked++;
            t.bad += bad;
            tell(s.name, bad, begin);
        }
        json_decref(s.gold);
        json_decref(s.input);
    }
    unlink(out);
    return t;
}

/* A worker is a process; it sends its tally through a pipe, and nothing if it fails. */
static int start_worker(const char *root, struct dirent *const *files, int n, int worker,
                        int workers)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct tally t = work(root, files, n, worker, workers);
        _exit(write(ends[1], &t, sizeof t) == sizeof t ? 0 : 1);
    }
    close(ends[1]);
    return ends[0];
}

static void compute_the_same(const char *name, int least)
{
    char root[900], folder[1024];
    int ends[MOST_WORKERS], workers = workers_for(sysconf(_SC_NPROCESSORS_ONLN));
    struct dirent **files = NULL;
    struct tally all = {0, 0};
    assert_non_null(getenv("TESSERA"));
    assert_non_null(getenv("TSR_SOURCE_DIR"));
    snprintf(root, sizeof root, "%s/tests/%s", getenv("TSR_SOURCE_DIR"), name);
    snprintf(folder, sizeof folder, "%s/scenarios", root);
    int n = scandir(folder, &files, is_json, alphasort);
    assert_true(n > 0);
    for (int i = 0; i < workers; i++)
        ends[i] = start_worker(root, files, n, i, workers);
    for (int i = 0; i < workers; i++) {
        struct tally t = {0, 1}; /* of a worker that says nothing */
        (void)!read(ends[i], &t, sizeof t);
        close(ends[i]);
        all.checked += t.checked;
        all.bad += t.bad;
    }
    while (waitpid(-1, NULL, 0) > 0)
        ;
    for (int i = 0; i < n; i++)
        free(files[i]);
    free(files);
    printf("%d recorded scenarios computed, %d differ\n", all.checked, all.bad);
    assert_true(all.checked >= (int)((size_t)least / tests_stride(QUICK_STRIDE + 1)));
    assert_int_equal(all.bad, 0);
}

static void recorded_scenarios(void **state)
{
    (void)state;
    compute_the_same("golden", 157);
}

static void found_scenarios(void **state)
{
    (void)state;
    compute_the_same("golden-found", N_FOUND);
}

/* A machine with a GPU has many cores, and the scenarios must be through within minutes. */
static void workers_of_machines(void **state)
{
    (void)state;
    assert_int_equal(workers_for(1), 2);
    assert_int_equal(workers_for(5), 5);
    assert_int_equal(workers_for(16), 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(recorded_scenarios),
                                       cmocka_unit_test(found_scenarios),
                                       cmocka_unit_test(workers_of_machines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
