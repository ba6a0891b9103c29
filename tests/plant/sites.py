#!/usr/bin/env python3
"""Every place in engine/ that waits, releases or frees, and copies of the sources in which each can be
switched off (plant.h).

  sites.py list [ROOT]             number, file, line, function, call; tabs between them
  sites.py instrument FILE OUT     a copy of one source
A site is known by file, function, call and, where these are the same, its turn: lines move, it does not.
"""
import os
import re
import sys

# All return nothing.
CALLS = ("tsr__wait_stream tsr__wait_event tsr__wait_work tsr__host_wait_event tsr__host_wait_all "
         "tsr__host_waits tsr__storage_release tsr__storage_unback tsr__storage_release_after "
         "tsr__storage_unback_after tsr_release tsr__drop_reduce_inputs tsr__pinned_settle "
         "tsr__deferral_settle tsr__host_free tsr__direct_settle "
         "tsr__direct_discard tsr__fsdp1_zero_grad tsr__tensor_free order tsr__reducer_order "
         "tsr__reducer_wait drop").split()
# Of these the last argument points to what is released.
RELEASES = "tsr__storage_release tsr__storage_release_after drop".split()
# Waits that are put together by hand: the instruction's name says it.
EMITTED = ("read", "wait")
FOLDERS = "graph layout ops compile models fsdp fsdp1 ddp step replay".split()
CALL = re.compile(r"\b(?:(" + "|".join(CALLS) + r")|(tsr__emit))\(")
HEAD = re.compile(r"^(?:[A-Za-z_].*[ *])?([A-Za-z_]\w*)\(")


def sources(root):
    for folder in FOLDERS:
        path = os.path.join(root, "engine", folder)
        for name in sorted(os.listdir(path)):
            if name.endswith(".c"):
                yield f"engine/{folder}/{name}"
    yield "engine/engine.c"


def end_of(text, at):
    """Behind the parenthesis that closes the call."""
    depth = 0
    while True:
        c = text[at]
        depth += (c == "(") - (c == ")")
        at += 1
        if c == ")" and depth == 0:
            return at


def in_comment(text, at):
    begin = text.rfind("/*", 0, at)
    return begin >= 0 and text.find("*/", begin) > at


def sites_of(root, path):
    """(offset, line, function, call, name) of each site of a file."""
    with open(os.path.join(root, path), encoding="utf-8") as file:
        text = file.read()
    found, heads, at = [], [], 0
    for line in text.splitlines(keepends=True):
        head = HEAD.match(line)
        if head and line[0] not in " \t#/*" and not line.startswith(("TSR_", "typedef")):
            heads.append((at, head.group(1), at + head.start(1)))
        at += len(line)
    definitions = {start for _, _, start in heads}
    for m in CALL.finditer(text):
        if m.start() in definitions or in_comment(text, m.start()):
            continue
        call = re.sub(r"\s+", " ", text[m.start():end_of(text, m.start())])
        name = m.group(1) or m.group(2)
        if name == "tsr__emit" and not re.fullmatch(r"tsr__emit\(\w+, &(%s)\)" % "|".join(EMITTED), call):
            continue
        function = next((f for a, f, _ in reversed(heads) if a <= m.start()), "")
        found.append((m.start(), text.count("\n", 0, m.start()) + 1, function, call, name))
    return text, found


def all_sites(root):
    number = 0
    for path in sources(root):
        turns = {}
        for offset, line, function, call, name in sites_of(root, path)[1]:
            number += 1
            turn = turns[function, call] = turns.get((function, call), 0) + 1
            yield number, path, line, function, call if turn == 1 else f"{call} #{turn}", offset, name


def arguments(call):
    """The arguments of a call, cut at commas outside of parentheses."""
    inner, depth, out = call[call.index("(") + 1:-1], 0, [""]
    for c in inner:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            out.append("")
        else:
            out[-1] += c
    return [a.strip() for a in out]


def planted(number, name, call):
    if name in RELEASES:
        return f"TSR_PLANT_RELEASE({number}, {arguments(call)[1]}, {call})"
    return f"TSR_PLANT({number}, {call})"


def instrument(root, path, out):
    text, _ = sites_of(root, path)
    parts, last = [f'#include "tests/plant/plant.h"\n#line 1 "{path}"\n'], 0
    for number, where, _, _, _, offset, name in all_sites(root):
        if where == path:
            call = text[offset:end_of(text, offset)]
            parts += [text[last:offset], planted(number, name, call)]
            last = offset + len(call)
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with open(out, "w", encoding="utf-8") as file:
        file.write("".join(parts) + text[last:])


def main():
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    if len(sys.argv) == 4 and sys.argv[1] == "instrument":
        instrument(root, sys.argv[2], sys.argv[3])
    elif len(sys.argv) in (2, 3) and sys.argv[1] == "list":
        for number, path, line, function, call, _, _ in all_sites(sys.argv[2] if len(sys.argv) == 3 else root):
            print(number, path, line, function, call, sep="\t")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
