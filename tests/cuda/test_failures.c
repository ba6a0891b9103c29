/* test_failures.c: every entry point that a device calls fails once, at its first call and at a
 * later one: the run ends with a failure that says what CUDA said, nothing is left behind, and
 * nothing hangs. Errors that only the device has (work that fails late) are told with the last
 * instructions.
 */
#include <string.h>

#define TSR_TEST_CUDA 1
#include "tests/exec/instrs_testing.h"

static const struct tsr_exec_config poisoned = {.poison = true, .profile = true};

static tsr_status init(void *user, const struct tsr_piece *piece, void *out)
{
    (void)user;
    (void)piece;
    memset(out, 0, LIST_BYTES);
    return TSR_OK;
}

/* As list_open(), but a device that cannot be made is a failure like others. */
static tsr_status try_run(const struct list *l, uint64_t *hash)
{
    const struct tsr_source source = {.init = init};
    struct tsr_world *world;
    void *shared;
    struct tsr_exec_config x = poisoned;
    struct tsr_exec *exec = tsr_exec_new();
    assert_non_null(exec);
    assert_int_equal(tsr_kernels_init(), TSR_OK);
    assert_int_equal(tsr_world_threads(1, 10, &world), TSR_OK);
    assert_int_equal(test_share(1, &shared), TSR_OK);
    const struct test_device device = {.world = world, .exec = exec, .shared = shared};
    x.world = world;
    x.source = &source;
    tsr_status status = test_device_create(&device, &x.device);
    struct tsr_executor *executor = tsr_exec_start(exec, &x);
    tsr_exec_set_tables(executor, &list_tables);
    for (size_t i = 0; i < l->n && status == TSR_OK; i++)
        status = executor->ops->submit(executor, &l->instrs[i]);
    if (status == TSR_OK)
        status = executor->ops->drain(executor);
    if (status == TSR_OK)
        *hash = tsr_exec_hash(executor);
    char text[512];
    snprintf(text, sizeof text, "%s", tsr_error_text());
    executor->ops->destroy(executor);
    test_unshare(shared);
    world->ops->destroy(world);
    return status == TSR_OK ? TSR_OK : tsr_fail(status, "%s", text);
}

static void begin(struct list *l)
{
    const struct tsr_standin_config config = tsr_standin_default();
    list_all_kinds(l);
    tsr_standin_configure(&config);
}

/* What closes is not told of: nobody could do anything about it. */
static bool may_be_silent(const char *entry)
{
    static const char *const silent[] = {"cudaEventDestroy",
                                         "cudaStreamDestroy",
                                         "cudaFree",
                                         "cudaFreeHost",
                                         "cuMemUnmap",
                                         "cuMemAddressFree",
                                         "cuMemAddressReserve",       /* asks for fewer then */
                                         "cuMulticastGetGranularity", /* has none then */
                                         "cudaSetDevice",
                                         "cudaDriverGetVersion",
                                         "cudaEventQuery",
                                         "cudaPointerGetAttributes", /* is host memory pinned? */
                                         "cudaStreamIsCapturing",
                                         "cudaThreadExchangeStreamCaptureMode",
                                         "cudaRuntimeGetVersion"};
    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++)
        if (!strcmp(entry, silent[i]))
            return true;
    return false;
}

static void fail_at(const struct list *l, const char *entry, uint64_t n, uint64_t expected)
{
    const struct tsr_standin_config config = tsr_standin_default();
    int64_t live = tsr_standin_live();
    uint64_t hash = 0;
    tsr_standin_configure(&config);
    tsr_standin_fail(entry, n, cudaErrorIllegalAddress);
    tsr_status status = try_run(l, &hash);
    if (!tsr_standin_failed())
        fail_msg("%s is not called %llu times", entry, (unsigned long long)n);
    bool told = status != TSR_OK && strlen(tsr_error_text()) > 10;
    bool right = status == TSR_OK && hash == expected && may_be_silent(entry);
    if (!told && !right)
        fail_msg("call %llu of %s fails, and the run does not", (unsigned long long)n, entry);
    /* what could not be closed stays */
    if (tsr_standin_live() != live && !strstr(entry, "Destroy") && !strstr(entry, "Free") &&
        !strstr(entry, "Release") && strcmp(entry, "cuMemUnmap") != 0)
        fail_msg("call %llu of %s fails: %lld objects are left", (unsigned long long)n, entry,
                 (long long)(tsr_standin_live() - live));
}

