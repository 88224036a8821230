import pytest

from crosshead.runtimes import RESERVED, RUNTIMES, Available, Unavailable, UnknownBackendError, get_runtime


def test_names_are_the_pinned_ones() -> None:
    assert [runtime.name for runtime in RUNTIMES] == [
        "torch-eager",
        "torch-compile",
        "onnx-reference",
        "ort-cpu",
        "ort-cuda",
        "fake",
    ]


def test_reserved_names_are_sorted_and_free() -> None:
    assert list(RESERVED) == sorted(set(RESERVED) - {runtime.name for runtime in RUNTIMES})


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.name)
def test_every_backend_is_found_by_its_name(runtime: object) -> None:
    assert get_runtime(runtime.name) is runtime  # type: ignore[attr-defined]  # parametrised


def test_unknown_name_gets_a_close_match_and_the_list() -> None:
    with pytest.raises(
        UnknownBackendError, match=r"no backend 'ortcpu'; did you mean 'ort-cpu'\? \(known: torch-eager"
    ):
        get_runtime("ortcpu")


def test_far_name_gets_no_match() -> None:
    with pytest.raises(UnknownBackendError) as caught:
        get_runtime("zzz")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_name_says_so(name: str) -> None:
    with pytest.raises(UnknownBackendError, match=f"'{name}' is reserved for a later version"):
        get_runtime(name)


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.name)
def test_probe_answers_with_a_version_or_a_remedy(runtime: object) -> None:
    found = runtime.probe()  # type: ignore[attr-defined]  # parametrised
    if isinstance(found, Available):
        assert found.version
    else:
        assert isinstance(found, Unavailable)
        assert found.reason
        assert found.remedy


def test_what_all_includes_and_times() -> None:
    chosen = {runtime.name: runtime.capabilities for runtime in RUNTIMES}
    assert not chosen["fake"].in_all
    assert chosen["onnx-reference"].in_all
    assert not chosen["onnx-reference"].timed_in_all
    assert chosen["torch-eager"].executes == "module"
    assert chosen["ort-cuda"].device == "cuda"
