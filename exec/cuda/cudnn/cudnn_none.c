/* cudnn_none.c: attention.h in a build without cuDNN. */
#include <stdio.h>

#include "exec/cuda/cudnn/cudnn_attention.h"

int tsr_attention_create(int architecture, struct tsr_cuda_attention **out,
                         char why[TSR_ATTENTION_TEXT])
{
    (void)architecture;
    *out = NULL;
    snprintf(why, TSR_ATTENTION_TEXT, "this build is without cuDNN's frontend");
    return TSR_ATTENTION_NOT_BUILT;
}

void tsr_attention_destroy(struct tsr_cuda_attention *attention)
{
    (void)attention;
}

const struct tsr_attention_plan *tsr_attention_prepare(struct tsr_cuda_attention *attention,
                                                       const struct tsr_cudnn_shape *shape,
                                                       uint64_t *bytes)
{
    (void)attention;
    (void)shape;
    *bytes = 0;
    return NULL;
}

int tsr_attention_run(struct tsr_cuda_attention *attention, const struct tsr_attention_plan *plan,
                      const struct tsr_attention_pointers *at, void *workspace, cudaStream_t stream,
                      char why[TSR_ATTENTION_TEXT])
{
    (void)attention;
    (void)plan;
    (void)at;
    (void)workspace;
    (void)stream;
    snprintf(why, TSR_ATTENTION_TEXT, "this build is without cuDNN's frontend");
    return 1;
}

void tsr_attention_lacks(struct tsr_cuda_attention *attention,
                         const struct tsr_attention_plan *plan, uint64_t bytes)
{
    (void)attention;
    (void)plan;
    (void)bytes;
}

void tsr_attention_note(struct tsr_cuda_attention *attention, char note[TSR_ATTENTION_TEXT])
{
    (void)attention;
    note[0] = 0;
}

int tsr_attention_validate(int architecture, const struct tsr_cudnn_shape *shape,
                           char why[TSR_ATTENTION_TEXT])
{
    (void)architecture;
    (void)shape;
    snprintf(why, TSR_ATTENTION_TEXT, "this build is without cuDNN's frontend");
    return 1;
}
