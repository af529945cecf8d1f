"""Old connections are told to go, so that clients spread over gateways; what is open on them goes on."""

import asyncio
from typing import Any

import grpc

from chairlift.v1 import inference_pb2 as pb


async def test_old_connection_is_left_and_its_stream_goes_on(start_rig: Any, spell: Any) -> None:
    async with start_rig(max_connection_age_s=0.3) as rig:
        call = rig.stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1])))
        submit = await rig.scheduler.accept()
        await rig.caller.event(call, "accepted")
        async with asyncio.timeout(20):
            # Ready until the server's word arrives, then idle: the next call connects anew.
            await rig.caller.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        rig.scheduler.tokens(submit.handle, 0, *spell("still"))
        assert (await rig.caller.event(call, "delta")).text == "still"
        again = rig.stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1])))
        other = await rig.scheduler.accept()
        for each, count in ((other, 0), (submit, 5)):
            rig.scheduler.finish(each.handle, count)
        assert len(await rig.caller.events(again)) == 2
        assert len(await rig.caller.events(call)) == 1
