/* interrupt.c: cleans up when the program is interrupted (interrupt.h).
 *
 * A handler can reach nothing but globals: these lists are the only ones of the program. Whoever
 * changes them holds the signals back from his thread and has the lists for himself, so the handler
 * never sees a list half changed; all that it calls is async-signal-safe.
 *
 * [Note: which thread] A signal comes to any thread that does not hold it back, and libraries have
 * threads of their own (OpenBLAS, from the start). The first thread of the process does the work:
 * it would else go on and make files meanwhile.
 */
#include "experiments/study/base/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim/base/files.h"

enum { MAX_FILES = 1024, MAX_CHILDREN = 512 };

static struct {
    atomic_flag taken; /* by a thread that changes them, with signals held back, or for good */
    pid_t owner;       /* whose the lists are */
    struct {
        int in; /* descriptor of the folder, or AT_FDCWD */
        const char *name;
    } files[MAX_FILES];
    pid_t children[MAX_CHILDREN];
    size_t n_files, n_children;
    char line[512]; /* tsr_interrupt_tell(), without its 0 */
    size_t n_line;
    bool handled; /* signals come to clean_up() */
} lists = {.taken = ATOMIC_FLAG_INIT};

static const int signals[] = {SIGHUP, SIGINT, SIGTERM};
enum { N_SIGNALS = sizeof signals / sizeof *signals };

/* The process whose first signal is recorded (a fork() does not make it the child's), and that
 * signal. */
static atomic_int asks, asked;

static void take(void)
{
    while (atomic_flag_test_and_set_explicit(&lists.taken, memory_order_acquire))
        (void)sched_yield();
}

/* [Note: which thread] False: this is the first. */
static bool passed_on(int number)
{
    long process = (long)getpid();
    if (syscall(SYS_gettid) == process)
        return false;
    (void)syscall(SYS_tgkill, process, process, number);
    return true;
}

/* The children first: what they were writing must not come back. */
static void clean_up(int number)
{
    int error = errno;
    if (passed_on(number)) {
        errno = error;
        return;
    }
    int none = 0;
    if (atomic_load(&asks) == (int)getpid() &&
        atomic_compare_exchange_strong(&asked, &none, number)) {
        errno = error;
        return;
    }
    take(); /* for good: nobody adds to them any more */
    if (lists.owner == getpid()) {
        for (size_t i = 0; i < lists.n_children; i++)
            (void)kill(lists.children[i], SIGTERM);
        for (size_t i = 0; i < lists.n_children; i++)
            while (waitpid(lists.children[i], NULL, 0) < 0 && errno == EINTR)
                continue;
        for (size_t i = 0; i < lists.n_files; i++)
            (void)unlinkat(lists.files[i].in, lists.files[i].name, 0);
        (void)!write(STDERR_FILENO, lists.line, lists.n_line);
    }
    (void)signal(number, SIG_DFL);
    (void)raise(number); /* comes when the handler returns, and then does what it usually does */
}

/* What is ignored (nohup) stays so. */
static void install(const sigset_t *all)
{
    for (int i = 0; i < N_SIGNALS; i++) {
        struct sigaction now, ours = {.sa_handler = clean_up, .sa_flags = SA_RESTART};
        ours.sa_mask = *all;
        if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            (void)sigaction(signals[i], &ours, NULL);
    }
}

static void hold(sigset_t *before)
{
    sigset_t all;
    (void)sigemptyset(&all);
    for (int i = 0; i < N_SIGNALS; i++)
        (void)sigaddset(&all, signals[i]);
    (void)pthread_sigmask(SIG_BLOCK, &all, before);
    take();
    if (lists.owner != getpid()) {
        lists.owner = getpid();
        lists.n_files = lists.n_children = lists.n_line = 0;
    }
    if (lists.handled)
        install(&all);
}

static void let_go(const sigset_t *before)
{
    int error = errno;
    atomic_flag_clear_explicit(&lists.taken, memory_order_release);
    (void)pthread_sigmask(SIG_SETMASK, before, NULL);
    errno = error;
}

void tsr_interrupt_ask(bool wanted)
{
    atomic_store(&asked, 0);
    atomic_store(&asks, wanted ? (int)getpid() : 0);
}

int tsr_interrupt_asked(void)
{
    return atomic_load(&asked);
}

void tsr_interrupt_tell(const char *line)
{
    sigset_t before;
    hold(&before);
    lists.n_line = strnlen(line, sizeof lists.line - 1);
    memcpy(lists.line, line, lists.n_line);
    if (lists.n_line)
        lists.line[lists.n_line++] = '\n';
    let_go(&before);
}

void tsr_interrupt_handle(void)
{
    lists.handled = true;
}

static void add_file(int in, const char *name)
{
    if (lists.n_files == MAX_FILES)
        return;
    lists.files[lists.n_files].in = in;
    lists.files[lists.n_files++].name = name;
}

int tsr_interrupt_create(const struct tsr_folder *in, const char *name)
{
    sigset_t before;
    hold(&before);
    int fd = tsr_file_create(in, name);
    if (fd >= 0)
        add_file(in ? in->fd : AT_FDCWD, name);
    let_go(&before);
    return fd;
}

void tsr_interrupt_remove(const char *path)
{
    sigset_t before;
    hold(&before);
    add_file(AT_FDCWD, path);
    let_go(&before);
}

void tsr_interrupt_keep(const char *name)
{
    sigset_t before;
    hold(&before);
    for (size_t i = 0; i < lists.n_files; i++) {
        if (lists.files[i].name == name) {
            lists.files[i] = lists.files[--lists.n_files];
            break;
        }
    }
    let_go(&before);
}

pid_t tsr_interrupt_fork(void)
{
    sigset_t before;
    hold(&before);
    pid_t pid = fork();
    if (pid > 0 && lists.n_children < MAX_CHILDREN)
        lists.children[lists.n_children++] = pid;
    let_go(&before);
    return pid;
}

void tsr_interrupt_reaped(pid_t pid)
{
    sigset_t before;
    hold(&before);
    for (size_t i = 0; i < lists.n_children; i++) {
        if (lists.children[i] == pid) {
            lists.children[i] = lists.children[--lists.n_children];
            break;
        }
    }
    let_go(&before);
}
