/* nccl_buffers.c: connections counted, algorithm by algorithm; the rules are in the header. */
#include "sim/network/nccl_buffers.h"

#include "engine/program/base.h"

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1024) * 1024)

/* What cudaIpcGetMemHandle() and cuMemCreate() take at least. */
static const uint64_t GRANULE = 2 * MIB;
/* DEFAULT_LL_BUFFSIZE, DEFAULT_LL128_BUFFSIZE, DEFAULT_BUFFSIZE. */
static const uint64_t LL = 512 * KIB, LL128 = UINT64_C(640) * 120 * 8 * 8, SIMPLE = 4 * MIB;
/* struct ncclSendMem and ncclRecvMem before their buffers. */
static const uint64_t HEADER = 4 * KIB;
static const uint64_t NVLINK_CHUNK = 512 * KIB, OTHER_CHUNK = 128 * KIB, NVLS_CHUNK = 128 * KIB;
/* Of a member in the table of a channel (struct ncclDevChannelPeer, about). */
static const uint64_t TABLE_ENTRY = 512;
enum { STEPS = 8, SHARED_STEPS = 16, TABLES_PER_CHANNEL = 3, TABLES_PER_COMM = 2 };
enum { PAIR_CHANNELS = 2, MAX_TREE_PEERS = 3 };

static uint64_t granules(uint64_t bytes)
{
    return tsr_round_up(bytes, GRANULE);
}

static uint32_t power_of_2(uint32_t least)
{
    uint32_t power = 1;
    while (power < least)
        power *= 2;
    return power;
}

