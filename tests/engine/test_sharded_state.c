/* test_sharded_state.c: state dicts as layout. Rules R221, R222, R227, R228, R229, as far as they
 * are about layout, and the layout of 16,384 ranks.
 */
#include "engine/layout/sharded_state.h"
#include "tests/engine/layout_testing.h"

/* ---- models ---------------------------------------------------------------------------------- */

static const struct tsr_tree_node block[] = {
    {.name = "up", .type = TSR_TREE_LINEAR, .in = 6, .out = 10, .bias = true},
    {.name = "down", .type = TSR_TREE_LINEAR, .in = 10, .out = 6}};
static const struct tsr_tree_node tree[] = {
    {.name = "emb", .type = TSR_TREE_EMBEDDING, .in = 9, .out = 6},
    {.name = "a", .type = TSR_TREE_SEQ, .n_children = 2, .children = block},
    {.name = "b", .type = TSR_TREE_SEQ, .n_children = 2, .children = block},
    {.name = "again", .ref = "a"},
    {.name = "out", .type = TSR_TREE_LINEAR, .in = 6, .out = 9}};

static struct tsr_engine *open_tree(const struct tsr_mesh *mesh)
{
    struct tsr_tree_config config = {
        .root = {.name = "", .type = TSR_TREE_SEQ, .n_children = 5, .children = tree}, .tokens = 9};
    struct tsr_engine *e = test_engine(mesh, 0);
    assert_int_equal(tsr_model_tree(e, &config), TSR_OK);
    assert_int_equal(tsr_param_tie(e, "out.weight", "emb.weight"), TSR_OK);
    return e;
}

static void wrap(struct tsr_engine *e, const char *fqn, const struct tsr_wrap_options *o)
{
    struct tsr_module *m = tsr_module_find(e, fqn);
    assert_non_null(m);
    assert_int_equal(tsr_fully_shard(e, &m, 1, o), TSR_OK);
}

static struct tsr_state_dict state_of(struct tsr_engine *e, const char *group)
{
    struct tsr_state_dict s;
    assert_int_equal(tsr_state_dict_of(e, group, &s), TSR_OK);
    return s;
}

static const struct tsr_mesh four = {1, {4}, {"shard"}}, two_by_three = {2, {2, 3}, {"r", "s"}};

/* ---- keys ------------------------------------------------------------------------------------ */

/* R222: tied places have keys of their own over the same storage. */
static void keys_are_places(void **state)
{
    (void)state;
    static const char *const keys[] = {"emb.weight",        "a.up.weight",     "a.up.bias",
                                       "a.down.weight",     "b.up.weight",     "b.up.bias",
                                       "b.down.weight",     "again.up.weight", "again.up.bias",
                                       "again.down.weight", "out.weight"};
    static const size_t alias[] = {0, 1, 2, 3, 4, 5, 6, 1, 2, 3, 0};
    struct tsr_engine *e = open_tree(&four);
    wrap(e, "a", NULL);
    wrap(e, "", NULL);
    struct tsr_state_dict s = state_of(e, NULL);
    assert_int_equal(s.n, 11);
    for (size_t i = 0; i < s.n; i++) {
        assert_string_equal(s.entries[i].fqn, keys[i]);
        assert_int_equal(s.entries[i].alias_of, alias[i]);
        assert_string_equal(s.entries[i].group, keys[alias[i]][0] == 'a' ? "a" : "");
    }
    tsr_engine_destroy(e); /* the state is on its own */
    assert_non_null(tsr_state_dict_find(&s, "b.up.bias"));
    assert_null(tsr_state_dict_find(&s, "b.up"));
    tsr_state_dict_fini(&s);
}

static void one_group(void **state)
{
    (void)state;
    struct tsr_engine *e = open_tree(&four);
    wrap(e, "b", NULL);
    wrap(e, "", NULL);
    struct tsr_state_dict s = state_of(e, "b"), none = state_of(e, "nothing");
    assert_int_equal(s.n, 3);
    assert_string_equal(s.entries[0].fqn, "b.up.weight");
    assert_int_equal(none.n, 0);
    tsr_state_dict_fini(&s);
    tsr_state_dict_fini(&none);
    tsr_engine_destroy(e);
}

/* R221: the state is the sharded one, also while parameters are unsharded. */
static void unsharding_does_not_change_the_state(void **state)
{
    (void)state;
    struct tsr_engine *e = open_tree(&four);
    wrap(e, "a", NULL);
    wrap(e, "", NULL);
    assert_int_equal(tsr_engine_init_params(e), TSR_OK);
    assert_int_equal(tsr_unshard(e, tsr_module_find(e, "a"), false), TSR_OK);
    struct tsr_state_dict s = state_of(e, NULL);
    const struct tsr_dtensor *t = &s.layouts[tsr_state_dict_find(&s, "a.up.weight")->layout];
    assert_int_equal(t->place[0].kind, TSR_PLACE_SHARD);
    assert_int_equal(tsr_dtensor_local_numel(t, 0), 3 * 6);
    tsr_state_dict_fini(&s);
    tsr_engine_destroy(e);
}

