/* routes.h: the links and routes of a user's SimGrid platform file. Private to sim/.
 *
 * SimGrid itself reads the file and resolves the routes, in a process of its own, because it aborts
 * on what it does not like and can be started once per process. What comes back is plain data; the
 * simulation then builds its own platform of those links, whole or folded.
 */
#ifndef TSR_SIM_ROUTES_H
#define TSR_SIM_ROUTES_H

#include <stdio.h>

#include "engine/program/program.h"

struct tsr__route_link {
    double bandwidth; /* bytes per second */
    bool fatpipe;     /* each flow gets up to `bandwidth`; else they share it */
};

struct tsr__routes {
    uint32_t n_hosts, n_links;
    struct tsr__route_link *links;
    uint32_t *first; /* [n_hosts * n_hosts + 1]: of the route from host a to host b */
    uint32_t *hops;  /* link ids */
};

/* The first `n_hosts` hosts of the file in the natural order of their names. Errors: TSR_ECONFIG
 * with what SimGrid said, for fewer hosts, for a pair without a route, for a link without
 * bandwidth; TSR_EUNSUPPORTED without SimGrid. On failure nothing is to be freed. */
tsr_status tsr__routes_load(const char *path, uint32_t n_hosts,
                            struct tsr__routes *out) TSR_MUST_USE;
void tsr__routes_fini(struct tsr__routes *routes);
static inline uint32_t tsr__routes_get(const struct tsr__routes *routes, uint32_t from, uint32_t to,
                                       const uint32_t **hops)
{
    size_t at = (size_t)from * routes->n_hosts + to;
    *hops = routes->hops + routes->first[at];
    return routes->first[at + 1] - routes->first[at];
}
/* How many hosts the file has. */
tsr_status tsr__routes_count(const char *path, uint32_t *n_hosts) TSR_MUST_USE;

/* ---- in the child (routes_simgrid.c) ------------------------------------------------------ */

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
