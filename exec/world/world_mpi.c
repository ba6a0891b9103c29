/* world_mpi.c: a world whose messages MPI carries. Every mail is a header and then its bytes in
 * pieces, all with one tag: MPI keeps the order between two processes. One thread receives.
 */
#include "exec/base/word.h"
#include "exec/launch/launch.h"
#include "exec/world/world_mail.h"

#ifndef TSR_HAVE_MPI

tsr_status tsr_world_mpi(const struct tsr_launch *launch, double timeout_s, struct tsr_world **out)
{
    (void)launch;
    (void)timeout_s;
    *out = NULL;
    return tsr_fail(TSR_EUNSUPPORTED, "this build has no MPI (CMake option TESSERA_MPI)");
}

#else

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GRACE_S 1.0 /* to tell the others of a failure */
enum { TAG_MAIL, TAG_NEWS, PIECE = 1 << 22, TURNS = 200, PAUSE_NS = 50000 };

struct news {
    int32_t status;
    char text[TSR_ABORT_TEXT];
};

struct mpi_carrier {
    struct tsr_carrier base;
    MPI_Comm comm;
    uint32_t rank, size, n_locks;
    double timeout_s;
    bool ends_mpi, has_comm, has_thread;
    pthread_mutex_t *send_locks;
    struct tsr_mail_stream *streams;
    struct news news; /* that this rank told */
    MPI_Request *tellings;
    _Atomic bool has_told, stopping;
    pthread_t thread;
};

/* MPI has no waiting with a time limit: look often, then less often. */
static void wait_a_turn(int *turn)
{
    if ((*turn)++ < TURNS)
        (void)sched_yield();
    else
        (void)nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* MPI may read a message until it is sent, even if we have stopped waiting: it gets memory of its
 * own, which is not freed then. */
static bool send_piece(struct mpi_carrier *m, uint32_t to, const void *data, size_t bytes,
                       double deadline)
{
    MPI_Request request;
    int done = 0, turn = 0;
    void *copy = malloc(bytes);
    if (!copy)
        return false;
    memcpy(copy, data, bytes);
    if (MPI_Isend(copy, (int)bytes, MPI_BYTE, (int)to, TAG_MAIL, m->comm, &request) !=
        MPI_SUCCESS) {
        free(copy);
        return false;
    }
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
        if (tsr__aborted(&m->base.abort) || tsr__now() >= deadline)
            return false;
        wait_a_turn(&turn);
    }
    free(copy);
    return done != 0;
}

static bool mpi_send(struct tsr_carrier *carrier, uint32_t to, const struct tsr_mail_header *header,
                     const void *data, double deadline)
{
    struct mpi_carrier *m = (struct mpi_carrier *)carrier;
    (void)pthread_mutex_lock(&m->send_locks[to]);
    bool sent = send_piece(m, to, header, sizeof *header, deadline);
    for (uint64_t at = 0; sent && at < header->bytes; at += PIECE)
        sent = send_piece(m, to, (const char *)data + at,
                          (size_t)tsr_min_u64(PIECE, header->bytes - at), deadline);
    (void)pthread_mutex_unlock(&m->send_locks[to]);
    return sent;
}

static void mpi_tell(struct tsr_carrier *carrier, tsr_status status, const char *text)
{
    struct mpi_carrier *m = (struct mpi_carrier *)carrier;
    if (atomic_exchange(&m->has_told, true))
        return;
    m->news.status = (int32_t)status;
    (void)snprintf(m->news.text, sizeof m->news.text, "%s", text);
    for (uint32_t r = 0; r < m->size; r++)
        if (r != m->rank)
            (void)MPI_Isend(&m->news, sizeof m->news, MPI_BYTE, (int)r, TAG_NEWS, m->comm,
                            &m->tellings[r]);
}

/* ---- receiving ------------------------------------------------------------------------------- */

