/* traits.h: what the simulator has to know of a family of GPUs beside the rates of one card: which
 * parts of NCCL and which kernels exist on it. A device file says it by its architecture, and may
 * give members that differ in an object "traits".
 */
#ifndef TSR_SIM_TRAITS_H
#define TSR_SIM_TRAITS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/program/base.h"

/* What is 0 does not exist, or is unknown where a comment says so. */
struct tsr_gpu_traits {
    double nvls_efficiency;     /* of NVLS at its peak: nvlsEfficiency of NCCL's tuner */
    double ll_max_bw;           /* llMaxBw of one node, bytes/s; 0: unknown, no bound */
    uint32_t switch_channels;   /* of a node with NVSwitch; 0: unknown, at least 24 */
    uint32_t nvls_channels;     /* in one NVLink domain */
    uint32_t nvls_channels_net; /* of groups beyond it */
    uint32_t links;             /* NVLinks of a card to the switch */
    bool receiver_reads; /* Simple: the receiver reads by NVLink, the sender has the buffer */
    bool has_multicast;  /* the switch of its generation sums and multicasts */
    bool has_flash3;     /* attention: FlashAttention-3 */
};

/* Returns the traits of an architecture by its name in device files ("Hopper"). A family that is
 * not known has the bounds of NCCL and nothing that only some cards have. */
struct tsr_gpu_traits tsr_gpu_traits_of(const char *architecture);
/* Returns the architecture of a compute capability, 8.9 as 89, by CUDA's list; "unknown" where it
 * has none. */
const char *tsr_gpu_architecture(int capability);

struct tsr__doc;
/* Takes the members that the object "traits" of a device file gives. Errors: TSR_ECONFIG with file,
 * key, value and what is allowed. */
tsr_status tsr__gpu_traits_read(const struct tsr__doc *doc,
                                struct tsr_gpu_traits *traits) TSR_MUST_USE;

#endif
