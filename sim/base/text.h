/* text.h: names and texts that others wrote, as they may stand in a line for people.
 *
 * What comes from a file, a file's name or an option may hold anything. Printed as it is, an ESC
 * would move the cursor of a terminal, a newline would break the one line of an error, and marks of
 * writing direction would show another name than the one that is there. Escaped are:
 *
 *   C0 and DEL                       \n, \r, \t, \x1b, \x7f
 *   C1 (U+0080 to U+009F)            \u0085
 *   line and paragraph separators    \u2028, \u2029
 *   marks of direction               \u061c, \u200e, \u200f, \u202a to \u202e, \u2066 to \u2069
 *   bytes that are no UTF-8          \xff
 *
 * All else stays: é and 漢字 are names. A backslash stays one, too, so that what was escaped once
 * is not changed by a second time.
 */
#ifndef TSR_BASE_TEXT_H
#define TSR_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Into `room` bytes (at least 8) with the 0; what does not fit is cut between characters, and ends
 * in "...". Returns the length. `out` and `text` are different memory. */
size_t tsr_text_show(char *out, size_t room, const char *text);

/* To a stream. The second leaves ends of lines as they are: for text of several lines. */
void tsr_text_put(FILE *out, const char *text);
void tsr_text_put_lines(FILE *out, const char *text);

/* For an argument of printf(). Longer texts are cut: the first is for names. */
struct tsr_shown {
    char text[160];
};
struct tsr_shown tsr_show(const char *text);
struct tsr_shown_line {
    char text[1024];
};
struct tsr_shown_line tsr_show_line(const char *text);

/* Columns that the escaped text takes on a terminal, counted in characters. */
size_t tsr_text_columns(const char *text);

/* The next character as it may be shown, without a 0; moves *text behind it. *escaped: it is not as
 * it was. 0: the end. */
enum { TSR_TEXT_PIECE = 8 };
size_t tsr_text_next(const char **text, char out[TSR_TEXT_PIECE], bool *escaped);

/* Length of the well-formed UTF-8 character at `text`, of `left` bytes at least 1, which is stored
 * in *code; 0: none begins there. Overlong forms, surrogates and what lies beyond U+10FFFF are
 * none; a 0 is a character of one byte. Of a text that ends with a 0, TSR_TEXT_LONGEST bytes are
 * never too many. */
enum { TSR_TEXT_LONGEST = 4 };
size_t tsr_text_character(const char *text, size_t left, unsigned *code);

#endif
