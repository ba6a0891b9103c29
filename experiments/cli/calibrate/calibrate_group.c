/* calibrate_group.c: ranks as threads, for calibration (calibrate.h), and the host as a device. */
#define _GNU_SOURCE /* sched_getaffinity */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "exec/host/host_device.h"
#include "experiments/cli/calibrate/calibrate.h"

struct seat {
    struct tsr_calibrate_rank rank;
    tsr_calibrate_run_fn run;
    pthread_t thread;
    bool started;
};

static void *rank_main(void *user)
{
    struct seat *seat = user;
    struct tsr_calibrate_rank *r = &seat->rank;
    r->status = seat->run(r);
    if (r->status == TSR_OK)
        return NULL;
    snprintf(r->text, sizeof r->text, "%s", tsr_error_text());
    if (r->world)
        r->world->ops->abort(r->world, r->status, r->text);
    return NULL;
}

static tsr_status start_all(struct seat *seats, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        seats[i].started = pthread_create(&seats[i].thread, NULL, rank_main, &seats[i]) == 0;
        if (seats[i].started)
            continue;
        if (seats[0].rank.world)
            seats[0].rank.world->ops->abort(seats[0].rank.world, TSR_EBACKEND, "a thread is lost");
        return tsr_fail(TSR_EBACKEND, "calibrate: a thread for rank %u cannot be started", i);
    }
    return TSR_OK;
}

static tsr_status join_all(struct seat *seats, uint32_t n)
{
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < n; i++)
        if (seats[i].started)
            pthread_join(seats[i].thread, NULL);
    for (uint32_t i = 0; i < n && status == TSR_OK; i++)
        if (seats[i].rank.status != TSR_OK)
            status = tsr_fail(seats[i].rank.status, "calibrate: %s", seats[i].rank.text);
    return status;
}

tsr_status tsr_calibrate_group(const struct tsr_calibrated *device, const void *job, uint32_t n,
                               bool together, tsr_calibrate_run_fn run, struct tsr_times *times,
                               double *seconds)
{
    void *group = NULL;
    struct tsr_world **worlds = calloc(n, sizeof *worlds);
    struct seat *seats = calloc(n, sizeof *seats);
    tsr_status status = worlds && seats ? TSR_OK : tsr_no_memory("ranks");
    if (status != TSR_OK)
        goto done;
    if (together && n > 1)
        TSR_GOTO(done, tsr_world_threads(n, TSR_CALIBRATE_TIMEOUT_S, worlds));
    if (device->open)
        TSR_GOTO(done, device->open(device, n, &group));
    for (uint32_t i = 0; i < n; i++) {
        struct tsr_calibrate_rank rank = {.device = device,
                                          .group = group,
                                          .job = job,
                                          .world = worlds[i],
                                          .rank = together ? i : 0,
                                          .size = together ? n : 1,
                                          .times = i == 0 ? times : NULL};
        seats[i] = (struct seat){.rank = rank, .run = run};
    }
    tsr_status started = start_all(seats, n);
    status = join_all(seats, n);
    status = started == TSR_OK ? status : started;
    if (seconds)
        *seconds = seats[0].rank.seconds;

done:
    if (group)
        device->close(group);
    for (uint32_t i = 0; worlds && i < n; i++)
        if (worlds[i])
            worlds[i]->ops->destroy(worlds[i]);
    free(worlds);
    free(seats);
    return status;
}

/* ---- the host -------------------------------------------------------------------------------- */

static tsr_status host_rank(const struct tsr_calibrate_rank *rank, const struct tsr_source *source,
                            struct tsr_executor *watcher, struct tsr_executor **out)
{
    const struct tsr_host_rank_config config = {
        .world = rank->world, .source = source, .profile = true, .watcher = watcher};
    return tsr_host_rank_create(&config, out);
}

static uint32_t count_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? (uint32_t)n : 1;
}

void tsr_calibrated_host(struct tsr_calibrated *out)
{
    static const struct tsr_calibrate_size sizes[] = {{64, 176, 2, 1, 192, 64, 2, false},
                                                      {192, 512, 6, 2, 512, 96, 3, false},
                                                      {256, 704, 4, 4, 1024, 256, 2, false}};
    static const uint64_t bytes[] = {8192, 65536, 524288, 4194304};
    *out = (struct tsr_calibrated){.name = "host",
                                   .family = "host",
                                   .memory = (uint64_t)sysconf(_SC_PHYS_PAGES) *
                                             (uint64_t)sysconf(_SC_PAGESIZE),
                                   .ranks = UINT32_MAX,
                                   .cores = count_cores(),
                                   .sizes = sizes,
                                   .n_sizes = sizeof sizes / sizeof *sizes,
                                   .collective_bytes = bytes,
                                   .n_collective_bytes = sizeof bytes / sizeof *bytes,
                                   .rank = host_rank};
    snprintf(out->what, sizeof out->what, "%u processor cores", out->cores);
}
