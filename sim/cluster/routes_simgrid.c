/* routes_simgrid.c: asks SimGrid for the routes of a platform file, in the child of routes.c. */
#include "sim/cluster/routes.h"

#include <simgrid/engine.h>
#include <simgrid/host.h>
#include <simgrid/link.h>
#include <simgrid/version.h>
#include <stdlib.h>
#include <string.h>
#include <xbt/dynar.h>

#if SIMGRID_VERSION >= 33900
/* sg_host_get_route() is to go with 4.3; its successor is not in 3.32. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif

struct finder {
    struct tsr__routes_header head;
    sg_host_t *hosts;
    struct tsr__route_link *links;
    size_t link_cap;
    uint32_t *lengths, *hops;
    size_t hop_cap, n_hops;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* node-2 before node-10: runs of digits count as numbers. */
static int natural(const char *a, const char *b)
{
    while (*a && *b) {
        if (is_digit(*a) && is_digit(*b)) {
            char *after_a, *after_b;
            unsigned long x = strtoul(a, &after_a, 10), y = strtoul(b, &after_b, 10);
            if (x != y)
                return x < y ? -1 : 1;
            a = after_a;
            b = after_b;
        } else if (*a != *b) {
            return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
        } else {
            a++;
            b++;
        }
    }
    return (*a != 0) - (*b != 0);
}

static int by_name(const void *a, const void *b)
{
    const sg_host_t *x = a, *y = b;
    int order = natural(sg_host_get_name(*x), sg_host_get_name(*y));
    return order ? order : strcmp(sg_host_get_name(*x), sg_host_get_name(*y));
}

/* Number of a link, given when it is seen for the first time; TSR_NO_ID: no memory. */
static uint32_t number_link(struct finder *f, sg_link_t link)
{
    size_t n = f->head.n_links, known = (size_t)(uintptr_t)sg_link_get_data(link);
    if (known)
        return (uint32_t)known - 1;
    struct tsr__route_link made = {.bandwidth = sg_link_get_bandwidth(link),
                                   .fatpipe = !sg_link_is_shared(link)};
    if (!(made.bandwidth > 0.0) && !*f->head.error)
        snprintf(f->head.error, sizeof f->head.error,
                 "link %.100s: found bandwidth %g, allowed above 0", sg_link_get_name(link),
                 made.bandwidth);
    if (!TSR_PUSH(f->links, n, f->link_cap, made))
        return TSR_NO_ID;
    f->head.n_links = (uint32_t)n;
    sg_link_set_data(link, (void *)(uintptr_t)n); /* id + 1 */
    return (uint32_t)n - 1;
}

static bool find_route(struct finder *f, uint32_t a, uint32_t b, uint32_t n)
{
    xbt_dynar_t route = xbt_dynar_new(sizeof(sg_link_t), NULL);
    bool ok = true;
    if (a != b)
        sg_host_get_route(f->hosts[a], f->hosts[b], route);
    f->lengths[(size_t)a * n + b] = (uint32_t)xbt_dynar_length(route);
    for (unsigned long i = 0; ok && i < xbt_dynar_length(route); i++) {
        sg_link_t link;
        xbt_dynar_get_cpy(route, i, &link);
        uint32_t id = number_link(f, link);
        ok = id != TSR_NO_ID && TSR_PUSH(f->hops, f->n_hops, f->hop_cap, id);
    }
    if (a != b && xbt_dynar_length(route) == 0 && !*f->head.error)
        snprintf(f->head.error, sizeof f->head.error,
                 "found no links from host %.80s to host %.80s, allowed a route",
                 sg_host_get_name(f->hosts[a]), sg_host_get_name(f->hosts[b]));
    xbt_dynar_free(&route);
    return ok;
}

static bool find_routes(struct finder *f, uint32_t n)
{
    bool ok = true;
    f->lengths = calloc((size_t)n * n + 1, sizeof *f->lengths);
    for (uint32_t a = 0; f->lengths && ok && a < n; a++)
        for (uint32_t b = 0; ok && b < n; b++)
            ok = find_route(f, a, b, n);
    return ok && f->lengths;
}

void tsr__routes_write(const char *path, uint32_t n_hosts, FILE *out)
{
    struct finder f = {.head = {.n_hosts = 0}};
    char *argv[] = {"tessera", "--log=root.thres:error", NULL};
    int argc = sizeof argv / sizeof argv[0] - 1;
    simgrid_init(&argc, argv);
    simgrid_load_platform(path);
    simgrid_run(); /* nobody runs, but zones compute their routes when a run begins */
    f.head.n_hosts = (uint32_t)sg_host_count();
    f.hosts = sg_host_list();
    if (f.hosts)
        qsort(f.hosts, f.head.n_hosts, sizeof *f.hosts, by_name);
    if (f.hosts && n_hosts <= f.head.n_hosts && !find_routes(&f, n_hosts))
        snprintf(f.head.error, sizeof f.head.error, "out of memory");
    f.head.n_hops = f.n_hops;
    fwrite(&f.head, sizeof f.head, 1, out);
    if (!*f.head.error && n_hosts && n_hosts <= f.head.n_hosts) {
        if (f.head.n_links) /* one host has no links: there is no list */
            fwrite(f.links, sizeof *f.links, f.head.n_links, out);
        fwrite(f.lengths, sizeof *f.lengths, (size_t)n_hosts * n_hosts, out);
        if (f.n_hops)
            fwrite(f.hops, sizeof *f.hops, f.n_hops, out);
    }
    fflush(out); /* the child ends right after: nothing is freed */
}
