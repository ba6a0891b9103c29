/* paths.c: looks models, clusters and stacks up. */
#include "experiments/study/base/paths.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "experiments/study/base/listener.h"
#include "experiments/study/base/yaml.h"
#include "sim/base/files.h"

enum { MAX_LEVELS = 4, MAX_FOLDERS = MAX_LEVELS + 3 };

struct kind {
    const char *key, *folder;
    const char *prefixes[3]; /* tried in order; the last is "" */
};

static const struct kind model_kind = {"model", "models", {"", NULL}};
static const struct kind cluster_kind = {"cluster", "clusters", {"cluster-", "node-", ""}};

static const struct kind gpu_kind = {"gpu", "clusters", {"gpu-", "", NULL}};

static const struct kind stack_kind = {"stack", "stacks", {"", NULL}};

static const struct kind validation_kind = {"validation", "validation", {"", NULL}};

static bool has_ending(const char *name, const char *ending)
{
    size_t n = strlen(name), m = strlen(ending);
    return n > m && !strcmp(name + n - m, ending);
}

bool tsr_is_path(const char *name)
{
    return strchr(name, '/') || has_ending(name, ".json") || has_ending(name, ".yaml") ||
           has_ending(name, ".yml") || has_ending(name, ".xml");
}

/* Takes "a/.." out of a path, for people to read. What follows a link named `a` would change, so
 * the short form is used only if it still is the same file. */
static void shorten(char path[TSR_FILE_BYTES])
{
    char copy[TSR_FILE_BYTES];
    struct stat before, after;
    snprintf(copy, sizeof copy, "%s", path);
    for (char *up; (up = strstr(copy, "/..")) && up != copy && (up[3] == '/' || !up[3]);) {
        char *start = up;
        while (start > copy && start[-1] != '/')
            start--;
        if (!strncmp(start, "..", 2) || !strncmp(start, "./", 2))
            break;
        char *rest = up + 3 + (up[3] == '/');
        memmove(start, rest, strlen(rest) + 1);
    }
    if (stat(path, &before) == 0 && stat(copy, &after) == 0 && before.st_ino == after.st_ino &&
        before.st_dev == after.st_dev)
        snprintf(path, TSR_FILE_BYTES, "%s", copy);
}

/* Joins into out; false if it is too long or there is no such file. */
static bool try_file(char out[TSR_FILE_BYTES], const char *folder, const char *prefix,
                     const char *name, const char *ending)
{
    int n = snprintf(out, TSR_FILE_BYTES, "%s%s%s%s%s", folder, *folder ? "/" : "", prefix, name,
                     ending);
    if (n <= 0 || n >= TSR_FILE_BYTES || access(out, F_OK) != 0)
        return false;
    shorten(out);
    return true;
}

static void folder_of(const char *file, char *out, size_t size)
{
    const char *slash = file ? strrchr(file, '/') : NULL;
    snprintf(out, size, "%.*s", slash ? (int)(slash - file) : 1, slash ? file : ".");
    if (slash == file && slash)
        snprintf(out, size, "/");
}

tsr_status tsr_find_file(const char *key, const char *name, const struct tsr_yaml_node *at,
                         const char *experiment, char out[TSR_FILE_BYTES])
{
    char folder[TSR_FILE_BYTES];
    folder_of(experiment, folder, sizeof folder);
    if (!strcmp(folder, "."))
        folder[0] = 0;
    if (*name == '/' ? try_file(out, "", "", name, "")
                     : try_file(out, folder, "", name, "") || try_file(out, "", "", name, ""))
        return TSR_OK;
    return tsr_node_error(at,
                          "%s: found %s, which is not there; allowed: a file, its path counted "
                          "from %s%s",
                          key, name, *folder ? folder : "the working directory",
                          *folder ? " or from the working directory" : "");
}

bool tsr_data_beside_program(const char *what, char out[TSR_FILE_BYTES])
{
    char program[TSR_FILE_BYTES];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0)
        return false;
    program[length] = '\0';
    char *slash = strrchr(program, '/');
    if (!slash)
        return false;
    *slash = '\0';
    int n = snprintf(out, TSR_FILE_BYTES, "%s/../share/tessera/%s", program, what);
    if (n < 0 || n >= TSR_FILE_BYTES || access(out, F_OK) != 0)
        return false;
    shorten(out);
    return true;
}

/* The folders in which names are looked up, first match wins. *n_own of them lie above the
 * experiment, the others come with the program. */
static size_t list_folders(const struct kind *kind, const char *experiment,
                           char out[MAX_FOLDERS][TSR_FILE_BYTES], size_t *n_own)
{
    char up[TSR_FILE_BYTES];
    size_t n = 0;
    folder_of(experiment, up, sizeof up);
    for (int level = 0; level < MAX_LEVELS; level++) {
        int length = snprintf(out[n], TSR_FILE_BYTES, "%s/%s", up, kind->folder);
        size_t used = strlen(up);
        if (length > 0 && length < TSR_FILE_BYTES && access(out[n], F_OK) == 0)
            n++;
        if (used + 4 < sizeof up)
            memcpy(up + used, "/..", 4);
    }
    *n_own = n;
    n += tsr_data_beside_program(kind->folder, out[n]);
    snprintf(out[n++], TSR_FILE_BYTES, "%s/%s", TSR_DATA_DIR, kind->folder);
    snprintf(out[n++], TSR_FILE_BYTES, "%s/experiments/%s", TSR_SOURCE_DIR, kind->folder);
    return n;
}

