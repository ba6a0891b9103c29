/* rendezvous_wire.h: what goes over the connections of a rendezvous, and sockets as both ends use
 * them. Integers are in the byte order of the machine; the magic number tells if that differs.
 */
#ifndef TSR_EXEC_RENDEZVOUS_WIRE_H
#define TSR_EXEC_RENDEZVOUS_WIRE_H

#include "exec/rendezvous/rendezvous.h"

#include <sys/socket.h>

#define TSR_WIRE_MAGIC UINT32_C(0x56525354) /* "TSRV" */
/* How the loss of a rank is worded, wherever it is noticed. */
#define TSR_RANK_LOST "rank %u is lost: its process ended, or its connection broke"
enum { TSR_WIRE_VERSION = 1, TSR_WIRE_KEY = 255 };

/* The first bytes of a client. */
struct tsr_wire_hello {
    uint32_t magic, version, rank, size;
    char token[TSR_RENDEZVOUS_TOKEN];
};

enum tsr_wire_op {
    TSR_WIRE_REPLY, /* status; text or value; number */
    TSR_WIRE_SET,
    TSR_WIRE_GET, /* number: milliseconds to wait */
    TSR_WIRE_ADD, /* number: what to add */
    TSR_WIRE_BARRIER,
    TSR_WIRE_NEWS, /* the job is over: status, text. Also from the server, unasked */
    TSR_WIRE_BYE,
};

/* Every other message; key and value follow. */
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
};
bool tsr__wire_append(struct tsr_wire_buffer *buffer, const void *data, size_t bytes);
void tsr__wire_drop(struct tsr_wire_buffer *buffer, size_t bytes); /* the first ones */
/* Appends a frame. */
bool tsr__wire_put(struct tsr_wire_buffer *buffer, struct tsr_wire_frame frame, const char *key,
                   const void *value);
/* > 0: bytes of the frame that the buffer begins with; 0: not all there; < 0: no frame. */
long tsr__wire_complete(const struct tsr_wire_buffer *buffer, struct tsr_wire_frame *frame);

/* Sockets are close-on-exec, do not block, and raise no signals. */
tsr_status tsr__socket_listen(uint16_t port, int *fd); /* all addresses; port 0: any */
bool tsr__socket_setup(int fd);                        /* of one that is connected */
int tsr__socket_accept(int fd);                        /* -1: none */
uint16_t tsr__socket_port(int fd);
/* Tries until the deadline; TSR_EPEER with the last reason. */
tsr_status tsr__socket_connect(const char *addr, uint16_t port, double deadline, int *fd);
/* False: not all by the deadline, or the connection is broken. */
bool tsr__socket_send(int fd, const void *data, size_t bytes, double deadline);
bool tsr__socket_receive(int fd, void *data, size_t bytes, double deadline);
/* Milliseconds for poll() up to the deadline, at most `most`, at least 0. */
int tsr__poll_ms(double deadline, int most);

/* The server: a thread in the process of rank 0. Takes over the socket, also on failure. */
struct tsr_rendezvous_server;
tsr_status tsr__server_start(int listen_fd, uint32_t size, const char *token,
                             struct tsr_rendezvous_server **out);
/* Returns when all clients have left, or after `seconds`. */
void tsr__server_stop(struct tsr_rendezvous_server *server, double seconds);

#endif
