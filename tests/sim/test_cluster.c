/* test_cluster.c: every cluster file loads; bad ones are refused in one line. */
#include "tests/sim/sim_testing.h"

#include <dirent.h>
#include <unistd.h>

#include "sim/cluster/cluster.h"

/* Keeps the kernel tables of the cards of all tests. */
static struct tsr_kernel_store store;

static const char *source_dir(void)
{
    const char *dir = getenv("TSR_SOURCE_DIR");
    return dir ? dir : ".";
}

static void load(const char *name, struct tsr_cluster *c)
{
    char path[512];
    snprintf(path, sizeof path, "%s/experiments/clusters/%s", source_dir(), name);
    if (tsr_cluster_load(path, NULL, &store, c) != TSR_OK)
        fail_msg("%s", tsr_error_text());
}

static void every_file_loads(void **state)
{
    char folder[400];
    struct tsr_cluster c;
    int n = 0;
    (void)state;
    snprintf(folder, sizeof folder, "%s/experiments/clusters", source_dir());
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        if (strncmp(entry->d_name, "cluster-", 8) != 0 && strncmp(entry->d_name, "node-", 5) != 0)
            continue;
        load(entry->d_name, &c);
        assert_true(c.nodes >= 1 && c.gpus_per_node >= 1);
        assert_true(c.gpu.memory_bw > 1e11 && c.gpu.peak_flops[TSR_PEAK_BF16] > 1e13);
        n++;
    }
    closedir(dir);
    assert_true(n >= 20);
}

static void values_are_what_the_files_say(void **state)
{
    struct tsr_cluster c;
    (void)state;
    load("cluster-dgx-h100-2.json", &c);
    assert_string_equal(c.name, "dgx-h100-2");
    assert_string_equal(c.node_name, "dgx-h100");
    assert_string_equal(c.gpu.name, "h100-sxm5-80g");
    assert_non_null(strstr(c.gpu.path, "clusters/gpu-h100-sxm5-80g.json"));
    assert_int_equal(c.nodes, 2);
    assert_int_equal(c.gpus_per_node, 8);
    assert_int_equal(c.intra, TSR_INTRA_NVSWITCH);
    assert_int_equal(c.nvlink_domain_gpus, 8);
    assert_int_equal(c.nics_per_node, 8);
    assert_close(c.intra_bw, 450e9, 0.0);
    assert_close(c.nic_bw, 50e9, 0.0);
    assert_close(c.gpu.peak_flops[TSR_PEAK_BF16], 989e12, 0.0);
    assert_close(c.gpu.achievable_bf16, 794.5e12, 0.0);
    assert_int_equal(c.gpu.sm_count, 132);
    load("cluster-gb200-nvl72.json", &c);
    assert_int_equal(c.nvlink_domain_gpus, 72);
    assert_int_equal(c.gpu.sm_count, 0); /* null: unknown */
    assert_int_equal(c.gpu.visible_bytes, 0);
    load("cluster-meta-24k-roce.json", &c);
    assert_int_equal(c.n_tiers, 3);
    assert_int_equal(c.tiers[2].below_gpus, 3072);
    assert_close(c.tiers[2].oversubscription, 7.0, 0.0);
    load("cluster-meta-24k-ib.json", &c);
    assert_int_equal(c.n_tiers, 0);
    load("node-single-h200.json", &c);
    assert_int_equal(c.intra, TSR_INTRA_NONE);
    assert_int_equal(c.nics_per_node, 0);
    assert_int_equal(c.nodes, 1);
}

/* ---- bad files --------------------------------------------------------------------------- */

static const char gpu_text[] =
    "{\"kind\":\"gpu\",\"name\":\"g\",\"architecture\":\"Hopper\",\"sm_count\":132,"
    "\"memory\":{\"visible_bytes\":85000000000,\"bandwidth_bytes_per_s\":3e12},"
    "\"peak_dense_flop_per_s\":{\"bf16\":1e15,\"fp16\":1e15,\"fp8\":null,\"tf32\":5e14,"
    "\"fp32\":6e13,\"fp64\":null},\"nvlink\":{\"bandwidth_bytes_per_s_per_direction\":450e9},"
    "\"pcie\":{\"bandwidth_bytes_per_s_per_direction\":63e9}}";
