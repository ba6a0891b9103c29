/* word.c: words to wait for, by futex on Linux and by short sleeps elsewhere. */
#include "exec/base/word.h"

#include <time.h>

#ifdef __linux__
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { SLEEPER = 1 };

double tsr__now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct timespec timespec_of(double seconds)
{
    time_t whole = (time_t)seconds;
    return (struct timespec){.tv_sec = whole, .tv_nsec = (long)((seconds - (double)whole) * 1e9)};
}

/* Not the private kind of futex: the word may lie in memory that processes share. */
static void wake_all(struct tsr_word *word)
{
#ifdef __linux__
    (void)syscall(SYS_futex, (void *)&word->bits, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
#else
    (void)word;
#endif
}

void tsr__word_set(struct tsr_word *word, uint32_t value)
{
    uint32_t before = atomic_exchange_explicit(&word->bits, value << 1, memory_order_release);
    if (before & SLEEPER)
        wake_all(word);
}

void tsr__word_bump(struct tsr_word *word)
{
    uint32_t before = atomic_load_explicit(&word->bits, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&word->bits, &before,
                                                  (before | SLEEPER) + SLEEPER,
                                                  memory_order_release, memory_order_relaxed)) {
    }
    if (before & SLEEPER)
        wake_all(word);
}

void tsr__word_sleep(struct tsr_word *word, uint32_t old, double seconds)
{
    if (seconds <= 0)
        return;
#ifdef __linux__
    /* The bit is set only while the value is the old one, so no change can be missed. */
    uint32_t expected = old << 1;
    if (!atomic_compare_exchange_strong_explicit(&word->bits, &expected, old << 1 | SLEEPER,
                                                 memory_order_relaxed, memory_order_relaxed) &&
        expected != (old << 1 | SLEEPER))
        return;
    struct timespec t = timespec_of(seconds);
    (void)syscall(SYS_futex, (void *)&word->bits, FUTEX_WAIT, old << 1 | SLEEPER, &t, NULL, 0);
#else
    (void)old;
    struct timespec t = timespec_of(seconds < 50e-6 ? seconds : 50e-6);
    if (atomic_load_explicit(&word->bits, memory_order_relaxed) >> 1 == old)
        (void)nanosleep(&t, NULL);
#endif
}
