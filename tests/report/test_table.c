/* test_table.c: the comparison as Markdown, CSV and JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>

#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"
#include "tests/report/scratch.h"

static struct tsr_study_info info_of(void)
{
    return (struct tsr_study_info){.title = "A study",
                                   .model_name = "llama",
                                   .cluster_name = "dgx",
                                   .device_file = "gpu.json",
                                   .config_path = "my file.yaml",
                                   .resolved_yaml = "model: llama\n",
                                   .gpu_name = "h100",
                                   .world = 8};
}

static struct tsr_row row_of(const char *name, double step_s, double reserved_gib, int fits)
{
    struct tsr_row row = {.world = 8, .tokens_per_rank = 8192, .mfu = 0.5, .fits = fits};
    (void)snprintf(row.strategy, sizeof row.strategy, "%s", name);
    (void)snprintf(row.summary, sizeof row.summary, "with a \"quote\", and a comma");
    row.steady.step_s = step_s;
    row.steady.exposed_s = step_s / 8;
    row.steady.sent_intra = 1500000000;
    row.first.step_s = 2 * step_s;
    row.usable_bytes = 80 * (uint64_t)TSR__GIB;
    row.peak_reserved = (uint64_t)(reserved_gib * TSR__GIB);
    row.peak_allocated = row.peak_reserved / 2;
    row.peak_by_category[TSR_CAT_ACTIVATION] = row.peak_allocated;
    row.program_hash = UINT64_C(0xfedcba9876543210);
    return row;
}

/* The table in a format, to be freed. */
static char *table_with(const struct tsr_study_info *info, const char *format,
                        const struct tsr_row *rows, size_t n)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    assert_int_equal(tsr_report_table(out, out, format, info, rows, n), TSR_OK);
    assert_int_equal(fclose(out), 0);
    return text;
}

static char *table_of(const char *format, const struct tsr_row *rows, size_t n)
{
    struct tsr_study_info info = info_of();
    return table_with(&info, format, rows, n);
}

static void check_lines(const char *format, size_t n_columns, size_t n_more)
{
    struct tsr_row rows[] = {row_of("fsdp", 0.9, 60, 1), row_of("a much longer name", 0.7, 100, 0),
                             row_of("kürzer", 1.1, 20, 1)};
    char *text = table_of(format, rows, 3);
    size_t width = 0, n_lines = 0, n_tables = 0;
    for (char *line = text, *next; *line; line = next) {
        size_t columns = 0, bars = 0;
        next = strchr(line, '\n') + 1;
        if (line[0] != '|') {
            width = 0; /* another table may follow */
            continue;
        }
        n_tables += width == 0;
        for (const char *c = line; *c != '\n'; c++) {
            columns += ((unsigned char)*c & 0xc0U) != 0x80U;
            bars += *c == '|';
        }
        assert_true(width == 0 || columns == width);
        assert_int_equal(bars, n_tables == 1 ? n_columns + 1 : n_more + 1);
        width = columns;
        n_lines += n_tables == 1;
    }
    assert_int_equal(n_tables, 2);
    assert_int_equal(n_lines, 5);
    free(text);
}

/* The wide ones have five columns more about time and traffic, and two about the host's memory; the
 * narrow one has no rate where all steps have as many tokens. */
static void test_markdown__lines_of_the_tables_are_aligned(void **state)
{
    (void)state;
    check_lines("md", 8, 8);
    check_lines("wide", 13, 10);
    check_lines("narrow", 7, 8);
}

/* Once something lies on the host, its columns are there without being asked for. */
static void test_markdown__the_host_is_shown_where_it_is_used(void **state)
{
    (void)state;
    struct tsr_row row = row_of("a", 0.5, 60, 1);
    row.pinned_bytes = 128 << 10; /* what a norm is read back through */
    char *text = table_of("md", &row, 1);
    assert_null(strstr(text, "| pinned |"));
    free(text);
    row.pinned_bytes = (uint64_t)TSR__GIB;
    text = table_of("md", &row, 1);
    assert_non_null(strstr(text, "| pinned |"));
    free(text);
}

