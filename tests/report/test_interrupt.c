/* test_interrupt.c: a program that makes files and is interrupted leaves none of them, whichever of
 * its threads the signal comes to.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>

#include "experiments/study/base/interrupt.h"
#include "tests/report/scratch.h"

enum { ROUNDS = 60, LONGEST_S = 30 };

struct program {
    const char *folder;
    bool at_main; /* the signal comes to the thread that makes files, not to another */
    unsigned after_us;
    pthread_t main;
    atomic_bool began; /* there was a file */
};

static _Noreturn void *interrupt(void *user)
{
    struct program *p = user;
    while (!atomic_load(&p->began))
        (void)usleep(10);
    (void)usleep(p->after_us);
    (void)pthread_kill(p->at_main ? p->main : pthread_self(), SIGHUP);
    for (;;)
        (void)pause();
}

/* Ends by the signal; never returns. */
static _Noreturn void make_files(struct program *p)
{
    pthread_t other;
    char path[300];
    (void)alarm(LONGEST_S);
    tsr_interrupt_handle();
    p->main = pthread_self();
    if (pthread_create(&other, NULL, interrupt, p) != 0)
        _exit(2);
    for (;;) {
        (void)snprintf(path, sizeof path, "%s/unfinished", p->folder);
        int fd = tsr_interrupt_create(NULL, path);
        if (fd < 0)
            _exit(3);
        atomic_store(&p->began, true);
        (void)close(fd);
        (void)unlink(path);
        tsr_interrupt_keep(path);
    }
}

static void interrupt_many_times(bool at_main)
{
    struct scratch scratch = scratch_create();
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct program program = {
            .folder = scratch.path, .at_main = at_main, .after_us = i * 37 % 1000};
        int status = 0;
        pid_t pid = fork();
        if (pid == 0)
            make_files(&program);
        assert_true(pid > 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), SIGHUP);
        assert_int_equal(scratch_n_entries(scratch.path), 0);
    }
    scratch_destroy(&scratch);
}

static void test_signal__to_the_thread_that_makes_files__none_is_left(void **state)
{
    (void)state;
    interrupt_many_times(true);
}

static void test_signal__to_another_thread__none_is_left(void **state)
{
    (void)state;
    interrupt_many_times(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signal__to_the_thread_that_makes_files__none_is_left),
        cmocka_unit_test(test_signal__to_another_thread__none_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