/* ---- a file of the user's instead of a shipped one --------------------------------------------
 */

static bool has_same_contents(const char *a, const char *b)
{
    enum { MOST = 1 << 24 };
    char *text[2] = {NULL, NULL};
    size_t n[2] = {0, 0};
    bool same = tsr_read_file(a, MOST, &text[0], &n[0]) == TSR_OK &&
                tsr_read_file(b, MOST, &text[1], &n[1]) == TSR_OK && n[0] == n[1] &&
                memcmp(text[0], text[1], n[0]) == 0;
    free(text[0]);
    free(text[1]);
    return same;
}

/* Says once that `used` is read instead of `shipped`. */
static void tell_shadow(const struct kind *kind, const char *name, const char *used,
                        const char *shipped)
{
    if (!has_same_contents(used, shipped))
        tsr_tell_once("note: %s %s: %s is read, and not %s", kind->key, name, used, shipped);
}

/* Looks for NAME in one folder, under each prefix; true: it is in `out`. */
static bool try_folder(const struct kind *kind, const char *folder, const char *name,
                       const char *ending, char out[TSR_FILE_BYTES])
{
    for (int k = 0; k < 3 && kind->prefixes[k]; k++)
        if (try_file(out, folder, kind->prefixes[k], name, ending))
            return true;
    return false;
}

/* Looks for NAME in all folders, which it lists; true: it is in `out`. */
static bool find_name(const struct kind *kind, const char *name, const char *ending,
                      const char *experiment, char folders[MAX_FOLDERS][TSR_FILE_BYTES], size_t *n,
                      char out[TSR_FILE_BYTES])
{
    size_t n_own, i = 0;
    char shipped[TSR_FILE_BYTES];
    *n = list_folders(kind, experiment, folders, &n_own);
    while (i < *n && !try_folder(kind, folders[i], name, ending, out))
        i++;
    for (size_t k = n_own; i < n_own && k < *n; k++)
        if (try_folder(kind, folders[k], name, ending, shipped)) {
            tell_shadow(kind, name, out, shipped);
            break;
        }
    return i < *n;
}

/* The nearest name in a folder; "" if there is none. */
static void nearest_in(const struct kind *kind, const char *folder, const char *name, char *out,
                       size_t size)
{
    size_t best = strlen(name) / 2 + 1;
    DIR *dir = opendir(folder);
    out[0] = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char have[256];
        const char *start = entry->d_name;
        if (!has_ending(start, ".json"))
            continue;
        for (int i = 0; kind->prefixes[i] && *kind->prefixes[i]; i++)
            if (!strncmp(start, kind->prefixes[i], strlen(kind->prefixes[i])))
                start += strlen(kind->prefixes[i]);
        snprintf(have, sizeof have, "%.*s", (int)(strlen(start) - 5), start);
        /* "h200" means h200-sxm, not gb200 */
        bool begins = *name && !strncmp(have, name, strlen(name));
        size_t distance = begins ? 0 : tsr_edit_distance(name, have);
        if (distance < best) {
            best = distance;
            snprintf(out, size, "%s", have);
        }
    }
    if (dir)
        closedir(dir);
}

static tsr_status find(const struct kind *kind, const char *name, const struct tsr_yaml_node *at,
                       const char *experiment, char out[TSR_FILE_BYTES])
{
    char folders[MAX_FOLDERS][TSR_FILE_BYTES], near[256] = "";
    if (tsr_is_path(name))
        return tsr_find_file(kind->key, name, at, experiment, out);
    size_t n;
    if (find_name(kind, name, ".json", experiment, folders, &n, out))
        return TSR_OK;
    for (size_t i = 0; i < n && !*near; i++)
        nearest_in(kind, folders[i], name, near, sizeof near);
    return tsr_node_error(at,
                          "%s: found %s, which is in no folder %s/%s%s; allowed: NAME "
                          "of a file %s/%sNAME.json, or a path",
                          kind->key, name, kind->folder, *near ? "; nearest: " : "", near,
                          n ? folders[n - 1] : "", kind->prefixes[0]);
}

/* NAME/config.json, as Hugging Face lays a model down. */
static bool find_in_folder(const char *name, const char *experiment, char out[TSR_FILE_BYTES])
{
    char folder[TSR_FILE_BYTES], config[TSR_FILE_BYTES];
    int length = (int)strnlen(name, TSR_FILE_BYTES);
    while (length > 1 && name[length - 1] == '/')
        length--;
    int n = snprintf(config, sizeof config, "%.*s/config.json", length, name);
    folder_of(experiment, folder, sizeof folder);
    if (n < 0 || n >= TSR_FILE_BYTES)
        return false;
    return *name == '/'
               ? try_file(out, "", "", config, "")
               : try_file(out, folder, "", config, "") || try_file(out, "", "", config, "");
}

