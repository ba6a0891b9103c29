/* launch_spawn.c: n copies of a program as the ranks of a job on this host. */
#include "exec/base/word.h"
#include "exec/launch/launch.h"
#include "exec/rendezvous/rendezvous_wire.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

extern char **environ;

enum { LOOK_MS = 20, LINE = 1 << 16, RETRYABLE = 75, CANNOT_RUN = 127, N_OWN = 7 };

struct child {
    pid_t pid; /* 0: ended, or not started */
    int fd;    /* its stderr; -1: closed */
    struct tsr_wire_buffer line;
};

/* A failure that a rank told of, kept until all have ended. */
struct failure {
    uint32_t rank;
    bool told;
    char *line; /* owned; without its newline */
};

struct job {
    const struct tsr_spawn *spawn;
    struct tsr_spawned *out;
    struct child *children;
    struct failure *failures; /* one a rank at most, in the order of their coming */
    uint32_t n_failures;
    char first[512]; /* the latest line of rank 0 that was passed on; others may say the same */
    struct pollfd *polls;
    int listen_fd;
    sigset_t signals, old_mask;
    double kill_at; /* when the next signal is due after a failure */
    int next_signal;
    bool has_signalled; /* a rank, because another failed */
    bool only_lost;     /* what was noted is a rank that lost another */
};

/* ---- starting -------------------------------------------------------------------------------- */

/* The caller's environment without variables of ours, and with those of a rank. Made before the
 * fork, since a child may not allocate. free() of the result frees the strings, too. */
static char **environment_of(const struct job *job, uint32_t rank, const char *token)
{
    enum { ROOM = 16 + TSR_LAUNCH_TOKEN };
    size_t n = 0;
    while (environ[n])
        n++;
    char **env = calloc(1, (n + N_OWN + 1) * sizeof *env + N_OWN * ROOM);
    if (!env)
        return NULL;
    char *text = (char *)(env + n + N_OWN + 1);
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "TSR_RANK=", 9) != 0 && strncmp(environ[i], "TSR_SIZE=", 9) != 0 &&
            strncmp(environ[i], "TSR_LOCAL_RANK=", 15) != 0 &&
            strncmp(environ[i], "TSR_ADDR=", 9) != 0 && strncmp(environ[i], "TSR_PORT=", 9) != 0 &&
            strncmp(environ[i], "TSR_BIND=", 9) != 0 &&
            strncmp(environ[i], "TSR_TOKEN=", 10) != 0 &&
            strncmp(environ[i], "TSR_LAUNCHER=", 13) != 0 &&
            strncmp(environ[i], "TSR_LISTEN_FD=", 14) != 0)
            env[k++] = environ[i];
    const char *names[] = {"TSR_RANK", "TSR_LOCAL_RANK", "TSR_SIZE", "TSR_PORT", "TSR_LISTEN_FD"};
    const unsigned values[] = {rank, rank, job->spawn->n, tsr__socket_port(job->listen_fd),
                               (unsigned)job->listen_fd};
    for (int i = 0; i < (rank == 0 ? 5 : 4); i++, text += ROOM) {
        (void)snprintf(text, ROOM, "%s=%u", names[i], values[i]);
        env[k++] = text;
    }
    (void)snprintf(text, ROOM, "TSR_ADDR=127.0.0.1");
    env[k++] = text;
    text += ROOM;
    (void)snprintf(text, ROOM, "TSR_TOKEN=%s", token);
    env[k++] = text;
    return env;
}

/* In the child, between fork and exec: only what a signal handler may do, too. */
static _Noreturn void become_rank(const struct job *job, uint32_t rank, char **env, int err,
                                  pid_t parent)
{
#ifdef __linux__
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(RETRYABLE);
#else
    (void)parent;
#endif
    (void)setpgid(0, 0); /* a terminal's Ctrl-C comes through us, once */
    int in = open("/dev/null", O_RDONLY);
    if (in >= 0)
        (void)dup2(in, 0);
    if (in > 2)
        (void)close(in);
    (void)dup2(err, 2);
    if (rank == 0)
        (void)fcntl(job->listen_fd, F_SETFD, 0);
    (void)sigprocmask(SIG_SETMASK, &job->old_mask, NULL);
    environ = env;
    (void)execvp(job->spawn->argv[0], job->spawn->argv);
    static const char text[] = "cannot run the program\n";
    (void)!write(2, text, sizeof text - 1);
    _exit(CANNOT_RUN);
}

