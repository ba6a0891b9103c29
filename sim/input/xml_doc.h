/* xml_doc.h: an XML file as a flat list of elements in document order. Private to sim/.
 *
 * Failures are TSR_ECONFIG and one line that begins with FILE:LINE.
 */
#ifndef TSR_SIM_XML_DOC_H
#define TSR_SIM_XML_DOC_H

#include "engine/program/program.h"

struct tsr__element {
    const char *name;
    const char *const *attributes; /* name, value, ..., NULL */
    uint32_t parent;               /* index; TSR_NO_ID: the root */
    int line;
};

struct tsr__xml {
    const char *path; /* borrowed */
    struct tsr_arena arena;
    struct tsr__element *items;
    size_t n, cap;
};

/* Errors: TSR_ECONFIG for a file that is missing, too large or not well-formed, TSR_EUNSUPPORTED in
 * a build without expat. On failure nothing is to be closed. */
tsr_status tsr__xml_open(const char *path, struct tsr__xml *xml) TSR_MUST_USE;
void tsr__xml_close(struct tsr__xml *xml);
/* NULL if the element has no such attribute. */
const char *tsr__xml_attribute(const struct tsr__element *element, const char *name);
/* FILE:LINE: <name>: and the text. */
tsr_status tsr__xml_fail(const struct tsr__xml *xml, uint32_t element, const char *fmt, ...)
    TSR_PRINTF(3, 4);
/* An attribute that is a number in [low, high]. */
tsr_status tsr__xml_number(const struct tsr__xml *xml, uint32_t element, const char *attribute,
                           double low, double high, double *out) TSR_MUST_USE;

#endif