static void test_markdown__says_what_to_run(void **state)
{
    (void)state;
    struct tsr_row rows[] = {row_of("fast", 0.7, 100, 0), row_of("good", 0.8, 60, 1),
                             row_of("slow", 0.9, 50, 1)};
    char *text = table_of("wide", rows, 3);
    assert_non_null(strstr(text, "| good * "));
    assert_non_null(
        strstr(text, "tessera compare 'my file.yaml' --only good --emit torch out/code\n"));
    assert_null(strstr(text, "tessera run"));
    assert_non_null(strstr(text, "gpu.json"));
    assert_non_null(strstr(text, "80.00 GiB usable"));
    assert_non_null(strstr(text, " 800.00 |"));  /* ms */
    assert_non_null(strstr(text, " 10240 |"));   /* 8192 tokens in 0.8 s */
    assert_non_null(strstr(text, " 100.00 |"));  /* exposed: an eighth of the step */
    assert_non_null(strstr(text, " 12.5 |"));    /* the same in % */
    assert_non_null(strstr(text, " 1.40 |"));    /* GiB sent: 1.5e9 bytes */
    assert_non_null(strstr(text, " 1600.00 |")); /* the first step */
    free(text);
}

/* What trains is also run where it can be: on the machine's GPUs if there are enough, and never
 * simulated again. */
static void test_markdown__a_run_is_one_that_trains(void **state)
{
    (void)state;
    struct tsr_study_info info = info_of();
    struct tsr_row row = row_of("good", 0.8, 60, 1);
    row.trains = true;
    for (info.gpus_here = 7; info.gpus_here <= 8; info.gpus_here++) {
        char *text = table_with(&info, "md", &row, 1);
        assert_non_null(strstr(text, info.gpus_here == 8 ? " --strategy good --on cuda\n"
                                                         : " --strategy good --on host\n"));
        assert_null(strstr(text, "--on sim"));
        free(text);
    }
}

/* The winner is compared with the next row that answers the same question. */
static void test_markdown__says_why_it_wins(void **state)
{
    (void)state;
    struct tsr_row rows[] = {row_of("good", 0.8, 60, 1), row_of("slow", 1.0, 50, 1),
                             row_of("other", 0.9, 50, 1)};
    rows[2].changes.kinds = TSR_CHANGES_NUMBERS;
    rows[0].steady.compute_s = 0.6;
    rows[1].steady.compute_s = 0.7;
    char *text = table_of("md", rows, 3);
    assert_non_null(strstr(text,
                           "3 of 3 fit. Fastest that fits (marked \"*\"): good. The next, slow, "
                           "takes 25.0 % longer: kernels 700.00 ms against 600.00, exposed "
                           "communication 125.00 against 100.00.\n"));
    free(text);
    rows[1].steady.step_s = 0.8;
    text = table_of("md", rows, 2);
    assert_non_null(strstr(text, "good. As fast: slow.\n"));
    free(text);
}

/* What needs other software than the reference is marked and does not win. */
static void test_markdown__other_software_does_not_win(void **state)
{
    (void)state;
    struct tsr_row rows[] = {row_of("eager", 0.8, 60, 1), row_of("compiled", 0.6, 50, 1)};
    rows[1].changes = (struct tsr_changes){TSR_CHANGES_STACK, "needs: compile"};
    char *text = table_of("md", rows, 2);
    assert_non_null(strstr(text, "| compiled + "));
    assert_non_null(strstr(text, "| eager * "));
    assert_non_null(strstr(text, "Faster, but it needs other software (+): compiled, 25.0 % less "
                                 "time per token and GPU: needs: compile."));
    assert_non_null(strstr(text, "`+`: needs software"));
    free(text);
}

/* What is not known stands on the first screen. */
static void test_markdown__says_what_is_not_known(void **state)
{
    (void)state;
    struct tsr_row row = row_of("good", 0.8, 60, 1);
    row.needed = 70 * (uint64_t)TSR__GIB;
    row.library_bytes = -1;
    char *text = table_of("md", &row, 1);
    assert_non_null(strstr(text, "Simulated, not run: "));
    assert_non_null(strstr(text, "Not known: the memory of CUDA's libraries outside the allocator "
                                 "(good has 10.00 GiB left for it), the time of loading data."));
    free(text);
    row.library_bytes = 1;
    row.usable_bytes = 0;
    text = table_of("md", &row, 1);
    assert_non_null(strstr(text, "Not known: how much of the card a process can use, the time"));
    free(text);
}

