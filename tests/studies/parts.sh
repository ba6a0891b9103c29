#!/usr/bin/env bash
# A sweep in parts: killed and started again it redoes nothing that was complete, and the parts
# together are one run, byte for byte but for the time that the simulation took.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

cat >"$tmp/e.yaml" <<'Y'
title: A sweep
model: gpt2
cluster: dgx-a100-16
world: 16
seq: 256
strategies: {fsdp: {}, ddp: {api: ddp}, hsdp: {mesh: {replicate: 2, shard: 8}}}
sweeps: {batch: [1, 2], precision.reduce: [f32, bf16]}
Y
pictures=svg # most of the time of a sweep goes into its pictures: the short form draws none
thorough || pictures=none
works compare "$tmp/e.yaml" --out "$tmp/whole" --pictures $pictures
cp "$out" "$tmp/whole.txt"

# Killed in the middle of the first part: once a row is there. On a busy machine it may be through before the
# signal comes.
for _ in 1 2 3 4 5 6; do
    rm -rf "$tmp/1"
    "$TESSERA" compare "$tmp/e.yaml" --part 1/2 --jobs 1 --out "$tmp/1" >/dev/null 2>&1 &
    pid=$!
    for _ in $(seq 1 1200); do
        [ -n "$(ls "$tmp/1/rows" 2>/dev/null)" ] && break
        sleep 0.05
    done
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    sleep 0.2
    kept=$(find "$tmp/1/rows" -name '*.row' | wc -l)
    [ "$kept" -lt 6 ] && break
done
[ "$kept" -ge 1 ] || complain "no row was left by the part that was killed"
[ "$kept" -lt 6 ] || complain "the part was through before it was killed"
fails 2 --merge "found no row of" -- compare --merge "$tmp/1"
touch -d 2001-01-01 "$tmp"/1/rows/*.row
works compare "$tmp/e.yaml" --part 1/2 --out "$tmp/1"
has "$err" "$kept of the 6 strategies of this part are there already"
[ "$(find "$tmp/1/rows" -name '*.row' ! -newermt 2002-01-01 | wc -l)" = "$kept" ] ||
    complain "a complete row was made again"

# The second part as a task of a Slurm array; a rank of mpirun finds nothing left to do.
SLURM_ARRAY_TASK_ID=8 SLURM_ARRAY_TASK_MIN=7 SLURM_ARRAY_TASK_COUNT=2 \
    works compare "$tmp/e.yaml" --part auto --out "$tmp/2"
OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 works compare "$tmp/e.yaml" --part auto --out "$tmp/2"
has "$err" "6 of the 6 strategies of this part are there already" "part 2 of 2"

works compare --merge "$tmp/1" "$tmp/2" --out "$tmp/merged" --pictures $pictures
cmp -s "$out" "$tmp/whole.txt" || complain "the merged table is another"
for dir in whole merged; do
    (cd "$tmp/$dir" && find . -type f | sort | while read -r file; do
        case $file in
        ./wall.json) ;;
        *) cksum "$file" ;;
        esac
    done) >"$tmp/$dir.sums"
done
cmp -s "$tmp/whole.sums" "$tmp/merged.sums" || complain "the merged files are others"
[ "$(wc -l <"$tmp/whole.sums")" -gt 100 ] || complain "hardly any files were compared"
[ $pictures != none ] || [ -z "$(find "$tmp/merged" -name '*.svg' -o -name '*.png')" ] ||
    complain "--merge --pictures none draws"
[ -s "$tmp/merged/summary.csv" ] || complain "no summary.csv"

# A row that is not whole, and rows of other settings, are made again.
row=$(find "$tmp/2/rows" -name '*.row' | head -n 1)
head -c 1000 "$row" >"$row.cut" && mv "$row.cut" "$row"
fails 2 --merge "found no row of" "1 of 12" -- compare --merge "$tmp/1" "$tmp/2"
works compare "$tmp/e.yaml" --part 2/2 --out "$tmp/2"
has "$err" "5 of the 6 strategies"
works compare "$tmp/e.yaml" --part 2/2 --out "$tmp/2" --set sim.host_scale=2
grep -q "there already" "$err" && complain "rows of another experiment were used"

# Mistakes
fails 2 --merge "another experiment" -- compare --merge "$tmp/1" "$tmp/2"
fails 2 --merge "$tmp/3" experiment.yaml -- compare --merge "$tmp/1" "$tmp/3"
fails 2 --merge allowed -- compare --merge
fails 2 --merge --part allowed -- compare --merge "$tmp/1" --part 1/2
fails 2 --merge --no-traces allowed -- compare --merge "$tmp/1" --no-traces
fails 2 "--pictures: found jpg" -- compare --merge "$tmp/1" --pictures jpg
fails 2 --part --out allowed -- compare "$tmp/e.yaml" --part 1/2
for part in 0/2 3/2 1/0 x 1 1/x /2 1/ -1/2; do
    fails 2 --part "$part" "allowed: I/N" -- compare "$tmp/e.yaml" --part "$part" --out "$tmp/4"
done
fails 2 --part auto variable -- compare "$tmp/e.yaml" --part auto --out "$tmp/4"
SLURM_PROCID=2 SLURM_NTASKS=2 fails 2 SLURM_PROCID 2 allowed -- \
    compare "$tmp/e.yaml" --part auto --out "$tmp/4"
SLURM_PROCID=x SLURM_NTASKS=2 fails 2 SLURM_PROCID x number -- \
    compare "$tmp/e.yaml" --part auto --out "$tmp/4"
fails 2 second b -- compare "$tmp/e.yaml" b
finish
