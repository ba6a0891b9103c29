/* simulate.c: one simulation of a job whose flows are known: folds what can be folded, replays it
 * in a child, and does so again without the twin of a slow GPU where the two did not keep step. */
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "sim/base/child.h"
#include "sim/cluster/simgrid.h"
#include "sim/fold/fold.h"
#include "sim/replay/replay.h"

/* Above this many ranks an unfolded simulation takes minutes and gigabytes. */
enum { MAX_UNFOLDED = 2048 };

/* ---- in a child ------------------------------------------------------------------------------ */

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* SimGrid's abort or crash becomes TSR_EBACKEND with the last line that the child wrote. */
static tsr_status judge(const struct tsr__child_end *end, const struct tsr__verdict *verdict)
{
    int wait_status = end->wait_status;
    const char *line = end->last_line;
    if (verdict->finished && WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0)
        return verdict->status == TSR_OK
                   ? TSR_OK
                   : tsr_fail((tsr_status)verdict->status, "%s", verdict->text);
    if (WIFSIGNALED(wait_status))
        return tsr_fail(TSR_EBACKEND, "the simulation was ended by signal %d (%s)%s%s",
                        WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)), *line ? ": " : "",
                        line);
    return tsr_fail(TSR_EBACKEND, "the simulation ended early (status %d)%s%s",
                    WEXITSTATUS(wait_status), *line ? ": " : "", line);
}

struct replay {
    const struct tsr__net *net;
    const struct tsr__quotient *q;
    struct tsr_sim_result *result;
    struct tsr__verdict *verdict;
};

static void replay(void *user)
{
    const struct replay *r = user;
    double start = now_s();
    tsr__replay_run(r->q, r->net->tapes, r->net->job, r->net->options, r->result, r->verdict);
    r->result->wall_s = now_s() - start;
    r->verdict->finished = 1;
}

static tsr_status replay_in_child(const struct tsr__net *net, const struct tsr__quotient *q,
                                  struct tsr_sim_result *result, struct tsr__verdict *verdict)
{
    struct replay r = {net, q, result, verdict};
    struct tsr__child_end end;
    TSR_TRY(tsr__simgrid_load());
    TSR_TRY(tsr__child_call(replay, &r, &end));
    return judge(&end, verdict);
}

/* ---- folded or not --------------------------------------------------------------------------- */

static tsr_status unfolded(const struct tsr__net *net, struct tsr__quotient *q)
{
    struct tsr__partition partition;
    if (net->job->world > MAX_UNFOLDED && tsr_is_noisy(&net->options->conditions))
        return tsr_fail(TSR_ECONFIG,
                        "jitter_%s: found %g with %u ranks, which all differ then; allowed: 0, or "
                        "up to %u ranks",
                        net->options->conditions.jitter_kernel > 0.0 ? "kernel" : "gpu",
                        net->options->conditions.jitter_kernel > 0.0
                            ? net->options->conditions.jitter_kernel
                            : net->options->conditions.jitter_gpu,
                        net->job->world, (unsigned)MAX_UNFOLDED);
    if (net->job->world > MAX_UNFOLDED)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "%u ranks cannot be simulated without folding, allowed up to %u",
                        net->job->world, (unsigned)MAX_UNFOLDED);
    TSR_TRY(tsr__fold_none(net, &partition));
    tsr_status status = tsr__quotient_build(net, &partition, q);
    tsr__partition_fini(&partition);
    return status;
}

/* Folded where that is asked for and possible. */
static tsr_status fold(const struct tsr__net *net, bool twin, struct tsr__quotient *q)
{
    struct tsr__partition partition;
    if (!net->options->fold || tsr_is_noisy(&net->options->conditions))
        return unfolded(net, q);
    TSR_TRY(tsr__fold_refine(net, twin, &partition));
    tsr_status status;
    TSR_GOTO(done, tsr__fold_check(net, &partition));
    TSR_GOTO(done, tsr__quotient_build(net, &partition, q));
done:
    tsr__partition_fini(&partition);
    return status == TSR_EUNSUPPORTED && net->job->world <= MAX_UNFOLDED ? unfolded(net, q)
                                                                         : status;
}

/* One simulation. *apart: it must be done again without `twin` (see fold.h). */
static tsr_status simulate_folded(const struct tsr__net *net, bool twin, bool *apart,
                                  struct tsr_sim_result **out)
{
    struct tsr__quotient q;
    struct tsr__verdict *verdict;
    tsr_status status;
    TSR_TRY(fold(net, twin, &q));
    TSR_GOTO(done, tsr__result_create(&q, net->tapes, net->job, out, &verdict));
    status = replay_in_child(net, &q, *out, verdict);
    *apart = verdict->apart;
done:
    if (status != TSR_OK) {
        tsr_sim_result_destroy(*out);
        *out = NULL;
    }
    tsr__quotient_fini(&q);
    return status;
}

tsr_status tsr__simulate(const struct tsr__net *net, struct tsr_sim_result **out)
{
    bool apart = false;
    *out = NULL;
    tsr_status status = simulate_folded(net, true, &apart, out);
    return apart ? simulate_folded(net, false, &apart, out) : status;
}
