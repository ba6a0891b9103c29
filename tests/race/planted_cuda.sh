#!/usr/bin/env bash
# The same on a GPU of the stand-in, whose streams run late on threads of their own.
#
# Environment: RACE_PLANTED_CUDA (the program).
[ -n "${RACE_PLANTED_CUDA:-}" ] || exit 77
RACE_PLANTED=$RACE_PLANTED_CUDA RUNS=5 exec bash "$(dirname "$0")/planted.sh"
