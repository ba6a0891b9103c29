/* options.c: default host costs and links of a simulation. Every figure names its source. */
#include "sim/sim.h"

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
        /* cudaMalloc and cudaFree (assumption: tens to hundreds of microseconds). */
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
