/* base.h: what every file of the engine uses: status codes, error text, dtypes, checked
 * arithmetic, a growable array, an arena, canonical numbers of ids, patterns of names.
 *
 * Errors. A fallible function returns tsr_status; the text of the last failure of this thread is
 * tsr_error_text(). Codes TSR_EVALUE ... TSR_ETYPE are mistakes in what the caller asked for and
 * are named after the exceptions that PyTorch raises in the same place (tsr_status_class()).
 */
#ifndef TSR_ENGINE_BASE_H
#define TSR_ENGINE_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum tsr_status {
    TSR_OK = 0,
    TSR_ENOMEM,       /* the host has no memory left */
    TSR_EIO,          /* a file or pipe failed */
    TSR_ECONFIG,      /* a file, key or option of the user is wrong */
    TSR_EVALUE,       /* ValueError */
    TSR_EASSERT,      /* AssertionError */
    TSR_ERUNTIME,     /* RuntimeError */
    TSR_ENOTIMPL,     /* NotImplementedError */
    TSR_EATTRIBUTE,   /* AttributeError */
    TSR_EINDEX,       /* IndexError */
    TSR_ETYPE,        /* TypeError */
    TSR_EOOM,         /* the modelled or real device has no memory left */
    TSR_EBACKEND,     /* SimGrid, CUDA, NCCL ... failed */
    TSR_EUNSUPPORTED, /* known, and not modelled by this build */
    TSR_EDEFECT,      /* what ran is not what the program says, or the program is wrong */
    TSR_EPEER,        /* another rank is lost, or did not answer in time: a restart may help */
} tsr_status;

#if defined(__GNUC__)
#define TSR_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define TSR_MUST_USE          __attribute__((warn_unused_result))
#else
#define TSR_PRINTF(fmt, args)
#define TSR_MUST_USE
#endif
#ifdef __cplusplus /* device code reads this header, too */
#define TSR_NORETURN [[noreturn]]
#else
#define TSR_NORETURN _Noreturn
#endif

/* Records `fmt` as the error text of this thread and returns `status`. */
tsr_status tsr_fail(tsr_status status, const char *fmt, ...) TSR_PRINTF(2, 3);
/* TSR_ENOMEM: "out of memory", or "out of memory: WHAT" with what it was for (NULL: nothing more).
 */
tsr_status tsr_no_memory(const char *what);
/* Text of the last tsr_fail() of this thread; never NULL. Valid until the next tsr_fail(). */
const char *tsr_error_text(void);
/* "ValueError", "AssertionError", ... ; "Error" for codes that PyTorch does not have. */
const char *tsr_status_class(tsr_status status);

/* Returns the status of a call from the function that it stands in, unless it is TSR_OK. */
#define TSR_TRY(call)                       \
    do {                                    \
        tsr_status tsr_try_status = (call); \
        if (tsr_try_status != TSR_OK)       \
            return tsr_try_status;          \
    } while (0)

/* TSR_TRY where something must be given back first: sets the local variable `status` and, on a
 * failure, jumps to `label`, after which everything is freed in one place. */
#define TSR_GOTO(label, call) \
    do {                      \
        status = (call);      \
        if (status != TSR_OK) \
            goto label;       \
    } while (0)

