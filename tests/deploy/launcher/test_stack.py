"""What the children are handed: settings, ports, sockets; and what is refused before anything starts."""

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from chairlift.runtime.addresses import Address, AddressError, parse_address
from chairlift.runtime.model_source import ModelNotFoundError
from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import load_settings
from deploy.launcher.ports import HeldPort, PortError, find_free, is_free
from deploy.launcher.run_folder import RunFolder, RunFolderError
from deploy.launcher.stack import prepare_stack


def settings(**sections: Mapping[str, object]) -> Settings:
    """Defaults with a public port that is free."""
    sections["gateway"] = {"listen": "127.0.0.1:0", **sections.get("gateway", {})}
    chosen = Settings()
    for name, values in sections.items():
        section = msgspec.structs.replace(getattr(chosen, name), **values)
        chosen = msgspec.structs.replace(chosen, **{name: section})
    return chosen


@contextmanager
def taken(port: int = 0) -> Iterator[int]:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        yield int(listener.getsockname()[1])


def handed(argv: tuple[str, ...]) -> Settings:
    """The settings that a child makes of its arguments."""
    assert set(argv[3::2]) == {"--set"}
    return load_settings(overrides=argv[4::2], environ={})


def test_children_get_the_settings_in_force_and_their_own_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIRLIFT_SCHEDULER__MAX_NUM_SEQS", "99")
    monkeypatch.setenv("CHAIRLIFT_CONFIG", "/nonexistent")
    monkeypatch.setenv("CHAIRLIFT_TARGET", "stays")
    chosen = settings(scheduler={"max_num_seqs": 8}, supervisor={"gateways": 3})
    with prepare_stack(chosen) as stack:
        children = {child.name: child.prepare() for child in stack.children}
        assert list(children) == ["scheduler", "worker", "gateway 0", "gateway 1", "gateway 2"]
        modules = [launch.argv[2] for launch in children.values()]
        assert modules == ["scheduler_svc", "gpu_worker", "gateway", "gateway", "gateway"]
        for launch in children.values():
            assert launch.argv[:2] == (sys.executable, "-m")
            assert not any("__" in name for name in launch.environ if name.startswith("CHAIRLIFT_"))
            assert "CHAIRLIFT_CONFIG" not in launch.environ
            assert launch.environ["CHAIRLIFT_TARGET"] == "stays"
            assert handed(launch.argv).scheduler.max_num_seqs == 8
        run_dir = {handed(launch.argv).ipc.run_dir for launch in children.values()}
        assert len(run_dir) == 1
        assert Path(run_dir.pop() or "").stat().st_mode & 0o777 == 0o700
        gateways = [handed(launch.argv).gateway for name, launch in children.items() if name.startswith("gateway")]
        assert {gateway.listen for gateway in gateways} == {str(stack.public)}
        assert [gateway.index for gateway in gateways] == [0, 1, 2]
        ops = [parse_address(gateway.ops_listen, "s").port + gateway.index for gateway in gateways]
        assert ops == [address.port for address in stack.ops]
        probes = [parse_address(gateway.metrics_listen, "s").port + gateway.index for gateway in gateways]
        assert probes == [stack.probes[f"gateway {index}"].port for index in range(3)]
        assert handed(children["worker"].argv).worker.metrics_listen == str(stack.probes["worker"])
        every_port = [stack.public.port, *ops, *(address.port for address in stack.probes.values())]
        assert len(set(every_port)) == len(every_port)


def test_a_default_port_in_use_gives_way_to_a_free_one() -> None:
    default = parse_address(Settings().gateway.metrics_listen, "s")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((default.host, default.port))
            listener.listen()
        except OSError:
            pass  # another stack on this machine has it: as good
        with prepare_stack(settings()) as stack:
            assert stack.probes["gateway"].port != default.port


