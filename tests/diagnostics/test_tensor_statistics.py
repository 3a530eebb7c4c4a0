"""Statistics against NumPy and ml_dtypes, on the same bits."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tf_mixprec.diagnostics import tensor_statistics
from tf_mixprec.numerics.formats import FORMATS
from tf_mixprec.numerics.formats import float_format

DTYPES = ("float32", "float16", "bfloat16")


def computed(x, jit_compile=False):
    function = tf.function(
        tensor_statistics.full_statistics, jit_compile=jit_compile
    )
    return tensor_statistics.decoded(function(x).numpy())


def values_of(dtype, scale=1.0, seed=0):
    """Returns normal values of many sizes, and every kind that is special."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=4000) * 2.0 ** rng.integers(-30, 16, 4000) * scale
    info = ml_dtypes.finfo(dtype)
    special = np.array(
        [0, -0.0, 1, np.inf, -np.inf, np.nan, info.max, info.smallest_normal],
        "float64",
    )
    tiny = np.arange(1, 30) * float(info.smallest_subnormal)
    with np.errstate(over="ignore"):
        return np.concatenate([x, special, tiny, -tiny]).astype(dtype)


def oracle(x, name):
    """Returns underflow, subnormal, overflow and SQNR, by casting."""
    wide = x.astype("float64")
    finite = wide[np.isfinite(wide)]
    dtype = ml_dtypes.finfo(name).dtype
    with np.errstate(over="ignore", invalid="ignore"):
        cast = x[np.isfinite(wide)].astype("float32").astype(dtype)
    cast = cast.astype("float64")
    stays = np.isfinite(cast)
    magnitude = np.abs(cast)
    noise = ((finite - cast)[stays] ** 2).sum() / (finite[stays] ** 2).sum()
    return (
        int(((finite != 0) & (cast == 0)).sum()),
        int(
            (
                (magnitude > 0)
                & (magnitude < float(ml_dtypes.finfo(name).smallest_normal))
            ).sum()
        ),
        int((~stays).sum()),
        noise,
    )


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_counts_are_those_of_numpy(dtype, jit_compile):
    x = values_of(dtype)
    wide = x.astype("float64")
    found = computed(tf.constant(x), jit_compile)
    finite = wide[np.isfinite(wide)]
    assert (found.size, found.nan) == (x.size, int(np.isnan(wide).sum()))
    assert found.inf == int(np.isinf(wide).sum())
    assert found.zero == int((wide == 0).sum())
    assert found.amax == np.abs(finite).max()
    assert found.smallest == np.abs(finite[finite != 0]).min()
    assert found.rms == pytest.approx(np.sqrt((finite**2).mean()), rel=1e-6)
    for name in FORMATS:
        there = found.formats[name]
        underflow, subnormal, overflow, noise = oracle(x, name)
        assert there.underflow == underflow, name
        assert there.subnormal == subnormal, name
        assert there.overflow == overflow, name
        # Beside the largest number, what is far below it is lost in float32.
        assert there.noise == pytest.approx(noise, rel=1e-5, abs=1e-20), name


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("name", FORMATS)
def test_the_limits_of_a_format_are_counted_exactly(name, jit_compile):
    form = float_format(name)
    limits = (form.first_nonzero, form.first_normal, form.first_nonfinite)
    bits = np.array([b + d for b in limits for d in (-1, 0)], "int32")
    x = bits.view("float32")
    found = computed(tf.constant(x), jit_compile).formats[name]
    underflow, subnormal, overflow, _ = oracle(x, name)
    assert (found.underflow, found.subnormal, found.overflow) == (
        underflow,
        subnormal,
        overflow,
    )
    assert (underflow, subnormal, overflow) == (1, 2, 1)


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_exponents_are_those_of_numpy(jit_compile):
    x = np.random.default_rng(0).normal(size=3000).astype("float32")
    found = computed(tf.constant(x), jit_compile).exponents
    exponents, counts = np.unique(
        np.floor(np.log2(np.abs(x.astype("float64")))), return_counts=True
    )
    assert found == dict(
        zip(exponents.astype(int).tolist(), counts.tolist(), strict=True)
    )


def test_a_power_of_two_shifts_the_exponents():
    x = np.random.default_rng(0).normal(size=3000).astype("float32")
    before = computed(tf.constant(x)).exponents
    after = computed(tf.constant(x * 2.0**7)).exponents
    assert after == {k + 7: v for k, v in before.items()}


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_float32_subnormal_numbers_are_seen(jit_compile):
    x = tf.constant(np.array([1e-40, -3e-45, 0.0, 2.0], "float32"))
    found = computed(x, jit_compile)
    assert found.zero == 1
    assert found.smallest == float(np.float32(3e-45))
    assert found.exponents == {-127: 2, 1: 1}
    assert found.formats["float16"].underflow == 2
    assert found.formats["bfloat16"].underflow == 1


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize(
    "x", [np.zeros((0, 3), "float32"), np.full(3, np.nan, "float32")]
)
def test_nothing_finite(x, jit_compile):
    found = computed(tf.constant(x), jit_compile)
    assert (found.size, found.nonfinite, found.nonzero) == (x.size, x.size, 0)
    assert (found.amax, found.rms, found.exponents) == (0.0, 0.0, {})
    assert found.sqnr("float16") == np.inf == found.headroom("float16")
    assert found.underflow_fraction("float16") == 0.0


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e3])
def test_noise_is_that_of_casts(scale, jit_compile):
    x = np.random.default_rng(0).normal(size=4000) * scale
    x = x.astype("float32")
    found = computed(tf.constant(x), jit_compile)
    for name in FORMATS:
        noise = oracle(x, name)[3]
        assert found.formats[name].noise == pytest.approx(noise, rel=1e-5)


def test_large_values_have_a_finite_noise():
    x = np.full(100, 3e38, "float32") * np.linspace(0.5, 1, 100, dtype="f4")
    found = computed(tf.constant(x))
    noise = oracle(x, "bfloat16")[3]
    assert found.formats["bfloat16"].noise == pytest.approx(noise, rel=1e-5)
    assert found.sqnr("bfloat16") == pytest.approx(-10 * np.log10(noise))


@pytest.mark.parametrize(
    "jit_compile",
    [
        pytest.param(False, id="graph"),
        pytest.param(True, id="xla", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("only_finite", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_brief_statistics_are_the_first_of_the_full_ones(
    dtype, only_finite, jit_compile
):
    values = values_of(dtype)
    if only_finite:
        values = values[np.isfinite(values.astype("float64"))]
    for part in (values, -values[:1], values[:0]):
        x = tf.constant(part)
        compute = tf.function(
            tensor_statistics.brief_statistics, jit_compile=jit_compile
        )
        brief = tensor_statistics.decoded(compute(x).numpy())
        full = computed(x)
        for field in ("size", "nan", "inf", "zero", "amax"):
            assert getattr(brief, field) == getattr(full, field)
        assert brief.exponents == brief.formats == {}
