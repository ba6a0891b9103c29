/* routes.c: fetches the routes of a platform file from a child that runs SimGrid. */
#define _GNU_SOURCE
#include "sim/cluster/routes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim/base/child.h"
#include "sim/base/text_check.h"
#include "sim/cluster/simgrid.h"
#include "sim/input/xml_doc.h"

/* All pairs are fetched: 1,024 hosts have a million routes. A file may have more hosts than a job
 * uses; where SimGrid looks for ways itself (Floyd), time grows with the cube of their number. */
enum { MAX_HOSTS = 1024, MAX_FILE_HOSTS = 16384, MAX_FLOYD = 1024 };

struct question {
    const char *path;
    uint32_t n_hosts;
    FILE *file;
};

#ifdef TSR_HAVE_SIMGRID
static void answer(void *user)
{
    const struct question *q = user;
    tsr__routes_write(q->path, q->n_hosts, q->file);
}

/* SimGrid's own words, without its "[0.000000] [category/CRITICAL] ". */
static const char *words_of(const char *line)
{
    const char *after = strstr(line, "CRITICAL] ");
    return after ? after + strlen("CRITICAL] ") : line;
}

static tsr_status ask(const struct question *q, struct tsr__routes_header *head)
{
    struct tsr__child_end end;
    TSR_TRY(tsr__simgrid_load());
    TSR_TRY(tsr__child_call(answer, (void *)q, &end));
    rewind(q->file);
    if (!WIFEXITED(end.wait_status) || WEXITSTATUS(end.wait_status) != 0)
        return tsr_fail(TSR_ECONFIG, "%s: SimGrid does not take this platform: %s", q->path,
                        *end.last_line ? words_of(end.last_line) : "it says nothing");
    if (fread(head, sizeof *head, 1, q->file) != 1)
        return tsr_fail(TSR_EBACKEND, "%s: the routes were lost", q->path);
    if (*head->error)
        return tsr_fail(TSR_ECONFIG, "%s: %s", q->path, head->error);
    return TSR_OK;
}
#else
static tsr_status ask(const struct question *q, struct tsr__routes_header *head)
{
    (void)head;
    return tsr_fail(TSR_EUNSUPPORTED, "%s: this build has no SimGrid to read it with", q->path);
}
#endif

static bool read_all(FILE *file, void *to, size_t size, size_t n)
{
    return fread(to, size, n, file) == n;
}

static tsr_status read_routes(const struct question *q, const struct tsr__routes_header *head,
                              struct tsr__routes *out)
{
    size_t pairs = (size_t)q->n_hosts * q->n_hosts;
    *out = (struct tsr__routes){.n_hosts = q->n_hosts, .n_links = head->n_links};
    out->links = calloc(head->n_links + 1u, sizeof *out->links);
    out->first = calloc(pairs + 1, sizeof *out->first);
    out->hops = calloc(head->n_hops + 1, sizeof *out->hops);
    if (!out->links || !out->first || !out->hops)
        return tsr_no_memory(q->path);
    if (!read_all(q->file, out->links, sizeof *out->links, head->n_links) ||
        !read_all(q->file, out->first + 1, sizeof *out->first, pairs) ||
        !read_all(q->file, out->hops, sizeof *out->hops, head->n_hops))
        return tsr_fail(TSR_EBACKEND, "%s: the routes were lost", q->path);
    for (size_t i = 0; i < pairs; i++) /* lengths become places */
        out->first[i + 1] += out->first[i];
    return TSR_OK;
}

static tsr_status fetch(const struct question *q, struct tsr__routes *out, uint32_t *n_hosts)
{
    struct tsr__routes_header head = {0};
    TSR_TRY(ask(q, &head));
    *n_hosts = head.n_hosts;
    if (head.n_hosts < q->n_hosts || head.n_hosts == 0)
        return tsr_fail(TSR_ECONFIG, "%s: found %u hosts, allowed at least %u: one per node",
                        q->path, head.n_hosts, q->n_hosts ? q->n_hosts : 1);
    if (!out)
        return TSR_OK;
    tsr_status status = read_routes(q, &head, out);
    if (status != TSR_OK)
        tsr__routes_fini(out);
    return status;
}

