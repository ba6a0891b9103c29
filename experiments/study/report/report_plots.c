/* report_plots.c: draws the pictures of a comparison with gnuplot and the scripts in plots/.
 *
 * Two children of a pool become gnuplots, which share the pictures (starting one costs as much as
 * drawing one). A picture is drawn under a temporary name and gets its own when all gnuplots are
 * content. gnuplot is run without a shell; missing, it is no error.
 */
#include "experiments/study/base/files.h"
#include "experiments/study/base/listener.h"
#include "experiments/study/base/paths.h"
#include "experiments/study/base/pool.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_WORKERS = 2 };
static const char *const endings[] = {".svg", ".png"};

/* One picture: the script draws both files of it. */
struct picture {
    char *script, *settings;     /* settings: what -e gets */
    struct tsr_outfile drawn[2]; /* by `endings`; gnuplot writes them */
};

struct gallery {
    struct picture *pictures;
    size_t n, cap, n_endings;
    char *gnuplot, *scripts; /* the program; the folder of the scripts */
};

/* ---- strings ------------------------------------------------------------------------------ */

/* Returns what -e of gnuplot gets, dir="FOLDER"; out='.new-NAME' and `more`, which the caller
 * frees; NULL when out of memory. A folder whose name begins with '<' would be a command to
 * gnuplot. */
static char *settings_of(const char *folder, const char *name, const char *more, size_t n_endings)
{
    char *path = folder[0] == '/' ? strdup(folder) : tsr_path_join(".", folder), *text = NULL;
    size_t n = 0;
    FILE *stream = path ? open_memstream(&text, &n) : NULL;
    if (stream) {
        fputs("dir=", stream);
        tsr__put_gnuplot(stream, path);
        fprintf(stream, "; out='.new-%s'; formats='%s'%s", name, n_endings > 1 ? "svg png" : "svg",
                more);
    }
    free(path);
    if (stream && fclose(stream) == 0)
        return text;
    free(text);
    return NULL;
}

/* FOLDER/NAME ENDING, which gnuplot writes as FOLDER/.new-NAME ENDING. */
static tsr_status expect(const char *folder, const char *name, const char *ending,
                         struct tsr_outfile *out)
{
    char whole[96], drawn[112];
    (void)snprintf(whole, sizeof whole, "%s%s", name, ending);
    (void)snprintf(drawn, sizeof drawn, ".new-%s", whole);
    return tsr_outfile_expect(folder, whole, drawn, out);
}

static void forget_picture(struct picture *picture)
{
    free(picture->script);
    free(picture->settings);
    for (int e = 0; e < 2; e++)
        tsr_outfile_abort(&picture->drawn[e]);
}

/* FOLDER/NAME by a script of another name, which `more` settings tell what to draw. */
static tsr_status add_drawn_by(struct gallery *gallery, const char *folder, const char *name,
                               const char *script, const char *more)
{
    struct picture picture = {.script = tsr_path_join(gallery->scripts, script),
                              .settings = settings_of(folder, name, more, gallery->n_endings)};
    tsr_status status = TSR_OK;
    for (size_t e = 0; e < gallery->n_endings; e++)
        TSR_GOTO(failed, expect(folder, name, endings[e], &picture.drawn[e]));
    if (picture.script && picture.settings &&
        TSR_PUSH(gallery->pictures, gallery->n, gallery->cap, picture))
        return TSR_OK;
    status = tsr_fail(TSR_ENOMEM, "no memory left for the pictures");
failed:
    forget_picture(&picture);
    return status;
}

