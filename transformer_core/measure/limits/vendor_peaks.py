"""Peaks that vendors publish, for utilisation against the data sheet.

A device is looked up by its full product name: one that is not in the table has no vendor peak,
never that of a similar one. Numbers of matrix units are dense, which is half of what data sheets
print "with sparsity", with 32-bit accumulation.
"""

from collections.abc import Iterator

from schemas.results import NumberFormat, VendorPeak

_TERA = 1e12
_GIGA = 1e9

_V100 = "NVIDIA V100 Tensor Core GPU data sheet, 2020"
_A100 = "NVIDIA A100 Tensor Core GPU data sheet, 2022"
_A100_40 = "NVIDIA A100 Tensor Core GPU Architecture white paper, 2020"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture white paper, 2021"
_ADA = "NVIDIA Ada GPU Architecture white paper, 2023"
_L4 = "NVIDIA L4 Tensor Core GPU data sheet, 2023"
_L40S = "NVIDIA L40S GPU data sheet, 2023"
_H100 = "NVIDIA H100 Tensor Core GPU Architecture white paper, 2023"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet, 2024"

# Product names; TFLOP/s of fp32, tf32, bf16 and fp16 (None: not in hardware); GB/s; source.
_TABLE: tuple[
    tuple[
        tuple[str, ...], tuple[float | None, float | None, float | None, float | None], float, str
    ],
    ...,
] = (
    (
        ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"),
        (15.7, None, None, 125),
        900,
        _V100,
    ),
    (("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"), (19.5, 156, 312, 312), 1555, _A100_40),
    (("NVIDIA A100 80GB PCIe",), (19.5, 156, 312, 312), 1935, _A100),
    (("NVIDIA A100-SXM4-80GB",), (19.5, 156, 312, 312), 2039, _A100),
    (("NVIDIA GeForce RTX 3090",), (35.6, 35.6, 71, 71), 936, _GA102),
    (("NVIDIA GeForce RTX 4090",), (82.6, 82.6, 165.2, 165.2), 1008, _ADA),
    (("NVIDIA L4",), (30.3, 60, 121, 121), 300, _L4),
    (("NVIDIA L40S",), (91.6, 183, 362, 362), 864, _L40S),
    (("NVIDIA H100 80GB HBM3",), (66.9, 494.7, 989.4, 989.4), 3352, _H100),
    (("NVIDIA H100 PCIe",), (51.2, 378, 756, 756), 2000, _H100),
    (("NVIDIA H200",), (67, 494.5, 989.5, 989.5), 4800, _H200),
)
_FORMATS: tuple[NumberFormat, ...] = ("fp32", "tf32", "bf16", "fp16")


def vendor_peaks() -> Iterator[VendorPeak]:
    """All devices of the table."""
    for names, rates, bandwidth, source in _TABLE:
        flops = {
            number_format: rate * _TERA
            for number_format, rate in zip(_FORMATS, rates, strict=True)
            if rate is not None
        }
        for name in names:
            yield VendorPeak(
                device=name,
                flops_per_second=flops,
                bytes_per_second=bandwidth * _GIGA,
                source=source,
            )


def vendor_peak(device: str) -> VendorPeak | None:
    """The peak of the device of exactly this product name; None if it is not known."""
    return next((peak for peak in vendor_peaks() if peak.device == device), None)
