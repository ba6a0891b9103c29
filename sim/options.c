/* options.c: default host costs and links of a simulation, every figure with its source; what the
 * machine's own times replace of them; and what an option may be. */
#include "sim/options.h"

#include "sim/tape/tape.h"

struct tsr_sim_options tsr_sim_options_default(void)
{
    return (struct tsr_sim_options){
        /* Eager PyTorch: dispatcher, autograd node and cudaLaunchKernel of one kernel. The launch
         * alone is 2 to 3 us on current hosts; 5 us with the dispatcher (assumption, the middle of
         * what traces of eager training show). */
        .host_launch_s = 5e-6,
        /* Inductor's wrapper calls the launcher without dispatcher or autograd node: the launch
         * alone and a Python call (assumption, below the eager figure). */
        .host_compiled_s = 3e-6,
        /* Guards, AOTAutograd's wrapper and the autograd function around a compiled block
         * (assumption: tens of microseconds a call). */
        .host_region_s = 40e-6,
        /* pytorch#133369: 0.37 to 0.46 ms of CPU per all-gather of a Llama-3-8B block. The copies,
         * allocations and events of that hook are instructions of their own here (0.05 to 0.1 ms);
         * the rest is put on the collective. */
        .host_collective_s = 300e-6,
        /* cudaEventRecord and cudaStreamWaitEvent with their Python calls (assumption). */
        .host_event_s = 1e-6,
        /* A hit in the caching allocator (assumption). */
        .host_alloc_s = 1e-6,
        /* A call of cudaMalloc or cudaFree (assumption: tens to hundreds of microseconds); what it
         * takes for the bytes comes on top (tsr__cost_segment()). */
        .host_segment_s = 100e-6,
        .host_scale = 1.0,
        /* CUDA lets about 1,024 launches wait for the device before a launch blocks. */
        .queue_depth = 1024,
        /* The default of CUDA is 8 (CUDA programming guide, environment variables), which is more
         * than a step has streams. */
        .max_connections = 0,
        .latency_scale = 1.0,
        .link_efficiency = 0.0, /* the device file's */
        .infinite_bandwidth = false,
        .algorithm = TSR_ALGO_AUTO,
        .protocol = TSR_PROTO_AUTO,
        .fold = true,
    };
}

/* Host costs that the caller has left at their defaults may have been timed on the machine (0: they
 * were not): those take the default's place. */
struct tsr_sim_options tsr__options_timed(const struct tsr_sim_options *options,
                                          const struct tsr_host_times *timed)
{
    const struct tsr_sim_options plain = tsr_sim_options_default();
    struct tsr_sim_options o = *options;
    const struct {
        double *value, plain, timed;
    } rows[] = {{&o.host_launch_s, plain.host_launch_s, timed->launch_s},
                {&o.host_collective_s, plain.host_collective_s, timed->collective_s},
                {&o.host_event_s, plain.host_event_s, timed->event_s},
                {&o.host_alloc_s, plain.host_alloc_s, timed->alloc_s},
                {&o.host_segment_s, plain.host_segment_s, timed->segment_s}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (*rows[i].value == rows[i].plain && rows[i].timed > 0.0)
            *rows[i].value = rows[i].timed;
    return o;
}

#ifdef TSR_HAVE_SIMGRID
static tsr_status check_factor(const char *name, double value)
{
    if (value >= 0.0 && value < 1e12) /* false for NaN too */
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "%s: found %g, allowed 0 or more", name, value);
}

/* An overriding rate in bytes per second; 0: no override. */
static tsr_status check_rate(const char *name, double value)
{
    if (value == 0.0 || (value >= 1e3 && value <= 1e18))
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "%s: found %g, allowed 0 or 1e3 to 1e18 bytes per second", name,
                    value);
}

/* Errors: TSR_ECONFIG with the name of the option, the value and what is allowed. */
tsr_status tsr__options_check(const struct tsr_sim_options *o)
{
    const struct {
        const char *name;
        double value;
    } factors[] = {
        {"host_launch_s", o->host_launch_s},   {"host_compiled_s", o->host_compiled_s},
        {"host_region_s", o->host_region_s},   {"host_collective_s", o->host_collective_s},
        {"host_event_s", o->host_event_s},     {"host_alloc_s", o->host_alloc_s},
        {"host_segment_s", o->host_segment_s}, {"host_scale", o->host_scale},
        {"latency_scale", o->latency_scale},   {"slow_factor", o->slow_factor},
    };
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
        TSR_TRY(check_factor(factors[i].name, factors[i].value));
    TSR_TRY(check_rate("nic_bw", o->nic_bw));
    TSR_TRY(check_rate("intra_bw", o->intra_bw));
    if (o->max_connections > TSR__MAX_CONNECTIONS)
        return tsr_fail(TSR_ECONFIG, "cuda_device_max_connections: found %u, allowed 0 to %d",
                        o->max_connections, TSR__MAX_CONNECTIONS);
    return TSR_OK;
}
#endif
