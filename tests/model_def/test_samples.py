import numpy as np
import pytest

from crosshead.model_def.errors import ConfigError
from crosshead.model_def.samples import SAMPLES, sample


@pytest.mark.parametrize("kind", SAMPLES)
def test_the_same_name_and_seed_give_the_same_numbers(kind: str) -> None:
    got = sample(kind, (3, 4, 5), 7)
    assert got.shape == (3, 4, 5)
    assert got.dtype == np.float32
    assert np.isfinite(got).all()
    np.testing.assert_array_equal(got, sample(kind, (3, 4, 5), 7))
    if kind not in ("zeros", "ones"):
        assert not np.array_equal(got, sample(kind, (3, 4, 5), 8))
        assert not np.array_equal(got, sample(kind, (3, 4, 5), (7, 1)))


def test_the_names_mean_what_they_say() -> None:
    many = {kind: sample(kind, (10_000,), 0).astype(np.float64) for kind in SAMPLES}
    assert abs(many["normal"].mean()) < 0.05
    assert abs(many["normal"].std() - 1.0) < 0.05
    np.testing.assert_allclose(many["large"], 40 * many["normal"], rtol=1e-6)
    np.testing.assert_allclose(many["small"], many["normal"] / 1000, rtol=1e-6)
    assert -1.0 <= many["uniform"].min() < -0.99
    assert 0.99 < many["uniform"].max() <= 1.0
    assert np.abs(many["heavy-tailed"]).max() > 10.0
    assert 0 < np.abs(many["denormal"]).max() < np.finfo(np.float32).smallest_normal
    assert not many["zeros"].any()
    assert (many["ones"] == 1).all()


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"^sample: expected one of normal, .*, ones, got 'gauss'$"):
        sample("gauss", (2,), 0)