static tsr_status add_picture(struct gallery *gallery, const char *folder, const char *name)
{
    char script[96];
    (void)snprintf(script, sizeof script, "%s.gp", name);
    return add_drawn_by(gallery, folder, name, script, "");
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

static tsr_status add_strategy(struct gallery *gallery, const char *dir, const char *strategy)
{
    char name[128];
    tsr__folder_name(strategy, name, sizeof name);
    char *folder = tsr_path_join(dir, name);
    char *data = folder ? tsr_path_join(folder, "timeline.csv") : NULL;
    tsr_status status = data ? TSR_OK : TSR_ENOMEM;
    /* A caller may have left out the details of some strategies. */
    if (!data || access(data, R_OK) != 0)
        goto done;
    TSR_GOTO(done, add_picture(gallery, folder, "memory"));
    TSR_GOTO(done, add_picture(gallery, folder, "timeline"));
    TSR_GOTO(done, add_run(gallery, folder));
done:
    free(folder);
    free(data);
    return status;
}

static tsr_status list_pictures(struct gallery *gallery, const char *dir,
                                const struct tsr_row *rows, size_t n)
{
    bool any = false, mixed = tsr__is_mixed(rows, n);
    for (size_t i = 0; i < n; i++) {
        if (rows[i].failure[0])
            continue;
        any = any || !mixed || !rows[i].measured;
        TSR_TRY(add_strategy(gallery, dir, rows[i].strategy));
    }
    if (mixed)
        TSR_TRY(
            add_drawn_by(gallery, dir, "measured-time", "compare-time.gp", "; rows='measured'"));
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

/* The scripts beside the program, the source tree's (a build that was not installed), or the
 * installed ones. */
static char *find_scripts(void)
{
    char beside[TSR_FILE_BYTES] = "";
    const char *const folders[] = {beside, TSR_SOURCE_DIR "/plots", TSR_DATA_DIR "/plots"};
    (void)tsr_data_beside_program("plots", beside);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char *style = *folders[i] ? tsr_path_join(folders[i], "style.gp") : NULL;
        bool there = style && access(style, R_OK) == 0;
        free(style);
        if (there)
            return strdup(folders[i]);
    }
    return NULL;
}

/* ---- processes ---------------------------------------------------------------------------- */

/* What one gnuplot is started with, how it ended, and what it said meanwhile. */
struct worker {
    char **args;
    char default_settings[4], execute[4]; /* options; execv() wants them writable */
    FILE *messages;
    char end[TSR_POOL_END_BYTES];
};

/* The pictures first, first + step, ... */
static tsr_status prepare(const struct gallery *gallery, size_t first, size_t step,
                          struct worker *worker)
{
    size_t n = 0;
    worker->args = calloc(3 * gallery->n + 4, sizeof *worker->args);
    if (!worker->args)
        return tsr_fail(TSR_ENOMEM, "no memory left for the pictures");
    worker->args[n++] = gallery->gnuplot;
    worker->args[n++] = strcpy(worker->default_settings, "-d");
    for (size_t i = first; i < gallery->n; i += step) {
        worker->args[n++] = strcpy(worker->execute, "-e");
        worker->args[n++] = gallery->pictures[i].settings;
        worker->args[n++] = gallery->pictures[i].script;
    }
    worker->messages = tmpfile();
    if (!worker->messages)
        return tsr_fail(TSR_EBACKEND, "gnuplot cannot be started: %s", strerror(errno));
    return TSR_OK;
}

/* In the child, which becomes gnuplot: it ends with gnuplot's status and without a result. */
static void become_gnuplot(void *user, size_t item, void *result)
{
    const struct worker *worker = (const struct worker *)user + item;
    int null = open("/dev/null", O_RDWR);
    (void)result;
    if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0 ||
        dup2(fileno(worker->messages), STDERR_FILENO) < 0)
        _exit(126);
    execv(worker->args[0], worker->args);
    _exit(127);
}

/* Only noted: the other gnuplot draws to its end. */
static tsr_status note_end(void *user, size_t item, const void *result, const char *end)
{
    struct worker *worker = (struct worker *)user + item;
    (void)result;
    (void)snprintf(worker->end, sizeof worker->end, "%s", end ? end : "");
    return TSR_OK;
}

static bool has_failed(const struct worker *worker)
{
    return strcmp(worker->end, "status 0") != 0;
}

/* The line of gnuplot's complaint that says what is wrong: it begins with the place. */
static void complaint(const struct worker *worker, char *out, size_t size)
{
    char line[400], found[400] = "";
    int number = 128; /* a signal's, as a shell has it */
    rewind(worker->messages);
    while (fgets(line, sizeof line, worker->messages)) {
        line[strcspn(line, "\n")] = '\0';
        if (strstr(line, "line ") || !found[0])
            (void)snprintf(found, sizeof found, "%s", line);
    }
    (void)sscanf(worker->end, "status %d", &number);
    if (found[0])
        (void)snprintf(out, size, "gnuplot failed: %s", found);
    else
        (void)snprintf(out, size, "gnuplot failed with status %d", number);
}