static void test_markdown__shows_failures_and_unknowns(void **state)
{
    (void)state;
    struct tsr_row rows[] = {row_of("broken", 0, 0, -1), row_of("odd", 0.5, 10, -1)};
    (void)snprintf(rows[0].failure, sizeof rows[0].failure, "out of memory: 3 GiB wanted");
    rows[0].failure_status = 3;
    rows[1].mfu = -1;
    rows[1].usable_bytes = 0;
    char *text = table_of("md", rows, 2);
    assert_non_null(strstr(text, "| broken [1] |"));
    assert_non_null(strstr(text, "[1] broken: out of memory: 3 GiB wanted\n"));
    assert_non_null(strstr(text, "| NO "));
    assert_non_null(strstr(text, "| ?    |"));
    assert_non_null(strstr(text, "     ? |"));
    assert_non_null(strstr(text, "--only odd"));
    assert_null(strstr(text, "GiB usable"));
    free(text);
}

/* A utilisation above 1 is never printed without its reason. */
static void test_markdown__says_why_mfu_is_above_the_peak(void **state)
{
    (void)state;
    for (int over = 0; over < 2; over++) {
        struct tsr_row rows[] = {row_of("usual", 0.5, 10, -1), row_of("long", 0.5, 10, -1)};
        rows[1].mfu = over ? 1.023 : 1.0;
        char *text = table_of("md", rows, 2);
        assert_int_equal(strstr(text, "MFU above 100 %: it counts causal attention") != NULL, over);
        free(text);
    }
}

/* Where no row has kernels that the cost model does not know, there is no column of them. A share
 * that is not zero is not shown as zero; of what failed or was measured there is none. */
static void test_markdown__the_share_of_unknown_kernels(void **state)
{
    static const char *const formats[] = {"md", "narrow", "wide"};
    (void)state;
    struct tsr_row rows[] = {row_of("known", 0.5, 10, 1), row_of("much", 0.5, 10, 1),
                             row_of("little", 0.5, 10, 1), row_of("run", 0.5, 10, 1),
                             row_of("broken", 0, 0, -1)};
    rows[1].unknown_s = 0.0625;
    rows[2].unknown_s = 1e-6;
    rows[3].unknown_s = 0.25;
    rows[3].measured = true;
    (void)snprintf(rows[4].failure, sizeof rows[4].failure, "refused");
    for (size_t f = 0; f < 3; f++) {
        char *text = table_of(formats[f], rows, 5);
        assert_non_null(strstr(text, "| exposed % | unknown % | peak GiB |"));
        assert_non_null(strstr(text, "|      12.5 |       0.0 |     5.00 |"));
        assert_non_null(strstr(text, "|      12.5 |      12.5 |     5.00 |"));
        assert_non_null(strstr(text, "|      12.5 |      <0.1 |     5.00 |"));
        assert_non_null(strstr(text, "|      12.5 |         ? |     5.00 |"));
        assert_non_null(strstr(text, "|         - |         - |        - |"));
        assert_non_null(strstr(text, "\n`unknown`: share of the step in kernels of the trace"));
        free(text);
        text = table_of(formats[f], rows, 1);
        assert_null(strstr(text, "unknown %"));
        assert_null(strstr(text, "`unknown`"));
        free(text);
    }
}

