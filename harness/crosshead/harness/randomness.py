"""Outputs of a module that draws random numbers: no backend can be held against one draw of many."""

import msgspec

from crosshead.results import OutputRecord

NOISE_TIMES = 3.0
"""Errors up to so many times the distance of two draws are explained by the draws; two draws lie apart about alike."""


def doubted(record: OutputRecord, noise: float) -> OutputRecord:
    """Return the record of an output with *suspect* for *fail* where random numbers explain the error.

    What a person's own tolerance says, another shape or dtype, and NaN or Inf stay as they are.

    Args:
        record: as judged, of an output of the right shape.
        noise: how far two draws of the module lie apart, as in `CaseRecord.noise`; 0 for a module that draws nothing.
    """
    if not noise or record.verdict == "pass" or record.rule == "user" or record.dtype != record.expected_dtype:
        return record
    told = f"two float64 evaluations of the module differ by {noise:.2g} themselves: it draws random numbers"
    if record.rule == "exact":
        return _suspect(record, f"{record.reason}, and {told}")
    if (record.nan, record.inf) != (record.expected_nan, record.expected_inf) or record.rel_l2 is None:
        return record
    if record.rel_l2 > NOISE_TIMES * noise:
        return msgspec.structs.replace(record, reason=f"{record.reason}; rel_l2 {record.rel_l2:.2g}, while {told}")
    return _suspect(record, f"rel_l2 {record.rel_l2:.2g} says nothing, since {told}")


def _suspect(record: OutputRecord, reason: str) -> OutputRecord:
    return msgspec.structs.replace(record, verdict="suspect", reason=reason)
