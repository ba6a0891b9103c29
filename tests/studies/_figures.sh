# shellcheck shell=sh
# Sourced by the scripts of this folder, after tests/cli/_common.sh: figures of reports.

# equal WHAT A B
equal() {
    checks=$((checks + 1))
    if [ -z "$2" ] || [ "$2" != "$3" ]; then
        complain "$1: $2 is not $3"
    fi
}
# value FILE SECTION KEY: of the first KEY in a SECTION of a report (JSON with an indent of 2).
value() {
    awk -v section="  \"$2\"" -v key="\"$3\":" 'index($0, section) == 1 { on = 1 }
        on && index($0, key) { sub(/.*": /, ""); sub(/,$/, ""); gsub(/"/, ""); print; exit }' "$1"
}
# column FILE STRATEGY NAME: of compare --format csv.
column() {
    grep -v '^#' "$1" | sed 's/"[^"]*"/text/g' | awk -F, -v strategy="$2" -v name="$3" '
        NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i } $2 == strategy { print $at[name] }'
}
