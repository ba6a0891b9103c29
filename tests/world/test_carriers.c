/* test_carriers.c: what processes of a job hand to each other is looked at before it is used:
 * descriptors of memory, and mail that announces more than there is room for.
 */
#include "exec/world/shm_share.h"
#include "tests/world/rendezvous_testing.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { BYTES = 1 << 20, ALLOW_SEALING = 2, ADD_SEALS = 1033, SHRINK = 2, GROW = 4 };

/* ---- shared memory --------------------------------------------------------------------------- */

static void test_memory__ours__cannot_change_its_size(void **state)
{
    (void)state;
    int fd = tsr__shm_create(BYTES);
    assert_true(fd >= 0);
    assert_true(tsr__shm_is_sound(fd, BYTES));
    assert_false(tsr__shm_is_sound(fd, BYTES + 1));
    assert_false(tsr__shm_is_sound(fd, BYTES - 1));
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(fd, 2 * BYTES), -1);
    assert_int_equal(fcntl(fd, ADD_SEALS, 8), -1); /* nor be made read-only under a writer */
    (void)close(fd);
}

static int unsealed(int seals)
{
    int fd = (int)syscall(SYS_memfd_create, "test", ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, BYTES), 0);
    assert_int_equal(fcntl(fd, ADD_SEALS, seals), 0);
    return fd;
}

static void expect_unsound(int fd)
{
    assert_true(fd >= 0);
    assert_false(tsr__shm_is_sound(fd, BYTES));
    (void)close(fd);
}

static void test_memory__of_somebody_else__refused_unless_sealed(void **state)
{
    (void)state;
    int ends[2];
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_int_equal(ftruncate(fileno(file), BYTES), 0);
    assert_false(tsr__shm_is_sound(fileno(file), BYTES));
    (void)fclose(file);
    expect_unsound(unsealed(0));
    expect_unsound(unsealed(GROW));          /* could become shorter under who reads it */
    expect_unsound(unsealed(SHRINK | GROW)); /* and a seal of writing could come later */
    expect_unsound(open("/dev/zero", O_RDWR));
    expect_unsound(open(".", O_RDONLY));
    assert_int_equal(pipe(ends), 0);
    (void)close(ends[1]);
    expect_unsound(ends[0]);
    assert_false(tsr__shm_is_sound(-1, BYTES));
}

/* What a bad file would do if it were used: the reason for all this. */
static void test_memory__that_shrinks__kills_who_reads_it(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        int fd = unsealed(0);
        volatile char *memory = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
        if (memory == MAP_FAILED || ftruncate(fd, 0) != 0)
            _exit(1);
        (void)signal(SIGBUS, SIG_DFL);
        _exit(memory[BYTES - 1]);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
}

static void test_descriptor__through_a_socket__arrives_or_is_missed(void **state)
{
    (void)state;
    int ends[2], fd = tsr__shm_create(BYTES);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_true(tsr__shm_send_fd(ends[0], fd));
    int got = tsr__shm_receive_fd(ends[1], tsr__now() + 5);
    assert_true(got >= 0 && got != fd);
    assert_true(tsr__shm_is_sound(got, BYTES));
    (void)close(got);
    for (int i = 0; i < 2000; i++) { /* several: none is taken, none is left open */
        _Alignas(struct cmsghdr) char control[CMSG_SPACE(8 * sizeof fd)] = {0};
        char byte = 0;
        struct iovec v = {&byte, 1};
        struct msghdr message = {.msg_iov = &v,
                                 .msg_iovlen = 1,
                                 .msg_control = control,
                                 .msg_controllen = CMSG_SPACE((size_t)(2 + i % 7) * sizeof fd)};
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)(2 + i % 7) * sizeof fd);
        for (int k = 0; k < 2 + i % 7; k++)
            memcpy(CMSG_DATA(c) + (size_t)k * sizeof fd, &fd, sizeof fd);
        assert_int_equal(sendmsg(ends[0], &message, 0), 1);
        assert_int_equal(tsr__shm_receive_fd(ends[1], tsr__now() + 5), -1);
    }
    int next = dup(fd);
    assert_true(next < 100);
    (void)close(next);
    assert_int_equal(write(ends[0], "x", 1), 1); /* a byte without a descriptor */
    assert_int_equal(tsr__shm_receive_fd(ends[1], tsr__now() + 5), -1);
    assert_int_equal(tsr__shm_receive_fd(ends[1], tsr__now() + 0.05), -1); /* nothing */
    (void)close(ends[0]);
    assert_int_equal(tsr__shm_receive_fd(ends[1], tsr__now() + 5), -1); /* the end */
    (void)close(ends[1]);
    (void)close(fd);
}

