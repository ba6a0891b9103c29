/* test_golden.c: what `tessera trace` says about every recorded scenario must be what PyTorch did.
 *
 * Every key that the kind of a scenario requires must be there and be equal: integers, texts and
 * flags exactly, other numbers to 1e-6. tests/golden/README.md gives the format.
 */
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Keys that a result must have, by kind. */
static const struct {
    const char *kind;
    const char *keys[6];
} required[] = {{"train", {"process_groups", "layout", "events", "stream_events", NULL}},
                {"layout", {"layout", NULL}},
                {"ddp", {"buckets", NULL}},
                {"tp_layout", {"params", "ranks", NULL}},
                {"chunk", {"cases", NULL}},
                {"bucket", {"cases", NULL}},
                {"error", {"error", NULL}}};

static bool same(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) {
        if (json_is_integer(a) && json_is_integer(b))
            return json_integer_value(a) == json_integer_value(b);
        double x = json_number_value(a), y = json_number_value(b);
        return x == y || fabs(x - y) <= 1e-6 * fmax(fabs(x), fabs(y));
    }
    if (json_is_array(a) && json_is_array(b)) {
        if (json_array_size(a) != json_array_size(b))
            return false;
        for (size_t i = 0; i < json_array_size(a); i++)
            if (!same(json_array_get(a, i), json_array_get(b, i)))
                return false;
        return true;
    }
    if (json_is_object(a) && json_is_object(b)) {
        const char *key;
        json_t *value;
        if (json_object_size(a) != json_object_size(b))
            return false;
        json_object_foreach((json_t *)(uintptr_t)a, key,
                            value) if (!json_object_get(b, key) ||
                                       !same(value, json_object_get(b, key))) return false;
        return true;
    }
    return json_equal(a, b);
}

static void print_difference(const char *name, const char *key, const json_t *gold,
                             const json_t *mine)
{
    size_t n = json_is_array(gold) && json_is_array(mine) ? json_array_size(gold) : 0;
    fprintf(stderr, "%s: %s differs", name, key);
    for (size_t i = 0; i < n; i++)
        if (!json_array_get(mine, i) || !same(json_array_get(gold, i), json_array_get(mine, i))) {
            char *a = json_dumps(json_array_get(gold, i), JSON_COMPACT | JSON_ENCODE_ANY);
            char *b = json_dumps(json_array_get(mine, i), JSON_COMPACT | JSON_ENCODE_ANY);
            fprintf(stderr, " at %zu\n  recorded %s\n  ours     %s", i, a ? a : "",
                    b ? b : "nothing");
            free(a);
            free(b);
            break;
        }
    fputc('\n', stderr);
}

/* An error has the class and the stage of the recorded one and says the same words. */
static bool same_error(const json_t *gold, const json_t *mine)
{
    json_t *words = json_object_get(gold, "mention");
    const char *message = json_string_value(json_object_get(mine, "message"));
    if (!message || !same(json_object_get(gold, "class"), json_object_get(mine, "class")) ||
        !same(json_object_get(gold, "stage"), json_object_get(mine, "stage")))
        return false;
    for (size_t i = 0; i < json_array_size(words); i++)
        if (!strstr(message, json_string_value(json_array_get(words, i))))
            return false;
    return true;
}

static int compare(const char *name, const char *kind, const json_t *gold, const json_t *mine)
{
    int bad = 0;
    for (size_t k = 0; k < sizeof required / sizeof *required; k++) {
        if (strcmp(required[k].kind, kind) != 0)
            continue;
        for (const char *const *key = required[k].keys; *key; key++) {
            const json_t *g = json_object_get(gold, *key), *m = json_object_get(mine, *key);
            bool equal = g && m && (strcmp(*key, "error") ? same(g, m) : same_error(g, m));
            if (!equal) {
                print_difference(name, *key, g, m);
                bad++;
            }
        }
    }
    return bad;
}

/* Runs `tessera trace`, one process a scenario. */
static json_t *trace(const char *scenario, const char *out)
{
    pid_t pid = fork();
    if (pid == 0) {
        execl(getenv("TESSERA"), "tessera", "trace", scenario, "-o", out, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        return NULL;
    json_t *result = json_load_file(out, 0, NULL);
    unlink(out);
    return result;
}

static int check(const char *root, const char *file, const char *out, int *n_checked)
{
    char scenario[1024], result[1024];
    snprintf(scenario, sizeof scenario, "%s/scenarios/%s", root, file);
    snprintf(result, sizeof result, "%s/results/%s", root, file);
    json_t *gold = json_load_file(result, 0, NULL);
    const char *kind = json_string_value(json_object_get(gold, "kind"));
    bool known = false;
    for (size_t k = 0; kind && k < sizeof required / sizeof *required; k++)
        known |= strcmp(required[k].kind, kind) == 0;
    int bad = 0;
    if (known) {
        json_t *mine = trace(scenario, out);
        (*n_checked)++;
        if (!mine)
            fprintf(stderr, "%s: no result\n", file);
        bad = mine ? compare(file, kind, gold, mine) : 1;
        json_decref(mine);
    }
    json_decref(gold);
    return bad;
}

static void scenarios_match(void **state)
{
    (void)state;
    char root[900], folder[1024], out[] = "/tmp/tessera-golden-XXXXXX";
    assert_non_null(getenv("TESSERA"));
    assert_non_null(getenv("TSR_SOURCE_DIR"));
    snprintf(root, sizeof root, "%s/tests/golden", getenv("TSR_SOURCE_DIR"));
    snprintf(folder, sizeof folder, "%s/scenarios", root);
    int fd = mkstemp(out), n_checked = 0, bad = 0;
    assert_true(fd >= 0);
    close(fd);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *d; (d = readdir(dir));)
        if (strlen(d->d_name) > 5 && !strcmp(d->d_name + strlen(d->d_name) - 5, ".json"))
            bad += check(root, d->d_name, out, &n_checked) != 0;
    closedir(dir);
    printf("%d recorded scenarios compared, %d differ\n", n_checked, bad);
    assert_true(n_checked > 0);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(scenarios_match)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
