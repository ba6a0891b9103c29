/* test_cluster_xml.c: topologies of NCCL and platforms of SimGrid: what they mean, that folding
 * keeps them, and that bad ones are refused in one line. */
#include "tests/sim/sim_testing.h"

#include <unistd.h>

/* Keeps the kernel tables of the cards of all tests. */
static struct tsr_kernel_store store;

#ifdef TSR_HAVE_EXPAT

static char folder[] = "/tmp/tsr-xml-XXXXXX";

static char *slurp(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 16);
    assert_non_null(file);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 16) - 1, file) > 0);
    fclose(file);
    return text;
}

static void shipped(const char *name, char path[512])
{
    const char *dir = getenv("TSR_SOURCE_DIR");
    snprintf(path, 512, "%s/experiments/clusters/%s", dir ? dir : ".", name);
}

/* Copies a shipped file, every `from` replaced by `to` (first: only the first one). */
static const char *changed(const char *name, const char *from, const char *to, bool first)
{
    static char out[600];
    char path[512];
    shipped(name, path);
    char *text = slurp(path);
    snprintf(out, sizeof out, "%s/file.xml", folder);
    FILE *file = fopen(out, "w");
    assert_non_null(file);
    const char *at = text;
    for (const char *hit; (hit = strstr(at, from)) != NULL; at = hit + strlen(from)) {
        fprintf(file, "%.*s%s", (int)(hit - at), at, to);
        if (first) {
            at = hit + strlen(from);
            break;
        }
    }
    fputs(at, file);
    fclose(file);
    free(text);
    return out;
}

/* ---- NCCL -------------------------------------------------------------------------------- */

static void a_dgx_is_what_nccl_saw(void **state)
{
    struct tsr_cluster c;
    char path[512], gpu[64];
    (void)state;
    shipped("nccl-dgx-a100.xml", path);
    assert_int_equal(tsr_cluster_load_xml(path, 2, 0, &c, gpu), TSR_OK);
    assert_string_equal(gpu, "a100-sxm4-80g");
    assert_string_equal(c.name, "nccl-dgx-a100");
    assert_int_equal(c.nodes, 2);
    assert_int_equal(c.gpus_per_node, 8);
    assert_int_equal(c.intra, TSR_INTRA_NVSWITCH);
    assert_close(c.intra_bw, 300e9, 0.0); /* 12 links of 25 GB/s */
    assert_int_equal(c.nics_per_node, 8); /* not the two 10 Gb/s ports */
    assert_close(c.nic_bw, 25e9, 0.0);
    for (uint8_t i = 0; i < 8; i++)
        assert_int_equal(c.places.nic_of_gpu[i], i);
}

static void a_pcie_box_is_what_nccl_saw(void **state)
{
    struct tsr_cluster c;
    char path[512], gpu[64];
    (void)state;
    shipped("nccl-pcie-l40s.xml", path);
    assert_int_equal(tsr_cluster_load_xml(path, 0, 0, &c, gpu), TSR_OK);
    assert_string_equal(gpu, "l40s");
    assert_int_equal(c.nodes, 1);
    assert_int_equal(c.intra, TSR_INTRA_PCIE);
    assert_close(c.intra_bw, 16e9 / 8 * 16 * 128 / 130, 1e-12); /* 4.0 x16 */
    assert_int_equal(c.places.switches, 4);
    assert_int_equal(c.places.sockets, 2);
    assert_close(c.places.socket_bw, 22e9, 0.0);
    assert_int_equal(c.nics_per_node, 2);
    for (uint8_t i = 0; i < 8; i++) {
        assert_int_equal(c.places.switch_of_gpu[i], i / 2);
        assert_int_equal(c.places.nic_of_gpu[i], i / 4); /* the one of its socket */
    }
    assert_int_equal(c.places.switch_of_nic[1], 2);
    assert_int_equal(c.places.socket_of_switch[1], 0);
    assert_int_equal(c.places.socket_of_switch[2], 1);
}

/* The same machine as a node file says the same. */
static void a_node_file_has_the_same_tree(void **state)
{
    struct tsr_cluster xml, json;
    char path[512], gpu[64];
    (void)state;
    shipped("nccl-pcie-l40s.xml", path);
    assert_int_equal(tsr_cluster_load_xml(path, 0, 0, &xml, gpu), TSR_OK);
    shipped("node-pcie-l40s-8-switched.json", path);
    assert_int_equal(tsr_cluster_load(path, NULL, &store, &json), TSR_OK);
    assert_int_equal(json.places.switches, xml.places.switches);
    assert_int_equal(json.places.sockets, xml.places.sockets);
    assert_close(json.places.switch_bw, xml.places.switch_bw, 1e-3);
    assert_close(json.places.socket_bw, xml.places.socket_bw, 0.0);
    assert_memory_equal(json.places.switch_of_gpu, xml.places.switch_of_gpu, 8);
    assert_memory_equal(json.places.socket_of_switch, xml.places.socket_of_switch, 4);
    assert_memory_equal(json.places.switch_of_nic, xml.places.switch_of_nic, 2);
}

