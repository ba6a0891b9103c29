/* devices_testing.h: the device that tests of executors run on: the host's, or a GPU of the
 * stand-in (TSR_TEST_CUDA), whose ranks are loopback's. Streams of either run late, so what is
 * missing shows.
 */
#ifndef TSR_DEVICES_TESTING_H
#define TSR_DEVICES_TESTING_H

#include "exec/executor/executor.h"

struct test_device {
    struct tsr_world *world;
    struct tsr_exec *exec; /* is told what is done */
    void *shared;          /* test_share() */
    uint32_t jitter_us;
    uint64_t jitter_seed;
    bool serial;
};

#ifndef TSR_TEST_CUDA

#include "exec/host/host_device.h"

/* What the ranks of a job share; closed after them. */
static inline tsr_status test_share(uint32_t ranks, void **out)
{
    (void)ranks;
    *out = NULL;
    return TSR_OK;
}

static inline void test_unshare(void *shared)
{
    (void)shared;
}

/* Delays of all devices that are made from here on; on the host each is given its own. */
static inline void test_jitter(uint32_t us, uint64_t seed)
{
    (void)us;
    (void)seed;
}

/* Whose kernels they run. */
static inline tsr_kernel_fn test_kernel_of(const char *name)
{
    return tsr_host_kernel(name);
}

#define TEST_FILL   tsr_host_fill
#define TEST_DEVICE "the host"

static inline tsr_status test_device_create(const struct test_device *d, struct tsr_device **out)
{
    const struct tsr_host_device_config config = {.world = d->world,
                                                  .jitter_us = d->jitter_us,
                                                  .jitter_seed = d->jitter_seed,
                                                  .serial = d->serial,
                                                  .done = tsr_exec_done,
                                                  .user = d->exec};
    return tsr_host_device_create(&config, out);
}

/* Bytes that are backed now, and the most that were. */
static inline void test_device_mapped(const struct tsr_device *device, uint64_t *now,
                                      uint64_t *most)
{
    const struct tsr_host_space *space = &((const struct tsr_host_device *)device)->space;
    *now = space->mapped;
    *most = space->peak;
}

#else

#include "exec/cuda/device/cuda_device.h"
#include "tests/standin/standin.h"

static inline tsr_status test_share(uint32_t ranks, void **out)
{
    return tsr_loopback_create(ranks, (struct tsr_loopback **)out);
}

static inline void test_unshare(void *shared)
{
    tsr_loopback_destroy(shared);
}

static inline void test_jitter(uint32_t us, uint64_t seed)
{
    struct tsr_standin_config config = tsr_standin_default();
    config.delay_us = us;
    config.seed = seed;
    tsr_standin_configure(&config);
}

static inline tsr_kernel_fn test_kernel_of(const char *name)
{
    return tsr_cuda_kernel_of(name);
}

#define TEST_FILL   tsr_cuda_fill
#define TEST_DEVICE "the GPU"

static inline tsr_status test_device_create(const struct test_device *d, struct tsr_device **out)
{
    const struct tsr_comms_config comms = {
        .world = d->world, .timeout_s = d->world->timeout_s, .deterministic = true};
    struct tsr_cuda_device_config config = {.tables = tsr_exec_tables,
                                            .unit = UINT64_C(2) << 20,
                                            .deterministic = true,
                                            .timeout_s = 1.5 * d->world->timeout_s,
                                            .serial = d->serial,
                                            .done = tsr_exec_done,
                                            .times = tsr_exec_times,
                                            .user = d->exec};
    *out = NULL;
    TSR_TRY(tsr_comms_loopback(d->shared, &comms, &config.comms));
    return tsr_cuda_device_create(&config, out);
}

static inline void test_device_mapped(const struct tsr_device *device, uint64_t *now,
                                      uint64_t *most)
{
    struct tsr_cuda_memory m = {0};
    if (tsr_cuda_device_memory(device, &m) != TSR_OK)
        m.mapped = UINT64_MAX;
    *now = m.mapped;
    *most = m.peak;
}

#endif

#endif
