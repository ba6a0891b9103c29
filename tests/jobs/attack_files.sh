#!/usr/bin/env bash
# What others may put into the folders of a run and of a study: links, FIFOs, folders and files of their
# own under each name that tessera uses; files that are cut; folders that are exchanged meanwhile.
# Always: nothing outside of the folder changes, nothing hangs, what is not tessera's stays, and a
# failure is one line. The suite takes every fifth of the attacks, its short form every 15th; TSR_ATTACKS=all takes them all, and
# TSR_RACE_S says for how many seconds folders are exchanged (tests/jobs/README.md).
# shellcheck source=tests/jobs/_faults.sh
. "$TSR_SOURCE_DIR/tests/jobs/_faults.sh" || exit 1
export LC_ALL=C
stride=15 number=0 race_s=1
if thorough; then
    stride=5 race_s=3
fi
[ "${TSR_ATTACKS:-}" != all ] || stride=1
race_s=${TSR_RACE_S:-$race_s}
whole=$tmp/whole run=$tmp/run victim=$tmp/victim

# Files as tessera names them, which a careless program would remove or overwrite.
make_victim() {
    rm -rf "$victim"
    mkdir -p "$victim/step_00000002" "$victim/fsdp"
    cp -r "$whole"/checkpoints/step_00000006/. "$victim"
    cp -r "$whole"/checkpoints/step_00000006/. "$victim/step_00000002"
    echo precious >"$victim/file"
    (cd "$victim" && find . -printf '%p %i %s %y\n' | sort && find . -type f -exec md5sum {} + | sort) >"$tmp/victim.was"
}

untouched() {
    checks=$((checks + 1))
    (cd "$victim" && find . -printf '%p %i %s %y\n' | sort && find . -type f -exec md5sum {} + | sort) >"$tmp/victim.is"
    cmp -s "$tmp/victim.was" "$tmp/victim.is" || {
        complain "$1: the victim was changed"
        make_victim
    }
}

# put KIND PATH: instead of what is there
put_there() {
    rm -rf "$2"
    mkdir -p "${2%/*}"
    case $1 in
    file-link) ln -s "$victim/file" "$2" ;;
    folder-link) ln -s "$victim" "$2" ;;
    no-link) ln -s "$victim/none" "$2" ;;
    fifo) mkfifo "$2" ;;
    folder) mkdir "$2" && echo theirs >"$2/theirs" ;;
    esac
}
kinds=(file-link folder-link no-link fifo folder)

notes="passed over a damaged checkpoint|going on behind step|was cut off|no line of steps|left alone\$"
# ends WHAT ARGUMENT...: within a minute, with 0 or a failure of one line.
ends() {
    local what=$1 got
    shift
    checks=$((checks + 1))
    timeout -k 1 "${TSR_LIMIT_S:-60}" "$TESSERA" "$@" >"$out" 2>"$err" </dev/null
    got=$?
    case $got in
    0) ;;
    1 | 2) [ "$(grep -cvE "$notes" "$err")" = 1 ] || complain "$what: not one line that says why" ;;
    *) complain "$what: status $got" ;;
    esac
    [ "$(grep -cv '^tessera: ' "$err")" = 0 ] || complain "$what: a line of another kind"
    untouched "$what"
    return $got
}
mine() { # of this round
    number=$((number + 1))
    ((number % stride == 0))
}

fsdp=(run "$job" --on host --strategy fsdp --ranks 1)
works "${fsdp[@]}" --out "$whole" --set train.steps=6
make_victim

# ---- each name of a run --------------------------------------------------------------------------

