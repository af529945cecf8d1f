#!/usr/bin/env bash
# A private Docker engine and the two base images, for machines that have no engine running and reach no registry.
#
#   engine.sh start   starts dockerd below CHAIRLIFT_ENGINE_DIR and makes the base images that are missing; needs root,
#                     and Debian's packages docker.io, docker-compose and debootstrap (installed where apt-get is there)
#   engine.sh host    prints the engine's DOCKER_HOST, if it runs
#   engine.sh stop    ends it; with --purge, removes all that it held
#
# The base images get the names that .env gives the Dockerfile. They hold Debian's Python and this machine's certificates
# and pip settings, so that a build reaches the same package index as this machine does.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
engine="${CHAIRLIFT_ENGINE_DIR:-/var/tmp/chairlift-engine}"
suite=bookworm
socket="unix://$engine/docker.sock"

setting() { # the value of a name in .env; the environment goes first
    local value="${!1:-}"
    [ -n "$value" ] && echo "$value" || sed -n "s/^$1=//p" "$here/.env"
}

runs() { [ -S "$engine/docker.sock" ] && docker -H "$socket" info >/dev/null 2>&1; }

install_tools() {
    local missing=()
    command -v dockerd >/dev/null || missing+=(docker.io)
    command -v docker-compose >/dev/null || docker compose version >/dev/null 2>&1 || missing+=(docker-compose)
    command -v debootstrap >/dev/null || missing+=(debootstrap)
    [ ${#missing[@]} -eq 0 ] && return
    echo "engine: installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "${missing[@]}" >/dev/null
}

start_engine() {
    runs && return
    mkdir -p "$engine"
    chmod 700 "$engine"
    # In a session of its own: a Ctrl-C in the terminal is not for the engine.
    setsid dockerd --host "$socket" --data-root "$engine/data" --exec-root "$engine/run" --pidfile "$engine/pid" \
        >"$engine/log" 2>&1 </dev/null &
    for _ in $(seq 60); do
        runs && return
        sleep 0.5
    done
    tail -n 20 "$engine/log" >&2
    echo "engine: dockerd does not answer; its log is $engine/log" >&2
    exit 1
}

debian() { # folder, packages…: an installed Debian
    local folder="$1" packages
    shift
    packages="$(IFS=,; echo "$*")"
    mkdir -p "$engine/packages"
    debootstrap --variant=minbase --cache-dir="$engine/packages" --include="$packages" "$suite" "$folder" >"$engine/debootstrap.log" 2>&1 ||
        { tail -n 20 "$engine/debootstrap.log" >&2; exit 1; }
    rm -rf "$folder"/var/cache/apt/*.bin "$folder"/var/cache/apt/archives/*.deb "$folder"/var/lib/apt/lists/* \
        "$folder"/usr/share/{doc,man,info,locale,lintian} "$folder"/var/log/*
    cp /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/"
    cp /etc/resolv.conf "$folder/etc/" 2>/dev/null || true
}

copy_pip_settings() { # folder: certificates and the folders of packages that pip looks in on this machine
    local folder="$1" links place
    links="$(python3 -m pip config list 2>/dev/null | sed -n "s/^global.find-links='\(.*\)'$/\1/p" | tr ' ' '\n')"
    {
        echo "[global]"
        echo "cert = /etc/ssl/certs/ca-certificates.crt"
        echo "timeout = 180"
        echo "disable-pip-version-check = true"
        python3 -m pip config list 2>/dev/null | sed -n "s/^global.index-url='\(.*\)'$/index-url = \1/p"
        [ -z "$links" ] || echo "find-links = $(echo $links)"
    } >"$folder/etc/pip.conf"
    for place in $links; do
        [ -d "$place" ] || continue
        mkdir -p "$folder$place"
        cp -a "$place/." "$folder$place/"
    done
}

make_image() { # name, "build" or "": imports a base image
    local name="$1" kind="$2" folder
    docker -H "$socket" image inspect "$name" >/dev/null 2>&1 && return
    echo "engine: making $name from Debian's packages"
    folder="$(mktemp -d "$engine/base.XXXXXX")"
    if [ "$kind" = build ]; then
        debian "$folder" python3 python3-venv python3-dev g++ ca-certificates
        copy_pip_settings "$folder"
    else
        debian "$folder" python3 ca-certificates
    fi
    tar -C "$folder" --exclude=./dev/* -c . | docker -H "$socket" import --change 'ENV LANG=C.UTF-8' - "$name" >/dev/null
    rm -rf "$folder"
}

stop_engine() { # --purge or nothing
    if [ -f "$engine/pid" ]; then
        local pid
        pid="$(cat "$engine/pid")"
        kill "$pid" 2>/dev/null || true
        while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
    fi
    if [ "${1:-}" = --purge ]; then
        awk -v below="$engine/" 'index($2, below) == 1 {print $2}' /proc/mounts | sort -r | xargs -r umount -l
        rm -rf "$engine"
    fi
}

case "${1:-}" in
start)
    [ "$(id -u)" = 0 ] || { echo "engine: needs root" >&2; exit 1; }
    install_tools
    start_engine
    make_image "$(setting PYTHON_IMAGE)" ""
    make_image "$(setting PYTHON_BUILD_IMAGE)" build
    echo "engine: ready; export DOCKER_HOST=$socket"
    ;;
host) runs && echo "$socket" ;;
stop) stop_engine "${2:-}" ;;
*)
    sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
