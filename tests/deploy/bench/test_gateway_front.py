"""The gateway's benchmark runs on a real gateway process, and its frozen clients hold nobody up."""

import time

from deploy.bench.gateway_front.rig import open_rig
from deploy.bench.gateway_front.stand_in import Steps


def test_live_clients_go_on_beside_frozen_ones() -> None:
    with open_rig("gateway.stream_queue_tokens=64", "gateway.slow_client_timeout_s=60") as rig:
        with rig.clients(4) as others, rig.clients(3) as live:
            others.freeze()
            rig.scheduler.run(Steps(interval_s=0.01, count=40, tokens_each=4))
            assert rig.scheduler.num_streams == 7
            assert rig.cpu_s() > 0
            rig.scheduler.finish_all()
            seen = live.result()
        assert seen.failed == 0
        # Tokens of two steps may share a message where this machine is slow.
        assert 3 <= seen.messages <= 3 * 40
        assert len(rig.scheduler.emitted_at) == 0


def test_clients_that_die_leave_nothing() -> None:
    with open_rig() as rig:
        with rig.clients(5):
            assert rig.scheduler.num_streams == 5
        deadline = time.monotonic() + 30
        while rig.scheduler.num_streams:
            assert time.monotonic() < deadline
            time.sleep(0.02)
