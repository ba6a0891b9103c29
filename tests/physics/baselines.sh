#!/bin/sh
# baselines.sh: five published FSDP1 runs tell how communication overlaps with computation. The
# prediction is within the errors that are claimed; a model that takes the longer of the two, or
# their sum, is not. (Rows of yandex/YaFSDP in experiments/validation/other_training.csv.)
set -u
: "${TESSERA:?the program}" "${TSR_SOURCE_DIR:?the source tree}"
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
table=$TSR_SOURCE_DIR/experiments/validation/other_training.csv
{
    head -n 1 "$table"
    grep '^ot[0-9]*,PyTorch FSDP (FSDP1' "$table"
} >"$tmp/rows.csv"
"$TESSERA" validate "$tmp/rows.csv" --format csv >"$tmp/whole.csv" || exit 1
"$TESSERA" validate "$tmp/rows.csv" --format csv --set sim.infinite_bandwidth=true \
    --set sim.calibration.comm_compute_slowdown=0 >"$tmp/alone.csv" || exit 1
python3 - "$tmp" <<'END'
import csv, sys
def read(name):
    with open(f"{sys.argv[1]}/{name}.csv", newline="") as stream:
        return {row["row_id"]: row for row in csv.DictReader(stream)}
whole, alone = read("whole"), read("alone")
assert len(whole) == 5, "five rows"
def verdict(step_of):
    """Median and 90 % quantile of the errors of tokens/s with other step times."""
    errors = []
    for name, row in whole.items():
        tokens = float(row["predicted"]) * float(row["step_s"])
        errors.append(abs(tokens / step_of(name) / float(row["measured"]) - 1))
    errors.sort()
    return errors[2], errors[3] + 0.6 * (errors[4] - errors[3])
compute = lambda name: float(alone[name]["step_s"])
communication = lambda name: float(whole[name]["communication_s"])
models = {"simulated": lambda name: float(whole[name]["step_s"]),
          "the longer of both": lambda name: max(compute(name), communication(name)),
          "one after the other": lambda name: compute(name) + communication(name)}
bad = 0
for name, step_of in models.items():
    median, p90 = verdict(step_of)
    accepted = median <= 0.05 and p90 <= 0.10
    print(f"{name}: median {median:.1%}, 90 % {p90:.1%}: {'accepted' if accepted else 'rejected'}")
    bad += accepted != (name == "simulated")
sys.exit(bad)
END
