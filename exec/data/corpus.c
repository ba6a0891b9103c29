/* corpus.c: finds the texts of a corpus, and leaves out those that stand in others. */
#include "exec/data/corpus.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "sim/base/files.h"

static tsr_status no_memory(void)
{
    return tsr_no_memory("a corpus");
}

/* A path that is wrong is a mistake; a disk that fails is not. */
static tsr_status unreadable(const char *path)
{
    return tsr_fail(errno == EIO || errno == ENFILE || errno == EMFILE ? TSR_EIO : TSR_ECONFIG,
                    "%s: cannot be read: %s", path, strerror(errno));
}

/* ---- adding ---------------------------------------------------------------------------------- */

static tsr_status read_text(struct tsr_corpus_text *text)
{
    char *data = NULL;
    size_t bytes = 0;
    TSR_TRY(tsr_file_read(NULL, text->path, SIZE_MAX / 2, &data, &bytes));
    text->data = (uint8_t *)data;
    text->bytes = bytes;
    text->content = tsr_hash_bytes(TSR_HASH_INIT, text->data, bytes);
    return TSR_OK;
}

static bool is_there(const struct tsr_corpus *corpus, const struct tsr_corpus_text *text)
{
    for (size_t i = 0; i < corpus->n_texts; i++) {
        const struct tsr_corpus_text *other = &corpus->texts[i];
        if (other->content == text->content && other->bytes == text->bytes &&
            memcmp(other->data, text->data, (size_t)text->bytes) == 0)
            return true; /* the same file, or a copy */
    }
    return false;
}

static void text_free(struct tsr_corpus_text *text)
{
    free(text->path);
    free(text->data);
}

static tsr_status add_file(struct tsr_corpus *corpus, const char *path)
{
    struct tsr_corpus_text text = {.path = realpath(path, NULL)};
    if (!text.path)
        return unreadable(path);
    tsr_status status;
    TSR_GOTO(drop, read_text(&text));
    if (is_there(corpus, &text)) {
        corpus->n_duplicates++;
        goto drop;
    }
    if (TSR_PUSH(corpus->texts, corpus->n_texts, corpus->cap, text))
        return TSR_OK;
    status = no_memory();
drop:
    text_free(&text);
    return status;
}

/* The locale has no say in the order. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static tsr_status add_entry(struct tsr_corpus *corpus, const char *folder, const char *name);

static tsr_status add_folder(struct tsr_corpus *corpus, const char *path)
{
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, by_name);
    if (n < 0)
        return unreadable(path);
    tsr_status status = TSR_OK;
    for (int i = 0; i < n; i++) {
        if (status == TSR_OK && entries[i]->d_name[0] != '.')
            status = add_entry(corpus, path, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* Links to folders are not followed: they could lead around in a circle. */
static tsr_status add_entry(struct tsr_corpus *corpus, const char *folder, const char *name)
{
    size_t n = strlen(folder) + strlen(name) + 2;
    char *path = malloc(n);
    if (!path)
        return no_memory();
    (void)snprintf(path, n, "%s/%s", folder, name);
    struct stat entry;
    tsr_status status = TSR_OK;
    if (lstat(path, &entry) != 0)
        status = unreadable(path);
    else if (S_ISDIR(entry.st_mode))
        status = add_folder(corpus, path);
    else if (tsr_kind_of(NULL, path) == TSR_KIND_FILE) /* else a link to nowhere */
        status = add_file(corpus, path);
    free(path);
    return status;
}

tsr_status tsr_corpus_add(struct tsr_corpus *corpus, const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return unreadable(path);
    if (S_ISDIR(info.st_mode))
        return add_folder(corpus, path);
    if (!S_ISREG(info.st_mode))
        return tsr_fail(TSR_ECONFIG, "%s: is neither a regular file nor a folder", path);
    return add_file(corpus, path);
}

void tsr_corpus_fini(struct tsr_corpus *corpus)
{
    for (size_t i = 0; i < corpus->n_texts; i++)
        text_free(&corpus->texts[i]);
    free(corpus->texts);
    *corpus = (struct tsr_corpus){0};
}

/* ---- selecting ------------------------------------------------------------------------------- */

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct tsr_corpus_text *)a)->path,
                  ((const struct tsr_corpus_text *)b)->path);
}

