/* nccl_memory.c: what the communicators of programs are used for, and what that takes. */
#include "sim/network/nccl_memory.h"

#include <stdlib.h>
#include <string.h>

#include "sim/network/fabric.h"
#include "sim/network/nccl_buffers.h"
#include "sim/network/tuner.h"

enum { SWITCH_CHANNELS = 24, PCIE_CHANNELS = 2, DIRECT_CHANNELS = 2 };
enum { CHANNELS_PER_NIC = 2, MAX_NET_CHANNELS = 32 };
enum { N_SEEN = 8 };

/* A communicator of the programs. */
struct usage {
    bool is_used, unknown; /* unknown: the cluster does not say enough for the tuner */
    bool has_group;
    unsigned uses;
    /* The calls that were looked at last: steps repeat a few over and over. */
    struct {
        uint64_t bytes;
        uint8_t kind;
    } seen[N_SEEN];
    uint32_t n_seen;
    uint64_t *sends, *recvs; /* sets of members, [size / 64 + 1]; NULL: none */
    struct tsr__coll_group group;
};

struct survey {
    const struct tsr_cluster *cluster;
    const struct tsr_tables *tables;
    struct tsr__fabric fabric;
    struct tsr__coll_model model;
    bool has_fabric;
    struct usage *usage; /* [n_comms] */
};

/* ---- the group as the tuner sees it ---------------------------------------------------------- */

/* Members of the group of rank 0 that share an NVLink domain (or node) with it. */
static uint32_t members_inside(const struct tsr_cluster *cluster, const struct tsr_comm *comm)
{
    uint32_t domain = cluster->nvlink_domain_gpus ? cluster->nvlink_domain_gpus : 1;
    uint32_t n = (domain + comm->stride - 1) / comm->stride;
    return n < comm->size ? n : comm->size;
}

static tsr_status add_edge(const struct survey *s, const struct tsr__edge *edge, double *load[2],
                           struct tsr__coll_group *group)
{
    uint32_t links[TSR__MAX_PATH], n;
    enum tsr__medium medium;
    TSR_TRY(tsr__fabric_path(&s->fabric, edge->src, edge->dst, links, &n, &medium));
    double *worst = &group->s_per_byte[TSR__RING][medium];
    for (uint32_t k = 0; k < n && !s->fabric.ideal; k++) {
        double seconds = edge->share / tsr__link_capacity(&s->fabric, links[k]);
        bool is_shared = tsr__link_is_shared(&s->fabric, links[k]);
        load[medium][links[k]] = seconds + (is_shared ? load[medium][links[k]] : 0.0);
        *worst = load[medium][links[k]] > *worst ? load[medium][links[k]] : *worst;
    }
    return TSR_OK;
}

/* The largest share over capacity of a link, of the rings of rank 0's group. */
static tsr_status ring_rates(const struct survey *s, const struct tsr_comm *comm,
                             struct tsr__coll_group *group)
{
    uint32_t links = tsr__fabric_links(&s->fabric);
    uint32_t *members = malloc(comm->size * sizeof *members);
    struct tsr__edge *edges = malloc((tsr__ring_max_edges(comm->size) + 1) * sizeof *edges);
    double *both = calloc(2 * ((size_t)links + 1), sizeof *both);
    tsr_status status;
    if (!members || !edges || !both)
        TSR_GOTO(done, tsr_no_memory("links of a communicator"));
    double *load[2] = {both, both + links + 1};
    for (uint32_t i = 0; i < comm->size; i++)
        members[i] = i * comm->stride;
    size_t n = tsr__ring_edges(&s->fabric, members, comm->size, edges);
    status = TSR_OK;
    for (size_t i = 0; i < n; i++)
        TSR_GOTO(done, add_edge(s, &edges[i], load, group));
done:
    free(members);
    free(edges);
    free(both);
    return status;
}

/* What the cluster does not tell is unknown, no error. */
static tsr_status find_group(const struct survey *s, const struct tsr_comm *comm, struct usage *u)
{
    uint32_t inside = members_inside(s->cluster, comm);
    u->has_group = true;
    u->group =
        (struct tsr__coll_group){.size = comm->size, .domains = (comm->size + inside - 1) / inside};
    tsr_status status = s->has_fabric ? ring_rates(s, comm, &u->group) : TSR_ECONFIG;
    u->unknown = status != TSR_OK;
    return status == TSR_ENOMEM ? status : TSR_OK;
}

/* ---- what programs do ------------------------------------------------------------------------ */

static bool is_collective(const struct tsr_instr *instr)
{
    return (instr->kind >= TSR_ALL_GATHER && instr->kind <= TSR_RECV) ||
           instr->kind == TSR_CUSTOM_COLLECTIVE;
}

