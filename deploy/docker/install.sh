#!/bin/sh
# Installs into /opt/chairlift what the project needs with the named extras, without the project. Part of the Dockerfile.
#
#   DEVICE=cpu PIP_FLAGS='…' install.sh worker otlp
set -eu
python=/opt/chairlift/bin/python

# shellcheck disable=SC2086  # flags are several words
pip() { /build/bin/pip --python "$python" install --no-cache-dir --no-compile ${PIP_FLAGS:-} "$@"; }

/build/bin/python /build/requirements.py /build/pyproject.toml "$@" >/build/requirements.txt

# torch first and alone: pip would otherwise choose its build by what other packages ask for.
torch="$(grep '^torch==' /build/requirements.txt || true)"
if [ -n "$torch" ] && [ "${DEVICE:-cpu}" = cpu ]; then
    pip "$torch+cpu" || {
        echo "no CPU build of torch in pip's indexes; name one that has it by the build argument" >&2
        echo "PIP_FLAGS='--extra-index-url <PyTorch index of CPU builds>'" >&2
        exit 1
    }
elif [ -n "$torch" ]; then
    pip "$torch"
fi

pip --constraint /build/constraints.txt --requirement /build/requirements.txt

# Nobody compiles against these packages here, checks types, or runs their tests.
site="$(ls -d /opt/chairlift/lib/python3*/site-packages)"
rm -rf "$site/torch/include" "$site/torch/share" "$site/torch/test" "$site/numpy/_core/include" "$site/numpy/f2py"
find "$site/numpy" -type d -name tests -prune -exec rm -rf {} + 2>/dev/null || true
find "$site" -name '*.pyi' -not -path '*/torch/*' -delete
# Compiled now: nothing can be written when it runs.
"$python" -m compileall -q "$site" >/dev/null || true
