#!/usr/bin/env bash
# exec/cuda/RUNBOOK.md against the program: the NCCL calls of each strategy are those of a profiled step on the
# stand-in, and every line that it explains is one that the sources have. Exit 77: skipped, there is no python3.
command -v python3 >/dev/null || exit 77
: "${TSR_SOURCE_DIR:?the source tree}" "${TESSERA_STANDIN:?the program with the stand-ins}"
export TESSERA=$TESSERA_STANDIN
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh" || exit 1
: "${tmp:?a folder of our own}" "${out:?}" "${err:?}"
unset XDG_CACHE_HOME HOME # no plans of products are kept
export TSR_STANDIN=gpus=4
cp "$TSR_SOURCE_DIR/experiments/small/llama-tiny.json" "$tmp/"

# 1: the strategies of the table into a job; 2: the calls of a step of NAME; 3: lines that no source has.
cat >"$tmp/runbook.py" <<'END'
import collections, glob, json, os, re, sys

top, what = sys.argv[1:3]
with open(os.path.join(top, "exec/cuda/RUNBOOK.md")) as f:
    page = f.read()


def rows(head):
    lines = page[page.index(head):].split("\n")[2:]
    return [[c.strip() for c in line.strip("|").split(" | ")] for line in lines[:next(i for i, x in enumerate(lines) if not x.startswith("|"))]]


calls = {row[0].strip("`").split(":")[0]: row for row in rows("| strategy | calls")}
if what == "job":
    print("title: four ranks\nmodel: {name: llama-tiny.json, layers: 2}\nworld: 4\nbatch: 1\nseq: 8\nclip: true\nprecision: {param: bf16, reduce: f32}\n"
          "train: {steps: 2, lr: 0.003}\ncheckpoints: {last: false}\nstrategies:")
    for row in calls.values():
        print("  " + row[0].strip("`"))
elif what == "names":
    print("\n".join(calls))
elif what == "calls":
    name, folder = sys.argv[3:]
    with open(glob.glob(folder + "/measured/*/trace.json")[0]) as f:
        events = [e for e in json.load(f)["traceEvents"] if e.get("ph") == "X"]
    step = max((e for e in events if e["name"].startswith("ProfilerStep#")), key=lambda e: e["ts"])
    seen = collections.Counter()
    for e in sorted(events, key=lambda e: e["ts"]):
        kind = re.match(r"ncclDevKernel_([A-Za-z]+)_", e["name"])
        if kind and step["ts"] <= e["ts"] <= step["ts"] + step["dur"]:
            a = e["args"]
            seen[f"{kind[1]} {a.get('Process Group Description') or a.get('Process Group Name')} {a['phase']}"] += 1
    want = dict(reversed(c.split(" ", 1)) for c in calls[name][1].split(", "))
    got = {k: str(n) for k, n in seen.items()}
    if want != got:
        sys.exit(f"{name}: the page has {want}, a step has {got}")
elif what == "lines":
    text = ""
    for folder in ("exec", "experiments/cli"):
        for path, _, names in os.walk(os.path.join(top, folder)):
            for file in names:
                if file.endswith((".c", ".h", ".cpp")):
                    with open(os.path.join(path, file)) as f:
                        text += re.sub(r'"\s*\n\s*"', "", f.read())
    missing = [part for row in rows("| line | means") for part in row[0].strip("`").replace("'", "…").split("…") if len(part) > 8 and part.strip() not in text]
    if missing:
        sys.exit(f"no source has: {missing}")
END
python3 "$tmp/runbook.py" "$TSR_SOURCE_DIR" job >"$tmp/job.yaml" || complain "the table of strategies"
no_pictures
for name in $(python3 "$tmp/runbook.py" "$TSR_SOURCE_DIR" names); do
    works run "$tmp/job.yaml" --strategy "$name" --on cuda --deterministic --profile --out "$tmp/$name"
    checks=$((checks + 1))
    said=$(python3 "$tmp/runbook.py" "$TSR_SOURCE_DIR" calls "$name" "$tmp/$name" 2>&1) || complain "$said"
done
checks=$((checks + 1))
said=$(python3 "$tmp/runbook.py" "$TSR_SOURCE_DIR" lines 2>&1) || complain "$said"
has "$TSR_SOURCE_DIR/exec/cuda/RUNBOOK.md" "NCCL $(sed -n 's/^tessera: NCCL \([0-9.]*\):.*/\1/p' "$err"): 2 communicators, gathers use multiprocessors, 0 windows"
finish