static void receive_news(struct mpi_carrier *m, MPI_Message *message)
{
    struct news news;
    if (MPI_Mrecv(&news, sizeof news, MPI_BYTE, message, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return;
    news.text[sizeof news.text - 1] = '\0';
    bool is_known = news.status > TSR_OK && news.status <= TSR_EPEER;
    tsr__carrier_fail(&m->base, is_known ? (tsr_status)news.status : TSR_EPEER, news.text, false);
}

static tsr_status receive_mail(struct mpi_carrier *m, MPI_Message *message, uint32_t from,
                               size_t bytes)
{
    struct tsr_mail_stream *stream = &m->streams[from];
    size_t room;
    void *target = tsr__mail_stream_target(stream, &room);
    if (bytes > room)
        return tsr_fail(TSR_EPEER, "what came from rank %u is no message of this program", from);
    if (MPI_Mrecv(target, (int)bytes, MPI_BYTE, message, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return tsr_fail(TSR_EPEER, "MPI cannot receive from rank %u", from);
    return tsr__mail_stream_advance(stream, from, bytes, &m->base.boxes);
}

static void *receive_main(void *arg)
{
    struct mpi_carrier *m = arg;
    int turn = 0;
    while (!atomic_load(&m->stopping)) {
        MPI_Message message;
        MPI_Status status;
        int there = 0, bytes = 0;
        if (MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, m->comm, &there, &message, &status) !=
            MPI_SUCCESS) {
            tsr__carrier_fail(&m->base, TSR_EPEER, "MPI does not receive any more", true);
            break;
        }
        if (!there) {
            wait_a_turn(&turn);
            continue;
        }
        turn = 0;
        (void)MPI_Get_count(&status, MPI_BYTE, &bytes);
        if (status.MPI_TAG == TAG_NEWS) {
            receive_news(m, &message);
            continue;
        }
        tsr_status taken = receive_mail(m, &message, (uint32_t)status.MPI_SOURCE, (size_t)bytes);
        if (taken == TSR_OK)
            continue;
        tsr__carrier_fail(&m->base, taken, tsr_error_text(), true);
        break;
    }
    return NULL;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void stop_receiving(struct mpi_carrier *m)
{
    atomic_store(&m->stopping, true);
    if (m->has_thread)
        (void)pthread_join(m->thread, NULL);
    m->has_thread = false;
}

/* True: all ranks have come here. */
static bool meet(struct mpi_carrier *m)
{
    MPI_Request request;
    int done = 0, turn = 0;
    double deadline = tsr__now() + m->timeout_s;
    if (MPI_Ibarrier(m->comm, &request) != MPI_SUCCESS)
        return false;
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done &&
           !tsr__aborted(&m->base.abort) && tsr__now() < deadline)
        wait_a_turn(&turn);
    return done != 0;
}

/* True: the news is out, so its memory may go. */
static bool have_told(struct mpi_carrier *m)
{
    double deadline = tsr__now() + GRACE_S;
    int turn = 0;
    for (uint32_t r = 0; atomic_load(&m->has_told) && r < m->size;) {
        int done = 0;
        if (MPI_Test(&m->tellings[r], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
            tsr__now() >= deadline)
            return false;
        r += done != 0;
        if (!done)
            wait_a_turn(&turn);
    }
    return true;
}

static void mpi_destroy(struct tsr_carrier *carrier, bool in_order)
{
    struct mpi_carrier *m = (struct mpi_carrier *)carrier;
    bool met = in_order && m->has_comm && meet(m), told = !m->has_comm || have_told(m);
    stop_receiving(m);
    for (uint32_t r = 0; r < m->n_locks; r++) {
        tsr__mail_stream_fini(&m->streams[r]);
        (void)pthread_mutex_destroy(&m->send_locks[r]);
    }
    if (met)
        (void)MPI_Comm_free(&m->comm);
    if (m->ends_mpi && (met || !m->has_comm))
        (void)MPI_Finalize(); /* after a failure it may wait for ever */
    tsr__mail_boxes_fini(&m->base.boxes);
    free(m->send_locks);
    free(m->streams);
    if (!told)
        return;
    free(m->tellings);
    free(m);
}

static const struct tsr_carrier_ops mpi_ops = {
    .name = "mpi", .send = mpi_send, .tell = mpi_tell, .destroy = mpi_destroy};

static tsr_status start_mpi(struct mpi_carrier *m)
{
    int is_there = 0, level = 0;
    (void)MPI_Initialized(&is_there);
    if (is_there)
        (void)MPI_Query_thread(&level);
    else if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) == MPI_SUCCESS)
        m->ends_mpi = true;
    else
        return tsr_fail(TSR_EBACKEND, "MPI cannot be initialised");
    if (level == MPI_THREAD_MULTIPLE)
        return TSR_OK;
    return tsr_fail(TSR_EUNSUPPORTED,
                    "this MPI lets not all threads call it (level %d, needed: "
                    "MPI_THREAD_MULTIPLE); another transport does without",
                    level);
}

static tsr_status start_carrier(struct mpi_carrier *m, const struct tsr_launch *launch)
{
    int rank, size;
    TSR_TRY(start_mpi(m));
    if (MPI_Comm_dup(MPI_COMM_WORLD, &m->comm) != MPI_SUCCESS)
        return tsr_fail(TSR_EBACKEND, "MPI has no communicator left");
    m->has_comm = true;
    (void)MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    (void)MPI_Comm_rank(m->comm, &rank);
    (void)MPI_Comm_size(m->comm, &size);
    m->rank = (uint32_t)rank;
    m->size = (uint32_t)size;
    if (launch && (launch->rank != m->rank || launch->size != m->size))
        return tsr_fail(TSR_ECONFIG,
                        "MPI says rank %d of %d, %s says rank %u of %u: this program was built "
                        "with another MPI than started it",
                        rank, size, launch->source, launch->rank, launch->size);
    m->send_locks = calloc(m->size, sizeof *m->send_locks);
    m->streams = calloc(m->size, sizeof *m->streams);
    m->tellings = calloc(m->size, sizeof(MPI_Request));
    if (!m->send_locks || !m->streams || !m->tellings)
        return tsr_no_memory("the ranks of a world");
    for (; m->n_locks < m->size; m->n_locks++) {
        m->tellings[m->n_locks] = MPI_REQUEST_NULL;
        (void)pthread_mutex_init(&m->send_locks[m->n_locks], NULL);
    }
    int error = pthread_create(&m->thread, NULL, receive_main, m);
    if (error)
        return tsr_fail(TSR_ENOMEM, "no thread that receives: %s", strerror(error));
    m->has_thread = true;
    return TSR_OK;
}

tsr_status tsr_world_mpi(const struct tsr_launch *launch, double timeout_s, struct tsr_world **out)
{
    struct mpi_carrier *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return tsr_no_memory(NULL);
    m->base.ops = &mpi_ops;
    m->timeout_s = timeout_s;
    tsr_status status;
    char text[512];
    TSR_GOTO(no_boxes, tsr__mail_boxes_init(&m->base.boxes));
    TSR_GOTO(failed, start_carrier(m, launch));
    TSR_GOTO(failed, tsr__world_mail(&m->base, m->rank, m->size, timeout_s, out));
    return TSR_OK;
no_boxes:
    free(m);
    return status;
failed:
    (void)snprintf(text, sizeof text, "%s", tsr_error_text());
    mpi_destroy(&m->base, true);
    return tsr_fail(status, "%s", text);
}

#endif
