/* test_launch.c: environments of launchers, good and bad; and our own launcher, which starts this
 * program again.
 */
#include "exec/launch/launch.h"
#include "exec/rendezvous/rendezvous.h"
#include "exec/world/world.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- environments ---------------------------------------------------------------------------- */

/* "NAME=value NAME=value". Values stay valid for a few calls. */
static const char *from_text(void *user, const char *name)
{
    static char values[8][256];
    static unsigned turn;
    char *value = values[turn++ % 8];
    size_t n = strlen(name);
    for (const char *at = user; at; at = strchr(at, ' ')) {
        at += *at == ' ';
        if (strncmp(at, name, n) == 0 && at[n] == '=') {
            size_t length = strcspn(at + n + 1, " ");
            assert_true(length < sizeof values[0]);
            memcpy(value, at + n + 1, length);
            value[length] = '\0';
            return value;
        }
    }
    return NULL;
}

#define TORCHRUN "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=node-a "
#define SLURM                                                         \
    "SLURM_PROCID=9 SLURM_NTASKS=16 SLURM_LOCALID=1 SLURM_JOB_ID=77 " \
    "SLURM_STEP_NODELIST=gpu[07-09,12],login "
#define OPENMPI                                                                   \
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=3 " \
    "OMPI_COMM_WORLD_LOCAL_SIZE=4 "
#define MPICH "PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=4 "
#define OURS  "TSR_RANK=1 TSR_SIZE=2 TSR_LOCAL_RANK=1 "

#define HEX   "0123456789abcdef"
#define SAID  "TSR_TOKEN=" HEX " "

static const struct good {
    const char *environment;
    uint32_t rank, size, local_rank;
    const char *source, *addr;
    uint16_t port;
    const char *token;
    bool pmix; /* in a build that has it */
    const char *bind;
} good[] = {
    {"HOME=/root", 0, 1, 0, "single", "127.0.0.1", 29517, "", 0, ""},
    {OURS, 1, 2, 1, "TSR_RANK", "127.0.0.1", 29517, "", 0, ""},
    {OURS "TSR_TOKEN=x", 1, 2, 1, "TSR_RANK", "127.0.0.1", 29517, "x", 0, ""},
    {OURS "TSR_ADDR=localhost", 1, 2, 1, "TSR_RANK", "localhost", 29517, "", 0, ""},
    {OURS SAID "TSR_ADDR=fe80::1 TSR_PORT=80", 1, 2, 1, "TSR_RANK", "fe80::1", 80, HEX, 0, ""},
    {OURS SAID "TSR_ADDR=a TSR_BIND=0.0.0.0", 1, 2, 1, "TSR_RANK", "a", 29517, HEX, 0, "0.0.0.0"},
    {OURS "RANK=0 WORLD_SIZE=9", 1, 2, 1, "TSR_RANK", "127.0.0.1", 29517, "", 0, ""},
    {SAID TORCHRUN "MASTER_PORT=29500", 5, 8, 1, "torchrun", "node-a", 29501, HEX, 0, ""},
    {SAID TORCHRUN "MASTER_PORT=29500 TSR_PORT=7", 5, 8, 1, "torchrun", "node-a", 7, HEX, 0, ""},
    {SAID TORCHRUN "TORCHELASTIC_RUN_ID=j " SLURM, 5, 8, 1, "torchrun", "node-a", 29517, HEX, 0,
     ""},
    {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node-a", 1, 2, 1, "torchrun",
     "127.0.0.1", 29517, "", 0, ""},
    {SAID SLURM, 9, 16, 1, "SLURM", "gpu07", 29517, HEX, 0, ""},
    {SAID SLURM "PMI_RANK=9 PMI_SIZE=16", 9, 16, 1, "SLURM", "gpu07", 29517, HEX, 0, ""},
    {"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 SLURM_STEP_NODELIST=gpu07", 1, 2, 1, "SLURM",
     "127.0.0.1", 29517, "", 0, ""},
    {SAID SLURM "PMIX_NAMESPACE=slurm.77.0 PMIX_RANK=9", 9, 16, 1, "SLURM", "gpu07", 29517, HEX, 1,
     ""},
    {SAID SLURM "PMIX_NAMESPACE=slurm.77.0 PMIX_RANK=9 TSR_ADDR=b", 9, 16, 1, "SLURM", "b", 29517,
     HEX, 0, ""},
    {SLURM OPENMPI "TSR_LAUNCHER=openmpi", 3, 4, 3, "Open MPI", "127.0.0.1", 29517, "", 0, ""},
    {SLURM "TSR_LAUNCHER=single", 0, 1, 0, "single", "127.0.0.1", 29517, "", 0, ""},
    {"SLURM_NTASKS=16 SLURM_JOB_ID=77", 0, 1, 0, "single", "127.0.0.1", 29517, "", 0, ""},
    {OPENMPI "PMIX_NAMESPACE=12", 3, 4, 3, "Open MPI", "127.0.0.1", 29517, "", 0, ""},
    {OPENMPI "PMIX_NAMESPACE=12 PMIX_RANK=3", 3, 4, 3, "Open MPI", "127.0.0.1", 29517, "", 1, ""},
    {OPENMPI "PMIX_NAMESPACE=12 PMIX_RANK=3 TSR_ADDR=::1", 3, 4, 3, "Open MPI", "::1", 29517, "", 0,
     ""},
    {OURS "PMIX_NAMESPACE=12 PMIX_RANK=3", 1, 2, 1, "TSR_RANK", "127.0.0.1", 29517, "", 0, ""},
    {SAID OPENMPI "TSR_ADDR=n1", 3, 4, 3, "Open MPI", "n1", 29517, HEX, 0, ""},
    {MPICH, 2, 4, 2, "MPICH", "127.0.0.1", 29517, "", 0, ""},
    {MPICH "RANK= ", 2, 4, 2, "MPICH", "127.0.0.1", 29517, "", 0, ""},
};