/* CSV and JSON have the same columns for all rows: 0 is none, empty and null are unknown. */
static void test_json__the_share_of_unknown_kernels(void **state)
{
    (void)state;
    struct tsr_row rows[] = {row_of("known", 0.5, 10, 1), row_of("much", 0.5, 10, 1),
                             row_of("run", 0.5, 10, 1), row_of("broken", 0, 0, -1)};
    rows[1].unknown_s = 0.0625;
    rows[2].measured = true;
    (void)snprintf(rows[3].failure, sizeof rows[3].failure, "refused");
    char *text = table_of("json", rows, 4);
    json_t *root = json_loads(text, 0, NULL), *list = json_object_get(root, "rows");
    for (size_t i = 0; i < 4; i++) {
        json_t *row = json_array_get(list, i), *s = json_object_get(row, "unknown_kernels_s"),
               *share = json_object_get(row, "unknown_kernels_share");
        assert_true(i < 2 ? json_is_real(s) && json_is_real(share)
                          : json_is_null(s) && json_is_null(share));
        assert_true(json_real_value(s) == (i == 1 ? 0.0625 : 0));
        assert_true(json_real_value(share) == (i == 1 ? 0.125 : 0));
    }
    json_decref(root);
    free(text);
    text = table_of("csv", rows, 4);
    assert_non_null(strstr(text, ",unknown_kernels_s,unknown_kernels_share,"));
    assert_non_null(strstr(text, ",0,0.0625,0.125,0,0.0625,0.125,"));
    assert_non_null(strstr(text, ",0,,,0,0.0625,0.125,"));
    free(text);
}

/* What lies outside the allocator stands beside what it reserves; unknown is "?", not 0. */
static void test_markdown__memory_against_the_card(void **state)
{
    (void)state;
    struct tsr_row row = row_of("a|b", 0.5, 60, -1);
    row.most_reserved = 60 * (uint64_t)TSR__GIB;
    row.context_bytes = (int64_t)(TSR__GIB / 2);
    row.library_bytes = -1;
    row.nccl_bytes = (int64_t)(TSR__GIB / 4);
    row.host_bytes = 3 * (uint64_t)TSR__GIB;
    row.pinned_bytes = 4 * (uint64_t)TSR__GIB;
    char *text = table_of("md", &row, 1);
    assert_non_null(strstr(text, "| a\\|b |        60.00 |    0.50 |         ? | 0.25 |  60.75 |"
                                 "  80.00 | ?    | 3.00 |   4.00 |"));
    assert_null(strstr(text, "peak by phase"));
    free(text);
}

/* A verdict beside yes and NO is explained once, with who has it and by how much; no other is. */
static void test_markdown__verdicts_are_explained(void **state)
{
    (void)state;
    struct tsr_row rows[] = {row_of("a", 0.5, 60, TSR_FITS_YES), row_of("b", 0.5, 60, TSR_FITS_NO),
                             row_of("c", 0.5, 60, TSR_FITS_RETRIES),
                             row_of("d", 0.5, 60, TSR_FITS_UNKNOWN)};
    char *text = table_of("md", rows, 2);
    assert_null(strstr(text, "asks again"));
    assert_null(strstr(text, "fits: ?"));
    free(text);
    rows[2].fit = (struct tsr_fit){.retries = 2, .has_nccl = true, .nccl_at_most = 1};
    rows[2].retry_s = 0.125;
    rows[3].fit.short_of = (uint64_t)(1.5 * TSR__GIB);
    text = table_of("md", rows, 4);
    assert_non_null(strstr(text, "| yes, retries |"));
    assert_non_null(strstr(text, "asks again: c 2 x a step, +125.0 ms.\n"));
    assert_non_null(strstr(text, "may be more than what is left: d up to 1.50 GiB.\n"));
    assert_non_null(strstr(text, "| >0.00 |")); /* of NCCL the least is known */
    free(text);
    rows[3].usable_bytes = 0;
    rows[2].fit.retries = 0;
    text = table_of("md", rows, 4);
    assert_non_null(strstr(text, "asks again: c in the first steps only, +125.0 ms.\n"));
    assert_non_null(strstr(text, "(memory.visible_bytes)"));
    assert_null(strstr(text, "d up to"));
    free(text);
}

