"""What `fastserve simulate` is asked for: policies, sweeps, seeds, settings."""

from dataclasses import replace

import pytest

from services.cli.up.up_settings import UpSettings
from services.cli.workload_flags import DEFAULTS
from services.domain.errors import InvalidFieldError
from services.domain.submission import client_number_of
from services.experiments.cases import (
    CAPACITY_BATCHES,
    CAPACITY_JOBS,
    PolicyPair,
    SimulationCase,
    Sweep,
    SweepPoint,
    capacity_of,
    cases,
    parse_seeds,
    parse_sweep,
    parse_variants,
)
from services.experiments.named_profiles import find_profile
from services.experiments.simulated_server import FLAGS, SimulatedServerSettings, SimulateSettings, server_setup
from services.kvmanager.policies.kv_config import kv_policy_named
from services.runtime.profile_file import Profile
from services.runtime.settings import resolve
from services.scheduler.scheduler_config import PolicyName
from services.workloads.any_workload import AnyWorkload, TraceFile
from services.workloads.workload import TraceJob, WorkloadKind

OPT_13B = find_profile("opt-13b-a100-40gb")
OPT_175B = find_profile("opt-175b-a100-40gb-tp8-pp2")
ZIPF = replace(DEFAULTS[WorkloadKind.ZIPF], jobs=20)
TRACE = TraceFile("t", tuple(TraceJob(str(n), n * 2.0, 10, 5) for n in range(1000)), seed=0)
FASTSERVE = PolicyPair(PolicyName.SKIP_JOIN_MLFQ, "proactive")


def settings_of(**values: object) -> SimulatedServerSettings:
    return resolve(SimulateSettings, "simulate", values, {})


def cases_of(
    workload: AnyWorkload, sweep: str | None = None, seeds: tuple[int, ...] = (0,), **settings: object
) -> list[SimulationCase]:
    parsed = None if sweep is None else parse_sweep(sweep)
    return cases(OPT_13B, settings_of(**settings), workload, [FASTSERVE], parsed, seeds)


class TestVariants:
    def test_a_kv_policy_that_is_not_named_is_that_of_the_settings(self) -> None:
        assert parse_variants("fcfs/defer,srpt", settings_of(kv_policy="reactive")) == (
            PolicyPair(PolicyName.FCFS, "defer"),
            PolicyPair(PolicyName.SRPT, "reactive"),
        )

    def test_without_a_comparison_both_are_those_of_the_settings(self) -> None:
        assert parse_variants(None, settings_of()) == (PolicyPair(PolicyName.GITTINS, "proactive"),)
        assert parse_variants(None, settings_of(policy="static"))[0].name == "static+proactive"

    @pytest.mark.parametrize("text", ["", "fifo", "fcfs/none", "fcfs,fcfs", "fcfs/defer/x", "fcfs,"])
    def test_what_is_no_comparison_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidFieldError, match="--compare"):
            parse_variants(text, settings_of())


