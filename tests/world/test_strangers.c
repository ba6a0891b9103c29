/* test_strangers.c: strangers, liars, floods, recordings and silent connections do no harm to ranks
 * that meet, nor does a rank that floods.
 */
#include "tests/world/rendezvous_testing.h"

static const char another_job[] =
    "rank 0 is of another job, or has another TSR_TOKEN: all ranks need "
    "the same; TSR_PORT keeps jobs apart";

static void expect_refused(uint16_t port, struct tsr_hello hello, const char *token,
                           const char *want)
{
    char text[512];
    assert_int_equal(say_hello(port, &hello, token, text, sizeof text), -1);
    assert_string_equal(text, want);
}

static void test_open__strangers__are_turned_away_and_do_no_harm(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    char byte;
    ranks_init(ranks, 20, use_it);
    uint16_t port = ranks[0].config.port;
    ranks_start(ranks, 3); /* rank 3 is not there yet: the others wait */

    int silent = raw_connection(port), half = raw_connection(port), noise = raw_connection(port);
    assert_true(tsr__socket_send(half, "TSR", 3, tsr__now() + 10));
    assert_true(tsr__socket_send(noise, "GET / HTTP/1.1\r\n\r\n", 18, tsr__now() + 10));
    assert_false(tsr__socket_receive(noise, &byte, 1, tsr__now() + 10)); /* hung up on */

    struct tsr_hello hello = good_hello(3);
    hello.version = 9;
    expect_refused(port, hello, "the job", "hung up");
    expect_refused(port, good_hello(3), "another", another_job);
    expect_refused(port, good_hello(3), "", another_job);
    hello = good_hello(3);
    hello.purpose = TSR_TO_MAIL;
    expect_refused(port, hello, "the job",
                   "what listens here is rank 0, and not what was looked for");
    hello = good_hello(3);
    hello.to = 1;
    expect_refused(port, hello, "the job",
                   "what listens here is rank 0, and not what was looked for");
    hello = good_hello(3);
    hello.size = 8;
    expect_refused(port, hello, "the job", "rank 3 has 8 ranks in its job, rank 0 has 4");
    expect_refused(port, good_hello(7), "the job", "rank 7 joins; allowed: 0 to 3");
    expect_refused(port, good_hello(UINT32_MAX), "the job",
                   "rank 4294967295 joins; allowed: 0 to 3");
    assert_int_equal(pthread_create(&ranks[3].thread, NULL, rank_main, &ranks[3]), 0);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
    (void)close(silent);
    (void)close(half);
    (void)close(noise);
}

/* Rank 1 is there for sure when all have met. */
static void wait_to_be_told(struct rank *rank)
{
    if (rank->config.rank == 0) {
        struct tsr_hello hello = good_hello(1);
        char text[512];
        assert_int_equal(say_hello(rank->config.port, &hello, "the job", text, sizeof text), -1);
        note(rank, strcmp(text, "two processes say that they are rank 1") == 0
                       ? TSR_OK
                       : tsr_fail(TSR_EASSERT, "%s", text));
    }
    if (rank->status == TSR_OK)
        note(rank, tsr_rendezvous_barrier(rank->r, "told"));
}

static void test_open__a_rank_that_is_there__cannot_come_again(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 20, wait_to_be_told);
    ranks_start(ranks, SIZE);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
}

/* Random bytes, some behind a good beginning, while the ranks wait for the last one. */
static void test_open__noise__does_no_harm(void **state)
{
    (void)state;
    enum { ROUNDS = 150 };
    struct rank ranks[SIZE];
    ranks_init(ranks, 20, use_it);
    ranks_start(ranks, 3);
    uint64_t random = 1;
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char bytes[200];
        struct tsr_hello hello = good_hello(3);
        for (size_t i = 0; i < sizeof bytes; i++) {
            random = tsr_hash_u64(random, i);
            bytes[i] = (unsigned char)random;
        }
        memcpy(bytes, &hello, (size_t)(random >> 8) % sizeof hello);
        int fd = raw_connection(ranks[0].config.port);
        (void)tsr__socket_send(fd, bytes, 1 + (size_t)(random >> 16) % sizeof bytes,
                               tsr__now() + 10);
        (void)close(fd);
    }
    assert_int_equal(pthread_create(&ranks[3].thread, NULL, rank_main, &ranks[3]), 0);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
}

