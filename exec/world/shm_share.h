/* shm_share.h: how the processes of a host come to have the same memory. */
#ifndef TSR_EXEC_SHM_SHARE_H
#define TSR_EXEC_SHM_SHARE_H

#include "exec/world/carriers.h"

/* The thread that gives the memory away, in the first rank of a host. */
struct tsr_shm_giver;

/* All ranks of the job call it; `first` is the first of the n that share memory with this one.
 * *fd: memory of `bytes` zeros, the same for those n; *error: why there is none (errno); neither if
 * n is 1. When all have it, *giver (NULL in other ranks) is stopped. */
tsr_status tsr__shm_share(const struct tsr_shm_config *config, uint32_t first, uint32_t n,
                          size_t bytes, int *fd, struct tsr_shm_giver **giver, int *error);
void tsr__shm_give_no_more(struct tsr_shm_giver *giver); /* NULL is allowed */

/* Memory without a name, whose size is sealed; -1 with errno. */
int tsr__shm_create(size_t bytes);
/* The descriptor is such memory, with that size: reading it cannot fail. */
bool tsr__shm_is_sound(int fd, size_t bytes);
/* A descriptor through a Unix socket; -1 with errno. */
bool tsr__shm_send_fd(int socket, int fd);
int tsr__shm_receive_fd(int socket, double deadline);

#endif
