/* team_real.h: template of team.h. */
#include "exec/kernels/tensor/real.h"

/* ---- packs: TSR_BLOCK elements in registers ---------------------------------------------------
 */
/* Whole packs of f32 arithmetic are read and written here; what is short, torn or in f64 elsewhere,
 * so that there is little code of it. */

struct TSR_R(tsr_pack) {
    TSR_REAL v[TSR_BLOCK];
};

TSR_OUTLINE struct TSR_R(tsr_pack)
    TSR_R(tsr_pack_load_any)(const struct tsr_elems *e, uint64_t at, unsigned n)
{
    struct TSR_R(tsr_pack) pack;
    TSR_R(tsr_load)(e, at, n, pack.v);
    return pack;
}

TSR_OUTLINE void TSR_R(tsr_pack_store_any)(const struct tsr_elems *e, uint64_t at, unsigned n,
                                           struct TSR_R(tsr_pack) pack)
{
    TSR_R(tsr_store)(e, at, n, pack.v);
}

/* Where a pack lies that whole words reach; NULL: elsewhere. */
TSR_DEVICE unsigned char *TSR_R(tsr_pack_words)(const struct tsr_elems *e, uint64_t at, unsigned n)
{
    if (n == TSR_WHOLE_PACK)
        return e->data + e->item * at;
    if (TSR_REAL_F64 || e->dtype == TSR_F64)
        return NULL;
    unsigned char *p = tsr_elems_together(e, at, n);
    return p && tsr_are_words(e, p, n) ? p : NULL;
}

/* Elements as they come from memory: between fetching and opening a pack, others are fetched, so
 * that a thread waits for all of them at once. */
struct TSR_R(tsr_fetched) {
#if TSR_REAL_F64
    TSR_REAL v[TSR_BLOCK];
#else
    uint32_t words[8];
    unsigned dtype;
#endif
};

/* Elements [at, at + n), zeros behind. */
TSR_DEVICE struct TSR_R(tsr_fetched)
    TSR_R(tsr_pack_fetch)(const struct tsr_elems *e, uint64_t at, unsigned n)
{
    struct TSR_R(tsr_fetched) f;
#if TSR_REAL_F64
    struct TSR_R(tsr_pack) pack = TSR_R(tsr_pack_load_any)(e, at, n);
    for (unsigned i = 0; i < TSR_BLOCK; i++)
        f.v[i] = pack.v[i];
#else
    const unsigned char *p = tsr_pack_words_f32(e, at, n);
    bool words = n == TSR_WHOLE_PACK || p; /* the first for the compiler */
    f.dtype = words ? e->dtype : TSR_F32;
    if (words) {
        tsr_get_words(p, f.words);
        if (f.dtype == TSR_F32)
            tsr_get_words(p + 16, f.words + 4);
    } else {
        struct tsr_pack_f32 pack = tsr_pack_load_any_f32(e, at, n);
        for (unsigned i = 0; i < TSR_BLOCK; i++)
            f.words[i] = tsr_float_bits(pack.v[i]);
    }
#endif
    return f;
}

TSR_DEVICE void TSR_R(tsr_pack_open)(const struct TSR_R(tsr_fetched) * f, TSR_REAL *x)
{
#if TSR_REAL_F64
    for (unsigned i = 0; i < TSR_BLOCK; i++)
        x[i] = f->v[i];
#else
    if (f->dtype == TSR_F32)
        for (unsigned i = 0; i < TSR_BLOCK; i++)
            x[i] = tsr_bits_float(f->words[i]);
    else if (f->dtype == TSR_BF16)
        for (unsigned i = 0; i < TSR_BLOCK / 2; i++) {
            x[2 * i] = tsr_bits_float(f->words[i] << 16);
            x[2 * i + 1] = tsr_bits_float(f->words[i] & UINT32_C(0xffff0000));
        }
    else
        for (unsigned i = 0; i < TSR_BLOCK / 2; i++) {
            x[2 * i] = tsr_from_f16((uint16_t)f->words[i]);
            x[2 * i + 1] = tsr_from_f16((uint16_t)(f->words[i] >> 16));
        }
#endif
}

TSR_DEVICE void TSR_R(tsr_pack_load)(const struct tsr_elems *e, uint64_t at, unsigned n,
                                     TSR_REAL *x)
{
    struct TSR_R(tsr_fetched) f = TSR_R(tsr_pack_fetch)(e, at, n);
    TSR_R(tsr_pack_open)(&f, x);
}

#if !TSR_REAL_F64
/* Whole packs of 16 bits: a thread may have several on their way in few registers. */
enum { TSR_AHEAD = 4 };

TSR_DEVICE bool tsr_is_narrow(const struct tsr_elems *e, bool whole)
{
    return whole && e->item == 2;
}

TSR_DEVICE void tsr_narrow_open(const uint32_t *words, unsigned dtype, float *x)
{
    struct tsr_fetched_f32 f;
    f.dtype = dtype == TSR_BF16 ? TSR_BF16 : TSR_F16;
    for (unsigned i = 0; i < 4; i++)
        f.words[i] = words[i];
    tsr_pack_open_f32(&f, x);
}
#endif

