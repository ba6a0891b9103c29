/* literals.h: writes texts of users as literals of the languages that this program's files are in.
 *
 * Names of strategies, modules, models, clusters and files may hold anything. Each language has one
 * function here (Python: experiments/study/code/text.h; YAML: tsr_yaml_quote() of
 * config/settings.h) through which such a text enters a file, so that a reader of the language
 * finds one literal, and no code. tests/code/literals.py refuses other ways.
 *
 * Characters that a terminal must not receive are escaped (sim/base/text.h); only JSON and the
 * shell give them back.
 */
#ifndef TSR_STUDY_LITERALS_H
#define TSR_STUDY_LITERALS_H

#include <stdio.h>

/* Writes a field of CSV, quoted and marked as a text if it must be (csv.h). */
void tsr__put_csv(FILE *out, const char *text);
/* Writes a field that a script of gnuplot takes apart, whose strcol() ends at a comma even inside
 * quotes: ", " becomes "+", other commas ";", double quotes single ones, controls blanks; marked as
 * a text as in the other tables. */
void tsr__put_plain(FILE *out, const char *text);
/* Writes a string of JSON with its quotes. */
void tsr__put_json(FILE *out, const char *text);
/* Writes a string of gnuplot's language with its quotes. */
void tsr__put_gnuplot(FILE *out, const char *text);
/* Writes a word of a shell, quoted if it needs to be. */
void tsr__put_word(FILE *out, const char *word);
/* Returns such a word, which the caller frees; NULL when out of memory. */
char *tsr_shell_text(const char *word);

#endif