rank=rank_00000-of-00001.safetensors
for name in lock run.json run.json.tmp metrics.jsonl checkpoints checkpoints/step_00000006 \
    checkpoints/step_00000004 checkpoints/step_00000002 checkpoints/step_00000008 \
    checkpoints/step_00000008.tmp checkpoints/step_00000006.tmp checkpoints/step_00000002.old \
    checkpoints/step_00000006/{COMMIT,meta.json,$rank} checkpoints/step_00000002/{COMMIT,meta.json,$rank,theirs} \
    checkpoints/step_00000008.tmp/{COMMIT,$rank}; do
    for kind in "${kinds[@]}"; do
        mine || continue
        rm -rf "$run"
        cp -r "$whole" "$run"
        put_there $kind "$run/$name"
        ends "$kind at $name" "${fsdp[@]}" --resume "$run" --set train.steps=12 --set checkpoints.keep=1
        [ $kind != folder ] || [ "$(cat "$run/$name/theirs" 2>&1)" = theirs ] || complain "$kind at $name: it is gone"
        [ $kind != fifo ] || [ -p "$run/$name" ] || complain "$kind at $name: it is gone"
    done
done

# What was pruned and what was left alone is said by name.
rm -rf "$run"
cp -r "$whole" "$run"
echo theirs >"$run/checkpoints/step_00000002/theirs"
ln -s "$victim" "$run/checkpoints/step_00000001"
ends "pruning" "${fsdp[@]}" --resume "$run" --set train.steps=8 --set checkpoints.keep=1
has "$err" "checkpoints/step_00000002 holds \"theirs\", which tessera did not write: left alone"
[ -e "$run/checkpoints/step_00000002/$rank" ] || complain "pruning: a checkpoint with a file of others lost one of its own"
[ ! -e "$run/checkpoints/step_00000004" ] || complain "pruning: step 4 is still there"
rm "$run/checkpoints/step_00000002/theirs"
ends "pruning" "${fsdp[@]}" --resume "$run" --set train.steps=10 --set checkpoints.keep=1
has "$err" "checkpoints/step_00000001: is a symbolic link, which is not followed" "left alone"
[ ! -e "$run/checkpoints/step_00000002" ] || complain "pruning: step 2 is still there"

# ---- files that are cut --------------------------------------------------------------------------

while IFS= read -r name; do
    for bytes in 0 1 half less; do
        mine || continue
        rm -rf "$run"
        cp -r "$whole" "$run"
        size=$(stat -c %s "$run/$name")
        case $bytes in
        half) truncate -s $((size / 2)) "$run/$name" ;;
        less) [ "$size" = 0 ] || truncate -s -1 "$run/$name" ;;
        *) truncate -s $bytes "$run/$name" ;;
        esac
        ends "$name cut to $bytes" "${fsdp[@]}" --resume "$run" --set train.steps=8 || complain "$name cut to $bytes"
        [ "$name" != metrics.jsonl ] || has "$err" "$run/metrics.jsonl: "
        ends "export after $name was cut" export "$run" --out "$tmp/exported" || complain "no export"
    done
done < <(cd "$whole" && find . -type f | sed 's|^\./||' | sort)

# A line that was cut, and steps that are missing: each is said; every other line stays.
rm -rf "$run"
cp -r "$whole" "$run"
truncate -s -5 "$run/metrics.jsonl"
works "${fsdp[@]}" --resume "$run" --set train.steps=8
has "$err" "metrics.jsonl: line 6 was cut off" "and is dropped; no line of steps 6 to 6"
[ "$(losses "$run" | cut -d ' ' -f 1 | tr '\n' ' ')" = "1 2 3 4 5 7 8 " ] || complain "other steps than 1 to 5, 7 and 8"
rm -rf "$run"
cp -r "$whole" "$run"
rm "$run/metrics.jsonl"
works "${fsdp[@]}" --resume "$run" --set train.steps=8
has "$err" "metrics.jsonl: no line of steps 1 to 6"
works "${fsdp[@]}" --resume "$whole" --out "$tmp/other" --set train.steps=8
grep -q metrics "$err" && complain "a new folder has no gap"

# ---- each name of a study ------------------------------------------------------------------------

