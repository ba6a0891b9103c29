/* What the device says of itself: one table of facts, told as properties and as attributes. */
#include "standin.h"
#include <stdio.h>
#include <string.h>

/* Offsets in cudaDeviceProp by the public headers: CUDA 13 dropped fields, so the later ones moved.
 */
typedef struct {
    int attribute; /* cudaDeviceAttr; 0: none asked for */
    size_t offset_12, offset_13;
    int value;
} fact;

static const fact FACTS[] = {
    {8, 296, 296, 49152},  /* shared memory per block (a size_t; little-endian) */
    {12, 304, 304, 65536}, /* registers per block */
    {10, 308, 308, 32},    /* warp size */
    {1, 320, 320, 1024},   /* threads per block */
    {2, 324, 324, 1024},   /* ... in x, y, z */
    {3, 328, 328, 1024},      {4, 332, 332, 64},    {5, 336, 336, 2147483647}, /* grid in x, y, z */
    {6, 340, 340, 65535},     {7, 344, 344, 65535}, {0, 352, 352, 65536},      /* constant memory */
    {75, 360, 360, 9},                            /* compute capability */
    {76, 364, 364, 0},        {0, 368, 368, 512}, /* texture alignment */
    {16, 388, 384, 132},                          /* multiprocessors */
    {0, 400, 392, 1},                             /* can map host memory */
    {0, 576, 560, 1},                             /* concurrent kernels */
    {0, 600, 584, 3},                             /* copy engines */
    {41, 604, 588, 1},                            /* unified addresses */
    {0, 612, 592, 5120},                          /* width of the memory bus */
    {38, 616, 596, 52428800},                     /* L2 cache */
    {39, 624, 604, 2048},                         /* threads per multiprocessor */
    {81, 640, 624, 233472},                       /* shared memory per multiprocessor */
    {82, 648, 632, 65536},                        /* registers per multiprocessor */
    {0, 652, 636, 1},                             /* managed memory */
    {95, 688, 668, 1},                            /* cooperative launches */
    {97, 696, 672, 232448},                       /* shared memory per block, on request */
    {106, 712, 688, 32},                          /* blocks per multiprocessor */
    {111, 720, 696, 1024},                        /* shared memory that the system keeps */
    {115, 744, 720, 1},                           /* memory pools */
};
enum { COUNT = sizeof FACTS / sizeof FACTS[0], SIZE_12 = 1032, SIZE_13 = 1008, TOTAL_MEMORY = 288 };

EXPORT int cudaGetDeviceProperties(char *properties, int device)
{
    (void)device;
    int is_12 = standin_cuda_version() < 13000;
    memset(properties, 0, is_12 ? SIZE_12 : SIZE_13);
    snprintf(properties, 256, "stand-in sm_90, 132 multiprocessors");
    size_t free_bytes, total;
    standin_room(&free_bytes, &total);
    memcpy(properties + TOTAL_MEMORY, &total, sizeof total);
    for (int i = 0; i < COUNT; i++)
        memcpy(properties + (is_12 ? FACTS[i].offset_12 : FACTS[i].offset_13), &FACTS[i].value,
               sizeof(int));
    return 0;
}

EXPORT int cudaGetDeviceProperties_v2(char *properties, int device)
{
    return cudaGetDeviceProperties(properties, device);
}

EXPORT int cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    *value = 0;
    for (int i = 0; i < COUNT; i++)
        if (FACTS[i].attribute == attribute && attribute)
            *value = FACTS[i].value;
    return 0;
}