static const char node_text[] =
    "{\"kind\":\"node\",\"name\":\"n\",\"gpu\":\"g\",\"gpus_per_node\":8,"
    "\"intra_node\":{\"type\":\"nvswitch\","
    "\"bandwidth_bytes_per_s_per_gpu_per_direction\":450e9},"
    "\"nics\":{\"count\":8,\"bandwidth_bytes_per_s_per_direction\":50e9}}";
static const char cluster_text[] =
    "{\"kind\":\"cluster\",\"name\":\"c\",\"node\":\"n\",\"nodes\":4,"
    "\"topology\":{\"type\":\"fat_tree\",\"oversubscription\":1.0}}";

static void write_file(const char *dir, const char *name, const char *text, const char *from,
                       const char *to)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    const char *at = from ? strstr(text, from) : NULL;
    if (at)
        fprintf(file, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    else
        fputs(text, file);
    fclose(file);
}

struct bad {
    const char *from, *to, *message; /* which text to replace; part of the error */
};

static void bad_files_give_one_line(void **state)
{
    static const struct bad bads[] = {
        {"\"nodes\":4", "\"nodes\":0",
         "cluster-c.json: key \"nodes\": found 0, allowed an integer"},
        {"\"nodes\":4", "\"nodes\":-4", "key \"nodes\": found -4"},
        {"\"nodes\":4", "\"nodes\":4.5", "key \"nodes\": found 4.5"},
        {"\"nodes\":4", "\"nodes\":\"4\"", "key \"nodes\": found \"4\""},
        {"\"nodes\":4", "\"nodes\":99999999999999999999999", ".json:1: "},
        {"\"nodes\":4", "\"nodes\":4294967297", "key \"nodes\": found 4294967297"},
        {"\"nodes\":4,", "", "key \"nodes\": found nothing"},
        {"\"nodes\":4", "\"nodes\":4,\"nodes\":5", ".json:1: "},
        {"\"node\":\"n\"", "\"node\":\"m\"", "key \"node\": found \"m\", allowed a NAME"},
        {"\"node\":\"n\"", "\"node\":\"../n\"", "key \"node\": found \"../n\""},
        {"fat_tree", "torus", "key \"topology.type\": found \"torus\""},
        {"1.0}", "0.5}", "key \"topology.oversubscription\": found 0.5"},
        {"\"oversubscription\":1.0", "\"tiers\":[{},{},{},{}]", "an array of up to 3 tiers"},
        {"\"oversubscription\":1.0", "\"tiers\":[{\"oversubscription\":0.5}]",
         "key \"topology.tiers[0].oversubscription\": found 0.5"},
        {"\"oversubscription\":1.0", "\"tiers\":[{\"gpus\":12}]",
         "key \"topology.tiers[0].gpus\": found 12, allowed a whole number of the groups below"},
        {"\"oversubscription\":1.0", "\"tiers\":[{\"rails\":0}]",
         "key \"topology.tiers[0].rails\": found 0"},
        {"\"oversubscription\":1.0", "\"oversubscription\":2,\"tiers\":[{}]",
         "one of topology.oversubscription and topology.tiers"},
        {"fat_tree", "platform", "key \"topology.file\": found nothing"},
        {"\"type\":\"nvswitch\"", "\"type\":\"nvswitch\",\"pcie_switches\":2",
         "key \"intra_node.pcie_switches\": found 2, allowed nothing"},
        {"\"type\":\"nvswitch\"", "\"type\":\"pcie\",\"pcie_switches\":2",
         "key \"intra_node.switch_bandwidth_bytes_per_s_per_direction\": found nothing"},
        {"\"type\":\"nvswitch\"", "\"type\":\"pcie\",\"pcie_switches\":2,\"sockets\":3",
         "key \"intra_node.sockets\": found 3, allowed at most"},
        {"\"type\":\"nvswitch\"", "\"type\":\"pcie\",\"sockets\":2",
         "key \"intra_node.pcie_switches\": found nothing"},
        {"\"type\":\"nvswitch\"", "\"type\":\"pcie\",\"peer_to_peer\":3",
         "key \"intra_node.peer_to_peer\": found 3"},
        {"}}", "}", ".json:1: "},
        {"\"kind\":\"cluster\"", "\"kind\":\"rack\"", "key \"kind\": found \"rack\""},
        {"\"gpus_per_node\":8", "\"gpus_per_node\":null",
         "node-n.json: key \"gpus_per_node\": found null"},
        {"nvswitch", "infinity", "key \"intra_node.type\": found \"infinity\""},
        {"nvswitch", "none", "key \"intra_node.type\": found \"none\""},
        {"per_gpu_per_direction\":450e9", "per_gpu_per_direction\":-1",
         "key \"intra_node.bandwidth_bytes_per_s_per_gpu_per_direction\": found -1"},
        {"per_direction\":50e9", "per_direction\":0", "found 0"},
        {"\"count\":8", "\"count\":true", "key \"nics.count\": found true"},
        {"\"nics\":{", "\"nics\":[],\"x\":{", "key \"nics\": found []"},
        {"\"bf16\":1e15", "\"bf16\":989", "gpu-g.json: key \"peak_dense_flop_per_s.bf16\": found"},
        {"\"bf16\":1e15", "\"bf16\":1e999", ".json:1: "},
        {"\"sm_count\":132,", "", "gpu-g.json: key \"sm_count\": found nothing"},
        {"\"kind\":\"gpu\"", "\"kind\":\"node\"", "gpu-g.json: key \"kind\""},
        {"\"sm_count\":132", "\"sm_count\":132,\"traits\":[1]",
         "key \"traits\": found [1], allowed an object"},
        {"\"sm_count\":132", "\"sm_count\":132,\"traits\":{\"links\":0}",
         "key \"traits.links\": found 0, allowed an integer from 1 to 1024"},
        {"\"sm_count\":132", "\"sm_count\":132,\"traits\":{\"has_flash3\":1}",
         "key \"traits.has_flash3\": found 1, allowed true or false"},
        {"\"sm_count\":132", "\"sm_count\":132,\"traits\":{\"nvls_efficiency\":85}",
         "key \"traits.nvls_efficiency\": found 85, allowed a number from 0 to 1"},
        {"\"sm_count\":132", "\"sm_count\":132,\"traits\":{\"sharp\":true}",
         "key \"traits.sharp\""},
    };
    char dir[] = "/tmp/tsr-cluster-XXXXXX", path[300];
    struct tsr_cluster c;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/cluster-c.json", dir);
    for (size_t i = 0; i <= sizeof bads / sizeof bads[0]; i++) {
        bool good = i == sizeof bads / sizeof bads[0];
        const char *from = good ? NULL : bads[i].from, *to = good ? NULL : bads[i].to;
        bool found =
            good || strstr(cluster_text, from) || strstr(node_text, from) || strstr(gpu_text, from);
        assert_true(found);
        write_file(dir, "cluster-c.json", cluster_text, from, to);
        write_file(dir, "node-n.json", node_text, from, to);
        write_file(dir, "gpu-g.json", gpu_text, from, to);
        tsr_status status = tsr_cluster_load(path, NULL, &store, &c);
        if (good) {
            assert_int_equal(status, TSR_OK);
            continue;
        }
        if (status != TSR_ECONFIG || !strstr(tsr_error_text(), bads[i].message) ||
            strchr(tsr_error_text(), '\n') || strncmp(tsr_error_text(), dir, strlen(dir)) != 0)
            fail_msg("%s -> %s: %s", from, to, tsr_error_text());
        assert_int_equal(c.nodes, 0);
    }
    static const char *const names[] = {"cluster-c.json", "node-n.json", "gpu-g.json"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

/* A family gives the traits; a device file changes some of them. A card of a family that is not
 * known has none of what only some cards have. */
static void a_file_says_the_traits_of_its_card(void **state)
{
    static const char own[] = "\"sm_count\":132,\"traits\":{\"links\":6,\"has_flash3\":false,"
                              "\"ll_max_bw\":1e11}";
    char dir[] = "/tmp/tsr-traits-XXXXXX", path[300];
    struct tsr_gpu gpu;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/gpu-g.json", dir);
    write_file(dir, "gpu-g.json", gpu_text, "\"sm_count\":132", own);
    assert_int_equal(tsr_gpu_load(path, NULL, &store, &gpu), TSR_OK);
    assert_int_equal(gpu.traits.links, 6);
    assert_false(gpu.traits.has_flash3);
    assert_float_equal(gpu.traits.ll_max_bw, 1e11, 0);
    assert_float_equal(gpu.traits.nvls_efficiency, 0.85, 0); /* Hopper's */
    write_file(dir, "gpu-g.json", gpu_text, "Hopper", "Ada Lovelace");
    assert_int_equal(tsr_gpu_load(path, NULL, &store, &gpu), TSR_OK);
    assert_false(gpu.traits.receiver_reads || gpu.traits.has_multicast || gpu.traits.has_flash3);
    assert_float_equal(gpu.traits.nvls_efficiency, 0, 0);
    unlink(path);
    rmdir(dir);
    assert_string_equal(tsr_gpu_architecture(89), "Ada Lovelace");
    assert_string_equal(tsr_gpu_architecture(86), "Ampere");
    assert_string_equal(tsr_gpu_architecture(120), "Blackwell");
    assert_string_equal(tsr_gpu_architecture(0), "unknown");
}

static void a_missing_file_is_named(void **state)
{
    struct tsr_cluster c;
    (void)state;
    assert_int_equal(tsr_cluster_load("/nowhere/cluster-x.json", NULL, &store, &c), TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), "/nowhere/cluster-x.json"));
}