enum { MOST = 64 };

static void every_entry__fails_once__told_and_nothing_left(void **state)
{
    static struct list l;
    struct {
        const char *name;
        uint64_t calls;
    } entries[MOST];
    size_t n = 0;
    uint64_t hash = 0;
    (void)state;
    begin(&l);
    assert_int_equal(try_run(&l, &hash), TSR_OK);
    assert_int_equal(hash, list_expected(&l));
    assert_int_equal(tsr_standin_live(), 0);
    assert_int_equal(tsr_standin_device_bytes(), 0);
    while (n < MOST && tsr_standin_called(n, &entries[n].name, &entries[n].calls))
        n++;
    assert_true(n > 20 && n < MOST);
    for (size_t i = 0; i < n; i++) {
        fail_at(&l, entries[i].name, 1, hash);
        if (entries[i].calls > 1 && strcmp(entries[i].name, "cudaEventQuery") != 0)
            fail_at(&l, entries[i].name, (entries[i].calls + 1) / 2, hash);
    }
}

/* CUDA tells of it with whatever is called next. */
static void work__fails_late__told_with_the_last_instructions(void **state)
{
    static struct list l;
    const struct tsr_standin_config config = tsr_standin_default();
    uint64_t hash;
    int64_t live = tsr_standin_live();
    (void)state;
    begin(&l);
    tsr_standin_configure(&config);
    tsr_standin_fail("(work)", 9, cudaErrorIllegalAddress);
    assert_int_equal(try_run(&l, &hash), TSR_EBACKEND);
    if (!strstr(tsr_error_text(), "an illegal memory access"))
        fail_msg("%s", tsr_error_text());
    assert_int_equal(tsr_standin_live(), live);
}

static void memory__too_little__out_of_memory(void **state)
{
    static struct list l;
    struct tsr_standin_config config = tsr_standin_default();
    uint64_t hash;
    int64_t live = tsr_standin_live();
    (void)state;
    begin(&l);
    config.memory = UINT64_C(1) << 20;
    tsr_standin_configure(&config);
    assert_int_equal(try_run(&l, &hash), TSR_EOOM);
    assert_int_equal(tsr_standin_live(), live);
}

static void gpus__missing_or_old__one_line(void **state)
{
    static struct list l;
    struct {
        int driver, gpus, major;
        tsr_status status;
        const char *text;
    } cases[] = {{0, 1, 9, TSR_EBACKEND, "found no driver"},
                 {12040, 1, 9, TSR_EBACKEND, "found a driver for CUDA 12.4"},
                 {13000, 0, 9, TSR_EBACKEND, "found a driver and no GPU"},
                 {13000, 1, 7, TSR_EUNSUPPORTED, "compute capability 7.0"}};
    uint64_t hash;
    int64_t live = tsr_standin_live();
    (void)state;
    begin(&l);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tsr_standin_config config = tsr_standin_default();
        config.driver = cases[i].driver;
        config.gpus = cases[i].gpus;
        config.major = cases[i].major;
        tsr_standin_configure(&config);
        assert_int_equal(try_run(&l, &hash), cases[i].status);
        if (!strstr(tsr_error_text(), cases[i].text))
            fail_msg("\"%s\" is not in \"%s\"", cases[i].text, tsr_error_text());
        assert_int_equal(tsr_standin_live(), live);
    }
}

/* A program that was built for other GPUs says so, and what to do. */
static void kernels__for_other_gpus__one_line(void **state)
{
    static struct list l;
    const struct tsr_standin_config config = tsr_standin_default();
    uint64_t hash;
    (void)state;
    begin(&l);
    tsr_standin_configure(&config);
    tsr_standin_fail("cudaLaunchKernel", 1, cudaErrorNoKernelImageForDevice);
    assert_int_equal(try_run(&l, &hash), TSR_EUNSUPPORTED);
    assert_non_null(strstr(tsr_error_text(), "TESSERA_CUDA_ARCHITECTURES=ALL"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_entry__fails_once__told_and_nothing_left),
        cmocka_unit_test(work__fails_late__told_with_the_last_instructions),
        cmocka_unit_test(memory__too_little__out_of_memory),
        cmocka_unit_test(gpus__missing_or_old__one_line),
        cmocka_unit_test(kernels__for_other_gpus__one_line),
    };
    return cmocka_run_group_tests_name("failures", tests, NULL, NULL);
}
