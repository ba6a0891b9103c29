/* child.c: forks the simulation (child.h). SimGrid can be started once per process and aborts on
 * errors; a child costs about 2 ms and keeps both away from the caller. */
#define _GNU_SOURCE
#include "child.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

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

/* Last non-empty line of what the child wrote. */
static void last_line(int fd, char *out, size_t size)
{
    char text[4096];
    off_t end = lseek(fd, 0, SEEK_END);
    off_t from = end > (off_t)sizeof text - 1 ? end - (off_t)sizeof text + 1 : 0;
    ssize_t n = end > 0 ? pread(fd, text, sizeof text - 1, from) : 0;
    *out = '\0';
    if (n <= 0)
        return;
    text[n] = '\0';
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (strspn(line, " \t") != strlen(line))
            snprintf(out, size, "%s", line);
}

static tsr_status judge(int wait_status, int log, const struct tsr__verdict *verdict)
{
    char line[512];
    if (verdict->finished && WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0)
        return verdict->status == TSR_OK
                   ? TSR_OK
                   : tsr_fail((tsr_status)verdict->status, "%s", verdict->text);
    last_line(log, line, sizeof line);
    if (WIFSIGNALED(wait_status))
        return tsr_fail(TSR_EBACKEND, "the simulation was ended by signal %d (%s)%s%s",
                        WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)), *line ? ": " : "",
                        line);
    return tsr_fail(TSR_EBACKEND, "the simulation ended early (status %d)%s%s",
                    WEXITSTATUS(wait_status), *line ? ": " : "", line);
}

tsr_status tsr__child_run(const struct tsr__quotient *q, const struct tsr__tapes *tapes,
                          const struct tsr_sim_job *job, const struct tsr_sim_options *options,
                          struct tsr_sim_result *result, struct tsr__verdict *verdict)
{
    int wait_status = 0, log = memfd_create("simulation", MFD_CLOEXEC);
    pid_t parent = getpid();
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
        double start = now_s();
        tsr__replay_run(q, tapes, job, options, result, verdict);
        result->wall_s = now_s() - start;
        verdict->finished = 1;
        _exit(0);
    }
    tsr_status status = TSR_OK;
    if (child < 0)
        status = tsr_fail(TSR_EBACKEND, "a simulation cannot be started: %s", strerror(errno));
    while (child > 0 && waitpid(child, &wait_status, 0) < 0)
        if (errno != EINTR) {
            status = tsr_fail(TSR_EBACKEND, "a simulation was lost: %s", strerror(errno));
            break;
        }
    if (status == TSR_OK)
        status = judge(wait_status, log, verdict);
    close(log);
    return status;
}
