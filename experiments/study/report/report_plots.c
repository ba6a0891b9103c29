/* report_plots.c: draws the pictures of a comparison with gnuplot and the scripts in plots/.
 *
 * Two gnuplot processes share the pictures (starting one costs as much as drawing one). A picture
 * is drawn under a temporary name and renamed when gnuplot is content. gnuplot is run without a
 * shell; missing, it is no error.
 */
#include "experiments/study/base/files.h"
#include "experiments/study/base/interrupt.h"
#include "experiments/study/base/listener.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef TSR_SOURCE_DIR
#define TSR_SOURCE_DIR "."
#endif
#ifndef TSR_DATA_DIR
#define TSR_DATA_DIR "/usr/local/share/tessera"
#endif

enum { N_WORKERS = 2 };
static const char *const endings[] = {".svg", ".png"};

/* One picture: SCRIPT draws FOLDER/NAME.svg and .png. */
struct picture {
    const char *name;
    char *folder, *script, *settings; /* settings: what -e gets */
    char *drawn[2];                   /* under these names, by `endings` */
};

struct gallery {
    struct picture *pictures;
    size_t n, cap;
    char *gnuplot, *scripts; /* the program; the folder of the scripts */
};

/* ---- strings ------------------------------------------------------------------------------ */

/* dir='FOLDER'; out='.new-NAME' with quotes doubled. A leading '<' would be a command to gnuplot.
 */
static char *settings_of(const char *folder, const char *name)
{
    char *text = malloc(2 * strlen(folder) + strlen(name) + 64), *at = text;
    if (!text)
        return NULL;
    at += sprintf(at, "dir='%s", folder[0] == '/' ? "" : "./");
    for (; *folder; folder++) {
        if (*folder == '\'')
            *at++ = '\'';
        *at++ = *folder;
    }
    (void)sprintf(at, "'; out='.new-%s'", name);
    return text;
}

/* FOLDER/PREFIX NAME ENDING */
static char *picture_path(const struct picture *picture, const char *prefix, const char *ending)
{
    char name[96];
    (void)snprintf(name, sizeof name, "%s%s%s", prefix, picture->name, ending);
    return tsr_path_join(picture->folder, name);
}

static void forget_picture(struct picture *picture)
{
    free(picture->folder);
    free(picture->script);
    free(picture->settings);
    free(picture->drawn[0]);
    free(picture->drawn[1]);
}

static tsr_status add_picture(struct gallery *gallery, const char *folder, const char *name)
{
    char script[96];
    (void)snprintf(script, sizeof script, "%s.gp", name);
    struct picture picture = {.name = name,
                              .folder = strdup(folder),
                              .script = tsr_path_join(gallery->scripts, script),
                              .settings = settings_of(folder, name)};
    for (int e = 0; e < 2 && picture.folder; e++)
        picture.drawn[e] = picture_path(&picture, ".new-", endings[e]);
    if (picture.folder && picture.script && picture.settings && picture.drawn[0] &&
        picture.drawn[1] && TSR_PUSH(gallery->pictures, gallery->n, gallery->cap, picture))
        return TSR_OK;
    forget_picture(&picture);
    return tsr_fail(TSR_ENOMEM, "no memory left for the pictures");
}

/* The curve of a whole run, where there is one. */
static tsr_status add_run(struct gallery *gallery, const char *folder)
{
    char *data = tsr_path_join(folder, "run-plot.csv");
    if (!data)
        return TSR_ENOMEM;
    tsr_status status = access(data, R_OK) == 0 ? add_picture(gallery, folder, "run") : TSR_OK;
    free(data);
    return status;
}

static tsr_status list_pictures(struct gallery *gallery, const char *dir,
                                const struct tsr_row *rows, size_t n)
{
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        if (rows[i].failure[0])
            continue;
        any = true;
        char name[128];
        tsr__folder_name(rows[i].strategy, name, sizeof name);
        char *folder = tsr_path_join(dir, name), *data = NULL;
        if (folder)
            data = tsr_path_join(folder, "timeline.csv");
        tsr_status status = data ? TSR_OK : TSR_ENOMEM;
        /* A caller may have left out the details of some strategies. */
        if (data && access(data, R_OK) == 0) {
            status = add_picture(gallery, folder, "memory");
            if (status == TSR_OK)
                status = add_picture(gallery, folder, "timeline");
            if (status == TSR_OK)
                status = add_run(gallery, folder);
        }
        free(folder);
        free(data);
        TSR_TRY(status);
    }
    if (!any)
        return TSR_OK;
    TSR_TRY(add_picture(gallery, dir, "compare-time-memory"));
    TSR_TRY(add_picture(gallery, dir, "compare-bars"));
    return add_picture(gallery, dir, "compare-time");
}

