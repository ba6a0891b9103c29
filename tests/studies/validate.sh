#!/usr/bin/env bash
# validate: published tables, rows that are not modelled, and mistakes in both files.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
tables=$TSR_SOURCE_DIR/experiments/validation

# Some rows of each table: those with the fewest tokens.
{
    head -n 1 "$tables/llm_foundry.csv"
    grep -E '^lf(214|208|211|302|138|070)' "$tables/llm_foundry.csv"
    printf '# a remark\n\n'
    grep -E '^lf(378)' "$tables/llm_foundry.csv" | sed 's/$/\r/' # twice in the table
} >"$tmp/lf.csv"
works validate "$tmp/lf.csv"
[ -s "$err" ] && complain "something on stderr"
has "$out" "kind llm_foundry, 7 rows" "| lf214 " "twice in the table" "all, more than 8 GPUs" "fewer than 10 rows"
works validate "$tmp/lf.csv" --format json --out "$tmp/out"
cp "$out" "$tmp/lf.json"
for file in validate.csv validate-frame.csv summary.json; do
    [ -s "$tmp/out/$file" ] || complain "no $file"
done
if command -v gnuplot >/dev/null; then
    for file in validate.svg validate.png; do
        [ -s "$tmp/out/$file" ] || complain "no $file"
    done
fi

# A machine that cannot write is at fault itself: no row is called not modelled because of it.
export TMPDIR="$tmp/none"
fails 1 "$tmp/none/tessera-" "No such file or directory; TMPDIR names another folder" -- validate "$tmp/lf.csv"
unset TMPDIR

# Ranges of GPUs, rows without a figure or an id, rows that are refused.
head -n 1 "$tables/other_training.csv" | sed 's/^row_id,//' >"$tmp/other.csv"
{
    echo '"FSDP, of my own",Llama 2 7B,A100 80GB,8-64,FULL_SHARD,,,,1,,512,none,no,bf16,2000,,,,,,,,,'
    echo 'FSDP,Llama 2 7B,A100 80GB,8,FULL_SHARD,,,,1,,512,none,no,bf16,,,,,,,out of memory,,,'
    echo 'FSDP,GPT-5,A100 80GB,8,FULL_SHARD,,,,1,,512,none,no,bf16,10,,,,,,,,,'
    echo 'FSDP,Llama 2 7B,MI300,8,FULL_SHARD,,,,1,,512,none,no,bf16,10,,,,,,,,,'
} >>"$tmp/other.csv"
works validate "$tmp/other.csv" --format json
cp "$out" "$tmp/other.json"
checks=$((checks + 1))
python3 - "$tmp" <<'END' || complain "the JSON is wrong"
import json, sys
folder = sys.argv[1]
lf, other = (json.load(open(f"{folder}/{n}.json")) for n in ("lf", "other"))
by = {}
for row in lf["rows"]:
    assert row["status"] in ("predicted", "not_modelled") and row["unit"] == "tokens/s", row
    if row["status"] == "predicted":
        assert abs(row["error"] - abs(row["predicted"] / row["measured"] - 1)) < 1e-9, row
    else:
        assert row["error"] == 1 and row["predicted"] is None and row["reason"], row
    by[row["row_id"]] = row
assert len(by) == 7 and by["lf378"]["duplicate"]
assert by["lf378"]["predicted"] == by["lf214"]["predicted"]  # the same run
summary = lf["summary"]
errors = sorted(row["error"] for row in lf["rows"] if not row["duplicate"])
assert summary["n"] == 6 and abs(summary["max"] - errors[-1]) < 1e-12, summary
assert abs(summary["median"] - (errors[2] + errors[3]) / 2) < 1e-12, summary
assert {"a100-sxm4-40g", "a100-sxm4-80g"} <= {c["class"] for c in summary["classes"]}