/* The kernel says whose process is at the other end. */
static void test_socket__of_another_user__is_not_mine(void **state)
{
    (void)state;
    char name[64];
    int listener, client, accepted = -1, status;
    snprintf(name, sizeof name, "tessera/test/%d", (int)getpid());
    assert_int_equal(tsr__socket_listen_local(name, &listener), TSR_OK);
    assert_int_equal(tsr__socket_connect_local(name, tsr__now() + 5, &client), TSR_OK);
    assert_true(tsr__socket_is_mine(client));
    while (accepted < 0)
        accepted = tsr__socket_accept(listener);
    assert_true(tsr__socket_is_mine(accepted));
    (void)close(accepted);
    (void)close(client);
    if (geteuid() == 0) { /* only root can play another user */
        pid_t child = fork();
        if (child == 0) {
            bool reached = setuid(65534) == 0 &&
                           tsr__socket_connect_local(name, tsr__now() + 5, &client) == TSR_OK;
            _exit(reached && !tsr__socket_is_mine(client) ? 0 : 1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        accepted = tsr__socket_accept(listener);
        assert_true(accepted >= 0);
        assert_false(tsr__socket_is_mine(accepted));
        (void)close(accepted);
    }
    (void)close(listener);
}

/* What the first rank of a host says to the others (shm_share.c). */
struct said {
    int64_t failed;
    char name[64];
};

/* Rank 0 gives `user` away instead of what it should; -1: nothing, and says nothing. */
static void give_what_is_told(struct rank *rank)
{
    const int *given = rank->user;
    struct said mine = {0}, all[SIZE];
    int listener;
    snprintf(mine.name, sizeof mine.name, "tessera/test/%d/%u", (int)getpid(), rank->config.port);
    TRY(tsr__socket_listen_local(mine.name, &listener));
    TRY(tsr_rendezvous_gather(rank->r, "memory", &mine, sizeof mine, all));
    for (int i = 1; i < SIZE && *given >= 0; i++) {
        struct pollfd p = {.fd = listener, .events = POLLIN};
        (void)poll(&p, 1, 10000);
        int socket = tsr__socket_accept(listener);
        if (!tsr__shm_send_fd(socket, *given))
            note(rank, tsr_fail(TSR_EASSERT, "not sent"));
        (void)close(socket);
    }
    if (rank->status == TSR_OK)
        note(rank, tsr_rendezvous_barrier(rank->r, "given"));
    (void)close(listener);
}

static void take_what_is_given(struct rank *rank)
{
    if (rank->config.rank == 0) {
        give_what_is_told(rank);
        return;
    }
    const struct tsr_shm_config config = {
        .rendezvous = rank->r, .rank = rank->config.rank, .size = SIZE, .timeout_s = 0.5};
    struct tsr_shm_giver *giver = NULL;
    int fd = -1, error = 0;
    TRY(tsr__shm_share(&config, 0, SIZE, BYTES, &fd, &giver, &error));
    TRY(tsr_rendezvous_barrier(rank->r, "given"));
    rank->value = error;
    if ((fd >= 0) != (error == 0) || giver)
        note(rank, tsr_fail(TSR_EASSERT, "descriptor %d, error %d", fd, error));
    if (fd >= 0)
        (void)close(fd);
}

static void expect_taken(int fd, int error)
{
    struct rank ranks[SIZE];
    ranks_init(ranks, 20, take_what_is_given);
    ranks[0].user = &fd;
    ranks_start(ranks, SIZE);
    ranks_join(ranks, SIZE);
    expect_all_well(ranks);
    for (uint32_t r = 1; r < SIZE; r++)
        assert_int_equal(ranks[r].value, error);
    if (fd >= 0)
        (void)close(fd);
}

static void test_share__a_file_that_could_shrink__is_never_mapped(void **state)
{
    (void)state;
    expect_taken(tsr__shm_create(BYTES), 0);
    expect_taken(tsr__shm_create(BYTES / 2), EBADFD);
    expect_taken(unsealed(0), EBADFD);
    expect_taken(open("/dev/zero", O_RDWR), EBADFD);
    expect_taken(-1, EPROTO); /* silence ends */
}

/* ---- mail ------------------------------------------------------------------------------------ */

/* Puts a header, and `there` bytes of what it announces, into a stream that comes from rank 3. */
static tsr_status arrive(struct tsr_mail_stream *stream, const struct tsr_mail_header *header,
                         const char *data, size_t there, struct tsr_mail_boxes *boxes)
{
    const char *at = (const char *)header;
    size_t room, left = sizeof *header;
    for (int part = 0; part < 2; part++) {
        while (left) {
            char *target = tsr__mail_stream_target(stream, &room);
            size_t n = room < left ? room : left;
            memcpy(target, at, n);
            at += n;
            left -= n;
            TSR_TRY(tsr__mail_stream_advance(stream, 3, n, boxes));
        }
        at = data;
        left = part ? 0 : there;
    }
    return TSR_OK;
}

static void expect(uint32_t magic, uint32_t from, uint64_t bytes, tsr_status status,
                   const char *text)
{
    struct tsr_mail_boxes boxes;
    struct tsr_mail_stream stream = {.n = 0};
    const struct tsr_mail_header header = {.magic = magic, .from = from, .bytes = bytes};
    assert_int_equal(tsr__mail_boxes_init(&boxes), TSR_OK);
    boxes.most_bytes = 1000;
    assert_int_equal(arrive(&stream, &header, NULL, 0, &boxes), status);
    if (status != TSR_OK)
        assert_string_equal(tsr_error_text(), text);
    tsr__mail_stream_fini(&stream);
    tsr__mail_boxes_fini(&boxes);
}

static void test_mail__headers__that_cannot_be_are_refused(void **state)
{
    (void)state;
    expect(TSR_MAIL_MAGIC, 3, 1000, TSR_OK, "");
    expect(TSR_MAIL_MAGIC, 3, 1001, TSR_EPEER,
           "rank 3 sends 1001 bytes while 0 wait in 0 messages; allowed: 1000 bytes, 1048576 "
           "messages");
    expect(TSR_MAIL_MAGIC, 3, UINT64_MAX, TSR_EPEER,
           "rank 3 sends 18446744073709551615 bytes while 0 wait in 0 messages; allowed: 1000 "
           "bytes, 1048576 messages");
    expect(TSR_MAIL_MAGIC, 2, 10, TSR_EPEER, "what came from rank 3 is no message of this program");
    expect(1234, 3, 10, TSR_EPEER, "what came from rank 3 is no message of this program");
    expect(TSR_NEWS_MAGIC, 3, TSR_ABORT_TEXT, TSR_EPEER,
           "what came from rank 3 is no message of this program");
}

static void test_mail__a_rank_floods__is_named(void **state)
{
    (void)state;
    struct tsr_mail_boxes boxes;
    struct tsr_mail_stream stream = {.n = 0};
    struct tsr_mail_header header = {.magic = TSR_MAIL_MAGIC, .from = 3, .bytes = 100};
    struct tsr_abort abort = {.state = 0};
    char data[100] = "";
    tsr_status status = TSR_OK;
    assert_int_equal(tsr__mail_boxes_init(&boxes), TSR_OK);
    assert_true(boxes.most_bytes > 100 << 20); /* what the host has */
    boxes.most_bytes = 1000;
    boxes.most = 20;
    for (header.sequence = 0; status == TSR_OK; header.sequence++)
        status = arrive(&stream, &header, data, sizeof data, &boxes);
    assert_int_equal(header.sequence, 11);
    assert_string_equal(tsr_error_text(),
                        "rank 3 sends 100 bytes while 1000 wait in 10 messages; allowed: 1000 "
                        "bytes, 20 messages");
    /* What is taken makes room; empty messages count, too. */
    header.sequence = 0;
    struct tsr_mail *mail = tsr__mail_take(&boxes, &header, tsr__now(), &abort);
    assert_non_null(mail);
    free(mail);
    stream = (struct tsr_mail_stream){.n = 0};
    assert_int_equal(arrive(&stream, &header, data, sizeof data, &boxes), TSR_OK);
    header.bytes = 0;
    for (status = TSR_OK; status == TSR_OK; header.sequence++)
        status = arrive(&stream, &header, NULL, 0, &boxes);
    assert_int_equal(header.sequence, 11);
    tsr__mail_boxes_fini(&boxes);
}

static void test_mail__news__end_with_its_status_and_text(void **state)
{
    (void)state;
    struct tsr_mail_boxes boxes;
    struct tsr_mail_stream stream = {.n = 0};
    struct tsr_mail_header header = {
        .magic = TSR_NEWS_MAGIC, .from = 3, .index = TSR_EDEFECT, .bytes = 12};
    assert_int_equal(tsr__mail_boxes_init(&boxes), TSR_OK);
    assert_int_equal(arrive(&stream, &header, "that is\033[1m!", 12, &boxes), TSR_EDEFECT);
    assert_string_equal(tsr_error_text(), "that is?[1m!");
    tsr__mail_stream_fini(&stream);
    stream = (struct tsr_mail_stream){.n = 0};
    header.index = 0; /* no failure: but the end all the same */
    assert_int_equal(arrive(&stream, &header, "over and out", 12, &boxes), TSR_EPEER);
    tsr__mail_stream_fini(&stream);
    tsr__mail_boxes_fini(&boxes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory__ours__cannot_change_its_size),
        cmocka_unit_test(test_memory__of_somebody_else__refused_unless_sealed),
        cmocka_unit_test(test_memory__that_shrinks__kills_who_reads_it),
        cmocka_unit_test(test_descriptor__through_a_socket__arrives_or_is_missed),
        cmocka_unit_test(test_share__a_file_that_could_shrink__is_never_mapped),
        cmocka_unit_test(test_socket__of_another_user__is_not_mine),
        cmocka_unit_test(test_mail__headers__that_cannot_be_are_refused),
        cmocka_unit_test(test_mail__a_rank_floods__is_named),
        cmocka_unit_test(test_mail__news__end_with_its_status_and_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
