"""What ONNX Runtime says about who runs a node: its assignment record and its profile.

The record is there as soon as a session is built, but on some providers it lists the CPU's nodes alone. The profile
tells of every node that ran, with the shapes, and takes a run. docs/method.md, "Placement".
"""

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from crosshead.runtimes.base import Array
from crosshead.runtimes.placement import Node, Tensor

RECORD_KEY = "session.record_ep_graph_assignment_info"
_KERNEL = "_kernel_time"


def assigned_nodes(session: Any) -> list[Node] | None:
    """Return the assignment record of a session built with `RECORD_KEY` set; None where this version keeps none.

    Args:
        session: an `onnxruntime.InferenceSession`.
    """
    read = getattr(session, "get_provider_graph_assignment_info", None)
    if read is None:
        return None
    try:
        subgraphs = read()
    except Exception:  # noqa: BLE001  # a version that has the call but not for this provider: no evidence, not an error
        return None
    return [
        Node(name=node.name, op_type=node.op_type, provider=subgraph.ep_name)
        for subgraph in subgraphs
        for node in subgraph.get_nodes()
    ]


def profiled_nodes(build: Callable[[str], Any], names: list[str], feeds: Mapping[str, Array]) -> list[Node]:
    """Run once in a session of its own that keeps a profile, and return what it says. Nothing stays on disk.

    Args:
        build: gives such a session for a file prefix of its profile.
        names: output names.
        feeds: input arrays by name.
    """
    with tempfile.TemporaryDirectory(prefix="crosshead-profile-", ignore_cleanup_errors=True) as folder:
        session = build(str(Path(folder) / "profile"))
        session.run(names, dict(feeds))
        path = Path(session.end_profiling())
        del session
        return read_profile(path.read_bytes())


def read_profile(data: bytes) -> list[Node]:
    """Return the nodes in ONNX Runtime's profile (Chrome trace JSON), one entry an execution."""
    nodes = []
    for event in json.loads(data):
        name, arguments = event.get("name", ""), event.get("args", {})
        if event.get("cat") != "Node" or not name.endswith(_KERNEL) or not arguments.get("provider"):
            continue
        nodes.append(
            Node(
                name=name.removesuffix(_KERNEL),
                op_type=arguments.get("op_name", ""),
                provider=arguments["provider"],
                inputs=_tensors(arguments.get("input_type_shape", [])),
                outputs=_tensors(arguments.get("output_type_shape", [])),
            )
        )
    return nodes


def _tensors(listed: list[dict[str, list[int]]]) -> tuple[Tensor, ...]:
    return tuple(Tensor(type_name, tuple(shape)) for entry in listed for type_name, shape in entry.items())


def contradicted(assigned: list[Node] | None, profiled: list[Node], asked: str) -> list[str]:
    """Return names of nodes that ran on `asked` by the profile but were assigned elsewhere by the record."""
    elsewhere = {node.name for node in assigned or [] if node.provider != asked}
    return sorted({node.name for node in profiled if node.provider == asked and node.name in elsewhere})
