"""Tensors of a Hugging Face folder: one safetensors file, or shards with an index. Pickles are never opened."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from gpu_worker.loading.errors import ModelLoadError
from gpu_worker.loading.tensor_source import BlockKind

_INDEX = "model.safetensors.index.json"
_FLOAT_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
_SLICE_BYTES = 64 << 20
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class _Shard:
    """One open file. The mapping is dropped with the object, so a source should not outlive the load."""

    def __init__(self, path: Path) -> None:
        try:
            file: Any = safe_open(path, framework="pt")
        except FileNotFoundError:
            raise ModelLoadError(path, "missing: the index names this shard") from None
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(path, f"not a whole safetensors file: {error}") from None
        self.path = path
        self.names: frozenset[str] = frozenset(file.keys())
        self._file = file

    def shape(self, name: str) -> tuple[int, ...]:
        piece = self._file.get_slice(name)
        if piece.get_dtype() not in _FLOAT_DTYPES:
            raise ModelLoadError(self.path, f"unsupported quantisation: stored as {piece.get_dtype()}", name)
        return tuple(piece.get_shape())

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor as a view of the mapped file."""
        try:
            tensor: torch.Tensor = self._file.get_tensor(name)
        except SafetensorError as error:
            raise ModelLoadError(self.path, f"cannot be read: {error}", name) from None
        return tensor


class SafetensorsSource:
    """A `TensorSource` over the safetensors files of one folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        shards: dict[str, _Shard] = {}
        self._holder: dict[str, _Shard] = {}
        for name, file in _weight_map(folder).items():
            shard = shards.get(file) or shards.setdefault(file, _Shard(folder / file))
            if name not in shard.names:
                raise ModelLoadError(shard.path, "missing: the index says that it is in this shard", name)
            self._holder[name] = shard

    def names(self) -> Collection[str]:
        """Names of every tensor that is there."""
        return self._holder.keys()

    def file_of(self, name: str) -> Path:
        """The shard that holds a tensor."""
        return self._holder[name].path

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape in elements. Raises ModelLoadError for a dtype that is not plain floating point."""
        return self._holder[name].shape(name)

    def copy_into(self, name: str, target: torch.Tensor) -> None:
        """Copies from the mapped file: beside `target` only the page cache holds it, and a slice in the new dtype."""
        mapped = self._holder[name].tensor(name)
        if mapped.dtype == target.dtype or target.device.type == "cpu":
            target.copy_(mapped)
            return
        # torch converts on the host before it copies to another device.
        step = max(1, _SLICE_BYTES // max(1, mapped[:1].nbytes))
        for start in range(0, len(mapped), step):
            target[start : start + step].copy_(mapped[start : start + step])

    def block_kind(self, name: str) -> BlockKind | None:
        """None: these files hold plain numbers."""
        return None

    def blocks(self, name: str) -> torch.Tensor:
        """Raises ModelLoadError."""
        raise ModelLoadError(self.file_of(name), "is not stored in quantised blocks", name)


def _weight_map(folder: Path) -> dict[str, str]:
    """File of each tensor, by the index where there is one."""
    index = folder / _INDEX
    if index.is_file():
        try:
            weight_map = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
        except (OSError, msgspec.DecodeError) as error:
            raise ModelLoadError(index, f"not an index that can be read: {error}") from None
        if outside := next((file for file in weight_map.values() if Path(file).name != file), None):
            raise ModelLoadError(index, f"names a file outside its folder: {outside}")
        return weight_map
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelLoadError(folder, _why_no_weights(folder))
    weight_map = {}
    for file in files:
        for name in _Shard(file).names:
            if name in weight_map:
                raise ModelLoadError(file, f"is in {weight_map[name]} as well, and there is no index", name)
            weight_map[name] = file.name
    return weight_map


def _why_no_weights(folder: Path) -> str:
    pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
    if pickled:
        return f"holds pickled weights only ({pickled[0]}), which can run code and are not read; convert to safetensors"
    return "holds no *.safetensors file"
