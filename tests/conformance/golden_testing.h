/* golden_testing.h: recorded results and ours, compared. */
#ifndef TSR_GOLDEN_TESTING_H
#define TSR_GOLDEN_TESTING_H

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Integers, texts and flags exactly, other numbers to 1e-6. */
static inline bool same(const json_t *a, const json_t *b)
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

static inline void print_difference(const char *name, const char *key, const json_t *gold,
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

/* Drops the stream events that PyTorch does not have (SEMANTICS Q21): with offload the host waits
 * for an all-gather that nobody used, for which the compute stream has just begun to wait. */
static inline void drop_host_waits(json_t *events)
{
    for (size_t i = json_array_size(events); i-- > 1;) {
        const json_t *e = json_array_get(events, i), *before = json_array_get(events, i - 1);
        const char *what = json_string_value(json_object_get(e, "e"));
        const char *was = json_string_value(json_object_get(before, "e"));
        if (what && was && !strcmp(what, "synchronize_event") && !strcmp(was, "wait_event") &&
            json_equal(json_object_get(e, "at"), json_object_get(before, "at")) &&
            json_equal(json_object_get(e, "event"), json_object_get(before, "event")))
            json_array_remove(events, i);
    }
}

/* Runs `tessera trace`, one process a scenario; NULL: it failed. `executor` NULL: decisions only.
 */
static inline json_t *trace(const char *scenario, const char *executor, const char *out)
{
    pid_t pid = fork();
    if (pid == 0) {
        execl(getenv("TESSERA"), "tessera", "trace", scenario, "-o", out,
              executor ? "--executor" : (char *)NULL, executor, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        return NULL;
    json_t *result = json_load_file(out, 0, NULL);
    drop_host_waits(json_object_get(result, "stream_events"));
    unlink(out);
    return result;
}

#endif
