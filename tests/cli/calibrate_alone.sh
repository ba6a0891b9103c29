#!/usr/bin/env bash
# calibrate_host.sh where no other test runs, with the narrower limit. Exit 77: skipped, this is the short form.
[ -n "${TSR_THOROUGH:-}" ] || exit 77
TSR_ALONE=1 exec bash "${TSR_SOURCE_DIR:?the source tree}/tests/cli/calibrate_host.sh"
