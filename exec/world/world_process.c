/* world_process.c: a world of processes that met through the rendezvous. Those of one host talk
 * through shared memory, the others over TCP. The connections of the rendezvous stay open: they
 * tell when a process is gone. Where the rendezvous is the launcher's, which has none, every rank
 * has a connection to rank 0 for that.
 */
#include "exec/launch/launch.h"
#include "exec/world/world.h"

#include "exec/world/carriers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_S 0.02

struct process_carrier {
    struct tsr_carrier base;
    struct tsr_rendezvous *rendezvous;
    struct tsr_shm *shm;   /* NULL: none */
    struct tsr_tcp *tcp;   /* NULL: none */
    struct tsr_tcp *watch; /* NULL: the rendezvous does it */
    uint32_t size;
    bool *is_local, *is_remote; /* [size]: the way to a rank */
    _Atomic bool stopping;
    bool has_thread;
    pthread_t thread;
};

static bool process_send(struct tsr_carrier *carrier, uint32_t to,
                         const struct tsr_mail_header *header, const void *data, double deadline)
{
    struct process_carrier *p = (struct process_carrier *)carrier;
    return p->is_local[to] ? tsr__shm_send(p->shm, to, header, data, deadline)
                           : tsr__tcp_send(p->tcp, to, header, data, deadline);
}

static void process_tell(struct tsr_carrier *carrier, tsr_status status, const char *text)
{
    struct process_carrier *p = (struct process_carrier *)carrier;
    if (p->watch)
        tsr__tcp_tell(p->watch, status, text);
    else
        tsr_rendezvous_tell(p->rendezvous, status, text);
}

