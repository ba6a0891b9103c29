/* direct.c: all-gathers without copies (OPTIONS.md, `gather: direct`): each parameter is
 * gathered into its own unsharded storage, all of a group in one launch. There is no gathered
 * buffer, no copy-in and no copy-out.
 *
 * [Note: retiring] The collective writes what modules read, so the memory belongs to the stream of
 * the collective and may be written again only when the last reader on the compute stream is done.
 * Waiting for that at once would end the overlap of the next gather with the computation before
 * it. So a group that is resharded is retired with an event, and its memory goes back when a later
 * gather begins, which waits for the event then: in forward the gather after the next one (two
 * groups' parameters are there beside the retired ones), in backward the next one, which starts
 * when the backward before it has ended, as PyTorch's does.
 *
 * What is emitted instead of copy-in and collective: all_gather.c.
 */
#include "engine/fsdp/collectives.h"

bool tsr__is_direct(const struct tsr_group *g)
{
    if (!g->direct || g->shard_size == 1 || g->custom_all_gather || g->offload != TSR_OFFLOAD_NONE)
        return false;
    for (size_t i = 0; i < g->n_params; i++)
        if (g->params[i]->extension || g->params[i]->shard_dim > 0)
            return false;
    return true;
}

static void give_back(struct tsr_engine *e, struct tsr_group *g)
{
    for (size_t i = 0; i < g->n_params; i++)
        if (g->params[i]->unsharded)
            tsr__storage_unback(e, g->params[i]->unsharded->storage);
}

static void unretire(struct tsr_engine *e, struct tsr_comm_ctx *comm, size_t i, bool frees)
{
    struct tsr_group *g = comm->retired[i];
    tsr__wait_event(e, comm->all_gather, g->retire_event);
    g->retire_event = 0;
    if (frees)
        give_back(e, g);
    comm->n_retired--;
    for (; i < comm->n_retired; i++)
        comm->retired[i] = comm->retired[i + 1];
}

void tsr__direct_settle(struct tsr_engine *e, struct tsr_comm_ctx *comm, size_t keep)
{
    while (comm->n_retired > keep && tsr__ok(e))
        unretire(e, comm, 0, true);
}

void tsr__direct_prepare(struct tsr_engine *e, struct tsr_group *g, uint16_t stream)
{
    struct tsr_comm_ctx *comm = g->comm;
    for (size_t i = 0; i < comm->n_retired; i++)
        if (comm->retired[i] == g) /* its own memory serves again */
            unretire(e, comm, i--, false);
    tsr__direct_settle(e, comm, g->training == TSR_FORWARD ? 1 : 0);
    uint16_t current = e->stream;
    e->stream = stream;
    for (size_t i = 0; i < g->n_params && tsr__ok(e); i++)
        tsr__ensure_unsharded(e, g, g->params[i]);
    e->stream = current;
}

void tsr__direct_retire(struct tsr_engine *e, struct tsr_group *g)
{
    struct tsr_comm_ctx *comm = g->comm;
    if (g->n_params == 0 || !g->params[0]->unsharded || g->retire_event)
        return;
    if (g->params[0]->unsharded->storage->stream == e->stream) {
        give_back(e, g); /* gathered on the compute stream */
        return;
    }
    g->retire_event = tsr__record_event(e, e->stream);
    (void)TSR__ARENA_PUSH(e, comm->retired, comm->n_retired, comm->cap_retired, g);
}

void tsr__direct_discard(struct tsr_engine *e, struct tsr_group *g)
{
    if (g->sharded != TSR_UNSHARDED)
        give_back(e, g);
}
