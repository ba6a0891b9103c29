/* two_level.c: an all-gather of one's own (custom_comm.h) from SEND and RECV, for studies and as an
 * example: first every rank collects the pieces of the ranks with its own place in the other nodes,
 * then the ranks of a node hand each other what they have. Few large messages cross the network, no
 * ring goes through every rank.
 */
#include "engine/fsdp/fsdp.h"

/* Exchanges with every peer of a level in one launch: `pieces` pieces each, `step` apart. */
struct level {
    uint32_t first, stride, count; /* peers: first + i * stride */
    uint32_t own_start;            /* first piece that this rank has for them */
    uint32_t pieces, piece_stride;
};

static void exchange(struct tsr_engine *e, struct tsr_tensor *out, uint64_t piece,
                     const struct tsr_custom_call *call, const struct level *l)
{
    tsr_emit_group_begin(e);
    for (uint32_t i = 0; i < l->count; i++) {
        uint32_t peer = l->first + i * l->stride;
        if (peer == call->index)
            continue;
        for (uint32_t k = 0; k < l->pieces; k++) {
            uint32_t mine = l->own_start + k * l->piece_stride;
            uint32_t theirs = mine - call->index + peer;
            tsr_emit_send(e, out, mine * piece, piece, call->comm, peer);
            tsr_emit_recv(e, out, theirs * piece, piece, call->comm, peer);
        }
    }
    tsr_emit_group_end(e);
}

static void run(struct tsr_engine *e, struct tsr_tensor *out, struct tsr_tensor *in,
                const struct tsr_custom_call *call, void *user)
{
    const struct tsr_two_level *t = user;
    uint64_t piece = tsr_tensor_bytes(in);
    uint32_t local = t->local_ranks;
    if (local == 0 || call->size % local != 0)
        local = call->size; /* not cut by nodes: one level */
    uint32_t nodes = call->size / local, place = call->index % local;
    struct level between = {.first = place,
                            .stride = local,
                            .count = nodes,
                            .own_start = call->index,
                            .pieces = 1,
                            .piece_stride = 1};
    /* inside the node: the pieces with my place in every node */
    struct level inside = {.first = call->index - place,
                           .stride = 1,
                           .count = local,
                           .own_start = place,
                           .pieces = nodes,
                           .piece_stride = local};
    if (nodes > 1)
        exchange(e, out, piece, call, &between);
    if (local > 1)
        exchange(e, out, piece, call, &inside);
}

void tsr_two_level_init(struct tsr_two_level *t, uint32_t local_ranks)
{
    *t = (struct tsr_two_level){.comm = {.name = "two_level", .run = run, .is_pure = true},
                                local_ranks};
    t->comm.user = t;
}

/* Neighbours in a communicator that lie in one node. */
static uint32_t local_members(const struct tsr_comm *comm, uint32_t gpus_per_node)
{
    uint32_t n = comm->stride ? gpus_per_node / comm->stride : 1;
    return n == 0 ? 1 : n < comm->size ? n : comm->size;
}

tsr_status tsr_use_two_level_gather(struct tsr_engine *e, uint32_t gpus_per_node)
{
    for (size_t i = 0; i < e->fsdp->n_states; i++)
        for (size_t k = 0; k < e->fsdp->states[i]->n_groups; k++) {
            struct tsr_group *g = e->fsdp->states[i]->groups[k];
            if (g->is_replicate)
                return tsr_fail(TSR_EVALUE, "'%s' is replicated: it has no all-gather", g->name);
            struct tsr_two_level *t = tsr_arena_alloc(&e->arena, sizeof *t);
            if (!t)
                return tsr_no_memory(NULL);
            tsr_two_level_init(t, local_members(&e->emit.comms[g->shard_comm], gpus_per_node));
            g->custom_all_gather = &t->comm;
        }
    return TSR_OK;
}
