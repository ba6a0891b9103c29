/* mac.h: how two processes show each other that they know the same secret: SHA-256 (FIPS 180-4),
 * HMAC (RFC 2104), random bytes, and a comparison that takes as long for every wrong answer.
 */
#ifndef TSR_EXEC_MAC_H
#define TSR_EXEC_MAC_H

#include <stdbool.h>
#include <stddef.h>

enum { TSR_MAC_BYTES = 32 };

/* What is hashed comes in two parts, of which either may be empty. */
void tsr__sha256(const void *first, size_t first_bytes, const void *second, size_t second_bytes,
                 unsigned char out[TSR_MAC_BYTES]);
/* HMAC-SHA-256 of a message of two parts. */
void tsr__hmac(const void *key, size_t key_bytes, const void *first, size_t first_bytes,
               const void *second, size_t second_bytes, unsigned char out[TSR_MAC_BYTES]);
/* In constant time. */
bool tsr__same_bytes(const void *a, const void *b, size_t bytes);
/* From the kernel's generator; false: there is none. */
bool tsr__random_bytes(void *out, size_t bytes);

#endif
