/* base.c: error text, dtypes, checked arithmetic, hashing, arrays, arenas, canonical numbers, and
 * patterns of names.
 */
#include "engine/program/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---------------------------------------------------------------------------------- */

enum { ERROR_TEXT_BYTES = 1024 };

/* The only state outside of objects: each thread has its own. */
static _Thread_local char error_text[ERROR_TEXT_BYTES];

tsr_status tsr_fail(tsr_status status, const char *fmt, ...)
{
    /* Formatted aside first, since an argument may be the text of the error before. */
    char text[ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n < 0)
        text[0] = '\0';
    memcpy(error_text, text, sizeof text);
    return status;
}

tsr_status tsr_no_memory(const char *what)
{
    return tsr_fail(TSR_ENOMEM, "out of memory%s%s", what ? ": " : "", what ? what : "");
}

const char *tsr_error_text(void)
{
    return error_text;
}

const char *tsr_status_class(tsr_status status)
{
    switch (status) {
    case TSR_EVALUE:
        return "ValueError";
    case TSR_EASSERT:
        return "AssertionError";
    case TSR_ERUNTIME:
        return "RuntimeError";
    case TSR_ENOTIMPL:
        return "NotImplementedError";
    case TSR_EATTRIBUTE:
        return "AttributeError";
    case TSR_EINDEX:
        return "IndexError";
    case TSR_ETYPE:
        return "TypeError";
    case TSR_EOOM:
        return "OutOfMemoryError";
    default:
        return "Error";
    }
}

void tsr_check_failed(const char *cond, const char *file, int line)
{
    fprintf(stderr, "tessera: broken invariant at %s:%d: %s\n", file, line, cond);
    abort();
}

/* ---- dtypes ---------------------------------------------------------------------------------- */

static const struct dtype_info {
    const char *name;
    const char *aliases[3]; /* other spellings that tsr_dtype_parse() takes */
    unsigned bytes;
    bool is_float;
} dtypes[TSR_N_DTYPES] = {
    [TSR_DTYPE_NONE] = {"none", {NULL}, 0, false},
    [TSR_F32] = {"f32", {"fp32", "float32", "float"}, 4, true},
    [TSR_BF16] = {"bf16", {"bfloat16", NULL}, 2, true},
    [TSR_F16] = {"f16", {"fp16", "float16", "half"}, 2, true},
    [TSR_F64] = {"f64", {"fp64", "float64", "double"}, 8, true},
    [TSR_I64] = {"i64", {"int64", "long", NULL}, 8, false},
    [TSR_U8] = {"u8", {"uint8", NULL}, 1, false},
    [TSR_F8] = {"f8", {"fp8", "float8", NULL}, 1, true},
};

static const struct dtype_info *dtype_info(tsr_dtype dtype)
{
    bool known = (unsigned)dtype < TSR_N_DTYPES;
    return &dtypes[known ? dtype : TSR_DTYPE_NONE];
}

unsigned tsr_dtype_bytes(tsr_dtype dtype)
{
    return dtype_info(dtype)->bytes;
}

const char *tsr_dtype_name(tsr_dtype dtype)
{
    return dtype_info(dtype)->name;
}

bool tsr_dtype_is_float(tsr_dtype dtype)
{
    return dtype_info(dtype)->is_float;
}

tsr_dtype tsr_dtype_wide(tsr_dtype dtype)
{
    return dtype == TSR_F64 ? TSR_F64 : TSR_F32;
}

tsr_dtype tsr_dtype_parse(const char *name)
{
    for (int d = TSR_DTYPE_NONE + 1; name && d < TSR_N_DTYPES; d++) {
        if (strcmp(name, dtypes[d].name) == 0)
            return (tsr_dtype)d;
        for (int a = 0; a < 3 && dtypes[d].aliases[a]; a++)
            if (strcmp(name, dtypes[d].aliases[a]) == 0)
                return (tsr_dtype)d;
    }
    return TSR_DTYPE_NONE;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

bool tsr_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    if (b && a > UINT64_MAX / b)
        return false;
    *out = a * b;
    return true;
}

bool tsr_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    if (a > UINT64_MAX - b)
        return false;
    *out = a + b;
    return true;
}

uint64_t tsr_hash_bytes(uint64_t hash, const void *data, size_t n)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return hash;
}

/* ---- memory of the host ---------------------------------------------------------------------- */

enum { ARENA_ALIGN = 16, ARENA_FIRST_BLOCK = 16 * 1024, ARENA_LARGEST_BLOCK = 4 * 1024 * 1024 };

struct tsr_arena_block {
    struct tsr_arena_block *next;
    /* Keeps the data behind the header at the arena's alignment. */
    char pad[ARENA_ALIGN - sizeof(struct tsr_arena_block *) % ARENA_ALIGN];
};

