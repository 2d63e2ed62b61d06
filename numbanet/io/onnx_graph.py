"""The graph of an ONNX model while it is written: nodes, constants and names."""

from __future__ import annotations

from typing import Any

import numpy as np

OPSET, IR = 17, 8  # LayerNormalization came with opset 17; runtimes from 2022 on read both


class Graph:
    """Nodes in the order in which they compute, and constants by name.

    `samples` names a value whose first axis is that of the samples.
    """

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.inputs: dict[str, tuple[Any, list[int | str]]] = {}  # name: dtype, shape
        self.outputs: dict[str, tuple[Any, list[int | str]]] = {}

    def constant(self, values: Any, name: str = "") -> str:
        """Add a constant; return its name. Constants with equal names are one."""
        name = name or f"constant_{len(self.constants)}"
        self.constants[name] = np.array(values, order="C")
        return name

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return the name of its output, or a tuple of names if it has several."""
        from onnx import helper

        names = tuple(f"{op}_{len(self.nodes)}_{i}" if outputs > 1 else f"{op}_{len(self.nodes)}" for i in range(outputs))
        self.nodes.append(helper.make_node(op, list(inputs), list(names), name=f"{op}_{len(self.nodes)}", **attributes))
        return names if outputs > 1 else names[0]

    def rename(self, value: str, name: str) -> None:
        """Add an output of the graph that is the value."""
        from onnx import helper

        self.nodes.append(helper.make_node("Identity", [value], [name], name=f"Identity_{len(self.nodes)}"))

    def model(self, metadata: dict[str, str]) -> Any:
        """Make the model, and check it: ranks, shapes and types of all values as well."""
        import onnx
        from onnx import helper, numpy_helper

        from .. import __version__

        def described(values: dict[str, tuple[Any, list[int | str]]]) -> list[Any]:
            types = {name: helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for name, (dtype, _) in values.items()}
            return [helper.make_tensor_value_info(name, types[name], shape) for name, (_, shape) in values.items()]

        graph = helper.make_graph(
            self.nodes,
            "numbanet",
            described(self.inputs),
            described(self.outputs),
            [numpy_helper.from_array(values, name) for name, values in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=IR, producer_name="numbanet", producer_version=__version__
        )
        helper.set_model_props(model, metadata)
        onnx.checker.check_model(model, full_check=True)
        return model
