/* inspect_topology.c: the topology of a cluster as facts (levels of switches, what hangs where) and
 * as a drawing of text: switches above nodes, and one node inside. Up to 100 columns. */
#include <string.h>

#include "experiments/cli/inspect/inspect.h"

static const double GBIT = 1e9 / 8;

/* ---- facts ----------------------------------------------------------------------------------- */

/* The names of levels of switches, from the nodes up, by how many levels there are. */
static const char *level_name(size_t level, size_t n)
{
    static const char *const names[] = {"leaf", "spine", "core", "top"};
    return n == 1 ? "switch" : names[level < 4 ? level : 3];
}

struct level {
    uint64_t span; /* GPUs below one switch */
    uint64_t from; /* GPUs of a group that has an uplink to it */
    double oversubscription;
    uint32_t rails;
};

/* Levels that join anything. Below the first tier, groups of several nodes are a level of their
 * own, which hinders nobody. */
static size_t list_levels(const struct tsr_cluster *c, struct level out[TSR_MAX_TIERS + 1])
{
    uint64_t all = (uint64_t)c->nodes * c->gpus_per_node, g = c->gpus_per_node;
    size_t n = 0;
    if (c->nodes == 1)
        return 0;
    if (c->n_tiers == 0 || c->tiers[0].below_gpus > g)
        out[n++] = (struct level){c->n_tiers ? c->tiers[0].below_gpus : all, g, 1.0,
                                  c->n_tiers ? c->tiers[0].rails : 0};
    for (uint32_t i = 0; i < c->n_tiers; i++) {
        uint64_t span = i + 1 < c->n_tiers ? c->tiers[i + 1].below_gpus : all;
        if (c->tiers[i].below_gpus < all)
            out[n++] = (struct level){span, c->tiers[i].below_gpus, c->tiers[i].oversubscription,
                                      c->tiers[i].rails};
    }
    for (size_t i = 0; i < n; i++)
        out[i].span = out[i].span < all ? out[i].span : all;
    return n;
}

static json_t *levels_of(const struct tsr_cluster *c)
{
    struct level levels[TSR_MAX_TIERS + 1];
    uint64_t all = (uint64_t)c->nodes * c->gpus_per_node;
    size_t n = list_levels(c, levels);
    double over = 1.0, node = c->nics_per_node * c->nic_bw / GBIT;
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++) {
        const struct level *l = &levels[i];
        double below = node * (double)l->from / c->gpus_per_node / over;
        over *= l->oversubscription;
        json_array_append_new(
            out, json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:I}", "name", level_name(i, n),
                           "switches", (json_int_t)((all + l->span - 1) / l->span), "nodes_each",
                           (json_int_t)(l->span / c->gpus_per_node), "nodes_of_a_group",
                           (json_int_t)(l->from / c->gpus_per_node), "gbit_of_a_group", below,
                           "gbit_up", below / l->oversubscription, "oversubscription",
                           l->oversubscription, "rails", (json_int_t)l->rails));
    }
    return out;
}

static uint32_t nic_of(const struct tsr_cluster *c, uint32_t gpu)
{
    return c->places.nics_listed ? c->places.nic_of_gpu[gpu]
                                 : (uint32_t)((uint64_t)gpu * c->nics_per_node / c->gpus_per_node);
}

static json_t *per_gpu(const struct tsr_cluster *c, bool nics)
{
    json_t *out = json_array();
    uint32_t n = c->gpus_per_node <= TSR_MAX_LOCAL ? c->gpus_per_node : 0;
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(out, json_integer(nics ? nic_of(c, i) : c->places.switch_of_gpu[i]));
    return out;
}

static json_t *pcie_of(const struct tsr_cluster *c)
{
    const struct tsr_places *p = &c->places;
    if (!p->switches)
        return json_null();
    json_t *sockets = json_array();
    for (uint32_t i = 0; i < p->switches; i++)
        json_array_append_new(sockets, json_integer(p->sockets ? p->socket_of_switch[i] : 0));
    return json_pack("{s:I, s:f, s:I, s:f, s:o, s:o}", "switches", (json_int_t)p->switches,
                     "switch_bytes_per_s", p->switch_bw, "sockets", (json_int_t)p->sockets,
                     "socket_bytes_per_s", p->socket_bw, "switch_of_gpu", per_gpu(c, false),
                     "socket_of_switch", sockets);
}