static tsr_status start_child(struct job *job, uint32_t rank, const char *token)
{
    struct child *child = &job->children[rank];
    char **env = environment_of(job, rank, token);
    int fds[2];
    if (!env)
        return tsr_no_memory(NULL);
    if (pipe(fds) != 0) {
        free(env);
        return tsr_fail(TSR_EIO, "no pipe for rank %u: %s", rank, strerror(errno));
    }
    (void)fcntl(fds[0], F_SETFD, FD_CLOEXEC);
    (void)fcntl(fds[1], F_SETFD, FD_CLOEXEC);
    (void)fcntl(fds[0], F_SETFL, O_NONBLOCK);
    pid_t parent = getpid();
    child->pid = fork();
    if (child->pid == 0)
        become_rank(job, rank, env, fds[1], parent);
    int error = errno;
    (void)close(fds[1]);
    free(env);
    child->fd = fds[0];
    if (child->pid > 0)
        return TSR_OK;
    child->pid = 0;
    return tsr_fail(TSR_EIO, "cannot start rank %u: %s", rank, strerror(error));
}

/* ---- what they say --------------------------------------------------------------------------- */

static void write_all(const char *data, size_t bytes)
{
    while (bytes) {
        ssize_t n = write(2, data, bytes);
        if (n < 0 && errno != EINTR)
            return;
        if (n > 0) {
            data += n;
            bytes -= (size_t)n;
        }
    }
}

/* Why a rank ends, which others may end for, too: such lines name a rank. What goes well only rank
 * 0 tells, so whatever else comes from another one is a failure as well. */
static bool keep_failure(struct job *job, const struct child *child, const char *line, size_t n)
{
    static const char ours[] = "tessera: ", ranks[] = "tessera: rank ";
    uint32_t rank = (uint32_t)(child - job->children);
    const char *begin = rank == 0 ? ranks : ours;
    if (strncmp(line, begin, strlen(begin)) != 0 || job->n_failures == job->spawn->n) {
        if (rank == 0)
            (void)snprintf(job->first, sizeof job->first, "%.*s", (int)n - 1, line);
        return false;
    }
    char *own = strndup(line, n - 1);
    if (own)
        job->failures[job->n_failures++] = (struct failure){.rank = rank, .line = own};
    return own != NULL;
}

/* Whole lines only, unless one is endless or the last. */
static void pass_lines(struct job *job, struct child *child, bool is_end)
{
    const char *end;
    while (child->line.n > 0 && (end = memchr(child->line.data, '\n', child->line.n)) != NULL) {
        size_t n = (size_t)(end - child->line.data) + 1;
        if (!keep_failure(job, child, child->line.data, n))
            write_all(child->line.data, n);
        tsr__wire_drop(&child->line, n);
    }
    if (child->line.n == 0 || (!is_end && child->line.n < LINE))
        return;
    write_all(child->line.data, child->line.n);
    if (is_end)
        write_all("\n", 1);
    tsr__wire_drop(&child->line, child->line.n);
}

/* Alike but for their numbers (ranks, their files, their addresses) and for what one of them says
 * of what is safe: who fails before the training begins knows of no checkpoint. */
static bool same_kind(const char *a, const char *b)
{
    for (; *a && *b; a++, b++) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            a += strspn(a, "0123456789") - 1;
            b += strspn(b, "0123456789") - 1;
        } else if (*a != *b) {
            return false;
        }
    }
    return *a == *b || (!*a && *b == ';') || (!*b && *a == ';');
}

/* Which rank a line is about: "tessera: rank 3 ..."; one that says so of itself is like any other.
 */
static long subject(const struct failure *f)
{
    long rank = -1;
    return sscanf(f->line, "tessera: rank %ld", &rank) == 1 && rank != (long)f->rank ? rank : -1;
}

static bool alike(const struct failure *a, const struct failure *b)
{
    return strcmp(a->line, b->line) == 0 ||
           (subject(a) == subject(b) && same_kind(a->line, b->line));
}

/* Whether `line` has "tessera: rank 3 gave up: TEXT", and `own`, which rank 3 said itself, TEXT
 * with its name before it or without. Either may say more after it. */