/* Two packs that are waited for together. */
TSR_DEVICE void TSR_R(tsr_pack_load_two)(const struct tsr_elems *a, const struct tsr_elems *b,
                                         uint64_t at, unsigned n, TSR_REAL *x, TSR_REAL *y)
{
    struct TSR_R(tsr_fetched) of_a = TSR_R(tsr_pack_fetch)(a, at, n);
    struct TSR_R(tsr_fetched) of_b = TSR_R(tsr_pack_fetch)(b, at, n);
    TSR_R(tsr_pack_open)(&of_a, x);
    TSR_R(tsr_pack_open)(&of_b, y);
}

TSR_DEVICE void TSR_R(tsr_pack_store)(const struct tsr_elems *e, uint64_t at, unsigned n,
                                      const TSR_REAL *x)
{
    unsigned char *p = TSR_R(tsr_pack_words)(e, at, n);
    if (n == TSR_WHOLE_PACK || p) {
        TSR_R(tsr_store_words)(p, e->dtype, x);
        return;
    }
    struct TSR_R(tsr_pack) pack;
    for (unsigned i = 0; i < TSR_BLOCK; i++)
        pack.v[i] = x[i];
    TSR_R(tsr_pack_store_any)(e, at, n, pack);
}

/* As they are when they have been stored as e's dtype. */
TSR_DEVICE void TSR_R(tsr_pack_round)(const struct tsr_elems *e, TSR_REAL *x)
{
    for (unsigned i = 0; i < TSR_BLOCK; i++) {
        if (e->dtype == TSR_BF16)
            x[i] = (TSR_REAL)tsr_from_bf16(tsr_to_bf16(TSR_R(tsr_to_narrow)(x[i])));
        else if (e->dtype == TSR_F16)
            x[i] = (TSR_REAL)tsr_from_f16(tsr_to_f16(TSR_R(tsr_to_narrow)(x[i])));
        else if (e->dtype == TSR_F32)
            x[i] = (TSR_REAL)(float)x[i];
    }
}

/* ---- packs kept in shared memory, each by its thread for itself -------------------------------
 */

struct TSR_R(tsr_quad) {
    TSR_REAL v[4];
} TSR_ALIGN_16;

/* Pack number `pack` of this thread. Neighbours' quads are side by side: no conflicts of banks. */
TSR_DEVICE void TSR_R(tsr_pack_keep)(unsigned pack, const TSR_REAL *x)
{
    struct TSR_R(tsr_quad) *kept = (struct TSR_R(tsr_quad) *)tsr_dynamic_shared();
    for (unsigned half = 0; half < 2; half++) {
        struct TSR_R(tsr_quad) quad;
        for (unsigned i = 0; i < 4; i++)
            quad.v[i] = x[4 * half + i];
        kept[(2 * pack + half) * tsr_threads() + tsr_thread()] = quad;
    }
}

TSR_DEVICE void TSR_R(tsr_pack_kept)(unsigned pack, TSR_REAL *x)
{
    const struct TSR_R(tsr_quad) *kept = (const struct TSR_R(tsr_quad) *)tsr_dynamic_shared();
    for (unsigned half = 0; half < 2; half++) {
        struct TSR_R(tsr_quad) quad = kept[(2 * pack + half) * tsr_threads() + tsr_thread()];
        for (unsigned i = 0; i < 4; i++)
            x[4 * half + i] = quad.v[i];
    }
}

/* Bytes of a pack that stays as it came, or as it is opened. */
TSR_DEVICE unsigned TSR_R(tsr_kept_bytes)(const struct tsr_elems *e, bool whole)
{
    bool narrow = !TSR_REAL_F64 && tsr_is_narrow(e, whole);
    return TSR_BLOCK * (narrow ? 2 : (unsigned)sizeof(TSR_REAL));
}

#if !TSR_REAL_F64
TSR_DEVICE unsigned char *tsr_narrow_place(unsigned pack)
{
    return (unsigned char *)tsr_dynamic_shared() + 16 * (pack * tsr_threads() + tsr_thread());
}
#endif

/* ---- over the threads of a team ---------------------------------------------------------------
 */

TSR_DEVICE TSR_REAL TSR_R(tsr_team_sum)(const struct tsr_team *t, TSR_REAL x)
{
    if (t->size > TSR_WARP)
        return TSR_R(tsr_block_sum)(x);
    for (unsigned lanes = t->size / 2; lanes > 0; lanes /= 2)
        x += TSR_R(tsr_shuffle)(x, (int)lanes);
    return x;
}

/* A NaN if there is one. */
TSR_DEVICE TSR_REAL TSR_R(tsr_team_max)(const struct tsr_team *t, TSR_REAL x)
{
    if (t->size > TSR_WARP)
        return TSR_R(tsr_block_max)(x);
    for (unsigned lanes = t->size / 2; lanes > 0; lanes /= 2) {
        TSR_REAL y = TSR_R(tsr_shuffle)(x, (int)lanes);
        x = x > y || x != x ? x : y;
    }
    return x;
}