/* R229: with CPU offload the values are on the host. */
static void offloaded_values_are_on_the_host(void **state)
{
    (void)state;
    struct tsr_wrap_options offload = {.offload = TSR_OFFLOAD_CPU};
    struct tsr_engine *e = open_tree(&four);
    wrap(e, "b", &offload);
    wrap(e, "", NULL);
    struct tsr_state_dict s = state_of(e, NULL);
    assert_true(tsr_state_dict_find(&s, "b.up.bias")->on_host);
    assert_false(tsr_state_dict_find(&s, "a.up.bias")->on_host);
    tsr_state_dict_fini(&s);
    tsr_engine_destroy(e);
}

/* Parameters that nobody manages, and those of the bucketed replicate, are whole on every rank. */
static void plain_parameters_are_whole(void **state)
{
    (void)state;
    static const char *const ignored[] = {"b.**"};
    struct tsr_wrap_options o = {.n_ignored = 1, .ignored = ignored};
    struct tsr_engine *e = open_tree(&four);
    wrap(e, "", &o);
    struct tsr_state_dict s = state_of(e, NULL);
    const struct tsr_state_entry *entry = tsr_state_dict_find(&s, "b.up.weight");
    assert_null(entry->group);
    assert_int_equal(tsr_dtensor_local_numel(&s.layouts[entry->layout], 3), 60);
    tsr_state_dict_fini(&s);
    tsr_engine_destroy(e);
    e = open_tree(&four);
    assert_int_equal(tsr_ddp(e, NULL), TSR_OK);
    s = state_of(e, NULL);
    for (uint32_t r = 0; r < 4; r++)
        assert_int_equal(test_rank_bytes(&s, r), 4 * (9 * 6 + 2 * (60 + 10 + 60)));
    tsr_state_dict_fini(&s);
    tsr_engine_destroy(e);
}

/* ---- from one engine to another -------------------------------------------------------------- */

struct tally {
    const struct tsr_state_dict *from;
    uint64_t bytes;
    uint64_t end; /* of what was read of the entry */
    const struct tsr_state_entry *entry;
};

static tsr_status tally_range(void *user, const struct tsr_byte_range *g)
{
    struct tally *t = user;
    const struct tsr_state_entry *a = t->entry;
    const struct tsr_dtensor *layout = &t->from->layouts[a->layout];
    assert_true(g->from_offset + g->bytes <=
                tsr_dtensor_local_numel(layout, g->from_rank) * tsr_dtype_bytes(a->dtype));
    assert_true(g->to_offset == t->end);
    t->end += g->bytes;
    t->bytes += g->bytes;
    return TSR_OK;
}

/* What `to_rank` reads of a whole state, in bytes; entries are matched by name. */
static uint64_t reads_of(const struct tsr_state_dict *from, const struct tsr_state_dict *to,
                         uint32_t to_rank)
{
    struct tally t = {.from = from};
    for (size_t i = 0; i < to->n; i++) {
        const struct tsr_state_entry *want = &to->entries[i];
        if (want->alias_of != i)
            continue;
        t.entry = tsr_state_dict_find(from, want->fqn);
        t.end = 0;
        assert_non_null(t.entry);
        assert_int_equal(tsr_reshard_tensor(&from->layouts[t.entry->layout], from->world,
                                            &to->layouts[want->layout], to_rank,
                                            tsr_dtype_bytes(want->dtype), tally_range, &t),
                         TSR_OK);
    }
    return t.bytes;
}

/* R227, R228: another number of ranks, another wrapping, HSDP: all of a rank's state is read. */
static void resharding_between_engines(void **state)
{
    (void)state;
    struct tsr_engine *a = open_tree(&four), *b = open_tree(&two_by_three);
    wrap(a, "a", NULL);
    wrap(a, "", NULL);
    wrap(b, "", NULL);
    struct tsr_state_dict from = state_of(a, NULL), to = state_of(b, NULL);
    for (uint32_t r = 0; r < 6; r++)
        assert_int_equal(reads_of(&from, &to, r), test_rank_bytes(&to, r));
    tsr_state_dict_fini(&from);
    tsr_state_dict_fini(&to);
    tsr_engine_destroy(a);
    tsr_engine_destroy(b);
}

