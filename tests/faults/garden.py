"""The garden: every fault, and in which certificate it must show."""

from tests.faults.families import (
    data_faults,
    decoding_faults,
    dropout_faults,
    kernel_faults,
    loss_faults,
    mask_faults,
    narrow_faults,
    parallel_faults,
    precision_faults,
    resuming_faults,
    update_faults,
)

FAULTS = [
    *precision_faults.FAULTS,
    *update_faults.FAULTS,
    *loss_faults.FAULTS,
    *mask_faults.FAULTS,
    *data_faults.FAULTS,
    *kernel_faults.FAULTS,
    *resuming_faults.FAULTS,
    *parallel_faults.FAULTS,
    *dropout_faults.FAULTS,
    *decoding_faults.FAULTS,
    *narrow_faults.FAULTS,
]
