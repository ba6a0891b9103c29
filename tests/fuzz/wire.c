/* wire.c: targets of bytes that come from other processes: handshakes, frames of the rendezvous,
 * mail. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "exec/base/word.h"
#include "exec/rendezvous/handshake.h"
#include "exec/rendezvous/rendezvous_wire.h"
#include "exec/world/world_mail.h"
#include "fuzz/fuzz.h"

/* ---- handshakes ------------------------------------------------------------------------------ */

enum { GUESTS = 4, RANK = 3 };

struct visitor {
    int fd;
    size_t hello_bytes; /* of the hello that he has sent */
    struct tsr_hello hello;
    bool is_honest; /* has proved with the secret what the door must believe */
};
struct visit {
    struct visitor visitors[GUESTS];
    struct tsr_secret secret;
    struct tsr_door *door;
    char name[64];
    bool has_broken_in;
};

/* True only for who has proved; what is proved must be what is told here. */
static bool admit(void *user, const struct tsr_hello *hello, int fd, char *text)
{
    struct visit *visit = user;
    for (int i = 0; i < GUESTS; i++) {
        struct visitor *v = &visit->visitors[i];
        if (v->is_honest && memcmp(&v->hello, hello, sizeof *hello) == 0) {
            (void)snprintf(text, TSR_VERDICT_TEXT, "enough");
            return false; /* the door closes the socket */
        }
    }
    (void)fd;
    visit->has_broken_in = true;
    return false;
}

/* What is ready, until nothing more happens. */
static void let_work(struct tsr_door *door)
{
    struct pollfd polls[512];
    for (int turn = 0; turn < 4; turn++) {
        size_t n = tsr__door_polls(door, polls, sizeof polls / sizeof *polls);
        if (n > sizeof polls / sizeof *polls)
            abort();
        if (poll(polls, (nfds_t)n, 0) <= 0)
            break;
        tsr__door_work(door, polls);
    }
}

static void come(struct visit *visit, struct visitor *v)
{
    if (v->fd >= 0)
        (void)close(v->fd);
    memset(v, 0, sizeof *v);
    if (tsr__socket_connect_local(visit->name, tsr__now() + 10, &v->fd) != TSR_OK)
        abort();
}

static void say(struct visitor *v, const void *data, size_t n)
{
    size_t room = sizeof v->hello - v->hello_bytes, part = n < room ? n : room;
    if (v->fd < 0 || send(v->fd, data, n, MSG_NOSIGNAL) != (ssize_t)n)
        return; /* turned away */
    memcpy((char *)&v->hello + v->hello_bytes, data, part);
    v->hello_bytes += part;
}

/* Takes the challenge and proves: the door believes him, if the hello was one. */
static void prove(struct visit *visit, struct visitor *v)
{
    struct tsr_challenge challenge;
    struct tsr_proof proof;
    if (v->fd < 0 || v->hello_bytes < sizeof v->hello ||
        recv(v->fd, &challenge, sizeof challenge, MSG_DONTWAIT) != (ssize_t)sizeof challenge)
        return;
    tsr__handshake_code(&visit->secret, false, &v->hello, &challenge, proof.code);
    v->is_honest = true;
    (void)!send(v->fd, &proof, sizeof proof, MSG_NOSIGNAL);
}

/* Commands: the low two bits say who; the next two what (comes, speaks, proves, leaves); the rest,
 * of who speaks, how many bytes: four for each. */
