/* tensor.h: references to tensors, as code of own models and hooks holds them.
 *
 * What an operation returns is a new reference: it goes with tsr_release(), and the memory with the
 * last one. Nodes of the backward hold references of their own.
 */
#ifndef TSR_TENSOR_H
#define TSR_TENSOR_H

struct tsr_engine;
struct tsr_tensor;

/* Another reference; the tensor itself comes back. NULL is fine. */
struct tsr_tensor *tsr_retain(struct tsr_tensor *tensor);
/* NULL is fine. */
void tsr_release(struct tsr_engine *e, struct tsr_tensor *tensor);

#endif