span, oom, gpt5, mi300 = other["rows"]
assert [r["row_id"] for r in other["rows"]] == ["2", "3", "4", "5"]
assert span["status"] == "predicted" and span["n_gpus"] in (8, 64)
assert oom["status"] == "predicted" and oom["measured"] is None and oom["error"] is None
assert gpt5["status"] == "not_modelled" and "model" in gpt5["reason"] and gpt5["error"] == 1
assert mi300["status"] == "not_modelled" and "column gpu: no rule of conditions.yaml knows its machine" in mi300["reason"]
assert '"MI300"' in mi300["reason"] and '"GPT-5"' in gpt5["reason"] and "column model" in gpt5["reason"]
assert other["summary"]["n"] == 3 and other["summary"]["n_not_modelled"] == 2
END

# Collectives: a call each; a bandwidth that is rounded to nothing is no figure.
{
    head -n 1 "$tables/nccl_busbw.csv"
    grep '^all_reduce,H200,8,1,.*,\(65536\|17179869184\),' "$tables/nccl_busbw.csv"
    grep '^all_reduce,GH200 (Alps, 4 per node),4,1,.*,\(8\|1048576\),' "$tables/nccl_busbw.csv" ||
        grep '^all_reduce,"GH200 (Alps, 4 per node)",4,1,.*,\(8\|1048576\),' "$tables/nccl_busbw.csv"
    grep '^reduce_scatter,H100,8,1,' "$tables/nccl_busbw.csv"
} >"$tmp/nccl.csv"
works validate "$tmp/nccl.csv" --format json
cp "$out" "$tmp/nccl.json"
checks=$((checks + 1))
python3 - "$tmp" <<'END' || complain "collectives are wrong"
import json, sys
rows = json.load(open(f"{sys.argv[1]}/nccl.json"))["rows"]
assert len(rows) == 7 and all(row["status"] == "predicted" for row in rows), rows
quantities = [row["quantity"] for row in rows]
assert quantities.count("time") == 5 and quantities.count("busbw") == 1, quantities
assert quantities.count("time_under_64KiB") == 1, quantities
END

# --set changes every row.
works validate "$tmp/lf.csv" --format csv
cp "$out" "$tmp/plain.csv"
works validate "$tmp/lf.csv" --format csv --set sim.calibration.matmul_sustained=0.5
cmp -s "$tmp/plain.csv" "$out" && complain "--set changes nothing"

# Mistakes.
fails 2 "no file given" -- validate
fails 2 "/nowhere.csv" "cannot be opened" -- validate /nowhere.csv
fails 2 "--format" "md, csv or json" -- validate "$tmp/lf.csv" --format xml
sed '1s/tokens_per_s_per_gpu/tokens_per_s_per_gpus/' "$tmp/lf.csv" >"$tmp/bad.csv"
fails 2 "bad.csv" 'column "tokens_per_s_per_gpus"' "nearest: tokens_per_s_per_gpu" -- validate "$tmp/bad.csv"
sed '1s/microbatch_size/mbs/' "$tmp/lf.csv" >"$tmp/bad.csv"
fails 2 "bad.csv" 'no column "microbatch_size"' llm_foundry -- validate "$tmp/bad.csv"
sed '3s/^\([^,]*,[^,]*\),[^,]*,/\1,/' "$tmp/lf.csv" >"$tmp/bad.csv"
fails 2 "bad.csv:3: found 34 fields; allowed: 35" -- validate "$tmp/bad.csv"
printf 'a,b\n1,2\n' >"$tmp/bad.csv"
fails 2 "bad.csv" "columns a, b" "llm_foundry.csv" -- validate "$tmp/bad.csv"
: >"$tmp/bad.csv"
fails 2 "bad.csv" "found no line" -- validate "$tmp/bad.csv"
sed 's/,8-64,/,64-8,/' "$tmp/other.csv" >"$tmp/bad.csv"
fails 2 "bad.csv:2: column n_gpus" '"64-8"' "a range like 128-512" -- validate "$tmp/bad.csv" --strict
sed 's/bf16,2000,/bf16,fast,/' "$tmp/other.csv" >"$tmp/bad.csv"
fails 2 "bad.csv:2: column tokens_per_s_per_gpu" '"fast"' "a number" -- validate "$tmp/bad.csv" --strict
sed 's/bf16,2000,/bf16,0,/' "$tmp/other.csv" >"$tmp/bad.csv"
fails 2 "bad.csv:2: column tokens_per_s_per_gpu" "more than 0" -- validate "$tmp/bad.csv" --strict
# A column that nobody knows is not read; one that is nearly a known one is a mistake.
sed '1s/$/,weather/; 2,$s/$/,rain/' "$tmp/other.csv" >"$tmp/more.csv"
works validate "$tmp/more.csv"
has "$out" "Columns that no table of this kind has, not read: weather."
fails 2 'found column "weather"' -- validate "$tmp/more.csv" --strict