static void test_read__environments_of_launchers__understood(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const struct good *want = &good[i];
        struct tsr_launch got;
        if (tsr_launch_read(from_text, (void *)want->environment, &got) != TSR_OK)
            fail_msg("%s: %s", want->environment, tsr_error_text());
        assert_int_equal(got.rank, want->rank);
        assert_int_equal(got.size, want->size);
        assert_int_equal(got.local_rank, want->local_rank);
        assert_string_equal(got.source, want->source);
        assert_int_equal(got.pmix, want->pmix && tsr_rendezvous_has_pmix());
        if (!got.pmix)
            assert_string_equal(got.addr, want->addr);
        assert_string_equal(got.bind, want->bind);
        assert_int_equal(got.port, want->port);
        assert_string_equal(got.token, want->token);
        assert_int_equal(got.listen_fd, -1);
    }
}

static const struct bad {
    const char *environment, *text;
} bad[] = {
    {"TSR_RANK=1", "TSR_RANK=1 is set (TSR_RANK), but TSR_SIZE is not"},
    {"TSR_SIZE=2", "TSR_SIZE=2 is set (TSR_RANK), but TSR_RANK is not"},
    {"RANK=1 WORLD_SIZE=2", "RANK=1 is set (torchrun), but LOCAL_RANK is not"},
    {"RANK=1 WORLD_SIZE= LOCAL_RANK=0", "RANK=1 is set (torchrun), but WORLD_SIZE is not"},
    {"SLURM_STEP_NODELIST=a", "SLURM_STEP_NODELIST=a is set (SLURM), but SLURM_PROCID is not"},
    {"PMI_RANK=0 PMI_SIZE=2", "PMI_RANK=0 is set (MPICH), but MPI_LOCALRANKID is not"},
    {"TSR_RANK=2 TSR_SIZE=2 TSR_LOCAL_RANK=0", "TSR_RANK=2; allowed: 0 to 1 (TSR_SIZE=2)"},
    {"TSR_RANK=1 TSR_SIZE=4 TSR_LOCAL_RANK=2", "TSR_LOCAL_RANK=2; allowed: 0 to 1 (TSR_RANK=1)"},
    {"TSR_RANK=0 TSR_SIZE=0 TSR_LOCAL_RANK=0", "TSR_SIZE=0; allowed: 1 to 16777216"},
    {"TSR_RANK=one TSR_SIZE=2 TSR_LOCAL_RANK=0", "TSR_RANK=one; allowed: 0 to 1 (TSR_SIZE=2)"},
    {"TSR_RANK=-1 TSR_SIZE=2 TSR_LOCAL_RANK=0", "TSR_RANK=-1; allowed: 0 to 1 (TSR_SIZE=2)"},
    {OURS "TSR_PORT=99999", "TSR_PORT=99999; allowed: 1 to 65535"},
    {TORCHRUN "MASTER_PORT=65535", "MASTER_PORT=65535; allowed: 1 to 65534"},
    {TORCHRUN SLURM, "RANK=5 (torchrun) contradicts SLURM_PROCID=9 (SLURM); TSR_LAUNCHER=torchrun "
                     "or slurm chooses"},
    {SLURM "OMPI_COMM_WORLD_RANK=9 OMPI_COMM_WORLD_SIZE=32 OMPI_COMM_WORLD_LOCAL_RANK=0",
     "SLURM_NTASKS=16 (SLURM) contradicts OMPI_COMM_WORLD_SIZE=32 (Open MPI); "
     "TSR_LAUNCHER=slurm or openmpi chooses"},
    {"TSR_LAUNCHER=pbs", "TSR_LAUNCHER=pbs; allowed: tessera, torchrun, slurm, openmpi, mpich, "
                         "single"},
    {"TSR_LAUNCHER=mpich", "TSR_LAUNCHER=mpich, but PMI_RANK is not set"},
    {"PMI_RANK=0 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2",
     "TSR_ADDR is not set, but only 2 of 4 ranks are on this host (MPI_LOCALNRANKS=2)"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_STEP_NODELIST=gpu[x",
     "SLURM_STEP_NODELIST='gpu[x' is no list of hosts as SLURM writes them"},
    {OURS "TSR_TOKEN=" HEX HEX HEX HEX HEX HEX HEX HEX "0",
     "TSR_TOKEN has 129 bytes; allowed: 1 to 128, as of openssl rand -hex 32"},
    {OURS "TSR_ADDR=node-a TSR_TOKEN=secret", "TSR_TOKEN has 6 bytes; allowed beyond this host: 16 "
                                              "to 128, as of openssl rand -hex 32"},
    {OURS "TSR_ADDR=10.0.0.1",
     "TSR_TOKEN is not set, but the ranks of this job meet at 10.0.0.1, beyond this host; one for "
     "all of them: export TSR_TOKEN=$(openssl rand -hex 32)"},
    {SLURM, "TSR_TOKEN is not set, but the ranks of this job meet at gpu07, beyond this host; one "
            "for all of them: export TSR_TOKEN=$(openssl rand -hex 32)"},
    {TORCHRUN "TORCHELASTIC_RUN_ID=0123456789abcdef0123",
     "TSR_TOKEN is not set, but the ranks of this job meet at node-a, beyond this host; one for "
     "all of them: export TSR_TOKEN=$(openssl rand -hex 32)"},
};

static void test_read__half_set_or_contradictory__names_variable_and_value(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct tsr_launch got;
        assert_int_equal(tsr_launch_read(from_text, (void *)bad[i].environment, &got), TSR_ECONFIG);
        assert_string_equal(tsr_error_text(), bad[i].text);
    }
}

