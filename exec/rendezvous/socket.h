/* socket.h: sockets as ranks use them. They are close-on-exec, do not block, and raise no signals.
 */
#ifndef TSR_EXEC_SOCKET_H
#define TSR_EXEC_SOCKET_H

#include "engine/program/base.h"

#include <sys/socket.h>

/* Listens at one address of this host: a name, IPv4 or IPv6; "0.0.0.0" or "::" are all of them,
 * which nobody gets without saying so. Port 0: any. TSR_ECONFIG: the port is in use, or the address
 * is none of this host. */
tsr_status tsr__socket_listen(const char *addr, uint16_t port, int *fd);
uint16_t tsr__socket_port(int fd);
/* The address of this end of a connection as a number. */
void tsr__socket_address(int fd, char *text, size_t bytes);
/* True for text that means this host whatever a resolver says: 127.0.0.1 and the like, ::1,
 * localhost. */
bool tsr__socket_is_loopback(const char *addr);
bool tsr__socket_is_everywhere(const char *addr); /* 0.0.0.0, :: */
/* The address that a name has here, as a number, if it is one that no other host reaches. */
bool tsr__socket_resolves_to_loopback(const char *addr, char *text, size_t bytes);
/* Tries until the deadline; TSR_EPEER with the last reason. */
tsr_status tsr__socket_connect(const char *addr, uint16_t port, double deadline, int *fd);

/* A Unix socket with a name that is no file: processes of this host reach it, and the kernel says
 * whose they are. */
tsr_status tsr__socket_listen_local(const char *name, int *fd);
tsr_status tsr__socket_connect_local(const char *name, double deadline, int *fd);
/* The other end of a Unix socket is a process of this user. */
bool tsr__socket_is_mine(int fd);

bool tsr__socket_setup(int fd); /* of one that is connected, or listens */
int tsr__socket_accept(int fd); /* -1 with errno: none */
/* False: not all by the deadline, or the connection is broken. */
bool tsr__socket_send(int fd, const void *data, size_t bytes, double deadline);
/* How many bytes came until the deadline or the end: `bytes`, or fewer. */
size_t tsr__socket_receive_some(int fd, void *data, size_t bytes, double deadline);
bool tsr__socket_receive(int fd, void *data, size_t bytes, double deadline);
/* Milliseconds for poll() up to the deadline, at most `most`, at least 0. */
int tsr__poll_ms(double deadline, int most);

#endif
