/* mac.c: HMAC, random bytes. A handful of calls when a job starts: clarity over speed. */
#include "exec/base/mac.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "sim/base/sha256.h"

enum { BLOCK = TSR_SHA256_BLOCK };

void tsr__sha256(const void *first, size_t first_bytes, const void *second, size_t second_bytes,
                 unsigned char out[TSR_MAC_BYTES])
{
    struct tsr_sha256 sha = tsr_sha256_begin();
    tsr_sha256_add(&sha, first, first_bytes);
    tsr_sha256_add(&sha, second, second_bytes);
    tsr_sha256_end(&sha, out);
}

void tsr__hmac(const void *key, size_t key_bytes, const void *first, size_t first_bytes,
               const void *second, size_t second_bytes, unsigned char out[TSR_MAC_BYTES])
{
    unsigned char pad[BLOCK] = {0}, inner[TSR_MAC_BYTES];
    if (key_bytes > BLOCK)
        tsr__sha256(key, key_bytes, NULL, 0, pad);
    else if (key_bytes)
        memcpy(pad, key, key_bytes);
    for (int i = 0; i < BLOCK; i++)
        pad[i] ^= 0x36;
    struct tsr_sha256 sha = tsr_sha256_begin();
    tsr_sha256_add(&sha, pad, BLOCK);
    tsr_sha256_add(&sha, first, first_bytes);
    tsr_sha256_add(&sha, second, second_bytes);
    tsr_sha256_end(&sha, inner);
    for (int i = 0; i < BLOCK; i++)
        pad[i] ^= 0x36 ^ 0x5c;
    tsr__sha256(pad, BLOCK, inner, sizeof inner, out);
}

bool tsr__same_bytes(const void *a, const void *b, size_t bytes)
{
    const volatile unsigned char *x = a, *y = b;
    unsigned char differs = 0;
    for (size_t i = 0; i < bytes; i++)
        differs |= x[i] ^ y[i];
    return differs == 0;
}

bool tsr__random_bytes(void *out, size_t bytes)
{
    char *at = out;
    while (bytes) {
        ssize_t n = getrandom(at, bytes, 0);
        if (n < 0 && errno != EINTR)
            return false;
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        }
    }
    return true;
}
