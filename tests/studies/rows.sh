#!/usr/bin/env bash
# Published rows that are written as experiments of five lines get what `tessera validate` predicts for them.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
tables=$TSR_SOURCE_DIR/experiments/validation
rows=$tables/rows

for table in torchtitan llm_foundry; do
    head -n 1 "$tables/$table.csv" >"$tmp/$table.csv"
    grep '^[a-z]*[0-9]*,' "$tables/$table.csv" | while IFS= read -r line; do
        [ -f "$rows/${line%%,*}.yaml" ] && printf '%s\n' "$line"
    done >>"$tmp/$table.csv"
    works validate "$tmp/$table.csv" --format json
    cp "$out" "$tmp/$table.json"
done
checks=$((checks + 1))
[ "$(grep -c . "$tmp/torchtitan.csv")" = "$(grep -c . "$tables/torchtitan.csv")" ] ||
    complain "not every row of torchtitan.csv is written as an experiment"

mkdir "$tmp/compared"
for file in "$rows"/*.yaml; do
    checks=$((checks + 1))
    [ "$(wc -l <"$file")" = 5 ] || complain "$file has not five lines"
    works compare "$file" --format json
    cp "$out" "$tmp/compared/$(basename "$file" .yaml).json"
done
checks=$((checks + 1))
python3 - "$tmp" <<'END' || complain "an experiment and its row differ"
import glob, json, os, sys
folder = sys.argv[1]
points = [p for t in ("torchtitan", "llm_foundry") for p in json.load(open(f"{folder}/{t}.json"))["rows"]]
seen, figures, bad = set(), 0, []
for point in points:
    row, = json.load(open(f"{folder}/compared/{point['row_id']}.json"))["rows"]
    assert row["strategy"] == point["row_id"], row["strategy"]
    seen.add(point["row_id"])
    is_memory = point["quantity"] == "peak_reserved_memory"
    got = max(row["peak_reserved_bytes"], row["first_peak_reserved_bytes"]) / 2**30 if is_memory \
        else row["tokens_per_s_per_gpu"]
    figures += point["measured"] is not None
    if point["status"] != "predicted" or abs(got / point["predicted"] - 1) > 1e-3:
        bad.append((point["row_id"], point["quantity"], got, point["predicted"], point.get("reason")))
print(*bad, sep="\n")
assert not bad
assert seen == {os.path.basename(p)[:-5] for p in glob.glob(f"{folder}/compared/*.json")}, seen
assert figures == 8 + 6, figures # torchtitan's eight figures, and one of each of six llm-foundry rows
END

# Compiled blocks, beside full checkpointing and beside tensor parallelism, are the same on both ways, too.
cat >"$tmp/compiled.yaml" <<'END'
stack: torchtitan-2024-12
model: llama-3.1-8b
seq: 8192
cluster: grand-teton-h100-96g-128
strategies: {full: {world: 8, batch: 2, dialect: compile, checkpoint: full}, tp: {world: 8, batch: 2, tp: 2, dialect: compile, checkpoint: full}}
END
python3 - "$tables/torchtitan.csv" "$tmp/compiled.csv" <<'END'
import csv, sys
lines = [line for line in open(sys.argv[1], newline="") if line[0] != "#"]
reader = csv.DictReader(lines)
row = next(r for r in reader if r["row_id"] == "tt002")
with open(sys.argv[2], "w", newline="") as file:
    out = csv.DictWriter(file, reader.fieldnames)
    out.writeheader()
    for name, tp in ("full", 1), ("tp", 2):
        out.writerow(row | {"row_id": name, "tp": tp, "fsdp": 8 // tp, "activation_checkpointing": "full"})
END
works validate "$tmp/compiled.csv" --format json
cp "$out" "$tmp/compiled-rows.json"
works compare "$tmp/compiled.yaml" --format json
checks=$((checks + 1))
python3 - "$tmp/compiled-rows.json" "$out" <<'END' || complain "compiled blocks: an experiment and its row differ"
import json, sys
points, rows = (json.load(open(path))["rows"] for path in sys.argv[1:])
speed = {p["row_id"]: p["predicted"] for p in points if p["quantity"] == "tokens_per_s_per_gpu"}
print(speed)
assert len(speed) == len(rows) == 2 and speed["full"] != speed["tp"]
for row in rows:
    assert abs(row["tokens_per_s_per_gpu"] / speed[row["strategy"]] - 1) < 1e-6, row["strategy"]
END
finish
