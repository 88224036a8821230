"""What the check for CUDA found; read by the probe, written by a process of its own (`_cuda_check`)."""

import msgspec


class CudaFacts(msgspec.Struct, kw_only=True):
    """What was found, as far as it went.

    Attributes:
        driver: whether the NVIDIA driver's library is there.
        driver_error: code of the CUDA driver API when it could not start; 0 when it could (100: no device).
        driver_cuda: newest CUDA version that the driver serves, e.g. `13.0`.
        devices: names of the GPUs that may be used.
        ran: whether one matrix product was computed on CUDA, with the CPU forbidden, and right.
        error: what stopped it.
    """

    driver: bool = False
    driver_error: int = 0
    driver_cuda: str = ""
    devices: list[str] = []
    ran: bool = False
    error: str = ""
