/* listener.c: keeps the one listener of the process and passes on what is said. */
#include "experiments/study/base/listener.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/program/base.h"

enum { NOTE_BYTES = 1024, MAX_ONCE = 64 };

/* The listener, and hashes of what it was told by tsr_tell_once(): at most MAX_ONCE, after which
 * such texts are dropped. */
static struct {
    struct tsr_listener listener;
    uint64_t once[MAX_ONCE];
    size_t n_once;
} now;

void tsr_listen(const struct tsr_listener *listener)
{
    now.listener = listener ? *listener : (struct tsr_listener){0};
    now.n_once = 0;
}

static void tell(const char *text)
{
    now.listener.note(now.listener.user, text);
}

/* Returns true if `text` was told before or cannot be remembered any more. */
static bool is_told(const char *text)
{
    uint64_t hash = tsr_hash_bytes(TSR_HASH_INIT, text, strlen(text));
    for (size_t i = 0; i < now.n_once; i++)
        if (now.once[i] == hash)
            return true;
    if (now.n_once == MAX_ONCE)
        return true;
    now.once[now.n_once++] = hash;
    return false;
}

void tsr_tell(const char *format, ...)
{
    char text[NOTE_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (now.listener.note)
        tell(text);
}

void tsr_tell_once(const char *format, ...)
{
    char text[NOTE_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (now.listener.note && !is_told(text))
        tell(text);
}

void tsr_tell_progress(size_t done, size_t total, const char *what)
{
    if (now.listener.progress)
        now.listener.progress(now.listener.user, done, total ? total : 1, what);
}
