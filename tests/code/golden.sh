#!/usr/bin/env bash
# Code that --emit writes of experiment.yaml, beside golden/; what is predicted at its top is what the table says; names of files;
# plans; options that are refused. UPDATE=1 writes golden/ anew.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
here=$TSR_SOURCE_DIR/tests/code
study=$here/experiment.yaml

# Figures change with what kernels are measured to take.
without_figures() { # FILE
    sed '/^# Predicted/,/^# Program/d' "$1"
}

for format in torch torchtitan accelerate; do
    works compare "$study" --format json --emit "$format" "$tmp/$format"
    cp "$out" "$tmp/$format.json"
    [ -z "$UPDATE" ] || mkdir -p "$here/golden/$format"
    for path in "$tmp/$format"/*; do
        name=$(basename "$path")
        [ "$name" != README.md ] || continue
        without_figures "$path" >"$tmp/$name"
        [ -z "$UPDATE" ] || cp "$tmp/$name" "$here/golden/$format/$name"
        same "$tmp/$name" "$here/golden/$format/$name"
    done
    checks=$((checks + 1))
    [ "$(ls "$here/golden/$format" | wc -l)" = "$(($(ls "$tmp/$format" | wc -l) - 1))" ] || complain "$format: another number of files"
done

# Hash, step and peak of each strategy stand in its file, and all files in README.md.
checks=$((checks + 1))
python3 - "$tmp" <<'END' || complain "figures in the files are not those of the table"
import json, os, sys
tmp, GIB = sys.argv[1], 2**30
for format, end in (("torch", ".py"), ("torchtitan", ".toml"), ("accelerate", ".yaml")):
    rows = json.load(open(f"{tmp}/{format}.json"))["rows"]
    readme = open(f"{tmp}/{format}/README.md").read()
    assert len(rows) == len(os.listdir(f"{tmp}/{format}")) - 1
    for row in rows:
        name = {"replicate@1": "replicate_1", "replicate_1": "replicate_1_2"}.get(row["strategy"], row["strategy"]) + end
        text = " ".join(open(f"{tmp}/{format}/{name}").read().replace("\n#", " ").split())
        for words in (row["program_hash"], f"a step of {1e3 * row['step_time_s']:.1f} ms", f"strategy {row['strategy']} of experiment.yaml",
                      f"{row['peak_allocated_bytes'] / GIB:.2f} GiB allocated, {row['peak_reserved_bytes'] / GIB:.2f} GiB reserved"):
            assert words in text, (name, words)
        assert f"]({name}) | {row['strategy']} |" in readme
END

# What was found by a plan: a file each, the fastest first, which says its settings.
works plan "$study" --strategy some --set 'plan.space={reshard_after_forward: [true, false], batch: [1, 2]}' --emit torch "$tmp/plan"
has "$tmp/plan/some_1.py" "strategy some of" "reshard_after_forward=false, batch=2" "batch 2 x 128" "reshard_after_forward=False"
has "$tmp/plan/README.md" "[\`some_1.py\`](some_1.py)"

# A strategy that does not fit is written, and says so; texts of others stay on their lines.
works compare "$study" --only sub --set strategies.sub.allocator.limit=card --set seq=131072 --set batch=8 --emit torch "$tmp/unfit"
has "$tmp/unfit/sub.py" "does not run" "def apply(model, mesh):"
works compare "$study" --only acc --set 'strategies.acc.description="one\nimport os"' --emit torch "$tmp/text"
checks=$((checks + 1))
! grep -q '^import os' "$tmp/text/acc.py" || complain "a description left its comment"

# What a strategy inherits and its API does not read is named, and told once.
works compare "$study" --only acc,some --set forward_prefetch=2 --emit torch "$tmp/unread"
has "$tmp/unread/acc.py" "Not read by api: ddp: forward_prefetch=2"
has "$err" "note: api: ddp does not read forward_prefetch (--set forward_prefetch=2)"

fails 2 "--emit: found jax; allowed: torch, torchtitan" -- compare "$study" --emit jax "$tmp/x"
fails 2 "option --emit has no DIR" -- compare "$study" --emit torch
fails 2 "option --emit has no value" -- compare "$study" --emit
fails 2 "--part: found --emit" -- compare "$study" --part 1/2 --out "$tmp/p" --emit torch "$tmp/x"
fails 2 "found --emit beside --max" -- plan "$study" --max batch --emit torch "$tmp/x"
fails 2 "/dev/null/x" -- compare "$study" --emit torch /dev/null/x
works sim "$study" --strategy sub --emit torch "$tmp/one"
without_figures "$tmp/one/sub.py" >"$tmp/sub.py"
same "$tmp/sub.py" "$here/golden/torch/sub.py"
finish
