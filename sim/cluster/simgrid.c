/* simgrid.c: loads SimGrid's library once, and calls its functions under their own names
 * (simgrid.h). The headers of SimGrid check that the types below are right. A build with a static
 * SimGrid has no TSR_SIMGRID_LIBRARY and is linked with the functions themselves. */
#include "sim/cluster/simgrid.h"

#ifdef TSR_SIMGRID_LIBRARY

#include <dlfcn.h>
#include <pthread.h>
#include <simgrid/engine.h>
/* simgrid/engine.h first: the others do not compile alone in C */
#include <simgrid/actor.h>
#include <simgrid/exec.h>
#include <simgrid/host.h>
#include <simgrid/link.h>
#include <simgrid/semaphore.h>
#include <stdio.h>
#include <string.h>
#include <xbt/dynar.h>

/* SimGrid 3.32 declares sg_host_count() and sg_host_list() without "void"; sg_host_get_route() is
 * to go with 4.3. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* Result, name, parameters, arguments of each function that is used: RETURN of those with a result,
 * CALL of the others. */
/* clang-format off */
#define FUNCTIONS(RETURN, CALL) \
    CALL(simgrid_init, (int *argc, char **argv), (argc, argv)) \
    CALL(simgrid_load_platform, (const char *path), (path)) \
    CALL(simgrid_run, (void), ()) \
    RETURN(double, simgrid_get_clock, (void), ()) \
    RETURN(sg_actor_t, sg_actor_create_, \
           (const char *name, sg_host_t host, xbt_main_func_t run, int argc, const char *const *argv), \
           (name, host, run, argc, argv)) \
    RETURN(sg_exec_t, sg_actor_exec_init, (double flops), (flops)) \
    CALL(sg_actor_sleep_for, (double duration), (duration)) \
    CALL(sg_exec_set_host, (sg_exec_t exec, sg_host_t host), (exec, host)) \
    CALL(sg_exec_start, (sg_exec_t exec), (exec)) \
    RETURN(sg_error_t, sg_exec_wait, (sg_exec_t exec), (exec)) \
    RETURN(sg_host_t, sg_host_by_name, (const char *name), (name)) \
    RETURN(size_t, sg_host_count, (void), ()) \
    RETURN(const char *, sg_host_get_name, (const_sg_host_t host), (host)) \
    CALL(sg_host_get_route, (const_sg_host_t from, const_sg_host_t to, xbt_dynar_t links), \
         (from, to, links)) \
    RETURN(double, sg_host_get_speed, (const_sg_host_t host), (host)) \
    RETURN(sg_host_t *, sg_host_list, (void), ()) \
    CALL(sg_host_sendto, (sg_host_t from, sg_host_t to, double bytes), (from, to, bytes)) \
    CALL(sg_host_set_pstate, (sg_host_t host, unsigned long pstate), (host, pstate)) \
    RETURN(double, sg_link_get_bandwidth, (const_sg_link_t link), (link)) \
    RETURN(void *, sg_link_get_data, (const_sg_link_t link), (link)) \
    RETURN(const char *, sg_link_get_name, (const_sg_link_t link), (link)) \
    RETURN(int, sg_link_is_shared, (const_sg_link_t link), (link)) \
    CALL(sg_link_set_data, (sg_link_t link, void *data), (link, data)) \
    CALL(sg_sem_acquire, (sg_sem_t semaphore), (semaphore)) \
    CALL(sg_sem_destroy, (const_sg_sem_t semaphore), (semaphore)) \
    RETURN(sg_sem_t, sg_sem_init, (int value), (value)) \
    CALL(sg_sem_release, (sg_sem_t semaphore), (semaphore)) \
    CALL(xbt_dynar_free, (xbt_dynar_t *dynar), (dynar)) \
    CALL(xbt_dynar_get_cpy, (const_xbt_dynar_t dynar, unsigned long at, void *to), (dynar, at, to)) \
    RETURN(unsigned long, xbt_dynar_length, (const_xbt_dynar_t dynar), (dynar)) \
    RETURN(xbt_dynar_t, xbt_dynar_new, (unsigned long size, void_f_pvoid_t free_one), (size, free_one))
/* clang-format on */

/* The functions of the loaded library; written once, by load(). */
static struct {
#define RETURN(type, name, parameters, arguments) type(*name) parameters;
#define CALL(name, parameters, arguments)         void(*name) parameters;
    FUNCTIONS(RETURN, CALL)
#undef RETURN
#undef CALL
} loaded;
static char failure[512]; /* why there are none; "" */
static pthread_once_t once = PTHREAD_ONCE_INIT;

#define RETURN(type, name, parameters, arguments) \
    type name parameters                          \
    {                                             \
        return loaded.name arguments;             \
    }
#define CALL(name, parameters, arguments) \
    void name parameters                  \
    {                                     \
        loaded.name arguments;            \
    }
FUNCTIONS(RETURN, CALL)
#undef RETURN
#undef CALL

static void find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    if (!symbol && !*failure)
        (void)snprintf(failure, sizeof failure, "its library has no %s", name);
    memcpy(function, &symbol, sizeof symbol); /* ISO C has no cast from one to the other */
}

/* By its name first, so that a program that was moved finds the library of its machine; then where
 * it was when the program was built. */
static void *open_library(void)
{
    void *library = dlopen(strrchr(TSR_SIMGRID_LIBRARY, '/') + 1, RTLD_LAZY | RTLD_LOCAL);
    return library ? library : dlopen(TSR_SIMGRID_LIBRARY, RTLD_LAZY | RTLD_LOCAL);
}

static void load(void)
{
    void *library = open_library();
    if (!library) {
        (void)snprintf(failure, sizeof failure, "%s", dlerror());
        return;
    }
#define RETURN(type, name, parameters, arguments) find(library, #name, &loaded.name);
#define CALL(name, parameters, arguments)         find(library, #name, &loaded.name);
    FUNCTIONS(RETURN, CALL)
#undef RETURN
#undef CALL
}

tsr_status tsr__simgrid_load(void)
{
    (void)pthread_once(&once, load);
    return *failure ? tsr_fail(TSR_EBACKEND, "SimGrid cannot be loaded: %s", failure) : TSR_OK;
}

#else

tsr_status tsr__simgrid_load(void)
{
    return TSR_OK;
}

#endif
