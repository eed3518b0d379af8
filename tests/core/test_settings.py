"""How to compress is one thing, written and read exactly wherever it goes."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from fedsz.bounds import KINDS, ErrorBound
from fedsz.core.partition import RULES
from fedsz.core.protocol import Request
from fedsz.core.settings import DEFAULT, DELTA, EXACT, UPDATES, WEIGHTS, Settings
from fedsz.errors import CodecUnavailable, ConfigError
from fedsz.experiments.scheme import Scheme, parse
from fedsz.training.options import RunConfig

numbers = st.floats(1e-300, 1.0, exclude_max=True)
bounds = st.builds(ErrorBound, st.sampled_from(KINDS), numbers)
texts = st.builds(str, bounds)


def legal(**fields: Any) -> Settings:
    """Weights are no step, and so have no bound of one."""
    if fields["update"] == WEIGHTS and fields["error_bound"].startswith("step:"):
        fields["update"] = DELTA
    return Settings(**fields)


def request_of(settings: Settings) -> Request:
    """Return a request of a first round."""
    return Request(run=b"a run", round=1, trains=True, base={}, reference={}, settings=settings)


all_settings = st.builds(
    legal,
    error_bound=texts,
    codec=st.sampled_from(["uniform", "uniform:effort=9", "szx", "raw", "zfp:precision=14", "sz3"]),
    lossless=st.sampled_from(["blosclz", "zstd:level=3", "raw"]),
    threshold=st.integers(0, 1 << 40),
    rule=st.sampled_from(RULES),
    factors=st.dictionaries(st.text(max_size=9), st.floats(1e-9, 1e9), max_size=3),
    update=st.sampled_from(UPDATES),
    decay=st.floats(0, 1),
    downlink=st.just(EXACT) | texts,
)


@given(bound=bounds)
def test_a_bound_is_read_as_it_was_written(bound: ErrorBound) -> None:
    assert ErrorBound.of(str(bound)) == bound


def test_a_bound_does_not_grow_on_its_way() -> None:
    bound = ErrorBound.rel(0.0123456789)

    settings = Request.decode(request_of(Settings.of(bound)).encode()).settings

    assert settings.error_bound == "0.0123456789"
    assert settings.bound == bound


@given(settings=all_settings)
def test_json_and_requests_keep_all_of_it(settings: Settings) -> None:
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings
    try:
        read = Request.decode(request_of(settings).encode())
    except CodecUnavailable:
        return  # sz3 is not everywhere
    assert read == request_of(settings)


@given(settings=all_settings)
def test_options_keep_all_that_an_option_can_say(settings: Settings) -> None:
    options = {name: getattr(settings, name) for name in msgspec.structs.asdict(settings)}
    del options["factors"]
    run = RunConfig(**options)
    toml = tomllib.loads(tomli_w.dumps(run.as_dict()))

    assert run.compression == RunConfig.of(toml).compression == settings.replace(factors={})


@given(settings=all_settings)
def test_a_scheme_is_read_as_it_was_written(settings: Settings) -> None:
    if settings.codec == "raw":
        settings = DEFAULT.replace(update="weights", codec="raw")
    scheme = Scheme.of_config(settings)
    read, bound = parse(str(scheme), replace(scheme, error_bound="0.5"))
    assert str(read).partition("@")[0] == str(scheme).partition("@")[0]
    assert bound == (str(scheme.bound) if scheme.bound else "")
    assert (read.update, read.codec) == (scheme.update, scheme.codec)
    assert read.downlink == scheme.downlink


def test_equal_choices_are_equal() -> None:
    one = Settings(error_bound="1e-2", codec="uniform:effort=5", downlink="std:1.0")

    assert one == Settings(downlink="std:1")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"error_bound": "0"}, "above 0"),
        ({"error_bound": "tight"}, "no error bound"),
        ({"codec": "sz4"}, "no codec 'sz4'"),
        ({"codec": "uniform:depth=3"}, "no setting 'depth'"),
        ({"downlink": "almost"}, "no error bound"),
        ({"update": "gradients"}, "no update 'gradients'; have weights, delta, delta"),
        ({"decay": 1.5}, r"decay must lie in \[0, 1\]"),
        ({"threshold": -1}, "threshold must be 0 or more"),
        ({"rule": "some"}, "no partition rule 'some'"),
        ({"error_bound": "step:1", "update": "weights"}, "it needs update delta"),
        ({"factors": {"a": 0.0}}, "factor of 'a' must be above 0"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Settings(**wrong)


def test_a_file_may_name_a_codec_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record can be read on another machine; only compressing needs the library."""
    import fedsz

    monkeypatch.setattr(type(fedsz.codecs.get("zfp")), "library", "zfpy_that_is_not_there")
    settings = msgspec.json.decode(b'{"codec": "zfp"}', type=Settings)

    with pytest.raises(CodecUnavailable, match="zfpy_that_is_not_there"):
        settings.require()
