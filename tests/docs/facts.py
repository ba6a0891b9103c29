#!/usr/bin/env python3
"""facts.py [--write]: every figure with a unit in README.md and in the pages under experiments/ is one that the program gives, or
has a source.

- A code block that begins with `$ tessera ...` is a transcript: the command is run, and each line of the block is in its output,
  wherever that breaks lines; "..." stands for what is left out.
- Tables between `<!-- X.py -->` or `<!-- X, by make.sh -->` and `<!-- end -->` are made by that script, which has a check.
- What is left has a line in facts.tsv: page, heading, source, and the figures under that heading in their order. A figure that
  is changed or added there is noticed; --write takes it over, and the source has to be looked at again.

Environment: TESSERA, the program. Exit status: 0, 1 a figure is not as it is said, 2 usage.
"""
import os
import re
import shlex
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
FACTS = os.path.join("tests", "docs", "facts.tsv")
UNIT = (r"(?:%|GiB|MiB|KiB|TiB|GB/s|TB/s|MB/s|GB|MB|TB|KB|ms|µs|us|s|TFLOP/s|TFLOP|tokens/s(?:/GPU)?|words/s|points?|nats|W|Gb/s|Gbit/s|"
        r"minutes?|seconds?|hours?|days?|billion|million|times)")
FIGURE = re.compile(r"(?<![\w.,/-])[-+~<>]?\d[\d,]*(?:\.\d+)?\s?" + UNIT + r"(?![\w/])")


def pages():
    listed = subprocess.run(["git", "ls-files", "README.md", "experiments/*.md"], capture_output=True, text=True, check=False)
    found = listed.stdout.split() if listed.returncode == 0 else []
    if not found: # an archive without a repository
        found = ["README.md"] + [os.path.join(at, name) for at, _, names in os.walk("experiments") for name in names if name.endswith(".md")]
    return sorted(found)


def split_page(path):
    """[(heading, text)] without what scripts make, and [[line, command, lines]] of transcripts."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"<!-- [\w, .]*(?:\.py|make\.sh) -->\n.*?<!-- end -->", "", text, flags=re.S)
    sections, transcripts, block, heading = [["", []]], [], None, ""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip().startswith("```"):
            block = None if block is not None else []
            continue
        if block is not None:
            block.append(line)
            if len(block) == 1 and is_transcript(line):
                transcripts.append([number, line[2:], block])
            if is_transcript(block[0]):
                continue
        elif line.startswith("#"):
            heading = line.lstrip("# ")
            sections.append([heading, []])
            continue
        sections[-1][1].append(line)
    return [(name, " ".join(lines)) for name, lines in sections], transcripts


def is_transcript(line):
    """Of files that are there: a reader's own cannot be run."""
    named = re.search(r"([\w./-]+\.yaml)", line)
    return line.startswith("$ tessera ") and bool(named) and os.path.exists(named[1])


def squeeze(line):
    return " ".join(line.split())


def check_transcript(path, transcript, program, bad):
    number, command, lines = transcript
    while command.endswith("\\"): # it goes on in the next line
        lines = lines[1:]
        command = command[:-1] + lines[0]
    done = subprocess.run([program] + shlex.split(command)[1:], capture_output=True, text=True, check=False,
                          env=dict(os.environ, COLUMNS="120"))
    said = squeeze(done.stdout + done.stderr)
    for line in lines[1:]:
        if squeeze(line) not in said and squeeze(line) != "...":
            bad.append("%s:%d: %s prints no line: %s" % (path, number, command, line))


def main():
    os.chdir(ROOT)
    write, program = sys.argv[1:] == ["--write"], os.environ["TESSERA"]
    bad, now, transcripts = [], {}, []
    for path in pages():
        sections, found = split_page(path)
        transcripts += [(path, transcript) for transcript in found]
        for heading, text in sections:
            figures = "; ".join(squeeze(figure) for figure in FIGURE.findall(text))
            if figures:
                key = (path, heading)
                now[key] = "; ".join(filter(None, [now.get(key), figures]))
    with open(FACTS, encoding="utf-8") as file:
        head, *lines = file.read().rstrip("\n").split("\n")
    known = {tuple(line.split("\t")[:2]): line.split("\t")[2:] for line in lines}
    if write:
        rows = ["\t".join([*key, known.get(key, ["?"])[0], now[key]]) for key in sorted(now)]
        with open(FACTS, "w", encoding="utf-8") as file:
            file.write("\n".join([head] + rows) + "\n")
        return 0
    for key in sorted(set(now) | set(known)):
        source, figures = known.get(key, ["", ""])
        if now.get(key, "") != figures:
            bad.append("%s, \"%s\": figures %s; facts.tsv has %s: take the new ones over with tests/docs/facts.py --write, with a source"
                       % (*key, now.get(key, "none"), figures or "none"))
        elif len(source) < 4:
            bad.append("%s, \"%s\": its figures have no source in facts.tsv" % key)
    for path, transcript in transcripts:
        check_transcript(path, transcript, program, bad)
    for line in bad:
        print("FAILED:", line)
    print("%d headings with figures, %d transcripts" % (len(now), len(transcripts)))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
