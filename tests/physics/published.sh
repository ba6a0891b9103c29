#!/bin/sh
# published.sh: the rows of torchtitan.csv, torchtitan_2025.csv and other_training.csv are predicted
# within the errors that experiments/guide/validation.md claims.
set -u
: "${TESSERA:?the program}" "${TSR_SOURCE_DIR:?the source tree}"
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
for table in torchtitan torchtitan_2025 other_training; do
    "$TESSERA" validate "$TSR_SOURCE_DIR/experiments/validation/$table.csv" --format json \
        >"$tmp/$table.json" || exit 1
done
python3 - "$tmp" "$TSR_SOURCE_DIR" <<'END'
import json, sys
def rows(table, quantity, known):
    with open(f"{sys.argv[1]}/{table}.json") as stream:
        found = json.load(stream)["rows"]
    assert all(r["status"] == "predicted" for r in found), "a row is not modelled"
    return [r["error"] for r in found
            if r["quantity"] == quantity and r["measured"] and known(r)]
rate = "tokens_per_s_per_gpu"
errors = {
    "FSDP2 on the 8B testbed": rows("torchtitan", rate, lambda r: r["gpu"].endswith("500w")),
    "FSDP2 elsewhere": rows("torchtitan", rate, lambda r: not r["gpu"].endswith("500w")),
    "peak reserved memory": rows("torchtitan", "peak_reserved_memory", lambda r: True),
    "torchtitan, not fitted": rows("torchtitan_2025", rate, lambda r: True),
    "its peak reserved memory": rows("torchtitan_2025", "peak_reserved_memory", lambda r: True),
    "fms-fsdp": rows("other_training", rate, lambda r: r["n_gpus"] == 128),
    "FSDP1 baselines": rows("other_training", rate, lambda r: r["n_gpus"] == 64),
    "FSDP paper": rows("other_training", "tflops_per_gpu", lambda r: True)}
# mean, median, largest that are claimed
claims = {"FSDP2 on the 8B testbed": (0.03, 0.03, 0.085), "FSDP2 elsewhere": (0.12, 0.12, 0.12),
          "peak reserved memory": (0.03, 0.03, 0.03), "torchtitan, not fitted": (0.03, 0.03, 0.05),
          "its peak reserved memory": (0.01, 0.01, 0.01), "fms-fsdp": (1, 0.10, 0.15),
          "FSDP1 baselines": (1, 0.05, 0.10), "FSDP paper": (1, 0.10, 0.12)}
bad = 0
for name, values in errors.items():
    values.sort()
    n = len(values)
    got = (sum(values) / n, (values[n // 2] + values[(n - 1) // 2]) / 2, values[-1])
    ok = all(a <= b for a, b in zip(got, claims[name]))
    print(f"{name}: {n} figures, mean {got[0]:.1%}, median {got[1]:.1%}, largest {got[2]:.1%}"
          f"{'' if ok else ': MORE THAN CLAIMED'}")
    bad += not ok
# What the guide and the findings state of the rows on 128 H100.
with open(f"{sys.argv[1]}/torchtitan_2025.json") as stream:
    on_128 = [100 * r["error"] for r in json.load(stream)["rows"] if r["quantity"] == rate and r["n_gpus"] == 128]
for path, text in (("guide/validation.md", "eager %.1f %%, compiled %.1f %%, float8 %.1f %% too fast"),
                   ("findings/README.md", "met to %.1f, %.1f and, in float8, %.1f %%")):
    with open(f"{sys.argv[2]}/experiments/{path}", encoding="utf-8") as stream:
        if text % tuple(on_128) not in " ".join(stream.read().split()):
            print(f"{path} does not state {text % tuple(on_128)}")
            bad += 1
sys.exit(bad)
END
