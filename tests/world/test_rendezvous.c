/* test_rendezvous.c: ranks find each other; strangers, liars and silent connections do no harm; all
 * that goes wrong has one line that says what.
 */
#include "exec/base/word.h"
#include "exec/rendezvous/rendezvous.h"
#include "exec/rendezvous/rendezvous_wire.h"

#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { SIZE = 4 };

/* A rank as a thread. */
struct rank {
    struct tsr_rendezvous_config config;
    double delay_s;
    void (*body)(struct rank *rank);
    struct tsr_rendezvous *r;
    tsr_status status;
    char error[512];
    int64_t value;
    double seconds;
    pthread_t thread;
    void *user;
};

static void sleep_s(double seconds)
{
    (void)nanosleep(&(struct timespec){.tv_sec = (time_t)seconds,
                                       .tv_nsec = (long)((seconds - (long)seconds) * 1e9)},
                    NULL);
}

static void note(struct rank *rank, tsr_status status)
{
    rank->status = status;
    snprintf(rank->error, sizeof rank->error, "%s", status == TSR_OK ? "" : tsr_error_text());
}

static void *rank_main(void *arg)
{
    struct rank *rank = arg;
    sleep_s(rank->delay_s);
    double begin = tsr__now();
    note(rank, tsr_rendezvous_open(&rank->config, &rank->r));
    rank->seconds = tsr__now() - begin;
    if (rank->r && rank->body)
        rank->body(rank);
    tsr_rendezvous_close(rank->r);
    return NULL;
}

/* Ranks of a job with a port of their own. */
static void ranks_init(struct rank *ranks, double timeout_s, void (*body)(struct rank *))
{
    int fd;
    assert_int_equal(tsr__socket_listen(0, &fd), TSR_OK);
    for (uint32_t r = 0; r < SIZE; r++)
        ranks[r] = (struct rank){.config = {.addr = "127.0.0.1",
                                            .port = tsr__socket_port(fd),
                                            .listen_fd = r == 0 ? fd : -1,
                                            .token = "the job",
                                            .rank = r,
                                            .size = SIZE,
                                            .timeout_s = timeout_s},
                                 .body = body};
}

static void ranks_start(struct rank *ranks, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++)
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
}

static void ranks_join(struct rank *ranks, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++)
        assert_int_equal(pthread_join(ranks[r].thread, NULL), 0);
}

static void expect_all_well(const struct rank *ranks)
{
    for (uint32_t r = 0; r < SIZE; r++) {
        assert_string_equal(ranks[r].error, "");
        assert_int_equal(ranks[r].status, TSR_OK);
    }
}

/* ---- the store ------------------------------------------------------------------------------- */

#define TRY(call)                   \
    do {                            \
        note(rank, call);           \
        if (rank->status != TSR_OK) \
            return;                 \
    } while (0)

static void use_store(struct rank *rank)
{
    uint32_t id = rank->config.rank;
    char key[16], text[8] = "";
    if (id == 2)
        sleep_s(0.05); /* the others wait for its key */
    snprintf(key, sizeof key, "key/%u", id);
    TRY(tsr_rendezvous_set(rank->r, key, &id, sizeof id));
    for (uint32_t r = 0; r < SIZE; r++) {
        uint32_t there = 99;
        snprintf(key, sizeof key, "key/%u", r);
        TRY(tsr_rendezvous_get(rank->r, key, &there, sizeof there));
        if (there != r)
            note(rank, tsr_fail(TSR_EASSERT, "key of %u is %u", r, there));
    }
    TRY(tsr_rendezvous_add(rank->r, "sum", 10 + id, &rank->value));
    TRY(tsr_rendezvous_barrier(rank->r, "added"));
    TRY(tsr_rendezvous_barrier(rank->r, "added"));
    TRY(tsr_rendezvous_add(rank->r, "sum", 0, &rank->value));
    TRY(tsr_rendezvous_set(rank->r, "empty", NULL, 0));
    TRY(tsr_rendezvous_get(rank->r, "empty", text, 0));
    TRY(tsr_rendezvous_watch(rank->r, 0.01));
    if (tsr_rendezvous_get(rank->r, "key/1", text, 8) != TSR_EIO ||
        strcmp(tsr_error_text(), "'key/1' has 4 bytes at the rendezvous, not 8") != 0)
        note(rank, tsr_fail(TSR_EASSERT, "another size: %s", tsr_error_text()));
}

static void test_store__four_ranks__share_values_and_barriers(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 20, use_store);
    ranks_start(ranks, SIZE);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
    for (uint32_t r = 0; r < SIZE; r++)
        assert_int_equal(ranks[r].value, 46);
}