struct bad {
    const char *file, *from, *to, *message;
    uint32_t nodes, gpus_per_node;
};

static void bad_files_are_refused(void **state)
{
    static const char dgx[] = "nccl-dgx-a100.xml", box[] = "nccl-pcie-l40s.xml";
    static const char rack[] = "platform-leaf-spine.xml";
    static const struct bad bads[] = {
        {dgx, "</gpu>", "", ":13: found mismatched tag, allowed a well-formed XML file", 1, 0},
        {dgx, "</system>", "", "found no element found", 1, 0},
        {dgx, "<gpu ", "<gpx ", "found mismatched tag", 1, 0},
        {dgx, "dev=\"0\" sm=\"80\"", "sm=\"80\"", ":5: <gpu>: has no attribute dev", 1, 0},
        {dgx, "dev=\"0\" sm=\"80\"", "dev=\"1\" sm=\"80\"", ":15: <gpu>: found dev 1 twice", 1, 0},
        {dgx, "sm=\"80\"", "sm=\"eighty\"", ":5: <gpu>: sm: found \"eighty\"", 1, 0},
        {dgx, "count=\"2\"", "count=\"0\"", ":6: <nvlink>: count: found \"0\"", 1, 0},
        {dgx, "count=\"2\"", "count=\"1\"", "found NVLinks of 300 GB/s, allowed 275 GB/s", 1, 0},
        {dgx, "speed=\"200000\"", "speed=\"0\"", ":26: <net>: speed: found \"0\"", 1, 0},
        {dgx, "speed=\"200000\"", "", ":26: <net>: has no attribute speed", 1, 0},
        {dgx, "zzzz", "", "found 8 GPUs, allowed gpus_per_node: null or 8", 1, 4},
        {box, "<net name=\"mlx5_0\"", "<nat name=\"mlx5_0\"", "", 2, 0}, /* the other is used */
        {box, "link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">\n        <gpu",
         "link_width=\"0\">\n        <gpu", "<gpu>: dev 0: its <pci> has no link_speed", 1, 0},
        {rack, "400GBps", "0GBps", "file.xml: link port-1_UP: found bandwidth 0, allowed", 0, 8},
        {rack, "id=\"leaf-1\"", "id=\"leaf-9\"", "SimGrid does not take this platform: ", 0, 8},
        {rack, "zzzz", "", "found 8 hosts, allowed at least the 9 of nodes", 9, 8},
    };
    struct tsr_cluster c;
    char gpu[64];
    (void)state;
    for (size_t i = 0; i < sizeof bads / sizeof bads[0]; i++) {
        const struct bad *b = &bads[i];
        const char *path = changed(b->file, b->from, b->to, true);
        tsr_status status = tsr_cluster_load_xml(path, b->nodes, b->gpus_per_node, &c, gpu);
        if (status == TSR_OK && *c.platform) { /* routes are looked at when a job runs */
            struct job *job = job_create(c.nodes * c.gpus_per_node, 1, 1);
            struct tsr_sim_options o = exact_options();
            struct tsr_sim_result *result;
            status = tsr_sim_run(&c, &job->sim, &o, &result);
            job_destroy(job);
        }
        if (!*b->message) {
            assert_int_equal(status, TSR_OK);
            continue;
        }
        if (status != TSR_ECONFIG || !strstr(tsr_error_text(), b->message))
            fail_msg("case %zu: status %d: %s", i, (int)status, tsr_error_text());
        assert_null(strchr(tsr_error_text(), '\n'));
    }
    assert_int_equal(tsr_cluster_load_xml(changed(dgx, "<net ", "<nat ", false), 2, 0, &c, gpu),
                     TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), "cannot reach each other, allowed nodes: 1"));
    assert_int_equal(tsr_cluster_load_xml(changed(dgx, "system", "cluster", false), 1, 0, &c, gpu),
                     TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), ":1: <cluster>: found as root, allowed <system>"));
    assert_int_equal(
        tsr_cluster_load_xml(changed(dgx, "0x068000", "0x030200", false), 1, 0, &c, gpu),
        TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), ":5: <gpu>: dev 0: NVLink reaches 6 of 7 other GPUs"));
    assert_int_equal(tsr_cluster_load_xml("/nowhere.xml", 1, 0, &c, gpu), TSR_ECONFIG);
}

/* ---- SimGrid ----------------------------------------------------------------------------- */