/* A host that is too small is a verdict of its own, beside that of the GPU, and says where. */
static void test_markdown__a_host_that_is_too_small(void **state)
{
    (void)state;
    struct tsr_row rows[] = {row_of("a", 0.4, 60, TSR_FITS_NO), row_of("b", 0.5, 60, TSR_FITS_NO),
                             row_of("c", 0.6, 60, TSR_FITS_YES)};
    struct tsr_host_fit host = {.verdict = TSR_HOST_TOO_SMALL,
                                .memory = 4 * (uint64_t)TSR__GIB,
                                .required = 5 * (uint64_t)TSR__GIB,
                                .steady = 3 * (uint64_t)TSR__GIB,
                                .node = 1,
                                .ranks = 2,
                                .rank = 8,
                                .rank_bytes = 3 * (uint64_t)TSR__GIB,
                                .section = "save"};
    rows[0].node_host = rows[1].node_host = host;
    rows[0].fit.verdict = TSR_FITS_RETRIES;
    rows[2].node_host = (struct tsr_host_fit){.ranks = 1, .section = "init"};
    char *text = table_of("md", rows, 3);
    assert_non_null(strstr(text, "| a        |  400.00 |"));
    assert_non_null(strstr(text, "| NO (host)      |"));
    assert_non_null(strstr(text, "| NO (GPU, host) |"));
    assert_non_null(strstr(text, "| c * "));
    assert_non_null(strstr(text, "a 5.00 GiB of 4.00 GiB in save (node 1: 2 ranks, rank 8 alone "
                                 "3.00 GiB); b 5.00 GiB"));
    assert_non_null(
        strstr(text, "|     2 |    5.00 | save  |     3.00 |        3.00 |   4.00 | NO "));
    assert_non_null(
        strstr(text, "|     1 |    0.00 | init  |     0.00 |        0.00 |      ? | ? "));
    free(text);
    text = table_of("md", rows, 1);
    assert_non_null(strstr(text, "and its ranks need more memory than their host has"));
    free(text);
    text = table_of("csv", &rows[2], 1);
    assert_non_null(strstr(text, ",unknown,0,0,,,init,0,"));
    free(text);
}

/* What fits without retries goes first, if it is slower, too. */
static void test_markdown__retries_come_second(void **state)
{
    (void)state;
    struct tsr_row rows[] = {row_of("tight", 0.5, 60, TSR_FITS_RETRIES),
                             row_of("roomy", 0.6, 60, TSR_FITS_YES)};
    char *text = table_of("md", rows, 2);
    assert_non_null(strstr(text, "| roomy * "));
    free(text);
    text = table_of("md", rows, 1);
    assert_non_null(strstr(text, "| tight * "));
    assert_non_null(strstr(text, "Fastest that fits"));
    free(text);
}

static void test_markdown__peaks_by_section(void **state)
{
    (void)state;
    struct tsr_row row = row_of("a", 0.5, 60, 1);
    row.show_sections = 1U << TSR_SECTION_SAVE;
    row.sections[TSR_SECTION_INIT].there = true; /* not asked for */
    row.sections[TSR_SECTION_SAVE] = (struct tsr_section_peak){
        .there = true, .allocated = 7 * (uint64_t)TSR__GIB, .phase = "save", .module = "head"};
    char *text = table_of("md", &row, 1);
    assert_non_null(strstr(text, "| a                  | save  |      7.00 |     0.00 |"));
    assert_non_null(strstr(text, "| save, head |"));
    assert_null(strstr(text, "| init"));
    free(text);
    text = table_of("json", &row, 1);
    json_t *root = json_loads(text, 0, NULL);
    json_t *sections =
        json_object_get(json_array_get(json_object_get(root, "rows"), 0), "peak_bytes_by_section");
    assert_int_equal(json_object_size(sections), 2);
    json_t *peak = json_object_get(json_object_get(sections, "save"), "peak_allocated_bytes");
    assert_int_equal(json_integer_value(peak), 7 * (json_int_t)TSR__GIB);
    json_decref(root);
    free(text);
}

/* What was given besides the file stands in the command. */
static void test_markdown__the_command_has_the_overrides(void **state)
{
    (void)state;
    static const char *const sets[] = {"batch=2", "phases=[init, it's]"};
    struct tsr_study_info info = info_of();
    struct tsr_row row = row_of("good", 0.8, 60, 1);
    const struct tsr_run_words run = {"good", "base", sets, 2};
    info.runs = &run;
    info.n_runs = 1;
    char *text = table_with(&info, "md", &row, 1);
    assert_non_null(strstr(text, "tessera compare 'my file.yaml' --only base --set batch=2 "
                                 "--set 'phases=[init, it'\\''s]' --emit torch out/code\n"));
    free(text);
}

