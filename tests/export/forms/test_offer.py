import subprocess
import sys

import pytest

from crosshead.export import forms
from crosshead.export.artifact import FormError
from crosshead.export.forms import DEFAULT_OPSETS, EXPORTER_FORMS, FORM_OPSETS, check_form


@pytest.mark.parametrize(("form", "first", "last"), [("standard", 23, 25), ("decomposed", 17, 25)])
def test_each_form_is_offered_from_its_first_opset_to_its_last(form: str, first: int, last: int) -> None:
    for opset in range(first, last + 1):
        check_form(form, opset)
    for opset in (first - 1, last + 1):
        with pytest.raises(FormError) as caught:
            check_form(form, opset)
        assert str(caught.value) == f"form '{form}' is offered at opset {first} to {last}, got opset {opset}"


def test_unknown_forms_are_refused_by_name() -> None:
    for form in ("fused", "given", ""):
        with pytest.raises(FormError, match=f"unknown form '{form}': expected one of standard, decomposed"):
            check_form(form, 23)


def test_the_torchscript_exporter_offers_no_form_with_the_attention_operator() -> None:
    for opset in FORM_OPSETS["decomposed"]:
        check_form("decomposed", opset, "torchscript")
    with pytest.raises(FormError, match=r"^form 'standard' is made of the Attention operator.*--exporter dynamo$"):
        check_form("standard", 23, "torchscript")
    assert EXPORTER_FORMS["dynamo"] == tuple(FORM_OPSETS)


def test_defaults_are_offered() -> None:
    assert dict(DEFAULT_OPSETS) == {"standard": 23, "decomposed": 18}
    assert DEFAULT_OPSETS.keys() == FORM_OPSETS.keys()
    for form, opset in DEFAULT_OPSETS.items():
        check_form(form, opset)


def test_public_names() -> None:
    assert len(set(forms.__all__)) == len(forms.__all__)
    for name in forms.__all__:
        assert getattr(forms, name) is not None
    assert not hasattr(forms, "raise_attention")


def test_asking_what_is_offered_loads_neither_torch_nor_onnx() -> None:
    program = (
        "import sys; from crosshead.export.forms import check_form; check_form('decomposed', 18);"
        "print(sorted({'torch', 'onnx', 'onnx_ir', 'onnxscript'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
