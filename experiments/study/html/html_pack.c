/* html_pack.c: numbers and texts packed (html_pack.h). */
#include "experiments/study/html/html_pack.h"

#include <stdlib.h>
#include <string.h>

#include "experiments/study/report/report_text.h"

void tsr__pack_put(struct tsr__pack *pack, uint64_t number)
{
    do {
        uint8_t byte = (uint8_t)(number & 0x7f);
        number >>= 7;
        byte |= number ? 0x80 : 0;
        if (!TSR_PUSH(pack->data, pack->n, pack->cap, byte))
            pack->failed = true;
    } while (number && !pack->failed);
}

void tsr__pack_put_signed(struct tsr__pack *pack, int64_t number)
{
    uint64_t twice = (uint64_t)number << 1;
    tsr__pack_put(pack, number < 0 ? ~twice : twice);
}

void tsr__pack_write(FILE *out, const struct tsr__pack *pack)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    fputc('"', out);
    for (size_t i = 0; i < pack->n; i += 3) {
        size_t left = pack->n - i;
        uint32_t three = (uint32_t)pack->data[i] << 16;
        three |= left > 1 ? (uint32_t)pack->data[i + 1] << 8 : 0;
        three |= left > 2 ? (uint32_t)pack->data[i + 2] : 0;
        fputc(letters[three >> 18], out);
        fputc(letters[three >> 12 & 63], out);
        fputc(left > 1 ? letters[three >> 6 & 63] : '=', out);
        fputc(left > 2 ? letters[three & 63] : '=', out);
    }
    fputc('"', out);
}

void tsr__pack_fini(struct tsr__pack *pack)
{
    free(pack->data);
    *pack = (struct tsr__pack){0};
}

/* ---- texts ----------------------------------------------------------------------------------- */

static uint32_t add(struct tsr__words *words, const char *text, uint32_t hash, uint32_t before)
{
    const char *copy = tsr_arena_strdup(&words->arena, text);
    uint32_t number = (uint32_t)words->n;
    if (!copy || !TSR_PUSH(words->next, words->n_next, words->next_cap, before) ||
        !TSR_PUSH(words->texts, words->n, words->cap, copy) ||
        !tsr_map_put(&words->first, hash, number))
        words->failed = true;
    return number;
}

uint32_t tsr__words_of(struct tsr__words *words, const char *text)
{
    if (words->failed)
        return 0;
    uint32_t hash = (uint32_t)tsr_hash_bytes(TSR_HASH_INIT, text, strlen(text));
    hash -= hash == TSR_MAP_NONE;
    uint32_t first = tsr_map_get(&words->first, hash);
    for (uint32_t k = first; k != TSR_MAP_NONE; k = words->next[k])
        if (!strcmp(words->texts[k], text))
            return k;
    return add(words, text, hash, first);
}

/* Letters that two texts share at their beginning; beyond ASCII a letter has another length in the
 * page. */
static size_t shared(const char *a, const char *b)
{
    size_t n = 0;
    while (a[n] && a[n] == b[n] && (unsigned char)a[n] < 0x80)
        n++;
    return n;
}

void tsr__words_write(FILE *out, const struct tsr__words *words)
{
    const char *before = "";
    fputc('[', out);
    for (size_t i = 0; i < words->n; i++) {
        size_t n = shared(before, words->texts[i]);
        fprintf(out, "%s[%zu,", i ? "," : "", n);
        tsr__put_json(out, words->texts[i] + n);
        fputc(']', out);
        before = words->texts[i];
    }
    fputc(']', out);
}

void tsr__words_fini(struct tsr__words *words)
{
    tsr_arena_fini(&words->arena);
    free(words->texts);
    free(words->next);
    tsr_map_fini(&words->first);
    *words = (struct tsr__words){.n = 0};
}
