#!/usr/bin/env bash
# Every command that the README and the guide print, in their order. Short form: each one names a subcommand, options and
# files that exist. Long form (TSR_PRINTED=1; --thorough leaves it out, because it builds once more): a clone runs
# experiments/quickstart.sh and then all of them, in one folder and one home, as a reader would. Commands are the lines of
# ```sh blocks; what cannot run stands below with its reason.
set -u
: "${TESSERA:?the program}" "${TSR_SOURCE_DIR:?the source tree}"
cd "$TSR_SOURCE_DIR" || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
bad=0
complain() {
    bad=$((bad + 1))
    printf 'FAILED: %s\n' "$*"
}

# pattern of the whole command | why it does not run here
not_run='
tests/run\.sh.* | it runs this test
experiments/portable\.sh.* | it needs the network and minutes; install/portable.sh tests what it makes
scp .* | it needs another machine
tar -xzf tessera-0.* | it needs the archive of portable.sh
export PATH=.*tessera-0.* | it needs the archive of portable.sh
tessera compare tessera-0.* | it needs the archive of portable.sh
srun .* | it needs Slurm
export TSR_TOKEN=.* | it is for srun
docker .* | it needs Docker and the network
pip install .* | it needs PyTorch; torch/package.sh tests the package
python -m tessera .* | it needs PyTorch; torch/package.sh tests the package
xdg-open .* | it needs a desktop; report/page.sh opens the page
cd build && cpack .* | it builds every test first; install/deb.sh makes the package
build/tessera run FILE .*--on cuda.* | it needs GPUs
experiments/validation/fit\.py .* | it repeats a validation for each value that it tries, for many minutes
build/tessera calibrate rank0\.json\.gz .* | it needs a recording of a GPU; cli/calibrate_trace.sh has one
build/tessera calibrate --nccl-log .* | it needs a log of nccl-tests; cli/calibrate.sh has one
'
# a placeholder | what stands for it
stands_for='
FILE | experiments/flagship/dgx-h100-8.yaml
DIR | out/dir
TABLE\.csv | experiments/validation/llmc.csv
--only fsdp,hsdp --set | --only fsdp,hsdp-2x4 --set
'

pages="README.md $(sed -n 's/^| .* | \[\([a-z-]*\.md\)\].*/experiments\/guide\/\1/p' experiments/guide/README.md)"
for page in $pages; do # PAGE:LINE command
    awk '
        /^ *```/ { code = !code && /```sh/; next }
        !code { next }
        { sub(/  +#.*$/, ""); sub(/ +$/, "") }
        /^#/ || /^$/ { next }
        /\\$/ { sub(/ *\\$/, ""); held = held $0 " "; next }
        { sub(/^ +/, ""); print FILENAME ":" FNR " " held $0; held = "" }
    ' "$page"
done >"$work/all"

: >"$work/commands"
printf '%s\n' "$not_run" | sed 's/ | .*//' | grep . >"$work/patterns"
while IFS= read -r line; do
    command=${line#* }
    grep -qxE -f "$work/patterns" <<<"$command" || printf '%s\n' "$line" >>"$work/commands"
done <"$work/all"
while IFS= read -r pattern; do # a reason for what is no longer printed
    sed 's/^[^ ]* //' "$work/all" | grep -cxE -e "$pattern" >/dev/null || complain "no page prints what is left out as $pattern"
done <"$work/patterns"

while IFS='|' read -r from to; do
    [ -z "${from// /}" ] || sed -i "s|\\([ :]\\)${from% }\\b|\\1${to# }|g" "$work/commands"
done <<<"$stands_for"

[ "$(wc -l <"$work/commands")" -ge 80 ] || complain "only $(wc -l <"$work/commands") commands were found"

# ---- short: names that exist --------------------------------------------------------------------

check_names() { # WHERE WORD...
    local where=$1 sub=$3 word path
    local help=$work/help-$sub
    [ -s "$help" ] || "$TESSERA" help "$sub" >"$help" 2>/dev/null || {
        complain "$where: there is no subcommand $sub"
        return
    }
    shift 3
    for word; do
        case $word in
        --*) grep -qF -e "${word%%=*}" "$help" || complain "$where: $sub has no option ${word%%=*}" ;;
        experiments/* | tests/*)
            path=${word%%:*}
            [ -e "$path" ] || complain "$where: there is no $path"
            ;;
        esac
    done
}
while IFS= read -r line; do
    where=${line%% *} command=${line#* }
    while [[ $command == *" && "* ]]; do
        eval "check_names \"$where\" ${command%% && *}"
        command=${command#* && }
    done
    case $command in
    tessera\ * | build/tessera\ *) eval "check_names \"$where\" $command" ;;
    cmake\ *) ;;
    *) [ -x "${command%% *}" ] || complain "$where: there is no program ${command%% *}" ;;
    esac
done <"$work/commands"
printf '%d commands printed, %d of them can run here\n' "$(wc -l <"$work/all")" "$(wc -l <"$work/commands")"
[ -n "${TSR_PRINTED:-}" ] || exit $((bad > 0))

# ---- long: all of them, in a clone ----------------------------------------------------------------

clone=$work/clone
mkdir "$clone" "$work/home"
if ! git ls-files -z >"$work/files" 2>/dev/null; then # no repository: an archive of one
    find . -path './build*' -prune -o -path ./out -prune -o -type f -print0 >"$work/files"
fi
tar --null --ignore-failed-read -T "$work/files" -cf - 2>/dev/null | tar -xf - -C "$clone"
cd "$clone" || exit 1
export HOME=$work/home PATH=$clone/build:$PATH
n=0
while IFS= read -r line; do
    where=${line%% *} command=${line#* }
    case $command in
    experiments/quickstart.sh) [ ! -e build/tessera ] || continue ;; # once: other pages print it again
    esac
    n=$((n + 1))
    begin=$SECONDS
    timeout 900 bash -c "$command" >"$work/said" 2>&1 </dev/null || {
        complain "$where: $command: exit status $?"
        tail -n 3 "$work/said"
    }
    [ $((SECONDS - begin)) -lt 60 ] || printf '%d s: %s\n' $((SECONDS - begin)) "$command"
done <"$work/commands"
[ -x "$HOME/.local/bin/tessera" ] || complain "nothing was installed in ~/.local"
printf '%d commands ran in %d s\n' $n $SECONDS
exit $((bad > 0))