/* All that a rank sent, heard by somebody on the way, said again. */
static void test_open__a_recording__is_worth_nothing(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    struct tsr_secret secret = tsr__secret_of("the job");
    struct tsr_hello hello = good_hello(3);
    struct tsr_challenge first, second;
    struct tsr_proof proof;
    struct tsr_verdict verdict;
    ranks_init(ranks, 20, use_it);
    uint16_t port = ranks[0].config.port;
    ranks_start(ranks, 3);

    int fd = raw_connection(port), again = raw_connection(port);
    assert_true(tsr__socket_send(fd, &hello, sizeof hello, tsr__now() + 10));
    assert_true(tsr__socket_receive(fd, &first, sizeof first, tsr__now() + 10));
    tsr__handshake_code(&secret, false, &hello, &first, proof.code);
    (void)close(fd); /* the proof is good, and was never seen by rank 0 */

    assert_true(tsr__socket_send(again, &hello, sizeof hello, tsr__now() + 10));
    assert_true(tsr__socket_send(again, &proof, sizeof proof, tsr__now() + 10));
    assert_true(tsr__socket_receive(again, &second, sizeof second, tsr__now() + 10));
    assert_memory_not_equal(first.nonce, second.nonce, sizeof first.nonce);
    assert_true(tsr__socket_receive(again, &verdict, sizeof verdict, tsr__now() + 10));
    assert_int_equal(verdict.status, TSR_ECONFIG);
    assert_string_equal(verdict.text, another_job);
    unsigned char zeros[TSR_MAC_BYTES] = {0}; /* who is refused gets no code to look at */
    assert_memory_equal(verdict.code, zeros, sizeof zeros);
    (void)close(again);

    assert_int_equal(pthread_create(&ranks[3].thread, NULL, rank_main, &ranks[3]), 0);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
}

/* Listens in rank 0's place, says yes to everybody, and knows no token. */
static void *impostor(void *arg)
{
    struct tsr_hello hello;
    struct tsr_proof proof;
    struct tsr_challenge challenge = {TSR_WIRE_MAGIC, TSR_WIRE_VERSION, "mine"};
    struct tsr_verdict verdict = {.magic = TSR_WIRE_MAGIC, .status = TSR_OK};
    int fd = -1;
    while (fd < 0)
        fd = tsr__socket_accept(*(int *)arg);
    double deadline = tsr__now() + 10;
    if (tsr__socket_receive(fd, &hello, sizeof hello, deadline) &&
        tsr__socket_send(fd, &challenge, sizeof challenge, deadline) &&
        tsr__socket_receive(fd, &proof, sizeof proof, deadline)) {
        memcpy(verdict.code, proof.code, sizeof verdict.code); /* all that it has heard */
        (void)tsr__socket_send(fd, &verdict, sizeof verdict, deadline);
    }
    (void)close(fd);
    return NULL;
}

static void test_open__somebody_else_listens__is_not_believed(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    pthread_t service;
    ranks_init(ranks, 5, NULL);
    int fd = ranks[0].config.listen_fd;
    assert_int_equal(pthread_create(&service, NULL, impostor, &fd), 0);
    ranks_start(ranks + 1, 1);
    ranks_join(ranks + 1, 1);
    (void)pthread_join(service, NULL);
    (void)close(fd);
    assert_int_equal(ranks[1].status, TSR_ECONFIG);
    assert_string_equal(ranks[1].error, "what listens there does not know this job's TSR_TOKEN, "
                                        "though it says so");
}

static void test_open__fifty_silent_strangers__the_job_starts_at_once(void **state)
{
    (void)state;
    enum { SILENT = 50 };
    struct rank ranks[SIZE];
    int silent[SILENT];
    ranks_init(ranks, 20, use_it);
    for (int i = 0; i < SILENT; i++) /* they stand in the queue before the first rank */
        silent[i] = raw_connection(ranks[0].config.port);
    ranks_start(ranks, SIZE);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
    for (uint32_t r = 0; r < SIZE; r++)
        assert_true(ranks[r].seconds < 4); /* none of them was waited for */
    for (int i = 0; i < SILENT; i++)
        (void)close(silent[i]);
}

static void test_open__more_strangers_than_there_is_room_for__the_oldest_go(void **state)
{
    (void)state;
    enum { SILENT = 600 };
    struct rank ranks[SIZE];
    static int silent[SILENT];
    ranks_init(ranks, 20, use_it);
    ranks_start(ranks, 3);
    for (int i = 0; i < SILENT; i++)
        silent[i] = raw_connection(ranks[0].config.port);
    char byte;
    assert_false(tsr__socket_receive(silent[0], &byte, 1, tsr__now() + 3)); /* made room */
    assert_int_equal(pthread_create(&ranks[3].thread, NULL, rank_main, &ranks[3]), 0);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
    for (int i = 0; i < SILENT; i++)
        (void)close(silent[i]);
}

