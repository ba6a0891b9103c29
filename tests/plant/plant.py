#!/usr/bin/env python3
"""Leaves out every site of sites.py, one at a time, and says who notices: `tessera check` of some input,
else a test.

  plant.py BUILD [--only FILE] [--named] [--jobs N] [--tries N] [--no-check]
BUILD: a build folder with -DTESSERA_PLANT=ON; tests that are there are asked (TESTS). Output: file, function, call,
who notices (NOBODY; NEVER: nothing reaches it), tabs between them. --only: a file with lines of sites.tsv; folders and files are not compared.
--named: asks of each site who sites.tsv says notices it, and nobody else (minutes instead of an hour); prints those
that were not noticed, status 1 if there is one.
"""
import argparse
import concurrent.futures
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import sites

# Of races that PyTorch has, too, and of keys that are refused by name: status 4 or 2 without a defect.
REFUSED = re.compile("rnd-ac-list-twice|m-race-|m-gpt2-(invlayer|noscale)")
TESTS = ("rules_test_*", "engine_test_*", "conformance_test_fsdp1", "conformance_test_golden")
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


def strategies(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return re.findall(r"^  ([a-z0-9-]+):", text[text.index("\nstrategies:"):], re.M)


def inputs():
    """name: arguments of `tessera check`."""
    found = {}
    for path in ("tests/exec/strategies.yaml", "tests/plant/more.yaml"):
        for name in strategies(os.path.join(ROOT, path)):
            found[f"check {path} {name}"] = [os.path.join(ROOT, path), "--strategy", name]
    recorded = [path for folder in ("golden", "golden-found")
                for path in sorted(glob.glob(os.path.join(ROOT, "tests", folder, "scenarios/*.json")))]
    recorded += sorted(glob.glob(os.path.join(ROOT, "tests/plant/*.json")))
    for path in recorded:
        with open(path, encoding="utf-8") as file:
            if json.load(file).get("kind") not in ("train", "ddp") or REFUSED.search(path):
                continue
        found["check " + os.path.relpath(path, ROOT)] = [path]
    for pattern in ("golden-memory/tiny-*.json", "golden-memory/random/*.json"):
        for path in sorted(glob.glob(os.path.join(ROOT, "tests", pattern))):
            if "timeline" not in path:
                found["check " + os.path.relpath(path, ROOT)] = [path]
    for path in sorted(glob.glob(os.path.join(ROOT, "tests/golden-bridge/*.trace"))):
        path = path[:-len("trace")] + "json"
        found["recorded " + os.path.relpath(path, ROOT)] = [os.path.join(ROOT, "tests/plant/recorded.py"), path]
    return found


def tests(build):
    """The same of tests: name and program."""
    return {name: [path] for pattern in TESTS for path in sorted(glob.glob(os.path.join(build, "tests", pattern)))
            for name in [os.path.basename(path)]}


def run(build, arguments, **environment):
    program = os.path.join(build, "tessera")
    command = [program, "check", *arguments]
    if arguments[0].startswith(os.path.join(build, "tests")):
        command = arguments
    elif arguments[0].endswith(".py"):
        command = [sys.executable, *arguments]
    environment |= {"TESSERA": program, "TSR_SOURCE_DIR": ROOT}
    try:
        done = subprocess.run(command, env={**os.environ, **environment}, timeout=600,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        return done.returncode
    except subprocess.TimeoutExpired:
        return -1  # it hangs


def reached(program, found, pool):
    """site: inputs that reach it, the quickest first."""
    def one(name):
        with tempfile.NamedTemporaryFile("r", encoding="utf-8") as file:
            begin = time.monotonic()
            if run(program, found[name], TSR_PLANT_SEEN=file.name) != 0:
                sys.exit(f"{name} fails without a defect")
            file.seek(0)
            return name, time.monotonic() - begin, {int(n) for n in file.read().split()}
    by_site = {}
    for name, _, numbers in sorted(pool.map(one, found), key=lambda r: r[1]):
        for n in numbers:
            by_site.setdefault(n, []).append(name)
    return by_site


def spread(names, tries):
    """So many of them, from all of the list."""
    if len(names) <= tries:
        return names
    return names[:tries // 2] + [names[tries // 2 + i * (len(names) - tries // 2) // (tries - tries // 2)]
                                 for i in range(tries - tries // 2)]


def notice(program, found, by_site, site, tries):
    names = by_site.get(site[0], [])
    for name in spread(names, tries):
        status = run(program, found[name], TSR_PLANT=str(site[0]))
        if status != 0:
            return name if status == 4 else f"{name} (status {status})"
    return "NOBODY" if names else "NEVER"


def named(build, found, pool, wanted):
    """Sites that who sites.tsv names did not notice."""
    said = {}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "sites.tsv"), encoding="utf-8") as file:
        for path, function, call, who in (line.rstrip("\n").split("\t") for line in file if line[0] != "#"):
            said[path, function, call] = said[function, call] = who.split(" (status")[0]
    who = [said.get((s[1], s[3], s[4])) or said[s[3], s[4]] for s in wanted]
    asked = [(s, w) for s, w in zip(wanted, who) if w in found]
    unknown = [(s, w) for s, w in zip(wanted, who) if w not in found and not re.match("(same|kept|error): ", w)]
    names = sorted({w for _, w in asked})
    for name, status in zip(names, pool.map(lambda n: run(build, found[n]), names)):
        if status != 0:
            sys.exit(f"{name} fails without a defect")
    results = pool.map(lambda a: run(build, found[a[1]], TSR_PLANT=str(a[0][0])), asked)
    return unknown + [a for a, status in zip(asked, results) if status == 0], len(asked)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("build")
    p.add_argument("--no-check", action="store_true")
    p.add_argument("--only")
    p.add_argument("--named", action="store_true")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--tries", type=int, default=10)
    a = p.parse_args()
    build = os.path.abspath(a.build)
    found, wanted = {} if a.no_check else inputs(), list(sites.all_sites(ROOT))
    found |= tests(build)
    if a.only:
        with open(a.only, encoding="utf-8") as file:
            names = {tuple(line.rstrip("\n").split("\t")[1:3]) for line in file}
        wanted = [s for s in wanted if (s[3], s[4]) in names]
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        if a.named:
            missed, n = named(build, found, pool, wanted)
            for s, who in missed:
                print(s[1], s[3], s[4], f"not by {who}", sep="\t", flush=True)
            print(f"{n} sites asked, {len(missed)} not noticed by who is named")
            sys.exit(1 if missed else 0)
        by_site = reached(build, found, pool)
        who = pool.map(lambda s: notice(build, found, by_site, s, a.tries), wanted)
        for s, by in zip(wanted, who):
            print(s[1], s[3], s[4], by, sep="\t", flush=True)


if __name__ == "__main__":
    main()
