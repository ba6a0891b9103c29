/* sha256.h: SHA-256 (FIPS 180-4), of data that comes in pieces. */
#ifndef TSR_BASE_SHA256_H
#define TSR_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { TSR_SHA256_BYTES = 32, TSR_SHA256_BLOCK = 64 };

struct tsr_sha256 {
    uint32_t state[8];
    uint64_t bytes;
    unsigned char block[TSR_SHA256_BLOCK];
};

struct tsr_sha256 tsr_sha256_begin(void);
void tsr_sha256_add(struct tsr_sha256 *sha, const void *data, size_t bytes);
void tsr_sha256_end(struct tsr_sha256 *sha, unsigned char out[TSR_SHA256_BYTES]);

#endif
