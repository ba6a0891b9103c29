/* console.c: torchtitan's line for a step. */
#include "exec/train/console.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIELD_BYTES = 96 };

static const char red[] = "\033[31m", green[] = "\033[32m", yellow[] = "\033[33m",
                  blue[] = "\033[34m", magenta[] = "\033[35m", cyan[] = "\033[36m",
                  turquoise[] = "\033[96m", reset[] = "\033[39m";

bool tsr_console_has_colour(FILE *out)
{
    const char *no_colour = getenv("NO_COLOR"), *terminal = getenv("TERM");
    if (no_colour && *no_colour)
        return false;
    if (terminal && strcmp(terminal, "dumb") == 0)
        return false;
    return isatty(fileno(out)) == 1;
}

/* Commas after thousands: 1234567 is 1,234,567. */
static void with_commas(uint64_t value, char out[FIELD_BYTES])
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRIu64, value), at = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
}

/* Rates and shares are never negative, and stay far below 2^63. */
static bool is_known(double value)
{
    return value >= 0 && value < 0x1p63;
}

/* With commas and two decimals, as Python's format ",.2f". */
static void format_tflops(double value, char out[FIELD_BYTES])
{
    (void)snprintf(out, FIELD_BYTES, "n/a");
    if (!is_known(value))
        return;
    char decimals[FIELD_BYTES];
    (void)snprintf(decimals, sizeof decimals, "%.2f", value);
    char *point = strchr(decimals, '.');
    TSR_CHECK(point);
    with_commas(strtoull(decimals, NULL, 10), out);
    (void)snprintf(out + strlen(out), FIELD_BYTES - strlen(out), "%s", point);
}

static void format_tps(double value, char out[FIELD_BYTES])
{
    (void)snprintf(out, FIELD_BYTES, "n/a");
    if (is_known(value))
        with_commas((uint64_t)llround(value), out);
}

static void format_memory(const struct tsr_step_record *r, char out[FIELD_BYTES])
{
    if (r->memory_reserved == TSR_UNKNOWN) {
        (void)snprintf(out, FIELD_BYTES, "n/a");
        return;
    }
    double gib = (double)r->memory_reserved / 0x1p30;
    const char *of = r->modelled_device ? " of the modelled device" : "";
    if (r->memory_capacity == TSR_UNKNOWN || r->memory_capacity == 0)
        (void)snprintf(out, FIELD_BYTES, "%5.2fGiB", gib);
    else
        (void)snprintf(out, FIELD_BYTES, "%5.2fGiB(%.2f%%%s)", gib,
                       100 * (double)r->memory_reserved / (double)r->memory_capacity, of);
}

static tsr_status finish(FILE *out, int written)
{
    if (written < 0 || fflush(out) != 0)
        return tsr_fail(TSR_EIO, "the line of a step cannot be written: %s", strerror(errno));
    return TSR_OK;
}

/* The code, or nothing. */
static const char *code(bool colour, const char *sequence)
{
    return colour ? sequence : "";
}

tsr_status tsr_console_step(FILE *out, bool colour, const struct tsr_step_record *r)
{
    char norm[FIELD_BYTES] = "n/a", memory[FIELD_BYTES], tps[FIELD_BYTES], tflops[FIELD_BYTES];
    char mfu[FIELD_BYTES] = "n/a";
    if (r->has_grad_norm)
        (void)snprintf(norm, sizeof norm, "%7.4f", r->grad_norm);
    if (is_known(r->mfu))
        (void)snprintf(mfu, sizeof mfu, "%.2f%%", 100 * r->mfu);
    format_memory(r, memory);
    format_tps(r->tokens_per_second, tps);
    format_tflops(r->tflops, tflops);
    int n = fprintf(out,
                    "%sstep: %2" PRIu64 "  %sloss: %7.4f  %sgrad_norm: %s  %smemory: %s  "
                    "%stps: %s  %stflops: %s  %smfu: %s%s\n",
                    code(colour, red), r->step, code(colour, green), r->loss, code(colour, yellow),
                    norm, code(colour, turquoise), memory, code(colour, blue), tps,
                    code(colour, cyan), tflops, code(colour, magenta), mfu, code(colour, reset));
    return finish(out, n);
}

tsr_status tsr_console_eval(FILE *out, bool colour, uint64_t step, double loss,
                            double tokens_per_second)
{
    char tps[FIELD_BYTES];
    format_tps(tokens_per_second, tps);
    int n = fprintf(out, "%svalidate step: %2" PRIu64 "  %sloss: %7.4f  %stps: %s%s\n",
                    code(colour, yellow), step, code(colour, green), loss, code(colour, blue), tps,
                    code(colour, reset));
    return finish(out, n);
}
