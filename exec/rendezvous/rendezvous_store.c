/* rendezvous_store.c: what ranks ask the rendezvous for: to join, the key-value store, barriers. */
#include "exec/base/word.h"
#include "exec/rendezvous/rendezvous_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = TSR_SERVER_TEXT, NAMED_RANKS = 8 };

/* ---- hello ----------------------------------------------------------------------------------- */

static bool is_taken(const struct tsr_rendezvous_server *s, uint32_t rank)
{
    for (size_t i = 0; i < s->n_clients; i++)
        if (s->clients[i]->joined && s->clients[i]->rank == rank)
            return true;
    return false;
}

/* True, or a text for the one who is turned away. */
static bool may_join(const struct tsr_rendezvous_server *s, const struct tsr_wire_hello *hello,
                     char *text)
{
    if (hello->version != TSR_WIRE_VERSION)
        (void)snprintf(text, TEXT, "rank 0 speaks version %d of the rendezvous, this program %u",
                       TSR_WIRE_VERSION, hello->version);
    else if (memcmp(hello->token, s->token, sizeof s->token) != 0)
        (void)snprintf(text, TEXT, "rank 0 is of another job: its TSR_TOKEN is not this one's");
    else if (hello->size != s->size)
        (void)snprintf(text, TEXT, "rank %u has %u ranks in its job, rank 0 has %u", hello->rank,
                       hello->size, s->size);
    else if (hello->rank >= s->size)
        (void)snprintf(text, TEXT, "rank %u joins; allowed: 0 to %u", hello->rank, s->size - 1);
    else if (is_taken(s, hello->rank))
        (void)snprintf(text, TEXT, "two processes say that they are rank %u", hello->rank);
    else
        return true;
    return false;
}

/* False: the connection was closed, or more bytes are needed. */
static bool take_hello(struct tsr_rendezvous_server *s, struct tsr_client *c)
{
    struct tsr_wire_hello hello;
    char text[TEXT] = "";
    uint32_t magic = 0;
    if (c->in.n >= sizeof magic)
        memcpy(&magic, c->in.data, sizeof magic);
    if (c->in.n >= sizeof magic && magic != TSR_WIRE_MAGIC)
        tsr__client_close(c);
    if (c->fd < 0 || c->in.n < sizeof hello)
        return false;
    memcpy(&hello, c->in.data, sizeof hello);
    tsr__wire_drop(&c->in, sizeof hello);
    if (!may_join(s, &hello, text)) {
        tsr__client_reply_text(c, TSR_ECONFIG, text);
        c->left = true; /* closed when this is on its way, or when it has taken too long */
        return false;
    }
    c->joined = true;
    c->rank = hello.rank;
    s->n_joined++;
    tsr__client_reply_text(c, TSR_OK, "");
    if (s->news != TSR_OK)
        tsr__server_put_news(s, c);
    return true;
}

/* ---- requests -------------------------------------------------------------------------------- */

static struct tsr_store_entry *entry_of(struct tsr_rendezvous_server *s, const char *key)
{
    for (size_t i = 0; i < s->n_entries; i++)
        if (strcmp(s->entries[i].key, key) == 0)
            return &s->entries[i];
    struct tsr_store_entry e = {.key = malloc(strlen(key) + 1)};
    if (!e.key)
        return NULL;
    (void)strcpy(e.key, key);
    if (TSR_PUSH(s->entries, s->n_entries, s->entries_cap, e))
        return &s->entries[s->n_entries - 1];
    free(e.key);
    return NULL;
}

static void set(struct tsr_rendezvous_server *s, struct tsr_client *c, struct tsr_store_entry *e,
                const void *value, uint32_t bytes)
{
    void *copy = malloc(bytes + 1u);
    if (!copy) {
        tsr__client_reply_text(c, TSR_ENOMEM, "rank 0 has no memory left");
        return;
    }
    memcpy(copy, value, bytes);
    free(e->value);
    e->value = copy;
    e->bytes = bytes;
    tsr__client_reply_text(c, TSR_OK, "");
    for (size_t i = 0; i < s->n_clients; i++) {
        struct tsr_client *other = s->clients[i];
        if (other->waits == TSR_WIRE_GET && strcmp(other->key, e->key) == 0)
            tsr__client_reply(other, TSR_OK, 0, e->value, e->bytes);
    }
}

static void start_waiting(struct tsr_client *c, const struct tsr_wire_frame *frame, const char *key)
{
    c->waits = frame->op;
    c->wait_ms = frame->number;
    c->deadline = tsr__now() + (double)frame->number * 1e-3;
    (void)snprintf(c->key, sizeof c->key, "%s", key);
}

static bool is_in_barrier(const struct tsr_client *c, const char *name)
{
    return c->waits == TSR_WIRE_BARRIER && strcmp(c->key, name) == 0;
}

static void open_barrier(struct tsr_rendezvous_server *s, const char *name)
{
    uint32_t n = 0;
    for (size_t i = 0; i < s->n_clients; i++)
        n += is_in_barrier(s->clients[i], name);
    for (size_t i = 0; n == s->size && i < s->n_clients; i++)
        if (is_in_barrier(s->clients[i], name))
            tsr__client_reply_text(s->clients[i], TSR_OK, "");
}