static tsr_status note_peer(uint64_t **set, uint32_t size, uint32_t peer)
{
    if (!*set)
        *set = calloc(size / 64 + 1, sizeof **set);
    if (!*set)
        return tsr_no_memory("peers of a communicator");
    (*set)[peer / 64] |= UINT64_C(1) << peer % 64;
    return TSR_OK;
}

static tsr_status note_messages(const struct tsr_comm *comm, uint32_t rank, struct usage *u,
                                const struct tsr_instr *instr)
{
    uint32_t mine = tsr_comm_index(comm, rank);
    bool is_all = instr->kind == TSR_ALL_TO_ALL;
    for (uint32_t peer = is_all ? 0 : instr->peer; peer < comm->size; peer++) {
        if (peer != mine && instr->kind != TSR_RECV)
            TSR_TRY(note_peer(&u->sends, comm->size, peer));
        if (peer != mine && instr->kind != TSR_SEND)
            TSR_TRY(note_peer(&u->recvs, comm->size, peer));
        if (!is_all)
            break;
    }
    return TSR_OK;
}

static bool was_seen(struct usage *u, uint8_t kind, uint64_t bytes)
{
    uint32_t n = u->n_seen < N_SEEN ? u->n_seen : N_SEEN;
    for (uint32_t i = 0; i < n; i++)
        if (u->seen[i].kind == kind && u->seen[i].bytes == bytes)
            return true;
    u->seen[u->n_seen % N_SEEN].kind = kind;
    u->seen[u->n_seen++ % N_SEEN].bytes = bytes;
    return false;
}

/* `bytes`: of all calls of its launch. */
static tsr_status note_call(const struct survey *s, const struct tsr_instr *instr, uint64_t bytes)
{
    if (instr->comm >= s->tables->n_comms || s->tables->comms[instr->comm].size < 2)
        return TSR_OK;
    const struct tsr_comm *comm = &s->tables->comms[instr->comm];
    struct usage *u = &s->usage[instr->comm];
    u->is_used = true;
    if (tsr__coll_pattern(instr->kind) == TSR__RING && was_seen(u, instr->kind, bytes))
        return TSR_OK;
    if (tsr__coll_pattern(instr->kind) != TSR__RING)
        return note_messages(comm, s->tables->rank, u, instr);
    if (!u->has_group)
        TSR_TRY(find_group(s, comm, u));
    if (!u->unknown)
        u->uses |= tsr__coll_buffers(
            tsr__coll_choose(&s->model, &u->group, instr->kind, bytes, bytes, false).algorithm);
    return TSR_OK;
}

static tsr_status note_program(const struct survey *s, const struct tsr_program *program)
{
    size_t group = 0; /* 1 + the begin of the group that is open */
    uint64_t bytes = 0;
    for (size_t i = 0; i < program->n_instrs; i++) {
        const struct tsr_instr *instr = &program->instrs[i];
        if (instr->kind == TSR_GROUP_BEGIN) {
            group = i + 1;
            bytes = 0;
        } else if (instr->kind == TSR_GROUP_END) {
            for (size_t k = group; k < i; k++)
                if (is_collective(&program->instrs[k]))
                    TSR_TRY(note_call(s, &program->instrs[k], bytes));
            group = 0;
        } else if (is_collective(instr) && group) {
            bytes += instr->bytes;
        } else if (is_collective(instr)) {
            TSR_TRY(note_call(s, instr, instr->bytes));
        }
    }
    return TSR_OK;
}

/* ---- what it takes --------------------------------------------------------------------------- */

/* The bounds are equal where the number of channels is known. */
static void channels_of(const struct tsr_cluster *c, bool spans, uint32_t *least, uint32_t *most)
{
    uint32_t of_nics = CHANNELS_PER_NIC * c->nics_per_node;
    *most = TSR__NCCL_MAX_CHANNELS;
    if (spans && of_nics)
        *least = *most = of_nics < MAX_NET_CHANNELS ? of_nics : MAX_NET_CHANNELS;
    else if (spans)
        *least = CHANNELS_PER_NIC;
    else if (c->intra == TSR_INTRA_PCIE)
        *least = *most = PCIE_CHANNELS;
    else if (c->intra == TSR_INTRA_NVSWITCH)
        *least = SWITCH_CHANNELS;
    else
        *least = DIRECT_CHANNELS;
    if (!spans && c->intra == TSR_INTRA_NVSWITCH && c->gpu.traits.switch_channels)
        *least = *most = c->gpu.traits.switch_channels;
}

static uint32_t nvls_channels_of(const struct tsr_cluster *c, const struct tsr__nccl_comm *comm)
{
    if (!c->multicast || comm->inside < 2)
        return 0;
    return comm->inside < comm->size ? c->gpu.traits.nvls_channels_net
                                     : c->gpu.traits.nvls_channels;
}