static void test_markdown__nothing_fits(void **state)
{
    (void)state;
    struct tsr_row rows[] = {row_of("a", 0.5, 100, 0), row_of("b", 0.6, 90, 0)};
    char *text = table_of("md", rows, 2);
    assert_non_null(strstr(text, "No strategy fits; the smallest, b, reserves 90.00 GiB."));
    assert_non_null(strstr(text, "    tessera plan "));
    assert_non_null(strstr(text, " --strategy b\n"));
    assert_null(strstr(text, "--emit torch"));
    free(text);
}

/* Number of fields of a CSV line, quotes respected; *line moves to the next one. */
static int count_fields(const char **line)
{
    int n = 1;
    bool quoted = false;
    const char *c = *line;
    for (; *c && (quoted || *c != '\n'); c++) {
        if (*c == '"')
            quoted = !quoted;
        n += *c == ',' && !quoted;
    }
    *line = *c ? c + 1 : c;
    return n;
}

static void test_csv__rows_match_the_head(void **state)
{
    (void)state;
    struct tsr_row rows[] = {row_of("a,b", 0.5, 10, 1), row_of("plain", 0.6, 10, -1),
                             row_of("bad", 0, 0, 0)};
    (void)snprintf(rows[2].failure, sizeof rows[2].failure, "two\nlines");
    char *text = table_of("csv", rows, 3);
    const char *line = text;
    assert_memory_equal(text, "schema_version,strategy,", 24);
    int n = count_fields(&line);
    for (int i = 0; i < 3; i++)
        assert_int_equal(count_fields(&line), n);
    assert_int_equal(*line, '\0');
    assert_non_null(strstr(text, "\n1,\"a,b\",\"with a \"\"quote\"\", and a comma\","));
    assert_non_null(strstr(text, ",0.5,16384,0.5,")); /* seconds, tokens/s, MFU as a fraction */
    assert_non_null(strstr(text, ",fedcba9876543210,"));
    free(text);
}

static void test_json__is_well_formed(void **state)
{
    (void)state;
    struct tsr_row rows[] = {row_of("a", 0.5, 10, 1), row_of("b", 0.25, 10, -1),
                             row_of("bad", 0, 0, 0)};
    rows[1].mfu = -1;
    (void)snprintf(rows[2].failure, sizeof rows[2].failure, "a \"reason\"");
    char *text = table_of("json", rows, 3);
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "schema")), "tessera.compare");
    assert_int_equal(json_integer_value(json_object_get(root, "schema_version")), 1);
    assert_string_equal(json_string_value(json_object_get(root, "best_strategy")), "a");
    json_t *list = json_object_get(root, "rows");
    assert_int_equal(json_array_size(list), 3);
    json_t *a = json_array_get(list, 0), *b = json_array_get(list, 1),
           *bad = json_array_get(list, 2);
    assert_true(json_real_value(json_object_get(a, "step_time_s")) == 0.5);
    assert_true(json_is_true(json_object_get(a, "fits")));
    assert_int_equal(json_integer_value(json_object_get(a, "peak_reserved_bytes")),
                     (json_int_t)(10 * TSR__GIB));
    assert_true(json_is_null(json_object_get(b, "fits")));
    assert_true(json_is_null(json_object_get(b, "mfu")));
    assert_true(json_is_null(json_object_get(bad, "step_time_s")));
    assert_string_equal(json_string_value(json_object_get(bad, "failure")), "a \"reason\"");
    json_decref(root);
    free(text);
}

static void test_study__can_be_repeated(void **state)
{
    (void)state;
    struct scratch scratch = scratch_create();
    struct tsr_study_info info = info_of();
    struct tsr_row row = row_of("a", 0.5, 10, 1);
    assert_int_equal(tsr_report_study(scratch.path, &info, &row, 1), TSR_OK);
    char *text = scratch_read(scratch.path, "summary.json");
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "configuration_yaml")),
                        "model: llama\n");
    assert_non_null(json_object_get(json_object_get(root, "versions"), "tessera"));
    json_decref(root);
    free(text);
    text = scratch_read(scratch.path, "summary.csv");
    assert_non_null(text);
    free(text);
    scratch_destroy(&scratch);
}

