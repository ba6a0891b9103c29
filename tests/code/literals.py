#!/usr/bin/env python3
"""A text of a user enters a written file through the writer of the file's language, and nowhere else.

In the files that write files, each %s of a format takes a word of the program: a literal, a word of a table that the
list below names, or text that the writers have made (experiments/study/base/literals.h, experiments/study/code/text.h).
So do the arguments of fputs() and tsr_code_add_bytes(). One line for each that does not; exit status 1 if there is any.
"""
import glob
import os
import re
import sys

SOURCE = os.environ.get("TSR_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STUDY = os.path.join(SOURCE, "experiments", "study")
WRITERS = ("code/*.c", "detail/*.c", "html/*.c", "report/report_rows.c", "simulate/oom.c", "compare/part.c")
# The format's place among the arguments.
CALLS = {"fprintf": 1, "tsr_code_add": 1, "tsr_code_statement": 2, "fputs": 0, "tsr_code_add_bytes": 1}
# What gives words of the program alone: functions and tables.
WORDS = re.compile(r"""(tsr_code_str|tsr_phase_name|tsr_category_name|tsr_exposure_key|tsr_exposure_name|tsr_fits_word|tsr__version|
    tsr_instr_kind_name|tsr_dtype_name|tsr_overlap_kind_key|torch_dtype|data_mesh|fsdp1_strategy|reshard_of)\(.*\)$|
    (prefetch|reshard|variants|section_names|endings|tsr_words_code|about)\[.*\]$|TSR_VERSION$""", re.X)
# FILE: expressions, and where their words come from.
FIXED = {
    "compare/part.c": ("head", "line"),  # a hash; one line of JSON that jansson has written
    "code/code.c": ("listed", "w.file", "shown.text"),  # name_file() makes it of letters; tsr_show(), in Markdown
    "code/keys.c": ("key", "value"),  # of comments, which tsr_code_comment() escapes
    "code/runs.c": ("name", "calls[i + k].more"),  # "shard"; reshard_text()
    "code/text.c": ("text", "end", "names", "word", "piece", "fqn", "name", "first_name"),  # the writer itself
    "code/torch.c": ("names.s", "mesh->name[i]", "function", "method"),  # replicate, shard, tp; names of PyTorch
    "code/torch_blocks.c": ("text", "around", "options"),
    "code/torch_older.c": ("comma", "policy.s"),
    "detail/report_kernels.c": ("view->tables->streams[instr->stream].name",),  # the engine's
    "detail/report_memory.c": ("key", "name"),  # tsr__category_key(), tsr__phase_label()
    "detail/report_overlap.c": ("row->phase",),  # tsr_phase_name()
    "detail/report_run.c": ("key",),  # tsr__category_key()
    "detail/report_timeline.c": ("w->panel", "box->kind"),
    "detail/report_trace.c": ("key", "cat", "what", "name"),  # of callers, who give literals
    "html/html_page.c": ("words", "more"),  # a subcommand; option_text()
    "html/html_study.c": ("option", "more"),
    "html/html_view.c": ("name",),  # tsr__phase_label()
    "report/report_rows.c": ("columns[c].name", "key"),
    "simulate/oom.c": ("key",),
}


def arguments_of(text, start):
    """The arguments of the call whose bracket opens before `start`, and where it ends."""
    depth, begin, out, i = 1, start, [], start
    while depth:
        c = text[i]
        if c in "\"'":
            i += 1
            while text[i] != c:
                i += 1 + (text[i] == "\\")
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        if depth == 0 or (c == "," and depth == 1):
            out.append(" ".join(text[begin:i].split()))
            begin = i + 1
        i += 1
    return out


def is_literal(text):
    return re.fullmatch(r'("(\\.|[^"\\])*"|\s|PRI[A-Za-z0-9]+)+', text) is not None


def is_fixed(path, text):
    """A literal, a choice of fixed texts, or one of the words above."""
    text = text.strip()
    if text in FIXED.get(path, ()) or is_literal(text) or text == "NULL" or WORDS.match(text):
        return True
    if text.startswith("(") and len(arguments_of(text, 1)) == 1 and text.endswith(")"):
        return is_fixed(path, text[1:-1])
    choice = re.match(r"[^?\"]*(?:\"[^\"]*\"[^?\"]*)*\?(.*)$", text)
    if not choice:
        return False
    depth, rest, quoted = 0, choice.group(1), False
    for i, c in enumerate(rest):
        quoted ^= c == '"' and rest[i - 1] != "\\"
        if quoted:
            continue
        depth += (c in "(?[") - (c in ")]")
        if c == ":":
            if depth == 0:
                return is_fixed(path, rest[:i]) and is_fixed(path, rest[i + 1:])
            depth -= 1
    return False


def check(path, text):
    bad = []
    text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
    for call in re.finditer(r"\b(%s)\(" % "|".join(CALLS), text):
        arguments = arguments_of(text, call.end())
        line = text.count("\n", 0, call.start()) + 1
        first = CALLS[call.group(1)]
        if "const char" in arguments[0] or len(arguments) <= first or "struct" in arguments[0]:
            continue  # its declaration
        if call.group(1) in ("fputs", "tsr_code_add_bytes"):
            texts = arguments[first:first + 1]
        else:
            format, values = arguments[first], iter(arguments[first + 1:])
            texts = [] if is_literal(format) or is_fixed(path, format) else [format]
            for kind in re.findall(r"%[-+ #0]*(\*|\d+)?(?:\.(\*|\d+))?(?:\" ?PRI\w+ ?\"|h{0,2}l{0,2}z?t?j?([a-zA-Z%]))", format):
                for width in kind[:2]:
                    if width == "*":
                        next(values, None)
                value = "" if kind[2] == "%" else next(values, "")
                if kind[2] == "s":
                    texts.append(value)
        bad += [f"{path}:{line}: {call.group(1)}: {t}" for t in texts if not is_fixed(path, t)]
    return bad


bad = []
for pattern in WRITERS:
    files = sorted(glob.glob(os.path.join(STUDY, pattern)))
    if not files:
        bad.append(f"{pattern}: there is no such file")
    for file in files:
        bad += check(os.path.relpath(file, STUDY), open(file).read())
for line in bad:
    print(line)
sys.exit(1 if bad else 0)
