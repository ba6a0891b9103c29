/* text.h: text that grows, and Python statements laid out as the formatter black lays them out:
 * 88 columns, a bracket that does not fit opens onto lines of its own.
 */
#ifndef TSR_STUDY_CODE_TEXT_H
#define TSR_STUDY_CODE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/program/base.h"

enum { TSR_CODE_COLUMNS = 88 };

/* All zero: "". `failed`: memory ended, what was added since is lost; asked once at the end. */
struct tsr_code_text {
    char *s; /* NULL or with a 0 at the end */
    size_t n, cap;
    bool failed;
};

void tsr_code_add(struct tsr_code_text *to, const char *fmt, ...) TSR_PRINTF(2, 3);
void tsr_code_add_bytes(struct tsr_code_text *to, const char *text, size_t n);
void tsr_code_text_fini(struct tsr_code_text *text);
static inline const char *tsr_code_str(const struct tsr_code_text *text)
{
    return text->s ? text->s : "";
}

/* A Python statement that was written in one line, `indent` columns deep. */
void tsr_code_statement(struct tsr_code_text *to, int indent, const char *fmt, ...)
    TSR_PRINTF(3, 4);
/* A comment, broken between words; `lead` begins each line ("# "), the ones after the first also
 * have `hang` blanks. What it quotes is escaped, also "coding:" and "coding=", which in the first
 * lines of a Python file choose how the whole file is decoded (PEP 263). */
void tsr_code_comment(struct tsr_code_text *to, const char *lead, int hang, const char *fmt, ...)
    TSR_PRINTF(4, 5);

/* ---- names ----------------------------------------------------------------------------------- */

/* "text" as a Python string literal, which is one of YAML and TOML, too. */
void tsr_code_add_literal(struct tsr_code_text *to, const char *text);
/* The module `fqn` of the variable `of`: "model.layers.norm", where it has digits or no Python
 * name 'model.get_submodule("layers.0")'; "" is the variable itself. */
void tsr_code_add_module(struct tsr_code_text *to, const char *of, const char *fqn);
/* Writes the expression for the module of which `fqn`, a module or a parameter, is a child. */
void tsr_code_add_owner(struct tsr_code_text *to, const char *of, const char *fqn);
/* Writes "model.lm_head.weight = model.embed.weight": the parameter `name` of the module `owner`
 * becomes the parameter `first`. Names that Python cannot have as attributes become literals. */
void tsr_code_put_tie(struct tsr_code_text *to, int indent, const char *owner, const char *name,
                      const char *first);
/* A Python name, and no keyword. */
bool tsr_code_is_name(const char *text, size_t n);

#endif
