/* row_json.h: a row as JSON and back, exactly: what rows/STRATEGY.row (compare --part) and
 * plan.resume keep between two runs of the program.
 *
 * A table names each member of a structure with its place and its type. What is read may have been
 * made by hand: a key that no member has, another type, a number outside its limits and a text
 * without room are refused. Members that are zero are left out.
 */
#ifndef TSR_STUDY_ROW_JSON_H
#define TSR_STUDY_ROW_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* INTEGER: signed or unsigned, of 1, 4 or 8 bytes. REAL: a text of strtod(), without rounding.
 * TEXT: bytes below 0x80 are themselves, others the character of that number, so that any bytes
 * pass. LIST: structures. */
enum tsr_member_kind { TSR_MEMBER_INTEGER, TSR_MEMBER_REAL, TSR_MEMBER_TEXT, TSR_MEMBER_LIST };

/* A table of members ends with a NULL name. */
struct tsr_member {
    const char *name;
    enum tsr_member_kind kind;
    size_t at, bytes;            /* place and size in the structure; LIST: of all elements */
    long long least, most;       /* INTEGER of less than 8 bytes */
    const struct tsr_member *of; /* LIST: members of an element */
    size_t n;                    /* LIST: elements */
};

/* The lines of a table: the type follows from the member. */
#define TSR_MEMBER_IS(type, field)                                                                \
    {                                                                                             \
        .name = #field, .at = offsetof(type, field), .bytes = sizeof(((type *)0)->field),       \
        .kind = _Generic(((type *)0)->field, double                                             \
                         : TSR_MEMBER_REAL, char *                                              \
                         : TSR_MEMBER_TEXT, default                                             \
                         : TSR_MEMBER_INTEGER),                                                 \
        .least = _Generic(((type *)0)->field, int : INT32_MIN, default : 0),                    \
        .most = _Generic(((type *)0)->field, bool : 1, uint8_t : UINT8_MAX, int : INT32_MAX,    \
                         default : UINT32_MAX) \
    }
#define TSR_MEMBER_WITHIN(type, field, lowest, highest)                                   \
    {                                                                                     \
        .name = #field, .at = offsetof(type, field), .bytes = sizeof(((type *)0)->field), \
        .kind = TSR_MEMBER_INTEGER, .least = (lowest), .most = (highest)                  \
    }
#define TSR_MEMBER_LIST_OF(type, field, members, count)                                   \
    {                                                                                     \
        .name = #field, .at = offsetof(type, field), .bytes = sizeof(((type *)0)->field), \
        .kind = TSR_MEMBER_LIST, .of = (members), .n = (count)                            \
    }

/* The members of struct tsr_row; a new one has a line there. */
extern const struct tsr_member tsr_row_members[];

/* Returns the members of *from as a line of JSON with its newline, to be freed; NULL: out of
 * memory. */
char *tsr_members_line(const struct tsr_member *members, const void *from);
/* Fills the members of *to, which is all zero. False: the value is no such object; *to then has
 * some of them. */
bool tsr_members_unpack(const struct tsr_member *members, const json_t *from, void *to);

#endif
