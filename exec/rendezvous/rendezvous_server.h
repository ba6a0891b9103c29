/* rendezvous_server.h: the thread of rank 0 that knows all ranks. rendezvous_server.c has its
 * connections, rendezvous_store.c what their requests do.
 */
#ifndef TSR_RENDEZVOUS_SERVER_H
#define TSR_RENDEZVOUS_SERVER_H

#include "exec/rendezvous/rendezvous_wire.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

enum { TSR_SERVER_TEXT = 512 };

struct tsr_client {
    int fd; /* -1: closed */
    bool joined, left;
    uint32_t rank;
    struct tsr_wire_buffer in, out;
    double deadline; /* of the hello, then of the request that waits */
    uint8_t waits;   /* TSR_WIRE_GET, TSR_WIRE_BARRIER; else 0 */
    int64_t wait_ms;
    char key[TSR_WIRE_KEY + 1];
};

struct tsr_store_entry {
    char *key;
    void *value; /* NULL: not set */
    uint32_t bytes;
    int64_t number;
};

struct tsr_rendezvous_server {
    pthread_t thread;
    _Atomic bool stopping;
    _Atomic double stopped_at, patience_s;
    int listen_fd;
    uint32_t size, n_joined;
    char token[TSR_RENDEZVOUS_TOKEN];
    size_t n_clients, clients_cap, n_entries, entries_cap;
    struct tsr_client **clients;
    struct tsr_store_entry *entries;
    struct pollfd *polls; /* [n_clients + 1] */
    size_t polls_cap;
    tsr_status news; /* the end of the job, as told to all; OK: none */
    char news_text[TSR_SERVER_TEXT];
};

/* Closes the connection; the rank stays known. */
void tsr__client_close(struct tsr_client *c);
/* The connection is at its end, for whatever reason: of a rank that has not said goodbye, a loss.
 */
void tsr__client_end(struct tsr_rendezvous_server *s, struct tsr_client *c);
void tsr__client_reply(struct tsr_client *c, tsr_status status, int64_t number, const void *value,
                       uint32_t bytes);
void tsr__client_reply_text(struct tsr_client *c, tsr_status status, const char *text);
/* The end of the job, to all ranks. Only the first counts; who joins later hears it, too. */
void tsr__server_spread(struct tsr_rendezvous_server *s, tsr_status status, const char *text);
void tsr__server_put_news(struct tsr_rendezvous_server *s, struct tsr_client *c);

/* Does what the bytes that have arrived ask for. */
void tsr__server_take(struct tsr_rendezvous_server *s, struct tsr_client *c);
/* Ends what has waited too long. */
void tsr__server_check_deadlines(struct tsr_rendezvous_server *s);

#endif
