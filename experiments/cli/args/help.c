/* help.c: `tessera --help` and `tessera help keys`. */
#include "experiments/cli/args/help.h"

#include <string.h>

#include "experiments/cli/args/args.h"
#include "experiments/study/config/settings.h"

void tsr_help_overview(FILE *out)
{
    fprintf(out, "tessera: sharded data-parallel training that you can study before you pay for "
                 "it.\n\nUsage: tessera SUBCOMMAND FILE [options]\n\n");
    for (const struct tsr_usage *u = tsr_usages; u->name; u++)
        fprintf(out, "  %-9s %s\n", u->name, u->line);
    fprintf(out,
            "  %-9s %s\n"
            "\n"
            "  tessera help SUBCOMMAND   options and examples\n"
            "  tessera help keys         every key of an experiment file\n"
            "  tessera --version\n"
            "\n"
            "Start with: tessera compare experiments/flagship/dgx-h100-8.yaml --out out/flagship\n"
            "\n"
            "Exit status: 0 ok, 1 the machine failed, 2 a mistake in a file or option, 3 does not\n"
            "fit into memory, 4 a defect was found, 75 a peer was lost (a restart may help).\n"
            "Data goes to stdout, remarks and errors to stderr.\n",
            "help", "this text, or that of a subcommand");
}

static void print_section(FILE *out, const char *name, char *section, size_t size)
{
    const char *dot = strchr(name, '.');
    size_t n = dot ? (size_t)(dot - name) : 0;
    if (strlen(section) == n && !strncmp(section, name, n))
        return;
    snprintf(section, size, "%.*s", (int)n, name);
    fprintf(out, "\n");
}

tsr_status tsr_help_keys(FILE *out)
{
    struct tsr_settings defaults;
    char section[64] = "", value[256], allowed[512];
    tsr_settings_default(&defaults);
    fprintf(out,
            "Keys of an experiment file (YAML; JSON is a subset). Every key may stand at the top\n"
            "(for all strategies) or in a strategy. `a.b` is key b of the mapping a.\n"
            "model: X, mesh: X and checkpoint: X are short for model.name, mesh.shape and\n"
            "checkpoint.every. At the top only: title; strategies: {NAME: {keys}};\n"
            "sweeps: {KEY: [values]}, which runs every strategy with every combination;\n"
            "plan: {budget_gib: N, space: {KEY: [values]}}, for `tessera plan`;\n"
            "jobs: [{strategy: NAME, nodes: [N, ...]}], for `tessera jobs`.\n");
    for (size_t i = 0; i < tsr_n_keys(); i++) {
        const struct tsr_key *key = &tsr_keys[i];
        TSR_TRY(tsr_key_format(key, &defaults, value, sizeof value));
        tsr_key_allowed(key, allowed, sizeof allowed);
        print_section(out, key->name, section, sizeof section);
        fprintf(out, "%s\n    %s\n    default %s; allowed: %s\n", key->name, key->help, value,
                allowed);
    }
    return TSR_OK;
}