/* ---- finding things ----------------------------------------------------------------------- */

static char *find_gnuplot(void)
{
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t n = strcspn(path, ":");
        char folder[4096];
        if (n && n < sizeof folder) {
            memcpy(folder, path, n);
            folder[n] = '\0';
            char *program = tsr_path_join(folder, "gnuplot");
            if (program && access(program, X_OK) == 0)
                return program;
            free(program);
        }
        path += path[n] ? n + 1 : n;
    }
    return NULL;
}

/* The source tree's scripts if they are there (a build that was not installed), else the
 * installed ones. */
static char *find_scripts(void)
{
    static const char *const folders[] = {TSR_SOURCE_DIR "/plots", TSR_DATA_DIR "/plots"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char *style = tsr_path_join(folders[i], "style.gp");
        bool there = style && access(style, R_OK) == 0;
        free(style);
        if (there)
            return strdup(folders[i]);
    }
    return NULL;
}

/* ---- processes ---------------------------------------------------------------------------- */

struct worker {
    pid_t pid;
    FILE *messages; /* what gnuplot says on stderr */
};

_Noreturn static void run_gnuplot(char *const *args, FILE *messages)
{
    int null = open("/dev/null", O_RDWR);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0 ||
        dup2(fileno(messages), STDERR_FILENO) < 0)
        _exit(126);
    execv(args[0], args);
    _exit(127);
}

/* Starts a gnuplot for the pictures first, first + N_WORKERS, ... */
static tsr_status start(const struct gallery *gallery, size_t first, struct worker *worker)
{
    char **args = calloc(3 * gallery->n + 4, sizeof *args);
    char default_settings[] = "-d", execute[] = "-e"; /* exec wants them writable */
    size_t n = 0;
    if (!args)
        return tsr_fail(TSR_ENOMEM, "no memory left for the pictures");
    args[n++] = gallery->gnuplot;
    args[n++] = default_settings;
    for (size_t i = first; i < gallery->n; i += N_WORKERS) {
        args[n++] = execute;
        args[n++] = gallery->pictures[i].settings;
        args[n++] = gallery->pictures[i].script;
    }
    worker->messages = tmpfile();
    worker->pid = worker->messages ? tsr_interrupt_fork() : -1;
    int error = errno;
    if (worker->pid == 0)
        run_gnuplot(args, worker->messages);
    free(args);
    if (worker->pid < 0)
        return tsr_fail(TSR_EBACKEND, "gnuplot cannot be started: %s", strerror(error));
    return TSR_OK;
}

/* The line of gnuplot's complaint that says what is wrong: it begins with the place. */
static tsr_status complain(FILE *messages, int wait_status)
{
    char line[400], found[400] = "";
    rewind(messages);
    while (fgets(line, sizeof line, messages)) {
        line[strcspn(line, "\n")] = '\0';
        if (strstr(line, "line ") || !found[0])
            (void)snprintf(found, sizeof found, "%s", line);
    }
    if (found[0])
        return tsr_fail(TSR_EBACKEND, "gnuplot failed: %s", found);
    return tsr_fail(TSR_EBACKEND, "gnuplot failed with status %d",
                    WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128);
}

static tsr_status finish(struct worker *worker)
{
    int wait_status = 0;
    tsr_status status = TSR_OK;
    while (waitpid(worker->pid, &wait_status, 0) < 0 && errno == EINTR) {
    }
    tsr_interrupt_reaped(worker->pid);
    if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0)
        status = complain(worker->messages, wait_status);
    return status;
}

