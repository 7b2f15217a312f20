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
from tests.faults.families.newer import (
    few_bits_faults,
    masters_faults,
    one_pass_faults,
    softmax_faults,
    text_decoding_faults,
    text_faults,
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
    *softmax_faults.FAULTS,
    *one_pass_faults.FAULTS,
    *masters_faults.FAULTS,
    *few_bits_faults.FAULTS,
    *text_faults.FAULTS,
    *text_decoding_faults.FAULTS,
]
