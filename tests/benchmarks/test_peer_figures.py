"""How FastServe is compared with other engines, and what is told of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.goals_and_tables import section
from benchmarks.peer_figures import MEASURES, compared, far_behind, goals, merged, tables
from benchmarks.roofline import bounds, offline_bound

OFFLINE, DECODE, _, JCT = MEASURES
RATES = {"read_bytes_per_s": 40e9, "product_flop_per_s": 800e9}


def cell(**values: list[float]) -> dict[str, Any]:
    return {"took_s": {}, "on": "2026-11-22", "values": values}


def measured(measures: dict[str, Any], model: str = "M", **more: Any) -> dict[str, Any]:
    return {
        "dtype": "bfloat16",
        "systems": {"fastserve": "FastServe", "openvino": "OpenVINO", "vllm": "vLLM"},
        "missing": {},
        "models": {model: {"measures": measures, **more}},
    }


def test_the_best_peer_has_the_best_median_and_ratios_are_of_the_same_round() -> None:
    values = {"fastserve": [300.0, 200.0, 100.0], "openvino": [250.0, 160.0, 100.0], "vllm": [900.0, 10.0, 20.0]}
    found = compared(OFFLINE, values)
    assert found is not None
    assert found.best_peer == "openvino"
    assert (found.advantage.median, found.advantage.least, found.advantage.greatest) == (1.2, 1.0, 1.25)


def test_less_time_is_an_advantage() -> None:
    found = compared(JCT, {"fastserve": [1.0, 2.0], "openvino": [2.0, 2.0], "vllm": [9.0]})
    assert found is not None
    assert (found.best_peer, found.advantage.least, found.advantage.greatest) == ("openvino", 1.0, 2.0)


@pytest.mark.parametrize("values", [{"fastserve": [1.0]}, {"vllm": [1.0]}, {"fastserve": [1.0], "vllm": []}])
def test_one_system_alone_is_not_compared(values: dict[str, list[float]]) -> None:
    assert compared(OFFLINE, values) is None


def test_peers_far_behind_the_best_are_not_measured_again_but_we_are() -> None:
    assert far_behind(OFFLINE, {"fastserve": [30.0], "openvino": [100.0], "vllm": [70.0]}) == set()
    assert far_behind(OFFLINE, {"fastserve": [30.0], "openvino": [100.0], "vllm": [60.0]}) == {"vllm"}
    assert far_behind(JCT, {"fastserve": [2.0], "openvino": [3.0], "vllm": [3.4]}) == {"vllm"}
    assert far_behind(JCT, {}) == set()


def test_a_goal_is_met_by_the_median_ratio() -> None:
    met, missed = goals(
        measured(
            {
                "offline": cell(fastserve=[105.0], openvino=[100.0]),
                "decode": cell(fastserve=[104.0], openvino=[100.0]),
            }
        )
    )
    assert (met.met, met.measured, met.asked) == (True, "1.05", ">= 1.05")
    assert (missed.met, missed.measured) == (False, "1.04")


def test_only_misses_are_told_as_shares_of_what_the_machine_allows() -> None:
    told = measured(
        {"offline": cell(fastserve=[300.0], openvino=[200.0]), "decode": cell(fastserve=[45.0], openvino=[60.0])},
        rates=RATES,
        bounds={"decode_tokens_per_s": 75.0, "offline_tokens_per_s": 400.0},
    )
    figures, ratios, misses = tables(told)
    assert figures.rows == [("FastServe", "300", "45"), ("OpenVINO", "200", "60")]
    assert ratios.rows[1] == ("M: decode of one stream", "OpenVINO", "0.75", "1.05", "1")
    assert misses.rows == [("M: decode of one stream", "75", "60%", "80%", "84%", "-")]


def test_a_stream_is_told_as_a_share_of_what_the_machine_allowed_beside_its_turn() -> None:
    # The second round had twice the bandwidth: both systems used as much of it as before.
    decode = cell(fastserve=[45.0, 90.0], openvino=[60.0, 120.0])
    decode["bounds_beside"] = {"fastserve": [75.0, 150.0], "openvino": [75.0, 150.0]}
    told = measured({"decode": decode}, rates=RATES, bounds={"decode_tokens_per_s": 150.0})
    assert tables(told)[-1].rows == [("M: decode of one stream", "112 (75 to 150)", "60%", "80%", "84%", "-")]


def test_a_miss_offline_tells_how_much_of_the_time_the_worker_computed() -> None:
    told = measured(
        {"offline": cell(fastserve=[200.0], openvino=[200.0])},
        rates=RATES,
        bounds={"offline_tokens_per_s": 400.0},
        worker_busy_shares=[0.8, 0.95, 0.9],
    )
    assert tables(told)[-1].rows == [("M: all jobs at once", "400", "50%", "50%", "52%", "90%")]


def test_what_could_not_be_installed_is_told_with_the_reason() -> None:
    told = measured({"offline": cell(fastserve=[300.0], openvino=[200.0])})
    told["missing"]["vllm"] = "no version of torch fits"
    assert tables(told)[-1].rows == [("vLLM", "no version of torch fits")]
    assert "no version of torch fits" in section(tables(told)[-1])


def test_a_measure_is_kept_or_replaced_whole() -> None:
    before = measured({"offline": cell(fastserve=[1.0], openvino=[2.0]), "jct": cell(fastserve=[3.0])}, rates=RATES)
    now = measured({"offline": cell(fastserve=[5.0])})
    now["models"]["S"] = {"measures": {"decode": cell(fastserve=[7.0])}}
    whole = merged(before, now)
    assert list(whole["models"]) == ["S", "M"]
    assert whole["models"]["M"]["measures"]["offline"]["values"] == {"fastserve": [5.0]}
    assert whole["models"]["M"]["measures"]["jct"]["values"] == {"fastserve": [3.0]}
    assert whole["models"]["M"]["rates"] == RATES
    assert merged(None, now) == now


def test_whether_a_peer_runs_the_same_model_is_kept_for_those_not_asked_now() -> None:
    before = measured({"offline": cell(fastserve=[1.0])}, agreement={"openvino": 1.0, "vllm": 0.9})
    now = measured({"jct": cell(fastserve=[1.0])}, agreement={"vllm": 1.0})
    assert merged(before, now)["models"]["M"]["agreement"] == {"openvino": 1.0, "vllm": 1.0}


def test_a_peer_that_was_missing_is_told_until_it_is_measured() -> None:
    before = measured({"offline": cell(fastserve=[1.0])})
    before["missing"] = {"openvino": "no network", "vllm": "no network"}
    whole = merged(before, measured({"decode": cell(fastserve=[5.0], vllm=[4.0])}))
    assert whole["missing"] == {"openvino": "no network"}


def test_bounds_are_those_of_reading_all_weights_and_of_multiplying_with_them(tmp_path: Path) -> None:
    shape = {
        "hidden_size": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 2,
        "num_hidden_layers": 3,
        "intermediate_size": 8,
        "vocab_size": 10,
    }
    (tmp_path / "config.json").write_text(json.dumps(shape))
    # Query, output, key and value: 16 + 16 + 8 + 8 numbers; feed-forward 3 x 32; three layers; a head of 40.
    layers, head = 3 * (48 + 96), 40
    found = bounds(tmp_path, RATES)
    assert found["weight_bytes"] == 2 * (layers + head)
    assert found["decode_tokens_per_s"] == pytest.approx(40e9 / (2 * (layers + head)))
    assert found["prefill_tokens_per_s"] == pytest.approx(800e9 / (2 * layers))
    offline = offline_bound(tmp_path, RATES, computed_tokens=30, output_tokens=10)
    assert offline == pytest.approx(10 * 800e9 / (2 * (30 * layers + 10 * head)))
