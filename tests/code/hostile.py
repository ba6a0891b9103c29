#!/usr/bin/env python3
"""Texts of users in generated Python, TOML, YAML, JSON, HTML, CSV, gnuplot and shell commands are literals.

A study is made twice, with names that are code in some language and with names of the same kind that are not:
strategies, modules, parameters (tied ones, too), classes, the source of a trace, titles, descriptions, clusters and
their nodes, folders and files. Everything that is written is read by its language's own parser: what is not a literal
is equal in both, and no planted command has run.
"""
import ast
import csv
import glob
import gzip
import hashlib
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

try:
    import tomllib
except ImportError:
    tomllib = None
try:
    import yaml
except ImportError:
    yaml = None

TESSERA, SOURCE = os.environ["TESSERA"], os.environ["TSR_SOURCE_DIR"]
TRACE = os.path.join(SOURCE, "tests", "golden-bridge", "shared-4ranks-accum2-bf16.trace")
HOSTILE = ['\nopen("RAN","w")#', '"+str(open("RAN","w"))+"', "'+str(open('RAN','w'))+'", "`touch RAN`", "$(touch RAN)",
           "'; touch RAN; '", "</script><img src=x onerror=alert(1)>", "<!--<script>", '=HYPERLINK("http://x")', "+1+cmd|'!A0",
           "@SUM(1)", "-1+1", "\t=1", "'=1", "\\", '\\"', "%s%n{0}", "\u2028\u0085\u202e", "\r!touch RAN\r", '"""', "'''", "|", ": #",
           "- a: b", "&a *b !!python/object/apply:os.system [id]", ',"x', "\x1b[31m", "漢é", "# coding: utf-7 +AAo-import os",
           "');system('touch RAN');('", '");system("touch RAN");("', "| touch RAN", "< touch RAN", "]]>--}}", "\n[a]\nb = 1\n"]
SHORT = "=1'\"`touch RAN`</script>\n$(touch RAN)\\" # names of clusters and nodes have up to 63 bytes
STRATEGIES = ["=A1+B2", "@SUM", "+1+cmd", "-a+1", "coding=utf_7", "None", "summary.csv", "yes"]
DRAWN = ["@SUM", "summary.csv", "yes"]
MARKED = "=+-@\t\r\n"
failures, checks = [], 0


def check(what, ok, said=""):
    global checks
    checks += 1
    if not ok:
        failures.append(f"{what}: {str(said)[-400:]}")