static bool repeats(const char *line, uint32_t rank, const char *own)
{
    char heard[64], said[64];
    size_t n = (size_t)snprintf(heard, sizeof heard, "tessera: rank %u gave up: ", rank);
    size_t m = (size_t)snprintf(said, sizeof said, "tessera: rank %u: ", rank);
    size_t skip = strncmp(own, said, m) == 0 ? m : strlen("tessera: ");
    if (strncmp(line, heard, n) != 0 || strncmp(own, said, skip) != 0)
        return false;
    size_t a = strlen(line + n), b = strlen(own + skip);
    return memcmp(line + n, own + skip, a < b ? a : b) == 0;
}

static bool only_heard(const struct job *job, const struct failure *f)
{
    for (uint32_t i = 0; i < job->n_failures; i++)
        if (job->failures[i].rank != f->rank &&
            repeats(f->line, job->failures[i].rank, job->failures[i].line))
            return true;
    return f->rank != 0 && repeats(f->line, 0, job->first);
}

/* One line for each kind of failure. */
static void tell_failures(struct job *job)
{
    for (uint32_t i = 0; i < job->n_failures; i++)
        job->failures[i].told = job->out->interrupted || only_heard(job, &job->failures[i]) ||
                                same_kind(job->first, job->failures[i].line);
    for (uint32_t i = 0; i < job->n_failures; i++) {
        struct failure *f = &job->failures[i];
        char more[64] = "";
        const char *line = f->line;
        unsigned others = 0;
        if (f->told)
            continue;
        for (uint32_t k = i + 1; k < job->n_failures; k++) {
            if (!job->failures[k].told && alike(f, &job->failures[k])) {
                job->failures[k].told = true;
                others++;
                if (!strchr(line, ';')) /* it says no more than the others */
                    line = job->failures[k].line;
            }
        }
        if (others)
            (void)snprintf(more, sizeof more, " (and so %u more rank%s)", others,
                           others == 1 ? "" : "s");
        write_all(line, strlen(line));
        write_all(more, strlen(more));
        write_all("\n", 1);
    }
}

static void read_stderr(struct job *job, struct child *child)
{
    char chunk[4096];
    while (child->fd >= 0) {
        ssize_t n = read(child->fd, chunk, sizeof chunk);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n > 0 && tsr__wire_append(&child->line, chunk, (size_t)n)) {
            pass_lines(job, child, false);
            continue;
        }
        pass_lines(job, child, true);
        (void)close(child->fd);
        child->fd = -1;
    }
}

/* ---- how they end ---------------------------------------------------------------------------- */

static void send_signal(const struct job *job, int signal)
{
    for (uint32_t r = 0; r < job->spawn->n; r++)
        if (job->children[r].pid > 0)
            (void)kill(job->children[r].pid, signal);
}

/* The first failure counts. A rank that only lost another gives way to one that was killed, if that
 * is seen later, but not by our signal. */
