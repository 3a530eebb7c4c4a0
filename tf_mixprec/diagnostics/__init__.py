"""What becomes of numbers in a model, layer by layer; plain records come out.

`tensor_statistics` counts in one tensor. `taps` puts it on what layers are
given and return, and on the gradients there. `probed_step` makes a training
step of all that, which changes nothing; `culprit` says where inf or nan came
from, and `diagnose` what else is wrong. `audit` needs no data.
"""
