/* mutate.h: planted defects: every small change of a kind to the third iteration of rank 0. */
#ifndef TSR_TEST_MUTATE_H
#define TSR_TEST_MUTATE_H

#include "tests/check/study/families.h"

enum mutation_kind {
    DROP_NUMBER,    /* all waits Wk */
    DROP_WAIT,      /* a stream does not wait */
    DROP_HOST_WAIT, /* the host does not (HOST_WAIT, HOST_READ) */
    DROP_RECORD,    /* an event is not recorded, and waited for all the same */
    DROP_EVENT,     /* neither recorded nor waited for */
    EARLY_RECORD,   /* before the stream's latest work */
    EARLY_FREE,     /* right behind the last use that was issued, past the waits behind it */
    EARLIER_FREE,   /* right before that use */
    DROP_FREE,
    OTHER_STREAM,    /* work on another stream than its own */
    SHORT_OPERAND,   /* half of it */
    SHIFTED_OPERAND, /* by half of it */
    SWAPPED_CALLS,   /* two calls that follow each other on a communicator */
    DROP_CALL,       /* a call that this rank does not make */
    SIZED_CALL,      /* a call of half as many bytes as the other ranks' */
    N_STUDIED_KINDS, /* of schedules, which two opinions judge; those of values follow */
    DROP_OPERAND = N_STUDIED_KINDS,
    OTHER_SLOT,   /* two operands of a kernel in each other's slots */
    OTHER_BUFFER, /* an operand in another buffer that is as large, and lives */
    N_MUTATION_KINDS
};
const char *mutation_name(int kind);

struct mutation {
    enum mutation_kind kind;
    size_t at;     /* instruction of the sequence of rank 0 */
    size_t second; /* SWAPPED_CALLS: the other; OTHER_STREAM: the stream; operands:
                      which; DROP_NUMBER: k */
};

/* A mutated sequence; owns its array (reused from one to the next) and one list of operands. */
struct mutant {
    struct tsr_instr *v;
    struct tsr_operand *operands;
    size_t cap_operands, cap;
    struct sequence sequence;
};

/* All mutations of the third iteration, of schedules or of both; the caller frees the array. */
struct mutation *mutations_of(const struct recorded *r, bool with_values, size_t *n);
/* False: nothing would change. */
bool mutate(const struct recorded *r, const struct mutation *m, struct mutant *out);
void mutant_fini(struct mutant *m);

/* Which of the waits W1 ... W15 of engine/SEMANTICS.md an instruction is; 0: none of them. */
enum { N_WAITS = 16 };
int wait_number(const struct sequence *s, size_t i);

#endif
