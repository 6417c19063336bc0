"""Datasheet figures of accelerators: what `--for` predicts from.

Bandwidth is the memory's peak, arithmetic the dense peak of 16-bit matrix multiplication with 32-bit sums, where a
datasheet gives figures with sparsity half of those. Both are vendors' peaks: real passes reach 60 to 90 % of them
(`--efficiency`). Apple publishes bandwidth, and no arithmetic: that is cores x 256 x clock, as `source` says.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.checks import real
from forerun.errors import ParameterError


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator: GB/s, TFLOP/s, GB (10^9), each above 0; memory None: not given, so it is not checked."""

    name: str
    title: str
    gb_per_s: float
    tflops: float
    memory_gb: float | None
    source: str


_DEVICES = (
    Device("a100", "NVIDIA A100 80 GB SXM", 2039, 312, 80, "NVIDIA A100 Tensor Core GPU datasheet, June 2021"),
    Device("a100-40gb", "NVIDIA A100 40 GB SXM", 1555, 312, 40, "NVIDIA A100 Tensor Core GPU datasheet, May 2020"),
    Device("h100", "NVIDIA H100 SXM", 3350, 989.5, 80, "NVIDIA H100 Tensor Core GPU datasheet, 2023: 1,979 sparse"),
    Device("h200", "NVIDIA H200 SXM", 4800, 989.5, 141, "NVIDIA H200 Tensor Core GPU datasheet, 2024: 1,979 sparse"),
    Device("b200", "NVIDIA B200", 8000, 2250, 180, "NVIDIA DGX B200 datasheet, 2024: 8 GPUs with 1,440 GB, 64 TB/s"),
    Device("mi300x", "AMD Instinct MI300X", 5300, 1307.4, 192, "AMD Instinct MI300X data sheet, December 2023"),
    Device("mi325x", "AMD Instinct MI325X", 6000, 1307.4, 256, "AMD Instinct MI325X data sheet, October 2024"),
    Device("l4", "NVIDIA L4", 300, 121, 24, "NVIDIA L4 Tensor Core GPU datasheet, 2023: 242 sparse"),
    Device("l40s", "NVIDIA L40S", 864, 362, 48, "NVIDIA L40S datasheet, 2023: 362.05 dense, 733 sparse"),
    Device("rtx3090", "NVIDIA GeForce RTX 3090", 936, 71, 24, "NVIDIA Ampere GA102 GPU architecture white paper, 2020"),
    Device("rtx4090", "NVIDIA GeForce RTX 4090", 1008, 165.2, 24, "NVIDIA Ada GPU architecture white paper, 2022"),
    Device("rtx5090", "NVIDIA GeForce RTX 5090", 1792, 209.5, 32, "NVIDIA RTX Blackwell GPU white paper, 2025"),
    Device(
        "m2ultra", "Apple M2 Ultra, 76 cores", 800, 27.2, 192,
        "Apple press release of 5 June 2023 (bandwidth); 76 cores x 256 x 1.398 GHz",
    ),
    Device(
        "m4max", "Apple M4 Max, 40 cores", 546, 17.2, 128,
        "Apple press release of 30 October 2024 (bandwidth); 40 cores x 256 x 1.68 GHz",
    ),
)  # fmt: skip
DEVICES = {device.name: device for device in _DEVICES}
"""By the name that `--for` takes."""


def find_device(name: str) -> Device:
    """The device called `name`, however it is capitalised; ParameterError lists the known ones."""
    device = DEVICES.get(name.strip().lower())
    if device is None:
        raise ParameterError(
            "for", f"{name!r} is not known", f"one of {', '.join(DEVICES)}, or --bandwidth GB/s with --flops TFLOP/s"
        )
    return device


def own_device(gb_per_s: float | None, tflops: float | None, memory_gb: float | None) -> Device:
    """A device of given figures; ParameterError for what is missing or no number above 0."""
    if gb_per_s is None or tflops is None:
        name, other = ("bandwidth", "flops") if gb_per_s is None else ("flops", "bandwidth")
        raise ParameterError(name, f"needed beside --{other}", "--bandwidth GB/s --flops TFLOP/s, or --for NAME")
    real("bandwidth", gb_per_s, 0.0, 1e12, "GB/s, above 0", open_low=True)
    real("flops", tflops, 0.0, 1e12, "TFLOP/s, above 0", open_low=True)
    if memory_gb is not None:
        real("memory", memory_gb, 0.0, 1e12, "gigabytes, above 0", open_low=True)
    return Device("own", f"{gb_per_s:g} GB/s, {tflops:g} TFLOP/s", gb_per_s, tflops, memory_gb, "as given")