/* ---- clusters in a few keys ------------------------------------------------------------------ */

static void make(const char *gpu, const struct tsr_cluster_keys *keys, struct tsr_cluster *c)
{
    char path[512];
    snprintf(path, sizeof path, "%s/experiments/clusters/gpu-%s.json", source_dir(), gpu);
    if (tsr_cluster_make(path, keys, NULL, &store, c) != TSR_OK)
        fail_msg("%s: %s", gpu, tsr_error_text());
}

/* Nothing but the number of GPUs: a node as the file of the reference says, each value with its
 * source. */
static void a_card_has_its_reference_node(void **state)
{
    static const char *const rows[][2] = {
        {"a100-sxm4-40g", "dgx-a100-40g"}, {"a100-sxm4-80g", "dgx-a100-80g"},
        {"b200-sxm", "dgx-b200"},          {"gb200", "gb200-nvl72-tray"},
        {"gh200-96g", "alps-gh200"},       {"h100-sxm5-80g", "dgx-h100"},
        {"h200-sxm", "dgx-h200"},          {"h100-sxm5-96g-500w", "grand-teton-h100-96g"},
        {"l40s", "pcie-l40s-8"},           {"rtx-4090", "pcie-4090-8"}};
    struct tsr_cluster c, node;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char file[80];
        snprintf(file, sizeof file, "node-%s.json", rows[i][1]);
        load(file, &node);
        make(rows[i][0], &(struct tsr_cluster_keys){.nodes = 3, .gpus = node.gpus_per_node}, &c);
        assert_string_equal(c.node_name, rows[i][1]);
        assert_string_equal(c.gpu.name, rows[i][0]);
        assert_int_equal(c.intra, node.intra);
        assert_int_equal(c.multicast, node.multicast);
        assert_close(c.intra_bw, node.intra_bw, 0.0);
        assert_int_equal(c.nics_per_node, node.nics_per_node);
        assert_close(c.nic_bw, node.nic_bw, 0.0);
        assert_close(c.nic_latency_s, node.nic_latency_s, 0.0);
        assert_close(c.nic_fill_s, node.nic_fill_s, 0.0);
        assert_int_equal(c.nodes, 3);
        assert_int_equal(c.n_tiers, 0);
        assert_true(c.n_derived >= 4);
    }
}

