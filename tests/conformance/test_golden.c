/* test_golden.c: what `tessera trace` says about every recorded scenario must be what PyTorch did.
 *
 * Every key that the kind of a scenario requires must be there and be equal: integers, texts and
 * flags exactly, other numbers to 1e-6. tests/golden/README.md gives the format.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/conformance/golden_testing.h"

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

/* of_errors: only a scenario that PyTorch refuses. */
static int check(const char *root, const char *file, const char *out, bool of_errors,
                 int *n_checked)
{
    char scenario[1024], result[1024];
    snprintf(scenario, sizeof scenario, "%s/scenarios/%s", root, file);
    snprintf(result, sizeof result, "%s/results/%s", root, file);
    json_t *gold = json_load_file(result, 0, NULL);
    const char *kind = json_string_value(json_object_get(gold, "kind"));
    bool known = false;
    for (size_t k = 0; kind && k < sizeof required / sizeof *required; k++)
        known |= strcmp(required[k].kind, kind) == 0;
    known = known && (!of_errors || strcmp(kind, "error") == 0);
    int bad = 0;
    if (known) {
        json_t *mine = trace(scenario, NULL, out);
        (*n_checked)++;
        if (!mine)
            fprintf(stderr, "%s: no result\n", file);
        bad = mine ? compare(file, kind, gold, mine) : 1;
        json_decref(mine);
    }
    json_decref(gold);
    return bad;
}

static void check_folder(const char *name, bool of_errors)
{
    char root[900], folder[1024], out[] = "/tmp/tessera-golden-XXXXXX";
    assert_non_null(getenv("TESSERA"));
    assert_non_null(getenv("TSR_SOURCE_DIR"));
    snprintf(root, sizeof root, "%s/tests/%s", getenv("TSR_SOURCE_DIR"), name);
    snprintf(folder, sizeof folder, "%s/scenarios", root);
    int fd = mkstemp(out), n_checked = 0, bad = 0;
    assert_true(fd >= 0);
    close(fd);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *d; (d = readdir(dir));)
        if (strlen(d->d_name) > 5 && !strcmp(d->d_name + strlen(d->d_name) - 5, ".json"))
            bad += check(root, d->d_name, out, of_errors, &n_checked) != 0;
    closedir(dir);
    printf("%s: %d recorded scenarios compared, %d differ\n", name, n_checked, bad);
    assert_true(n_checked > 0);
    assert_int_equal(bad, 0);
}

static void scenarios_match(void **state)
{
    (void)state;
    check_folder("golden", false);
}

/* What test_golden_host.c cannot run. */
static void refusals_found_match(void **state)
{
    (void)state;
    check_folder("golden-found", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(scenarios_match),
                                       cmocka_unit_test(refusals_found_match)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