void tsr_arena_init(struct tsr_arena *arena)
{
    *arena = (struct tsr_arena){0};
}

void tsr_arena_fini(struct tsr_arena *arena)
{
    for (struct tsr_arena_block *block = arena->head, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    tsr_arena_init(arena);
}

/* A request that does not fit a usual block gets one of its own behind the head, so that the room
 * left in the head is not lost. */
static void *arena_alloc_own_block(struct tsr_arena *arena, size_t bytes)
{
    struct tsr_arena_block *block = calloc(1, sizeof *block + bytes);
    if (!block)
        return NULL;
    if (arena->head) {
        block->next = arena->head->next;
        arena->head->next = block;
    } else {
        arena->head = block;
        arena->used = arena->size = bytes;
    }
    return block + 1;
}

void *tsr_arena_alloc(struct tsr_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = bytes ? (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN : ARENA_ALIGN;
    if (arena->size - arena->used < bytes) {
        size_t size = arena->size < ARENA_FIRST_BLOCK / 2 ? ARENA_FIRST_BLOCK : arena->size * 2;
        size = size < ARENA_LARGEST_BLOCK ? size : ARENA_LARGEST_BLOCK;
        if (bytes > size / 4)
            return arena_alloc_own_block(arena, bytes);
        struct tsr_arena_block *block = calloc(1, sizeof *block + size);
        if (!block)
            return NULL;
        block->next = arena->head;
        *arena = (struct tsr_arena){.head = block, .size = size};
    }
    void *data = (char *)(arena->head + 1) + arena->used;
    arena->used += bytes;
    return data;
}

char *tsr_arena_strdup(struct tsr_arena *arena, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = tsr_arena_alloc(arena, bytes);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

char *tsr_arena_printf(struct tsr_arena *arena, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    char *text = n < 0 ? NULL : tsr_arena_alloc(arena, (size_t)n + 1);
    if (text)
        (void)vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(args);
    return text;
}

bool tsr_grow(void *items_ptr, size_t n_used, size_t *n_cap, size_t item_bytes)
{
    if (n_used < *n_cap)
        return true;
    size_t cap = *n_cap ? *n_cap : 8;
    while (cap <= n_used) {
        if (cap > SIZE_MAX / 2)
            return false;
        cap *= 2;
    }
    if (item_bytes == 0 || cap > SIZE_MAX / item_bytes)
        return false;
    /* The caller's pointer may be of any object type: it is read and written as bytes. */
    void *items;
    memcpy(&items, items_ptr, sizeof items);
    items = realloc(items, cap * item_bytes);
    if (!items)
        return false;
    memcpy(items_ptr, &items, sizeof items);
    *n_cap = cap;
    return true;
}

/* ---- canonical numbers ----------------------------------------------------------------------- */

void tsr_canonical_fini(struct tsr_canonical *map)
{
    free(map->slots);
    *map = (struct tsr_canonical){0};
}

static struct tsr_canonical_slot *canonical_find(const struct tsr_canonical *map, uint32_t id)
{
    uint32_t i = (id * UINT32_C(2654435769)) & (map->n_slots - 1);
    while (map->slots[i].number && map->slots[i].id != id)
        i = (i + 1) & (map->n_slots - 1);
    return &map->slots[i];
}

static bool canonical_grow(struct tsr_canonical *map)
{
    struct tsr_canonical bigger = {.n_slots = map->n_slots ? map->n_slots * 2 : 1024, .n = map->n};
    bigger.slots = calloc(bigger.n_slots, sizeof *bigger.slots);
    if (!bigger.slots)
        return false;
    for (uint32_t i = 0; i < map->n_slots; i++)
        if (map->slots[i].number)
            *canonical_find(&bigger, map->slots[i].id) = map->slots[i];
    free(map->slots);
    *map = bigger;
    return true;
}

bool tsr_canonical_number(struct tsr_canonical *map, uint32_t id, uint32_t *number)
{
    if (map->n >= map->n_slots / 2 && !canonical_grow(map))
        return false;
    struct tsr_canonical_slot *slot = canonical_find(map, id);
    if (!slot->number) {
        slot->id = id;
        slot->number = ++map->n;
    }
    *number = slot->number - 1;
    return true;
}

/* ---- patterns of names ----------------------------------------------------------------------- */

bool tsr_glob(const char *pattern, const char *text)
{
    if (pattern[0] == '*' && pattern[1] == '*') {
        for (;; text++) {
            if (tsr_glob(pattern + 2, text))
                return true;
            if (!*text)
                return false;
        }
    }
    if (pattern[0] == '*') {
        for (;; text++) {
            if (tsr_glob(pattern + 1, text))
                return true;
            if (!*text || *text == '.')
                return false;
        }
    }
    if (!*pattern)
        return !*text;
    return *pattern == *text && tsr_glob(pattern + 1, text + 1);
}