static void keys_go_before_the_reference(void **state)
{
    struct tsr_cluster c;
    (void)state;
    const struct tsr_cluster_keys all = {.nodes = 8,
                                         .gpus = 16,
                                         .nics = 4,
                                         .nvlink = TSR_NVLINK_DIRECT,
                                         .nic_gbit = 100,
                                         .oversubscription = 3,
                                         .leaf_nodes = 2};
    make("h100-sxm5-80g", &all, &c);
    assert_int_equal(c.gpus_per_node, 16);
    assert_int_equal(c.nvlink_domain_gpus, 16);
    assert_int_equal(c.intra, TSR_INTRA_NVLINK);
    assert_false(c.multicast);
    assert_int_equal(c.nics_per_node, 4);
    assert_close(c.nic_bw, 12.5e9, 0.0);
    assert_int_equal(c.n_tiers, 1);
    assert_int_equal(c.tiers[0].below_gpus, 32);
    assert_close(c.tiers[0].oversubscription, 3.0, 0.0);
    /* half the GPUs have half the adapters; one has no link inside */
    make("h100-sxm5-80g", &(struct tsr_cluster_keys){.nodes = 2, .gpus = 4}, &c);
    assert_int_equal(c.nics_per_node, 4);
    make("h100-sxm5-80g", &(struct tsr_cluster_keys){.gpus = 1}, &c);
    assert_int_equal(c.intra, TSR_INTRA_NONE);
    assert_int_equal(c.nodes, 1);
    make("h100-sxm5-80g", &(struct tsr_cluster_keys){.gpus = 8, .nvlink = TSR_NVLINK_NONE}, &c);
    assert_int_equal(c.intra, TSR_INTRA_PCIE);
    assert_close(c.intra_bw, 63e9, 0.0);
}

