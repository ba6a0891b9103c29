/* handshake.c: proofs, who connects, and the door that strangers stand before. */
#include "exec/rendezvous/handshake.h"

#include "exec/base/word.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STRANGER_S 5.0 /* for the whole handshake */
#define REST_S     0.1 /* without accepting, when the process has no descriptors left */
enum { STRANGERS = 256, AT_ONCE = 16, LABEL = 16 };

_Static_assert(sizeof(struct tsr_hello) == 56, "the hello has no padding");
_Static_assert(sizeof(struct tsr_challenge) == 40, "the challenge has no padding");
_Static_assert(sizeof(struct tsr_verdict) == 256, "the verdict has no padding");

void tsr__plain_text(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || (unsigned char)*text >= 0x7f)
            *text = '?';
}

struct tsr_secret tsr__secret_of(const char *token)
{
    static const char label[LABEL] = "tessera token";
    struct tsr_secret secret = {{0}};
    if (token[0])
        tsr__sha256(label, sizeof label, token, strlen(token), secret.bytes);
    return secret;
}

void tsr__handshake_code(const struct tsr_secret *secret, bool answer,
                         const struct tsr_hello *hello, const struct tsr_challenge *challenge,
                         unsigned char code[TSR_MAC_BYTES])
{
    static const char asks[LABEL] = "tessera asks", answers[LABEL] = "tessera answers";
    char said[sizeof *hello + sizeof *challenge];
    memcpy(said, hello, sizeof *hello);
    memcpy(said + sizeof *hello, challenge, sizeof *challenge);
    tsr__hmac(secret->bytes, sizeof secret->bytes, answer ? answers : asks, LABEL, said,
              sizeof said, code);
}

/* ---- who connects ---------------------------------------------------------------------------- */

static enum tsr_welcome no_verdict(size_t bytes)
{
    return bytes ? TSR_WELCOME_NOISE : TSR_WELCOME_GONE;
}

enum tsr_welcome tsr__handshake(int fd, const struct tsr_guest_ticket *ticket, double deadline)
{
    struct tsr_hello hello = {TSR_WIRE_MAGIC,
                              TSR_WIRE_VERSION,
                              ticket->purpose,
                              ticket->rank,
                              ticket->size,
                              ticket->to,
                              {0}};
    struct tsr_challenge challenge;
    struct tsr_verdict verdict;
    struct tsr_proof proof;
    unsigned char want[TSR_MAC_BYTES];
    if (!tsr__random_bytes(hello.nonce, sizeof hello.nonce)) {
        (void)tsr_fail(TSR_EIO, "the system gives no random numbers");
        return TSR_WELCOME_REFUSED;
    }
    if (!tsr__socket_send(fd, &hello, sizeof hello, deadline))
        return TSR_WELCOME_GONE;
    size_t n = tsr__socket_receive_some(fd, &challenge, 8, deadline);
    if (n < 8 || challenge.magic != TSR_WIRE_MAGIC)
        return n == 0 && tsr__now() >= deadline ? TSR_WELCOME_NOISE : no_verdict(n);
    if (challenge.version != TSR_WIRE_VERSION) {
        (void)tsr_fail(TSR_ECONFIG,
                       "rank %u speaks version %u of the rendezvous, this program %d: all ranks "
                       "must run the same program",
                       ticket->to, challenge.version, TSR_WIRE_VERSION);
        return TSR_WELCOME_REFUSED;
    }
    if (!tsr__socket_receive(fd, challenge.nonce, sizeof challenge.nonce, deadline))
        return TSR_WELCOME_NOISE;
    tsr__handshake_code(ticket->secret, false, &hello, &challenge, proof.code);
    if (!tsr__socket_send(fd, &proof, sizeof proof, deadline))
        return TSR_WELCOME_GONE;
    n = tsr__socket_receive_some(fd, &verdict, sizeof verdict, deadline);
    if (n < sizeof verdict || verdict.magic != TSR_WIRE_MAGIC)
        return no_verdict(n);
    tsr__handshake_code(ticket->secret, true, &hello, &challenge, want);
    if (verdict.status == TSR_OK && tsr__same_bytes(verdict.code, want, sizeof want))
        return TSR_WELCOME;
    verdict.text[sizeof verdict.text - 1] = '\0';
    tsr__plain_text(verdict.text);
    (void)tsr_fail(TSR_ECONFIG, "%s",
                   verdict.status == TSR_OK ? "what listens there does not know this job's "
                                              "TSR_TOKEN, though it says so"
                                            : verdict.text);
    return TSR_WELCOME_REFUSED;
}

/* ---- the door -------------------------------------------------------------------------------- */

struct guest {
    int fd;
    double deadline;
    size_t n; /* bytes of the hello, then of the proof */
    struct tsr_hello hello;
    struct tsr_challenge challenge;
    struct tsr_proof proof;
};

struct tsr_door {
    struct tsr_door_config config;
    size_t n, most;
    double rests_until;
    struct guest *guests; /* the oldest first */
};

/* Others move up when the caller is done with all of them. */
static void turn_away(struct guest *guest)
{
    if (guest->fd >= 0)
        (void)close(guest->fd);
    guest->fd = -1;
}

static void close_ranks(struct tsr_door *door)
{
    size_t n = 0;
    for (size_t i = 0; i < door->n; i++)
        if (door->guests[i].fd >= 0)
            door->guests[n++] = door->guests[i];
    door->n = n;
}

/* Who is there longest makes room. */
static void drop_oldest(struct tsr_door *door)
{
    turn_away(&door->guests[0]);
    close_ranks(door);
}