/* Nodes of 8 GPUs on two leaves of four; the platform has no GPU: give it one. */
static void load_rack(const char *path, uint32_t nodes, uint32_t gpus_per_node,
                      struct tsr_cluster *c)
{
    struct tsr_cluster with = test_cluster(1);
    char gpu[64];
    if (tsr_cluster_load_xml(path, nodes, gpus_per_node, c, gpu) != TSR_OK)
        fail_msg("%s", tsr_error_text());
    c->gpu = with.gpu;
    c->intra_bw = with.intra_bw;
}

static double all_gather(const struct tsr_cluster *c, uint32_t size, uint32_t stride, bool fold)
{
    struct tsr_sim_options o = exact_options();
    uint32_t world = c->nodes * c->gpus_per_node;
    struct job *job = job_create(world, 1, 1);
    o.fold = fold;
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, job_comm(job, "g", size, stride, -1),
                   8000000000);
    double seconds = run_time(c, job, &o);
    job_destroy(job);
    return seconds;
}

/* Eight rings leave a node at 400 GB/s; 64 one-GPU-a-node flows cross the spine at `up` GB/s. */
static void flows_go_over_the_platform(void **state)
{
    char path[512];
    struct tsr_cluster c;
    (void)state;
    shipped("platform-leaf-spine.xml", path);
    for (int fold = 0; fold < 2; fold++) {
        load_rack(path, 0, 8, &c);
        assert_int_equal(c.nodes, 8);
        assert_close(all_gather(&c, 8, 8, fold), 7e9 / 50e9, 1e-12);
        load_rack(changed("platform-leaf-spine.xml", "800GBps", "80GBps", false), 0, 8, &c);
        assert_close(all_gather(&c, 8, 8, fold), 7e9 / 10e9, 1e-12); /* 8 flows over 80 GB/s */
        load_rack(path, 4, 1, &c);                                   /* hosts are GPUs */
        assert_close(all_gather(&c, 4, 1, fold), 6e9 / 400e9, 1e-12);
    }
}

/* Half duplex: what comes and what goes share. FATPIPE: nobody shares. */
static void sharing_policies_are_kept(void **state)
{
    static const char plain[] = "platform-leaf-spine.xml";
    static const char *const policies[] = {"SHARED", "FATPIPE"};
    static const double rates[] = {25e9, 400e9};
    struct tsr_cluster c;
    char text[600];
    (void)state;
    for (int i = 0; i < 2; i++) {
        char other[] = "/tmp/tsr-policy-XXXXXX";
        char *copy = slurp(changed(plain, "SPLITDUPLEX", policies[i], false));
        int fd = mkstemp(other);
        FILE *file = fdopen(fd, "w");
        assert_non_null(file);
        for (char *at = copy; *at;) { /* a direction belongs to SPLITDUPLEX only */
            bool skip = !strncmp(at, " direction=", 11);
            for (int quotes = 0; skip && quotes < 2; at++)
                quotes += *at == '"';
            if (!skip)
                fputc(*at++, file);
        }
        fclose(file);
        free(copy);
        for (int fold = 0; fold < 2; fold++) {
            load_rack(other, 4, 8, &c);
            snprintf(text, sizeof text, "%s", policies[i]);
            assert_close(all_gather(&c, 4, 8, fold), 6e9 / rates[i], 1e-12);
        }
        unlink(other);
    }
}

/* An uneven platform: one leaf of three nodes, one of four; a step of several collectives. */
static void a_folded_platform_is_the_whole_one(void **state)
{
    (void)state;
    for (uint32_t nodes = 2; nodes <= 8; nodes += 3) {
        struct tsr_cluster c;
        double end[2];
        load_rack(changed("platform-leaf-spine.xml", "800GBps", "90GBps", true), nodes, 8, &c);
        for (int fold = 0; fold < 2; fold++) {
            struct tsr_sim_options o = tsr_sim_options_default();
            struct job *job = job_create(nodes * 8, 1, 2);
            uint16_t shard = job_comm(job, "shard", 8, 1, -1);
            uint16_t copies = job_comm(job, "copies", nodes, 8, -1);
            for (int it = 0; it < 2; it++)
                put_step(job, 0, it, 3, shard, copies, 200000000, 700.0);
            o.fold = fold;
            end[fold] = run_time(&c, job, &o);
            job_destroy(job);
        }
        assert_close(end[1], end[0], 1e-12);
    }
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char path[600];
    (void)state;
    snprintf(path, sizeof path, "%s/file.xml", folder);
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dgx_is_what_nccl_saw),
        cmocka_unit_test(a_pcie_box_is_what_nccl_saw),
        cmocka_unit_test(a_node_file_has_the_same_tree),
        cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test(flows_go_over_the_platform),
        cmocka_unit_test(sharing_policies_are_kept),
        cmocka_unit_test(a_folded_platform_is_the_whole_one),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
#else
int main(void)
{
    return 0; /* a build without expat reads no XML, and says so at configure time */
}
#endif
