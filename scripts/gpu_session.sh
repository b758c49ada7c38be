#!/usr/bin/env bash
# Run studies on a GPU host that has no network and takes commands of a few minutes each.
#
#   gpu_session.sh wheels WHEELS          with a network: gather Ridgeline's needs for the host's
#                                         Python (PYTHON_VERSION, 3.12 unless set); 57 MB without
#                                         NumPy and SciPy, which may be deleted if the host has them
#   gpu_session.sh install WHEELS STATE   on the host: an environment of its own in STATE/venv
#   gpu_session.sh start STATE STUDY...   on the host: run study files one after another, in a
#                                         session of their own, and return at once; a STUDY may carry
#                                         options: "studies/h200-knobs.yaml --gpu-minutes 15", and
#                                         begin with a verb, study or tune:
#                                         "tune studies/h200-tune-32.yaml --gpu-minutes 20"
#   gpu_session.sh wait STATE SECONDS [PACK]
#                                         on the host: follow them until all are done or the time is
#                                         over, then pack what is there into the folder PACK
#   gpu_session.sh stop STATE             end tidily: what was measured is kept
#
# Engines stay up between `start` and the end, whatever number of `wait` lies between. Results are in
# runs/NAME of the repository (or RUNS/NAME; of a tuning runs/NAME-tune); start again after a lost host (with runs/NAME brought back) and what
# was measured is not measured again. `wait` packs results.tar.gz (trimmed, for the repository) and
# raw.tar.gz.aa, .ab, ... (everything, in parts of 15 MB: cat them together to unpack).
#
# Before `start` a `vllm` program must be on the PATH. Where vLLM is only an unpacked folder SITE:
#   printf '#!/bin/sh\nPYTHONPATH=%s exec python3 -m vllm.entrypoints.cli.main "$@"\n' SITE >bin/vllm
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
runs=${RUNS:-$repo/runs}
python=${PYTHON:-python3}