static void test_open__rank_0_comes_last__the_others_try_again(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 20, use_store);
    (void)close(ranks[0].config.listen_fd);
    ranks[0].config.listen_fd = -1;
    ranks[0].delay_s = 0.2;
    ranks_start(ranks, SIZE);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
}

static void test_open__by_name_and_ipv6__same(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 20, use_store);
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool has_ipv6 = fd >= 0 && bind(fd, (void *)&six, sizeof six) == 0;
    if (fd >= 0)
        (void)close(fd);
    ranks[1].config.addr = "localhost";
    ranks[2].config.addr = has_ipv6 ? "::1" : "localhost";
    ranks_start(ranks, SIZE);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
}

/* ---- those who do not belong ----------------------------------------------------------------- */

static int raw_connection(uint16_t port)
{
    int fd;
    assert_int_equal(tsr__socket_connect("127.0.0.1", port, tsr__now() + 10, &fd), TSR_OK);
    return fd;
}

static struct tsr_wire_hello good_hello(uint32_t rank)
{
    struct tsr_wire_hello hello = {
        .magic = TSR_WIRE_MAGIC, .version = TSR_WIRE_VERSION, .rank = rank, .size = SIZE};
    snprintf(hello.token, sizeof hello.token, "the job");
    return hello;
}

/* What the server answers; empty if it hangs up. */
static void say_hello(uint16_t port, const struct tsr_wire_hello *hello, char *text, size_t bytes)
{
    struct tsr_wire_frame frame;
    int fd = raw_connection(port);
    text[0] = '\0';
    assert_true(tsr__socket_send(fd, hello, sizeof *hello, tsr__now() + 10));
    if (tsr__socket_receive(fd, &frame, sizeof frame, tsr__now() + 10)) {
        assert_true(frame.value_bytes < bytes);
        assert_true(tsr__socket_receive(fd, text, frame.value_bytes, tsr__now() + 10));
        text[frame.value_bytes] = '\0';
    }
    (void)close(fd);
}

static void test_open__strangers__are_turned_away_and_do_no_harm(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    char text[512], byte;
    ranks_init(ranks, 20, use_store);
    uint16_t port = ranks[0].config.port;
    ranks_start(ranks, 3); /* rank 3 is not there yet: the others wait */

    int silent = raw_connection(port), half = raw_connection(port), noise = raw_connection(port);
    assert_true(tsr__socket_send(half, "TSR", 3, tsr__now() + 10));
    assert_true(tsr__socket_send(noise, "GET / HTTP/1.1\r\n\r\n", 18, tsr__now() + 10));
    assert_false(tsr__socket_receive(noise, &byte, 1, tsr__now() + 10)); /* hung up on */

    struct tsr_wire_hello hello = good_hello(3);
    hello.version = 9;
    say_hello(port, &hello, text, sizeof text);
    assert_string_equal(text, "rank 0 speaks version 1 of the rendezvous, this program 9");
    hello = good_hello(3);
    snprintf(hello.token, sizeof hello.token, "another");
    say_hello(port, &hello, text, sizeof text);
    assert_string_equal(text, "rank 0 is of another job: its TSR_TOKEN is not this one's");
    hello = good_hello(3);
    hello.size = 8;
    say_hello(port, &hello, text, sizeof text);
    assert_string_equal(text, "rank 3 has 8 ranks in its job, rank 0 has 4");
    hello = good_hello(7);
    say_hello(port, &hello, text, sizeof text);
    assert_string_equal(text, "rank 7 joins; allowed: 0 to 3");
    sleep_s(0.1);
    hello = good_hello(1);
    say_hello(port, &hello, text, sizeof text);
    assert_string_equal(text, "two processes say that they are rank 1");

    assert_int_equal(pthread_create(&ranks[3].thread, NULL, rank_main, &ranks[3]), 0);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
    (void)close(silent);
    (void)close(half);
    (void)close(noise);
}

/* Random bytes, some behind a good beginning, while the ranks wait for the last one. */
static void test_open__noise__does_no_harm(void **state)
{
    (void)state;
    enum { ROUNDS = 150 };
    struct rank ranks[SIZE];
    ranks_init(ranks, 20, use_store);
    ranks_start(ranks, 3);
    uint64_t random = 1;
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char bytes[200];
        struct tsr_wire_hello hello = good_hello(3);
        for (size_t i = 0; i < sizeof bytes; i++) {
            random = tsr_hash_u64(random, i);
            bytes[i] = (unsigned char)random;
        }
        /* A prefix of a good hello; one bad byte at least, or it would be a rank. */
        memcpy(bytes, &hello, (size_t)(random >> 8) % (sizeof hello - 1));
        int fd = raw_connection(ranks[0].config.port);
        (void)tsr__socket_send(fd, bytes, 1 + (size_t)(random >> 16) % sizeof bytes,
                               tsr__now() + 10);
        (void)close(fd);
    }
    assert_int_equal(pthread_create(&ranks[3].thread, NULL, rank_main, &ranks[3]), 0);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
}

