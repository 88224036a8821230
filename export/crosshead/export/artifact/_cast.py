"""Cast a module to another precision, the same way where it is exported and where it is run. Imports no torch."""

from typing import TYPE_CHECKING

from crosshead.export.artifact._manifest import Precision

if TYPE_CHECKING:
    from torch import nn


def cast_module(module: "nn.Module", precision: Precision) -> "nn.Module":
    """Cast parameters and buffers in place as `.float()`, `.half()` or `.bfloat16()` do, and return the module.

    Complex and integer tensors and tensors kept as plain attributes stay, and a module that says otherwise by an
    `_apply` of its own is followed.
    """
    return {"fp32": module.float, "fp16": module.half, "bf16": module.bfloat16}[precision]()
