#!/bin/sh
# The report's tests look at the real page in headless Chromium. Find one, or install Debian's.
set -eu
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing chromium for the report's browser tests"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null
    exit 0
fi
if [ "${CI:-}" = true ]; then
    echo "no chromium found and not root: install it, the report's browser tests need it" >&2
    exit 1
fi
echo "NOTE: no chromium found, the report's browser tests will be skipped (apt-get install chromium)" >&2