class TestSweeps:
    def test_values_are_a_list_or_a_range_with_both_ends(self) -> None:
        assert parse_sweep("rate=1,2.5,4") == Sweep("rate", (1.0, 2.5, 4.0))
        assert parse_sweep("cv=0:4:5") == Sweep("cv", (0.0, 1.0, 2.0, 3.0, 4.0))
        assert parse_sweep("kv-device-tokens=1000:2000:3") == Sweep("kv-device-tokens", (1000.0, 1500.0, 2000.0))

    @pytest.mark.parametrize(
        "text",
        [
            "", "rate", "rate=", "rate=a", "rate=1:2", "rate=1:2:1", "rate=1:2:x", "rate=1:2:100000", "rate=0,1",
            "rate=-1", "rate=inf", "kv-device-tokens=inf", "rate=1,1", "policy=1", "cv=nan", "groups=nan",
            "cv=1e200,2", "cv=1e-200", "ratio=0", "rate=1e-320",
        ],
    )  # fmt: skip
    def test_what_is_no_sweep_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidFieldError, match="--sweep"):
            parse_sweep(text)

    def test_the_value_is_put_in_its_place(self) -> None:
        assert [case.rate_per_s for case in cases_of(ZIPF, "rate=2,3")] == [2.0, 3.0]
        assert [case.setup.device_tokens for case in cases_of(ZIPF, "kv-device-tokens=1600,3200")] == [1600, 3200]
        assert [case.setup.host_tokens for case in cases_of(ZIPF, "kv-host-tokens=0,3200")] == [0, 3200]
        assert [case.setup.groups for case in cases_of(ZIPF, "groups=1,4")] == [1, 4]
        assert [case.setup.scheduler.max_batch for case in cases_of(ZIPF, "max-batch=8,64")] == [8, 64]
        thetas = [
            case.workload.theta for case in cases_of(ZIPF, "theta=0,2") if not isinstance(case.workload, TraceFile)
        ]
        assert thetas == [0.0, 2.0]

    def test_the_rate_of_a_trace_is_its_own_unless_it_is_swept(self) -> None:
        assert cases_of(TRACE)[0].rate_per_s == 0.5
        fast = cases_of(TRACE, "rate=8")[0]
        assert fast.rate_per_s == 8.0
        assert fast.jobs[-1].arrival_s == pytest.approx(999 / 8.0)

    @pytest.mark.parametrize("axis", ["cv", "theta", "ratio"])
    def test_a_trace_has_no_distributions_to_sweep(self, axis: str) -> None:
        with pytest.raises(InvalidFieldError, match="not to a trace"):
            cases_of(TRACE, f"{axis}=1,2")

    @pytest.mark.parametrize(("kind", "axis"), [(WorkloadKind.SHAREGPT, "theta"), (WorkloadKind.ZIPF, "ratio")])
    def test_an_axis_that_the_workload_lacks_is_refused(self, kind: WorkloadKind, axis: str) -> None:
        with pytest.raises(InvalidFieldError, match=f"{axis} does not apply to --workload {kind}"):
            cases_of(DEFAULTS[kind], f"{axis}=1,2")

    @pytest.mark.parametrize(
        "sweep", ["max-batch=0,4", "groups=1e300", "kv-device-tokens=1e300", "kv-host-tokens=1e12"]
    )
    def test_a_value_beyond_the_limits_of_the_setting_is_refused(self, sweep: str) -> None:
        with pytest.raises(InvalidFieldError, match=f"--{sweep.partition('=')[0]}"):
            cases_of(ZIPF, sweep)

    def test_values_that_differ_have_names_that_differ(self) -> None:
        tokens = cases_of(ZIPF, "kv-host-tokens=1234561,1234563,2000000")
        assert [case.point.name for case in tokens] == [
            "kv-host-tokens=1234561",
            "kv-host-tokens=1234563",
            "kv-host-tokens=2000000",
        ]
        rates = cases_of(ZIPF, "rate=1.0000001,1.00000012,2.5,4")
        assert [case.point.shown for case in rates] == ["1.0000001", "1.00000012", "2.5", "4"]
        huge = [SweepPoint("rate", value).name for value in (1e300, 2e300, 1e15, 1e15 + 1)]
        assert len(set(huge)) == 4
        assert max(map(len, huge)) < 30

    def test_more_simulations_than_anyone_waits_for_are_refused(self) -> None:
        with pytest.raises(InvalidFieldError, match="at most 2000"):
            cases_of(ZIPF, "rate=1:200:200", seeds=tuple(range(11)))


class TestSeeds:
    def test_each_case_draws_from_its_seed_and_tells_it(self) -> None:
        first, second = cases_of(ZIPF, seeds=parse_seeds("3,7"))
        assert first.jobs != second.jobs
        assert [case.config["workload"]["seed"] for case in (first, second)] == [3, 7]  # type: ignore[index]

    @pytest.mark.parametrize("text", ["", "a", "1,,2", "1,1", "1.5"])
    def test_what_is_no_list_of_seeds_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidFieldError, match="--seed"):
            parse_seeds(text)


class TestCapacity:
    def test_it_is_measured_once_for_all_policies_rates_seeds_and_groups(self) -> None:
        settings = settings_of()
        variants = [FASTSERVE, PolicyPair(PolicyName.FCFS, "defer")]
        all_of = cases(OPT_13B, settings, ZIPF, variants, parse_sweep("rate=1,2"), (0, 1))
        all_of += cases_of(ZIPF, "groups=1,4")
        assert len({capacity_of(case) for case in all_of}) == 1

    def test_it_is_measured_anew_for_other_pools_and_lengths(self) -> None:
        assert len({capacity_of(case) for case in cases_of(ZIPF, "kv-device-tokens=1600,3200")}) == 2
        assert len({capacity_of(case) for case in cases_of(ZIPF, "theta=1,2")}) == 2

    def test_its_sample_fills_batches_and_of_a_trace_is_spread_over_it(self) -> None:
        assert len(capacity_of(cases_of(ZIPF)[0]).lengths) == CAPACITY_JOBS
        assert len(capacity_of(cases_of(ZIPF, max_batch=64)[0]).lengths) == CAPACITY_BATCHES * 64
        assert CAPACITY_JOBS / 2 < len(capacity_of(cases_of(TRACE)[0]).lengths) <= CAPACITY_JOBS


