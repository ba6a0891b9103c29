/* json_load.h: the one way to JSON documents: text that is checked (text_check.h), and no key
 * twice.
 */
#ifndef TSR_SIM_JSON_LOAD_H
#define TSR_SIM_JSON_LOAD_H

#include <jansson.h>

#include "sim/base/text_check.h"

/* A new reference; NULL with *error (which may be NULL) as jansson fills it: line and text. A text
 * that is refused before jansson sees it has its line and text there, too. `values`: how many it
 * may have, TSR_TEXT_VALUES of most. */
json_t *tsr_json_loadb(const char *text, size_t n, size_t values, json_error_t *error);
/* The same of a file, of at most TSR_TEXT_BYTES. Errors: TSR_ECONFIG: "PATH: cannot be opened:
 * ...", "PATH:LINE: ..."; TSR_ENOMEM. */
tsr_status tsr_json_load(const char *path, size_t values, json_t **out) TSR_MUST_USE;

#endif
