import onnx
from onnx import TensorProto, helper

from crosshead.export.clean import clean

SECRET = "/home/someone/model.py"  # noqa: S105  # a path, as exporters leave them


def dirty() -> onnx.ModelProto:
    """A model with a note in every place that takes one."""

    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2], doc_string=SECRET)

    constant = helper.make_tensor("c", TensorProto.FLOAT, [2], [1.0, 2.0])
    inner_node = helper.make_node("Constant", [], ["inner"], value=constant)
    branch = helper.make_graph([inner_node], "branch", [], [value("inner")], doc_string=SECRET)
    nodes = [
        helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch, name="choose"),
        helper.make_node("Twice", ["y"], ["z"], domain="local", name="twice"),
    ]
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info("flag", TensorProto.BOOL, [])],
        [value("z")],
        [helper.make_tensor("w", TensorProto.FLOAT, [1], [3.0])],
        value_info=[value("y")],
    )
    body = [helper.make_node("Add", ["a", "a"], ["b"], name="add")]
    function = helper.make_function("local", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 20)])
    model = helper.make_model(
        graph, functions=[function], opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    )
    _fill(model)
    return model


def _fill(message: object) -> None:
    """Leave a note in each message that has room for one."""
    for field in message.DESCRIPTOR.fields:  # type: ignore[attr-defined]  # protobuf reflection
        if field.name == "doc_string":
            message.doc_string = SECRET  # type: ignore[attr-defined]  # as above
        elif field.name == "metadata_props":
            message.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=SECRET)  # type: ignore[attr-defined]  # as above
    for field, value in message.ListFields():  # type: ignore[attr-defined]  # as above
        if field.message_type is not None and field.name != "metadata_props":
            for part in [value] if hasattr(value, "ListFields") else value:
                _fill(part)


def test_notes_are_cleared_everywhere_and_nothing_else_is_lost() -> None:
    model = dirty()
    assert model.SerializeToString().count(SECRET.encode()) > 20
    clean(model)
    assert SECRET.encode() not in model.SerializeToString()
    assert b"stack_trace" not in model.SerializeToString()
    onnx.checker.check_model(model, full_check=True)
    assert [node.name for node in model.graph.node] == ["choose", "twice"]
    assert model.graph.node[0].attribute[0].g.node[0].attribute[0].t.float_data == [1.0, 2.0]
    assert model.functions[0].node[0].op_type == "Add"


def test_a_clean_model_stays_as_it_is() -> None:
    model = dirty()
    clean(model)
    before = model.SerializeToString(deterministic=True)
    clean(model)
    assert model.SerializeToString(deterministic=True) == before
