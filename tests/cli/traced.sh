#!/bin/sh
# Models from traces: every subcommand takes them, and everything that is wrong with a file or does not
# fit a trace is one line. Exit 77: skipped, there is no python3.
command -v python3 >/dev/null || exit 77
exec python3 "$TSR_SOURCE_DIR/tests/cli/traced.py"
