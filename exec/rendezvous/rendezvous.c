/* rendezvous.c: what does not depend on the way that ranks meet. */
#include "exec/rendezvous/rendezvous_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tsr_status tsr_rendezvous_gather(struct tsr_rendezvous *r, const char *name, const void *in,
                                 size_t bytes, void *out)
{
    if (strlen(name) > TSR_RENDEZVOUS_NAME || bytes > TSR_RENDEZVOUS_VALUE)
        return tsr_fail(TSR_EVALUE, "'%.70s': %zu bytes; a name has at most %d bytes, a value %d",
                        name, bytes, TSR_RENDEZVOUS_NAME, TSR_RENDEZVOUS_VALUE);
    return r->ops->gather(r, name, in, bytes, out);
}

tsr_status tsr_rendezvous_barrier(struct tsr_rendezvous *r, const char *name)
{
    return tsr_rendezvous_gather(r, name, NULL, 0, NULL);
}

bool tsr_rendezvous_watches(const struct tsr_rendezvous *r)
{
    return r->ops->watch != NULL;
}

void tsr_rendezvous_tell(struct tsr_rendezvous *r, tsr_status status, const char *text)
{
    if (r->ops->tell)
        r->ops->tell(r, status, text);
}

tsr_status tsr_rendezvous_watch(struct tsr_rendezvous *r, double seconds)
{
    return r->ops->watch ? r->ops->watch(r, seconds) : TSR_OK;
}

const char *tsr_rendezvous_local_address(const struct tsr_rendezvous *r)
{
    return r->local;
}

const struct tsr_secret *tsr_rendezvous_secret(const struct tsr_rendezvous *r)
{
    return &r->secret;
}

void tsr_rendezvous_close(struct tsr_rendezvous *r)
{
    if (r)
        r->ops->close(r);
}

/* All ranks come; what makes this job's secret its own is a number of rank 0. */
static tsr_status meet_all(struct tsr_rendezvous *r)
{
    static const char label[] = "tessera job";
    unsigned char mine[TSR_MAC_BYTES], *all = NULL;
    if (!tsr__random_bytes(mine, sizeof mine))
        return tsr_fail(TSR_EIO, "the system gives no random numbers");
    if (!(all = calloc(r->size, sizeof mine)))
        return tsr_no_memory("the rendezvous");
    tsr_status status = tsr_rendezvous_gather(r, "", mine, sizeof mine, all);
    if (status == TSR_OK)
        tsr__hmac(r->secret.bytes, sizeof r->secret.bytes, label, sizeof label, all, sizeof mine,
                  r->secret.bytes);
    free(all);
    return status;
}

tsr_status tsr_rendezvous_open(const struct tsr_rendezvous_config *config,
                               struct tsr_rendezvous **out)
{
    struct tsr_rendezvous *r = NULL;
    char text[1024];
    *out = NULL;
    TSR_TRY(config->pmix ? tsr__pmix_open(config, &r) : tsr__meet_open(config, &r));
    tsr_status status = meet_all(r);
    if (status == TSR_OK) {
        *out = r;
        return TSR_OK;
    }
    (void)snprintf(text, sizeof text, "%s", tsr_error_text());
    tsr_rendezvous_close(r);
    return tsr_fail(status, "%s", text);
}
