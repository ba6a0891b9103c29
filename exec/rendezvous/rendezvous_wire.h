/* rendezvous_wire.h: what goes over the connections of a rendezvous behind the handshake, and the
 * thread that answers. Integers are in the byte order of the machine.
 */
#ifndef TSR_EXEC_RENDEZVOUS_WIRE_H
#define TSR_EXEC_RENDEZVOUS_WIRE_H

#include "exec/rendezvous/handshake.h"
#include "exec/rendezvous/rendezvous.h"
#include "exec/rendezvous/socket.h"

/* How the loss of a rank is worded, wherever it is noticed. */
#define TSR_RANK_LOST "rank %u is lost: its process ended, or its connection broke"
enum { TSR_WIRE_KEY = TSR_RENDEZVOUS_NAME };

enum tsr_wire_op {
    TSR_WIRE_REPLY,  /* status; text, or what was gathered */
    TSR_WIRE_GATHER, /* key: of what; value: this rank's; number: milliseconds to wait */
    TSR_WIRE_NEWS,   /* the job is over: status, text. Also from the server, unasked */
    TSR_WIRE_BYE,
};

/* Every message; key and value follow. */
struct tsr_wire_frame {
    uint32_t magic;
    uint8_t op, status;
    uint16_t key_bytes;
    uint32_t value_bytes, unused;
    int64_t number;
};

/* Bytes that grow; free(data). */
struct tsr_wire_buffer {
    char *data;
    size_t n, cap;
    uint32_t most; /* of a value in it; 0: TSR_RENDEZVOUS_VALUE */
};
bool tsr__wire_append(struct tsr_wire_buffer *buffer, const void *data, size_t bytes);
void tsr__wire_drop(struct tsr_wire_buffer *buffer, size_t bytes); /* the first ones */
/* Appends a frame. */
bool tsr__wire_put(struct tsr_wire_buffer *buffer, struct tsr_wire_frame frame, const char *key,
                   const void *value);
/* > 0: bytes of the frame that the buffer begins with; 0: not all there; < 0: no frame. */
long tsr__wire_complete(const struct tsr_wire_buffer *buffer, struct tsr_wire_frame *frame);

/* The server: a thread in the process of rank 0. Takes over the socket, also on failure. */
struct tsr_rendezvous_server;
struct tsr_server_config {
    int listen_fd;
    bool is_local; /* as in tsr_door_config */
    uint32_t size;
    const struct tsr_secret *secret; /* copied */
};
tsr_status tsr__server_start(const struct tsr_server_config *config,
                             struct tsr_rendezvous_server **out);
/* Returns when all clients have left, or after `seconds`. */
void tsr__server_stop(struct tsr_rendezvous_server *server, double seconds);

#endif
