/* test_rendezvous.c: ranks find each other where they were told to, and give each other bytes; all
 * that goes wrong has one line that says what.
 */
#include "tests/world/rendezvous_testing.h"

#include <netinet/in.h>

/* ---- gathering ------------------------------------------------------------------------------- */

static void test_gather__four_ranks__share_values_and_barriers(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 20, use_it);
    ranks_start(ranks, SIZE);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
    for (uint32_t r = 0; r < SIZE; r++)
        assert_int_equal(ranks[r].value, 406);
}

static void rank_3_gives_less(struct rank *rank)
{
    char mine[8] = "", all[SIZE * sizeof mine];
    note(rank, tsr_rendezvous_gather(rank->r, "it", mine, rank->config.rank == 3 ? 4 : 8, all));
}

static void test_gather__another_number_of_bytes__all_say_whose(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 20, rank_3_gives_less);
    ranks_start(ranks, SIZE);
    ranks_join(ranks, SIZE);
    for (uint32_t r = 0; r < SIZE; r++) {
        assert_int_equal(ranks[r].status, TSR_EDEFECT);
        assert_string_equal(ranks[r].error, "'it': rank 3 gives 4 bytes, rank 0 8");
    }
}

static void test_open__rank_0_comes_last__the_others_try_again(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 20, use_it);
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
    static const char *const names[][2] = {{"127.0.0.1", "localhost"}, {"::1", "::1"}};
    for (int i = 0; i < 2; i++) {
        struct rank ranks[SIZE];
        int fd;
        ranks_init(ranks, 20, use_it);
        if (tsr__socket_listen(names[i][0], 0, &fd) != TSR_OK) { /* a host without IPv6 */
            (void)close(ranks[0].config.listen_fd);
            continue;
        }
        (void)close(ranks[0].config.listen_fd);
        ranks[0].config.listen_fd = fd;
        for (uint32_t r = 0; r < SIZE; r++) {
            ranks[r].config.port = tsr__socket_port(fd);
            ranks[r].config.addr = names[i][r > 1];
        }
        ranks_start(ranks, SIZE);
        ranks_join(ranks, SIZE);
        expect_all_well(ranks);
    }
}

/* ---- where it listens ------------------------------------------------------------------------ */

static bool answers(const char *addr, uint16_t port)
{
    int fd = -1;
    bool is_there = tsr__socket_connect(addr, port, tsr__now(), &fd) == TSR_OK;
    if (fd >= 0)
        (void)close(fd);
    return is_there;
}

static void look_where_it_listens(struct rank *rank)
{
    uint16_t port = rank->config.port;
    if (rank->config.rank == 0) {
        bool other = answers("127.0.0.2", port), own = answers("127.0.0.1", port);
        bool want = strcmp(rank->config.bind, "0.0.0.0") == 0;
        note(rank,
             own && other == want ? TSR_OK : tsr_fail(TSR_EASSERT, "own %d, other %d", own, other));
    }
    if (rank->status == TSR_OK)
        note(rank, tsr_rendezvous_barrier(rank->r, "looked"));
}

static void test_listen__told_an_address__that_one_only(void **state)
{
    (void)state;
    for (int everywhere = 0; everywhere < 2; everywhere++) {
        struct rank ranks[SIZE];
        ranks_init(ranks, 20, look_where_it_listens);
        (void)close(ranks[0].config.listen_fd);
        ranks[0].config.listen_fd = -1;
        ranks[0].config.bind = everywhere ? "0.0.0.0" : "";
        ranks_start(ranks, SIZE);
        ranks_join(ranks, SIZE);
        expect_all_well(ranks);
    }
}

static void test_listen__an_address_of_another_host__said(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 1, NULL);
    (void)close(ranks[0].config.listen_fd);
    ranks[0].config.listen_fd = -1;
    ranks[0].config.addr = "192.0.2.1"; /* of documentation: nobody's */
    ranks_start(ranks, 1);
    ranks_join(ranks, 1);
    assert_int_equal(ranks[0].status, TSR_ECONFIG);
    assert_string_equal(ranks[0].error,
                        "192.0.2.1 is no address of this host; TSR_ADDR is rank 0's for all "
                        "ranks, TSR_BIND where a rank listens (0.0.0.0: everywhere)");
}

