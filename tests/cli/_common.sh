# shellcheck shell=bash
# Sourced by the scripts of this folder. TESSERA is the program, TSR_SOURCE_DIR the source tree.
#
#   fails STATUS WORD... -- ARGUMENT...    runs tessera: that exit status, nothing on stdout, exactly
#                                          one line on stderr, and every WORD in it
#   works ARGUMENT...                      runs tessera: exit status 0; stdout in $out, stderr in $err
#   has FILE WORD...                       FILE holds every WORD, which may go on in the next line
#   no_pictures                            from here on $TESSERA finds no gnuplot: no time for pictures that no test reads
#   thorough                               true in the long form (TSR_THOROUGH, set by tests/run.sh --thorough)
#   every N [M]                            copies every Nth line of stdin to stdout; the long form every Mth (default 1)
#
# A script goes on after a failure and ends with `finish`. Words are looked for without a process each: there are ten thousand.
: "${TESSERA:?the program}" "${TSR_SOURCE_DIR:?the source tree}"
unset COLUMNS # reports are as wide as in a pipe
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
out=$tmp/stdout
err=$tmp/stderr
bad=0
checks=0
newline='
'

no_pictures() {
    printf '#!/bin/sh\nPATH= exec "%s" "$@"\n' "$TESSERA" >"$tmp/no-pictures"
    chmod +x "$tmp/no-pictures"
    TESSERA=$tmp/no-pictures
}

thorough() {
    [ -n "${TSR_THOROUGH:-}" ]
}

every() {
    thorough && set -- "${2:-1}"
    awk -v n="$1" '(NR - 1) % n == 0'
}

complain() {
    bad=$((bad + 1))
    printf 'FAILED: %s\n' "$*"
    sed 's/^/  stdout: /' "$out" 2>/dev/null | head -n 3
    sed 's/^/  stderr: /' "$err" 2>/dev/null | head -n 3
}

fails() {
    want=$1
    shift
    n=0
    while [ "$1" != -- ]; do
        n=$((n + 1))
        eval "word_$n=\$1"
        shift
    done
    shift
    checks=$((checks + 1))
    "$TESSERA" "$@" >"$out" 2>"$err" </dev/null
    got=$?
    [ "$got" = "$want" ] || complain "tessera $*: exit status $got, not $want"
    _said=$(<"$err")
    case $_said in
    '' | *"$newline"*) complain "tessera $*: $(wc -l <"$err") lines on stderr, not 1" ;;
    esac
    [ -s "$out" ] && complain "tessera $*: something on stdout"
    i=1
    while [ $i -le $n ]; do
        eval "word=\$word_$i"
        case $_said in
        *"$word"*) ;;
        *) complain "tessera $*: no \"$word\" on stderr" ;;
        esac
        i=$((i + 1))
    done
}

works() {
    checks=$((checks + 1))
    "$TESSERA" "$@" >"$out" 2>"$err" </dev/null
    got=$?
    [ "$got" = 0 ] || complain "tessera $*: exit status $got, not 0"
}

has() {
    file=$1 _flat=
    shift
    _said=$(<"$file")
    for word; do
        checks=$((checks + 1))
        case $_said in *"$word"*) continue ;; esac
        [ -n "$_flat" ] || _flat=$(sed 's/ \\$//' "$file" | tr -s ' \n' ' ')
        case $_flat in *"$word"*) continue ;; esac
        complain "no \"$word\" in ${file##*/}"
    done
}

# same A B: two files are equal.
same() {
    checks=$((checks + 1))
    cmp -s "$1" "$2" || {
        complain "$(basename "$1") and $(basename "$2") differ"
        diff "$1" "$2" | head -n 5
    }
}

finish() {
    printf '%d checks, %d failed\n' "$checks" "$bad"
    [ "$bad" = 0 ]
    exit
}
