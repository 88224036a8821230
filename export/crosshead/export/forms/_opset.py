"""Takes a model of opset 23 to another opset of ai.onnx, up or down, by the standard's own schemas.

For each node whose operator changed on the way: an adapter where more than types changed, a body in older operators
where there is no such operator yet, and then a check that the older (or newer) schema takes the node as it stands.
"""

from collections import deque
from itertools import chain, repeat

import onnx
import onnx_ir as ir

from crosshead.export.artifact import FormError
from crosshead.export.forms._adapters import ADAPTERS, REDEFINED, Unconvertible
from crosshead.export.forms._bodies import OWN_BODIES, write_out
from crosshead.export.forms._emitter import Emitter

_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic
_SINGLE = onnx.defs.OpSchema.FormalParameterOption.Single


def convert(model: ir.Model, emit: Emitter, opset: int) -> None:
    """Convert in place. Every type that the nodes name must be known, as far as it can be.

    Raises:
        FormError: an operator that cannot go to this opset, by name, and why.
    """
    source = model.opset_imports[""]
    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    pending = deque((node, source) for node in nodes if node.domain == "")
    while pending:
        node, version = pending.popleft()
        emit.before(node)
        label, op_type = node.name, node.op_type
        try:
            body_version = _convert_node(emit, node, version, opset)
        except Unconvertible as error:
            raise FormError(f"{op_type} ({label}) cannot go from opset {source} to opset {opset}: {error}") from error
        pending.extend((emitted, body_version) for emitted in emit.emitted)
    model.graph.opset_imports[""] = opset
    # Older readers refuse a file of a later IR version than they know, whatever is in it.
    model.ir_version = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])


def _convert_node(emit: Emitter, node: ir.Node, version: int, opset: int) -> int:
    """Convert one node; the nodes that it emits are of the version returned, and are converted in their turn."""
    now, then = _schema(node.op_type, version), _schema(node.op_type, opset)
    if now is None:
        raise Unconvertible(f"ai.onnx {version} has no such operator")
    redefined = REDEFINED.get(node.op_type, 0)
    if then is None or opset < redefined <= version:
        if node.op_type in OWN_BODIES:
            OWN_BODIES[node.op_type](emit, node)
            return version
        return write_out(emit, node, now)
    if now.since_version == then.since_version:
        return version
    for below, op_type, adapt in ADAPTERS:
        if node.op_type == op_type and opset < below <= version and node.graph is not None:
            adapt(emit, node)
    if node.graph is not None:
        _drop_defaults(node, now, then)
        _check_fit(node, then)
    return version


def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    return onnx.defs.get_schema(op_type, opset, "") if onnx.defs.has(op_type, opset, "") else None


def _drop_defaults(node: ir.Node, now: onnx.defs.OpSchema, then: onnx.defs.OpSchema) -> None:
    """Drop attributes that the other schema does not know and that only say their default."""
    for name in [name for name in node.attributes if name not in then.attributes]:
        default = now.attributes[name].default_value
        value = node.attributes[name].value
        if not default.name or ir.serde.deserialize_attribute(default).value != value:
            raise Unconvertible(f"attribute {name}={value!r} is not there")
        node.attributes.pop(name)


def _check_fit(node: ir.Node, schema: onnx.defs.OpSchema) -> None:
    """Whether the schema takes the operands of a node, in number and type; unknown types pass."""
    allowed = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    for kind, values, formals in (("input", node.inputs, schema.inputs), ("output", node.outputs, schema.outputs)):
        if not formals:
            continue
        variadic = formals[-1].option == _VARIADIC
        used = [value for value in values if value is not None]
        if len(values) > len(formals) and not variadic and any(value is not None for value in values[len(formals) :]):
            raise Unconvertible(f"it takes at most {len(formals)} {kind}s there")
        for value, formal in zip(values, chain(formals, repeat(formals[-1])), strict=False):
            if value is None or not isinstance(value.type, ir.TensorType):
                continue
            name = f"tensor({value.type.dtype.name.lower()})"
            if name not in allowed.get(formal.type_str, [formal.type_str]):
                raise Unconvertible(f"{kind} {formal.name} cannot be {value.type.dtype.name} there")
        needed = [formal.name for formal in formals if formal.option == _SINGLE]
        if len(used) < len(needed):
            raise Unconvertible(f"it needs {kind}s {', '.join(needed)} there")