static void test_output__errors_are_reported(void **state)
{
    (void)state;
    struct tsr_study_info info = info_of();
    struct tsr_row row = row_of("a", 0.5, 10, 1);
    assert_int_equal(tsr_report_table(stdout, stdout, "xml", &info, &row, 1), TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), "md, csv or json"));
    FILE *full = fopen("/dev/full", "w");
    if (!full)
        skip();
    assert_int_equal(tsr_report_table(full, full, "md", &info, &row, 1), TSR_EIO);
    assert_non_null(strstr(tsr_error_text(), "No space left"));
    (void)fclose(full);
    assert_int_equal(tsr_report_study("/dev/full/x", &info, &row, 1), TSR_EIO);
}

static void test_folder_name__is_safe_and_unique(void **state)
{
    (void)state;
    char a[128], b[128];
    tsr__folder_name("fsdp-2.x_y=1", a, sizeof a);
    assert_string_equal(a, "fsdp-2.x_y=1");
    tsr__folder_name("a/b", a, sizeof a);
    tsr__folder_name("a_b", b, sizeof b);
    assert_null(strchr(a, '/'));
    assert_string_not_equal(a, b);
    tsr__folder_name("..", a, sizeof a);
    assert_int_not_equal(a[0], '.');
    tsr__folder_name("", a, sizeof a);
    assert_int_not_equal(a[0], '\0');
    static const char *const outputs[] = {"summary.csv", "report.html", "experiment.yaml", "rows"};
    for (size_t i = 0; i < 4; i++) {
        tsr__folder_name(outputs[i], a, sizeof a);
        assert_string_not_equal(a, outputs[i]);
        assert_memory_equal(a, outputs[i], strlen(outputs[i]));
    }
}

static void test_short_name__keeps_what_tells_apart(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"model.layers.5", "layers.5"},
        {"model.layers.12.self_attn.q_proj", "12.q_proj"},
        {"model.embed_tokens", "embed_tokens"},
        {"model.norm, lm_head", "norm, lm_head"},
        {"h.0", "h.0"},
        {"lm_head", "lm_head"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[64];
        tsr__short_name(cases[i][0], out, sizeof out);
        assert_string_equal(out, cases[i][1]);
    }
    char tiny[8];
    tsr__short_name("model.norm, lm_head", tiny, sizeof tiny);
    assert_true(strlen(tiny) < sizeof tiny);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_markdown__lines_of_the_tables_are_aligned),
        cmocka_unit_test(test_markdown__the_host_is_shown_where_it_is_used),
        cmocka_unit_test(test_markdown__says_what_to_run),
        cmocka_unit_test(test_markdown__a_run_is_one_that_trains),
        cmocka_unit_test(test_markdown__says_why_it_wins),
        cmocka_unit_test(test_markdown__other_software_does_not_win),
        cmocka_unit_test(test_markdown__says_what_is_not_known),
        cmocka_unit_test(test_markdown__shows_failures_and_unknowns),
        cmocka_unit_test(test_markdown__says_why_mfu_is_above_the_peak),
        cmocka_unit_test(test_markdown__the_share_of_unknown_kernels),
        cmocka_unit_test(test_json__the_share_of_unknown_kernels),
        cmocka_unit_test(test_markdown__memory_against_the_card),
        cmocka_unit_test(test_markdown__verdicts_are_explained),
        cmocka_unit_test(test_markdown__a_host_that_is_too_small),
        cmocka_unit_test(test_markdown__retries_come_second),
        cmocka_unit_test(test_markdown__peaks_by_section),
        cmocka_unit_test(test_markdown__the_command_has_the_overrides),
        cmocka_unit_test(test_markdown__nothing_fits),
        cmocka_unit_test(test_csv__rows_match_the_head),
        cmocka_unit_test(test_json__is_well_formed),
        cmocka_unit_test(test_study__can_be_repeated),
        cmocka_unit_test(test_output__errors_are_reported),
        cmocka_unit_test(test_folder_name__is_safe_and_unique),
        cmocka_unit_test(test_short_name__keeps_what_tells_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