tsr_status tsr_find_model(const char *name, const struct tsr_yaml_node *at, const char *experiment,
                          char out[TSR_FILE_BYTES])
{
    if (tsr_is_path(name) && find_in_folder(name, experiment, out))
        return TSR_OK;
    tsr_status status = find(&model_kind, name, at, experiment, out);
    if (status != TSR_OK && find_in_folder(name, experiment, out))
        return TSR_OK;
    return status;
}

tsr_status tsr_find_cluster(const char *name, const struct tsr_yaml_node *at,
                            const char *experiment, char out[TSR_FILE_BYTES])
{
    return find(&cluster_kind, name, at, experiment, out);
}

tsr_status tsr_find_gpu(const char *name, const struct tsr_yaml_node *at, const char *experiment,
                        char out[TSR_FILE_BYTES])
{
    return find(&gpu_kind, name, at, experiment, out);
}

const char *const *tsr_cluster_folders(struct tsr_data_folders *out)
{
    size_t n = 0;
    if (tsr_data_beside_program("clusters", out->beside))
        out->list[n++] = out->beside;
    out->list[n++] = TSR_DATA_DIR "/clusters";
    out->list[n++] = TSR_SOURCE_DIR "/experiments/clusters";
    out->list[n] = NULL;
    return out->list;
}

/* ---- stacks ------------------------------------------------------------------------------------
 */

static const char stack_ending[] = ".yaml";

/* Names of stacks, of all folders. */
struct stack_names {
    struct tsr_arena arena;
    const char **items; /* NULL-terminated */
    size_t n, cap;
};

static tsr_status add_stack(struct stack_names *names, const char *file)
{
    const char *name = tsr_arena_printf(&names->arena, "%.*s",
                                        (int)(strlen(file) + 1 - sizeof stack_ending), file);
    size_t i = 0;
    if (!name)
        return tsr_no_memory(NULL);
    while (i < names->n && strcmp(names->items[i], name) != 0)
        i++;
    return i < names->n || TSR_PUSH(names->items, names->n, names->cap, name) ? TSR_OK
                                                                              : tsr_no_memory(NULL);
}

static tsr_status list_stacks(const char *folder, struct stack_names *names)
{
    DIR *dir = opendir(folder);
    tsr_status status = TSR_OK;
    for (struct dirent *entry; dir && status == TSR_OK && (entry = readdir(dir));)
        if (has_ending(entry->d_name, stack_ending))
            status = add_stack(names, entry->d_name);
    if (dir)
        closedir(dir);
    return status;
}

static int by_text(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/* "torchtitan" means one of "torchtitan-...": the last, which is the newest. */
static const char *nearest_stack(const struct stack_names *names, const char *name)
{
    const char *near = NULL;
    size_t n = strlen(name);
    for (size_t i = 0; i < names->n; i++)
        if (n && !strncmp(names->items[i], name, n))
            near = names->items[i];
    return near ? near : tsr_nearest(name, names->items);
}

static tsr_status no_such_stack(struct stack_names *names, const char *name,
                                const struct tsr_yaml_node *at)
{
    char all[512];
    if (names->n)
        qsort(names->items, names->n, sizeof *names->items, by_text);
    if (!TSR_PUSH(names->items, names->n, names->cap, NULL))
        return tsr_no_memory(NULL);
    names->n--;
    const char *near = nearest_stack(names, name);
    tsr_join_words(names->items, all, sizeof all);
    return tsr_node_error(at, "stack: found %s; %s%s%sallowed: %s, or the path of a file", name,
                          near ? "nearest: " : "", near ? near : "", near ? "; " : "",
                          names->n ? all : "a file stacks/NAME.yaml");
}

tsr_status tsr_find_stack(const char *name, const struct tsr_yaml_node *at, const char *experiment,
                          char out[TSR_FILE_BYTES])
{
    char folders[MAX_FOLDERS][TSR_FILE_BYTES];
    struct stack_names names = {.n = 0};
    tsr_status status = TSR_OK;
    if (tsr_is_path(name))
        return tsr_find_file(stack_kind.key, name, at, experiment, out);
    size_t n;
    if (find_name(&stack_kind, name, stack_ending, experiment, folders, &n, out))
        return TSR_OK;
    tsr_arena_init(&names.arena);
    for (size_t i = 0; i < n && status == TSR_OK; i++)
        status = list_stacks(folders[i], &names);
    if (status == TSR_OK)
        status = no_such_stack(&names, name, at);
    tsr_arena_fini(&names.arena);
    free(names.items);
    return status;
}

/* ---- what else comes with the program ------------------------------------------------------ */

bool tsr_find_validation(const char *name, const char *experiment, char out[TSR_FILE_BYTES])
{
    char folders[MAX_FOLDERS][TSR_FILE_BYTES];
    size_t n_own, n = list_folders(&validation_kind, experiment, folders, &n_own);
    for (size_t i = 0; i < n; i++)
        if (try_folder(&validation_kind, folders[i], name, "", out))
            return true;
    return false;
}