usage() { sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p' >&2; exit 2; }
fail() { echo "gpu_session.sh: $*" >&2; exit 2; }

wheels() {
    local version=${PYTHON_VERSION:-3.12} platforms=() n
    for n in 39 28 27 17; do platforms+=(--platform "manylinux_2_${n}_x86_64"); done
    platforms+=(--platform manylinux2014_x86_64)
    mkdir -p "$1"
    sed -n '/^dependencies = \[/,/^\]/s/^ *"\(.*\)",$/\1/p' "$repo/pyproject.toml" >"$1/needs.txt"
    "$python" -m pip download --quiet --disable-pip-version-check --dest "$1" \
        --only-binary=:all: --implementation cp --python-version "$version" "${platforms[@]}" \
        --constraint "$repo/constraints.txt" --requirement "$1/needs.txt"
    du -sh "$1"
}

install() {
    ls "$1"/*.whl >/dev/null 2>&1 || fail "$1 holds no wheels: make it with 'gpu_session.sh wheels $1'"
    local venv=$2/venv site
    "$python" -m venv --without-pip "$venv"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile \
        --target "$site" "$1"/*.whl
    # ours first, then what the host's Python has: NumPy and SciPy need not travel where it has them
    { echo "$repo/src"; "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; } >"$site/ridgeline.pth"
    printf '#!/bin/sh\nexec "%s/bin/python" -m ridgeline.cli.main "$@"\n' "$(cd "$venv" && pwd)" >"$2/ridgeline"
    chmod +x "$2/ridgeline"
    "$2/ridgeline" --version
}

verb_of() { case $1 in "tune "*) echo tune ;; *) echo study ;; esac; }
words_of() { case $1 in "tune "* | "study "*) echo "${1#* }" ;; *) echo "$1" ;; esac; }
file_of() { local words; words=$(words_of "$1"); echo "${words%% *}"; }
name_of() {
    local name; name=$(sed -n 's/^name: *//p' "$(file_of "$1")" | head -1)
    if [ "$(verb_of "$1")" = tune ]; then echo "$name-tune"; else echo "$name"; fi
}
# A process that has ended may stay in the process table where nobody collects it (state Z).
running() {
    [ -f "$1/pid" ] && [ ! -f "$1/finished" ] || return 1
    grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$(cat "$1/pid")/status"
}

start() {
    local state=$1 study; shift
    mkdir -p "$state"
    state=$(cd "$state" && pwd)
    running "$state" && fail "studies of $state are running already: 'wait' follows them"
    for study in "$@"; do
        [ -f "$repo/$(file_of "$study")" ] || [ -f "$(file_of "$study")" ] || fail "no study file $(file_of "$study")"
    done
    rm -f "$state/finished" "$state/child" "$state/stopped"
    printf '%s\n' "$@" >"$state/studies"
    setsid "$repo/scripts/gpu_session.sh" _run "$state" "$@" </dev/null >>"$state/log" 2>&1 &
    echo $! >"$state/pid"
    echo "started; follow it with: gpu_session.sh wait $state SECONDS"
}

_run() {  # inside the session of its own
    local state=$1 study code; shift
    cd "$repo"
    for study in "$@"; do
        [ ! -f "$state/stopped" ] || break
        code=0
        # word splitting is meant: a study may carry options
        # shellcheck disable=SC2046,SC2086
        ${RIDGELINE:-$state/ridgeline} $(verb_of "$study") $(words_of "$study") --out "$runs/$(name_of "$study")" --quiet &
        echo $! >"$state/child"
        wait $! || code=$?
        echo "== $(file_of "$study"): exit code $code"
    done
    rm -f "$state/stopped" "$state/child"
    touch "$state/finished"
}

wait_for() {
    local state=$1 limit=$2 begun=$SECONDS
    tail -n 5 -f "$state/log" & local follower=$!
    while [ ! -f "$state/finished" ] && running "$state" && [ $((SECONDS - begun)) -lt "$limit" ]; do sleep 1; done
    sleep 0.2; kill "$follower" 2>/dev/null || true
    [ $# -lt 3 ] || pack "$state" "$3"
    if [ -f "$state/finished" ]; then echo "finished"; else echo "not finished: wait again"; fi
}

pack() {
    local state=$1 out=$2 study name kept raw=()
    mkdir -p "$out"
    kept=$(mktemp -d)
    while read -r study; do
        name=$(cd "$repo" && name_of "$study")
        [ -f "$runs/$name/index.json" ] || [ -f "$runs/$name/tune.jsonl" ] || continue
        "$python" "$repo/scripts/trim_results.py" "$runs/$name" "$kept/$name"
        raw+=("$name")
    done <"$state/studies"
    cp "$state/log" "$out/session.log"
    if [ ${#raw[@]} -gt 0 ]; then
        tar -C "$kept" -czf "$out/results.tar.gz" "${raw[@]}"
        rm -f "$out"/raw.tar.gz.*
        # a run that is going on writes while we read: that is no error
        (tar -C "$runs" --warning=no-file-changed -czf - "${raw[@]}" || [ $? -eq 1 ]) |
            split -b 15M - "$out/raw.tar.gz."
    fi
    rm -rf "$kept"
    ls -l "$out"
}

stop() {
    running "$1" || { echo "nothing runs"; return; }
    touch "$1/stopped"
    [ ! -f "$1/child" ] || kill -TERM "$(cat "$1/child")" 2>/dev/null || true
    while running "$1"; do sleep 0.2; done
    echo "stopped"
}

case ${1:-}/$# in
    wheels/2) wheels "$2" ;;
    install/3) install "$2" "$3" ;;
    start/[3-9]) shift; start "$@" ;;
    wait/[34]) shift; wait_for "$@" ;;
    stop/2) stop "$2" ;;
    _run/*) shift; _run "$@" ;;
    *) usage ;;
esac