/* ---- before SimGrid sees it ------------------------------------------------------------------ */

/* Hosts of "0-7,12,20-29"; more than MAX_FILE_HOSTS is as good as any number. */
static uint64_t n_of_radical(const char *text)
{
    uint64_t n = 0;
    while (text && *text && n <= MAX_FILE_HOSTS) {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        n += last < first                    ? 1
             : last - first < MAX_FILE_HOSTS ? last - first + 1
                                             : MAX_FILE_HOSTS + 1;
        text = *end ? end + 1 : end;
    }
    return n;
}

static bool is_floyd(const struct tsr__xml *xml, uint32_t zone)
{
    const char *routing =
        zone == TSR_NO_ID ? NULL : tsr__xml_attribute(&xml->items[zone], "routing");
    return routing && !strcmp(routing, "Floyd");
}

static tsr_status check_elements(const struct tsr__xml *xml)
{
    static const char *const points[] = {"host",    "router", "peer", "cluster",
                                         "cabinet", "zone",   "AS"};
    uint64_t n_hosts = 0, n_floyd = 0;
    for (uint32_t i = 0; i < xml->n; i++) {
        const char *radical = tsr__xml_attribute(&xml->items[i], "radical");
        bool is_point = false;
        for (size_t k = 0; k < sizeof points / sizeof *points; k++)
            is_point |= !strcmp(xml->items[i].name, points[k]);
        n_hosts += radical ? n_of_radical(radical) : is_point;
        n_floyd += is_point && is_floyd(xml, xml->items[i].parent);
        if (n_hosts > MAX_FILE_HOSTS)
            return tsr__xml_fail(xml, i, "more than %d hosts", MAX_FILE_HOSTS);
        if (n_floyd > MAX_FLOYD)
            return tsr__xml_fail(xml, i, "more than %d hosts in zones with routing Floyd",
                                 MAX_FLOYD);
    }
    return TSR_OK;
}

static tsr_status check_file(const char *path)
{
    struct tsr__xml xml;
    char *text = NULL;
    size_t n;
    tsr_status status = tsr__xml_open(path, &xml);
    if (status == TSR_EUNSUPPORTED) { /* no expat: a look at the bytes */
        status = tsr_text_load(path, &text, &n);
        free(text);
        return status;
    }
    if (status == TSR_OK) {
        status = check_elements(&xml);
        tsr__xml_close(&xml);
    }
    return status;
}

static tsr_status open_and_fetch(const char *path, uint32_t n_hosts, struct tsr__routes *out,
                                 uint32_t *found)
{
    TSR_TRY(check_file(path));
    int fd = memfd_create("routes", MFD_CLOEXEC);
    FILE *file = fd >= 0 ? fdopen(fd, "w+") : NULL;
    if (!file) {
        if (fd >= 0)
            close(fd);
        return tsr_fail(TSR_EBACKEND, "%s: no memory for routes: %s", path, strerror(errno));
    }
    struct question q = {path, n_hosts, file};
    tsr_status status = fetch(&q, out, found);
    fclose(file);
    return status;
}

tsr_status tsr__routes_load(const char *path, uint32_t n_hosts, struct tsr__routes *out)
{
    uint32_t found;
    *out = (struct tsr__routes){0};
    if (n_hosts > MAX_HOSTS)
        return tsr_fail(TSR_ECONFIG, "%s: the job uses %u hosts of it, allowed up to %d", path,
                        n_hosts, (int)MAX_HOSTS);
    return open_and_fetch(path, n_hosts, out, &found);
}

tsr_status tsr__routes_count(const char *path, uint32_t *n_hosts)
{
    return open_and_fetch(path, 0, NULL, n_hosts);
}

void tsr__routes_fini(struct tsr__routes *r)
{
    free(r->links);
    free(r->first);
    free(r->hops);
    *r = (struct tsr__routes){0};
}
