/* attention.h: what tests ask of the stand-in of cuDNN's attention.
 */
#ifndef TSR_STANDIN_ATTENTION_H
#define TSR_STANDIN_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

/* From the next tsr_attention_create() on: whether there is one, and its workspace. */
void tsr_standin_attention(bool there, uint64_t workspace);

#endif