static uint32_t least_of(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- one connection, on one of its two ends -------------------------------------------------- */

static uint64_t send_inside(const struct tsr__nccl_comm *c)
{
    return granules(HEADER + (c->reads ? SIMPLE : 0));
}

static uint64_t recv_inside(const struct tsr__nccl_comm *c)
{
    return granules(HEADER + LL + LL128 + (c->reads ? 0 : SIMPLE));
}

/* Both ends of a connection to another node and back. */
static uint64_t pair_between(void)
{
    return granules(LL128 + SIMPLE) + granules(LL + LL128 + SIMPLE);
}

/* ---- groups ---------------------------------------------------------------------------------- */

static uint32_t nodes_of(const struct tsr__nccl_comm *c)
{
    return (c->size + c->inside - 1) / c->inside;
}

static bool spans(const struct tsr__nccl_comm *c)
{
    return c->inside < c->size;
}

/* Channels on which a member stands for its node: the rings leave it, and trees have their heads,
 * through its members in turn. */
static uint32_t heads(const struct tsr__nccl_comm *c)
{
    return spans(c) ? (c->channels + c->inside - 1) / c->inside : 0;
}

/* Neighbours of a node in the trees of n channels: inner in one of two, a leaf in the other. */
static uint64_t tree_peers(const struct tsr__nccl_comm *c, uint32_t n)
{
    uint32_t inner = least_of(MAX_TREE_PEERS, nodes_of(c) - 1);
    return (uint64_t)(n - n / 2) * inner + n / 2;
}

/* ---- algorithms ------------------------------------------------------------------------------ */

static uint64_t rings(const struct tsr__nccl_comm *c)
{
    uint32_t between = heads(c), within = c->channels - between;
    return within * (send_inside(c) + recv_inside(c)) + between * pair_between();
}

/* Beyond what rings have connected, if there are any. */
static uint64_t trees(const struct tsr__nccl_comm *c, bool with_rings)
{
    uint64_t alone = with_rings || c->inside < 2 ? 0 : send_inside(c) + recv_inside(c);
    bool has_middle = c->inside > 2 && !c->ends_chains;
    bool is_chain = c->inside > (spans(c) ? 1U : 2U); /* of two alone the ring has both ways */
    uint64_t chain = (is_chain ? recv_inside(c) : 0) + (has_middle ? send_inside(c) : 0);
    uint64_t between = spans(c) ? tree_peers(c, heads(c)) * pair_between() : 0;
    return c->channels * (alone + chain) + between;
}

static uint64_t nvls(const struct tsr__nccl_comm *c, bool with_trees)
{
    uint64_t buffers = UINT64_C(2) * STEPS * NVLS_CHUNK * c->nvls_channels * c->inside;
    uint64_t between =
        with_trees && spans(c) ? tree_peers(c, c->nvls_channels) * pair_between() : 0;
    return granules(buffers) + between;
}

/* Members at different distances, both ways; 1 apart they may be ring's. */
static uint64_t pat(const struct tsr__nccl_comm *c, bool with_rings)
{
    uint64_t n = 0;
    for (uint64_t distance = 1; distance < c->size; distance *= 2) {
        uint64_t back =
            c->size - distance; /* a power of two as well: it was, or will be, counted */
        n += back != distance && (back & (back - 1)) ? 2 : 1;
    }
    uint64_t all = n * c->channels * pair_between();
    return with_rings ? all - c->channels * pair_between() : all;
}

/* ---- messages -------------------------------------------------------------------------------- */

static uint32_t channels_per_pair(const struct tsr__nccl_comm *c)
{
    uint32_t most = power_of_2(c->channels), n = PAIR_CHANNELS;
    if (spans(c)) {
        while (n > 1 && n * c->size > most * 4)
            n /= 2;
    } else if (c->pair_links) {
        n = least_of(c->channels, 2 * c->pair_links);
    }
    return least_of(power_of_2(least_of(n, c->channels)), most);
}

/* One direction's. */
static uint64_t shared_buffer(const struct tsr__nccl_comm *c)
{
    uint64_t chunk = !spans(c) && c->pair_links ? NVLINK_CHUNK : OTHER_CHUNK;
    return granules(power_of_2(c->channels) * SHARED_STEPS * chunk);
}

static uint64_t messages(const struct tsr__nccl_comm *c)
{
    uint64_t per_pair = channels_per_pair(c);
    uint64_t inside =
        per_pair * (c->sends_inside * send_inside(c) + c->recvs_inside * recv_inside(c));
    uint64_t n_shared = c->messages_between ? 2 : c->at_init ? 1 : 0;
    return inside + n_shared * shared_buffer(c);
}

/* ---- all ------------------------------------------------------------------------------------- */

static uint64_t tables(const struct tsr__nccl_comm *c)
{
    if (c->at_init) /* cudaMalloc() packs small ones */
        return 0;
    uint64_t channels = power_of_2(c->channels), table = granules(TABLE_ENTRY * c->size);
    uint64_t of_nvls = c->nvls_channels ? c->channels * GRANULE + GRANULE : 0;
    return channels * ((TABLES_PER_CHANNEL - 1) * table + GRANULE) + TABLES_PER_COMM * GRANULE +
           of_nvls;
}

struct tsr__nccl_buffers tsr__nccl_buffers_of(const struct tsr__nccl_comm *c)
{
    unsigned uses = c->uses;
    if (c->at_init) {
        uses |= TSR__NCCL_RINGS | TSR__NCCL_TREES;
        uses |= c->nvls_channels ? TSR__NCCL_NVLS | TSR__NCCL_NVLS_TREES : 0;
        uses |= c->inside == 1 ? TSR__NCCL_PAT : 0;
    }
    bool has_rings = uses & TSR__NCCL_RINGS;
    struct tsr__nccl_buffers out = {.tables = tables(c), .messages = messages(c)};
    if (has_rings)
        out.rings = rings(c);
    if (uses & TSR__NCCL_TREES)
        out.trees = trees(c, has_rings);
    if (c->nvls_channels && uses & (TSR__NCCL_NVLS | TSR__NCCL_NVLS_TREES))
        out.nvls = nvls(c, uses & TSR__NCCL_NVLS_TREES);
    if (uses & TSR__NCCL_PAT)
        out.pat = pat(c, has_rings);
    return out;
}

uint64_t tsr__nccl_buffers_sum(const struct tsr__nccl_buffers *b)
{
    return b->tables + b->rings + b->trees + b->nvls + b->pat + b->messages;
}
