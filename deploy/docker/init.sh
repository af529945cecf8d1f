#!/bin/sh
# First start of a stack of containers: what is not there yet is made, the rest is left as it is.
#   /models  the built-in model, if that is the one wanted
#   /keys    a CURVE key for each kind of process, in a folder each, and the lists of who may speak to whom
set -eu

if [ -d /models ] && [ "${CHAIRLIFT_MODEL:-smollm2-135m}" = smollm2-135m ] && [ ! -e /models/smollm2-135m/model.gguf ]; then
    mkdir -p /models/smollm2-135m
    source="$(python3 -c 'from chairlift.runtime.model_source import BUILT_IN, resolve_model; print(resolve_model(BUILT_IN).path)')"
    cp "$source" /models/smollm2-135m/model.partial
    mv /models/smollm2-135m/model.partial /models/smollm2-135m/model.gguf
    echo "init: the built-in model is in /models/smollm2-135m"
fi

if [ "${CHAIRLIFT_MAKE_KEYS:-true}" = true ] && [ ! -e /keys/scheduler/workers.pub ]; then
    umask 077
    rm -f /keys/*/secret.key
    scheduler="$(chairlift keys new /keys/scheduler/secret.key)"
    gateway="$(chairlift keys new /keys/gateway/secret.key)"
    worker="$(chairlift keys new /keys/worker/secret.key)"
    echo "$scheduler" >/keys/gateway/schedulers.pub
    echo "$scheduler" >/keys/worker/schedulers.pub
    echo "$gateway" >/keys/scheduler/gateways.pub
    echo "$worker" >/keys/scheduler/workers.pub
    echo "init: keys are made"
fi