def make_trace(texts):
    """A recorded trace with other names of attributes, modules, parameters and classes."""
    with gzip.open(TRACE) as f:
        document = json.load(f)
    used, modules, params = 0, {0: ""}, {}

    def name():
        nonlocal used
        used += 1
        return texts[used % len(texts)].replace(".", "_") + f"-{used}"

    def joined(i, attribute):
        return f"{modules[i]}.{attribute}" if modules[i] else attribute
    for i, module in enumerate(document["modules"]):
        for place in module[2]:
            place[0] = name()
            params.setdefault(place[1], joined(i, place[0]))
        for buffer in module[3]:
            buffer[0] = name()
        for place in module[4]:
            place[0] = name()
            modules.setdefault(place[1], joined(i, place[0]))
        module[0] = modules[i]
        if module[1] not in ("ModuleList", "ModuleDict"):
            module[1] = name()
    for i, fqn in params.items():
        document["params"][i][0] = fqn
    document["model"].update({"source": "".join(texts), "class": "".join(texts)})
    said = {k: v for k, v in document.items() if k not in ("made_by", "sha256")}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    document["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    return gzip.compress(json.dumps(document).encode(), mtime=0)


def put(path, text):
    with open(path, "wb" if isinstance(text, bytes) else "w") as f:
        f.write(text)


class Study:
    """A folder with an experiment, and what the program wrote of it."""

    def __init__(self, top, texts, short, strategies):
        self.top, self.texts, self.strategies = top, texts, strategies
        self.title = "".join(texts)
        parts = [t.replace("/", "_") for t in texts]
        self.folder = os.path.join(top, *("".join(parts[i::4]) for i in range(4)))
        os.makedirs(os.path.join(self.folder, "clusters"))
        file = parts[5] + parts[7]
        self.experiment = os.path.join(self.folder, file + ".yaml")
        put(os.path.join(self.folder, file + ".trace"), make_trace(texts))
        node = json.load(open(os.path.join(SOURCE, "experiments/clusters/node-dgx-h100.json")))
        node.update(name=short, description=short)
        put(os.path.join(self.folder, "clusters", "node-n.json"), json.dumps(node))
        cluster = {"kind": "cluster", "name": short, "description": short, "node": "n", "nodes": 1,
                   "topology": {"type": "single_node"}}
        put(os.path.join(self.folder, "clusters", "cluster-" + file + ".json"), json.dumps(cluster))
        # JSON is YAML; the first strategy has a module and a description from everywhere.
        put(self.experiment, json.dumps({
            "title": self.title, "cluster": "clusters/cluster-" + file + ".json", "precision": {"param": "bf16", "reduce": "f32"},
            "model": {"trace": file + ".trace"},
            "strategies": {s: {"api": "fully_shard", "wrap": "block", "description": self.title} for s in strategies}}))
        self.out, self.code = os.path.join(self.folder, "out"), os.path.join(self.folder, "code")

    def run(self, *arguments, status=0):
        done = subprocess.run([TESSERA, *arguments], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                              cwd=self.top)
        if done.returncode != status:
            sys.exit(f"FAILED: exit status {done.returncode}: {done.args}: {done.stderr}")
        return done.stderr if status else done.stdout

    def files(self, pattern):
        return sorted(glob.glob(os.path.join(glob.escape(self.folder), pattern), recursive=True))


def shape(tree):
    """A Python file without the contents of its strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


def check_python(bad, good):
    for a, b in zip(bad.files("code/*.py"), good.files("code/*.py")):
        source = open(a, "rb").read()
        try:
            # Decoded as the interpreter does it, which a comment could change.
            shapes = [shape(ast.parse(open(path, "rb").read())) for path in (a, b)]
        except (SyntaxError, ValueError) as error:
            check(os.path.basename(a), False, error)
            continue
        check(f"{os.path.basename(a)}: the same statements", shapes[0] == shapes[1], source.decode()[-600:])
        names = [n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        check(f"{os.path.basename(a)}: names as they are", any("open(\"RAN\"" in n for n in names), names)


def check_configuration(bad, good):
    for end, read in (("toml", tomllib and tomllib.loads), ("yaml", yaml and yaml.safe_load)):
        for a, b in zip(bad.files(f"code-{end}/*.{end}"), good.files(f"code-{end}/*.{end}")):
            values = [read(open(path).read()) for path in (a, b)] if read else [0, 0]
            check(f"{os.path.basename(a)}: the same values", values[0] == values[1], values)
    for path in bad.files("out/experiment.yaml"):
        text = open(path).read()
        bad.run("compare", path, "--print-config")  # the reader of the program itself
        if yaml:
            found = yaml.safe_load(text)
            check("experiment.yaml: title", found["title"].startswith(bad.title[:40]), found["title"])
            check("experiment.yaml: strategies", sorted(map(str, found["strategies"])) == DRAWN, found["strategies"].keys())


class Tags(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, sorted(name for name, _ in attrs)))


def check_data(bad, good):
    for path in bad.files("out/**/*.json"):
        json.load(open(path))
        check(path, True)
    check("summary.json: title", json.load(open(os.path.join(bad.out, "summary.json")))["title"] == bad.title)
    tags = [Tags(open(os.path.join(s.out, "report.html")).read()).tags for s in (bad, good)]
    check("report.html: the same elements", tags[0] == tags[1], tags)
    for path in bad.files("out/**/*.csv"):
        for line in csv.reader(l for l in open(path, newline="") if not l.startswith("#")):
            for cell in line:
                if cell[:1] and cell[0] in MARKED:
                    try:
                        float(cell)
                    except ValueError:
                        check(f"{os.path.basename(path)}: a spreadsheet computes", False, repr(cell))
                        break


def words_of(command, folder):
    """The words of a command as bash finds them."""
    done = subprocess.run(["bash", "-c", "tessera() { printf '%s\\0' \"$@\"; }; python() { tessera \"$@\"; }\n" + command],
                          capture_output=True, cwd=folder)
    return done.stdout.decode().split("\0")[:-1]


def check_commands(bad):
    table = bad.run("compare", bad.experiment)
    command = re.search(r"^    (tessera compare (?:.*\\\n)*.*)$", table, re.M)
    words = words_of(command.group(1), bad.top) if command else []
    check("the command of a table", words[:3] == ["compare", bad.experiment, "--only"] and words[3] in bad.strategies and words[4:6] == ["--emit", "torch"], words)
    error = bad.run("compare", bad.experiment, "--only", "None", "--set", "batch=3", status=2)
    check("a refusal is one line", error.count("\n") == 1, error)
    # The source of this trace is short enough for the command to be shown. One with a path has none: it may lie elsewhere.
    short = os.path.join(bad.folder, "short.trace")
    for text in bad.texts:
        with gzip.open(TRACE) as f:
            document = json.load(f)
        source = f"{text}.py:make"
        document["model"]["source"] = source
        document["made_by"]["asked"] = {"batch": True, "seq": True, "options": [["--blocks", text]]}
        said = {k: v for k, v in document.items() if k not in ("made_by", "sha256")}
        packed = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        put(short, gzip.compress(json.dumps(dict(document, sha256=hashlib.sha256(packed.encode()).hexdigest())).encode()))
        error = bad.run("compare", bad.experiment, "--only", "None", "--set", "batch=3", "--set", "model.trace=short.trace", status=2)
        command = re.search(r"another trace \(where .*: (python -m .*)\)$", error.rstrip("\n"))
        words = words_of(command.group(1), bad.top) if command else []
        planted = words[words.index("--blocks") + 1] if "--blocks" in words else None
        is_whole = words[:4] == ["-m", "tessera", "trace", source] and planted == text
        check(f"the source {text!r} in a command", is_whole or not words and "/" in text, (error, words))


def make(folder, texts, short):
    os.makedirs(folder)
    study = Study(folder, texts, short, STRATEGIES)
    study.run("compare", study.experiment, "--out", study.out, "--pictures", "svg", "--only", ",".join(DRAWN))
    study.run("compare", study.experiment, "--emit", "torch", study.code)
    for end, format in (("toml", "torchtitan"), ("yaml", "accelerate")):
        study.run("compare", study.experiment, "--emit", format, f"{study.code}-{end}")
    return study


def main():
    with tempfile.TemporaryDirectory() as folder:
        bad = make(os.path.join(folder, "a"), HOSTILE, SHORT)
        good = make(os.path.join(folder, "b"), [f"x-{i}" for i in range(len(HOSTILE))], "x")
        check("files", len(bad.files("code/*.py")) == len(STRATEGIES), bad.files("code/*"))
        check_python(bad, good)
        check_configuration(bad, good)
        check_data(bad, good)
        check_commands(bad)
        ends = {os.path.splitext(p)[1] for p in bad.files("out/*") if os.path.isfile(p)}
        check("endings of files, which no folder of a strategy has", ends <= {".csv", ".json", ".yaml", ".html", ".svg", ".png"}, ends)
        if shutil.which("gnuplot"):
            check("pictures", len(bad.files("out/**/*.svg")) == 3 + 2 * len(DRAWN), bad.files("out/**/*.svg"))
        ran = glob.glob(os.path.join(folder, "**", "RAN*"), recursive=True) + glob.glob("RAN*")
        check("a planted command ran", not ran, ran)


main()
for failure in failures:
    print("FAILED:", failure)
print(f"{checks - len(failures)} of {checks} checks")
sys.exit(1 if failures or not checks else 0)
