/* What the stand-in device shares: the symbols that it exports and the types of CUDA's interfaces
 * that it needs, declared here so that no CUDA header is needed. Layouts follow CUDA's public ABI;
 * enumerations are ints. Every call answers 0, success, unless its file says otherwise. */
#ifndef TESSERA_TORCH_STANDIN_H
#define TESSERA_TORCH_STANDIN_H
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* Functions of which all are alike. What ignores its arguments is defined without them. */
#define NOTHING(name)     \
    EXPORT int name(void) \
    {                     \
        return 0;         \
    }
#define NEW_HANDLE(name)            \
    EXPORT int name(void **handle)  \
    {                               \
        *handle = standin_handle(); \
        return 0;                   \
    }

/* A new handle (stream, event, library context): never zero, never dereferenced. */
void *standin_handle(void);

/* CUDA 12 or 13, from TESSERA_STANDIN_CUDA ("12.8", "13.0", ...): the layout of a few structures
 * and the version that the device reports follow it. In CUDA's form: 1000 major + 10 minor. */
int standin_cuda_version(void);

/* Unbacked device addresses. `standin_take` returns 0 where the device is full. */
void *standin_take(size_t bytes);
int standin_give(void *address);
void standin_room(size_t *free_bytes, size_t *total_bytes);
int standin_is_device(const void *address);
void *standin_reserve(size_t bytes); /* addresses alone: expandable segments */
uint64_t standin_commit(size_t bytes);
void standin_release(uint64_t handle);

/* A symbol of the device: an address behind all others. */
void *standin_symbol(void);

/* What the host reads from the device. Values given beforehand are handed out in order, one a
 * read; then zeros, which are counted: the tracer asks whether a read was unforeseen. */
EXPORT void tessera_standin_answer(const void *value, size_t bytes);
EXPORT size_t tessera_standin_unanswered(void);
EXPORT size_t tessera_standin_waiting(void);
void standin_read(void *to, size_t bytes);

/* The latest small copy to the device is remembered: tensors that PyTorch makes from a program's
 * numbers appear without a visible operator. Returns the bytes given out, 0 if that address was not
 * it. */
EXPORT size_t tessera_standin_copied(const void *address, void *to, size_t room);
void standin_written(const void *address, const void *from, size_t bytes);

/* From this call on the device is as far behind the host as it can be (order.c); before it, never.
 */
EXPORT void tessera_standin_order(void);
EXPORT int tessera_standin_work(const void *stream); /* the stream was given a piece of work */
EXPORT int cudaDeviceSynchronize(void);

#endif