/* Debian gives a host's own name such an address: ranks of other hosts would knock in vain. */
static void test_listen__a_name_that_means_this_host_only_here__said(void **state)
{
    (void)state;
    char host[64] = "", number[64], want[256];
    const char *names[] = {host, "ip6-localhost", "ip6-loopback", "localhost.localdomain"};
    (void)gethostname(host, sizeof host - 1);
    for (int i = 0; i < 4; i++) {
        struct rank ranks[SIZE];
        if (!tsr__socket_resolves_to_loopback(names[i], number, sizeof number))
            continue;
        ranks_init(ranks, 1, NULL);
        (void)close(ranks[0].config.listen_fd);
        ranks[0].config.listen_fd = -1;
        ranks[0].config.addr = names[i];
        ranks_start(ranks, 1);
        ranks_join(ranks, 1);
        snprintf(
            want, sizeof want,
            "rank 0's address %s is %s on this host, which no other host reaches; TSR_BIND sets "
            "where it listens (0.0.0.0: everywhere)",
            names[i], number);
        assert_int_equal(ranks[0].status, TSR_ECONFIG);
        assert_string_equal(ranks[0].error, want);
        return;
    }
    skip();
}

static void test_open__a_socket_but_no_token__refused(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    char want[64];
    ranks_init(ranks, 1, NULL);
    ranks[0].config.token = "";
    snprintf(want, sizeof want, "TSR_LISTEN_FD=%d is set, but TSR_TOKEN is not",
             ranks[0].config.listen_fd);
    ranks_start(ranks, 1);
    ranks_join(ranks, 1);
    (void)close(ranks[0].config.listen_fd);
    assert_int_equal(ranks[0].status, TSR_ECONFIG);
    assert_string_equal(ranks[0].error, want);
}

static void no_port_is_open(struct rank *rank)
{
    if (rank->config.rank == 0 && answers("127.0.0.1", rank->config.port))
        note(rank, tsr_fail(TSR_EASSERT, "somebody listens"));
    if (rank->status == TSR_OK)
        use_it(rank);
}

static void test_open__no_token__ranks_of_one_user_meet_without_a_port(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 20, no_port_is_open);
    (void)close(ranks[0].config.listen_fd);
    ranks[0].config.listen_fd = -1;
    for (uint32_t r = 0; r < SIZE; r++)
        ranks[r].config.token = "";
    ranks_start(ranks, SIZE);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
}

static void test_open__not_all_come__their_names(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 2, use_it);
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
             "rank 1 cannot reach rank 0 at 127.0.0.1:%u within 0.2 s: Connection refused "
             "(TSR_TOKEN must be set on all ranks, or on none)",
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
    ranks_init(ranks, 20, use_it);
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

static void test_loss__a_connection_breaks__all_hear_of_it(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 20, wait_for_news);
    ranks_start(ranks, 3);
    (void)close(join_by_hand(ranks[0].config.port)); /* without a word */
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
        note(rank, tsr_rendezvous_barrier(rank->r, "nothing"));
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

static void ranks_1_and_3_stay_away(struct rank *rank)
{
    if (rank->config.rank % 2 == 0)
        note(rank, tsr_rendezvous_barrier(rank->r, "late"));
    else
        wait_for_news(rank);
}

static void test_gather__waiting_in_vain__ends_with_the_reason(void **state)
{
    (void)state;
    struct rank ranks[SIZE];
    ranks_init(ranks, 2, ranks_1_and_3_stay_away);
    ranks_start(ranks, SIZE);
    ranks_join(ranks, SIZE);
    for (uint32_t r = 0; r < SIZE; r++)
        assert_string_equal(ranks[r].error, "ranks 1, 3 did not come to 'late' within 2 s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gather__four_ranks__share_values_and_barriers),
        cmocka_unit_test(test_gather__another_number_of_bytes__all_say_whose),
        cmocka_unit_test(test_open__rank_0_comes_last__the_others_try_again),
        cmocka_unit_test(test_open__by_name_and_ipv6__same),
        cmocka_unit_test(test_listen__told_an_address__that_one_only),
        cmocka_unit_test(test_listen__an_address_of_another_host__said),
        cmocka_unit_test(test_listen__a_name_that_means_this_host_only_here__said),
        cmocka_unit_test(test_open__a_socket_but_no_token__refused),
        cmocka_unit_test(test_open__no_token__ranks_of_one_user_meet_without_a_port),
        cmocka_unit_test(test_open__not_all_come__their_names),
        cmocka_unit_test(test_open__nobody_listens__unreachable),
        cmocka_unit_test(test_open__port_in_use__rank_0_says_so),
        cmocka_unit_test(test_open__hung_up_on__tries_again),
        cmocka_unit_test(test_open__another_service_answers__said),
        cmocka_unit_test(test_loss__a_connection_breaks__all_hear_of_it),
        cmocka_unit_test(test_tell__a_rank_gives_up__all_hear_why),
        cmocka_unit_test(test_gather__waiting_in_vain__ends_with_the_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
