/* wire.c: targets of bytes that come from other processes: frames of the rendezvous, mail. */
#include <stdlib.h>
#include <string.h>

#include "exec/rendezvous/rendezvous_wire.h"
#include "exec/world/world_mail.h"
#include "fuzz/fuzz.h"

enum { MOST_MAIL = 16 << 20 };

/* The first byte says in how large pieces the others arrive. */
static void rendezvous(const uint8_t *data, size_t n)
{
    struct tsr_wire_buffer buffer = {0};
    struct tsr_wire_frame frame;
    size_t step = n ? data[0] + 1u : 1;
    for (size_t at = n > 0; at < n; at += step) {
        size_t piece = n - at < step ? n - at : step;
        long whole;
        if (!tsr__wire_append(&buffer, data + at, piece))
            abort();
        while ((whole = tsr__wire_complete(&buffer, &frame)) > 0) {
            if ((size_t)whole > buffer.n)
                abort();
            tsr__wire_drop(&buffer, (size_t)whole);
        }
        if (whole < 0)
            break;
    }
    free(buffer.data);
}

static void mail(const uint8_t *data, size_t n)
{
    struct tsr_mail_boxes boxes;
    struct tsr_mail_stream stream = {0};
    size_t step = n ? data[0] + 1u : 1;
    if (tsr__mail_boxes_init(&boxes) != TSR_OK)
        abort();
    for (size_t at = n > 0; at < n;) {
        size_t room, left = n - at < step ? n - at : step;
        void *target = tsr__mail_stream_target(&stream, &room);
        size_t piece = room < left ? room : left;
        memcpy(target, data + at, piece);
        at += piece;
        /* how much a rank may announce is bounded by what its connection may hold, not by the
         * format */
        if (!stream.mail && piece == room && stream.header.bytes > MOST_MAIL)
            break;
        if (tsr__mail_stream_advance(&stream, 1, piece, &boxes) != TSR_OK)
            break;
    }
    tsr__mail_stream_fini(&stream);
    tsr__mail_boxes_fini(&boxes);
}

const struct tsr_fuzz_target tsr_fuzz_wire[] = {
    {.name = "rendezvous", .run = rendezvous, .dictionary = "wire"},
    {.name = "mail", .run = mail, .dictionary = "wire"},
    {.name = NULL},
};
