/* json_read.h: what a report's JSON objects say under a key, for those who print them. */
#ifndef TSR_CLI_JSON_READ_H
#define TSR_CLI_JSON_READ_H

#include <jansson.h>
#include <stdbool.h>

/* Borrowed from `object`; "" if the key is missing, null or no string. */
const char *tsr_json_text(const json_t *object, const char *key);
/* 0 if the key is missing or no integer. */
json_int_t tsr_json_int(const json_t *object, const char *key);
/* False if the key is missing. */
bool tsr_json_flag(const json_t *object, const char *key);

#endif