# A cell that a prediction reads, and that holds no value of its column: a mistake with --strict; else
# its row is not modelled, with the column and the reason, and the others are predicted.
cell() { # TABLE COLUMN VALUE: the table's first row with another value there, in bad.csv
    python3 - "$1" "$2" "$3" >"$tmp/bad.csv" <<'END'
import csv, sys
rows = [r for r in csv.reader(open(sys.argv[1])) if r and not r[0].startswith("#")][:2]
rows[1][rows[0].index(sys.argv[2])] = sys.argv[3]
csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
END
}
bad_cell() { # TABLE COLUMN VALUE ALLOWED
    cell "$1" "$2" "$3"
    fails 2 "bad.csv:2: column $2: found \"$3\"; allowed: $4" -- validate "$tmp/bad.csv" --strict
    [ "$5" = only ] && return
    works validate "$tmp/bad.csv" --format json
    has "$out" '"not_modelled"' "\"reason\": \"column $2: found \\\"$3\\\"; allowed: $4"
}
bad_cell "$tmp/lf.csv" microbatch_size many "an integer from 1 to 1048576" both
bad_cell "$tmp/lf.csv" grad_accum -3 "an integer from 1" only
bad_cell "$tmp/lf.csv" d_model 2.5 "an integer from 1" only
bad_cell "$tmp/lf.csv" seq_len 99999999999999999999999 "an integer from 1" only
bad_cell "$tmp/lf.csv" precision bf61 "bf16, fp16," both
bad_cell "$tmp/lf.csv" fsdp_mixed_precision HALF "PURE, DEFAULT or FULL" only
bad_cell "$tmp/lf.csv" sharding_strategy FULL_SHARDS "FULL_SHARD, " only
bad_cell "$tmp/lf.csv" activation_checkpointing maybe "True or False" only
bad_cell "$tmp/other.csv" precision bf61 "bf16, fp16," both
bad_cell "$tmp/other.csv" mfu_pct high "a number" only
bad_cell "$tables/torchtitan.csv" tp two "an integer from 1" only
bad_cell "$tables/torchtitan.csv" dtype bf61 "bf16, fp16," only
bad_cell "$tables/llmc.csv" tokens_per_step 1e6 "an integer from 1" only
bad_cell "$tmp/nccl.csv" size_bytes -1 "an integer from 1" only
bad_cell "$tmp/nccl.csv" n_nodes 0 "an integer from 1" both
# Rows are taken one by one: what cannot be read of one does not stop the other, and is no mistake.
{
    head -n 1 "$tables/torchtitan.csv" | sed 's/,cp,/,cp,ep,/'
    row() { # ID MODEL GPU MEMORY EP CHECKPOINT COMPILE RATE
        printf '%s,t,2026,torchtitan,%s,%s,%s,8,8,1,1,1,%s,,1,8,512,,%s,%s,bf16,no,no,%s,,,,,,,\n' "$@"
    }
    row a "Llama 3.1 8B" "H100 SXM 95GiB" "" "" "full (not stated)" "yes (per block)" 1000
    row b "Llama 3.1 8B" "H100" 95 1 none no 1000
    row c "Llama 3.1 8B" "H100" 80 1 none "loss only" 1000
    row d "Llama 3.1 8B" "H100 PCIe" 80 1 none no 1000
    row e "Llama 3.1 8B" "H100" 80 2 none no 1000
    row f "Llama 3.1 8B" "H200" "" "" "selective 2" "" fast
    row g "Llama 3.1 8B" "A100 40GB SXM" "" "" "" no ""
} >"$tmp/rows.csv"
works validate "$tmp/rows.csv" --format json
cp "$out" "$tmp/rows.json"
checks=$((checks + 1))
python3 - "$tmp/rows.json" <<'END' || complain "rows are not taken one by one"
import json, sys
table = json.load(open(sys.argv[1]))
a, b, c, d, e, f, g = table["rows"]
assert a["status"] == "predicted" and a["gpu"] == "h100-sxm5-96g-500w", a
assert a["stack"] == "torchtitan-2026" and a["varied"] == "checkpoint.every, dialect", a
assert b["status"] == "predicted" and b["gpu"] == "h100-sxm5-96g-500w" and b["varied"] == "", b
assert c["status"] == "not_modelled" and c["reason"].startswith('column torch_compile: found "loss only"'), c
assert d["reason"] == "column gpu: no device file has this card", d
assert e["reason"] == "column ep: expert parallelism is not modelled", e
assert f["status"] == "not_modelled" and f["measured"] is None and f["error"] is None, f
assert f["reason"].startswith('column tokens_per_s_per_gpu: found "fast"; allowed: a number'), f
assert g["gpu"] == "a100-sxm4-40g" and g["measured"] is None, g
assert table["summary"]["n"] == 5 and table["summary"]["n_not_modelled"] == 3, table["summary"]
END
fails 2 "rows.csv:4: column torch_compile" '"loss only"' -- validate "$tmp/rows.csv" --strict
# What is well written may be a row that is not modelled; its reason names no file of the moment.
for pair in 'seq_len=|column seq_len: is empty' 'n_heads=7|its model: ' 'sharding_strategy=NO_SHARD|no published row'; do
    edit=${pair%%|*}
    cell "$tmp/lf.csv" "${edit%%=*}" "${edit#*=}"
    works validate "$tmp/bad.csv" --format json
    has "$out" '"not_modelled"' "${pair#*|}"
    grep -q "tessera-" "$out" && complain "the reason of $edit names a temporary file"
