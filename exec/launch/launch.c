/* launch.c: rank and size from the environment. */
#include "exec/launch/launch.h"

#include "exec/rendezvous/rendezvous.h"
#include "exec/rendezvous/socket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    tsr_getenv_fn get;
    void *user;
};

/* A launcher and its variables. */
struct source {
    const char *name, *launcher;     /* for people; for TSR_LAUNCHER */
    const char *sign;                /* is set exactly if this launcher started the process */
    const char *rank, *size, *local; /* all needed */
    const char *local_size;          /* NULL: none; tells that all ranks are on this host */
    const char *sign_too;            /* also a sign; NULL: none */
};

static const struct source sources[] = {
    {"TSR_RANK", "tessera", "TSR_RANK", "TSR_RANK", "TSR_SIZE", "TSR_LOCAL_RANK", NULL, "TSR_SIZE"},
    {"torchrun", "torchrun", "RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     "WORLD_SIZE"},
    {"SLURM", "slurm", "SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL,
     NULL},
    {"Open MPI", "openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"},
    {"MPICH", "mpich", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
     "PMI_SIZE"},
};
enum {
    N_SOURCES = sizeof sources / sizeof sources[0],
    TESSERA = 0,
    TORCHRUN = 1,
    SLURM = 2,
    OPEN_MPI = 3
};
enum { MOST_RANKS = 1 << 24 };

static const char *lookup(const struct reader *r, const char *name)
{
    const char *value = name ? r->get(r->user, name) : NULL;
    return value && value[0] ? value : NULL;
}

static tsr_status number(const struct reader *r, const char *name, uint64_t least, uint64_t most,
                         uint32_t *out)
{
    const char *text = lookup(r, name);
    char *end;
    errno = 0;
    unsigned long long value = text ? strtoull(text, &end, 10) : 0;
    if (!text || text[0] < '0' || text[0] > '9' || *end || errno || value < least || value > most)
        return tsr_fail(TSR_ECONFIG, "%s=%s; allowed: %llu to %llu", name, text ? text : "",
                        (unsigned long long)least, (unsigned long long)most);
    *out = (uint32_t)value;
    return TSR_OK;
}

static bool is_there(const struct reader *r, const struct source *s)
{
    return lookup(r, s->sign) || lookup(r, s->sign_too);
}

/* ---- rank and size --------------------------------------------------------------------------- */

static tsr_status read_ranks(const struct reader *r, const struct source *s, struct tsr_launch *out)
{
    const char *needed[] = {s->rank, s->size, s->local};
    const char *sign = lookup(r, s->sign) ? s->sign : s->sign_too;
    for (int i = 0; i < 3; i++)
        if (!lookup(r, needed[i]))
            return tsr_fail(TSR_ECONFIG, "%s=%s is set (%s), but %s is not", sign,
                            lookup(r, sign) ? lookup(r, sign) : "", s->name, needed[i]);
    TSR_TRY(number(r, s->size, 1, MOST_RANKS, &out->size));
    tsr_status status = number(r, s->rank, 0, out->size - 1, &out->rank);
    if (status != TSR_OK)
        return tsr_fail(status, "%s (%s=%u)", tsr_error_text(), s->size, out->size);
    status = number(r, s->local, 0, out->rank, &out->local_rank);
    if (status != TSR_OK)
        return tsr_fail(status, "%s (%s=%u)", tsr_error_text(), s->rank, out->rank);
    out->source = s->name;
    return TSR_OK;
}

/* Launchers inside one another are a mistake unless they mean the same. */
static tsr_status check_others(const struct reader *r, int chosen, const struct tsr_launch *launch)
{
    if (chosen == TESSERA || (chosen == TORCHRUN && lookup(r, "TORCHELASTIC_RUN_ID")))
        return TSR_OK;
    const struct source *s = &sources[chosen];
    for (int i = chosen + 1; i < N_SOURCES; i++) {
        const struct source *other = &sources[i];
        uint32_t rank, size;
        if (!lookup(r, other->sign) || !lookup(r, other->rank) || !lookup(r, other->size))
            continue;
        TSR_TRY(number(r, other->size, 1, MOST_RANKS, &size));
        TSR_TRY(number(r, other->rank, 0, MOST_RANKS, &rank));
        bool ranks_differ = rank != launch->rank;
        if (ranks_differ || size != launch->size)
            return tsr_fail(
                TSR_ECONFIG, "%s=%s (%s) contradicts %s=%s (%s); TSR_LAUNCHER=%s or %s chooses",
                ranks_differ ? s->rank : s->size, lookup(r, ranks_differ ? s->rank : s->size),
                s->name, ranks_differ ? other->rank : other->size,
                lookup(r, ranks_differ ? other->rank : other->size), other->name, s->launcher,
                other->launcher);
    }
    return TSR_OK;
}

/* *chosen: index into sources; N_SOURCES: a single rank. */
static tsr_status choose(const struct reader *r, int *chosen, bool *forced)
{
    const char *wanted = lookup(r, "TSR_LAUNCHER");
    *forced = wanted != NULL;
    *chosen = N_SOURCES;
    if (wanted && strcmp(wanted, "single") == 0)
        return TSR_OK;
    for (int i = 0; i < N_SOURCES; i++)
        if (wanted ? strcmp(wanted, sources[i].launcher) == 0 : is_there(r, &sources[i])) {
            *chosen = i;
            break;
        }
    if (!wanted)
        return TSR_OK;
    if (*chosen == N_SOURCES)
        return tsr_fail(TSR_ECONFIG,
                        "TSR_LAUNCHER=%s; allowed: tessera, torchrun, slurm, openmpi, "
                        "mpich, single",
                        wanted);
    if (!is_there(r, &sources[*chosen]))
        return tsr_fail(TSR_ECONFIG, "TSR_LAUNCHER=%s, but %s is not set", wanted,
                        sources[*chosen].sign);
    return TSR_OK;
}

/* ---- where rank 0 is ------------------------------------------------------------------------- */

/* The first number of "07-09,12" in `first`; where the brackets end, or NULL. */
static const char *first_of_range(const char *at, char *first, size_t bytes)
{
    size_t n = strspn(at, "0123456789");
    const char *end = strchr(at, ']');
    if (n == 0 || !end || n >= bytes || !strchr("-,]", at[n]) ||
        strspn(at, "0123456789-,") != (size_t)(end - at))
        return NULL;
    memcpy(first, at, n);
    first[n] = '\0';
    return end + 1;
}

tsr_status tsr_launch_first_host(const char *list, char *host, size_t bytes)
{
    size_t used = 0;
    const char *at = list;
    while (*at && *at != ',') {
        char piece[32] = {*at, '\0'};
        const char *next = *at == '[' ? first_of_range(at + 1, piece, sizeof piece) : at + 1;
        size_t n = strlen(piece);
        if (!next || *at == ']' || *at == ' ' || used + n >= bytes)
            return tsr_fail(TSR_ECONFIG, "'%s' is no list of hosts as SLURM writes them", list);
        memcpy(host + used, piece, n);
        used += n;
        at = next;
    }
    host[used] = '\0';
    if (used == 0)
        return tsr_fail(TSR_ECONFIG, "'%s' is no list of hosts as SLURM writes them", list);
    return TSR_OK;
}

static tsr_status copy_text(const char *name, const char *value, char *to, size_t bytes)
{
    if (strlen(value) >= bytes)
        return tsr_fail(TSR_ECONFIG, "%s=%.40s... has %zu bytes; at most %zu", name, value,
                        strlen(value), bytes - 1);
    (void)strcpy(to, value);
    return TSR_OK;
}

/* *all: the source says that all ranks are on this host. */
static tsr_status read_here(const struct reader *r, int chosen, const struct tsr_launch *launch,
                            bool *all)
{
    const char *local_size = chosen < N_SOURCES ? sources[chosen].local_size : NULL;
    const char *list = chosen == SLURM ? lookup(r, "SLURM_STEP_NODELIST") : NULL;
    uint32_t here = 0;
    if (lookup(r, local_size))
        TSR_TRY(number(r, local_size, 1, launch->size, &here));
    *all = here == launch->size || (list && !strpbrk(list, ",["));
    return TSR_OK;
}

static tsr_status read_address(const struct reader *r, int chosen, struct tsr_launch *out)
{
    const char *addr = lookup(r, "TSR_ADDR"), *bind = lookup(r, "TSR_BIND"), *list;
    bool all_here;
    TSR_TRY(copy_text("TSR_BIND", bind ? bind : "", out->bind, sizeof out->bind));
    if (addr)
        return copy_text("TSR_ADDR", addr, out->addr, sizeof out->addr);
    out->pmix = out->size > 1 && (chosen == SLURM || chosen == OPEN_MPI) &&
                lookup(r, "PMIX_NAMESPACE") && lookup(r, "PMIX_RANK") && tsr_rendezvous_has_pmix();
    TSR_TRY(read_here(r, chosen, out, &all_here));
    if (all_here || out->pmix)
        return copy_text("TSR_ADDR", "127.0.0.1", out->addr, sizeof out->addr);
    if (chosen == TORCHRUN && (addr = lookup(r, "MASTER_ADDR")))
        return copy_text("MASTER_ADDR", addr, out->addr, sizeof out->addr);
    if (chosen == SLURM) {
        list = lookup(r, "SLURM_STEP_NODELIST");
        tsr_status status = tsr_launch_first_host(list ? list : "", out->addr, sizeof out->addr);
        return status == TSR_OK ? TSR_OK
                                : tsr_fail(status, "SLURM_STEP_NODELIST=%s", tsr_error_text());
    }
    if (chosen < N_SOURCES && lookup(r, sources[chosen].local_size))
        return tsr_fail(TSR_ECONFIG,
                        "TSR_ADDR is not set, but only %s of %u ranks are on this host (%s=%s)",
                        lookup(r, sources[chosen].local_size), out->size,
                        sources[chosen].local_size, lookup(r, sources[chosen].local_size));
    return copy_text("TSR_ADDR", "127.0.0.1", out->addr, sizeof out->addr);
}

static tsr_status read_port(const struct reader *r, int chosen, struct tsr_launch *out)
{
    uint32_t port = TSR_LAUNCH_PORT;
    if (lookup(r, "TSR_PORT"))
        TSR_TRY(number(r, "TSR_PORT", 1, 65535, &port));
    else if (chosen == TORCHRUN && lookup(r, "MASTER_PORT")) {
        /* That port itself is torchrun's store. */
        TSR_TRY(number(r, "MASTER_PORT", 1, 65534, &port));
        port++;
    }
    out->port = (uint16_t)port;
    return TSR_OK;
}

/* A text of the job's that nobody else knows; an error does not repeat it. */
static tsr_status read_token(const struct reader *r, struct tsr_launch *out)
{
    const char *token = lookup(r, "TSR_TOKEN");
    size_t bytes = token ? strlen(token) : 0;
    bool beyond = out->size > 1 && !out->pmix && !tsr__socket_is_loopback(out->addr);
    if (beyond && bytes == 0)
        return tsr_fail(TSR_ECONFIG,
                        "TSR_TOKEN is not set, but the ranks of this job meet at %s, beyond this "
                        "host; one for all of them: export TSR_TOKEN=$(openssl rand -hex 32)",
                        out->addr);
    if (bytes >= sizeof out->token || (beyond && bytes < TSR_LAUNCH_TOKEN_LEAST))
        return tsr_fail(TSR_ECONFIG,
                        "TSR_TOKEN has %zu bytes; allowed%s: %d to %zu, as of "
                        "openssl rand -hex 32",
                        bytes, beyond ? " beyond this host" : "",
                        beyond ? TSR_LAUNCH_TOKEN_LEAST : 1, sizeof out->token - 1);
    memcpy(out->token, token ? token : "", bytes);
    return TSR_OK;
}

tsr_status tsr_launch_read(tsr_getenv_fn get, void *user, struct tsr_launch *out)
{
    const struct reader r = {get, user};
    int chosen;
    bool forced;
    *out = (struct tsr_launch){.size = 1, .source = "single", .listen_fd = -1};
    TSR_TRY(choose(&r, &chosen, &forced));
    if (chosen < N_SOURCES) {
        TSR_TRY(read_ranks(&r, &sources[chosen], out));
        if (!forced)
            TSR_TRY(check_others(&r, chosen, out));
    }
    TSR_TRY(read_address(&r, chosen, out));
    TSR_TRY(read_port(&r, chosen, out));
    TSR_TRY(read_token(&r, out));
    if (chosen == TESSERA && out->rank == 0 && lookup(&r, "TSR_LISTEN_FD")) {
        uint32_t fd;
        TSR_TRY(number(&r, "TSR_LISTEN_FD", 3, 1 << 20, &fd));
        out->listen_fd = (int)fd;
    }
    return TSR_OK;
}

static const char *from_environment(void *user, const char *name)
{
    (void)user;
    return getenv(name);
}

tsr_status tsr_launch_environment(struct tsr_launch *out)
{
    return tsr_launch_read(from_environment, NULL, out);
}