json_t *tsr_inspect_topology(const struct tsr_cluster *c)
{
    json_t *derived = json_array();
    for (uint32_t i = 0; i < c->n_derived; i++)
        json_array_append_new(derived, json_string(c->derived[i]));
    return json_pack("{s:o, s:o, s:o, s:o, s:s?}", "levels", levels_of(c), "derived", derived,
                     "nic_of_gpu", c->nics_per_node ? per_gpu(c, true) : json_array(), "pcie",
                     pcie_of(c), "platform", *c->platform ? c->platform : NULL);
}

/* ---- drawing: switches ----------------------------------------------------------------------- */

static json_int_t whole(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* "12.8 Tbit/s" */
static const char *gbit(double value, char out[32])
{
    if (value <= 0)
        snprintf(out, 32, "? Gbit/s");
    else if (value >= 10000)
        snprintf(out, 32, "%.4g Tbit/s", value / 1000);
    else
        snprintf(out, 32, "%.4g Gbit/s", value);
    return out;
}

static void range(const char *name, json_int_t n, char out[64])
{
    if (n == 1)
        snprintf(out, 64, "%s 0", name);
    else
        snprintf(out, 64, "%s 0%s %s %" JSON_INTEGER_FORMAT, name, n == 2 ? "," : " ...", name,
                 n - 1);
}

enum { STEP = 4, LABEL_AT = 36 };

/* A box of the tree, its branch drawn from the box above; notes begin in one column. */
static void box(FILE *out, int depth, const char *label, const char *note)
{
    int at = 2 + STEP * depth;
    if (depth)
        fprintf(out, "%*s|\n", at - STEP, "");
    int used = depth ? fprintf(out, "%*s+-- [%s]", at - STEP, "", label)
                     : fprintf(out, "%*s[%s]", at, "", label);
    fprintf(out, "%*s%s\n", used < LABEL_AT ? LABEL_AT - used : 2, "", note);
}

static const char *nodes_text(json_int_t n, char out[32])
{
    snprintf(out, 32, "%" JSON_INTEGER_FORMAT " node%s", n, n == 1 ? "" : "s");
    return out;
}

/* What goes up from a group to the level above; NULL: nothing. */
static void draw_uplink(FILE *out, const json_t *above)
{
    char a[32], b[32];
    double up = number(above, "gbit_up"), below = number(above, "gbit_of_a_group");
    if (above && up < below)
        fprintf(out, "%*s%s up, of %s below (%.4g : 1)\n", LABEL_AT, "", gbit(up, a),
                gbit(below, b), number(above, "oversubscription"));
    else if (above)
        fprintf(out, "%*s%s up, as much as below\n", LABEL_AT, "", gbit(up, a));
}

static void draw_level(FILE *out, int depth, const json_t *level, const json_t *above)
{
    char label[64], note[96], nodes[32], rails[48] = "";
    range(json_string_value(json_object_get(level, "name")), whole(level, "switches"), label);
    if (whole(level, "rails") > 1)
        snprintf(rails, sizeof rails, ", a switch for each of %" JSON_INTEGER_FORMAT " rails",
                 whole(level, "rails"));
    snprintf(note, sizeof note, "%s%s%s", nodes_text(whole(level, "nodes_each"), nodes),
             above ? " each" : "", rails);
    box(out, depth, label, note);
    draw_uplink(out, above);
}

/* ---- drawing: a node ------------------------------------------------------------------------- */

enum { COLUMN = 8, SHOWN = 8, LINE = 128 };

/* A line of text that is written at any column. */
struct line {
    char text[LINE];
};

static struct line blank(void)
{
    struct line line;
    memset(line.text, ' ', LINE);
    return line;
}

static void put(struct line *line, int at, const char *text)
{
    size_t n = strlen(text);
    if (at >= 0 && (size_t)at + n < LINE)
        memcpy(line->text + at, text, n);
}

static void print_line(FILE *out, const struct line *line)
{
    size_t n = LINE;
    while (n && line->text[n - 1] == ' ')
        n--;
    fprintf(out, "%.*s\n", (int)n, line->text);
}

/* The GPU of a column: all up to 8, else the first ones, a gap (-1), and the last. */
static json_int_t gpu_at(json_int_t gpus, int column)
{
    if (gpus <= SHOWN || column < SHOWN - 2)
        return column;
    return column == SHOWN - 2 ? -1 : gpus - 1;
}

static int n_columns(json_int_t gpus)
{
    return (int)(gpus < SHOWN ? gpus : SHOWN);
}

/* What GPU `gpu` hangs on; -1: a gap. */
static json_int_t parent(const json_t *of, json_int_t gpu)
{
    return gpu < 0 ? -1 : json_integer_value(json_array_get(of, (size_t)gpu));
}

static void labels(FILE *out, int indent, json_int_t gpus, const char *name, const json_t *of)
{
    struct line line = blank();
    for (int i = 0; i < n_columns(gpus); i++) {
        char cell[32] = "...";
        json_int_t gpu = gpu_at(gpus, i), what = of ? parent(of, gpu) : gpu;
        if (of && i > 0 && gpu >= 0 && what == parent(of, gpu_at(gpus, i - 1)))
            continue; /* it stands there already */
        if (gpu >= 0)
            snprintf(cell, sizeof cell, "%s %" JSON_INTEGER_FORMAT, name, what);
        put(&line, indent + COLUMN * i, cell);
    }
    print_line(out, &line);
}

/* A bar for each column; those that hang on the same thing are joined by `with`. of NULL: all. */
static void joined(FILE *out, int indent, json_int_t gpus, const json_t *of, char with)
{
    struct line line = blank();
    for (int i = 0; i < n_columns(gpus); i++) {
        int at = indent + COLUMN * i + 2;
        json_int_t gpu = gpu_at(gpus, i), next = i + 1 < n_columns(gpus) ? gpu_at(gpus, i + 1) : -1;
        bool last = i + 1 == n_columns(gpus);
        bool right =
            !last && (!of || (gpu >= 0 && next >= 0 && parent(of, gpu) == parent(of, next)));
        bool left =
            i > 0 && (!of || (gpu >= 0 && parent(of, gpu) == parent(of, gpu_at(gpus, i - 1))));
        if (gpu >= 0)
            line.text[at] = right || left ? '+' : '|';
        else if (!of)
            line.text[at] = with;
        for (int k = 1; k < COLUMN && right; k++)
            line.text[at + k] = with;
    }
    print_line(out, &line);
}

static void bars(FILE *out, int indent, json_int_t gpus)
{
    struct line line = blank();
    for (int i = 0; i < n_columns(gpus); i++)
        put(&line, indent + COLUMN * i + 2, gpu_at(gpus, i) < 0 ? "" : "|");
    print_line(out, &line);
}

/* Several adapters of each GPU, one of each, or one of several. */
static void draw_nics(FILE *out, int indent, json_int_t gpus, json_int_t nics, const json_t *nic_of)
{
    char many[32];
    if (nics <= gpus && json_array_size(nic_of)) {
        labels(out, indent, gpus, "NIC", nic_of);
        joined(out, indent, gpus, nic_of, '-');
        return;
    }
    struct line line = blank();
    snprintf(many, sizeof many, "%.3g NICs", (double)nics / (double)gpus);
    for (int i = 0; i < n_columns(gpus); i++)
        put(&line, indent + COLUMN * i, gpu_at(gpus, i) < 0 ? "..." : many);
    print_line(out, &line);
    bars(out, indent, gpus);
}

/* Switches below sockets. */
static void draw_pcie(FILE *out, int indent, json_int_t gpus, const json_t *pcie)
{
    const json_t *switch_of = json_object_get(pcie, "switch_of_gpu");
    json_t *socket_of = json_array();
    json_int_t sockets = whole(pcie, "sockets");
    joined(out, indent, gpus, switch_of, '-');
    labels(out, indent, gpus, "PCIe", switch_of);
    for (json_int_t i = 0; i < gpus; i++)
        json_array_append(socket_of, json_array_get(json_object_get(pcie, "socket_of_switch"),
                                                    (size_t)parent(switch_of, i)));
    joined(out, indent, gpus, socket_of, '-');
    labels(out, indent, gpus, sockets > 1 ? "socket" : "host", socket_of);
    json_decref(socket_of);
}

static void draw_inside(FILE *out, int indent, const json_t *cluster, const json_t *topology)
{
    const char *type = json_string_value(json_object_get(cluster, "inside_node"));
    const json_t *pcie = json_object_get(topology, "pcie");
    json_int_t gpus = whole(cluster, "gpus_per_node"), nics = whole(cluster, "nics_per_node");
    if (nics)
        draw_nics(out, indent, gpus, nics, json_object_get(topology, "nic_of_gpu"));
    labels(out, indent, gpus, strcmp(type, "shared_memory") ? "GPU" : "core", NULL);
    if (gpus == 1)
        return;
    if (json_is_object(pcie) && !strcmp(type, "pcie")) {
        draw_pcie(out, indent, gpus, pcie);
        return;
    }
    bars(out, indent, gpus);
    joined(out, indent, gpus, NULL, strcmp(type, "nvswitch") ? '-' : '=');
}

static const char *inside_text(const json_t *cluster, char out[96])
{
    static const char *const words[][2] = {{"nvswitch", "NVSwitch, "},
                                           {"nvlink", "NVLink from each to each, "},
                                           {"pcie", "PCIe, "},
                                           {"shared_memory", "shared memory, "}};
    const char *type = json_string_value(json_object_get(cluster, "inside_node")), *name = "";
    double rate = number(cluster, "inside_bytes_per_s_per_gpu");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!strcmp(words[i][0], type))
            name = words[i][1];
    if (!*name)
        snprintf(out, 96, "one GPU");
    else if (rate > 0)
        snprintf(out, 96, "%s%.4g GB/s per GPU", name, rate / 1e9);
    else
        snprintf(out, 96, "%s? GB/s per GPU", name);
    return out;
}

