#!/bin/sh
# Debian's Prometheus, unpacked (not installed) for the acceptance test of `ridgeline watch`.
# Prints the folder that has prometheus and promtool.
set -eu
folder=${XDG_CACHE_HOME:-$HOME/.cache}/ridgeline/prometheus
if ! [ -x "$folder/usr/bin/promtool" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    (cd "$work" && apt-get download -qq prometheus >&2)
    mkdir -p "$folder"
    dpkg-deb -x "$work"/prometheus_*.deb "$folder"
fi
echo "$folder/usr/bin"
