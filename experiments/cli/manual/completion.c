/* completion.c: what bash, zsh and fish complete: subcommands, their options, keys after --set. */
#include <string.h>

#include "experiments/cli/manual/man.h"
#include "experiments/study/config/settings.h"

/* Text with a backslash before each character of `special`. */
static void put_escaped(FILE *out, const char *text, const char *special)
{
    for (; *text; text++) {
        if (strchr(special, *text))
            fputc('\\', out);
        fputc(*text, out);
    }
}

/* Text inside single quotes, for bash and zsh: each quote of its own ends and begins them anew. */
static void put_quoted(FILE *out, const char *text, const char *special)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", out);
        else
            put_escaped(out, (char[]){*text, '\0'}, special);
    }
}

static bool takes(const struct tsr_option_words *o, const char *value)
{
    return o->value && !strcmp(o->value, value);
}

/* "md csv json" of "md, csv or json (default md)"; "on off" of "on|off". */
static void put_choices(FILE *out, const char *text)
{
    size_t length = strcspn(text, "(");
    while (length) {
        size_t n = strcspn(text, " ,|(");
        n = n < length ? n : length;
        if (n && !(n == 2 && !strncmp(text, "or", 2)))
            fprintf(out, "%.*s ", (int)n, text);
        text += n;
        length -= n;
        size_t gap = strspn(text, " ,|");
        gap = gap < length ? gap : length;
        text += gap;
        length -= gap;
    }
}

/* Words that an option may have as its value; false: they are not known. */
static bool put_values(FILE *out, const struct tsr_usage *usage, const struct tsr_option_words *o)
{
    bool format = !strcmp(o->name, "--format");
    if (!format && (!o->value || !strchr(o->value, '|')))
        return false;
    put_choices(out, format ? usage->formats : o->value);
    return true;
}

/* ---- bash ------------------------------------------------------------------------------------ */

static void put_bash_command(FILE *out, const struct tsr_usage *usage)
{
    struct tsr_option_words o;
    fprintf(out, "    %s)\n        options='", usage->name);
    for (size_t i = 0; tsr_usage_option(usage, i, &o); i++) {
        fprintf(out, "%s ", o.name);
        if (o.letter)
            fprintf(out, "-%c ", o.letter);
    }
    fputs("--help -h'\n        case $before in\n", out);
    for (size_t i = 0; tsr_usage_option(usage, i, &o); i++) {
        if (!o.value || !strcmp(o.name, "--set"))
            continue;
        fprintf(out, "        %s", o.name);
        if (o.letter)
            fprintf(out, " | -%c", o.letter);
        fputs(") ", out);
        if (takes(&o, "DIR") || takes(&o, "FILE") || takes(&o, "RUN") || takes(&o, "LOG")) {
            fprintf(out, "kind=%s", takes(&o, "DIR") || takes(&o, "RUN") ? "folder" : "file");
        } else {
            fputs("kind=words words='", out);
            put_values(out, usage, &o);
            fputc('\'', out);
        }
        fputs(" ;;\n", out);
    }
    fputs("        esac\n        ;;\n", out);
}

static void put_bash(FILE *out, const struct tsr_manual *manual)
{
    fputs("# bash completion of tessera, printed by: tessera help bash\n"
          "_tessera() {\n"
          "    local word=$2 before=$3 options='' kind='' words=''\n"
          "    local keys='",
          out);
    for (size_t i = 0; i < TSR_N_KEYS; i++)
        fprintf(out, "%s ", tsr_keys[i].name);
    fputs("'\n    local commands='", out);
    for (size_t i = 0; i < manual->n; i++)
        fprintf(out, "%s ", manual->commands[i]->name);
    fputs(
        "help'\n    COMPREPLY=()\n"
        "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
        "        mapfile -t COMPREPLY < <(compgen -W \"$commands --version --help\" -- \"$word\")\n"
        "        return\n"
        "    fi\n"
        "    case ${COMP_WORDS[1]} in\n"
        "    help)\n"
        "        mapfile -t COMPREPLY < <(compgen -W \"$commands keys man bash zsh fish\" -- "
        "\"$word\")\n"
        "        return\n"
        "        ;;\n",
        out);
    for (size_t i = 0; i < manual->n; i++)
        put_bash_command(out, manual->commands[i]);
    fputs("    esac\n"
          "    if [ \"$before\" = --set ] && [[ $options == *--set* ]]; then\n"
          "        compopt -o nospace 2>/dev/null\n"
          "        mapfile -t COMPREPLY < <(compgen -W \"$keys\" -S = -- \"$word\")\n"
          "    elif [ \"$kind\" = words ]; then\n"
          "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
          "    elif [[ -z $kind && $word == -* ]]; then\n"
          "        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\")\n"
          "    else\n"
          "        compopt -o filenames 2>/dev/null\n"
          "        [ \"$kind\" = folder ] && kind=-d || kind=-f\n"
          "        mapfile -t COMPREPLY < <(compgen \"$kind\" -- \"$word\")\n"
          "    fi\n"
          "}\n"
          "complete -F _tessera tessera\n",
          out);
}

/* ---- zsh ------------------------------------------------------------------------------------- */