done
fails 2 "--set batch=abc: batch: found abc" -- validate "$tmp/lf.csv" --set batch=abc
fails 2 '--set nokey=1: unknown key "nokey"' -- validate "$tmp/lf.csv" --set nokey=1

rule() {
    printf '%s\n' "other_training:" "  - $1" >"$tmp/rules.yaml"
}
rule 'when: {modle: x}'
fails 2 "rules.yaml:2" modle 'nearest: "model"' -- validate "$tmp/other.csv" --conditions "$tmp/rules.yaml"
# shellcheck disable=SC2016
rule 'set: {batch: $local_batch}'
# shellcheck disable=SC2016
fails 2 "rules.yaml:2" '$local_batch' -- validate "$tmp/other.csv" --conditions "$tmp/rules.yaml"
rule 'sets: {batch: 1}'
fails 2 "rules.yaml:2" sets 'nearest: "set"' -- validate "$tmp/other.csv" --conditions "$tmp/rules.yaml"
rule 'set: [batch]'
fails 2 "rules.yaml:2" "set: found [batch]" -- validate "$tmp/other.csv" --conditions "$tmp/rules.yaml"
printf 'other: []\n' >"$tmp/rules.yaml"
fails 2 "rules.yaml:1" "the kind other" -- validate "$tmp/other.csv" --conditions "$tmp/rules.yaml"
fails 2 "/nowhere.yaml" -- validate "$tmp/other.csv" --conditions /nowhere.yaml
finish
