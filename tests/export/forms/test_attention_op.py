"""Every option of the Attention op, in both forms at every opset, against the formula.

The canonical graphs here are written out, so that each option stands alone; test_lower.py takes those of the exporter.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from crosshead.export.artifact import Form, FormError
from crosshead.export.forms import FORM_OPSETS, lower

Run = Callable[..., dict[str, np.ndarray]]
Formula = Callable[..., tuple[np.ndarray, list[np.ndarray]]]
B, H, L, S, P, D, E = 2, 4, 5, 7, 3, 6, 8
LOWEST: list[tuple[Form, int]] = [("standard", 23), ("decomposed", 17)]
LOWERINGS = [(form, opset) for form, opsets in FORM_OPSETS.items() for opset in opsets]


@dataclass(frozen=True)
class Option:
    """One use of the op. `mask` are the axes of a mask as sizes, with its kind."""

    attributes: str = ""
    kv_heads: int = H
    mask: tuple[int, ...] | None = None
    mask_kind: str = "bool"
    past: int | None = None
    gives_present: bool = True
    wants_weights: bool = False
    is_3d: bool = False
    formula: dict[str, object] = field(default_factory=dict)
    masks_a_row: bool = True

    def text(self, kind: str) -> str:
        """The graph, with every size but heads, head size and the mask's dynamic."""
        if self.is_3d:
            operands = [
                f"{kind}[B,L,{H * D}] q",
                f"{kind}[B,S,{self.kv_heads * D}] k",
                f"{kind}[B,S,{self.kv_heads * E}] v",
            ]
            outputs = [f"{kind}[B,L,{H * E}] y"]
        else:
            operands = [
                f"{kind}[B,{H},L,{D}] q",
                f"{kind}[B,{self.kv_heads},S,{D}] k",
                f"{kind}[B,{self.kv_heads},S,{E}] v",
            ]
            outputs = [f"{kind}[B,{H},L,{E}] y"]
        arguments, results = ["q", "k", "v", "", "", ""], ["y", "", "", ""]
        if self.mask is not None:
            axes = ",".join(str(size) if size == 1 else f"M{axis}" for axis, size in enumerate(self.mask))
            operands.append(f"{kind if self.mask_kind == 'float' else self.mask_kind}[{axes}] m")
            arguments[3] = "m"
        if self.past is not None:
            operands += [f"{kind}[B,{self.kv_heads},P,{size}] {name}" for name, size in (("pk", D), ("pv", E))]
            arguments[4:] = ["pk", "pv"]
            if self.gives_present:
                outputs += [f"{kind}[B,{self.kv_heads},T,{size}] {name}" for name, size in (("nk", D), ("nv", E))]
                results[1:3] = ["nk", "nv"]
        if self.wants_weights:
            outputs.append(f"{kind}[B,{H},L,W] w")
            results[3] = "w"
            for index in (1, 2):
                results[index] = results[index] or f"unused{index}"
        attributes = [self.attributes] if self.attributes else []
        if self.is_3d:
            attributes.append(f"q_num_heads={H}, kv_num_heads={self.kv_heads}")
        call = ", ".join(arguments).rstrip(", ")
        result = ", ".join(results).rstrip(", ")
        marks = f"<{', '.join(attributes)}>" if attributes else ""
        return (
            f'<ir_version: 11, opset_import: ["" : 23]> g ({", ".join(operands)}) => ({", ".join(outputs)})'
            f" {{ {result} = Attention{marks}({call}) }}"
        )

    def inputs(self, dtype: type[np.floating], seed: int = 0) -> dict[str, np.ndarray]:
        """4-D operands drawn at random, a mask with one row that keeps nothing."""
        draw = np.random.default_rng(seed)
        shapes = {"q": (B, H, L, D), "k": (B, self.kv_heads, S, D), "v": (B, self.kv_heads, S, E)}
        if self.past is not None:
            shapes |= {"pk": (B, self.kv_heads, self.past, D), "pv": (B, self.kv_heads, self.past, E)}
        made: dict[str, np.ndarray] = {
            name: draw.standard_normal(shape).astype(dtype) for name, shape in shapes.items()
        }
        if self.mask is not None:
            keep = draw.random(self.mask) > 0.4
            if self.masks_a_row:
                keep[(..., *np.array(self.mask[-2:-1]) // 2, slice(None))] = False
            bias = draw.standard_normal(self.mask)
            if self.mask_kind == "int32":
                made["m"] = draw.integers(-3, 3, self.mask).astype(np.int32)
            else:
                made["m"] = keep if self.mask_kind == "bool" else np.where(keep, bias, -np.inf).astype(dtype)
        return made


OPTIONS = {
    "plain": Option(),
    "causal": Option("is_causal=1", formula={"is_causal": True}),
    "scale": Option("scale=0.25", formula={"scale": 0.25}),
    "scale of zero": Option("scale=0.0", formula={"scale": 0.0}),
    "scale below zero": Option("scale=-0.5", formula={"scale": -0.5}),
    "softcap": Option("softcap=1.5", formula={"softcap": 1.5}),
    "softcap and mask": Option("softcap=1.5", mask=(B, 1, L, S), formula={"softcap": 1.5}),
    "grouped heads": Option(kv_heads=2),
    "one key head": Option(kv_heads=1, mask=(L, S)),
    "grouped heads, causal, masked": Option("is_causal=1", 2, (B, 1, L, S), formula={"is_causal": True}),
    "mask (L, S)": Option(mask=(L, S)),
    "mask (H, L, S)": Option(mask=(H, L, S)),
    "mask (B, H, L, S)": Option(mask=(B, H, L, S)),
    "mask (1, S)": Option(mask=(1, S)),
    "mask (S)": Option(mask=(S,), masks_a_row=False),
    "mask (L, 1)": Option(mask=(L, 1)),
    "mask (B, 1, 1, S)": Option(mask=(B, 1, 1, S)),
    "mask (B, 1, L, 1)": Option(mask=(B, 1, L, 1)),
    "additive mask (L, S)": Option(mask=(L, S), mask_kind="float"),
    "additive mask (L, 1)": Option(mask=(L, 1), mask_kind="float"),
    "additive mask (B, 1, L, 1)": Option(mask=(B, 1, L, 1), mask_kind="float"),
    "additive mask (B, 1, 1, S)": Option(mask=(B, 1, 1, S), mask_kind="float"),
    "additive mask (B, H, L, S)": Option(mask=(B, H, L, S), mask_kind="float"),
    "additive mask, causal": Option("is_causal=1", mask=(L, S), mask_kind="float", formula={"is_causal": True}),
    "whole number mask": Option(mask=(L, S), mask_kind="int32"),
    "boolean mask, causal": Option("is_causal=1", mask=(L, S), formula={"is_causal": True}),
    "past": Option(past=P),
    "empty past": Option(past=0),
    "past, present unnamed": Option(past=P, gives_present=False),
    "past, causal": Option("is_causal=1", past=P, formula={"is_causal": True}),
    "empty past, causal": Option("is_causal=1", past=0, formula={"is_causal": True}),
    "past, causal, grouped, masked": Option("is_causal=1", 2, (B, 1, L, P + S), past=P, formula={"is_causal": True}),
    "past, additive mask (B, 1, 1, T)": Option(mask=(B, 1, 1, P + S), mask_kind="float", past=P),
    "weights": Option("qk_matmul_output_mode=3", wants_weights=True),
    "raw scores": Option("softcap=1.5", wants_weights=True, mask=(L, S), formula={"softcap": 1.5}),
    "capped scores": Option(
        "softcap=1.5, qk_matmul_output_mode=1", wants_weights=True, mask=(L, S), formula={"softcap": 1.5}
    ),
    "masked scores": Option("qk_matmul_output_mode=2", wants_weights=True, mask=(L, S), mask_kind="float"),
    "weights, masked": Option("qk_matmul_output_mode=3", wants_weights=True, mask=(B, 1, L, S)),
    "weights, past, causal": Option(
        "qk_matmul_output_mode=3, is_causal=1", wants_weights=True, past=P, formula={"is_causal": True}
    ),
    "softmax in float64": Option("softmax_precision=11", mask=(L, S)),
    "3-D": Option(is_3d=True),
    "3-D, grouped, past, weights": Option(
        "qk_matmul_output_mode=3", 2, (B, 1, L, P + S), past=P, wants_weights=True, is_3d=True
    ),
    "3-D, scale below zero, mask (B, 1, 1, S)": Option(
        "scale=-0.5", mask=(B, 1, 1, S), is_3d=True, formula={"scale": -0.5}
    ),
}
MODES = {name: int(o.attributes.partition("mode=")[2][:1] or 0) for name, o in OPTIONS.items()}


def want(by_formula: Formula, name: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    option = OPTIONS[name]
    past = {"past_key": inputs.get("pk"), "past_value": inputs.get("pv")}
    output, weights = by_formula(inputs["q"], inputs["k"], inputs["v"], inputs.get("m"), **past, **option.formula)
    wanted = {"y": output.transpose(0, 2, 1, 3).reshape(B, L, H * E) if option.is_3d else output}
    if option.past is not None and option.gives_present:
        wanted |= {
            "nk": np.concatenate([inputs["pk"], inputs["k"]], 2),
            "nv": np.concatenate([inputs["pv"], inputs["v"]], 2),
        }
    if option.wants_weights:
        wanted["w"] = weights[MODES[name]]
    return wanted


def fed(name: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if not OPTIONS[name].is_3d:
        return inputs
    packed = {x: inputs[x].transpose(0, 2, 1, 3).reshape(B, inputs[x].shape[2], -1) for x in "qkv"}
    return {**inputs, **packed}


def canonical(name: str, kind: str = "float") -> ir.Model:
    return ir.from_proto(parser.parse_model(OPTIONS[name].text(kind)))


@pytest.mark.parametrize(("form", "opset"), LOWERINGS)
@pytest.mark.parametrize("name", OPTIONS)
def test_onnxruntime_gives_the_formula(run_ort: Run, by_formula: Formula, name: str, form: Form, opset: int) -> None:
    inputs = OPTIONS[name].inputs(np.float32)
    got = run_ort(lower(canonical(name), form, opset), fed(name, inputs))
    wanted = want(by_formula, name, inputs)
    assert got.keys() == wanted.keys()
    if form == "standard" and opset < 25 and name == "masked scores":
        wanted["w"] = np.where(np.isneginf(wanted["w"]), got["w"], wanted["w"])  # see test_kernels.py
    for output, array in wanted.items():
        np.testing.assert_allclose(got[output], array, rtol=1e-5, atol=2e-6, err_msg=output)


@pytest.mark.parametrize("opset", [17, 18, 25])
@pytest.mark.parametrize("name", OPTIONS)
def test_decomposed_is_exact_in_float64(evaluate: Run, by_formula: Formula, name: str, opset: int) -> None:
    """Also on rows that keep no key, and with a head size whose root is no whole number."""
    inputs = OPTIONS[name].inputs(np.float64)
    got = evaluate(lower(canonical(name, "double"), "decomposed", opset), fed(name, inputs))
    for output, array in want(by_formula, name, inputs).items():
        np.testing.assert_allclose(got[output], array, rtol=1e-14, atol=1e-15, err_msg=output)


def test_an_explicit_scale_of_the_rounded_default_is_the_default(evaluate: Run, by_formula: Formula) -> None:
    option = Option(f"scale={np.float32(1 / np.sqrt(D))}")
    inputs = option.inputs(np.float64)
    model = lower(ir.from_proto(parser.parse_model(option.text("double"))), "decomposed", 18)
    got = evaluate(model, inputs)["y"]
    np.testing.assert_allclose(got, by_formula(*inputs.values())[0], rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("opset", [17, 25])
def test_keys_beyond_a_short_mask_are_masked(run_ort: Run, by_formula: Formula, opset: int) -> None:
    """As the op says; a mask of one key alone is a broadcast, as torch says."""
    for kind, fill in (("bool", False), ("float", -np.inf)):
        option = Option(mask=(B, 1, L, S - 2), mask_kind=kind)
        inputs = option.inputs(np.float32)
        model = lower(ir.from_proto(parser.parse_model(option.text("float"))), "decomposed", opset)
        whole = np.concatenate([inputs["m"], np.full((B, 1, L, 2), fill, inputs["m"].dtype)], -1)
        wanted = by_formula(inputs["q"], inputs["k"], inputs["v"], whole)[0]
        np.testing.assert_allclose(run_ort(model, inputs)["y"], wanted, atol=2e-6)


@pytest.mark.parametrize(("form", "opset"), [("standard", 23), ("decomposed", 18)])
def test_a_row_of_the_lowest_number_is_the_mean_of_the_values(
    run_ort: Run, by_formula: Formula, form: Form, opset: int
) -> None:
    option = OPTIONS["additive mask (B, H, L, S)"]
    inputs = option.inputs(np.float32)
    lowest = np.finfo(np.float32).min
    inputs["m"] = np.where(np.isneginf(inputs["m"]), lowest, inputs["m"])
    inputs["m"][0, 0, 0] = -np.inf  # and beside it a row that keeps nothing
    model = lower(canonical("additive mask (B, H, L, S)"), form, opset)
    wanted = by_formula(*inputs.values())[0]
    assert np.abs(wanted[:, 1:, L // 2]).max() > 0.1
    np.testing.assert_allclose(run_ort(model, inputs)["y"], wanted, atol=2e-6)


def test_nan_in_the_data_shows_and_nan_at_masked_keys_does_not(run_ort: Run) -> None:
    """The guard of empty rows looks at the mask; a guard by IsNaN would hide both."""
    for kind in ("bool", "float"):
        option = Option(mask=(B, 1, L, S), mask_kind=kind)
        inputs = option.inputs(np.float32)
        inputs["m"][..., 0] = True if kind == "bool" else 0.0
        inputs["m"][..., 3] = False if kind == "bool" else -np.inf
        inputs["m"][:, :, 4] = False if kind == "bool" else -np.inf
        model = lower(ir.from_proto(parser.parse_model(option.text("float"))), "decomposed", 18)
        spoiled = {name: array.copy() for name, array in inputs.items()}
        spoiled["q"][0, 1, 2] = np.nan
        rows: np.ndarray = np.isnan(run_ort(model, spoiled)["y"]).max(-1)
        assert rows[0, 1].tolist() == [False, False, True, False, False]
        assert rows.sum() == 1
        if kind == "float":
            spoiled = {name: array.copy() for name, array in inputs.items()}
            spoiled["m"][0, 0, 4, 5] = np.nan  # an otherwise empty row of the mask
            assert np.isnan(run_ort(model, spoiled)["y"][0, :, 4]).all()
        else:
            hidden = {name: array.copy() for name, array in inputs.items()}
            hidden["k"][:, :, 3] = np.nan
            np.testing.assert_array_equal(run_ort(model, hidden)["y"], run_ort(model, inputs)["y"])


@pytest.mark.parametrize("name", ["plain", "causal", "mask (B, 1, 1, S)", "additive mask (L, S)"])
def test_without_keys_the_decomposed_output_is_0(run_ort: Run, name: str) -> None:
    inputs = OPTIONS[name].inputs(np.float32)
    inputs["k"], inputs["v"] = inputs["k"][:, :, :0], inputs["v"][:, :, :0]
    if "m" in inputs:
        inputs["m"] = inputs["m"][..., :0]
    got = run_ort(lower(canonical(name), "decomposed", 18), inputs)["y"]
    assert got.shape == (B, H, L, E)
    assert not got.any()


def test_half_precision_keeps_its_type(run_ort: Run, by_formula: Formula) -> None:
    for form, opset in LOWEST:
        model = lower(canonical("additive mask (L, S)", "float16"), form, opset)
        inputs = OPTIONS["additive mask (L, S)"].inputs(np.float16)
        got = run_ort(model, inputs)["y"]
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, by_formula(*inputs.values())[0], atol=5e-3)
    lower(canonical("additive mask (L, S)", "bfloat16"), "decomposed", 17)  # passes the checker


def test_attention_in_a_subgraph_is_lowered(run_ort: Run, by_formula: Formula) -> None:
    text = f"""<ir_version: 11, opset_import: ["" : 23]>
    g (bool c, float[B,{H},L,{D}] q, float[B,{H},S,{D}] k, float[B,{H},S,{E}] v) => (float[B,{H},L,{E}] y)
    {{ y = If(c) <
        then_branch = yes () => (float[B,{H},L,{E}] a) {{ a = Attention(q, k, v) }},
        else_branch = no () => (float[B,{H},L,{E}] b) {{ b = Attention<is_causal=1>(q, k, v) }}
    > }}"""
    canonical = ir.from_proto(parser.parse_model(text))
    inputs = Option().inputs(np.float32)
    for form, opset in LOWEST:
        model = lower(canonical, form, opset)
        for choice in (True, False):
            got = run_ort(model, {"c": np.array(choice), **inputs})["y"]
            np.testing.assert_allclose(got, by_formula(*inputs.values(), is_causal=not choice)[0], atol=2e-6)


def test_a_subgraph_may_give_back_what_lies_around_it(run_ort: Run) -> None:
    """Present keys without a past are the keys themselves, here a value of the outer graph with a name of its own."""
    text = f"""<ir_version: 11, opset_import: ["" : 23]>
    g (bool c, float[B,{H},L,{D}] q) => (float[B,{H},S,{D}] z)
    {{ k = Neg(q)  z = If(c) <
        then_branch = yes () => (float[B,{H},S,{D}] a) {{ y, a, v = Attention(q, k, k) }},
        else_branch = no () => (float[B,{H},S,{D}] b) {{ b = Abs(k) }}
    > }}"""
    model = lower(ir.from_proto(parser.parse_model(text)), "decomposed", 17)
    q = Option().inputs(np.float32)["q"]
    np.testing.assert_array_equal(run_ort(model, {"c": np.array(True), "q": q})["z"], -q)
    np.testing.assert_array_equal(run_ort(model, {"c": np.array(False), "q": q})["z"], np.abs(q))


def test_what_cannot_be_lowered_is_said_in_one_line() -> None:
    def model(q: str, k: str, v: str, call: str = "q, k, v") -> ir.Model:
        header, signature = '<ir_version: 11, opset_import: ["" : 23]>', f"({q} q, {k} k, {v} v) => (float[A,B,C,D] y)"
        text = f"{header} g {signature} {{ y = Attention({call}) }}"
        return ir.from_proto(parser.parse_model(text))

    with pytest.raises(FormError, match="the number of heads must be fixed"):
        lower(model("float[B,H,L,8]", "float[B,H,S,8]", "float[B,H,S,8]"), "decomposed", 18)
    with pytest.raises(FormError, match="the head size must be fixed, got D"):
        lower(model("float[B,4,L,D]", "float[B,4,S,D]", "float[B,4,S,D]"), "decomposed", 18)
    with pytest.raises(FormError, match="3 key/value heads must divide 4 query heads"):
        lower(model("float[B,4,L,8]", "float[B,3,S,8]", "float[B,3,S,8]"), "decomposed", 18)