static void test_first_host__lists_of_slurm__expanded(void **state)
{
    (void)state;
    static const char *const lists[][2] = {
        {"node1", "node1"},
        {"node1,node2", "node1"},
        {"gpu[001-064]", "gpu001"},
        {"gpu[3,5-7],x", "gpu3"},
        {"r[1-2]n[05-08]", "r1n05"},
        {"a-b[9]-ib,c", "a-b9-ib"},
        {"n[12].cluster", "n12.cluster"},
    };
    static const char *const wrong[] = {"",     ",a", "a[",     "a[]", "a[1",
                                        "a[x]", "a]", "a[1;2]", "a b"};
    char host[64];
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        assert_int_equal(tsr_launch_first_host(lists[i][0], host, sizeof host), TSR_OK);
        assert_string_equal(host, lists[i][1]);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(tsr_launch_first_host(wrong[i], host, sizeof host), TSR_ECONFIG);
    assert_int_equal(tsr_launch_first_host("a-long-name", host, 5), TSR_ECONFIG);
}

/* ---- our own launcher ------------------------------------------------------------------------ */

/* Whether the last error says that rank 1 is gone. */
static bool rank_1_is_lost(tsr_status status)
{
    return status == TSR_EPEER && strstr(tsr_error_text(), "rank 1 is lost");
}

/* Ranks meet and exchange their numbers; with `die`, rank 1 is gone then, and the others hear it:
 * in the barrier, or still in the exchange, which rank 1 may have behind it before they do. */
static int meet(const struct tsr_launch *launch, bool die)
{
    struct tsr_world *world;
    uint32_t all[3] = {0};
    if (tsr_world_processes(launch, 20, "auto", &world) != TSR_OK || world->size != 3)
        return 5;
    tsr_status met = world->ops->exchange(world, &world->rank, all, sizeof all[0]);
    int status = 0;
    if (met == TSR_OK && (all[0] != 0 || all[1] != 1 || all[2] != 2))
        status = 6;
    else if (die && launch->rank == 1)
        (void)raise(SIGKILL);
    else if (die)
        status = rank_1_is_lost(met ? met : tsr_world_barrier(world)) ? 75 : 7;
    else if (met != TSR_OK)
        status = 8;
    world->ops->destroy(world);
    return status;
}

