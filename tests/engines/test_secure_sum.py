"""Runs whose sum is secure: the same model as under a plain sum, enough noise whoever leaves, and rounds that break off."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

import hush
from hush import methods
from hush.cohort import FixedSize, Poisson, Rotation, SecretParticipation
from hush.core import Round, chain
from hush.engines import simulation, summing
from hush.engines.conclude import configuration
from hush.engines.diagnostics import Recorder
from hush.engines.federation import SecureRound
from hush.engines.round import play_round
from hush.engines.run import Run
from hush.errors import NoGuarantee, UsageError
from hush.own import OwnSecrets
from hush.privacy.guarantee import Relation, View
from hush.privacy.ledger import Ledger, as_released
from hush.privacy.plan import plan_of, with_noise
from hush.privacy.shares import SecureSum, as_summed, with_secure_sum
from hush.privacy.vocabulary import Enrolled
from hush.privacy.written import plan_from_dict, plan_to_dict
from hush.random import keys_of
from hush.secagg import Aborted
from hush.secret import Secret
from hush.transforms import Clip, Discretize, Modulo, NoiseShares
from tests.conftest import make_task

TASK = make_task(sizes=(4,) * 12)
KEY = Secret(b"a key that only these tests have")


def set_up(method: hush.Method, **more: Any) -> Run:
    settings: dict[str, Any] = {"rounds": 4, "cohort": Rotation(6), "secure_sum": SecureSum()} | more
    return simulation.set_up(method, TASK, **settings).drawing(KEY)


def summed_plainly(run: Run) -> Run:
    return replace(run, privacy=replace(run.privacy, federation=None))


def test_the_bound_on_a_leak_holds_for_every_cohort() -> None:
    """419 clients in turns of 210 and 209: one more may take a graph whose bound is larger."""
    cohort, how = Rotation(210), SecureSum(tolerate=0.1)
    run = simulation.set_up(methods.dp_fedavg(noise=1.0), make_task(sizes=(2,) * 419), rounds=2, cohort=cohort, secure_sum=how)
    sizes = {len(cohort.draw(i, 419, cohort.init(419), KEY)[0]) for i in range(2)}
    terms, told = run.privacy.federation.terms, configuration(run)["secure_sum"]
    assert sizes == {209, 210}
    assert terms.leak(209) < terms.leak(210) == told["leak_bound"]
    assert told["cohort"] == 209


def models(run: Run) -> list[torch.Tensor]:
    now, _ = simulation.start(run, None)
    after = []
    for _ in range(run.rounds):
        now, _, _ = play_round(run, now)
        after.append(now.params)
    return after


@pytest.mark.parametrize("threat", ["curious", "malicious"])
@pytest.mark.parametrize(
    "method",
    [
        methods.dp_fedavg(noise=1.0),
        methods.dp_fedavg(noise=1.0, clip_quantile=0.5),
        methods.fed_smp_rand_k(noise=0.8, ratio=0.5),
        methods.fed_smp_top_k(noise=0.8, ratio=0.5),
        methods.ddgauss(noise=1.0),
        methods.skellam(noise=1.0),
        methods.cpfed_output(noise=1.0),
        methods.dpsfl(noise=1.0, rows=3, cols=40, k=10),
        methods.dp_sgd(noise=1.0, batch_size=3),
        methods.dp_sgd(noise=1.0, rate=0.5, mask="rand-k", ratio=0.5, server="momentum"),
        methods.dp_sgd(noise=1.0, rate=0.5, mask="top-k", ratio=0.5, public_steps=1),
        methods.dp_sgd(noise=1.0, rate=0.5, mask="sketch", rows=3, cols=40, k=10),
        methods.cpfed(noise=1.0, rate=1.0, local_steps=1),
    ],
    ids=lambda method: method.name,
)
def test_the_secure_sum_is_the_plain_sum_to_the_last_bit(method: hush.Method, threat: str) -> None:
    run = set_up(method, secure_sum=SecureSum(threat=threat))
    secure, plain = models(run), models(summed_plainly(run))
    assert all(torch.equal(a, b) for a, b in zip(secure, plain, strict=True))
    assert not torch.equal(secure[0], secure[1])


@pytest.mark.parametrize("cohort", [FixedSize(12), Rotation(12), SecretParticipation(5)])
def test_so_it_is_with_amortised_masks(cohort: hush.cohort.Cohort) -> None:
    run = set_up(methods.cpfed_output(noise=1.0), cohort=cohort, secure_sum=SecureSum(masks="amortised"))
    assert run.privacy.plan is not None
    assert run.privacy.plan.honest_min == 10
    if not isinstance(cohort, SecretParticipation):  # whose plain sum has no noise of those that send nothing else
        assert all(torch.equal(a, b) for a, b in zip(models(run), models(summed_plainly(run)), strict=True))
    now, _ = simulation.start(run, None)
    now, _, _ = play_round(set_up(methods.cpfed_output(noise=1.0), cohort=cohort, secure_sum=SecureSum(masks="amortised")), now)
    each = (now.sent - 12 * (128 + 85)) / 12
    assert each == run.method.uplink(run.data.learner.dim).bytes + 85  # after the keys, a vector and an envelope are all


def test_amortised_masks_need_everybody_and_a_round_is_paid_before_it_begins() -> None:
    with pytest.raises(UsageError, match="among all"):
        set_up(methods.cpfed_output(noise=1.0), secure_sum=SecureSum(masks="amortised"))
    for wrong in ({"threat": "malicious"}, {"tolerate": 0.1}):
        with pytest.raises(UsageError, match="fresh ones"):
            SecureSum(masks="amortised", **wrong)  # type: ignore[arg-type]
    amortised = SecureSum(masks="amortised")
    with pytest.raises(UsageError, match="in vain"):
        set_up(methods.cpfed_output(noise=1.0), cohort=FixedSize(12), dropout=0.3, secure_sum=amortised)
    run = set_up(methods.cpfed_output(noise=1.0), cohort=FixedSize(12), secure_sum=amortised)
    run = replace(run, config=replace(run.config, dropout=0.9))
    now, _ = simulation.start(run, None)
    now, record, _ = play_round(run, now)
    assert "are missing" in record["broke_off"]
    assert (now.charges, now.aborted) == (1, 0)
    assert torch.equal(now.params, run.data.learner.initial())


def test_it_is_stated_as_seen_by_the_server_and_by_readers() -> None:
    run = set_up(methods.dp_fedavg(), privacy=hush.Budget(4.0, 1e-3), dropout=0.1, secure_sum=SecureSum(tolerate=0.34))
    plan = run.privacy.plan
    assert plan is not None
    assert plan.view is View.SECAGG
    assert plan.relation is Relation.ZERO_OUT
    assert plan.secure
    terms = run.privacy.federation.terms if run.privacy.federation else None
    assert terms is not None
    assert plan.honest_min == terms.honest_min == math.floor(6 * (1 - 0.34 - 0.1))
    assert hush.account(plan, 1e-3).epsilon == pytest.approx(4.0, abs=0.01)
    assert any("draws its own share" in line for line in plan.assumptions)
    assert not any("the sum is plain" in line for line in plan.assumptions)
    result = hush.simulate(
        methods.dp_fedavg(), TASK, rounds=4, cohort=6, privacy=hush.Budget(4.0, 1e-3), secure_sum=SecureSum(corrupted=0.0)
    )
    assert result.epsilon == result.epsilon_server
    assert result.sampling == "rotation"
    assert result.secure_sum is not None
    assert result.secure_sum["honest_min"] == 6


def test_the_noise_of_the_fewest_honest_survivors_is_that_of_the_plan() -> None:
    """As many shares as any opened sum holds at least, without those of corrupted clients; and the test would see less."""
    method = with_secure_sum(methods.dp_fedavg(noise=1.3), Rotation(10), 40, SecureSum(tolerate=0.2, corrupted=0.1), 0.0)
    noise = method.pipeline.parts[-1]
    assert isinstance(noise, NoiseShares)
    assert noise.among == 7
    entries = 20_000

    def total(shares: int) -> torch.Tensor:
        own = OwnSecrets.simulated(KEY, range(shares))
        rows = noise.cover(torch.zeros(shares, entries, dtype=torch.int64), Round(0, 0, 10), own)
        return rows.sum(0).double()

    def fits(sample: torch.Tensor) -> bool:
        square = float((sample**2).sum()) / noise.std**2
        return bool(1e-4 < stats.chi2.cdf(square, entries) < 1 - 1e-4)

    assert fits(total(7))
    assert not fits(total(6))
    assert not fits(total(8))
    assert noise.std == pytest.approx(1.3 * noise.sensitivity) if noise.sensitivity else False


def test_shares_differ_by_client_and_round() -> None:
    noise = NoiseShares(1.0, sensitivity=1000.0, among=3)
    own = OwnSecrets.simulated(KEY, range(3))
    first = noise.cover(torch.zeros(3, 50, dtype=torch.int64), Round(0, 0, 3), own)
    later = noise.cover(torch.zeros(3, 50, dtype=torch.int64), Round(1, 0, 3), own)
    rows = [*first, *later]
    assert len({tuple(row.tolist()) for row in rows}) == 6


@pytest.mark.parametrize("clients", [3, 10, 100, 1000])
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 20.0])
def test_no_sum_of_clipped_rows_wraps_around(clients: int, multiplier: float) -> None:
    method = with_secure_sum(methods.dp_fedavg(), FixedSize(clients), clients, SecureSum(corrupted=0.0), 0.0)
    method = with_noise(method, multiplier)
    grid = next(part for part in method.pipeline.parts if isinstance(part, Discretize))
    modulus = next(part for part in method.pipeline.parts if isinstance(part, Modulo))
    assert clients * grid.radius + 6 * multiplier * grid.radius <= 2 ** (modulus.bits - 1)
    assert grid.radius >= 2**4
    rows = torch.zeros(clients, 5, dtype=torch.int64)
    rows[:, 0], rows[:, 1] = grid.radius, -grid.radius
    total = rows.sum(0)
    assert torch.equal(modulus.wrapped(total), total)


def test_secret_participation_asks_everybody_and_is_amplified() -> None:
    settings: dict[str, Any] = {"cohort": SecretParticipation(4), "rounds": 3}
    run = set_up(methods.dp_fedavg(noise=1.0), **settings)
    assert run.privacy.plan is not None
    assert run.privacy.federation is not None
    assert run.privacy.federation.terms.smallest == 12
    everyone = set_up(methods.dp_fedavg(noise=1.0), cohort=FixedSize(12), rounds=3)
    assert everyone.privacy.plan is not None
    assert hush.account(run.privacy.plan, 1e-3).epsilon < 0.8 * hush.account(everyone.privacy.plan, 1e-3).epsilon
    now, _ = simulation.start(run, None)
    now, _, _ = play_round(run, now)
    message = run.method.uplink(run.data.learner.dim)
    assert now.sent > 12 * message.bytes  # also those whose coin said no sent a vector: of noise
    assert now.sent < 12 * (message.bytes + 4000)


def test_those_whose_coin_says_no_add_noise_and_nothing_else() -> None:
    """Without noise to speak of, the sum is that of the participants alone."""
    run = set_up(methods.dp_fedavg(noise=1e-4), cohort=SecretParticipation(4), rounds=1)
    quiet = models(run)
    ids, _ = run.cohort.draw(0, 12, {}, run.identity.secret)
    alone = summing.plain_sum(
        summed_plainly(run),
        run.method,
        run.data.learner.initial(),
        ids,
        run.round(0),
        run.method.prepare(run.data.learner.initial(), {}, run.round(0), run.data.server),
        Recorder(4),
    )
    grid = next(part for part in run.method.pipeline.parts if isinstance(part, Discretize))
    update = (run.data.learner.initial() - quiet[0]) * 4
    assert float((update - (alone / grid._scale(len(alone))).float()).abs().max()) < 0.05


def test_clients_vanish_at_every_moment_and_the_sum_is_of_those_who_sent() -> None:
    run = set_up(
        methods.dp_fedavg(noise=1e-4),
        cohort=FixedSize(12),
        dropout=0.2,
        secure_sum=SecureSum(tolerate=0.6, corrupted=0.1),
        rounds=6,
        diagnostics=True,
    )
    now, _ = simulation.start(run, None)
    seen: list[tuple[int, ...]] = []
    assert run.privacy.federation is not None
    begin = run.privacy.federation.begin

    def spied(*args: Any) -> Any:
        secure = begin(*args)
        rounds.append(secure)
        return secure

    rounds: list[Any] = []
    run.privacy.federation.begin = spied  # type: ignore[method-assign]
    lost = 0
    for _ in range(6):
        now, record, details = play_round(run, now)
        assert "broke_off" not in record
        secure = rounds[-1]
        seen.append(secure.server.included)
        lost += len(secure.lost)
        assert set(secure.server.included) == {i for i in range(12) if secure.lost.get(i, 3) > 1}
        assert details["participants"] == len(secure.server.included)
    assert lost > 0
    assert len(set(seen)) > 1


def before_vectors_left(record: dict[str, Any]) -> bool:
    """Whether a round broke off so early that it cost nobody anything."""
    return any(stage in record.get("broke_off", "") for stage in ("sent shares", "have enough neighbours"))


def test_a_round_beyond_the_tolerated_loss_breaks_off_and_costs_nothing_before_vectors_left(tmp_path: Path) -> None:
    book = tmp_path / "ledger.db"
    ledger = Ledger(book)
    ledger.set_budget("p", 12, 100.0, 1e-3, Relation.ZERO_OUT)
    ledger.close()
    settings: dict[str, Any] = {"rounds": 30, "cohort": Rotation(6), "dropout": 0.5, "delta": 1e-3, "ledger": book}
    result = hush.simulate(
        methods.dp_fedavg(noise=2.0),
        TASK,
        secure_sum=SecureSum(tolerate=0.34, corrupted=0.1),
        out=tmp_path / "run",
        population="p",
        **settings,
    )
    assert result.rounds == 30
    assert result.rounds_aborted is not None
    assert 0 < result.rounds_aborted < 30
    assert result.rounds_charged == 30 - result.rounds_aborted
    count = 0
    for record in result.history:  # one that broke off after vectors left is paid for: to clients it counted then
        free = record["aborted"] > count
        assert free == before_vectors_left(record)
        count = record["aborted"]
    assert count == result.rounds_aborted
    ledger = Ledger(book)
    assert ledger.populations["p"].runs[str(result.run_id)].charges == result.rounds_charged
    ledger.close()
    spent = [record["epsilon"] for record in result.history]
    for before, record in zip([0.0, *spent], result.history, strict=False):
        assert record["epsilon"] >= before
        assert not before_vectors_left(record) or record["epsilon"] == before


def test_a_cohort_whose_round_broke_off_has_its_turn_again() -> None:
    """So nobody takes part more often than a rotation without such rounds would have it, which is what is accounted."""
    run = set_up(methods.dp_fedavg(noise=1.0), dropout=0.5, secure_sum=SecureSum(tolerate=0.34), rounds=30)
    assert run.privacy.federation is not None
    begin, opened = run.privacy.federation.begin, []
    asked: list[tuple[int, ...]] = []

    def spied(round: int, who: list[int], lost: dict[int, int]) -> Any:
        asked.append(tuple(who))
        return begin(round, who, lost)

    run.privacy.federation.begin = spied  # type: ignore[method-assign]
    now, _ = simulation.start(run, None)
    for _ in range(30):
        before = now.counted
        now, _, _ = play_round(run, now)
        if now.counted > before:
            opened.append(asked[-1])
    assert 0 < now.aborted < 30
    for first, second in zip(opened[::2], opened[1::2], strict=False):
        assert not set(first) & set(second)
    most = max(sum(i in who for who in opened) for i in range(12))
    assert most <= math.ceil(len(opened) / 2)


def test_a_run_that_goes_on_keeps_its_count_of_broken_rounds(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"cohort": Rotation(6), "dropout": 0.4, "delta": 1e-3, "rounds": 8}
    secure = SecureSum(tolerate=0.34)

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hush.simulate(methods.dp_fedavg(noise=2.0), TASK, out=tmp_path / "r", on_round=stop, secure_sum=secure, **settings)
    whole = hush.simulate(methods.dp_fedavg(noise=2.0), TASK, out=tmp_path / "r", resume=True, secure_sum=secure, **settings)
    broke = sum(map(before_vectors_left, whole.history))
    assert whole.rounds_aborted == broke == whole.history[-1]["aborted"]
    assert whole.rounds_charged == 8 - broke


@pytest.mark.parametrize(
    ("method", "cohort", "says"),
    [
        (methods.fedavg(), Rotation(6), "adds no noise"),
        (methods.cpfed(noise=1.0), Rotation(6), "10 noisy steps a round.* one step a round"),
        (methods.fed_spa(noise=1.0), Rotation(6), "noisy steps a round"),
        (methods.fed_spa(noise=1.0, local_steps=1), Rotation(6), "a mask of its own.*dp-sgd.rand-k"),
        (methods.cpsgd(trials=64), Rotation(6), "a secure sum would add nothing.*dp-sgd"),
        (methods.dp_sgd(noise=1.0), Rotation(6), "--set rate=0.01"),
        (methods.dp_sgd(noise=1.0, batches="fixed"), Rotation(6), "batches=poisson"),
        (methods.dp_sgd(noise=1.0, clip_per="coordinate"), Rotation(6), "Leave clip_per out"),
        (methods.dp_sgd(noise=1.0, mode="paper"), Rotation(6), "Leave out mode=paper"),
        (methods.dpsfl(noise=1.0, noise_by="messages"), Rotation(6), "every message"),
        (methods.dpsfl(noise=1.0, clip_in="paper"), Rotation(6), "secure sum does not change that"),
        (methods.dp_fedavg(noise=1.0), Poisson(6), "any size"),
        (methods.dp_fedavg(noise=1.0), Rotation(2), "three clients"),
        (methods.skellam(noise=1.0), Rotation(6), "--set bits=20"),
    ],
)
def test_what_cannot_be_summed_securely_is_refused(method: hush.Method, cohort: hush.cohort.Cohort, says: str) -> None:
    secure = SecureSum(bits=20) if method.name == "skellam" else SecureSum()
    with pytest.raises((NoGuarantee, UsageError), match=says):
        with_secure_sum(method, cohort, 12, secure, 0.0)


def test_what_the_shares_add_up_to_has_the_same_plan() -> None:
    method = with_secure_sum(methods.fed_smp_rand_k(noise=1.1), Rotation(6), 12, SecureSum(), 0.0)
    shares, whole = plan_of(method, Rotation(6), 12, 10), plan_of(as_summed(method), Rotation(6), 12, 10)
    assert hush.account(shares, 1e-3).epsilon == pytest.approx(hush.account(whole, 1e-3).epsilon)


@pytest.mark.parametrize(
    ("clients", "dropout", "lost"), [(100, 0.1, 20), (10, 0.1, 5), (100, 0.0, 0), (20, 0.5, 17), (10_000, 0.1, 1094)]
)
def test_losses_that_are_likely_are_tolerated(clients: int, dropout: float, lost: int) -> None:
    """One round in a thousand may lose more."""
    assert math.floor(SecureSum().tolerated(clients, dropout) * clients + 1e-9) == lost
    assert stats.binom.sf(lost, clients, dropout) <= 1e-3
    assert lost == 0 or stats.binom.sf(lost - 1, clients, dropout) > 1e-3


def test_shares_of_noise_without_a_secure_sum_have_no_guarantee() -> None:
    """Of a plain sum nobody sees to it that it holds enough of them; nor does a cohort hold more than it has clients."""
    shares = chain(Clip(1.0), Discretize(12), Modulo(24), NoiseShares(1.0, among=6))
    method = replace(methods.dp_fedavg(noise=1.0), pipeline=shares)
    with pytest.raises(NoGuarantee, match="sum is not secure"):
        set_up(method, secure_sum=None)
    with pytest.raises(NoGuarantee, match="fewer clients"):
        plan_of(method, Rotation(5), 20, 10)
    assert plan_of(method, Rotation(6), 12, 10).honest_min == 6


@pytest.mark.parametrize("bits", [5, 12])
def test_a_ledger_counts_no_less_than_the_run(bits: int) -> None:
    """A sum of discrete Gaussian shares is not quite discrete Gaussian, also to those who read the model alone."""
    shares = NoiseShares(0.4, kind="discrete-gaussian", among=140)
    method = replace(methods.ddgauss(noise=0.4), pipeline=chain(Clip(1.0), Discretize(bits), Modulo(24), shares))
    plan = plan_of(method, FixedSize(150), Enrolled(150, dim=650), 5)
    released = replace(plan, phases=(replace(as_released(plan), rounds=5),), view=View.RELEASED)
    run = hush.account(plan, 1e-5).epsilon
    assert hush.account(released, 1e-5).epsilon == pytest.approx(run)
    assert plan_from_dict(plan_to_dict(released)) == released
    one = replace(released.phases[0].releases[0].noise, draws=1)  # had it been drawn at once
    alone = replace(released, phases=(replace(released.phases[0], releases=(replace(released.phases[0].releases[0], noise=one),)),))
    assert (hush.account(alone, 1e-5).epsilon < 0.99 * run) == (bits == 5)


@pytest.mark.parametrize("clients", [100, 400])
@pytest.mark.parametrize("name", ["dp-fedavg", "skellam", "ddgauss"])
def test_clients_that_all_agree_do_not_wrap_around(name: str, clients: int) -> None:
    """Each sends the same update, of the whole norm: their sum is so many times that, and nothing else."""
    method = with_secure_sum(
        methods.build(name, noise=1e-3 if name == "dp-fedavg" else 0.5), FixedSize(clients), clients, SecureSum(), 0.0
    )
    method = with_noise(method.sized(650), 0.5)
    update = torch.randn(650, generator=torch.Generator().manual_seed(1)).sign()
    rnd, secret = Round(0, 3, clients), Secret(bytes(32))
    keys = keys_of(0, torch.arange(clients))
    public = method.pipeline.prepare(update, method.pipeline.init(650), rnd, None)  # type: ignore[arg-type]
    sent = method.pipeline.encode(update.repeat(clients, 1), rnd, keys, public)
    total, _ = method.pipeline.decode(sent.sum(0), method.pipeline.init(650), rnd, public, secret)
    unit = update.double() / update.double().norm()
    assert float(total @ unit) == pytest.approx(clients, rel=0.02)
    assert float((total - (total @ unit) * unit).norm()) < 0.2 * clients


def test_cohorts_of_unequal_size_are_all_possible_or_refused_at_once() -> None:
    secure = SecureSum(tolerate=0.4, corrupted=0.0, threat="malicious")
    with pytest.raises(UsageError, match="no threshold"):
        with_secure_sum(methods.dp_fedavg(noise=1.0), Rotation(5), 9, secure, 0.0)


@pytest.mark.parametrize("wrong", [{"bits": 0}, {"tolerate": -0.1}, {"corrupted": "0.1"}, {"threat": "nice"}, {"masks": "no"}])
def test_wrong_settings_of_a_secure_sum_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        with_secure_sum(methods.dp_fedavg(noise=1.0), Rotation(6), 12, SecureSum(**wrong), 0.0)
    with pytest.raises(UsageError, match=r"hush\.SecureSum"):
        set_up(methods.dp_fedavg(noise=1.0), secure_sum=True)


def test_a_round_that_was_paid_for_and_not_reached_counts_from_the_first_record_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {
        "cohort": FixedSize(12),
        "delta": 1e-3,
        "rounds": 3,
        "secure_sum": SecureSum(),
        "out": tmp_path / "r",
    }
    method, opened = methods.dp_fedavg(noise=4.0), [0]
    open_, close = SecureRound.open, SecureRound.close

    def killed(self: SecureRound) -> torch.Tensor:
        opened[0] += 1
        if opened[0] == 2:  # the second round is paid for, and opened
            raise KeyboardInterrupt
        return open_(self)

    monkeypatch.setattr(SecureRound, "open", killed)
    with pytest.raises(KeyboardInterrupt):
        hush.simulate(method, TASK, **settings)
    broke = [False]

    def breaks(self: SecureRound) -> None:
        if not broke[0]:
            broke[0] = True
            raise Aborted("Too many have vanished.")
        close(self)

    monkeypatch.setattr(SecureRound, "open", open_)
    monkeypatch.setattr(SecureRound, "close", breaks)
    result = hush.simulate(method, TASK, resume=True, **settings)
    assert (result.rounds, result.rounds_aborted, result.rounds_charged) == (3, 1, 3)
    spent = [record["epsilon"] for record in result.history]
    assert spent[0] < spent[1] < spent[2] == pytest.approx(result.epsilon)
    assert result.epsilon == pytest.approx(hush.simulate(method, TASK, **settings | {"out": None}).epsilon)


def test_a_client_counts_the_sums_it_is_in_by_itself() -> None:
    """The run agrees on as many as a rotation has turns, and no server gets more out of it."""
    run = set_up(methods.dp_fedavg(noise=1.0), rounds=4)
    assert run.privacy.federation is not None
    assert run.privacy.federation.terms.participations == 2
    models(run)
    assert {client.opened for client in run.privacy.federation.clients} == {2}  # type: ignore[union-attr]
