"""Every case is compared once a session and way of asking: on PyTorch, the reference evaluator and ONNX Runtime."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cases.outcome import Outcome

from crosshead.harness import Plan, compare

TROUBLES = Path(__file__).parent / "troubles.py"
BACKENDS = ("torch-eager", "onnx-reference", "ort-cpu")

Compare = Callable[..., Outcome]


@pytest.fixture(scope="session")
def come_out(tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """Compare `troubles.py:<name>`, once for the same question; other arguments go to the factory, or to the plan."""
    seen: dict[str, Outcome] = {}

    def come_out(name: str, options: dict[str, Any] | None = None, **plan: Any) -> Outcome:
        key = repr((name, options or {}, sorted(plan.items())))
        if key not in seen:
            asked: dict[str, Any] = {"backends": BACKENDS, "threads": 1} | plan
            source, out = f"{TROUBLES}:{name}", tmp_path_factory.mktemp(name)
            seen[key] = Outcome(compare(Plan(source=source, options=options or {}, out=out, **asked)))
        return seen[key]

    return come_out