/* What this program does as a rank: argv[2]. */
static int rank_main(const char *what)
{
    struct tsr_launch launch;
    if (tsr_launch_environment(&launch) != TSR_OK) {
        fprintf(stderr, "%s\n", tsr_error_text());
        return 9;
    }
    bool is_1 = launch.rank == 1;
    if (strcmp(what, "alike") == 0) { /* each by itself; rank 1 knows of no checkpoint yet */
        fprintf(stderr, "tessera: rank %u: no thread for stream %u%s\n", launch.rank,
                7 - launch.rank, is_1 ? "" : "; no checkpoint was saved");
        return 1;
    }
    if (strcmp(what, "heard") == 0) { /* what rank 0 told all others; some hear it from rank 1 */
        fprintf(stderr, "tessera: %srank 0: the disk is full\n", is_1 ? "" : "rank 1 gave up: ");
        return 1;
    }
    if (strcmp(what, "heard-of-0") == 0) { /* a line of rank 0 that does not name it */
        fprintf(stderr, "tessera: %sthe file is gone\n",
                launch.rank == 0 ? "" : "rank 0 gave up: ");
        return 1;
    }
    if (strcmp(what, "meet") == 0 || strcmp(what, "meet-and-die") == 0)
        return meet(&launch, strcmp(what, "meet") != 0);
    if (strcmp(what, "lines") == 0) {
        for (int i = 0; i < 200; i++) { /* in pieces, so that unordered writes would show */
            fprintf(stderr, "rank %u of %u ", launch.rank, launch.size);
            (void)fflush(stderr);
            fprintf(stderr, "(local %u, %s:%d, %s): line %d\n", launch.local_rank, launch.addr,
                    launch.port > 0, launch.source, i);
        }
        fprintf(stderr, "end without a newline");
        return (launch.listen_fd >= 0) == (launch.rank == 0) && getchar() == EOF ? 0 : 8;
    }
    if (strcmp(what, "exit") == 0 && is_1)
        return 3;
    if (strcmp(what, "kill") == 0 && is_1)
        (void)raise(SIGKILL);
    if (strcmp(what, "stubborn") == 0) {
        if (is_1)
            return 4;
        (void)signal(SIGTERM, SIG_IGN);
    }
    if (strcmp(what, "signal") == 0 && is_1)
        (void)kill(getppid(), SIGTERM);
    (void)nanosleep(&(struct timespec){.tv_sec = 30}, NULL);
    return 0;
}

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static char *program;

static struct tsr_spawned spawn(const char *what, uint32_t n, double grace_s)
{
    char as_rank[] = "--rank", task[32];
    snprintf(task, sizeof task, "%s", what);
    char *argv[] = {program, as_rank, task, NULL};
    struct tsr_spawned out;
    const struct tsr_spawn config = {.n = n, .argv = argv, .grace_s = grace_s};
    assert_int_equal(tsr_launch_spawn(&config, &out), TSR_OK);
    return out;
}

/* The same; what it writes to stderr is in *file, from its beginning. */
static struct tsr_spawned spawn_heard(const char *what, uint32_t n, double grace_s, FILE **file)
{
    *file = tmpfile();
    assert_non_null(*file);
    (void)fflush(stderr);
    int saved = dup(2);
    (void)dup2(fileno(*file), 2);
    struct tsr_spawned out = spawn(what, n, grace_s);
    (void)dup2(saved, 2);
    (void)close(saved);
    rewind(*file);
    return out;
}

static void test_spawn__ranks_fail_alike__one_line_which_says_most(void **state)
{
    (void)state;
    FILE *file;
    char line[256], more[256];
    struct tsr_spawned out = spawn_heard("alike", 3, 20, &file);
    assert_int_equal(out.exit_status, 1);
    assert_non_null(fgets(line, sizeof line, file));
    assert_null(fgets(more, sizeof more, file));
    assert_non_null(strstr(line, "no checkpoint was saved (and so 2 more ranks)\n"));
    (void)fclose(file);
}