/* A broken invariant of our own: prints where, and aborts. Never for input of a user. */
#define TSR_CHECK(cond)                                  \
    do {                                                 \
        if (!(cond))                                     \
            tsr_check_failed(#cond, __FILE__, __LINE__); \
    } while (0)
TSR_NORETURN void tsr_check_failed(const char *cond, const char *file, int line);

/* ---- dtypes ---------------------------------------------------------------------------------- */

typedef enum tsr_dtype {
    TSR_DTYPE_NONE = 0, /* "not set" in a policy */
    TSR_F32,
    TSR_BF16,
    TSR_F16,
    TSR_F64,
    TSR_I64,
    TSR_U8,
    TSR_F8, /* e4m3 or e5m2: one byte; operands of matrix products only */
    TSR_N_DTYPES
} tsr_dtype;

unsigned tsr_dtype_bytes(tsr_dtype dtype);   /* bytes of one element; 0 for NONE */
const char *tsr_dtype_name(tsr_dtype dtype); /* "f32" ... ; "none" */
tsr_dtype
tsr_dtype_parse(const char *name);        /* also "fp32", "float32", "bfloat16"; NONE if unknown */
bool tsr_dtype_is_float(tsr_dtype dtype); /* false for NONE */
/* What losses, statistics of rows and norms of gradients are kept in, and what a model's float()
 * makes: f32; of f64, f64 (in PyTorch, too, but for float(): a run in f64 is one that nothing
 * rounds). */
tsr_dtype tsr_dtype_wide(tsr_dtype dtype);

/* ---- arithmetic ------------------------------------------------------------------------------ */

/* b, to: 0 gives 0. tsr_round_up() must fit. */
static inline uint64_t tsr_ceil_div(uint64_t a, uint64_t b)
{
    return b ? a / b + (a % b != 0) : 0;
}
static inline uint64_t tsr_round_up(uint64_t a, uint64_t to)
{
    return tsr_ceil_div(a, to) * to;
}
static inline uint64_t tsr_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
static inline uint64_t tsr_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}
/* False (and *out untouched) when the product or sum does not fit. */
bool tsr_mul_u64(uint64_t a, uint64_t b, uint64_t *out);
bool tsr_add_u64(uint64_t a, uint64_t b, uint64_t *out);

/* 64-bit FNV-1a over bytes; start with TSR_HASH_INIT. */
#define TSR_HASH_INIT UINT64_C(14695981039346656037)
uint64_t tsr_hash_bytes(uint64_t hash, const void *data, size_t n);
/* Mixes one integer into the hash (a multiply and a shift: used once per instruction field). */
static inline uint64_t tsr_hash_u64(uint64_t hash, uint64_t value)
{
    hash ^= value + UINT64_C(0x9e3779b97f4a7c15) + (hash << 6) + (hash >> 2);
    hash *= UINT64_C(0xff51afd7ed558ccd);
    return hash ^ (hash >> 33);
}

/* ---- memory of the host ---------------------------------------------------------------------- */

/* An arena: allocations are freed together. Pointers stay valid until tsr_arena_fini(). */
struct tsr_arena_block;
struct tsr_arena {
    struct tsr_arena_block *head;
    size_t used, size; /* of the head block, bytes */
};
/* Neither fails; an arena of which nothing was taken holds no memory. */
void tsr_arena_init(struct tsr_arena *arena);
void tsr_arena_fini(struct tsr_arena *arena);
/* Zeroed, 16-byte aligned; NULL if out of memory, as below. */
void *tsr_arena_alloc(struct tsr_arena *arena, size_t bytes);
char *tsr_arena_strdup(struct tsr_arena *arena, const char *text);
char *tsr_arena_printf(struct tsr_arena *arena, const char *fmt, ...) TSR_PRINTF(2, 3);

/* Grows *items (n_used items of item_bytes) so that one more fits. False when out of memory. */
bool tsr_grow(void *items_ptr, size_t n_used, size_t *n_cap, size_t item_bytes);
/* Appends `value` to the array (items, n, cap): true on success. */
#define TSR_PUSH(items, n, cap, value) \
    (tsr_grow(&(items), (n), &(cap), sizeof *(items)) ? ((items)[(n)++] = (value), true) : false)

/* ---- canonical numbers ----------------------------------------------------------------------- */

/* Numbers ids by first appearance, so that programs that differ only in the ids of their buffers or
 * events read, hash and print the same. Open addressing; n_slots is a power of two. */
struct tsr_canonical {
    struct tsr_canonical_slot {
        uint32_t id, number; /* number 0: free slot; else 1 + canonical number */
    } * slots;
    uint32_t n_slots, n;
};

/* Begin with {0}. */
void tsr_canonical_fini(struct tsr_canonical *map);
/* False when out of memory. */
bool tsr_canonical_number(struct tsr_canonical *map, uint32_t id, uint32_t *number);

/* ---- patterns of names ----------------------------------------------------------------------- */

/* '*' inside one component of a name with dots, '**' anything, the rest literal. */
bool tsr_glob(const char *pattern, const char *text);

#endif
