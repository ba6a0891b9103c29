#!/usr/bin/env bash
# tests/gpu/first.sh with the stand-in in the place of a GPU: one archive comes back, also when the command is killed; what
# was started ends; the last five lines name what failed and the next call. Exit 77: skipped, there is no python3.
command -v python3 >/dev/null || exit 77
: "${TSR_SOURCE_DIR:?the source tree}" "${TESSERA_STANDIN:?the program with the stand-ins}"
export TESSERA=$TESSERA_STANDIN
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh" || exit 1
: "${tmp:?a folder of our own}" "${out:?}" "${err:?}"
export XDG_CACHE_HOME=$tmp/cache TESSERA_GPU_DIR=$tmp/gpu TMPDIR=$tmp/temporary
first=$TSR_SOURCE_DIR/tests/gpu/first.sh
mkdir -p "$tmp/gpu" "$tmp/bin" "$TMPDIR"
ln -s "$TESSERA_STANDIN" "$tmp/gpu/tessera-cuda"
# As if the machine had a card of its own, and tools beside it.
cat >"$tmp/bin/nvidia-smi" <<'END'
#!/bin/sh
case $1 in
dmon) exec sleep 300 ;;
--query-compute-apps=*) ;;
*) echo "${1#*=}" | sed 's/[a-z_.]*/1/g' ;;
esac
END
chmod +x "$tmp/bin/nvidia-smi"
export PATH=$tmp/bin:$PATH

# kernel NAME SCRIPT: a test of kernels in the place of a real one.
kernel() {
    printf '#!/bin/sh\n%s\n' "$2" >"$tmp/gpu/gpu_test_kernels_$1"
    chmod +x "$tmp/gpu/gpu_test_kernels_$1"
}

# stage STATUS WORD...: runs first.sh; its words are in $out, its results in $tmp/results.
stage() {
    want=$1
    shift
    checks=$((checks + 1))
    "$first" "$@" >"$out" 2>"$err" </dev/null
    got=$?
    [ "$got" = "$want" ] || complain "first.sh $*: exit status $got, not $want"
}
# comes_back NAME FILE...: OUT/NAME.tar.gz is all that came back, and has the files.
comes_back() {
    name=$1
    shift
    checks=$((checks + 1))
    [ "$(ls -A "$tmp/back")" = "$name.tar.gz" ] || complain "came back: $(ls -A "$tmp/back")"
    rm -rf "$tmp/results"
    mkdir "$tmp/results"
    tar -C "$tmp/results" -xzf "$tmp/back/$name.tar.gz" || complain "$name.tar.gz is no archive"
    for file in "$@"; do
        [ -e "$tmp/results/$file" ] || complain "$name.tar.gz has no $file"
    done
    rm -rf "$tmp/back"
}
ours() { # how many processes have our environment
    local -a all=(/proc/[0-9]*/environ) # listed before grep and wc begin, which have it, too
    grep -lz "^TESSERA_GPU_DIR=$tmp/gpu$" "${all[@]}" 2>/dev/null | wc -l
}
nothing_is_left() {
    checks=$((checks + 1))
    for _ in $(seq 150); do
        left=$(ours)
        [ "$left" -gt "$here" ] || [ -n "$(ls -A "$TMPDIR")" ] || return
        sleep 0.2
    done
    complain "still there: $left processes, files '$(ls -A "$TMPDIR")'"
}
here=$(ours)

stage 2
stage 2 4 "$tmp/back"
has "$err" '1|2|3 OUT'
stage 2 1
stage 2 1 "$tmp/back" --seconds soon
stage 2 1 "$tmp/back" --seconds 0
stage 2 1 "$tmp/back" --every 08
stage 1 1 /proc/sys
has "$err" 'no file can be written there'
[ ! -e "$tmp/back" ] || complain "a command that was refused left something"

