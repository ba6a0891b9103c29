/* pickle_codes.h: the operations of pickles that only make data, as Python's pickletools has them.
 * Private to what writes and reads pickles.
 */
#ifndef TSR_STUDY_PICKLE_CODES_H
#define TSR_STUDY_PICKLE_CODES_H

enum {
    OP_MARK = '(',
    OP_STOP = '.',
    OP_POP = '0',
    OP_POP_MARK = '1',
    OP_DUP = '2',
    OP_FLOAT = 'G', /* big-endian */
    OP_INT32 = 'J',
    OP_UINT8 = 'K',
    OP_UINT16 = 'M',
    OP_NONE = 'N',
    OP_TEXT = 'X',
    OP_APPEND = 'a',
    OP_DICT_OF = 'd',
    OP_APPENDS = 'e',
    OP_GET = 'h',
    OP_LONG_GET = 'j',
    OP_LIST_OF = 'l',
    OP_PUT = 'q',
    OP_LONG_PUT = 'r',
    OP_SET_ITEM = 's',
    OP_TUPLE = 't',
    OP_SET_ITEMS = 'u',
    OP_LIST = ']',
    OP_DICT = '}',
    OP_EMPTY_TUPLE = ')',
    OP_PROTO = 0x80,
    OP_TUPLE_1 = 0x85,
    OP_TUPLE_2 = 0x86,
    OP_TUPLE_3 = 0x87,
    OP_TRUE = 0x88,
    OP_FALSE = 0x89,
    OP_LONG = 0x8a,  /* length in a byte, then two's complement */
    OP_LONG4 = 0x8b, /* length in four */
    OP_SHORT_TEXT = 0x8c,
    OP_LONG_TEXT = 0x8d,
    OP_REMEMBER = 0x94,
    OP_FRAME = 0x95
};

#endif
