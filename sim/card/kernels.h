/* kernels.h: measured kernel tables of a card: matrix products by shape, attention by kernel and
 * length, norms by backend and shape; or every kernel by its name, as `tessera calibrate` times it.
 *
 * A table file, kernels-NAME.json beside the device files, holds what was measured on one card. A
 * device file lists the tables that it takes ("kernels": ["h200", "sm90"]); the first that has a
 * figure gives it. Figures of another card are scaled (cost_matmul.c, cost.c), and
 * tsr_kernel_sources() says so. Everything is a plain value of fixed size.
 *
 * Units: seconds, bytes, FLOP per second.
 */
#ifndef TSR_SIM_KERNELS_H
#define TSR_SIM_KERNELS_H

#include "engine/program/program.h"
#include "sim/input/job.h"

enum tsr_peak {
    TSR_PEAK_BF16,
    TSR_PEAK_FP16,
    TSR_PEAK_FP8,
    TSR_PEAK_TF32,
    TSR_PEAK_FP32,
    TSR_PEAK_FP64,
    TSR_N_PEAKS
};

const char *tsr_attention_kernel_name(enum tsr_attention_kernel kernel);

/* What a figure has to be scaled by: the card that it was measured on. 0: unknown. */
struct tsr_card {
    char name[64], architecture[32];
    uint32_t sm_count;
    double clock_hz, memory_bw;
    double peak_flops[TSR_N_PEAKS];
};

enum {
    TSR_KERNEL_FILES = 4,
    TSR_KERNEL_TILES = 8,
    TSR_KERNEL_AXIS = 8,
    TSR_KERNEL_POINTS = 512,
    TSR_KERNEL_CURVES = 72,
    TSR_KERNEL_NORMS = 8,
    TSR_KERNEL_SHAPES = 24,
    TSR_KERNEL_NAMES = 192,
    TSR_KERNEL_RUNS = 1536,
    TSR_KERNEL_SIZES = TSR_MAX_DIMS + 1
};

/* Constants of the model of tiles (cost_matmul.c). */
struct tsr_tile_model {
    double start_s;      /* start-up and tail of a kernel */
    double extra_k;      /* prologue and epilogue of a tile, as columns of k */
    double peak_share;   /* of the dense peak that a large product reaches */
    double memory_share; /* of the nominal bandwidth */
    uint32_t n_tiles;
    struct {
        uint32_t m, n;
        double share; /* of the rate, when the wave is full */
    } tiles[TSR_KERNEL_TILES];
};

/* Measured products of one dtype on a grid of shapes. */
struct tsr_matmul_table {
    uint8_t card; /* index into tsr_kernels.files */
    uint8_t peak; /* enum tsr_peak that it counts against: bf16, tf32, ... */
    struct tsr_tile_model model;
    double best_flops;              /* the highest rate of all shapes */
    uint32_t n[4];                  /* values of m, n, k, batch */
    float axis[4][TSR_KERNEL_AXIS]; /* ascending */
    /* log(measured time / time of the model), batch fastest; a shape that was not measured has the
     * mean of its neighbours. */
    float log_ratio[TSR_KERNEL_POINTS];
    bool measured[TSR_KERNEL_POINTS];
};

/* Attention with one head size: rates by length. */
struct tsr_attention_curve {
    uint8_t card, kernel; /* kernel: enum tsr_attention_kernel */
    bool backward, causal;
    uint16_t head_size;
    uint32_t n;
    float length[TSR_KERNEL_AXIS]; /* ascending */
    float flops[TSR_KERNEL_AXIS];
};

/* A norm's time: start_s + bytes / bytes_per_s, corrected at measured shapes. */
struct tsr_norm_table {
    uint8_t card, kernel; /* kernel: enum tsr_norm_kernel */
    bool backward;
    double start_s, bytes_per_s;
    uint32_t n;
    float rows[TSR_KERNEL_SHAPES], columns[TSR_KERNEL_SHAPES];
    float log_ratio[TSR_KERNEL_SHAPES];
};

/* One kernel as it was timed: logarithms of its work and its dims, and of its seconds. */
struct tsr_kernel_run {
    float size[TSR_KERNEL_SIZES], seconds;
};

/* A kernel of engine/ops/KERNELS.md by its name, timed on the card itself (kernels_measured.c). */
struct tsr_measured_kernel {
    char name[48];
    uint8_t card, dtype; /* dtype: of the arithmetic */
    bool per_flop;       /* what its work is counted in; else bytes */
    uint16_t first, n;   /* into `runs` */
};

/* All tables of a card, complete in itself; n_X says how many of X are filled. `card` of a table
 * is the file that it came from, and so the card that was measured, which may be another one. */
struct tsr_kernels {
    uint32_t n_files, n_matmul, n_attention, n_norms, n_measured, n_runs;
    struct {
        char name[64], description[96]; /* name: as long as that of a card */
        struct tsr_card card;
    } files[TSR_KERNEL_FILES];
    struct tsr_matmul_table matmul[2];
    struct tsr_attention_curve attention[TSR_KERNEL_CURVES];
    struct tsr_norm_table norms[TSR_KERNEL_NORMS];
    struct tsr_measured_kernel measured[TSR_KERNEL_NAMES];
    struct tsr_kernel_run runs[TSR_KERNEL_RUNS];
};

/* Puts the mean of the neighbours where nothing was measured. */
void tsr_matmul_fill(struct tsr_matmul_table *table);

/* Owns the tables that device files were read into, one copy of those that are equal: they are 80
 * KB each, and a study has as many devices as strategies. A caller that reads device files owns
 * one, zero at first, which must outlive every struct tsr_gpu that was read with it; it is for one
 * thread at a time. */
struct tsr__kept_kernels;
struct tsr_kernel_store {
    struct tsr__kept_kernels *first; /* the tables that came last; NULL: none */
};
/* Frees the tables; the store is empty then and may be used again. */
void tsr_kernel_store_fini(struct tsr_kernel_store *store);

/* Tables that are being read (kernels_kept.c); NULL when out of memory. They end in keep(), which
 * returns equal ones if the store has some already, or in drop(). */
struct tsr__kept_kernels *tsr__kernels_new(void);
struct tsr_kernels *tsr__kernels_of(struct tsr__kept_kernels *kept);
const struct tsr_kernels *tsr__kernels_keep(struct tsr_kernel_store *store,
                                            struct tsr__kept_kernels *kept);
void tsr__kernels_drop(struct tsr__kept_kernels *kept);

struct tsr__doc;
/* Adds the tables of an open file of kind "kernels", measured on `card`. Errors: TSR_ECONFIG with
 * file, key, value and what is allowed. */
tsr_status tsr__kernels_read(const struct tsr__doc *doc, const struct tsr_card *card,
                             struct tsr_kernels *out) TSR_MUST_USE;

#endif
