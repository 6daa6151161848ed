"""The arrays of ``compile --inputs``: their shapes bind dimensions, and one run on them measures sizes that depend on
values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnc.onnx.model import Arrays, ImportedModel
from ir.core.limits import LIMITS
from ir.core.module import Module
from passes.framework.base import Measurements

if TYPE_CHECKING:
    from dnnc.build.build import ValueInfo


@dataclass(frozen=True, slots=True)
class GivenInputs:
    """Arrays by input name, from the ``.npz`` file ``where``."""

    arrays: Mapping[str, Any]
    where: str

    @classmethod
    def read(cls, path: Path) -> GivenInputs:
        """The arrays of a file. Raises InvalidInput."""
        from dnnc.data.npz import read_npz

        return cls(read_npz(path), str(path))

    @property
    def shapes(self) -> Arrays:
        return Arrays({name: array.shape for name, array in self.arrays.items()}, self.where)

    def kept(self, imported: ImportedModel) -> bytes:
        """The first microbatch as an ``.npz`` for the build, empty where it is too large to be kept. Raises InvalidInput for
        arrays that are not the model's inputs."""
        from dnnc.data.inputs import npz_bytes

        ports, feeds = self._first(imported)
        return npz_bytes(feeds, ports, LIMITS.kept_inputs)

    def _first(self, imported: ImportedModel) -> tuple[list[ValueInfo], Mapping[str, Any]]:
        """The inputs of the model, and the first microbatch of the arrays."""
        from dnnc.build.build import ValueInfo
        from dnnc.data.inputs import split_microbatches

        def constants() -> list[str]:
            return [name[1:] for name in imported.module.resources]

        ports = [ValueInfo.of(arg.name[1:], arg.type) for arg in imported.module.entry.args]
        return ports, split_microbatches(ports, self.arrays, where=self.where, constants=constants).items[0]

    def measuring(
        self, imported: ImportedModel, step: Callable[[], AbstractContextManager[None]]
    ) -> Callable[[Module], Measurements]:
        """What runs a module of the model on the first microbatch of the arrays, inside ``step``, once: other modules of the
        same model are told the same. Raises InvalidInput for arrays that are not the model's inputs."""
        _, feeds = self._first(imported)
        runs: list[Measurements] = []

        def measured(module: Module) -> Measurements:
            from dnnc.engines.onnxruntime.session.measure import measure

            if not runs:
                with step():
                    runs.append(measure(module, imported.files, feeds, self.where))
            return runs[0]

        return measured
