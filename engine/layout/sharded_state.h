/* sharded_state.h: the state dict of a model or group as layout (section 6): for each key its
 * global shape and what each rank holds of it; and what has to be read to go from one layout to
 * another (other mesh, other wrapping), as byte ranges. Checkpoints are built on it.
 *
 * Equal layouts are stored once, so that the layout of all ranks is a few tables.
 */
#ifndef TSR_ENGINE_SHARDED_STATE_H
#define TSR_ENGINE_SHARDED_STATE_H

#include "engine/layout/dtensor.h"

struct tsr_engine;

struct tsr_state_entry {
    const char *fqn;   /* name of the place: tied parameters have one entry per place */
    const char *group; /* NULL: not managed */
    tsr_dtype dtype;
    size_t layout;   /* index into layouts */
    size_t alias_of; /* entry with the same storage; its own index otherwise */
    bool on_host;    /* CPU offload (R229) */
};

/* Invariant: alias_of of an entry is an entry at or before it whose own alias_of is itself; equal
 * layouts have one index. */
struct tsr_state_dict {
    uint32_t world;
    size_t n, cap;
    struct tsr_state_entry *entries; /* module order */
    size_t n_layouts, cap_layouts;
    struct tsr_dtensor *layouts; /* mesh dimensions as global ranks */
    struct tsr_arena names;
};

/* An empty one; what init, add and of leave is given back by fini. */
void tsr_state_dict_init(struct tsr_state_dict *s, uint32_t world);
void tsr_state_dict_fini(struct tsr_state_dict *s);
/* Appends a key; copies fqn and group (may be NULL). ValueError: a layout whose mesh has ranks
 * outside the world, or that tsr_dtensor_check() refuses; a key twice is not looked for. */
tsr_status tsr_state_dict_add(struct tsr_state_dict *s, const char *fqn, const char *group,
                              tsr_dtype dtype, const struct tsr_dtensor *layout) TSR_MUST_USE;
/* Of what was wrapped: all keys, or those of one group (by its name). The result does not depend on
 * the engine's life. Sharded whatever is unsharded at the moment (R221). */
tsr_status tsr_state_dict_of(struct tsr_engine *engine, const char *group,
                             struct tsr_state_dict *out) TSR_MUST_USE;

/* NULL if there is no such key. */
const struct tsr_state_entry *tsr_state_dict_find(const struct tsr_state_dict *s, const char *fqn);

/* ---- resharding ------------------------------------------------------------------------------ */

/* Bytes to copy from a source rank's shard of a tensor to a destination rank's. Offsets are into
 * the shard, without padding. */
struct tsr_byte_range {
    uint32_t from_rank, to_rank;
    uint64_t from_offset, to_offset, bytes;
};
typedef tsr_status (*tsr_byte_range_fn)(void *user, const struct tsr_byte_range *range);

/* What `to_rank` has to read of one tensor. Ranges come in the order of the destination's pieces,
 * each as long as possible, and write every byte of its shard exactly once. Where several ranks
 * hold the same, the one nearest to to_rank is read: itself if it can. ValueError: shapes differ.
 */
tsr_status tsr_reshard_tensor(const struct tsr_dtensor *from, uint32_t from_world,
                              const struct tsr_dtensor *to, uint32_t to_rank, unsigned bytes,
                              tsr_byte_range_fn fn, void *user) TSR_MUST_USE;

#endif