static void test_open__wrong_token__the_client_says_so(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 20, use_store);
    struct rank stranger = ranks[3];
    stranger.config.token = "other";
    ranks_start(ranks, 3);
    ranks_start(&stranger, 1);
    ranks_join(&stranger, 1);
    assert_int_equal(stranger.status, TSR_ECONFIG);
    assert_string_equal(stranger.error,
                        "rank 0 is of another job: its TSR_TOKEN is not this one's");
    assert_int_equal(pthread_create(&ranks[3].thread, NULL, rank_main, &ranks[3]), 0);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
}

static void test_open__not_all_come__their_names(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 2, use_store);
    ranks[1] = ranks[2]; /* 0 and 2 come */
    ranks_start(ranks, 2);
    ranks_join(ranks, 2);
    for (uint32_t r = 0; r < 2; r++) {
        assert_string_equal(ranks[r].error, "ranks 1, 3 did not join within 2 s");
        assert_int_equal(ranks[r].status, TSR_EPEER);
        assert_true(ranks[r].seconds < 10);
    }
}

static void test_open__nobody_listens__unreachable(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 0.2, NULL);
    (void)close(ranks[0].config.listen_fd);
    char want[160];
    snprintf(want, sizeof want,
             "rank 1 cannot reach rank 0 at 127.0.0.1:%u within 0.2 s: Connection refused",
             ranks[1].config.port);
    ranks[2].config.addr = "no.such.host.invalid";
    ranks_start(ranks + 1, 2);
    ranks_join(ranks + 1, 2);
    assert_int_equal(ranks[1].status, TSR_EPEER);
    assert_string_equal(ranks[1].error, want);
    assert_int_equal(ranks[2].status, TSR_EPEER);
    assert_non_null(strstr(ranks[2].error, "rank 2 cannot reach rank 0 at no.such.host.invalid:"));
}

static void test_open__port_in_use__rank_0_says_so(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 1, NULL);
    int fd = ranks[0].config.listen_fd;
    char want[128];
    ranks[0].config.listen_fd = -1;
    ranks_start(ranks, 1);
    ranks_join(ranks, 1);
    (void)close(fd);
    snprintf(want, sizeof want, "port %u is in use on this host; TSR_PORT sets another",
             ranks[0].config.port);
    assert_int_equal(ranks[0].status, TSR_ECONFIG);
    assert_string_equal(ranks[0].error, want);
}

/* Hangs up on the first one, then is gone. */
static void *rude_service(void *arg)
{
    int fd = -1;
    while (fd < 0)
        fd = tsr__socket_accept(*(int *)arg);
    (void)close(fd);
    (void)close(*(int *)arg);
    return NULL;
}

static void test_open__hung_up_on__tries_again(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    pthread_t service;
    ranks_init(ranks, 20, use_store);
    int fd = ranks[0].config.listen_fd;
    ranks[0].config.listen_fd = -1;
    assert_int_equal(pthread_create(&service, NULL, rude_service, &fd), 0);
    ranks_start(ranks + 1, 1);
    (void)pthread_join(service, NULL);
    assert_int_equal(pthread_create(&ranks[0].thread, NULL, rank_main, &ranks[0]), 0);
    ranks_start(ranks + 2, 2);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
}

static void *other_service(void *arg)
{
    int fd = -1;
    while (fd < 0)
        fd = tsr__socket_accept(*(int *)arg);
    (void)tsr__socket_send(fd, "220 mail ready\r\n....................", 36, tsr__now() + 10);
    sleep_s(0.1);
    (void)close(fd);
    return NULL;
}

static void test_open__another_service_answers__said(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    pthread_t service;
    ranks_init(ranks, 5, NULL);
    int fd = ranks[0].config.listen_fd;
    assert_int_equal(pthread_create(&service, NULL, other_service, &fd), 0);
    ranks_start(ranks + 1, 1);
    ranks_join(ranks + 1, 1);
    (void)pthread_join(service, NULL);
    (void)close(fd);
    assert_int_equal(ranks[1].status, TSR_EPEER);
    assert_non_null(strstr(ranks[1].error, "is no rendezvous of this program"));
}

/* ---- losses ---------------------------------------------------------------------------------- */

static void wait_for_news(struct rank *rank)
{
    double begin = tsr__now();
    do
        note(rank, tsr_rendezvous_watch(rank->r, 5));
    while (rank->status == TSR_OK && tsr__now() - begin < 10);
    rank->seconds = tsr__now() - begin;
}

