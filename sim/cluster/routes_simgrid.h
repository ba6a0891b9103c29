/* routes_simgrid.h: the part of routes.c that runs in the child. Private to routes*.c. */
#ifndef TSR_SIM_ROUTES_SIMGRID_H
#define TSR_SIM_ROUTES_SIMGRID_H

#include <stdint.h>
#include <stdio.h>

/* What the child writes: a header, then links (struct tsr__route_link), then the lengths of the
 * routes of all pairs, then their hops. With `error` set only the header counts. */
struct tsr__routes_header {
    uint32_t n_hosts, n_links; /* hosts: of the whole file */
    uint64_t n_hops;
    char error[256];
};

/* Loads the platform and writes the routes between its first `n_hosts` hosts; 0: only counts.
 * SimGrid aborts the process on what it does not like. */
void tsr__routes_write(const char *path, uint32_t n_hosts, FILE *out);

#endif
