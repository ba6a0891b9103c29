/* man.c: the manual page, tessera.1, as roff with the macros of man(7). */
#include "experiments/cli/manual/man.h"

#include <string.h>

#include "experiments/study/config/settings.h"

#ifndef TSR_VERSION
#define TSR_VERSION "unknown"
#endif

/* A hyphen that is typed, not one that may break a line; and no line that begins as a request does.
 */
static void put_text(FILE *out, const char *text)
{
    bool begins = true;
    for (; *text; text++) {
        if (begins && strchr(".'", *text))
            fputs("\\&", out);
        if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-')
            fputs("\\-", out);
        else
            fputc(*text, out);
        begins = *text == '\n';
    }
}

static void put_options(FILE *out, const struct tsr_usage *usage)
{
    struct tsr_option_words o;
    for (size_t i = 0; tsr_usage_option(usage, i, &o); i++) {
        fputs(".TP\n", out);
        if (o.letter)
            fprintf(out, "\\fB\\-%c\\fR, ", o.letter);
        fputs("\\fB", out);
        put_text(out, o.name);
        fputs("\\fR", out);
        if (o.value) {
            fputs(" \\fI", out);
            put_text(out, o.value);
            put_text(out, o.second ? " " : "");
            put_text(out, o.second ? o.second : "");
            fputs("\\fR", out);
        }
        fputc('\n', out);
        put_text(out, o.help);
        if (!strcmp(o.name, "--format")) {
            fputs(": ", out);
            put_text(out, usage->formats);
        }
        fputc('\n', out);
    }
}

static void put_command(FILE *out, const struct tsr_usage *usage)
{
    fprintf(out, ".SS %s\n.B tessera %s\n", usage->name, usage->name);
    put_text(out, usage->synopsis);
    fputs("\n.PP\n.nf\n", out);
    put_text(out, usage->text);
    fputs("\n.fi\n", out);
    put_options(out, usage);
}

static void put_keys(FILE *out)
{
    struct tsr_settings defaults;
    tsr_settings_default(&defaults);
    fputs(".SH KEYS\nKeys of an experiment file (YAML). Each may stand at the top or in a "
          "strategy.\n",
          out);
    for (size_t i = 0; i < TSR_N_KEYS; i++) {
        char value[256], allowed[512];
        const struct tsr_key *key = &tsr_keys[i];
        if (tsr_key_format(key, &defaults, value, sizeof value) != TSR_OK)
            continue;
        tsr_key_allowed(key, allowed, sizeof allowed);
        fputs(".TP\n\\fB", out);
        put_text(out, key->name);
        fputs("\\fR\n", out);
        put_text(out, key->help);
        fputs(". Default ", out);
        put_text(out, value);
        fputs("; allowed: ", out);
        put_text(out, allowed);
        tsr_key_readers(key, allowed, sizeof allowed);
        if (*allowed)
            fputs("; read by ", out);
        put_text(out, allowed);
        fputs(".\n", out);
    }
}

void tsr__put_man(FILE *out, const struct tsr_manual *manual)
{
    fputs(".TH TESSERA 1 \"\" \"tessera " TSR_VERSION "\" \"User Commands\"\n"
          ".SH NAME\ntessera \\- sharded data\\-parallel training: simulated, explained, run\n"
          ".SH SYNOPSIS\n.B tessera\n.I SUBCOMMAND FILE\n[\\fIoptions\\fR]\n"
          ".SH SUBCOMMANDS\n",
          out);
    for (size_t i = 0; i < manual->n; i++)
        put_command(out, manual->commands[i]);
    put_keys(out);
    fputs(
        ".SH EXIT STATUS\n"
        "0 ok, 1 the machine failed, 2 a mistake in a file or option, 3 does not fit into memory, "
        "4 a defect was found, 75 a peer was lost (a restart may help).\n",
        out);
}
