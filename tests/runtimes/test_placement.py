import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosshead.runtimes import PlacementError
from crosshead.runtimes._ort_evidence import contradicted, read_profile
from crosshead.runtimes.placement import Node, Tensor, enforce, flops, is_shape_arithmetic, judge

GPU, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def node(op: str, ins: Sequence[Sequence[int]], outs: Sequence[Sequence[int]], **more: str) -> Node:
    kind = more.pop("type", "float")
    return Node(
        name=more.pop("name", op.lower()),
        op_type=op,
        provider=more.pop("provider", GPU),
        inputs=tuple(Tensor(kind, tuple(shape)) for shape in ins),
        outputs=tuple(Tensor(kind, tuple(shape)) for shape in outs),
    )


@pytest.mark.parametrize(
    ("given_node", "expected"),
    [
        (node("MatMul", [(2, 7, 512), (512, 64)], [(2, 7, 64)]), 2 * 2 * 7 * 64 * 512),
        (node("MatMul", [(2, 7, 512)], [(2, 7, 64)]), 2 * 2 * 7 * 64 * 512),  # the weight is packed away
        (node("Gemm", [(7, 32), (32, 8), (8,)], [(7, 8)]), 2 * 7 * 8 * 32),
        (node("Gemm", [(32, 7), (32, 8)], [(7, 8)]), 2 * 7 * 8 * 32),  # transA
        (node("Attention", [(2, 8, 6, 64), (2, 8, 9, 64), (2, 8, 9, 64)], [(2, 8, 6, 64)]), 4 * 2 * 8 * 6 * 9 * 64),
        (node("Attention", [(2, 6, 512), (2, 9, 512), (2, 9, 512)], [(2, 6, 512)]), 4 * 2 * 6 * 9 * 512),
        (
            node("Attention", [(1, 8, 1, 64), (1, 8, 1, 64)], [(1, 8, 1, 64), (1, 8, 6, 64), (1, 8, 6, 64)]),
            4 * 8 * 6 * 64,  # five keys of the past, and one
        ),
        (node("Attention", [(2, 6, 512), (512, 1536), (1536,)], [(2, 6, 512)]), 2 * 12 * 512 * 1536 + 4 * 2 * 36 * 512),
        (node("Conv", [(1, 3, 8, 8), (16, 3, 4, 4)], [(1, 16, 2, 2)]), 2 * 64 * 48),
        (node("Conv", [(1, 3, 8, 8)], [(1, 16, 2, 2)]), 64),  # nothing is known of the weight
        (node("Add", [(2, 7), (7,)], [(2, 7)]), 14),
        (node("MemcpyToHost", [(2, 7)], [(2, 7)]), 0),
        (node("Shape", [(2, 7)], [(2,)]), 0),
        (node("Add", [], []), 0),
    ],
    ids=lambda value: value.op_type if isinstance(value, Node) else "",
)
def test_arithmetic_by_formula(given_node: Node, expected: float) -> None:
    assert flops(given_node) == expected


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_a_product_is_counted_alike_however_it_is_batched(batch: int, rows: int, inner: int, columns: int) -> None:
    stacked = node("MatMul", [(batch, rows, inner)], [(batch, rows, columns)])
    flat = node("MatMul", [(batch * rows, inner)], [(batch * rows, columns)])
    if not (rows == inner or batch * rows == inner):
        assert flops(stacked) == flops(flat)


@pytest.mark.parametrize(
    ("given_node", "expected"),
    [
        (node("Shape", [(2, 7, 512)], [(3,)]), True),
        (node("Gather", [(3,), ()], [()], type="int64"), True),
        (node("Concat", [(1,), (1,), (2,)], [(4,)], type="int64"), True),
        (node("Sqrt", [()], [()]), True),  # a scale worked out from a length
        (node("Add", [(100,), (100,)], [(100,)], type="int64"), False),
        (node("Add", [(2, 3), (3,)], [(2, 3)]), False),  # small, but numbers with a fraction
        (node("ReduceSum", [(2, 3)], [()]), False),
        (node("Softmax", [(1,)], [(1,)]), False),
        (node("MatMul", [(1, 1), (1, 1)], [(1, 1)]), False),
        (node("Add", [], []), False),
    ],
    ids=lambda value: value.op_type if isinstance(value, Node) else "",
)
def test_what_is_shape_arithmetic(given_node: Node, expected: bool) -> None:
    assert is_shape_arithmetic(given_node) is expected


def gather(provider: str) -> Node:
    return node("Gather", [(3,), ()], [()], type="int64", provider=provider)


PRODUCT = node("MatMul", [(2, 8)], [(2, 4)])
SOFTMAX_ON_CPU = node("Softmax", [(2, 4)], [(2, 4)], name="sm", provider=CPU)


