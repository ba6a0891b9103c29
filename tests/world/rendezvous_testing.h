/* rendezvous_testing.h: ranks as threads that meet, and somebody who speaks the protocol by hand.
 */
#ifndef RENDEZVOUS_TESTING_H
#define RENDEZVOUS_TESTING_H

#include "exec/base/word.h"
#include "exec/rendezvous/rendezvous.h"
#include "exec/rendezvous/rendezvous_wire.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
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

static inline void sleep_s(double seconds)
{
    (void)nanosleep(&(struct timespec){.tv_sec = (time_t)seconds,
                                       .tv_nsec = (long)((seconds - (long)seconds) * 1e9)},
                    NULL);
}

static inline void note(struct rank *rank, tsr_status status)
{
    rank->status = status;
    snprintf(rank->error, sizeof rank->error, "%s", status == TSR_OK ? "" : tsr_error_text());
}

static inline void *rank_main(void *arg)
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
static inline void ranks_init(struct rank *ranks, double timeout_s, void (*body)(struct rank *))
{
    int fd;
    assert_int_equal(tsr__socket_listen("127.0.0.1", 0, &fd), TSR_OK);
    for (uint32_t r = 0; r < SIZE; r++)
        ranks[r] = (struct rank){.config = {.addr = "127.0.0.1",
                                            .bind = "",
                                            .port = tsr__socket_port(fd),
                                            .listen_fd = r == 0 ? fd : -1,
                                            .token = "the job",
                                            .rank = r,
                                            .size = SIZE,
                                            .timeout_s = timeout_s},
                                 .body = body};
}

static inline void ranks_start(struct rank *ranks, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++)
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
}

static inline void ranks_join(struct rank *ranks, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++)
        assert_int_equal(pthread_join(ranks[r].thread, NULL), 0);
}

static inline void expect_all_well(const struct rank *ranks)
{
    for (uint32_t r = 0; r < SIZE; r++) {
        assert_string_equal(ranks[r].error, "");
        assert_int_equal(ranks[r].status, TSR_OK);
    }
}

#define TRY(call)                   \
    do {                            \
        note(rank, call);           \
        if (rank->status != TSR_OK) \
            return;                 \
    } while (0)

static inline void use_it(struct rank *rank)
{
    uint32_t id = rank->config.rank, all[SIZE] = {0};
    char long_name[100] = "", big[TSR_RENDEZVOUS_VALUE + 1] = "";
    char much[SIZE][TSR_RENDEZVOUS_VALUE];
    TRY(tsr_rendezvous_gather(rank->r, "ranks", &id, sizeof id, all));
    for (uint32_t r = 0; r < SIZE; r++)
        if (all[r] != r)
            note(rank, tsr_fail(TSR_EASSERT, "rank %u gives %u", r, all[r]));
    TRY(tsr_rendezvous_barrier(rank->r, "twice"));
    TRY(tsr_rendezvous_barrier(rank->r, "twice"));
    id += 100;
    TRY(tsr_rendezvous_gather(rank->r, "ranks", &id, sizeof id, all));
    rank->value = all[0] + all[1] + all[2] + all[3];
    TRY(tsr_rendezvous_watch(rank->r, 0.01));
    memset(big, (int)id, sizeof big);
    TRY(tsr_rendezvous_gather(rank->r, "much", big, TSR_RENDEZVOUS_VALUE, much));
    if (much[0][0] != 100 || much[3][0] != 103 || much[3][TSR_RENDEZVOUS_VALUE - 1] != 103)
        note(rank, tsr_fail(TSR_EASSERT, "rank 3 gave %d", much[3][0]));
    memset(long_name, 'x', sizeof long_name - 1);
    if (tsr_rendezvous_barrier(rank->r, long_name) != TSR_EVALUE ||
        tsr_rendezvous_gather(rank->r, "big", big, sizeof big, big) != TSR_EVALUE)
        note(rank, tsr_fail(TSR_EASSERT, "too much: %s", tsr_error_text()));
}

/* ---- by hand --------------------------------------------------------------------------------- */

static inline int raw_connection(uint16_t port)
{
    int fd;
    assert_int_equal(tsr__socket_connect("127.0.0.1", port, tsr__now() + 10, &fd), TSR_OK);
    return fd;
}

static inline struct tsr_hello good_hello(uint32_t rank)
{
    return (struct tsr_hello){.magic = TSR_WIRE_MAGIC,
                              .version = TSR_WIRE_VERSION,
                              .purpose = TSR_TO_MEET,
                              .rank = rank,
                              .size = SIZE,
                              .nonce = "not random"};
}

/* What the server answers to a proof with `token`: its verdict's text, "in" or "hung up". The
 * socket, if it stays open. */
static inline int say_hello(uint16_t port, const struct tsr_hello *hello, const char *token,
                            char *text, size_t bytes)
{
    struct tsr_secret secret = tsr__secret_of(token);
    struct tsr_challenge challenge;
    struct tsr_proof proof;
    struct tsr_verdict verdict;
    int fd = raw_connection(port);
    (void)snprintf(text, bytes, "hung up");
    assert_true(tsr__socket_send(fd, hello, sizeof *hello, tsr__now() + 10));
    if (tsr__socket_receive(fd, &challenge, sizeof challenge, tsr__now() + 10)) {
        tsr__handshake_code(&secret, false, hello, &challenge, proof.code);
        (void)tsr__socket_send(fd, &proof, sizeof proof, tsr__now() + 10);
        if (tsr__socket_receive(fd, &verdict, sizeof verdict, tsr__now() + 10))
            (void)snprintf(text, bytes, "%s", verdict.status == TSR_OK ? "in" : verdict.text);
    }
    if (strcmp(text, "in") == 0)
        return fd;
    (void)close(fd);
    return -1;
}

static inline void wait_for_news(struct rank *rank)
{
    double begin = tsr__now();
    do
        note(rank, tsr_rendezvous_watch(rank->r, 5));
    while (rank->status == TSR_OK && tsr__now() - begin < 10);
    rank->seconds = tsr__now() - begin;
}

/* Joins as rank 3, and returns when all ranks have met; the socket. */
static inline int join_by_hand(uint16_t port)
{
    struct tsr_hello hello = good_hello(3);
    struct tsr_wire_buffer out = {0};
    struct tsr_wire_frame frame = {
        .op = TSR_WIRE_GATHER, .number = 10000, .value_bytes = TSR_MAC_BYTES};
    char text[512], number[TSR_MAC_BYTES] = "", all[SIZE * TSR_MAC_BYTES];
    int fd = say_hello(port, &hello, "the job", text, sizeof text);
    assert_string_equal(text, "in");
    assert_true(tsr__wire_put(&out, frame, "", number));
    assert_true(tsr__socket_send(fd, out.data, out.n, tsr__now() + 10));
    free(out.data);
    assert_true(tsr__socket_receive(fd, &frame, sizeof frame, tsr__now() + 10));
    assert_int_equal(frame.value_bytes, sizeof all);
    assert_true(tsr__socket_receive(fd, all, sizeof all, tsr__now() + 10));
    return fd;
}

#endif