/* Gives the pictures their names, or removes what a failure left. */
static tsr_status settle(const struct gallery *gallery, bool keep)
{
    tsr_status status = TSR_OK;
    int error = 0;
    for (size_t i = 0; i < gallery->n; i++) {
        for (int e = 0; e < 2; e++) {
            const char *from = gallery->pictures[i].drawn[e];
            char *to = picture_path(&gallery->pictures[i], "", endings[e]);
            if (!to)
                status = TSR_ENOMEM;
            else if (!keep)
                tsr_file_remove(NULL, from);
            else if ((error = tsr_file_rename(NULL, from, to)) != 0)
                status = tsr_fail(TSR_EIO, "%s: cannot be written: %s", to, strerror(error));
            tsr_interrupt_keep(from);
            free(to);
        }
    }
    return status;
}

/* An empty file for gnuplot, which would write through a link and wait for a FIFO. What a killed
 * program left of that name goes. */
static tsr_status claim(const char *path)
{
    struct tsr_folder folder;
    const char *name;
    TSR_TRY(tsr_folder_around(path, &folder, &name));
    enum tsr_kind kind = tsr_kind_of(&folder, name);
    if (kind == TSR_KIND_FILE)
        tsr_file_remove(&folder, name);
    int fd = tsr_file_create(&folder, name);
    tsr_status status = TSR_OK;
    if (fd < 0 && kind != TSR_KIND_FILE && kind != TSR_KIND_NONE)
        status = tsr_fail(TSR_EIO, "%s: cannot be written: %s", path, tsr_kind_text(&folder, name));
    else if (fd < 0)
        status = tsr_fail(TSR_EIO, "%s: cannot be written: %s", path, strerror(errno));
    else
        (void)close(fd);
    tsr_folder_close(&folder);
    return status;
}

static tsr_status draw(const struct gallery *gallery)
{
    struct worker workers[N_WORKERS] = {{-1, NULL}, {-1, NULL}};
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < 2 * gallery->n; i++)
        TSR_TRY(claim(gallery->pictures[i / 2].drawn[i % 2]));
    for (size_t i = 0; i < gallery->n; i++)
        for (int e = 0; e < 2; e++)
            tsr_interrupt_remove(gallery->pictures[i].drawn[e]);
    for (size_t w = 0; w < N_WORKERS && w < gallery->n && status == TSR_OK; w++)
        status = start(gallery, w, &workers[w]);
    for (size_t w = 0; w < N_WORKERS; w++) {
        tsr_status ended = workers[w].pid > 0 ? finish(&workers[w]) : TSR_OK;
        status = status == TSR_OK ? ended : status;
        if (workers[w].messages)
            (void)fclose(workers[w].messages);
    }
    tsr_status settled = settle(gallery, status == TSR_OK);
    return status == TSR_OK ? settled : status;
}

/* ---- the pictures of a folder -------------------------------------------------------------- */

static void open_gallery(struct gallery *gallery, bool *skipped)
{
    *gallery = (struct gallery){.gnuplot = find_gnuplot(), .scripts = find_scripts()};
    *skipped = !gallery->gnuplot || !gallery->scripts;
    if (!gallery->gnuplot)
        tsr_tell("pictures are left out: no gnuplot (package gnuplot-nox); their data is written");
    else if (!gallery->scripts)
        tsr_tell("pictures are left out: no folder of scripts (%s); their data is written",
                 TSR_DATA_DIR "/plots");
}

static void close_gallery(struct gallery *gallery)
{
    for (size_t i = 0; i < gallery->n; i++)
        forget_picture(&gallery->pictures[i]);
    free(gallery->pictures);
    free(gallery->gnuplot);
    free(gallery->scripts);
}

tsr_status tsr_report_plots(const char *dir, const struct tsr_row *rows, size_t n, bool *skipped)
{
    struct gallery gallery;
    tsr_status status = TSR_OK;
    open_gallery(&gallery, skipped);
    if (!*skipped)
        status = list_pictures(&gallery, dir, rows, n);
    if (!*skipped && status == TSR_OK)
        status = draw(&gallery);
    close_gallery(&gallery);
    return status;
}

tsr_status tsr_report_picture(const char *dir, const char *name)
{
    struct gallery gallery;
    bool skipped = false;
    open_gallery(&gallery, &skipped);
    tsr_status status = skipped ? TSR_OK : add_picture(&gallery, dir, name);
    if (!skipped && status == TSR_OK)
        status = draw(&gallery);
    close_gallery(&gallery);
    return status;
}