static size_t resident_bytes(void)
{
    unsigned long all, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu %lu", &all, &resident) != 2)
        resident = 0;
    if (file)
        (void)fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* Sends `block` until it is cut off, or has sent `most` bytes; how many went out. */
static size_t flood(int fd, const void *block, size_t bytes, size_t most)
{
    size_t sent = 0;
    while (sent < most && tsr__socket_send(fd, block, bytes, tsr__now() + 0.2))
        sent += bytes;
    return sent;
}

static void test_open__a_stranger_floods__is_cut_off(void **state)
{
    (void)state;
    enum { BLOCK = 1 << 16, MOST = 256 << 20 };
    struct rank ranks[SIZE];
    static char block[BLOCK];
    ranks_init(ranks, 30, use_it);
    ranks_start(ranks, 3);
    struct tsr_hello hello = good_hello(3);
    size_t before = resident_bytes();
    for (int i = 0; i < 20; i++) {
        int fd = raw_connection(ranks[0].config.port);
        if (i % 2)
            assert_true(tsr__socket_send(fd, &hello, sizeof hello, tsr__now() + 10));
        assert_true(flood(fd, block, sizeof block, MOST) < MOST); /* what sockets hold */
        (void)close(fd);
    }
    assert_true(resident_bytes() < before + (16 << 20));
    assert_int_equal(pthread_create(&ranks[3].thread, NULL, rank_main, &ranks[3]), 0);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
}

/* Joins as rank 3, which knows the token, and sends one frame again and again. */
static void flood_as_member(struct tsr_wire_frame frame, const char *key, size_t value_bytes)
{
    enum { MOST = 64 << 20 };
    struct rank ranks[SIZE];
    struct tsr_wire_buffer out = {0};
    char *value = calloc(1, value_bytes + 1);
    ranks_init(ranks, 30, wait_for_news);
    ranks_start(ranks, 3);
    int fd = join_by_hand(ranks[0].config.port);
    size_t before = resident_bytes();
    frame.value_bytes = (uint32_t)value_bytes;
    assert_true(tsr__wire_put(&out, frame, key, value));
    assert_true(flood(fd, out.data, out.n, MOST) < MOST);
    assert_true(resident_bytes() < before + (16 << 20));
    (void)close(fd);
    free(out.data);
    free(value);
    ranks_join(ranks, 3);
    for (uint32_t r = 0; r < 3; r++)
        assert_string_equal(ranks[r].error,
                            "rank 3 is lost: its process ended, or its connection broke");
}

static void test_member__floods__is_cut_off_and_named(void **state)
{
    (void)state;
    char name[200];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    const struct tsr_wire_frame gather = {.op = TSR_WIRE_GATHER, .number = 30000};
    flood_as_member(gather, "one", TSR_RENDEZVOUS_VALUE); /* without waiting for the answer */
    flood_as_member(gather, "two", TSR_RENDEZVOUS_VALUE + 1);
    flood_as_member(gather, "three", 1 << 20);
    flood_as_member(gather, name, 1);
    flood_as_member((struct tsr_wire_frame){.op = 77}, "", 10);
}

static void test_open__wrong_token__the_client_says_so(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 20, use_it);
    struct rank stranger = ranks[3];
    stranger.config.token = "other";
    ranks_start(ranks, 3);
    ranks_start(&stranger, 1);
    ranks_join(&stranger, 1);
    assert_int_equal(stranger.status, TSR_ECONFIG);
    assert_string_equal(stranger.error, another_job);
    assert_int_equal(pthread_create(&ranks[3].thread, NULL, rank_main, &ranks[3]), 0);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
}

/* Another user listens in rank 0's place: only root can play that. */
static void test_open__no_token_and_another_users_process__refused(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    char name[64];
    int fd;
    if (geteuid() != 0)
        skip();
    ranks_init(ranks, 5, NULL);
    (void)close(ranks[0].config.listen_fd);
    ranks[1].config.token = "";
    snprintf(name, sizeof name, "tessera/0/%u", ranks[1].config.port);
    pid_t child = fork();
    if (child == 0) {
        if (setuid(65534) != 0 || tsr__socket_listen_local(name, &fd) != TSR_OK)
            _exit(1);
        (void)poll(NULL, 0, 30000);
        _exit(0);
    }
    ranks_start(ranks + 1, 1);
    ranks_join(ranks + 1, 1);
    (void)kill(child, SIGKILL);
    (void)waitpid(child, NULL, 0);
    assert_int_equal(ranks[1].status, TSR_ECONFIG);
    assert_non_null(
        strstr(ranks[1].error, "is another user's process; TSR_PORT sets another port"));
}

/* What one rank says comes to the terminals of others. */
static void rank_1_tells_controls(struct rank *rank)
{
    if (rank->config.rank == 1)
        tsr_rendezvous_tell(rank->r, TSR_EDEFECT, "red \033[31m\nand a second line\r\x7f");
    wait_for_news(rank);
}

static void test_tell__control_characters__become_harmless(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 20, rank_1_tells_controls);
    ranks_start(ranks, SIZE);
    ranks_join(ranks, SIZE);
    for (uint32_t r = 0; r < SIZE; r++)
        assert_string_equal(ranks[r].error, "red ?[31m?and a second line??");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open__strangers__are_turned_away_and_do_no_harm),
        cmocka_unit_test(test_open__a_rank_that_is_there__cannot_come_again),
        cmocka_unit_test(test_open__noise__does_no_harm),
        cmocka_unit_test(test_open__a_recording__is_worth_nothing),
        cmocka_unit_test(test_open__somebody_else_listens__is_not_believed),
        cmocka_unit_test(test_open__fifty_silent_strangers__the_job_starts_at_once),
        cmocka_unit_test(test_open__more_strangers_than_there_is_room_for__the_oldest_go),
        cmocka_unit_test(test_open__a_stranger_floods__is_cut_off),
        cmocka_unit_test(test_member__floods__is_cut_off_and_named),
        cmocka_unit_test(test_open__wrong_token__the_client_says_so),
        cmocka_unit_test(test_open__no_token_and_another_users_process__refused),
        cmocka_unit_test(test_tell__control_characters__become_harmless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
