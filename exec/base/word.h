/* word.h: a 32-bit word that one side changes and others wait for, between threads or, in shared
 * memory, between processes.
 *
 * Bit 0 says that somebody sleeps; the value is in the 31 bits above it and is written by one
 * thread at a time. A change releases, a wait that ends acquires: that is the only edge between the
 * two.
 */
#ifndef TSR_EXEC_WORD_H
#define TSR_EXEC_WORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct tsr_word {
    _Atomic uint32_t bits;
};

/* Seconds of a clock that never goes back. */
double tsr__now(void);

static inline uint32_t tsr__word_get(struct tsr_word *word)
{
    return atomic_load_explicit(&word->bits, memory_order_acquire) >> 1;
}
/* Sets the value (31 bits) and wakes all who sleep. */
void tsr__word_set(struct tsr_word *word, uint32_t value);
/* Adds one to the value and wakes all who sleep; may be called by several threads. */
void tsr__word_bump(struct tsr_word *word);
/* Sleeps while the value is `old`, for `seconds` at most; may return early for no reason. */
void tsr__word_sleep(struct tsr_word *word, uint32_t old, double seconds);
/* True when `value` is or has passed `target` (31-bit numbers on a circle); 0 has passed nothing.
 */
static inline bool tsr__word_reached(uint32_t value, uint32_t target)
{
    return value != 0 && ((value - target) & UINT32_C(0x7fffffff)) < UINT32_C(0x40000000);
}

#endif
