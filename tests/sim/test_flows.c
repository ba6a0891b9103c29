/* test_flows.c: SimGrid's sharing of links against a progressive-filling simulation of our own, and
 * the effect of one slower link. Drives backend.c alone. */
#include "tests/sim/sim_testing.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim/cluster/simgrid.h"
#include "sim/replay/backend.h"

enum { MAX_LINKS = 24, MAX_FLOWS = 80 };

struct flow {
    double start, bytes, end;
    uint32_t route;
};

struct network {
    struct tsr__quotient q;
    struct tsr__qroute routes[MAX_FLOWS];
    double capacity[MAX_LINKS];
    struct flow flows[MAX_FLOWS];
    uint32_t n_flows;
};

/* ---- progressive filling ----------------------------------------------------------------- */

/* Max-min rates of the active flows: raise all rates together, freeze flows on full links. */
static void fill(const struct network *net, const bool *active, double *rate)
{
    bool frozen[MAX_FLOWS] = {false};
    double left[MAX_LINKS];
    memcpy(left, net->capacity, sizeof left);
    for (uint32_t i = 0; i < net->n_flows; i++)
        rate[i] = 0.0;
    for (;;) {
        double share[MAX_LINKS], least = (double)INFINITY;
        uint32_t users[MAX_LINKS] = {0};
        for (uint32_t i = 0; i < net->n_flows; i++)
            for (uint32_t k = 0;
                 active[i] && !frozen[i] && k < net->routes[net->flows[i].route].n_links; k++)
                users[net->routes[net->flows[i].route].links[k]]++;
        for (uint32_t l = 0; l < net->q.n_links; l++) {
            share[l] = users[l] ? left[l] / users[l] : (double)INFINITY;
            least = share[l] < least ? share[l] : least;
        }
        if (isinf(least))
            return;
        for (uint32_t i = 0; i < net->n_flows; i++) {
            const struct tsr__qroute *route = &net->routes[net->flows[i].route];
            bool full = false;
            for (uint32_t k = 0; active[i] && !frozen[i] && k < route->n_links; k++)
                full = full || share[route->links[k]] <= least * (1 + 1e-12);
            if (!full)
                continue;
            frozen[i] = true;
            rate[i] = least;
            for (uint32_t k = 0; k < route->n_links; k++)
                left[route->links[k]] -= least;
        }
    }
}

static void expect(const struct network *net, double *end)
{
    double left[MAX_FLOWS], rate[MAX_FLOWS], now = 0.0;
    bool active[MAX_FLOWS], over[MAX_FLOWS] = {false};
    uint32_t n_over = 0;
    for (uint32_t i = 0; i < net->n_flows; i++)
        left[i] = net->flows[i].bytes;
    while (n_over < net->n_flows) {
        double step = (double)INFINITY;
        for (uint32_t i = 0; i < net->n_flows; i++)
            active[i] = !over[i] && net->flows[i].start <= now + 1e-13;
        fill(net, active, rate);
        for (uint32_t i = 0; i < net->n_flows; i++) {
            double until = active[i] ? left[i] / rate[i]
                                     : (over[i] ? (double)INFINITY : net->flows[i].start - now);
            step = until < step ? until : step;
        }
        now += step;
        for (uint32_t i = 0; i < net->n_flows; i++) {
            if (!active[i])
                continue;
            left[i] -= rate[i] * step;
            if (left[i] > net->flows[i].bytes * 1e-12)
                continue;
            over[i] = true;
            end[i] = now;
            n_over++;
        }
    }
}

/* ---- SimGrid ----------------------------------------------------------------------------- */

static void flow_done(void *user, void *object, uint32_t tag)
{
    double *end = user;
    (void)object;
    end[tag] = tsr__backend_now();
}

