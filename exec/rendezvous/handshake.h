/* handshake.h: how two processes show each other that they belong to one job, before either
 * believes a word of the other.
 *
 * Who connects says who he is, with a random number; who listens answers with another. Then each
 * proves, with a code of both numbers and of all that was said (HMAC-SHA-256 under the secret of
 * the job), that he knows the secret: first who connects, so that a stranger learns nothing. A
 * recording is worth nothing, since half of what is proved is new each time; nor is a proof for
 * another rank, another purpose, or the other direction.
 *
 *     connects                                              listens
 *     hello: purpose, rank, size, to; number    ->
 *                                               <-    challenge: number
 *     proof                                     ->
 *                                               <-    verdict: proof, or why not
 *
 * Integers are in the byte order of the machine; the magic number tells if that differs.
 */
#ifndef TSR_EXEC_HANDSHAKE_H
#define TSR_EXEC_HANDSHAKE_H

#include "exec/base/mac.h"
#include "exec/rendezvous/socket.h"

#include <poll.h>

#define TSR_WIRE_MAGIC UINT32_C(0x56525354) /* "TSRV" */
enum { TSR_WIRE_VERSION = 2, TSR_NONCE = 32, TSR_VERDICT_TEXT = 216 };

/* What processes of a job know, and nobody else. */
struct tsr_secret {
    unsigned char bytes[TSR_MAC_BYTES];
};
/* Of a text; "" gives all zeros: no secret, where the kernel vouches for the other end. */
struct tsr_secret tsr__secret_of(const char *token);

enum tsr_purpose { TSR_TO_MEET = 1, TSR_TO_MAIL, TSR_TO_WATCH };

struct tsr_hello {
    uint32_t magic, version, purpose;
    uint32_t rank, size; /* of who connects; ranks in his job */
    uint32_t to;         /* the rank that he wants to speak to */
    unsigned char nonce[TSR_NONCE];
};
struct tsr_challenge {
    uint32_t magic, version;
    unsigned char nonce[TSR_NONCE];
};
struct tsr_proof {
    unsigned char code[TSR_MAC_BYTES];
};
struct tsr_verdict {
    uint32_t magic, status; /* TSR_OK, or TSR_ECONFIG with a text */
    unsigned char code[TSR_MAC_BYTES];
    char text[TSR_VERDICT_TEXT];
};
/* Of who connects; answer: of who listens. */
void tsr__handshake_code(const struct tsr_secret *secret, bool answer,
                         const struct tsr_hello *hello, const struct tsr_challenge *challenge,
                         unsigned char code[TSR_MAC_BYTES]);

/* ---- who connects ---------------------------------------------------------------------------- */

enum tsr_welcome {
    TSR_WELCOME,
    TSR_WELCOME_GONE,    /* hung up without a word: too busy with others, or about to end */
    TSR_WELCOME_NOISE,   /* is no process of this program, or is silent */
    TSR_WELCOME_REFUSED, /* the error text says why */
};
struct tsr_guest_ticket {
    uint32_t purpose, rank, size, to;
    const struct tsr_secret *secret;
};
enum tsr_welcome tsr__handshake(int fd, const struct tsr_guest_ticket *ticket, double deadline);

/* ---- who listens ----------------------------------------------------------------------------- */

/* A socket that listens, and the strangers who stand before it: all at once, none for longer than
 * a few seconds, with so many bytes of memory each and no more. When there are too many, who has
 * been silent longest goes. */
struct tsr_door;

struct tsr_door_config {
    int listen_fd; /* taken over, also on failure */
    bool is_local; /* a Unix socket: only processes of this user are let in */
    uint32_t purpose, rank;
    uint32_t expected; /* how many may come at once in good order */
    const struct tsr_secret *secret;
    /* Somebody proved that he knows the secret. True: he may stay, and the socket is the callee's;
     * false: `text` (TSR_VERDICT_TEXT bytes) says why not. */
    bool (*admit)(void *user, const struct tsr_hello *hello, int fd, char *text);
    void *user;
};

tsr_status tsr__door_open(const struct tsr_door_config *config, struct tsr_door **out);
/* How many entries of `polls` it wants; writes them if there is room for `n`. */
size_t tsr__door_polls(const struct tsr_door *door, struct pollfd *polls, size_t n);
/* What poll() said of them. Also with nothing ready: those who took too long go. */
void tsr__door_work(struct tsr_door *door, const struct pollfd *polls);
size_t tsr__door_guests(const struct tsr_door *door); /* who stand there now */
void tsr__door_close(struct tsr_door *door);          /* NULL is allowed */

/* Text of another process: what no terminal should see becomes '?'. */
void tsr__plain_text(char *text);

#endif