static void note_failure(struct job *job, uint32_t rank, int status)
{
    struct tsr_spawned *out = job->out;
    if (WIFSIGNALED(status) && WTERMSIG(status) == out->forwarded && !job->has_signalled)
        out->interrupted = true; /* it had nothing yet, or was told twice */
    bool only_lost = WIFEXITED(status) && WEXITSTATUS(status) == RETRYABLE;
    bool gives_way = job->only_lost && WIFSIGNALED(status) && !job->has_signalled;
    if ((out->exit_status != 0 && !gives_way) || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
        return;
    job->only_lost = only_lost;
    out->rank = rank;
    if (WIFSIGNALED(status)) {
        out->exit_status = RETRYABLE;
        (void)snprintf(out->text, sizeof out->text, "rank %u was killed by signal %d (%s)", rank,
                       WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else {
        out->exit_status = WEXITSTATUS(status);
        (void)snprintf(out->text, sizeof out->text, "rank %u ended with exit status %d", rank,
                       out->exit_status);
    }
    job->kill_at = tsr__now() + job->spawn->grace_s;
}

/* How many are left. */
static uint32_t reap(struct job *job)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < job->spawn->n; r++) {
        struct child *child = &job->children[r];
        int status;
        if (child->pid > 0 && waitpid(child->pid, &status, WNOHANG) == child->pid) {
            child->pid = 0;
            read_stderr(job, child);
            note_failure(job, r, status);
        }
        n += child->pid > 0;
    }
    return n;
}

static void forward_signals(struct job *job)
{
    const struct timespec none = {0};
    int signal = sigtimedwait(&job->signals, NULL, &none);
    if (signal <= 0)
        return;
    job->out->forwarded = signal;
    send_signal(job, signal);
}

static void wait_for_all(struct job *job)
{
    for (uint32_t left = job->spawn->n; left > 0;) {
        for (uint32_t r = 0; r < job->spawn->n; r++)
            job->polls[r] = (struct pollfd){.fd = job->children[r].fd, .events = POLLIN};
        (void)poll(job->polls, job->spawn->n, LOOK_MS);
        for (uint32_t r = 0; r < job->spawn->n; r++)
            if (job->polls[r].revents)
                read_stderr(job, &job->children[r]);
        forward_signals(job);
        left = reap(job);
        if (left > 0 && job->out->exit_status != 0 && tsr__now() >= job->kill_at) {
            send_signal(job, job->next_signal);
            job->has_signalled = true;
            job->next_signal = SIGKILL;
            job->kill_at = tsr__now() + job->spawn->grace_s;
        }
    }
}

/* ---- the job --------------------------------------------------------------------------------- */

/* The secret of the job: it goes to the ranks in their environment, which other users cannot read.
 */
static tsr_status make_token(char *token, size_t bytes)
{
    unsigned char random[TSR_MAC_BYTES];
    if (!tsr__random_bytes(random, sizeof random))
        return tsr_fail(TSR_EIO, "the system gives no random numbers");
    for (size_t i = 0; i < sizeof random; i++)
        (void)snprintf(token + 2 * i, bytes - 2 * i, "%02x", random[i]);
    return TSR_OK;
}

static tsr_status run(struct job *job)
{
    char token[TSR_LAUNCH_TOKEN];
    TSR_TRY(make_token(token, sizeof token));
    TSR_TRY(tsr__socket_listen("127.0.0.1", 0, &job->listen_fd));
    for (uint32_t r = 0; r < job->spawn->n; r++) {
        tsr_status status = start_child(job, r, token);
        if (status != TSR_OK) {
            char text[256];
            (void)snprintf(text, sizeof text, "%s", tsr_error_text());
            send_signal(job, SIGKILL);
            while (reap(job) > 0)
                (void)poll(NULL, 0, LOOK_MS);
            return tsr_fail(status, "%s", text);
        }
    }
    (void)close(job->listen_fd); /* rank 0 has it now: when that ends, nobody listens */
    job->listen_fd = -1;
    wait_for_all(job);
    return TSR_OK;
}

tsr_status tsr_launch_spawn(const struct tsr_spawn *spawn, struct tsr_spawned *out)
{
    struct job job = {.spawn = spawn, .out = out, .listen_fd = -1, .next_signal = SIGTERM};
    *out = (struct tsr_spawned){0};
    if (spawn->n == 0)
        return tsr_fail(TSR_EVALUE, "a job of 0 processes; allowed: 1 or more");
    job.children = calloc(spawn->n, sizeof *job.children);
    job.polls = calloc(spawn->n, sizeof *job.polls);
    job.failures = calloc(spawn->n, sizeof *job.failures);
    tsr_status status = TSR_OK;
    if (!job.children || !job.polls || !job.failures)
        status = tsr_no_memory("processes");
    for (uint32_t r = 0; job.children && r < spawn->n; r++)
        job.children[r].fd = -1;
    (void)sigemptyset(&job.signals);
    (void)sigaddset(&job.signals, SIGINT);
    (void)sigaddset(&job.signals, SIGTERM);
    (void)sigaddset(&job.signals, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, &job.signals, &job.old_mask);
    if (status == TSR_OK)
        status = run(&job);
    (void)pthread_sigmask(SIG_SETMASK, &job.old_mask, NULL);
    for (uint32_t r = 0; job.children && r < spawn->n; r++) {
        pass_lines(&job, &job.children[r], true);
        if (job.children[r].fd >= 0)
            (void)close(job.children[r].fd);
        free(job.children[r].line.data);
    }
    tell_failures(&job);
    for (uint32_t i = 0; i < job.n_failures; i++)
        free(job.failures[i].line);
    if (job.listen_fd >= 0)
        (void)close(job.listen_fd);
    free(job.children);
    free(job.polls);
    free(job.failures);
    return status;
}