class TestJobs:
    def test_a_client_of_a_trace_is_the_one_that_a_gateway_would_tell_the_scheduler(self) -> None:
        named = TraceFile("t", (TraceJob("a", 0.0, 10, 5, client="bob"), TraceJob("b", 1.0, 10, 5)), seed=0)
        (case,) = cases_of(named)
        assert [job.client_number for job in case.jobs] == [client_number_of("bob"), 0]

    def test_a_server_that_foresees_lengths_is_not_told_them_by_max_tokens(self) -> None:
        lengths = ((10, 5), (10, 300), (1900, 100), (1990, 50), (3000, 7))
        trace = TraceFile("t", tuple(TraceJob("x", 0.0, *length) for length in lengths), seed=0)
        (told,), (not_told,) = cases_of(trace), cases_of(trace, length_predictor="online")
        assert [job.max_tokens for job in told.jobs] == [None] * 5
        assert OPT_13B.max_model_len == 2048
        assert [job.max_tokens for job in not_told.jobs] == [300, 300, 148, 58, 7]
        assert [job.output_tokens for job in not_told.jobs] == [output for _, output in lengths]


class TestServer:
    def test_pools_stages_and_plans_in_flight_are_the_profiles_unless_given(self) -> None:
        setup = server_setup(settings_of(), OPT_175B)
        assert (setup.device_tokens, setup.host_tokens) == (OPT_175B.device_kv_tokens, OPT_175B.host_kv_tokens)
        assert (setup.stages, setup.scheduler.plans_in_flight, setup.max_model_len) == (2, 3, 2048)
        given = settings_of(pp=4, kv_device_tokens=1600, kv_host_tokens=0, plans_in_flight=6, max_model_len=100)
        setup = server_setup(given, OPT_175B)
        assert (setup.stages, setup.scheduler.plans_in_flight) == (4, 6)
        assert (setup.device_tokens, setup.host_tokens, setup.max_model_len) == (1600, 0, 100)

    def test_the_same_gpus_cut_into_more_stages_have_the_same_links_together(self) -> None:
        whole, cut = server_setup(settings_of(), OPT_175B), server_setup(settings_of(pp=4), OPT_175B)
        assert cut.link.bytes_per_s * 4 == whole.link.bytes_per_s * 2

    def test_knobs_of_the_policies_are_those_of_up(self) -> None:
        knobs = settings_of(starvation_limit="off", prefill_chunk="64", kv_idle_slots="9", charge="marginal")
        setup = server_setup(knobs, OPT_13B)
        assert setup.scheduler.starvation_limit_s is None
        assert setup.scheduler.prefill_chunk_tokens == 64
        assert setup.scheduler.charge == "marginal"
        assert setup.kv.policy == kv_policy_named("proactive", idle_slots=9)
        shared = [
            name
            for name in FLAGS
            if name in UpSettings.model_fields and name not in SimulatedServerSettings.model_fields
        ]
        assert len(shared) == len(FLAGS) - len(SimulatedServerSettings.model_fields)
        for name in shared:
            assert SimulateSettings.model_fields[name].default == UpSettings.model_fields[name].default

    @pytest.mark.parametrize(
        "field", ["kv_bytes_per_token", "device_kv_tokens", "host_kv_tokens", "max_model_len", "link"]
    )
    def test_a_profile_that_tells_too_little_is_refused_by_the_name_of_what_it_lacks(self, field: str) -> None:
        bare: Profile = replace(OPT_13B, **{field: None})  # type: ignore[arg-type]
        with pytest.raises(InvalidFieldError, match=f"opt-13b-a100-40gb has no {field}"):
            server_setup(settings_of(), bare)

    def test_without_a_batch_it_is_the_one_that_a_server_chooses_by_the_profile(self) -> None:
        made = cases_of(ZIPF, max_batch=None)[0]
        assert OPT_13B.device_kv_tokens == 15_837  # 61 times 256; larger batches make more tokens a second up to 256
        assert (made.setup.scheduler.max_batch, made.setup.scheduler.chooses_batch) == (61, False)
        assert made.config["server"]["max_batch"] == 61  # type: ignore[index]

    def test_settings_that_do_not_fit_together_are_refused(self) -> None:
        with pytest.raises(InvalidFieldError, match="--max-batch-tokens"):
            server_setup(settings_of(max_batch=4096), OPT_13B)
