/* listener.c: keeps the one listener of the process and passes on what is said. */
#include "experiments/study/base/listener.h"

#include <stdarg.h>
#include <stdio.h>

enum { NOTE_BYTES = 1024 };

static struct tsr_listener now;

void tsr_listen(const struct tsr_listener *listener)
{
    now = listener ? *listener : (struct tsr_listener){0};
}

void tsr_tell(const char *format, ...)
{
    char text[NOTE_BYTES];
    va_list args;
    if (!now.note)
        return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    now.note(now.user, text);
}

void tsr_tell_progress(size_t done, size_t total, const char *what)
{
    if (now.progress)
        now.progress(now.user, done, total ? total : 1, what);
}
