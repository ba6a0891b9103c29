/* report_pickle.c: the operations of pickle protocol 4 that a snapshot needs (PEP 3154).
 */
#include "experiments/study/snapshot/report_pickle.h"

#include <string.h>

#include "experiments/study/snapshot/pickle_codes.h"

enum { PROTOCOL = 4 };

static void put(const struct tsr__pickle *pickle, int byte)
{
    (void)fputc(byte, pickle->out);
}

/* The lowest n bytes, the lowest first. */
static void put_bytes(const struct tsr__pickle *pickle, uint64_t value, int n)
{
    for (int i = 0; i < n; i++)
        put(pickle, (int)(value >> 8 * i & 0xff));
}

void tsr__pickle_begin(struct tsr__pickle *pickle, FILE *out)
{
    *pickle = (struct tsr__pickle){.out = out};
    put(pickle, OP_PROTO);
    put(pickle, PROTOCOL);
}

void tsr__pickle_end(struct tsr__pickle *pickle)
{
    put(pickle, OP_STOP);
}

void tsr__pickle_bool(struct tsr__pickle *pickle, bool value)
{
    put(pickle, value ? OP_TRUE : OP_FALSE);
}

/* Bytes that two's complement needs: the sign must be in the highest bit. */
static int signed_bytes(int64_t value)
{
    int n = 8;
    while (n > 1 && value >= -(INT64_C(1) << (8 * n - 9)) && value < INT64_C(1) << (8 * n - 9))
        n--;
    return n;
}

void tsr__pickle_int(struct tsr__pickle *pickle, int64_t value)
{
    if (value >= 0 && value <= UINT8_MAX) {
        put(pickle, OP_UINT8);
        put_bytes(pickle, (uint64_t)value, 1);
    } else if (value >= 0 && value <= UINT16_MAX) {
        put(pickle, OP_UINT16);
        put_bytes(pickle, (uint64_t)value, 2);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        put(pickle, OP_INT32);
        put_bytes(pickle, (uint64_t)value, 4);
    } else {
        int n = signed_bytes(value);
        put(pickle, OP_LONG);
        put(pickle, n);
        put_bytes(pickle, (uint64_t)value, n);
    }
}

void tsr__pickle_real(struct tsr__pickle *pickle, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(pickle, OP_FLOAT);
    for (int i = 7; i >= 0; i--)
        put(pickle, (int)(bits >> 8 * i & 0xff));
}

void tsr__pickle_text(struct tsr__pickle *pickle, const char *text)
{
    size_t n = strlen(text);
    put(pickle, n <= UINT8_MAX ? OP_SHORT_TEXT : OP_TEXT);
    put_bytes(pickle, n, n <= UINT8_MAX ? 1 : 4);
    (void)fwrite(text, 1, n, pickle->out);
}

void tsr__pickle_dict(struct tsr__pickle *pickle)
{
    put(pickle, OP_DICT);
}

void tsr__pickle_list(struct tsr__pickle *pickle)
{
    put(pickle, OP_LIST);
}

void tsr__pickle_set(struct tsr__pickle *pickle)
{
    put(pickle, OP_SET_ITEM);
}

void tsr__pickle_append(struct tsr__pickle *pickle)
{
    put(pickle, OP_APPEND);
}

void tsr__pickle_pair(struct tsr__pickle *pickle)
{
    put(pickle, OP_TUPLE_2);
}

uint32_t tsr__pickle_remember(struct tsr__pickle *pickle)
{
    put(pickle, OP_REMEMBER);
    return pickle->n_remembered++;
}

void tsr__pickle_get(struct tsr__pickle *pickle, uint32_t remembered)
{
    bool is_short = remembered <= UINT8_MAX;
    put(pickle, is_short ? OP_GET : OP_LONG_GET);
    put_bytes(pickle, remembered, is_short ? 1 : 4);
}