static tsr_status run_workers(struct worker *workers, size_t n)
{
    struct tsr_pool_work work = {
        .n = n, .result_bytes = 1, .user = workers, .run = become_gnuplot, .take = note_end};
    if (tsr_pool_each(&work, n) != TSR_OK)
        return tsr_fail(TSR_EBACKEND, "gnuplot cannot be started: %s", tsr_error_text());
    return TSR_OK;
}

static void close_worker(struct worker *worker)
{
    if (worker->messages)
        (void)fclose(worker->messages);
    free(worker->args);
    *worker = (struct worker){0};
}

/* Gives the pictures their names. What a failure leaves goes with the gallery. */
static tsr_status settle(const struct gallery *gallery)
{
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < gallery->n; i++) {
        for (size_t e = 0; e < gallery->n_endings; e++) {
            tsr_status named = tsr_outfile_commit(&gallery->pictures[i].drawn[e]);
            status = named == TSR_OK ? status : named;
        }
    }
    return status;
}

/* What pictures failed, for the one line at the end. */
struct failures {
    size_t n;
    char first[512];
};

/* One picture by a gnuplot of its own. If that fails, nothing of it stays. */
static tsr_status draw_alone(const struct gallery *gallery, size_t i, struct failures *failures)
{
    struct worker worker = {0};
    tsr_status status;
    TSR_GOTO(done, prepare(gallery, i, gallery->n, &worker));
    TSR_GOTO(done, run_workers(&worker, 1));
    if (has_failed(&worker)) {
        if (!failures->n++)
            complaint(&worker, failures->first, sizeof failures->first);
        for (size_t e = 0; e < gallery->n_endings; e++)
            tsr_outfile_abort(&gallery->pictures[i].drawn[e]);
    }
done:
    close_worker(&worker);
    return status;
}

/* A gnuplot that fails draws nothing more: its pictures are drawn again, each alone, so that one
 * takes no other with it. */
static tsr_status draw_all(const struct gallery *gallery, struct worker *workers, size_t n,
                           struct failures *failures)
{
    for (size_t w = 0; w < n; w++)
        TSR_TRY(prepare(gallery, w, N_WORKERS, &workers[w]));
    TSR_TRY(run_workers(workers, n));
    for (size_t w = 0; w < n; w++)
        for (size_t i = w; has_failed(&workers[w]) && i < gallery->n; i += N_WORKERS)
            TSR_TRY(draw_alone(gallery, i, failures));
    return settle(gallery);
}

static tsr_status draw(const struct gallery *gallery)
{
    struct worker workers[N_WORKERS] = {{0}};
    struct failures failures = {0};
    size_t n = gallery->n < N_WORKERS ? gallery->n : N_WORKERS;
    tsr_status status = draw_all(gallery, workers, n, &failures);
    for (size_t w = 0; w < n; w++)
        close_worker(&workers[w]);
    if (status == TSR_OK && failures.n)
        status = tsr_fail(TSR_EBACKEND, "%s (%zu of %zu pictures failed; the others are drawn)",
                          failures.first, failures.n, gallery->n);
    return status;
}

/* ---- the pictures of a folder -------------------------------------------------------------- */

static void open_gallery(struct gallery *gallery, enum tsr_pictures pictures, bool *skipped)
{
    *gallery = (struct gallery){.n_endings = pictures == TSR_PICTURES_SVG ? 1 : 2};
    *skipped = pictures == TSR_PICTURES_NONE;
    if (*skipped)
        return;
    gallery->gnuplot = find_gnuplot();
    gallery->scripts = find_scripts();
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

tsr_status tsr_report_plots(const char *dir, const struct tsr_row *rows, size_t n,
                            enum tsr_pictures pictures, bool *skipped)
{
    struct gallery gallery;
    tsr_status status = TSR_OK;
    open_gallery(&gallery, pictures, skipped);
    if (*skipped)
        goto done;
    TSR_GOTO(done, list_pictures(&gallery, dir, rows, n));
    status = draw(&gallery);
done:
    close_gallery(&gallery);
    return status;
}

tsr_status tsr_report_picture(const char *dir, const char *name)
{
    struct gallery gallery;
    bool skipped = false;
    open_gallery(&gallery, TSR_PICTURES_ALL, &skipped);
    tsr_status status = skipped ? TSR_OK : add_picture(&gallery, dir, name);
    if (!skipped && status == TSR_OK)
        status = draw(&gallery);
    close_gallery(&gallery);
    return status;
}