study=$tmp/study.yaml
cat >"$study" <<'Y'
model: tiny.json
cluster: dgx-h100-1
world: 2
batch: 1
seq: 16
strategies:
  fsdp: {}
  ddp: {api: ddp}
Y
works compare "$study" --out "$tmp/study"
while IFS= read -r name; do
    for kind in "${kinds[@]}"; do
        mine && mine || continue
        rm -rf "$run"
        mkdir "$run"
        put_there $kind "$run/$name"
        ends "$kind at $name" compare "$study" --out "$run"
        [ $kind != folder ] || [ "$(cat "$run/$name/theirs" 2>&1)" = theirs ] || complain "$kind at $name: it is gone"
        [ $kind != fifo ] || [ -p "$run/$name" ] || complain "$kind at $name: it is gone"
    done
done < <((cd "$tmp/study" && find . -mindepth 1 && printf '%s\n' ./.new-compare-bars.svg ./fsdp/.new-memory.png) | sed 's|^\./||' | sort)
grep -q . "$tmp/study/summary.json" || complain "no study"

# ---- inputs that are no files --------------------------------------------------------------------

mkfifo "$tmp/fifo" "$tmp/fifo.json" "$tmp/fifo.yaml" "$tmp/fifo.csv" "$tmp/fifo.xml"
for input in "$tmp/fifo" /dev/zero /dev/tty "$tmp"; do
    [ ! -e "$input.json" ] || json=$input.json
    for set in "model=$input" "model=${json:-$input}" "cluster=$input" "cluster=${json:-$input}" "model.tree=$input" \
        "data.train=$input" "model.weights=$input"; do
        ends "--set $set" run "$study" --on host --strategy fsdp --set "$set" && complain "--set $set works"
    done
    for command in "compare $input" "validate $input" "kernels $input" "calibrate $input" "memory $input" \
        "trace $input" "check $input" "overlap $input" "diff $input $input" "corpus $input --out $tmp/corpus" \
        "export $input --out $tmp/exported" "compare $study --measured $input"; do
        # shellcheck disable=SC2086
        ends "$command" $command && [ "$input" != "$tmp" ] && complain "$command works"
    done
done
checks=$((checks + 2))
sed -i "s|tiny.json|$tmp/tiny.json|" "$study"
"$TESSERA" compare /dev/stdin <"$study" >"$out" 2>"$err" || complain "/dev/stdin"
# shellcheck disable=SC2002
cat "$study" | "$TESSERA" compare /dev/stdin >"$out" 2>"$err" || complain "a pipe as /dev/stdin"
"$TESSERA" memory "$TSR_SOURCE_DIR/tests/golden-memory/tiny-base.json" -o /dev/stdout 2>"$err" | cat >"$out"
grep -q . "$out" || complain "-o /dev/stdout"
[ -h /dev/stdout ] || complain "/dev/stdout was replaced"

# ---- folders that are exchanged meanwhile --------------------------------------------------------

exchange() {
    local step
    while [ ! -e "$tmp/enough" ]; do
        for step in "$run"/checkpoints/step_*; do
            mv "$step" "$tmp/held" 2>/dev/null || continue
            ln -s "$victim" "$step" 2>/dev/null
            sleep 0.005
            rm -f "$step" 2>/dev/null
            [ -e "$step" ] || mv "$tmp/held" "$step" 2>/dev/null
            rm -rf "$tmp/held"
        done
        sleep 0.003
    done
}
begin=$SECONDS rounds=0
while ((SECONDS - begin < race_s)); do
    rm -rf "$run" "$tmp/enough"
    cp -r "$whole" "$run"
    exchange &
    other=$!
    ends "folders exchanged" "${fsdp[@]}" --resume "$run" --set train.steps=20 --set checkpoints.every=1 \
        --set checkpoints.keep=1
    : >"$tmp/enough"
    wait $other
    rounds=$((rounds + 1))
done
echo "$number attacks, every ${stride}th of them; $rounds rounds of exchanges"
finish