/* Joins as rank 3 and then breaks off without a word. */
static void join_and_break(uint16_t port)
{
    struct tsr_wire_hello hello = good_hello(3);
    struct tsr_wire_buffer out = {0};
    struct tsr_wire_frame frame = {.op = TSR_WIRE_BARRIER, .number = 10000};
    int fd = raw_connection(port);
    assert_true(tsr__socket_send(fd, &hello, sizeof hello, tsr__now() + 10));
    assert_true(tsr__socket_receive(fd, &frame, sizeof frame, tsr__now() + 10));
    frame = (struct tsr_wire_frame){.op = TSR_WIRE_BARRIER, .number = 10000};
    assert_true(tsr__wire_put(&out, frame, "", NULL));
    assert_true(tsr__socket_send(fd, out.data, out.n, tsr__now() + 10));
    free(out.data);
    assert_true(tsr__socket_receive(fd, &frame, sizeof frame, tsr__now() + 10)); /* all are there */
    (void)close(fd);
}

static void test_loss__a_connection_breaks__all_hear_of_it(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 20, wait_for_news);
    ranks_start(ranks, 3);
    join_and_break(ranks[0].config.port);
    ranks_join(ranks, 3);
    for (uint32_t r = 0; r < 3; r++) {
        assert_string_equal(ranks[r].error,
                            "rank 3 is lost: its process ended, or its connection broke");
        assert_int_equal(ranks[r].status, TSR_EPEER);
        assert_true(ranks[r].seconds < 10);
    }
}

static void rank_1_tells(struct rank *rank)
{
    if (rank->config.rank == 1) {
        tsr_rendezvous_tell(rank->r, TSR_EDEFECT, "rank 1 has enough");
        wait_for_news(rank);
    } else if (rank->config.rank == 2) { /* waits for what never comes */
        note(rank, tsr_rendezvous_get(rank->r, "nothing", NULL, 0));
    } else {
        wait_for_news(rank);
    }
}

static void test_tell__a_rank_gives_up__all_hear_why(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 20, rank_1_tells);
    ranks_start(ranks, SIZE);
    ranks_join(ranks, SIZE);
    for (uint32_t r = 0; r < SIZE; r++) {
        assert_string_equal(ranks[r].error, "rank 1 has enough");
        assert_int_equal(ranks[r].status, TSR_EDEFECT);
    }
}

static void get_in_vain(struct rank *rank)
{
    if (rank->config.rank == 1) {
        note(rank, tsr_rendezvous_get(rank->r, "nothing", NULL, 0));
        (void)!tsr_rendezvous_set(rank->r, "done", NULL, 0);
        return;
    }
    do
        note(rank, tsr_rendezvous_get(rank->r, "done", NULL, 0));
    while (rank->status == TSR_EPEER && strstr(rank->error, "nobody set"));
    if (rank->status != TSR_OK || rank->config.rank == 3)
        return; /* rank 3 does not come to the barrier */
    note(rank, tsr_rendezvous_barrier(rank->r, "late"));
}

static void test_store__waiting_in_vain__ends_with_the_reason(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 2, get_in_vain);
    ranks_start(ranks, SIZE);
    ranks_join(ranks, SIZE);
    assert_string_equal(ranks[1].error, "nobody set 'nothing' within 2 s");
    assert_string_equal(ranks[3].error, "");
    for (uint32_t r = 0; r < SIZE; r += 2)
        assert_string_equal(ranks[r].error,
                            "ranks 1, 3 did not come to the barrier 'late' within 2 s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store__four_ranks__share_values_and_barriers),
        cmocka_unit_test(test_open__rank_0_comes_last__the_others_try_again),
        cmocka_unit_test(test_open__by_name_and_ipv6__same),
        cmocka_unit_test(test_open__strangers__are_turned_away_and_do_no_harm),
        cmocka_unit_test(test_open__noise__does_no_harm),
        cmocka_unit_test(test_open__wrong_token__the_client_says_so),
        cmocka_unit_test(test_open__not_all_come__their_names),
        cmocka_unit_test(test_open__nobody_listens__unreachable),
        cmocka_unit_test(test_open__port_in_use__rank_0_says_so),
        cmocka_unit_test(test_open__hung_up_on__tries_again),
        cmocka_unit_test(test_open__another_service_answers__said),
        cmocka_unit_test(test_loss__a_connection_breaks__all_hear_of_it),
        cmocka_unit_test(test_tell__a_rank_gives_up__all_hear_why),
        cmocka_unit_test(test_store__waiting_in_vain__ends_with_the_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