static const char zsh_special[] = "[]:\\";

static void put_zsh_option(FILE *out, const struct tsr_usage *usage,
                           const struct tsr_option_words *o)
{
    bool many = !strcmp(o->name, "--set");
    fputs("            ", out);
    if (o->letter)
        fprintf(out, "'(-%c %s)'{-%c,%s}'[", o->letter, o->name, o->letter, o->name);
    else
        fprintf(out, "'%s%s[", many ? "*" : "", o->name);
    put_quoted(out, o->help, zsh_special);
    fputc(']', out);
    if (o->value) {
        fputc(':', out);
        put_quoted(out, o->value, zsh_special);
        fputc(':', out);
        if (many)
            fputs("compadd -S = -- $keys", out);
        else if (takes(o, "DIR") || takes(o, "RUN"))
            fputs("_files -/", out);
        else if (takes(o, "FILE") || takes(o, "LOG"))
            fputs("_files", out);
        else if (!strcmp(o->name, "--format") || strchr(o->value, '|')) {
            fputc('(', out);
            put_values(out, usage, o);
            fputc(')', out);
        }
        if (o->second)
            fprintf(out, ":%s:_files -/", o->second);
    }
    fputs("' \\\n", out);
}

static void put_zsh(FILE *out, const struct tsr_manual *manual)
{
    struct tsr_option_words o;
    fputs("#compdef tessera\n# zsh completion of tessera, printed by: tessera help zsh\n"
          "local -a commands keys\ncommands=(\n",
          out);
    for (size_t i = 0; i < manual->n; i++) {
        fprintf(out, "    '%s:", manual->commands[i]->name);
        put_quoted(out, manual->commands[i]->line, zsh_special);
        fputs("'\n", out);
    }
    fputs("    'help:options and examples of a subcommand'\n)\nkeys=(\n", out);
    for (size_t i = 0; i < TSR_N_KEYS; i++)
        fprintf(out, "    %s\n", tsr_keys[i].name);
    fputs(")\nif ((CURRENT == 2)); then\n    _describe subcommand commands\n    return\nfi\n"
          "shift words\n((CURRENT--))\ncase $words[1] in\n",
          out);
    for (size_t i = 0; i < manual->n; i++) {
        fprintf(out, "    %s)\n        _arguments -s \\\n", manual->commands[i]->name);
        for (size_t k = 0; tsr_usage_option(manual->commands[i], k, &o); k++)
            put_zsh_option(out, manual->commands[i], &o);
        fputs("            '(-h --help)'{-h,--help}'[this text]' \\\n"
              "            '*:file:_files'\n        ;;\n",
              out);
    }
    fputs("    help) _describe subcommand commands ;;\nesac\n", out);
}

/* ---- fish ------------------------------------------------------------------------------------ */

static void put_fish_option(FILE *out, const struct tsr_usage *usage,
                            const struct tsr_option_words *o)
{
    fprintf(out, "complete -c tessera -n '__fish_seen_subcommand_from %s' -l %s", usage->name,
            o->name + 2);
    if (o->letter)
        fprintf(out, " -s %c", o->letter);
    if (o->value)
        fputs(takes(o, "DIR") || takes(o, "RUN") || takes(o, "FILE") || takes(o, "LOG") ? " -r"
                                                                                        : " -x",
              out);
    if (!strcmp(o->name, "--set")) {
        fputs(" -a '$__tessera_keys'", out);
    } else if (!strcmp(o->name, "--format") || (o->value && strchr(o->value, '|'))) {
        fputs(" -a '", out);
        put_values(out, usage, o);
        fputc('\'', out);
    }
    fputs(" -d '", out);
    put_escaped(out, o->help, "'\\");
    fputs("'\n", out);
}

static void put_fish(FILE *out, const struct tsr_manual *manual)
{
    struct tsr_option_words o;
    fputs("# fish completion of tessera, printed by: tessera help fish\nset -g __tessera_keys",
          out);
    for (size_t i = 0; i < TSR_N_KEYS; i++)
        fprintf(out, " %s=", tsr_keys[i].name);
    fputc('\n', out);
    for (size_t i = 0; i < manual->n; i++) {
        fprintf(out, "complete -c tessera -f -n __fish_use_subcommand -a %s -d '",
                manual->commands[i]->name);
        put_escaped(out, manual->commands[i]->line, "'\\");
        fputs("'\n", out);
    }
    fputs("complete -c tessera -f -n __fish_use_subcommand -a help -d 'options and examples of a "
          "subcommand'\n",
          out);
    for (size_t i = 0; i < manual->n; i++)
        for (size_t k = 0; tsr_usage_option(manual->commands[i], k, &o); k++)
            put_fish_option(out, manual->commands[i], &o);
}

bool tsr_manual_print(FILE *out, const char *topic, const struct tsr_manual *manual)
{
    static const struct {
        const char *topic;
        void (*put)(FILE *out, const struct tsr_manual *manual);
    } all[] = {{"man", tsr__put_man}, {"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(topic, all[i].topic) != 0)
            continue;
        all[i].put(out, manual);
        return true;
    }
    return false;
}