static void simulate(struct network *net)
{
    size_t bytes = MAX_FLOWS * sizeof(double);
    double *end = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(end, MAP_FAILED);
    pid_t child = fork();
    if (child == 0) {
        struct tsr__platform platform;
        if (tsr__platform_build(&net->q, &platform) != TSR_OK)
            _exit(1);
        struct tsr__backend *b = tsr__backend_start(&net->q, &platform, true, flow_done, end);
        for (uint32_t i = 0; b && i < net->n_flows; i++) {
            struct tsr__activity activity = {.work = TSR__FLOW,
                                             .where = net->flows[i].route,
                                             .delay_s = net->flows[i].start,
                                             .amount = net->flows[i].bytes * TSR__BYTE_SCALE,
                                             .tag = i};
            if (!tsr__backend_submit(b, &activity))
                _exit(2);
        }
        if (b)
            tsr__backend_run(b);
        _exit(b ? 0 : 3);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    for (uint32_t i = 0; i < net->n_flows; i++)
        net->flows[i].end = end[i];
    munmap(end, bytes);
}

static void link_up(struct network *net, uint32_t n_links)
{
    static struct tsr__qrank rank;
    net->q = (struct tsr__quotient){.n_ranks = 1,
                                    .ranks = &rank,
                                    .n_links = n_links,
                                    .capacity = net->capacity,
                                    .routes = net->routes};
}

static void add_flow(struct network *net, double start, double bytes, const uint32_t *links,
                     uint32_t n_links)
{
    struct tsr__qroute *route = &net->routes[net->q.n_routes];
    memset(route, 0, sizeof *route);
    route->n_links = n_links;
    memcpy(route->links, links, n_links * sizeof *links);
    net->flows[net->n_flows++] =
        (struct flow){.start = start, .bytes = bytes, .route = net->q.n_routes++};
}

static void random_flows_share_as_we_do(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct network net = {0};
        double end[MAX_FLOWS];
        uint64_t random = seed;
        link_up(&net, 4 + (uint32_t)(random_next(&random) % (MAX_LINKS - 4)));
        for (uint32_t l = 0; l < net.q.n_links; l++)
            net.capacity[l] = 1e9 * (double)(1 + random_next(&random) % 400);
        for (uint32_t i = 0; i < MAX_FLOWS; i++) {
            uint32_t links[4], n = 1 + (uint32_t)(random_next(&random) % 4);
            for (uint32_t k = 0; k < n; k++) /* distinct links, in any order */
                links[k] = (uint32_t)((random_next(&random) % (net.q.n_links / n)) * n + k);
            add_flow(&net, 1e-6 * (double)(random_next(&random) % 20000),
                     (double)(1000000 + random_next(&random) % 900000000), links, n);
        }
        simulate(&net);
        expect(&net, end);
        for (uint32_t i = 0; i < net.n_flows; i++)
            if (fabs(net.flows[i].end - end[i]) > 1e-9 * end[i])
                fail_msg("seed %d flow %u: %.15g, expected %.15g", (int)seed, i, net.flows[i].end,
                         end[i]);
    }
}

/* Flows of 1:3 on one link end at 2S/B and 4S/B; opposite directions do not meet. */
static void two_sizes_on_one_link(void **state)
{
    struct network net = {0};
    const uint32_t out[] = {0}, in[] = {1};
    (void)state;
    link_up(&net, 2);
    net.capacity[0] = net.capacity[1] = 50e9;
    add_flow(&net, 0.0, 1e9, out, 1);
    add_flow(&net, 0.0, 3e9, out, 1);
    add_flow(&net, 0.0, 2.5e9, in, 1);
    simulate(&net);
    assert_close(net.flows[0].end, 2 * 1e9 / 50e9, 1e-12);
    assert_close(net.flows[1].end, 4 * 1e9 / 50e9, 1e-12);
    assert_close(net.flows[2].end, 2.5e9 / 50e9, 1e-12);
}

/* Two collectives that overlap: each one's flows cross two links, one is shared. Halving a link
 * changes both exactly as max-min sharing says, and in this case visibly. */
static void half_a_link_changes_both(void **state)
{
    const uint32_t first[] = {0, 1}, second[] = {0, 2};
    double before[MAX_FLOWS], end[MAX_FLOWS];
    (void)state;
    for (uint32_t halved = 0; halved < 4; halved++) {
        struct network net = {0};
        link_up(&net, 3);
        net.capacity[0] = 100e9;
        net.capacity[1] = 60e9;
        net.capacity[2] = 60e9;
        if (halved)
            net.capacity[halved - 1] /= 2;
        add_flow(&net, 0.0, 6e9, first, 2);
        add_flow(&net, 0.01, 6e9, second, 2);
        simulate(&net);
        expect(&net, end);
        for (uint32_t i = 0; i < 2; i++) {
            assert_close(net.flows[i].end, end[i], 1e-12);
            if (!halved)
                before[i] = end[i];
            else if (halved == 1)
                assert_true(net.flows[i].end > 1.2 * before[i]);
        }
    }
}

/* The backend is driven without tsr_simulate(), which would load SimGrid. */
static int load(void **state)
{
    (void)state;
    return tsr__simgrid_load() == TSR_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_flows_share_as_we_do),
        cmocka_unit_test(two_sizes_on_one_link),
        cmocka_unit_test(half_a_link_changes_both),
    };
    return cmocka_run_group_tests_name("flows", tests, load, NULL);
}