static void take_frame(struct tsr_rendezvous_server *s, struct tsr_client *c,
                       const struct tsr_wire_frame *frame, const char *key, const char *value)
{
    struct tsr_store_entry *e = NULL;
    if (frame->op == TSR_WIRE_SET || frame->op == TSR_WIRE_GET || frame->op == TSR_WIRE_ADD) {
        e = entry_of(s, key);
        if (!e) {
            tsr__client_reply_text(c, TSR_ENOMEM, "rank 0 has no memory left");
            return;
        }
    }
    switch (frame->op) {
    case TSR_WIRE_SET:
        set(s, c, e, value, frame->value_bytes);
        break;
    case TSR_WIRE_ADD:
        e->number = (int64_t)((uint64_t)e->number + (uint64_t)frame->number);
        tsr__client_reply(c, TSR_OK, e->number, NULL, 0);
        break;
    case TSR_WIRE_GET:
        if (e->value)
            tsr__client_reply(c, TSR_OK, 0, e->value, e->bytes);
        else
            start_waiting(c, frame, key);
        break;
    case TSR_WIRE_BARRIER:
        start_waiting(c, frame, key);
        open_barrier(s, c->key);
        break;
    case TSR_WIRE_NEWS: {
        char text[TEXT];
        (void)snprintf(text, sizeof text, "%.*s", (int)frame->value_bytes, value);
        tsr__server_spread(s, frame->status <= TSR_EPEER ? (tsr_status)frame->status : TSR_EPEER,
                           text);
        break;
    }
    case TSR_WIRE_BYE:
        c->left = true;
        tsr__client_close(c);
        break;
    default:
        tsr__client_end(s, c);
    }
}

void tsr__server_take(struct tsr_rendezvous_server *s, struct tsr_client *c)
{
    if (!c->joined && !take_hello(s, c))
        return;
    struct tsr_wire_frame frame;
    long bytes;
    while (c->fd >= 0 && (bytes = tsr__wire_complete(&c->in, &frame)) != 0) {
        char key[TSR_WIRE_KEY + 1];
        if (bytes < 0) {
            tsr__client_end(s, c);
            return;
        }
        const char *at = c->in.data + sizeof frame;
        memcpy(key, at, frame.key_bytes);
        key[frame.key_bytes] = '\0';
        take_frame(s, c, &frame, key, at + frame.key_bytes);
        tsr__wire_drop(&c->in, (size_t)bytes);
    }
}

/* ---- time ------------------------------------------------------------------------------------ */

/* "rank 3", "ranks 3, 5 and 7 more": who is not in the barrier. */
static void name_missing(const struct tsr_rendezvous_server *s, const char *barrier, char *text)
{
    uint32_t n = 0, named = 0;
    size_t at = 0;
    char ranks[TEXT / 2] = "";
    for (uint32_t r = 0; r < s->size; r++) {
        bool is_there = false;
        for (size_t i = 0; i < s->n_clients && !is_there; i++)
            is_there = s->clients[i]->joined && s->clients[i]->rank == r &&
                       is_in_barrier(s->clients[i], barrier);
        if (is_there || n++ >= NAMED_RANKS)
            continue;
        at += (size_t)snprintf(ranks + at, sizeof ranks - at, "%s%u", named++ ? ", " : "", r);
    }
    if (n > named)
        (void)snprintf(text, TEXT, "ranks %s and %u more", ranks, n - named);
    else
        (void)snprintf(text, TEXT, "rank%s %s", n > 1 ? "s" : "", ranks);
}

static void time_out(struct tsr_rendezvous_server *s, struct tsr_client *c)
{
    char text[TEXT * 2], missing[TEXT];
    double seconds = (double)c->wait_ms * 1e-3;
    if (c->waits == TSR_WIRE_GET) {
        (void)snprintf(text, sizeof text, "nobody set '%s' within %g s", c->key, seconds);
        tsr__client_reply_text(c, TSR_EPEER, text);
        return;
    }
    char name[sizeof c->key];
    memcpy(name, c->key, sizeof name);
    name_missing(s, name, missing);
    if (name[0])
        (void)snprintf(text, sizeof text, "%s did not come to the barrier '%s' within %g s",
                       missing, name, seconds);
    else
        (void)snprintf(text, sizeof text, "%s did not join within %g s", missing, seconds);
    tsr__server_spread(s, TSR_EPEER, text);
    for (size_t i = 0; i < s->n_clients; i++)
        if (is_in_barrier(s->clients[i], name))
            s->clients[i]->waits = 0; /* the news is the answer */
}

void tsr__server_check_deadlines(struct tsr_rendezvous_server *s)
{
    double now = tsr__now();
    for (size_t i = 0; i < s->n_clients; i++) {
        struct tsr_client *c = s->clients[i];
        if (c->fd < 0 || now < c->deadline)
            continue;
        if (!c->joined)
            tsr__client_close(c);
        else if (c->waits)
            time_out(s, c);
    }
}