static uint32_t count_peers(const uint64_t *set, const struct tsr__nccl_comm *c, uint32_t mine,
                            bool *between)
{
    uint32_t inside = 0, first = mine - mine % c->inside;
    for (uint32_t peer = 0; set && peer < c->size; peer++) {
        if (!(set[peer / 64] >> peer % 64 & 1))
            continue;
        if (peer >= first && peer < first + c->inside)
            inside++;
        else
            *between = true;
    }
    return inside;
}

/* Every algorithm that a collective could run as, where the tuner has no rates to choose by. */
static unsigned any_use(const struct tsr__nccl_comm *c)
{
    bool nvls = c->nvls_channels > 0, spans = c->inside < c->size;
    return TSR__NCCL_RINGS | TSR__NCCL_TREES | (nvls ? TSR__NCCL_NVLS : 0U) |
           (nvls && spans ? TSR__NCCL_NVLS_TREES : 0U) | (c->inside == 1 ? TSR__NCCL_PAT : 0U);
}

static uint64_t bytes_with(struct tsr__nccl_comm c, uint32_t channels, unsigned uses)
{
    c.channels = channels;
    c.uses = uses;
    struct tsr__nccl_buffers buffers = tsr__nccl_buffers_of(&c);
    return tsr__nccl_buffers_sum(&buffers);
}

static void add_comm(const struct survey *s, const struct tsr_sim_options *options, uint16_t index,
                     struct tsr_nccl_memory *out)
{
    const struct tsr_comm *comm = &s->tables->comms[index];
    const struct tsr_cluster *cluster = s->cluster;
    const struct usage *u = &s->usage[index];
    uint32_t mine = tsr_comm_index(comm, s->tables->rank), least, most;
    bool is_nvlink = cluster->intra != TSR_INTRA_PCIE;
    struct tsr__nccl_comm c = {.size = comm->size,
                               .inside = members_inside(cluster, comm),
                               .reads = is_nvlink && cluster->gpu.traits.receiver_reads,
                               .at_init = options->nccl_at_init};
    if (cluster->intra == TSR_INTRA_NVSWITCH)
        c.pair_links = cluster->gpu.traits.links;
    else if (is_nvlink)
        c.pair_links = 1;
    c.nvls_channels = nvls_channels_of(cluster, &c);
    c.sends_inside = count_peers(u->sends, &c, mine, &c.messages_between);
    c.recvs_inside = count_peers(u->recvs, &c, mine, &c.messages_between);
    channels_of(cluster, c.inside < c.size, &least, &most);
    unsigned uses = u->uses | (u->unknown ? TSR__NCCL_RINGS : 0U);
    out->n_comms++;
    out->bytes += bytes_with(c, least, uses);
    out->at_most += bytes_with(c, most, u->unknown ? any_use(&c) : uses);
}

static tsr_status survey_programs(struct survey *s, const struct tsr_program *const *programs,
                                  uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        TSR_TRY(note_program(s, programs[i]));
    return TSR_OK;
}

static void survey_close(struct survey *s)
{
    for (uint16_t i = 0; s->usage && i < s->tables->n_comms; i++) {
        free(s->usage[i].sends);
        free(s->usage[i].recvs);
    }
    free(s->usage);
    if (s->has_fabric)
        tsr__fabric_fini(&s->fabric);
}

tsr_status tsr_nccl_memory_of(const struct tsr_cluster *cluster,
                              const struct tsr_sim_options *options,
                              const struct tsr_program *const *programs, uint32_t n,
                              struct tsr_nccl_memory *out)
{
    struct survey s = {.cluster = cluster, .tables = n ? programs[0]->tables : NULL};
    *out = (struct tsr_nccl_memory){0};
    if (!s.tables || cluster->intra == TSR_INTRA_MEMORY) /* ranks without GPUs have no NCCL */
        return TSR_OK;
    tsr_status status = tsr__fabric_init(&s.fabric, cluster, options, s.tables->world);
    s.has_fabric = status == TSR_OK;
    if (status == TSR_ENOMEM)
        return status;
    tsr__coll_model_init(&s.model, cluster, options);
    s.usage = calloc(s.tables->n_comms + 1U, sizeof *s.usage);
    status = s.usage ? TSR_OK : tsr_no_memory("communicators");
    TSR_GOTO(done, status);
    TSR_GOTO(done, survey_programs(&s, programs, n));
    for (uint16_t i = 0; i < s.tables->n_comms; i++)
        if (s.usage[i].is_used)
            add_comm(&s, options, i, out);
done:
    survey_close(&s);
    return status;
}
