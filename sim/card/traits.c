/* traits.c: the families of GPUs. Constants of NCCL are those of its src/graph/tuning.cc and
 * src/transport (2.28; hosts with Intel processors); NCCL_P2P_READ_ENABLE is on by default for
 * Ampere alone.
 */
#include "sim/card/traits.h"

#include <stddef.h>
#include <string.h>

#include "sim/input/json_doc.h"

static const struct family {
    const char *architecture;
    struct tsr_gpu_traits traits;
} families[] = {
    {"Ampere", {.ll_max_bw = 87.7e9, .switch_channels = 24, .links = 12, .receiver_reads = true}},
    {"Hopper",
     {.nvls_efficiency = 0.85,
      .ll_max_bw = 141.0e9,
      .switch_channels = 24,
      .nvls_channels = 16,
      .nvls_channels_net = 16,
      .links = 18,
      .has_multicast = true,
      .has_flash3 = true}},
    {"Blackwell",
     {.nvls_efficiency = 0.74,
      .ll_max_bw = 282.0e9,
      .nvls_channels = 24,
      .nvls_channels_net = 32,
      .links = 18,
      .has_multicast = true}},
};

/* What is not known: bounds. */
static const struct tsr_gpu_traits unknown = {
    .nvls_channels = 24, .nvls_channels_net = 32, .links = 18};

struct tsr_gpu_traits tsr_gpu_traits_of(const char *architecture)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (!strcmp(families[i].architecture, architecture))
            return families[i].traits;
    return unknown;
}

const char *tsr_gpu_architecture(int capability)
{
    if (capability >= 100)
        return "Blackwell";
    if (capability >= 90)
        return "Hopper";
    if (capability == 89)
        return "Ada Lovelace";
    if (capability >= 80)
        return "Ampere";
    return capability == 75 ? "Turing" : capability >= 70 ? "Volta" : "unknown";
}

tsr_status tsr__gpu_traits_read(const struct tsr__doc *doc, struct tsr_gpu_traits *t)
{
    enum { MOST = 1024 };
    const struct {
        const char *key;
        uint32_t *out;
    } counts[] = {{"traits.switch_channels", &t->switch_channels},
                  {"traits.nvls_channels", &t->nvls_channels},
                  {"traits.nvls_channels_net", &t->nvls_channels_net},
                  {"traits.links", &t->links}};
    const struct {
        const char *key;
        bool *out;
    } flags[] = {{"traits.receiver_reads", &t->receiver_reads},
                 {"traits.has_multicast", &t->has_multicast},
                 {"traits.has_flash3", &t->has_flash3}};
    const json_t *all = tsr__doc_find(doc, "traits");
    if (all && !json_is_object(all))
        return tsr__doc_fail(doc, "traits", all, "an object");
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        uint64_t value = *counts[i].out;
        if (tsr__doc_find(doc, counts[i].key))
            TSR_TRY(tsr__doc_count(doc, counts[i].key, TSR__REQUIRED, MOST, &value));
        *counts[i].out = (uint32_t)value;
    }
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        const json_t *value = tsr__doc_find(doc, flags[i].key);
        if (value && !json_is_boolean(value))
            return tsr__doc_fail(doc, flags[i].key, value, "true or false");
        if (value)
            *flags[i].out = json_is_true(value);
    }
    if (tsr__doc_find(doc, "traits.nvls_efficiency"))
        TSR_TRY(tsr__doc_number(doc, "traits.nvls_efficiency", TSR__REQUIRED, 0.0, 1.0,
                                &t->nvls_efficiency));
    if (tsr__doc_find(doc, "traits.ll_max_bw"))
        TSR_TRY(tsr__doc_rate(doc, "traits.ll_max_bw", TSR__REQUIRED, &t->ll_max_bw));
    return TSR_OK;
}