static void draw_node(FILE *out, int depth, const json_t *cluster, const json_t *topology)
{
    char label[64], note[160], a[96], b[32], c[32];
    const json_t *levels = json_object_get(topology, "levels");
    json_int_t nodes = whole(cluster, "nodes"), nics = whole(cluster, "nics_per_node");
    double rate = number(cluster, "nic_bytes_per_s") / GBIT;
    if (json_array_size(levels))
        nodes = whole(json_array_get(levels, 0), "nodes_each");
    range("node", nodes, label);
    snprintf(note, sizeof note, "%" JSON_INTEGER_FORMAT " x %s, %s",
             whole(cluster, "gpus_per_node"),
             json_string_value(json_object_get(json_object_get(cluster, "gpu"), "name")),
             inside_text(cluster, a));
    box(out, depth, label, note);
    if (nics)
        fprintf(out, "%*s%" JSON_INTEGER_FORMAT " NIC%s of %s: %s\n", LABEL_AT, "", nics,
                nics == 1 ? "" : "s", gbit(rate, b), gbit(rate * (double)nics, c));
    if (number(json_array_get(levels, 0), "oversubscription") > 1)
        draw_uplink(out, json_array_get(levels, 0));
    if (whole(cluster, "nvlink_domain_gpus") > whole(cluster, "gpus_per_node"))
        fprintf(out,
                "%*sNVLink joins %" JSON_INTEGER_FORMAT " GPUs of %" JSON_INTEGER_FORMAT " nodes\n",
                LABEL_AT, "", whole(cluster, "nvlink_domain_gpus"),
                whole(cluster, "nvlink_domain_gpus") / whole(cluster, "gpus_per_node"));
    fputc('\n', out);
    draw_inside(out, 2 + STEP * depth + (depth ? STEP : 2), cluster, topology);
}

void tsr_print_topology(FILE *out, const json_t *cluster)
{
    const json_t *topology = json_object_get(cluster, "network"), *line;
    const json_t *levels = json_object_get(topology, "levels");
    const char *platform = json_string_value(json_object_get(topology, "platform"));
    size_t n = json_array_size(levels), i;
    int depth = 0;
    if (platform) {
        fprintf(out, "  between nodes: links and routes of the SimGrid platform %s\n", platform);
        n = 0;
    }
    fprintf(out, "\nTopology (rates of one direction; alike where one of several is drawn)\n");
    for (i = n; i-- > 0; depth++)
        draw_level(out, depth, json_array_get(levels, i),
                   i + 1 < n ? json_array_get(levels, i + 1) : NULL);
    draw_node(out, depth, cluster, topology);
    if (json_array_size(json_object_get(topology, "derived")))
        fprintf(out, "\nNot said, and taken from elsewhere\n");
    json_array_foreach(json_object_get(topology, "derived"), i, line)
        fprintf(out, "  %s\n", json_string_value(line));
    fputc('\n', out);
}
