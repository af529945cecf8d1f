"""What `chairlift bench study` does."""

import argparse
import subprocess

import msgspec

from chairlift.runtime.process import ExitCode
from deploy.bench.errors import BenchError, BenchUsageError
from deploy.bench.study.report import write_report
from deploy.bench.study.speed import measure_scale
from scheduler_svc.sim.traces import TraceError


def run(arguments: argparse.Namespace) -> int:
    """Raises BenchError."""
    flags = f" --num-requests {arguments.num_requests}" if arguments.num_requests != 3000 else ""
    flags += " --speed SPEED.json" if arguments.speed is not None else ""
    flags += " --scale" if arguments.scale else ""
    try:
        speed = None if arguments.speed is None else msgspec.json.decode(arguments.speed.read_bytes(), type=dict)
        scale = measure_scale() if arguments.scale else None
        path = write_report(arguments.output, arguments.trace, arguments.num_requests, speed, scale, flags)
    except (TraceError, msgspec.MsgspecError) as error:
        raise BenchUsageError(str(error)) from None
    except OSError as error:
        raise BenchError(f"{error.filename}: {error.strerror}") from None
    except subprocess.CalledProcessError as error:
        raise BenchError(f"the simulation of 100,000 requests ended with {error.returncode}") from None
    print(path)
    return ExitCode.OK
