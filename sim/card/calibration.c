/* calibration.c: the table of calibrated numbers and their reading from a device file. */
#include "sim/card/calibration.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sim/input/json_doc.h"

static const char AS_TABLE[] = "default: as measured in short runs";

static const struct tsr_calibration_row rows[TSR_N_CALIBRATIONS] = {
    [TSR_CAL_MATMUL_SUSTAINED] = {"matmul_sustained", 1.0, 0.1, 1.5, AS_TABLE,
                                  "rate of matrix products in a step over the table's"},
    [TSR_CAL_ATTENTION_SUSTAINED] = {"attention_sustained", 1.0, 0.1, 1.5, AS_TABLE,
                                     "rate of attention kernels in a step over the table's"},
    [TSR_CAL_TRITON_SUSTAINED] = {"triton_sustained", 1.0, 0.1, 2.0, AS_TABLE,
                                  "rate of flash1_triton in a step over the table's"},
    [TSR_CAL_BACKWARD_SUSTAINED] = {"backward_sustained", 1.0, 0.1, 1.5,
                                    "default: products of backward run as those of forward",
                                    "rate of products and attention of backward over forward's"},
    [TSR_CAL_MEMORY_SUSTAINED] = {"memory_sustained", 1.0, 0.1, 1.5, AS_TABLE,
                                  "bandwidth of memory-bound kernels in a step over the table's"},
    [TSR_CAL_HOST_SCALE] = {"host_scale", 1.0, 0.0, 100.0, "default: sim/options.c",
                            "multiplies every host cost"},
    [TSR_CAL_COMM_COMPUTE_SLOWDOWN] = {"comm_compute_slowdown", 0.0, 0.0, 0.9,
                                       "default: no figure, none",
                                       "share of speed that kernels lose beside a collective"},
    [TSR_CAL_INTRA_EFFICIENCY] = {"intra_efficiency", 0.80, 0.05, 1.0,
                                  "default: ring all-gather of 16 GiB on 8 H200, 361 of 450 GB/s",
                                  "reachable share of the link rate inside a node"},
    [TSR_CAL_INTER_EFFICIENCY] = {"inter_efficiency", 0.80, 0.05, 1.0,
                                  "default: that inside a node",
                                  "reachable share of the link rate between nodes"},
    [TSR_CAL_STRAGGLER_SHARE] = {"straggler_share", 0.0, 0.0, 1.0, "default: no figure, none",
                                 "extra share of kernels' time per doubling of the nodes"},
    [TSR_CAL_STEP_OVERHEAD] = {"step_overhead_s", 0.0, 0.0, 10.0, "default: no figure, none",
                               "seconds of the host per step outside of the program"},
    [TSR_CAL_COLLECTIVE_BASE] =
        {"collective_base_s", 0.0, 0.0, 0.01, "default: the tuner's latencies alone",
         "seconds of every collective beyond the latencies of NCCL's tuner"},
    [TSR_CAL_COLLECTIVE_FILL] = {"collective_fill_s", 0.0, 0.0, 0.1, "default: no figure, none",
                                 "seconds until the pipeline of a large collective is full"},
    [TSR_CAL_COLLECTIVE_OWN] = {"collective_own", 0.0, 0.0, 10.0, "default: in place, nothing",
                                "time of a rank's own bytes over that of bytes on its link"},
};

const struct tsr_calibration_row *tsr_calibration_row(enum tsr_calibration_id id)
{
    TSR_CHECK(id < TSR_N_CALIBRATIONS);
    return &rows[id];
}

struct tsr_calibration tsr_calibration_default(void)
{
    struct tsr_calibration out = {0};
    for (int i = 0; i < TSR_N_CALIBRATIONS; i++) {
        out.value[i] = rows[i].value;
        snprintf(out.source[i], sizeof out.source[i], "%s", rows[i].source);
    }
    return out;
}

void tsr_calibration_override(struct tsr_calibration *calibration,
                              const double values[TSR_N_CALIBRATIONS], const char *source)
{
    for (int i = 0; i < TSR_N_CALIBRATIONS; i++) {
        if (isnan(values[i]))
            continue;
        calibration->value[i] = values[i];
        snprintf(calibration->source[i], sizeof calibration->source[i], "%s", source);
        calibration->data[i][0] = '\0';
    }
}

static tsr_status check_name(const struct tsr__doc *doc, const char *name, const json_t *value)
{
    char key[96], allowed[512] = "";
    size_t used = 0;
    for (int i = 0; i < TSR_N_CALIBRATIONS; i++)
        if (!strcmp(rows[i].name, name))
            return TSR_OK;
    for (int i = 0; i < TSR_N_CALIBRATIONS; i++)
        used += (size_t)snprintf(allowed + used, sizeof allowed - used, "%s%s", i == 0 ? "" : ", ",
                                 rows[i].name);
    snprintf(key, sizeof key, "calibration.%.60s", name);
    return tsr__doc_fail(doc, key, value, allowed);
}

static tsr_status read_one(const struct tsr__doc *doc, int id, struct tsr_calibration *out)
{
    char key[96];
    const struct tsr_calibration_row *row = &rows[id];
    snprintf(key, sizeof key, "calibration.%s", row->name);
    if (!tsr__doc_find(doc, key))
        return TSR_OK;
    snprintf(key, sizeof key, "calibration.%s.value", row->name);
    TSR_TRY(tsr__doc_number(doc, key, TSR__REQUIRED, row->min, row->max, &out->value[id]));
    snprintf(key, sizeof key, "calibration.%s.source", row->name);
    TSR_TRY(tsr__doc_string(doc, key, TSR__REQUIRED, out->source[id], sizeof out->source[id]));
    snprintf(key, sizeof key, "calibration.%s.data", row->name);
    return tsr__doc_string(doc, key, TSR__OPTIONAL, out->data[id], sizeof out->data[id]);
}

tsr_status tsr__calibration_read(const struct tsr__doc *doc, struct tsr_calibration *out)
{
    json_t *object = tsr__doc_find(doc, "calibration"), *value;
    const char *name;
    *out = tsr_calibration_default();
    if (!object || json_is_null(object))
        return TSR_OK;
    if (!json_is_object(object))
        return tsr__doc_fail(doc, "calibration", object, "an object of numbers with their source");
    if (json_object_size(object) > TSR_MAX_CALIBRATED)
        return tsr__doc_fail(doc, "calibration", object, "at most 12 numbers of a GPU type");
    json_object_foreach(object, name, value) TSR_TRY(check_name(doc, name, value));
    for (int i = 0; i < TSR_N_CALIBRATIONS; i++)
        TSR_TRY(read_one(doc, i, out));
    return TSR_OK;
}
