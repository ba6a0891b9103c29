/* replay.c: targets over files, without a fuzzer: replay TARGET FILE..., or replay --list: a line
 * for each target with its dictionary. Ends with SIGABRT at a file that breaks its limits, whose
 * name is the last line then.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"

static int list(void)
{
    const struct tsr_fuzz_target *target;
    for (size_t i = 0; (target = tsr_fuzz_at(i)); i++)
        printf("%s %s\n", target->name, target->dictionary);
    return 0;
}

/* An exact copy: reading beyond its end is seen by sanitizers. */
static uint8_t *read_file(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    long size = -1;
    if (file && fseek(file, 0, SEEK_END) == 0)
        size = ftell(file);
    if (size >= 0)
        data = malloc(size ? (size_t)size : 1);
    *n = size > 0 ? (size_t)size : 0;
    if (data && (fseek(file, 0, SEEK_SET) != 0 || fread(data, 1, *n, file) != *n)) {
        free(data);
        data = NULL;
    }
    if (file)
        fclose(file);
    return data;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--list"))
        return list();
    const struct tsr_fuzz_target *target = argc > 2 ? tsr_fuzz_find(argv[1]) : NULL;
    if (!target) {
        fprintf(stderr, "usage: %s --list | TARGET FILE...\n", argv[0]);
        return 2;
    }
    if (!tsr_fuzz_begin(target))
        return 1;
    for (int i = 2; i < argc; i++) {
        size_t n = 0;
        uint8_t *data = read_file(argv[i], &n);
        if (!data) {
            perror(argv[i]);
            return 1;
        }
        fprintf(stderr, "%s\n", argv[i]);
        tsr_fuzz_once(target, data, n);
        free(data);
    }
    tsr_fuzz_end();
    return 0;
}
