/* child.c: forks, calls, waits. SimGrid can be started once per process and aborts on errors; a
 * child costs about 2 ms and keeps both away from the caller. */
#define _GNU_SOURCE
#include "sim/base/child.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Handlers of the caller (a test runner's, say) must not run here. */
static void reset_signals(void)
{
    static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGINT, SIGTERM};
    struct rlimit no_core = {0, 0};
    sigset_t none;
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        signal(signals[i], SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setrlimit(RLIMIT_CORE, &no_core);
}

/* Worth telling: neither empty nor part of SimGrid's backtrace. */
static bool says_something(const char *line)
{
    return strspn(line, " \t") != strlen(line) && strncmp(line, "  -> ", 5) != 0 &&
           !strstr(line, "Current backtrace:") && strncmp(line, "Backtrace ", 10) != 0;
}

/* Last line of what the child wrote that says something. */
static void last_line(int fd, char *out, size_t size)
{
    enum { MOST = 1 << 15 };
    char *text = malloc(MOST);
    ssize_t n = text ? pread(fd, text, MOST - 1, 0) : -1;
    *out = '\0';
    if (n >= 0)
        text[n] = '\0';
    if (n < 0) {
        free(text);
        return;
    }
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (says_something(line))
            snprintf(out, size, "%s", line);
    free(text);
}

tsr_status tsr__child_call(void (*run)(void *user), void *user, struct tsr__child_end *end)
{
    int log = memfd_create("simulation", MFD_CLOEXEC);
    pid_t parent = getpid();
    *end = (struct tsr__child_end){0};
    if (log < 0)
        return tsr_fail(TSR_EBACKEND, "a simulation cannot be started: %s", strerror(errno));
    fflush(NULL); /* or SimGrid writes the caller's buffered text once more */
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        reset_signals();
        dup2(log, STDERR_FILENO);
        run(user);
        _exit(0);
    }
    tsr_status status = TSR_OK;
    if (child < 0)
        status = tsr_fail(TSR_EBACKEND, "a simulation cannot be started: %s", strerror(errno));
    while (child > 0 && waitpid(child, &end->wait_status, 0) < 0)
        if (errno != EINTR) {
            status = tsr_fail(TSR_EBACKEND, "a simulation was lost: %s", strerror(errno));
            break;
        }
    if (status == TSR_OK)
        last_line(log, end->last_line, sizeof end->last_line);
    close(log);
    return status;
}