static void accept_all(struct tsr_door *door)
{
    for (int i = 0; i < AT_ONCE; i++) { /* then those who are there have their turn */
        int fd = tsr__socket_accept(door->config.listen_fd);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
            if (door->n)
                drop_oldest(door);
            else
                door->rests_until = tsr__now() + REST_S;
        }
        if (fd < 0)
            return;
        if (door->config.is_local && !tsr__socket_is_mine(fd)) {
            (void)close(fd);
            continue;
        }
        if (door->n == door->most)
            drop_oldest(door);
        struct guest *guest = &door->guests[door->n++];
        memset(guest, 0, sizeof *guest);
        guest->fd = fd;
        guest->deadline = tsr__now() + STRANGER_S;
    }
}

/* Reads up to `bytes` of a message; true when it is complete. */
static bool read_more(struct guest *guest, void *to, size_t bytes)
{
    ssize_t n = recv(guest->fd, (char *)to + guest->n, bytes - guest->n, 0);
    if (n > 0)
        guest->n += (size_t)n;
    else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
        turn_away(guest);
    return guest->fd >= 0 && guest->n == bytes;
}

/* A new socket takes the few bytes of a handshake at once, or never. */
static bool write_now(int fd, const void *data, size_t bytes)
{
    return send(fd, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

static void answer_hello(struct guest *guest)
{
    guest->challenge = (struct tsr_challenge){TSR_WIRE_MAGIC, TSR_WIRE_VERSION, {0}};
    if (!tsr__random_bytes(guest->challenge.nonce, sizeof guest->challenge.nonce) ||
        !write_now(guest->fd, &guest->challenge, sizeof guest->challenge) ||
        guest->hello.version != TSR_WIRE_VERSION) /* who reads the challenge knows why */
        turn_away(guest);
    guest->n = 0;
}

/* The last words to a guest: his socket is the callee's then, or closed. */
static void answer_proof(struct tsr_door *door, struct guest *guest)
{
    const struct tsr_door_config *config = &door->config;
    struct tsr_verdict verdict = {.magic = TSR_WIRE_MAGIC, .status = TSR_ECONFIG};
    struct tsr_proof want;
    int fd = guest->fd;
    tsr__handshake_code(config->secret, false, &guest->hello, &guest->challenge, want.code);
    if (!tsr__same_bytes(want.code, guest->proof.code, sizeof want.code))
        (void)snprintf(
            verdict.text, sizeof verdict.text,
            "rank %u is of another job, or has another TSR_TOKEN: all ranks need the same; "
            "TSR_PORT keeps jobs apart",
            config->rank);
    else if (guest->hello.purpose != config->purpose || guest->hello.to != config->rank)
        (void)snprintf(verdict.text, sizeof verdict.text,
                       "what listens here is rank %u, and not what was looked for", config->rank);
    else if (config->admit(config->user, &guest->hello, fd, verdict.text))
        verdict.status = TSR_OK;
    guest->fd = -1;
    if (verdict.status == TSR_OK)
        tsr__handshake_code(config->secret, true, &guest->hello, &guest->challenge, verdict.code);
    bool told = write_now(fd, &verdict, sizeof verdict);
    if (verdict.status != TSR_OK)
        (void)close(fd);
    else if (!told)
        (void)shutdown(fd, SHUT_RDWR); /* its owner sees that it has ended */
}

static void hear(struct tsr_door *door, struct guest *guest)
{
    const uint32_t *magic = &guest->hello.magic;
    if (guest->challenge.magic == 0) {
        bool whole = read_more(guest, &guest->hello, sizeof guest->hello);
        if (guest->fd >= 0 && guest->n >= sizeof *magic && *magic != TSR_WIRE_MAGIC)
            turn_away(guest);
        if (guest->fd >= 0 && whole)
            answer_hello(guest);
    } else if (read_more(guest, &guest->proof, sizeof guest->proof)) {
        answer_proof(door, guest);
    }
}

tsr_status tsr__door_open(const struct tsr_door_config *config, struct tsr_door **out)
{
    struct tsr_door *door = calloc(1, sizeof *door);
    size_t most = STRANGERS + (size_t)config->expected;
    *out = NULL;
    if (door)
        door->guests = calloc(most, sizeof *door->guests);
    if (!door || !door->guests) {
        free(door);
        (void)close(config->listen_fd);
        return tsr_no_memory("strangers");
    }
    door->config = *config;
    door->most = most;
    *out = door;
    return TSR_OK;
}

size_t tsr__door_polls(const struct tsr_door *door, struct pollfd *polls, size_t n)
{
    size_t wanted = door->n + 1;
    if (wanted > n)
        return wanted;
    bool rests = tsr__now() < door->rests_until;
    polls[0] = (struct pollfd){.fd = rests ? -1 : door->config.listen_fd, .events = POLLIN};
    for (size_t i = 0; i < door->n; i++)
        polls[i + 1] = (struct pollfd){.fd = door->guests[i].fd, .events = POLLIN};
    return wanted;
}

void tsr__door_work(struct tsr_door *door, const struct pollfd *polls)
{
    double now = tsr__now();
    for (size_t i = 0; i < door->n; i++) {
        struct guest *guest = &door->guests[i];
        if (polls[i + 1].revents)
            hear(door, guest);
        if (guest->fd >= 0 && now >= guest->deadline)
            turn_away(guest);
    }
    close_ranks(door);
    if (polls[0].revents)
        accept_all(door);
}

size_t tsr__door_guests(const struct tsr_door *door)
{
    return door->n;
}

void tsr__door_close(struct tsr_door *door)
{
    if (!door)
        return;
    for (size_t i = 0; i < door->n; i++)
        turn_away(&door->guests[i]);
    (void)close(door->config.listen_fd);
    free(door->guests);
    free(door);
}