static void test_spawn__a_failure_is_heard_from_another_rank__said_once(void **state)
{
    static const struct {
        const char *what, *line;
    } cases[] = {{"heard", "tessera: rank 0: the disk is full\n"},
                 {"heard-of-0", "tessera: the file is gone\n"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *file;
        char line[256], more[256];
        struct tsr_spawned out = spawn_heard(cases[i].what, 3, 20, &file);
        assert_int_equal(out.exit_status, 1);
        assert_non_null(fgets(line, sizeof line, file));
        assert_null(fgets(more, sizeof more, file));
        assert_string_equal(line, cases[i].line);
        (void)fclose(file);
    }
}

static void test_spawn__all_write__their_lines_stay_whole(void **state)
{
    (void)state;
    FILE *file;
    struct tsr_spawned out = spawn_heard("lines", 3, 1, &file);
    assert_int_equal(out.exit_status, 0);
    assert_string_equal(out.text, "");
    char line[256], want[256];
    int next[3] = {0}, ends = 0;
    while (fgets(line, sizeof line, file)) {
        unsigned rank;
        if (strcmp(line, "end without a newline\n") == 0) {
            ends++;
            continue;
        }
        assert_int_equal(sscanf(line, "rank %u of 3", &rank), 1);
        assert_true(rank < 3);
        snprintf(want, sizeof want, "rank %u of 3 (local %u, 127.0.0.1:1, TSR_RANK): line %d\n",
                 rank, rank, next[rank]++);
        assert_string_equal(line, want);
    }
    (void)fclose(file);
    assert_int_equal(ends, 3);
    for (int r = 0; r < 3; r++)
        assert_int_equal(next[r], 200);
}

static void test_spawn__one_fails__its_status_and_the_others_end(void **state)
{
    (void)state;
    double begin = now();
    struct tsr_spawned out = spawn("exit", 3, 0.1);
    assert_int_equal(out.exit_status, 3);
    assert_int_equal(out.rank, 1);
    assert_string_equal(out.text, "rank 1 ended with exit status 3");
    out = spawn("kill", 3, 0.1);
    assert_int_equal(out.exit_status, 75);
    assert_string_equal(out.text, "rank 1 was killed by signal 9 (Killed)");
    out = spawn("stubborn", 2, 0.1);
    assert_int_equal(out.exit_status, 4);
    assert_true(now() - begin < 10);
}

static void test_spawn__ranks_of_a_world__meet_and_hear_of_a_loss(void **state)
{
    (void)state;
    double begin = now();
    struct tsr_spawned out = spawn("meet", 3, 20);
    assert_string_equal(out.text, "");
    assert_int_equal(out.exit_status, 0);
    out = spawn("meet-and-die", 3, 20);
    assert_int_equal(out.exit_status, 75);
    assert_string_equal(out.text, "rank 1 was killed by signal 9 (Killed)");
    assert_true(now() - begin < 15); /* the others ended by themselves */
}

static void test_spawn__a_signal_comes__goes_on_to_all(void **state)
{
    (void)state;
    double begin = now();
    struct tsr_spawned out = spawn("signal", 2, 20);
    assert_int_equal(out.forwarded, SIGTERM);
    assert_int_equal(out.exit_status, 75);
    assert_non_null(strstr(out.text, "was killed by signal 15 (Terminated)"));
    assert_true(now() - begin < 15);
}

static void test_spawn__no_such_program__said(void **state)
{
    (void)state;
    char name[] = "/no/such/program";
    char *argv[] = {name, NULL};
    struct tsr_spawned out;
    (void)fflush(stderr);
    int saved = dup(2), null = open("/dev/null", O_WRONLY);
    (void)dup2(null, 2);
    const struct tsr_spawn config = {.n = 2, .argv = argv, .grace_s = 0.1};
    assert_int_equal(tsr_launch_spawn(&config, &out), TSR_OK);
    (void)dup2(saved, 2);
    (void)close(saved);
    (void)close(null);
    assert_int_equal(out.exit_status, 127);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--rank") == 0)
        return rank_main(argv[2]);
    program = argv[0];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read__environments_of_launchers__understood),
        cmocka_unit_test(test_read__half_set_or_contradictory__names_variable_and_value),
        cmocka_unit_test(test_first_host__lists_of_slurm__expanded),
        cmocka_unit_test(test_spawn__all_write__their_lines_stay_whole),
        cmocka_unit_test(test_spawn__ranks_fail_alike__one_line_which_says_most),
        cmocka_unit_test(test_spawn__a_failure_is_heard_from_another_rank__said_once),
        cmocka_unit_test(test_spawn__one_fails__its_status_and_the_others_end),
        cmocka_unit_test(test_spawn__ranks_of_a_world__meet_and_hear_of_a_loss),
        cmocka_unit_test(test_spawn__a_signal_comes__goes_on_to_all),
        cmocka_unit_test(test_spawn__no_such_program__said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
