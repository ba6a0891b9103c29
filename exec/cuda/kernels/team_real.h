/* team_real.h: template of team.h. */
#include "exec/kernels/real.h"

/* ---- packs: TSR_BLOCK elements in registers ---------------------------------------------------
 */

/* Zeros behind the n-th. Loops have TSR_BLOCK turns, so that compilers keep packs in registers. */
TSR_DEVICE void TSR_R(tsr_pack_load)(const struct tsr_elems *e, uint64_t at, unsigned n,
                                     TSR_REAL *x)
{
    if (n == TSR_BLOCK && tsr_elems_run(e, at, TSR_BLOCK) == TSR_BLOCK) {
        TSR_R(tsr_load_run)(e->data + e->item * tsr_elems_place(e, at), e->dtype, TSR_BLOCK, x);
        return;
    }
    for (unsigned i = 0; i < TSR_BLOCK; i++)
        x[i] = 0;
    TSR_ROLLED
    for (unsigned one = 0; one < n; one++) {
        TSR_REAL value = TSR_R(tsr_load_one)(e, at + one);
        for (unsigned i = 0; i < TSR_BLOCK; i++)
            x[i] = i == one ? value : x[i];
    }
}

TSR_DEVICE void TSR_R(tsr_pack_store)(const struct tsr_elems *e, uint64_t at, unsigned n,
                                      const TSR_REAL *x)
{
    if (n == TSR_BLOCK && tsr_elems_run(e, at, TSR_BLOCK) == TSR_BLOCK) {
        TSR_R(tsr_store_run)(e->data + e->item * tsr_elems_place(e, at), e->dtype, TSR_BLOCK, x);
        return;
    }
    TSR_ROLLED
    for (unsigned one = 0; one < n; one++) {
        TSR_REAL value = x[0];
        for (unsigned i = 1; i < TSR_BLOCK; i++)
            value = i == one ? x[i] : value;
        TSR_R(tsr_store_run)(e->data + e->item * tsr_elems_place(e, at + one), e->dtype, 1, &value);
    }
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
