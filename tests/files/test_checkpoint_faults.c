/* test_checkpoint_faults.c: what is left of a checkpoint when any call of the system fails, or is
 * the last one of the process, or the power goes.
 */
#include "tests/files/checkpoint_testing.h"

/* Step 1 is there; step 2 (or step 1 again) meets a fault at call k of the system. */
static bool save_until(const struct tsr_state_dict *s, enum test_fault fault, long k, uint64_t step)
{
    const char *dir = test_path("fault");
    struct test_disk disk;
    struct rank ranks[MAX_WORLD];
    struct job first = job_of(s, dir, 1), second = job_of(s, dir, step);
    test_disk_init(&disk, TEST_FAIL_ONCE, -1, 0);
    first.config.disk = &disk.ops;
    assert_int_equal(save(&first), TSR_OK);
    test_disk_fini(&disk);

    test_disk_init(&disk, fault, k, k % 2 ? ENOSPC : EIO);
    second.config.disk = &disk.ops;
    second.config.keep = 1;
    tsr_status status = save_with(&second, ranks);
    bool is_hit = disk.calls > k;
    if (status != TSR_OK) {
        assert_int_equal(status, TSR_EIO);
        test_error_names(dir, strerror(disk.error));
    } else if (is_hit) { /* behind the commit: older ones stay */
        assert_true(fault != TEST_FAIL_ONCE || ranks[0].trouble[0]);
    }
    if (fault == TEST_POWER)
        test_disk_lose(&disk);
    test_disk_fini(&disk);

    struct tsr_checkpoint *c = open_ok(dir, true);
    uint64_t found = tsr_checkpoint_step(c);
    assert_true(found == step || (found == 1 && status != TSR_OK));
    struct tsr_checkpoint_layout to = second.layout;
    check_as(c, &to);
    tsr_checkpoint_close(c);
    return is_hit;
}

/* The next save works as if nothing had been, and leaves nothing behind. */
static void save_again(const struct tsr_state_dict *s)
{
    struct job third = job_of(s, test_path("fault"), 3);
    struct test_disk disk;
    size_t n = 0;
    test_disk_init(&disk, TEST_FAIL_ONCE, -1, 0);
    third.config.keep = 1;
    third.config.disk = &disk.ops;
    assert_int_equal(save(&third), TSR_OK);
    test_disk_fini(&disk);
    check_dir_as(test_path("fault"), &third.layout, 3);
    DIR *dir = opendir(test_path("fault"));
    for (struct dirent *d; (d = readdir(dir)) != NULL;)
        n += d->d_name[0] != '.';
    closedir(dir);
    assert_int_equal(n, 1);
}

/* Which call of which thread is the k-th differs between runs: of several ranks every third. */
static void every_call(enum test_fault fault, const struct tsr_mesh *mesh, uint64_t step)
{
    struct tsr_state_dict s = model_state(mesh, ONE_GROUP);
    long k = s.world > 1 ? (long)test_random(3) : 0;
    while (save_until(&s, fault, k, step)) {
        save_again(&s);
        test_remove(test_path("fault"));
        k += s.world > 1 ? 3 : 1;
    }
    test_remove(test_path("fault"));
    printf("%ld calls\n", k);
    assert_true(k > 20);
    tsr_state_dict_fini(&s);
}

static void every_call_may_fail(void **state)
{
    (void)state;
    every_call(TEST_FAIL_ONCE, &one, 2);
    every_call(TEST_FAIL_ONCE, &three, 2);
}

static void every_call_may_be_the_last(void **state)
{
    (void)state;
    every_call(TEST_KILL, &one, 2);
    every_call(TEST_KILL, &three, 2);
}

static void power_may_fail_at_every_call(void **state)
{
    (void)state;
    every_call(TEST_POWER, &one, 2);
    every_call(TEST_POWER, &hsdp, 2);
}

static void the_same_step_again_may_fail_at_every_call(void **state)
{
    (void)state;
    every_call(TEST_FAIL_ONCE, &one, 1);
    every_call(TEST_KILL, &one, 1);
    every_call(TEST_POWER, &one, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_may_fail), cmocka_unit_test(every_call_may_be_the_last),
        cmocka_unit_test(power_may_fail_at_every_call),
        cmocka_unit_test(the_same_step_again_may_fail_at_every_call)};
    test_seed("test_checkpoint_faults");
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
