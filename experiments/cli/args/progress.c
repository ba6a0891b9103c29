/* progress.c: what a study says while it works, on stderr: remarks as lines, progress as one line
 * that is rewritten in place. NO_COLOR (any value) leaves out colours. */
#include "experiments/cli/args/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/study/base/listener.h"
#include "sim/base/text.h"

enum { WIDTH = 30 };

void tsr_progress_begin(struct tsr_progress *progress, size_t total)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    progress->on = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    progress->color = progress->on && !(no_color && *no_color);
    progress->total = total ? total : 1;
}

void tsr_progress_show(const struct tsr_progress *progress, size_t done, const char *what)
{
    char bar[WIDTH + 1], words[48];
    if (!progress->on)
        return;
    for (size_t i = 0; i < WIDTH; i++)
        bar[i] = i * progress->total < done * WIDTH ? '#' : '.';
    bar[WIDTH] = 0;
    (void)tsr_text_show(words, sizeof words, what);
    fprintf(stderr, "\r\033[K%s[%s]%s %zu/%zu  %s", progress->color ? "\033[36m" : "", bar,
            progress->color ? "\033[0m" : "", done, progress->total, words);
    fflush(stderr);
}

void tsr_progress_end(const struct tsr_progress *progress)
{
    if (!progress->on)
        return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
}

/* One write for the whole line, so that a signal does not cut it and other processes do not mix in.
 */
static void put_note(void *user, const char *text)
{
    char *line = NULL;
    size_t n;
    FILE *out = open_memstream(&line, &n);
    (void)user;
    if (!out)
        return;
    fputs("tessera: ", out);
    tsr_text_put(out, text);
    fputc('\n', out);
    if (fclose(out) == 0)
        fputs(line, stderr);
    free(line);
}

static void put_progress(void *user, size_t done, size_t total, const char *what)
{
    struct tsr_progress bar;
    (void)user;
    tsr_progress_begin(&bar, total);
    if (what)
        tsr_progress_show(&bar, done, what);
    else
        tsr_progress_end(&bar);
}

void tsr_progress_listen(void)
{
    tsr_listen(&(struct tsr_listener){.note = put_note, .progress = put_progress});
}
