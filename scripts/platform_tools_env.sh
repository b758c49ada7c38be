#!/usr/bin/env bash
# Make the environment of the platforms' own tools that exported files are held against, or reuse it,
# and print its folder: Modal's and SkyPilot's packages, Kubernetes' and Compose's schemas.
#
# It stands alone because its pins are not ours. The folder is $RIDGELINE_PLATFORMS_VENV, or else one
# in the user's cache named by the Python version. Compose's schema (compose_spec.json in the folder)
# is taken out of docker-compose 1.29.2, which cannot be installed beside the rest.
set -Eeuo pipefail
root=$(dirname "$(cd "$(dirname "$0")" && pwd)")
pins=$root/constraints-platforms.txt
python=${PYTHON:-$root/.venv/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python3
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
venv=${RIDGELINE_PLATFORMS_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/ridgeline/platforms-py$version}
seal=$venv/.ridgeline-complete
want=$(sha256sum <"$pins" | cut -d' ' -f1)
mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock"
flock 9 # a second caller waits for the first and then finds its work done
if [ "$(cat "$seal" 2>/dev/null)" != "$want" ]; then
    rm -rf "$venv"
    "$python" -m venv "$venv" >&2
    pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@" --quiet >&2; }
    pip install --constraint "$pins" kubernetes-validate modal skypilot ||
        { echo "platform_tools_env: the packages could not be installed" >&2; exit 1; }
    pip download --no-deps --dest "$venv/wheels" docker-compose==1.29.2
    "$venv/bin/python" - "$venv" <<'PYTHON'
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
(wheel,) = (folder / "wheels").glob("docker_compose-*.whl")
schema = zipfile.ZipFile(wheel).read("compose/config/compose_spec.json")
(folder / "compose_spec.json").write_bytes(schema)
PYTHON
    echo "$want" >"$seal"
fi
echo "$venv"