static int by_size(const void *a, const void *b)
{
    const struct tsr_corpus_text *x = *(struct tsr_corpus_text *const *)a;
    const struct tsr_corpus_text *y = *(struct tsr_corpus_text *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return strcmp(x->path, y->path);
}

/* A text that repeats others for more than this is no text of its own. */
static const double most_seen = 0.25;

/* How much of sets[i] stands in the sets before it that were kept, together and at most in one. */
static void judge(struct tsr_corpus_text *const *texts, const struct tsr_shingles *sets, size_t i)
{
    size_t seen = 0, most = 0;
    struct tsr_corpus_text *text = texts[i];
    text->like = NULL;
    for (size_t k = 0; k < sets[i].n; k++) {
        bool found = false;
        for (size_t j = 0; j < i && !found; j++)
            found = !texts[j]->left_out && tsr_shingles_have(&sets[j], sets[i].hashes[k]);
        seen += found;
    }
    for (size_t j = 0; j < i; j++) {
        size_t shared = 0;
        for (size_t k = 0; !texts[j]->left_out && k < sets[i].n; k++)
            shared += tsr_shingles_have(&sets[j], sets[i].hashes[k]);
        if (shared > most) {
            most = shared;
            text->like = texts[j]->path;
        }
    }
    text->seen = sets[i].n ? (double)seen / (double)sets[i].n : 0;
    text->left_out = text->seen > most_seen;
}

/* Larger texts are judged first: a small one is left out for a large one that holds it. */
static tsr_status judge_all(struct tsr_corpus_text **texts, struct tsr_shingles *sets, size_t n)
{
    qsort(texts, n, sizeof *texts, by_size);
    for (size_t i = 0; i < n; i++) {
        TSR_TRY(tsr_shingles_of(texts[i]->data, texts[i]->bytes, TSR_CORPUS_SHINGLE, &sets[i]));
        judge(texts, sets, i);
    }
    return TSR_OK;
}

tsr_status tsr_corpus_select(struct tsr_corpus *corpus)
{
    size_t n = corpus->n_texts;
    if (n == 0)
        return TSR_OK;
    qsort(corpus->texts, n, sizeof *corpus->texts, by_path);
    struct tsr_corpus_text **texts = calloc(n, sizeof *texts);
    struct tsr_shingles *sets = calloc(n, sizeof *sets);
    tsr_status status = texts && sets ? TSR_OK : no_memory();
    if (status == TSR_OK) {
        for (size_t i = 0; i < n; i++)
            texts[i] = &corpus->texts[i];
        status = judge_all(texts, sets, n);
    }
    for (size_t i = 0; sets && i < n; i++)
        tsr_shingles_fini(&sets[i]);
    free(sets);
    free(texts);
    return status;
}

/* ---- shingles: hashes of runs of words ------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The hash of each word, in order. */
static tsr_status words_of(const uint8_t *text, uint64_t bytes, uint64_t **out, size_t *n)
{
    size_t cap = 0;
    for (uint64_t i = 0; i < bytes;) {
        uint64_t begin = i;
        while (i < bytes && !isspace(text[i]))
            i++;
        if (i > begin &&
            !TSR_PUSH(*out, *n, cap,
                      tsr_hash_bytes(TSR_HASH_INIT, text + begin, (size_t)(i - begin))))
            return tsr_no_memory("a corpus");
        while (i < bytes && isspace(text[i]))
            i++;
    }
    return TSR_OK;
}

tsr_status tsr_shingles_of(const uint8_t *text, uint64_t bytes, unsigned n_words,
                           struct tsr_shingles *out)
{
    uint64_t *words = NULL;
    size_t n = 0;
    *out = (struct tsr_shingles){0, NULL};
    tsr_status status = words_of(text, bytes, &words, &n);
    if (status != TSR_OK || n == 0) {
        free(words);
        return status;
    }
    size_t n_runs = n < n_words ? 1 : n - n_words + 1;
    for (size_t i = 0; i < n_runs; i++) { /* the run that begins here replaces its first word */
        uint64_t hash = TSR_HASH_INIT;
        for (size_t k = i; k < n && k < i + n_words; k++)
            hash = tsr_hash_u64(hash, words[k]);
        words[i] = hash;
    }
    qsort(words, n_runs, sizeof *words, compare);
    size_t kept = 0;
    for (size_t i = 0; i < n_runs; i++)
        if (i == 0 || words[i] != words[i - 1])
            words[kept++] = words[i];
    *out = (struct tsr_shingles){kept, words};
    return TSR_OK;
}

void tsr_shingles_fini(struct tsr_shingles *shingles)
{
    free(shingles->hashes);
    *shingles = (struct tsr_shingles){0, NULL};
}

bool tsr_shingles_have(const struct tsr_shingles *s, uint64_t hash)
{
    return s->n > 0 && bsearch(&hash, s->hashes, s->n, sizeof *s->hashes, compare);
}
