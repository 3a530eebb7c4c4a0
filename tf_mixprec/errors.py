"""The package's own warnings. A leaf: it imports nothing of ours."""


class LossScaleWarning(UserWarning):
    """The loss scale is not used as it must be for the gradients to be right.

    Its own class, so that `warnings.filterwarnings("error",
    category=mp.LossScaleWarning)` turns exactly these into errors.
    """


class ConversionWarning(UserWarning):
    """A model was not converted as asked for, but as far as possible."""


class DeadUpdateWarning(UserWarning):
    """Updates are so small that the weights stay as they are."""


class NumericsWarning(UserWarning):
    """A step was inf or nan, and that will not pass by itself."""
