/* scratch.h: a temporary folder for a test, and the content of files in it. */
#ifndef TSR_TESTS_SCRATCH_H
#define TSR_TESTS_SCRATCH_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct scratch {
    char path[256];
};

static inline struct scratch scratch_create(void)
{
    struct scratch s;
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(s.path, sizeof s.path, "%s/tessera-test-XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
    if (!mkdtemp(s.path))
        abort();
    return s;
}

static inline void scratch_remove_tree(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        struct stat info;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char *child = malloc(strlen(path) + strlen(entry->d_name) + 2);
        if (!child)
            abort();
        (void)sprintf(child, "%s/%s", path, entry->d_name);
        if (lstat(child, &info) == 0 && S_ISDIR(info.st_mode))
            scratch_remove_tree(child);
        else
            (void)unlink(child);
        free(child);
    }
    if (dir)
        (void)closedir(dir);
    (void)rmdir(path);
}

static inline void scratch_destroy(struct scratch *s)
{
    scratch_remove_tree(s->path);
}

static inline int scratch_n_entries(const char *path)
{
    DIR *dir = opendir(path);
    int n = 0;
    while (dir && readdir(dir))
        n++;
    if (dir)
        (void)closedir(dir);
    return n - 2;
}

/* Content of FOLDER/NAME, to be freed; NULL if it is not there. */
static inline char *scratch_read(const char *folder, const char *name)
{
    char path[768];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    size_t cap = 1 << 16, n = 0, got;
    char *text = malloc(cap + 1);
    while (text && (got = fread(text + n, 1, cap - n, file)) > 0) {
        n += got;
        if (n == cap)
            text = realloc(text, (cap *= 2) + 1);
    }
    (void)fclose(file);
    if (text)
        text[n] = '\0';
    return text;
}

#endif