def test_shares_are_of_nodes_and_of_arithmetic() -> None:
    placement = judge([PRODUCT, SOFTMAX_ON_CPU, gather(CPU)], GPU, "profile")
    assert placement.providers[GPU].nodes == 1
    assert placement.providers[CPU].nodes == 2
    assert placement.providers[GPU].flops_share == 128 / (128 + 8 + 1)
    assert sum(share.flops_share for share in placement.providers.values()) == pytest.approx(1.0)
    assert placement.fallen_back == ("Softmax sm",)


def test_a_node_that_ran_twice_is_one_node() -> None:
    placement = judge([PRODUCT, PRODUCT, SOFTMAX_ON_CPU], GPU, "profile")
    assert placement.providers[GPU].nodes == 1
    assert placement.providers[GPU].flops_share == 256 / 264


def test_shape_arithmetic_and_copies_elsewhere_are_no_fallback() -> None:
    copy = node("MemcpyToHost", [(2, 4)], [(2, 4)], provider=CPU)
    placement = judge([PRODUCT, gather(CPU), copy], GPU, "profile")
    enforce(placement, GPU, allow_fallback=False)
    assert placement.fallen_back == ()


def test_a_fallback_is_refused_by_name_and_share_unless_allowed() -> None:
    placement = judge([PRODUCT, SOFTMAX_ON_CPU], GPU, "profile")
    with pytest.raises(
        PlacementError, match=r"1 nodes besides shape arithmetic \(5.9% of the arithmetic\) ran on CPUEx"
    ) as caught:
        enforce(placement, GPU, allow_fallback=False)
    assert "Softmax sm" in str(caught.value)
    enforce(placement, GPU, allow_fallback=True)


def test_nothing_on_the_provider_is_refused_even_when_fallback_is_allowed() -> None:
    placement = judge([SOFTMAX_ON_CPU], GPU, "profile")
    with pytest.raises(
        PlacementError, match="no node ran on CUDAExecutionProvider; all of them ran on CPUExecutionProvider"
    ):
        enforce(placement, GPU, allow_fallback=True)


def test_a_node_that_another_witness_puts_elsewhere_has_fallen_back() -> None:
    record = [Node(name="matmul", op_type="MatMul", provider=CPU)]
    doubted = contradicted(record, [PRODUCT], GPU)
    assert doubted == ["matmul"]
    assert judge([PRODUCT], GPU, "both", doubted).fallen_back == ("MatMul matmul",)
    assert contradicted(None, [PRODUCT], GPU) == []


def test_a_profile_is_read() -> None:
    args = {
        "op_name": "MatMul",
        "provider": CPU,
        "input_type_shape": [{"float": [2, 3]}, {}],
        "output_type_shape": [{"float": [2, 5]}],
    }
    events = [
        {"cat": "Session", "name": "model_run", "args": {}},
        {"cat": "Node", "name": "product_kernel_time", "args": args},
        {"cat": "Node", "name": "product_fence_before", "args": args},
    ]
    assert read_profile(json.dumps(events).encode()) == [
        Node(
            name="product",
            op_type="MatMul",
            provider=CPU,
            inputs=(Tensor("float", (2, 3)),),
            outputs=(Tensor("float", (2, 5)),),
        )
    ]


def test_a_graph_as_a_gpu_provider_really_splits_it() -> None:
    """Taken from a profile of ONNX Runtime 1.27 with its WebGPU provider on a block of width 512 at opset 23."""
    on_gpu = [
        node("Shape", [(1, 6, 512)], [(1,)]),
        *[node("MatMul", [(1, 6, 512), (512, 512)], [(1, 6, 512)], name=f"product_{number}") for number in range(4)],
        node("Add", [(1, 6, 512), (512,)], [(1, 6, 512)]),
        node("MemcpyToHost", [(1, 8, 6, 64)], [(1, 8, 6, 64)]),
        node("MemcpyFromHost", [(1, 8, 6, 64)], [(1, 8, 6, 64)]),
    ]
    on_cpu = [
        node("Concat", [(1,), (1,), (1,), (1,)], [(4,)], type="int64", provider=CPU),
        node("Attention", [(1, 8, 6, 64)] * 3, [(1, 8, 6, 64)], name="core", provider=CPU),
    ]
    placement = judge([*on_gpu, *on_cpu], GPU, "profile")
    assert placement.fallen_back == ("Attention core",)
    core, products = 4 * 8 * 6 * 6 * 64, 4 * 2 * 6 * 512 * 512
    assert placement.providers[CPU].flops_share == pytest.approx((core + 4) / (core + 4 + products + 6 * 512))
