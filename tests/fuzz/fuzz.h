/* fuzz.h: parsers as targets of a fuzzer: each takes any bytes, and neither crashes, leaks, takes a
 * second nor 256 MB. fuzz.c runs one of them: under libFuzzer, or (replay.c) over files.
 */
#ifndef TSR_TESTS_FUZZ_H
#define TSR_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tsr_fuzz_target {
    const char *name;
    void (*run)(const uint8_t *data, size_t n);
    const char *dictionary; /* words of its format: dictionary/NAME */
    bool (*begin)(void);    /* files that it needs beside; NULL: none */
};

/* Each ends with a target without a name. */
extern const struct tsr_fuzz_target tsr_fuzz_texts[], tsr_fuzz_json[], tsr_fuzz_tables[],
    tsr_fuzz_files[], tsr_fuzz_wire[], tsr_fuzz_traced[];
const struct tsr_fuzz_target *tsr_fuzz_find(const char *name); /* NULL: none */
/* The i-th of all; NULL: no more. */
const struct tsr_fuzz_target *tsr_fuzz_at(size_t i);

/* Begins a target: its folder, where stdout goes, its files. False (and says why): it cannot run.
 */
bool tsr_fuzz_begin(const struct tsr_fuzz_target *target);
/* One input within the limits; ends the process with SIGABRT, and says why, if it leaves them. */
void tsr_fuzz_once(const struct tsr_fuzz_target *target, const uint8_t *data, size_t n);
void tsr_fuzz_end(void); /* removes the folder */

/* ---- for targets ----------------------------------------------------------------------------- */

/* Writes a file of the target's folder; its path, which lasts. */
const char *tsr_fuzz_file(const char *name, const uint8_t *data, size_t n);
/* The same of a text. */
const char *tsr_fuzz_text_file(const char *name, const char *text);
/* Copies the files of a folder of the source tree whose names end in `ending` to the target's. */
bool tsr_fuzz_copy(const char *folder, const char *ending);
/* The bytes with a 0 behind them, which the caller frees. */
char *tsr_fuzz_string(const uint8_t *data, size_t n);

#endif
