/* standin.h: what the stand-ins of CUDA's libraries share, and what tests ask of them.
 *
 * A stream is a thread with a queue. What is enqueued runs late, in order on its stream and
 * unordered beside other streams unless events order it; a seeded delay before each piece of work
 * makes other orders. Nothing flows from a stream back to the host, or to another stream, but what
 * events and waits say: under ThreadSanitizer a missing wait is a data race.
 *
 * The NULL stream runs its work at once, on memory of the host, with all threads of a block: for
 * tests of single kernels.
 *
 * Every entry point of a stand-in begins with TSR_STANDIN(name), so that a test can make its n-th
 * call fail, and walk all entry points that a run calls.
 */
#ifndef TSR_STANDIN_H
#define TSR_STANDIN_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tsr_standin_config {
    int gpus;
    uint64_t memory; /* bytes of each */
    int driver;      /* 13000: 13.0; 0: there is none */
    int major, minor;
    int sms;           /* multiprocessors; an H200 has 132 */
    uint32_t delay_us; /* the longest delay before a piece of work; 0: none */
    uint64_t seed;
    uint64_t addresses;   /* the most that can be reserved at once; 0: any */
    uint64_t granularity; /* of device memory, bytes; at most 2 MiB */
    uint64_t multicast;   /* the granularity of multicast, bytes; 0: the GPU has none */
    bool no_handles;      /* memory cannot be shared */
    bool fibers;          /* blocks of a kernel have as many threads as are asked for, not one */
    int nccl;             /* the version that NCCL says it is; 0: that of its header */
};

/* One H200, no delays. An executable may be given others by TSR_STANDIN in its environment:
 * "gpus=2,memory=BYTES,driver=12080,major=8,minor=0,sms=132,delay_us=50,seed=7,nccl=22903,
 * granularity=BYTES,multicast=BYTES", and one of "fail=ENTRY:N:ERROR" (as tsr_standin_fail() has
 * them), "kill=ENTRY:N": that call kills the process. */
struct tsr_standin_config tsr_standin_default(void);
/* While no stream exists. Forgets failures and counts. */
void tsr_standin_configure(const struct tsr_standin_config *config);
const struct tsr_standin_config *tsr_standin(void);

/* ---- work on streams, for the other stand-ins -------------------------------------------------
 */

/* Runs later, on the stream's thread, with a copy of `data`. Nonzero: it fails, and with it
 * everything that comes after (as an asynchronous error of a GPU). */
typedef int (*tsr_standin_fn)(void *data);
cudaError_t tsr_standin_enqueue(cudaStream_t stream, tsr_standin_fn run, const void *data,
                                size_t bytes);
/* In a graph, such work runs in the order in which it was captured. */
cudaError_t tsr_standin_enqueue_in_order(cudaStream_t stream, tsr_standin_fn run, const void *data,
                                         size_t bytes);
bool tsr_standin_is_captured(cudaStream_t stream);
/* The error that some work has left behind; it stays. */
cudaError_t tsr_standin_sticky(void);

/* The graph that the stream is captured in, and all that are made of it, hold `user` (CUDA's user
 * objects): change(user, 1) when one does, change(user, -1) when it goes. False: no capture. */
bool tsr_standin_graph_hold(cudaStream_t stream, void (*change)(void *user, int by), void *user);

/* This thread has not taken an error that some call of CUDA told ("not ready" is one): a library
 * that looks after a launch of its own takes it for that. */
bool tsr_standin_left_error(void);

/* ---- memory ------------------------------------------------------------------------------------
 */

enum tsr_standin_space { TSR_STANDIN_HOST, TSR_STANDIN_PINNED, TSR_STANDIN_DEVICE };
/* Whose memory [at, at + bytes) is; all of it must be in one place. */
enum tsr_standin_space tsr_standin_space_of(const void *at, size_t bytes);
/* Device memory that is taken now, of all GPUs. */
uint64_t tsr_standin_device_bytes(void);

/* ---- failures ----------------------------------------------------------------------------------
 */

struct tsr_standin_entry {
    const char *name;
    _Atomic uint64_t calls;
    _Atomic(struct tsr_standin_entry *) next; /* of those that were ever called */
    _Atomic bool listed;
};
/* The error that this call shall return; 0: none. */
int tsr_standin_enter(struct tsr_standin_entry *entry);
#define TSR_STANDIN(entry, type)                                             \
    do {                                                                     \
        static struct tsr_standin_entry tsr_standin_this = {.name = #entry}; \
        int tsr_standin_error = tsr_standin_enter(&tsr_standin_this);        \
        if (tsr_standin_error)                                               \
            return (type)tsr_standin_error;                                  \
    } while (0)

/* The n-th call (1: the next) of an entry point returns `error` and does nothing. "(work)": the
 * n-th piece of work fails on its stream; "(captured)": the n-th that is captured is refused. n 0:
 * none. */
void tsr_standin_fail(const char *entry, uint64_t n, int error);
bool tsr_standin_failed(void); /* the failure has happened */
/* Entry points that were called since tsr_standin_configure(), and how often; false: no i-th. */
bool tsr_standin_called(size_t i, const char **entry, uint64_t *calls);

/* Streams, events, pinned and device allocations that were made and not given back. */
int64_t tsr_standin_live(void);

/* ---- attention ------------------------------------------------------------------------------- */

/* What tests ask of the stand-in of cuDNN's attention. */

/* From the next tsr_attention_create() on: whether there is one, and its workspace. */
void tsr_standin_attention(bool there, uint64_t workspace);

/* ---- blas ------------------------------------------------------------------------------------ */

/* What tests ask of the stand-in of cuBLASLt. It has three algorithms, 0 to 2; 1 and 2
 * split the sum along k, 2 with parts that are added in place. */

/* The algorithm of the last product that was asked for. */
unsigned tsr_standin_algorithm(void);
/* Algorithms below this number take 20 ms longer. */
void tsr_standin_slow_algorithms(unsigned below);
/* What cublasLtGetVersion() says. */
void tsr_standin_cublaslt_version(size_t version);

#endif
