/* xml_doc.c: reads an XML file with expat, element by element. */
#include "sim/input/xml_doc.h"
#include "sim/base/files.h"

#include <errno.h>
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

enum { MAX_ELEMENTS = 1 << 20, CHUNK = 1 << 16 };

struct reader {
    struct tsr__xml *xml;
    XML_Parser parser;
    uint32_t open; /* the element that is open; TSR_NO_ID: none */
    bool no_memory;
};

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
    struct tsr__element made = {.name = tsr_arena_strdup(&xml->arena, name),
                                .attributes = copy_attributes(&xml->arena, attributes),
                                .parent = r->open,
                                .line = (int)XML_GetCurrentLineNumber(r->parser)};
    if (!made.name || !made.attributes || xml->n >= MAX_ELEMENTS ||
        !TSR_PUSH(xml->items, xml->n, xml->cap, made)) {
        r->no_memory = true;
        XML_StopParser(r->parser, XML_FALSE);
        return;
    }
    r->open = (uint32_t)xml->n - 1;
}

static void end_element(void *user, const char *name)
{
    struct reader *r = user;
    (void)name;
    if (r->open != TSR_NO_ID)
        r->open = r->xml->items[r->open].parent;
}

static tsr_status parse(struct reader *r, FILE *file)
{
    static const char what[] = "allowed a well-formed XML file";
    int more = 1;
    while (more) {
        void *buffer = XML_GetBuffer(r->parser, CHUNK);
        size_t n = buffer ? fread(buffer, 1, CHUNK, file) : 0;
        if (!buffer)
            return tsr_no_memory(r->xml->path);
        if (ferror(file))
            return tsr_fail(TSR_ECONFIG, "%s: cannot be read: %s", r->xml->path, strerror(errno));
        more = n > 0;
        if (XML_ParseBuffer(r->parser, (int)n, !more) == XML_STATUS_OK)
            continue;
        if (r->no_memory)
            return tsr_fail(TSR_ENOMEM, "%s: out of memory, or more than %d elements", r->xml->path,
                            (int)MAX_ELEMENTS);
        return tsr_fail(TSR_ECONFIG, "%s:%d: found %s, %s", r->xml->path,
                        (int)XML_GetCurrentLineNumber(r->parser),
                        XML_ErrorString(XML_GetErrorCode(r->parser)), what);
    }
    return TSR_OK;
}

tsr_status tsr__xml_open(const char *path, struct tsr__xml *xml)
{
    const char *why;
    FILE *file = tsr_file_stream(NULL, path, &why);
    if (!file)
        return tsr_fail(TSR_ECONFIG, "%s: cannot be opened: %s", path, why);
    *xml = (struct tsr__xml){.path = path};
    tsr_arena_init(&xml->arena);
    struct reader r = {.xml = xml, .parser = XML_ParserCreate(NULL), .open = TSR_NO_ID};
    tsr_status status;
    TSR_GOTO(done, r.parser ? TSR_OK : tsr_no_memory(path));
    XML_SetUserData(r.parser, &r);
    XML_SetElementHandler(r.parser, start_element, end_element);
    TSR_GOTO(done, parse(&r, file));
done:
    XML_ParserFree(r.parser);
    fclose(file);
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