static void a_file_is_changed_in_its_own_terms(void **state)
{
    struct tsr_cluster c;
    (void)state;
    load("cluster-racks-of-two.json", &c); /* racks of 2 nodes, 4 : 1 */
    uint32_t below = c.tiers[0].below_gpus, gpus = c.gpus_per_node;
    assert_int_equal(tsr_cluster_change(&c, &(struct tsr_cluster_keys){.nic_gbit = 200}), TSR_OK);
    assert_close(c.nic_bw, 25e9, 0.0);
    assert_int_equal(c.tiers[0].below_gpus, below);
    assert_int_equal(tsr_cluster_change(&c, &(struct tsr_cluster_keys){.gpus = gpus / 2}), TSR_OK);
    assert_int_equal(c.tiers[0].below_gpus, below / 2);
    assert_int_equal(tsr_cluster_change(&c, &(struct tsr_cluster_keys){.oversubscription = 1}),
                     TSR_OK);
    assert_int_equal(c.n_tiers, 0);
    load("cluster-gb200-nvl72.json", &c);
    assert_int_equal(tsr_cluster_change(&c, &(struct tsr_cluster_keys){.nodes = 20}), TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), "cluster.nodes: found 20; allowed: multiples of 18"));
    load("node-pcie-l40s-8.json", &c);
    assert_int_equal(
        tsr_cluster_change(&c, &(struct tsr_cluster_keys){.nvlink = TSR_NVLINK_SWITCH}),
        TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), "device file l40s has no NVLink"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_loads),
        cmocka_unit_test(values_are_what_the_files_say),
        cmocka_unit_test(bad_files_give_one_line),
        cmocka_unit_test(a_file_says_the_traits_of_its_card),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(a_card_has_its_reference_node),
        cmocka_unit_test(keys_go_before_the_reference),
        cmocka_unit_test(a_file_is_changed_in_its_own_terms),
    };
    return cmocka_run_group_tests_name("cluster", tests, NULL, NULL);
}
