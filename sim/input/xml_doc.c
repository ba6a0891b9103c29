/* xml_doc.c: reads an XML file with expat, element by element. */
#include "sim/input/xml_doc.h"
#include "sim/base/files.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *tsr__xml_attribute(const struct tsr__element *element, const char *name)
{
    for (size_t i = 0; element->attributes[i]; i += 2)
        if (!strcmp(element->attributes[i], name))
            return element->attributes[i + 1];
    return NULL;
}

tsr_status tsr__xml_fail(const struct tsr__xml *xml, uint32_t element, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return tsr_fail(TSR_ECONFIG, "%s:%d: <%s>: %s", xml->path, xml->items[element].line,
                    xml->items[element].name, text);
}

tsr_status tsr__xml_number(const struct tsr__xml *xml, uint32_t element, const char *attribute,
                           double low, double high, double *out)
{
    const char *text = tsr__xml_attribute(&xml->items[element], attribute);
    char *end = NULL;
    if (!text)
        return tsr__xml_fail(xml, element, "has no attribute %s, allowed a number from %g to %g",
                             attribute, low, high);
    *out = strtod(text, &end);
    if (end != text && !*end && *out >= low && *out <= high)
        return TSR_OK;
    return tsr__xml_fail(xml, element, "%s: found \"%.80s\", allowed a number from %g to %g",
                         attribute, text, low, high);
}

#ifdef TSR_HAVE_EXPAT
#include <expat.h>

#include "sim/base/text_check.h"

enum { MAX_ELEMENTS = 1 << 20 };

struct reader {
    struct tsr__xml *xml;
    XML_Parser parser;
    uint32_t open; /* the element that is open; TSR_NO_ID: none */
    int depth;
    tsr_status status; /* a failure of our own */
};

/* The first failure of our own ends the reading. */
static void stop(struct reader *r, tsr_status status)
{
    if (r->status == TSR_OK)
        r->status = status;
    XML_StopParser(r->parser, XML_FALSE);
}

static tsr_status too_much(const struct reader *r, const char *what)
{
    return tsr_fail(TSR_ECONFIG, "%s:%d: %s", r->xml->path,
                    (int)XML_GetCurrentLineNumber(r->parser), what);
}

/* Copies "name, value, ..., NULL". */
static const char *const *copy_attributes(struct tsr_arena *arena, const char **from)
{
    size_t n = 0;
    while (from[n])
        n++;
    const char **out = tsr_arena_alloc(arena, (n + 1) * sizeof *out);
    for (size_t i = 0; out && i < n; i++) {
        out[i] = tsr_arena_strdup(arena, from[i]);
        if (!out[i])
            return NULL;
    }
    if (out)
        out[n] = NULL;
    return out;
}

static void start_element(void *user, const char *name, const char **attributes)
{
    struct reader *r = user;
    struct tsr__xml *xml = r->xml;
    if (xml->n >= MAX_ELEMENTS || ++r->depth > TSR_TEXT_DEPTH) {
        char what[64];
        if (xml->n >= MAX_ELEMENTS)
            snprintf(what, sizeof what, "more than %d elements", (int)MAX_ELEMENTS);
        else
            snprintf(what, sizeof what, "nested deeper than %d levels", (int)TSR_TEXT_DEPTH);
        stop(r, too_much(r, what));
        return;
    }
    struct tsr__element made = {.name = tsr_arena_strdup(&xml->arena, name),
                                .attributes = copy_attributes(&xml->arena, attributes),
                                .parent = r->open,
                                .line = (int)XML_GetCurrentLineNumber(r->parser)};
    if (!made.name || !made.attributes || !TSR_PUSH(xml->items, xml->n, xml->cap, made)) {
        stop(r, tsr_no_memory(xml->path));
        return;
    }
    r->open = (uint32_t)xml->n - 1;
}

static void end_element(void *user, const char *name)
{
    struct reader *r = user;
    (void)name;
    r->depth--;
    if (r->open != TSR_NO_ID)
        r->open = r->xml->items[r->open].parent;
}

/* Entities of a file's own can grow a line into gigabytes, and name other files. */
static void XMLCALL declare_entity(void *user, const XML_Char *name, int is_parameter,
                                   const XML_Char *value, int value_bytes, const XML_Char *base,
                                   const XML_Char *system_id, const XML_Char *public_id,
                                   const XML_Char *notation)
{
    struct reader *r = user;
    (void)name, (void)is_parameter, (void)value, (void)value_bytes, (void)base;
    (void)system_id, (void)public_id, (void)notation;
    stop(r, too_much(r, "found a declaration of an entity; allowed: none"));
}

static tsr_status parse(struct reader *r)
{
    char *text;
    size_t n;
    TSR_TRY(tsr_text_load(r->xml->path, &text, &n)); /* fits an int */
    XML_SetUserData(r->parser, r);
    XML_SetElementHandler(r->parser, start_element, end_element);
    XML_SetEntityDeclHandler(r->parser, declare_entity);
    enum XML_Status parsed = XML_Parse(r->parser, text, (int)n, 1);
    free(text);
    if (r->status != TSR_OK)
        return r->status;
    if (parsed == XML_STATUS_OK)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "%s:%d: found %s, allowed a well-formed XML file", r->xml->path,
                    (int)XML_GetCurrentLineNumber(r->parser),
                    XML_ErrorString(XML_GetErrorCode(r->parser)));
}

tsr_status tsr__xml_open(const char *path, struct tsr__xml *xml)
{
    *xml = (struct tsr__xml){.path = path};
    tsr_arena_init(&xml->arena);
    struct reader r = {.xml = xml, .parser = XML_ParserCreate(NULL), .open = TSR_NO_ID};
    tsr_status status = r.parser ? parse(&r) : tsr_no_memory(path);
    XML_ParserFree(r.parser);
    if (status != TSR_OK)
        tsr__xml_close(xml);
    return status;
}
#else
tsr_status tsr__xml_open(const char *path, struct tsr__xml *xml)
{
    *xml = (struct tsr__xml){.path = path};
    return tsr_fail(TSR_EUNSUPPORTED, "%s: this build reads no XML: expat was not found", path);
}
#endif

void tsr__xml_close(struct tsr__xml *xml)
{
    tsr_arena_fini(&xml->arena);
    free(xml->items);
    *xml = (struct tsr__xml){0};
}