static void door(const uint8_t *data, size_t n)
{
    struct visit visit = {.secret = tsr__secret_of("what only the job knows")};
    struct tsr_door_config config = {.is_local = true,
                                     .purpose = TSR_TO_MAIL,
                                     .rank = RANK,
                                     .expected = GUESTS,
                                     .secret = &visit.secret,
                                     .admit = admit,
                                     .user = &visit};
    (void)snprintf(visit.name, sizeof visit.name, "tessera-fuzz-%ld", (long)getpid());
    for (int i = 0; i < GUESTS; i++)
        visit.visitors[i].fd = -1;
    if (tsr__socket_listen_local(visit.name, &config.listen_fd) != TSR_OK ||
        tsr__door_open(&config, &visit.door) != TSR_OK)
        abort();
    for (size_t at = 0; at < n && at < 256;) {
        struct visitor *v = &visit.visitors[data[at] & 3];
        unsigned what = data[at] >> 2 & 3;
        size_t said = 4u * (data[at] >> 4);
        at++;
        if (what == 0) {
            come(&visit, v);
        } else if (what == 1) {
            said = n - at < said ? n - at : said;
            say(v, data + at, said);
            at += said;
        } else if (what == 2) {
            prove(&visit, v);
        } else if (v->fd >= 0) {
            (void)close(v->fd);
            v->fd = -1;
        }
        let_work(visit.door);
        if (visit.has_broken_in || tsr__door_guests(visit.door) > GUESTS)
            abort();
    }
    tsr__door_close(visit.door);
    for (int i = 0; i < GUESTS; i++)
        if (visit.visitors[i].fd >= 0)
            (void)close(visit.visitors[i].fd);
}

/* Who connects hears these bytes instead of a rank of his job: never does he believe them. */
static void welcome(const uint8_t *data, size_t n)
{
    struct tsr_secret secret = tsr__secret_of("what only the job knows");
    struct tsr_guest_ticket ticket = {TSR_TO_MEET, 1, 2, 0, &secret};
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || !tsr__socket_setup(ends[0]))
        abort();
    n = n < 4096 ? n : 4096;
    if (send(ends[1], data, n, MSG_NOSIGNAL) != (ssize_t)n || shutdown(ends[1], SHUT_WR) != 0 ||
        tsr__handshake(ends[0], &ticket, tsr__now() + 10) == TSR_WELCOME)
        abort();
    (void)close(ends[0]);
    (void)close(ends[1]);
}

/* ---- behind the handshake -------------------------------------------------------------------- */

/* The first byte says in how large pieces the others arrive. */
static void rendezvous(const uint8_t *data, size_t n)
{
    struct tsr_wire_buffer buffer = {0};
    struct tsr_wire_frame frame;
    size_t step = n ? data[0] + 1u : 1;
    for (size_t at = n > 0; at < n; at += step) {
        size_t piece = n - at < step ? n - at : step;
        long whole;
        if (!tsr__wire_append(&buffer, data + at, piece))
            abort();
        while ((whole = tsr__wire_complete(&buffer, &frame)) > 0) {
            if ((size_t)whole > buffer.n)
                abort();
            tsr__wire_drop(&buffer, (size_t)whole);
        }
        if (whole < 0)
            break;
    }
    free(buffer.data);
}

enum { MOST_MAIL = 16 << 20 };

static void mail(const uint8_t *data, size_t n)
{
    struct tsr_mail_boxes boxes;
    struct tsr_mail_stream stream = {0};
    size_t step = n ? data[0] + 1u : 1;
    if (tsr__mail_boxes_init(&boxes) != TSR_OK)
        abort();
    boxes.most_bytes = MOST_MAIL; /* and not all of this host's memory */
    for (size_t at = n > 0; at < n;) {
        size_t room, left = n - at < step ? n - at : step;
        void *target = tsr__mail_stream_target(&stream, &room);
        size_t piece = room < left ? room : left;
        memcpy(target, data + at, piece);
        at += piece;
        if (tsr__mail_stream_advance(&stream, 1, piece, &boxes) != TSR_OK)
            break;
    }
    tsr__mail_stream_fini(&stream);
    tsr__mail_boxes_fini(&boxes);
}

const struct tsr_fuzz_target tsr_fuzz_wire[] = {
    {.name = "door", .run = door, .dictionary = "wire"},
    {.name = "welcome", .run = welcome, .dictionary = "wire"},
    {.name = "rendezvous", .run = rendezvous, .dictionary = "wire"},
    {.name = "mail", .run = mail, .dictionary = "wire"},
    {.name = NULL},
};