/* Hears that a rank is lost or gave up. */
static void *watch_main(void *arg)
{
    struct process_carrier *p = arg;
    while (!atomic_load(&p->stopping)) {
        tsr_status status = tsr_rendezvous_watch(p->rendezvous, LOOK_S);
        if (status == TSR_OK)
            continue;
        tsr__carrier_fail(&p->base, status, tsr_error_text(), false);
        break;
    }
    return NULL;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void stop_watching(struct process_carrier *p)
{
    atomic_store(&p->stopping, true);
    if (p->has_thread)
        (void)pthread_join(p->thread, NULL);
    p->has_thread = false;
}

static void process_destroy(struct tsr_carrier *carrier, bool in_order)
{
    struct process_carrier *p = (struct process_carrier *)carrier;
    stop_watching(p);
    if (p->tcp)
        tsr__tcp_finish(p->tcp);
    if (p->watch)
        tsr__tcp_finish(p->watch);
    if (in_order)
        (void)!tsr_rendezvous_barrier(p->rendezvous, "end"); /* a failure changes nothing now */
    tsr__tcp_close(p->tcp);
    tsr__tcp_close(p->watch);
    tsr__shm_close(p->shm);
    tsr_rendezvous_close(p->rendezvous);
    tsr__mail_boxes_fini(&p->base.boxes);
    free(p->is_local);
    free(p->is_remote);
    free(p);
}

static const struct tsr_carrier_ops process_ops = {
    .name = "processes", .send = process_send, .tell = process_tell, .destroy = process_destroy};

/* Finds out who is on this host. */
static tsr_status find_neighbours(struct process_carrier *p, uint32_t rank, uint64_t host)
{
    uint64_t *hosts = calloc(p->size, sizeof *hosts);
    if (!hosts)
        return tsr_no_memory(NULL);
    tsr_status status = tsr_rendezvous_gather(p->rendezvous, "hosts", &host, sizeof host, hosts);
    for (uint32_t r = 0; r < p->size && status == TSR_OK; r++) {
        p->is_local[r] = r != rank && hosts[r] == host;
        p->is_remote[r] = r != rank && hosts[r] != host;
    }
    free(hosts);
    return status;
}

static void all_remote(struct process_carrier *p, uint32_t rank)
{
    for (uint32_t r = 0; r < p->size; r++) {
        p->is_local[r] = false;
        p->is_remote[r] = r != rank;
    }
}

static bool any(const bool *flags, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (flags[i])
            return true;
    return false;
}

static tsr_status connect_shm(struct process_carrier *p, const struct tsr_launch *launch,
                              double timeout_s, bool is_forced)
{
    const struct tsr_shm_config config = {.carrier = &p->base,
                                          .rendezvous = p->rendezvous,
                                          .rank = launch->rank,
                                          .size = launch->size,
                                          .is_peer = p->is_local,
                                          .timeout_s = timeout_s};
    char why[160];
    if (is_forced && any(p->is_remote, p->size))
        return tsr_fail(TSR_ECONFIG,
                        "transport shm, but the job has processes on other hosts than "
                        "that of rank %u; allowed then: auto, tcp",
                        launch->rank);
    TSR_TRY(tsr__shm_open(&config, why, sizeof why, &p->shm));
    if (p->shm)
        return TSR_OK;
    if (is_forced)
        return tsr_fail(TSR_EBACKEND, "processes of this host cannot share memory%s%s",
                        why[0] ? ": " : "", why);
    all_remote(p, launch->rank);
    return TSR_OK;
}

/* Every rank has a connection to rank 0. */
static tsr_status connect_watch(struct process_carrier *p, struct tsr_tcp_config config)
{
    bool *peers = calloc(p->size, sizeof *peers);
    if (!peers)
        return tsr_no_memory(NULL);
    for (uint32_t r = 0; r < p->size; r++)
        peers[r] = r != config.rank && (r == 0 || config.rank == 0);
    config.is_peer = peers;
    config.to = TSR_TO_WATCH;
    tsr_status status = tsr__tcp_open(&config, &p->watch);
    free(peers);
    return status;
}

static tsr_status connect_all(struct process_carrier *p, const struct tsr_launch *launch,
                              double timeout_s, const char *transport, uint64_t host)
{
    TSR_TRY(find_neighbours(p, launch->rank, host));
    if (strcmp(transport, "tcp") == 0)
        all_remote(p, launch->rank);
    else
        TSR_TRY(connect_shm(p, launch, timeout_s, strcmp(transport, "shm") == 0));
    const struct tsr_tcp_config config = {.carrier = &p->base,
                                          .rendezvous = p->rendezvous,
                                          .rank = launch->rank,
                                          .size = launch->size,
                                          .is_peer = p->is_remote,
                                          .bind = launch->bind,
                                          .to = TSR_TO_MAIL,
                                          .timeout_s = timeout_s};
    if (any(p->is_remote, p->size)) /* on one rank, then on all */
        TSR_TRY(tsr__tcp_open(&config, &p->tcp));
    if (!tsr_rendezvous_watches(p->rendezvous))
        TSR_TRY(connect_watch(p, config));
    TSR_TRY(tsr_rendezvous_barrier(p->rendezvous, "connected"));
    if (p->watch)
        return TSR_OK;
    int error = pthread_create(&p->thread, NULL, watch_main, p);
    if (error)
        return tsr_fail(TSR_ENOMEM, "no thread that watches: %s", strerror(error));
    p->has_thread = true;
    return TSR_OK;
}

static tsr_status open_rendezvous(struct process_carrier *p, const struct tsr_launch *launch,
                                  double timeout_s)
{
    const struct tsr_rendezvous_config config = {.pmix = launch->pmix,
                                                 .addr = launch->addr,
                                                 .bind = launch->bind,
                                                 .port = launch->port,
                                                 .listen_fd = launch->listen_fd,
                                                 .token = launch->token,
                                                 .rank = launch->rank,
                                                 .size = launch->size,
                                                 .timeout_s = timeout_s};
    return tsr_rendezvous_open(&config, &p->rendezvous);
}

static tsr_status carrier_create(uint32_t size, struct process_carrier **out)
{
    struct process_carrier *p = calloc(1, sizeof *p);
    if (!p)
        return tsr_no_memory(NULL);
    p->base.ops = &process_ops;
    p->size = size;
    p->is_local = calloc(size, sizeof *p->is_local);
    p->is_remote = calloc(size, sizeof *p->is_remote);
    tsr_status status =
        p->is_local && p->is_remote ? tsr__mail_boxes_init(&p->base.boxes) : tsr_no_memory(NULL);
    if (status == TSR_OK) {
        *out = p;
        return TSR_OK;
    }
    free(p->is_local);
    free(p->is_remote);
    free(p);
    return status;
}

tsr_status tsr__world_processes(const struct tsr_launch *launch, double timeout_s,
                                const char *transport, uint64_t host, struct tsr_world **out)
{
    *out = NULL;
    if (strcmp(transport, "auto") != 0 && strcmp(transport, "shm") != 0 &&
        strcmp(transport, "tcp") != 0)
        return tsr_fail(TSR_ECONFIG, "transport %s; allowed: auto, shm, tcp", transport);
    if (launch->size == 1) { /* needs no port */
        if (launch->listen_fd >= 0)
            (void)close(launch->listen_fd);
        return tsr_world_threads(1, timeout_s, out);
    }
    struct process_carrier *p = NULL;
    tsr_status status;
    char text[1024];
    TSR_TRY(carrier_create(launch->size, &p));
    TSR_GOTO(alone, open_rendezvous(p, launch, timeout_s));
    TSR_GOTO(met, connect_all(p, launch, timeout_s, transport, host));
    TSR_GOTO(met, tsr__world_mail(&p->base, launch->rank, launch->size, timeout_s, out));
    return TSR_OK;
met: /* the others are told why, or they would wait */
    process_tell(&p->base, status, tsr_error_text());
alone:
    (void)snprintf(text, sizeof text, "%s", tsr_error_text());
    process_destroy(&p->base, false);
    return tsr_fail(status, "%s", text);
}

tsr_status tsr_world_processes(const struct tsr_launch *launch, double timeout_s,
                               const char *transport, struct tsr_world **out)
{
    return tsr__world_processes(launch, timeout_s, transport, tsr__shm_host(), out);
}
