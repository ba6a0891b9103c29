/* fuzz.c: the table of targets, their folder, and the limits of an input. */
#include "fuzz/fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif
#ifdef HAS_ASAN /* <sanitizer/allocator_interface.h>, which gcc 12 does not install */
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));
size_t __sanitizer_get_allocated_size(const volatile void *p);
#endif

enum { MOST_BYTES = 256 << 20, PATH_BYTES = 4096 };

/* ---- the table ------------------------------------------------------------------------------- */

const struct tsr_fuzz_target *tsr_fuzz_at(size_t i)
{
    const struct tsr_fuzz_target *const parts[] = {tsr_fuzz_texts, tsr_fuzz_json, tsr_fuzz_tables,
                                                   tsr_fuzz_files, tsr_fuzz_wire, tsr_fuzz_traced};
    for (size_t part = 0; part < sizeof parts / sizeof *parts; part++)
        for (const struct tsr_fuzz_target *target = parts[part]; target->name; target++)
            if (i-- == 0)
                return target;
    return NULL;
}

const struct tsr_fuzz_target *tsr_fuzz_find(const char *name)
{
    const struct tsr_fuzz_target *target;
    for (size_t i = 0; (target = tsr_fuzz_at(i)); i++)
        if (!strcmp(target->name, name))
            return target;
    return NULL;
}

/* ---- the folder ------------------------------------------------------------------------------ */

static char folder[PATH_BYTES / 2];

static void no_folder(const char *what)
{
    perror(what);
    _Exit(1);
}

/* Memory where there is some: an input is a file, written anew each time. */
static void make_folder(void)
{
    const char *tmp = getenv("TSR_FUZZ_DIR");
    tmp = tmp ? tmp : access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(folder, sizeof folder, "%s/tessera-fuzz-XXXXXX", tmp);
    if (!mkdtemp(folder))
        no_folder(folder);
}

/* It has files, and folders of files. */
static void remove_all(const char *path)
{
    DIR *dir = opendir(path);
    char below[2 * PATH_BYTES];
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        snprintf(below, sizeof below, "%s/%s", path, e->d_name);
        if (unlink(below) != 0)
            remove_all(below);
    }
    if (dir)
        closedir(dir);
    (void)rmdir(path);
}

void tsr_fuzz_end(void)
{
    if (folder[0])
        remove_all(folder);
    folder[0] = 0;
}

const char *tsr_fuzz_file(const char *name, const uint8_t *data, size_t n)
{
    static char paths[4][PATH_BYTES]; /* those of an input */
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, PATH_BYTES, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n || close(fd) != 0)
        no_folder(path);
    return path;
}

const char *tsr_fuzz_text_file(const char *name, const char *text)
{
    return tsr_fuzz_file(name, (const uint8_t *)text, strlen(text));
}

static bool copy_file(const char *path, const char *name)
{
    struct stat info;
    FILE *file = fopen(path, "rb");
    bool ok = file && fstat(fileno(file), &info) == 0;
    uint8_t *data = ok ? malloc((size_t)info.st_size + 1) : NULL;
    ok = data && fread(data, 1, (size_t)info.st_size, file) == (size_t)info.st_size;
    if (ok)
        (void)tsr_fuzz_file(name, data, (size_t)info.st_size);
    free(data);
    if (file)
        fclose(file);
    return ok;
}

bool tsr_fuzz_copy(const char *from, const char *ending)
{
    char path[PATH_BYTES], file[2 * PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", TSR_SOURCE_DIR, from);
    DIR *dir = opendir(path);
    bool ok = dir != NULL;
    for (struct dirent *e; ok && (e = readdir(dir)) != NULL;) {
        size_t n = strlen(e->d_name), end = strlen(ending);
        if (n < end || strcmp(e->d_name + n - end, ending) != 0)
            continue;
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        ok = copy_file(file, e->d_name);
    }
    if (dir)
        closedir(dir);
    return ok;
}

char *tsr_fuzz_string(const uint8_t *data, size_t n)
{
    char *text = malloc(n + 1);
    if (!text)
        abort();
    memcpy(text, data, n);
    text[n] = 0;
    return text;
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* Of the processor, not of the clock: a loaded machine is no hang. */
static void took_too_long(int sig)
{
    static const char text[] = "== fuzz: an input took more than its second\n";
    (void)sig;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _Exit(1);
    abort();
}

static void set_timer(long seconds)
{
    const struct itimerval timer = {.it_value.tv_sec = seconds};
    if (setitimer(ITIMER_PROF, &timer, NULL) != 0)
        no_folder("setitimer");
}

#ifdef HAS_ASAN
/* What the program has allocated, not what the sanitizer needs for that. */
static bool counting;
static size_t live;

static void on_malloc(const volatile void *p, size_t bytes)
{
    (void)p;
    live += bytes;
    if (counting && live > MOST_BYTES) {
        static const char text[] = "== fuzz: an input took more than 256 MB\n";
        counting = false;
        if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
            _Exit(1);
        abort();
    }
}

static void on_free(const volatile void *p)
{
    size_t bytes = p ? __sanitizer_get_allocated_size(p) : 0;
    live -= bytes < live ? bytes : live;
}

static void watch_memory(void)
{
    (void)__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
}

static void count_memory(bool on)
{
    if (on)
        live = 0;
    counting = on;
}
#else
static long first_kb;

static long most_kb(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_maxrss : 0;
}

static void watch_memory(void)
{
    first_kb = most_kb();
}

static void count_memory(bool on)
{
    if (on || most_kb() - first_kb <= MOST_BYTES / 1024)
        return;
    fprintf(stderr, "== fuzz: an input took more than 256 MB\n");
    abort();
}
#endif

bool tsr_fuzz_begin(const struct tsr_fuzz_target *target)
{
    make_folder();
    if (!freopen("/dev/null", "w", stdout)) /* commands print what they read */
        no_folder("/dev/null");
    if (target->begin && !target->begin()) {
        fprintf(stderr, "fuzz: %s: files of the source tree are missing\n", target->name);
        return false;
    }
    (void)signal(SIGPROF, took_too_long);
    watch_memory();
    return true;
}

void tsr_fuzz_once(const struct tsr_fuzz_target *target, const uint8_t *data, size_t n)
{
    static uint8_t nothing;
    set_timer(TSR_FUZZ_SECONDS);
    count_memory(true);
    target->run(n ? data : &nothing, n);
    count_memory(false);
    set_timer(0);
}
