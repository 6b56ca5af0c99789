"""The file of a cost model: one format for measured and derived profiles, and for old files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from services.domain.copying import LinkSpeed
from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.errors import InvalidFieldError
from services.domain.mixed_cost import MixedCost
from services.domain.pipeline import Pipeline
from services.runtime.profile_file import Profile, read_profile, write_profile
from services.worker import profile_command

COST = CostProfile((PrefillCost(16, 0.5), PrefillCost(32, 1.0)), (DecodeCost(1, 64, 0.25),))
WHOLE = Profile(
    cost=COST,
    source={"kind": "derived", "formulas": {"decode": "bytes / bandwidth"}},
    name="x",
    description="a model on a machine",
    kv_bytes_per_token=4096,
    device_kv_tokens=1000,
    host_kv_tokens=0,
    link=LinkSpeed(25e9, 1e-5, duplex=False),
    stages=2,
    tensor_parallel=8,
    max_model_len=2048,
    mixed=(MixedCost(16, 1, 64, 0.75, 0.5), MixedCost(16, 2, 64, 1.0, 1.25)),
    pipeline=Pipeline((0.25, 0.75), (0.5, 0.5), 1e-4, 1e-6),
)
MIXED = {"prefill_tokens": 16, "decode_batch": 1, "context_tokens": 64, "seconds": 0.75, "modelled_seconds": 0.5}
PIPELINE = {"prefill_shares": [0.25, 0.75], "decode_shares": [0.5, 0.5], "hand_over_s": 0.0, "row_s": 0.0}
OLD = {
    "prefill": [{"tokens": 16, "seconds": 0.5}],
    "decode": [{"batch": 1, "context_tokens": 64, "seconds": 0.25}],
    "source": {"device": "x", "threads": 2},
}


@pytest.mark.parametrize("profile", [WHOLE, Profile(COST, {"device": "x"}), replace(WHOLE, link=None)])
def test_a_file_is_read_as_it_was_written(profile: Profile, tmp_path: Path) -> None:
    write_profile(tmp_path / "deep" / "profile.json", profile)
    assert read_profile(tmp_path / "deep" / "profile.json") == profile
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["profile.json"]


def test_a_file_of_points_and_source_alone_is_a_profile(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(json.dumps(OLD))
    cost = CostProfile((PrefillCost(16, 0.5),), (DecodeCost(1, 64, 0.25),))
    assert Profile(cost, {}).mixed == ()
    assert read_profile(tmp_path / "old.json") == Profile(cost, {"device": "x", "threads": 2})


def test_a_mixed_iteration_has_its_measured_and_its_modelled_seconds_in_the_file(tmp_path: Path) -> None:
    write_profile(tmp_path / "profile.json", replace(WHOLE, mixed=WHOLE.mixed[:1]))
    assert json.loads((tmp_path / "profile.json").read_text())["mixed"] == [MIXED]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prefill": []}, "at least one"),
        ({"decode": None}, "is not a valid profile"),
        ({"source": 3}, "is not a valid profile"),
        ({"link": {"bytes_per_s": 1.0}}, "is not a valid profile"),
        ({"link": {"bytes_per_s": 0, "latency_s": 0}}, "link: "),
        ({"link": 3}, "is not a valid profile"),
        ({"link": {"bytes_per_s": 1.0, "latency_s": 0.0, "duplex": "yes"}}, "is not a valid profile"),
        ({"pipeline": {"prefill_shares": [1.0]}}, "is not a valid profile"),
        ({"pipeline": {**PIPELINE, "decode_shares": [1.0]}}, "pipeline: has 2 shares of a prefill, but 1 others"),
        ({"pipeline": {**PIPELINE, "decode_shares": [0.5, 0.6]}, "stages": 2}, "pipeline: shares must be above 0"),
        ({"pipeline": {**PIPELINE, "row_s": -1}, "stages": 2}, "pipeline: hand_over_s and row_s must be at least 0"),
        ({"pipeline": PIPELINE}, "pipeline: has 2 stages, but the profile 1"),
        ({"stages": 0}, "stages: is 0, but must be at least 1"),
        ({"kv_bytes_per_token": -1}, "kv_bytes_per_token: "),
        ({"max_model_len": "long"}, "is not a valid profile"),
        ({"mixed": 3}, "is not a valid profile"),
        ({"mixed": [{"seconds": 1.0}]}, "is not a valid profile"),
        ({"mixed": [MIXED | {"seconds": 0}]}, "mixed: seconds must be greater than 0"),
        ({"mixed": [MIXED | {"modelled_seconds": -1}]}, "mixed: seconds must be greater than 0"),
        ({"mixed": [MIXED, MIXED]}, "mixed: measured points must be ascending"),
        ({"mixed": [MIXED | {"decode_batch": 2}, MIXED]}, "mixed: measured points must be ascending"),
    ],
)
def test_a_file_that_holds_no_profile_is_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(OLD | change))
    with pytest.raises(InvalidFieldError, match=message):
        read_profile(tmp_path / "profile.json")


@pytest.mark.parametrize("text", ["", "[]", "{", "3", '{"prefill": []}'])
def test_what_is_no_json_object_of_a_profile_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(text)
    with pytest.raises(InvalidFieldError, match="is not a valid profile"):
        read_profile(tmp_path / "profile.json")


def test_a_missing_file_and_one_that_can_not_be_written_are_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidFieldError, match="can't read"):
        read_profile(tmp_path / "none.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidFieldError, match="can't write"):
        write_profile(tmp_path / "file" / "p.json", WHOLE)


@pytest.mark.parametrize("place", ["file/below.json", "folder"])
def test_a_profile_that_could_not_be_written_is_told_before_the_measuring(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    out = str(tmp_path / place)
    assert profile_command.main(["--model", str(tmp_path / "none"), "--out", out]) == 1
    assert capsys.readouterr().err.startswith(f"fastserve profile: --out: can't write {out}: ")