# No driver: it says so at once, and that is what comes back. The real program says it, too, where there is one.
kernel loss 'exit 1'
for program in "$TESSERA_STANDIN" "${TSR_BUILD_DIR:-}/tessera-cuda"; do
    [ -x "$program" ] || continue
    ln -sf "$program" "$tmp/gpu/tessera-cuda"
    for n in 1 2 3; do
        [ "$n$program" = "1$TESSERA_STANDIN" ] || [ "$program" != "$TESSERA_STANDIN" ] || continue
        TSR_STANDIN=driver=0 PATH=${PATH#"$tmp/bin:"} stage 1 "$n" "$tmp/back" --small --seconds 60
        checks=$((checks + 1))
        [ "$(grep -cE '^(card|seen|first failure|signs|next call): ' "$out")" = 5 ] || complain "no five lines"
        has "$out" 'card: no GPU' 'first failure: no GPU that this process may use' "next call: tests/gpu/first.sh $n $tmp/back, on a machine with a GPU and its driver"
        [ "$n" != 1 ] || has "$out" 'no GPU that this process may use (smoke.json)'
        comes_back "first-$n" steps.txt advice.txt
    done
done
ln -sf "$TESSERA_STANDIN" "$tmp/gpu/tessera-cuda"

# All is well.
for name in cudnn matmul norms loss fused optimizer rows lists; do
    kernel "$name" 'echo fine'
done
stage 0 1 "$tmp/back" --small
has "$out" 'smoke passed, kernels-cudnn passed' 'kernels-lists passed, bench-tiny-llama passed' 'first failure: none' "next call: tests/gpu/first.sh 3 $tmp/back"
comes_back first-1 smoke.json kernels-loss.txt bench-tiny-llama.json bench-tiny-gpt2.md dmon.txt
nothing_is_left

# A pack without some of its tests: where all else is well, that is the first failure (in the long form).
rm "$tmp/gpu/gpu_test_kernels_cudnn" "$tmp/gpu/gpu_test_kernels_matmul"
if [ -n "${TSR_THOROUGH:-}" ]; then
    stage 1 1 "$tmp/back" --small
    has "$out" 'kernels-cudnn missing, kernels-matmul missing' 'first failure: kernels-cudnn: the pack has no gpu_test_kernels_cudnn' \
        "next call: tests/gpu/first.sh 2 $tmp/back"
    comes_back first-1 steps.txt
fi

# A job that fails runs again without graphs, one task at a time, and under memcheck, of our kernels alone.
rm "$tmp/gpu/tessera-cuda"
printf '#!/bin/sh\ncase "$*" in *--version*|*--graphs*|*--serial*) exec "%s" "$@" ;; *tiny-llama*) echo "an illegal memory access"; exit 1 ;; esac\nexec "%s" "$@"\n' \
    "$TESSERA_STANDIN" "$TESSERA_STANDIN" >"$tmp/gpu/tessera-cuda"
printf '#!/bin/sh\necho "$@" >"%s"\n' "$tmp/memcheck" >"$tmp/bin/compute-sanitizer"
chmod +x "$tmp/gpu/tessera-cuda" "$tmp/bin/compute-sanitizer"
stage 1 1 "$tmp/back" --small
has "$out" 'kernels-cudnn missing, kernels-matmul missing' \
    'bench-tiny-llama failed, tiny-no-graphs passed, tiny-serial passed, tiny-memcheck passed' "next call: tests/gpu/first.sh 2 $tmp/back"
has "$tmp/memcheck" '--kernel-regex kns=tsr_cuda'
comes_back first-1 steps.txt tiny-serial.txt
ln -sf "$TESSERA_STANDIN" "$tmp/gpu/tessera-cuda"
kernel cudnn 'echo fine'
kernel matmul 'echo fine'

# A command that is killed while a test hangs that hears no signal: what there was comes back, and nothing goes on.
kernel loss 'echo "o->block is NULL"; trap "" TERM; setsid sleep 300 & while :; do sleep 1; done'
for whom in '' -; do # the command, or all of its process group
    set -m
    "$first" 1 "$tmp/back" --small --every 1 >"$out" 2>"$err" </dev/null &
    set +m
    for _ in $(seq 300); do
        tar -tzf "$tmp/back/first-1.tar.gz" 2>/dev/null | grep -q kernels-loss && break
        sleep 0.2
    done
    kill -KILL -- "$whom$!"
    wait $! 2>/dev/null
    nothing_is_left
    comes_back first-1 smoke.json kernels-loss.txt running.txt
done

# One that is told to end says what it saw.
kernel loss 'echo "[  ERROR   ] o->block"; echo "tessera: slow: 3 products in a plain kernel"; exit 1'
kernel optimizer 'touch "$TMPDIR/hangs"; sleep 300'
"$first" 1 "$tmp/back" --small >"$out" 2>"$err" </dev/null &
for _ in $(seq 300); do
    [ -e "$TMPDIR/hangs" ] && break
    sleep 0.2
done
rm -f "$TMPDIR/hangs"
kill -TERM $!
wait $!
has "$out" 'kernels-loss failed' 'first failure: kernels-loss: status 1: [  ERROR   ] o->block' 'signs: memory of a test was refused' \
    'a way that is many times slower was taken or refused' \
    'kernels-optimizer interrupted' 'gpu_test_kernels_loss'
comes_back first-1 advice.txt
nothing_is_left
finish