static void malformed_states_are_refused(void **state)
{
    (void)state;
    static const uint64_t shape[1] = {8};
    static const uint32_t mesh[1] = {4};
    struct tsr_placement place[1] = {tsr_shard_placement(0, 1)};
    struct tsr_dtensor t = test_layout(1, shape, 1, mesh, place), bad = t;
    struct tsr_state_dict a;
    tsr_state_dict_init(&a, 4);
    bad.mesh[0].stride = 2;
    assert_int_equal(tsr_state_dict_add(&a, "w", NULL, TSR_F32, &bad), TSR_EVALUE);
    assert_int_equal(tsr_state_dict_add(&a, "w", NULL, TSR_DTYPE_NONE, &t), TSR_EVALUE);
    assert_int_equal(tsr_state_dict_add(&a, "w", NULL, TSR_F32, &t), TSR_OK);
    tsr_state_dict_fini(&a);
}

/* ---- 16,384 ranks ---------------------------------------------------------------------------- */

static const struct tsr_llama_config llama_405b = {.hidden_size = 16384,
                                                   .intermediate_size = 53248,
                                                   .n_layers = 126,
                                                   .n_heads = 128,
                                                   .n_kv_heads = 8,
                                                   .head_dim = 128,
                                                   .vocab_size = 128256,
                                                   .max_positions = 131072};

static struct tsr_engine *open_405b(const struct tsr_mesh *mesh)
{
    static const char *const layers[] = {"model.layers.*"};
    struct tsr_engine *e = test_engine(mesh, 0);
    struct tsr_module *found[126], *root;
    size_t n = 126;
    assert_int_equal(tsr_model_llama(e, &llama_405b), TSR_OK);
    tsr_module_match(e, layers, 1, found, &n);
    assert_int_equal(n, 126);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(tsr_fully_shard(e, &found[i], 1, NULL), TSR_OK);
    root = tsr_module_root(e);
    assert_int_equal(tsr_fully_shard(e, &root, 1, NULL), TSR_OK);
    return e;
}

/* Local shapes and offsets of every rank, by distinct layout; returns the elements of all ranks. */
static uint64_t lay_out(const struct tsr_state_dict *s)
{
    uint64_t total = 0;
    for (size_t i = 0; i < s->n_layouts; i++) {
        uint64_t numel = 0;
        for (uint32_t r = 0; r < s->world; r++) {
            uint64_t offset[TSR_DT_MAX_DIMS], size[TSR_DT_MAX_DIMS], n = 1;
            assert_true(tsr_dtensor_box(&s->layouts[i], r, offset, size));
            for (int d = 0; d < s->layouts[i].n_dims; d++)
                n *= size[d];
            numel += n;
        }
        for (size_t k = 0; k < s->n; k++)
            total += s->entries[k].layout == i ? numel : 0;
    }
    return total;
}

static void layout_of_16384_ranks_in_milliseconds(void **state)
{
    (void)state;
    static const struct tsr_mesh mesh = {1, {16384}, {"shard"}};
    struct tsr_engine *e = open_405b(&mesh);
    double start = test_milliseconds();
    struct tsr_state_dict s = state_of(e, NULL);
    uint64_t elements = lay_out(&s);
    double taken = test_milliseconds() - start;
    printf("Llama-3.1-405B on 16384 ranks: %zu keys, %zu distinct layouts, %.2f ms\n", s.n,
           s.n_layouts, taken);
    assert_true(elements == tsr_model_n_params(e));
    assert_true(elements == UINT64_C(405853388800));
    assert_true(taken < 1000); /* a few milliseconds; generous for a loaded or slow machine */
    tsr_state_dict_fini(&s);
    tsr_engine_destroy(e);
}

/* From 16,384 ranks to 2 x 6,000: what one rank has to read. */
static void one_rank_of_many_reads_its_own(void **state)
{
    (void)state;
    static const struct tsr_mesh a = {1, {16384}, {"shard"}}, b = {2, {2, 6000}, {"r", "s"}};
    struct tsr_engine *ea = open_405b(&a), *eb = open_405b(&b);
    struct tsr_state_dict from = state_of(ea, NULL), to = state_of(eb, NULL);
    double start = test_milliseconds();
    uint64_t bytes = reads_of(&from, &to, 7001);
    printf("reads of one rank: %.2f ms\n", test_milliseconds() - start);
    assert_true(bytes == test_rank_bytes(&to, 7001));
    tsr_state_dict_fini(&from);
    tsr_state_dict_fini(&to);
    tsr_engine_destroy(ea);
    tsr_engine_destroy(eb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(keys_are_places),
                                       cmocka_unit_test(one_group),
                                       cmocka_unit_test(unsharding_does_not_change_the_state),
                                       cmocka_unit_test(offloaded_values_are_on_the_host),
                                       cmocka_unit_test(plain_parameters_are_whole),
                                       cmocka_unit_test(resharding_between_engines),
                                       cmocka_unit_test(malformed_states_are_refused),
                                       cmocka_unit_test(layout_of_16384_ranks_in_milliseconds),
                                       cmocka_unit_test(one_rank_of_many_reads_its_own)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
