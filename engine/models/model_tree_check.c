/* model_tree_check.c: whether the modules of a tree fit each other: what goes over each edge, in
 * the order in which they run. */
#include <stdio.h>
#include <string.h>

#include "engine/models/model_parts.h"

enum { NAME_BYTES = 256 };

/* What goes over an edge, and who gives it. */
struct flow {
    bool tokens;       /* integers; width is their vocabulary */
    bool per_sequence; /* a row for each sequence */
    uint64_t width;
    char from[NAME_BYTES];
};

struct walk {
    const struct tsr_tree_config *config;
    int iteration; /* -1: what runs in all that `run_at` does not name */
};

static tsr_status bad(const struct tsr_tree_node *n, const char *format, ...) TSR_PRINTF(2, 3);

static tsr_status bad(const struct tsr_tree_node *n, const char *format, ...)
{
    char text[3 * NAME_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return tsr_fail(TSR_EVALUE, "%s%s%s", n->where ? n->where : "", n->where ? ": " : "", text);
}

static void join(char out[NAME_BYTES], const char *parent, const char *name)
{
    snprintf(out, NAME_BYTES, "%.120s%s%.120s", parent, *parent ? "." : "", name);
}

/* The width that a module wants: 0: any. */
static uint64_t wanted(const struct tsr_tree_node *n)
{
    switch (n->type) {
    case TSR_TREE_LINEAR:
    case TSR_TREE_RMSNORM:
    case TSR_TREE_LAYERNORM:
    case TSR_TREE_OP:
        return n->in;
    case TSR_TREE_ATTENTION:
        return (n->heads + 2 * n->kv_heads) * n->head_dim;
    default:
        return 0;
    }
}

static tsr_status check_leaf(const struct tsr_tree_node *n, const char *fqn, struct flow *x)
{
    uint64_t want = wanted(n);
    if (n->type == TSR_TREE_EMBEDDING && !x->tokens)
        return bad(n, "module '%s' looks tokens up, but '%s' gives numbers of width %llu", fqn,
                   x->from, (unsigned long long)x->width);
    if (n->type == TSR_TREE_EMBEDDING && n->in < x->width)
        return bad(n, "module '%s' has %llu rows, but '%s' gives tokens below %llu", fqn,
                   (unsigned long long)n->in, x->from, (unsigned long long)x->width);
    if (n->type != TSR_TREE_EMBEDDING && x->tokens)
        return bad(n, "module '%s' takes numbers, but '%s' gives tokens: an embedding goes first",
                   fqn, x->from);
    if (want && want != x->width)
        return bad(n, "module '%s' takes a width of %llu%s, but '%s' gives %llu", fqn,
                   (unsigned long long)want,
                   n->type == TSR_TREE_ATTENTION ? " ((heads + 2 kv_heads) head_dim)" : "", x->from,
                   (unsigned long long)x->width);
    if (n->type == TSR_TREE_SWIGLU && x->width % 2)
        return bad(n, "module '%s' takes an even width, but '%s' gives %llu", fqn, x->from,
                   (unsigned long long)x->width);
    bool sequences =
        n->type == TSR_TREE_ATTENTION || (n->type == TSR_TREE_OP && n->op.per_sequence);
    if (sequences && x->per_sequence)
        return bad(n,
                   "module '%s' takes a row for each token, but '%s' gives one for each sequence",
                   fqn, x->from);
    x->tokens = false;
    x->per_sequence |= n->type == TSR_TREE_OP && n->op.per_sequence;
    if (n->type == TSR_TREE_LINEAR || n->type == TSR_TREE_EMBEDDING ||
        (n->type == TSR_TREE_OP && n->out))
        x->width = n->out;
    else if (n->type == TSR_TREE_ATTENTION)
        x->width = n->heads * n->head_dim;
    else if (n->type == TSR_TREE_SWIGLU)
        x->width /= 2;
    snprintf(x->from, sizeof x->from, "%s", fqn);
    return TSR_OK;
}

/* The node of a dotted name below `n`; NULL: none. */
static const struct tsr_tree_node *find(const struct tsr_tree_node *n, const char *name)
{
    size_t length = strcspn(name, ".");
    if (!*name)
        return n;
    for (size_t i = 0; i < n->n_children; i++)
        if (strlen(n->children[i].name) == length && !strncmp(n->children[i].name, name, length))
            return find(&n->children[i], name + length + (name[length] == '.'));
    return NULL;
}

static tsr_status check_node(const struct walk *w, const struct tsr_tree_node *n, const char *fqn,
                             struct flow *x);

/* Children that do not exist, which `run` may name, are for whoever builds the tree. */
static tsr_status check_children(const struct walk *w, const struct tsr_tree_node *n,
                                 const char *fqn, struct flow *x)
{
    const char *const *run = n->run;
    size_t n_run = n->n_run;
    bool given = n->n_run > 0 || n->run_none;
    for (int i = 0; i < n->n_run_at; i++)
        if (n->run_at[i].iteration == w->iteration) {
            given = true;
            run = n->run_at[i].run;
            n_run = n->run_at[i].n_run;
        }
    for (size_t i = 0; i < (given ? n_run : n->n_children); i++) {
        size_t k = given ? 0 : i;
        char name[NAME_BYTES];
        while (given && k < n->n_children && strcmp(n->children[k].name, run[i]) != 0)
            k++;
        if (k == n->n_children)
            return TSR_OK;
        join(name, fqn, n->children[k].name);
        TSR_TRY(check_node(w, &n->children[k], name, x));
    }
    return TSR_OK;
}

static tsr_status check_node(const struct walk *w, const struct tsr_tree_node *n, const char *fqn,
                             struct flow *x)
{
    if (n->ref) {
        n = find(&w->config->root, n->ref);
        return n && !n->ref ? check_node(w, n, fqn, x) : TSR_OK;
    }
    if (n->type != TSR_TREE_SEQ && n->type != TSR_TREE_LIST)
        return check_leaf(n, fqn, x);
    const struct flow before = *x;
    TSR_TRY(check_children(w, n, fqn, x));
    if (!n->residual)
        return TSR_OK;
    if (before.tokens)
        return bad(n, "module '%s' adds its result to its input, but '%s' gives tokens", fqn,
                   before.from);
    if (before.width == x->width && before.per_sequence == x->per_sequence)
        return TSR_OK;
    return bad(n,
               "module '%s' adds its result to its input, but '%s' gives a width of %llu and '%s' "
               "%llu%s",
               fqn, before.from, (unsigned long long)before.width, x->from,
               (unsigned long long)x->width,
               before.per_sequence == x->per_sequence ? "" : " in a row for each sequence");
}

/* What the loss takes. Of cross-entropy any number of classes, also fewer than there are tokens. */
static tsr_status check_result(const struct tsr_tree_config *c, const struct flow *x)
{
    if (x->tokens)
        return bad(&c->root, "the loss takes numbers, but '%s' gives tokens", x->from);
    if (c->loss_mse && c->target_dim && c->target_dim != x->width)
        return bad(&c->root, "the loss takes a width of %llu (out_dim), but '%s' gives %llu",
                   (unsigned long long)c->target_dim, x->from, (unsigned long long)x->width);
    return TSR_OK;
}

static tsr_status check_iteration(const struct tsr_tree_config *c, int iteration,
                                  bool *per_sequence)
{
    const struct walk w = {c, iteration};
    struct flow x = {.tokens = c->tokens > 0, .width = c->tokens ? c->tokens : c->in_dim};
    snprintf(x.from, sizeof x.from, "the input");
    TSR_TRY(check_node(&w, &c->root, "", &x));
    *per_sequence = x.per_sequence;
    return check_result(c, &x);
}

/* Each iteration that some node names runs other modules. */
static tsr_status check_named(const struct tsr_tree_config *c, const struct tsr_tree_node *n)
{
    bool ignored;
    for (int i = 0; i < n->n_run_at; i++)
        TSR_TRY(check_iteration(c, n->run_at[i].iteration, &ignored));
    for (size_t i = 0; i < n->n_children; i++)
        TSR_TRY(check_named(c, &n->children[i]));
    return TSR_OK;
}

tsr_status tsr__check_tree(const struct tsr_tree_config *config, bool *per_sequence)
{
    TSR_TRY(check_iteration(config, -1, per_sequence));
    return check_named(config, &config->root);
}