@pytest.mark.parametrize("section", ["gateway", "scheduler", "worker"])
def test_a_chosen_port_in_use_is_refused_by_its_setting(section: str) -> None:
    """A monitoring system scrapes the port that it was told; quietly using another would blind it."""
    with taken() as port:
        chosen = settings(**{section: {"metrics_listen": f"127.0.0.1:{port}"}})
        with pytest.raises(PortError, match=rf"127\.0\.0\.1:{port}: the port is in use \({section}\.metrics"):
            prepare_stack(chosen).__enter__()


def test_a_port_that_was_taken_between_two_starts_is_replaced() -> None:
    with prepare_stack(settings(worker={"metrics_listen": "127.0.0.1:0"})) as stack:
        worker = next(child for child in stack.children if child.name == "worker")
        first = worker.prepare().probe
        with taken(first.port):
            second = worker.prepare().probe
            assert second.port != first.port
            assert stack.probes["worker"] == second


def test_the_public_port_is_held_from_the_start_and_shared_with_gateways_only() -> None:
    with prepare_stack(settings()) as stack:
        assert stack.public.port != 0
        assert not is_free(stack.public)
        with pytest.raises(PortError, match="in use by another program"):
            HeldPort(stack.public)
        with socket.socket() as gateway:
            for option in (socket.SO_REUSEPORT, socket.SO_REUSEADDR):  # as gRPC does
                gateway.setsockopt(socket.SOL_SOCKET, option, 1)
            gateway.bind((stack.public.host, stack.public.port))
            gateway.listen()
            with socket.create_connection((stack.public.host, stack.public.port), timeout=30):
                connection, _ = gateway.accept()
                connection.close()
    assert is_free(stack.public)


@pytest.mark.parametrize("setting", ["listen", "ops_listen"])
def test_a_port_open_to_the_world_is_refused_unless_told(setting: str) -> None:
    chosen = settings(gateway={setting: "0.0.0.0:0"})
    with pytest.raises(AddressError, match=rf"gateway\.{setting} = 0\.0\.0\.0:0: whoever reaches"):
        prepare_stack(chosen).__enter__()
    allowed = msgspec.structs.replace(chosen.gateway, allow_insecure_public=True)
    with prepare_stack(msgspec.structs.replace(chosen, gateway=allowed)) as stack:
        assert stack.public.port != 0


def test_a_model_that_is_not_there_is_found_before_anything_starts() -> None:
    with pytest.raises(ModelNotFoundError, match="no such folder or file"):
        prepare_stack(settings(model={"source": "./nothing-here"})).__enter__()


def test_an_address_of_another_host_is_an_error() -> None:
    with pytest.raises(PortError, match=r"192\.0\.2\.1:0: .*[Aa]ssign"):
        HeldPort(Address("192.0.2.1", 0))


def test_a_port_that_is_spoken_for_is_not_given_again() -> None:
    first = find_free(Address("127.0.0.1", 0))
    assert find_free(first).port == first.port
    assert find_free(first, {first.port}).port != first.port


def test_the_run_folder_is_private_and_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with RunFolder(None) as folder:
        assert folder.path.parent == tmp_path
        assert folder.path.stat().st_mode & 0o777 == 0o700
        (folder.path / "gateway.sock").touch()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_supervisor_left_is_swept_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    program = (
        "import os, signal; from deploy.launcher.run_folder import RunFolder; folder = RunFolder(None);"
        "(folder.path / 'worker.sock').touch(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    with RunFolder(None) as mine, RunFolder(None) as neighbour:
        assert sorted(tmp_path.iterdir()) == sorted([mine.path, neighbour.path])


def test_a_chosen_run_folder_is_used_by_one_at_a_time(tmp_path: Path) -> None:
    chosen = tmp_path / "run"
    with RunFolder(str(chosen)):
        with pytest.raises(RunFolderError, match="in use by another chairlift serve"):
            RunFolder(str(chosen))
        (chosen / "gateway.sock").touch()
        (chosen / "notes").touch()
    assert [file.name for file in chosen.iterdir()] == ["notes"]
    chosen.chmod(0o755)
    with pytest.raises(RunFolderError, match="mode 0700"):
        RunFolder(str(chosen))
