"""Is a run's certificate true? Recompute it from the run's own settings and its ledger, and look for what was changed since.

What neither of them tells is the author's word, and is listed as such. The ledger holds the hashes of model, certificate and result
as they were when the run ended, so that also the author's words cannot be changed afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hush.cohort import sampling_name
from hush.config import RunConfig, runs_of
from hush.engines.conclude import describe, describe_sum
from hush.engines.rundir import LEDGER, RunDir
from hush.errors import DataError, HushError
from hush.experiment import Experiment
from hush.plugins import shown
from hush.privacy.accountant import account
from hush.privacy.certificate import digest, proof_from_dict, proof_to_dict
from hush.privacy.guarantee import Unit
from hush.privacy.ledger import Ledger, as_released
from hush.privacy.plan import server_plan
from hush.privacy.population import Population, Spending
from hush.privacy.settle import Proof, as_charged, certify, settle_privacy
from hush.privacy.vocabulary import Enrolled, Plan
from hush.privacy.written import plan_from_dict
from hush.report.certificate_page import certificate_page
from hush.version import __version__

Values = dict[str, Any]


class Check(NamedTuple):
    """One thing that was looked at: None where there is nothing to look at."""

    name: str
    passed: bool | None
    detail: str


class Verified(NamedTuple):
    """A certificate, and what became of every line of it."""

    certificate: Values
    checks: list[Check]
    said: list[str]
    """What nothing but the author's word stands for; of the result too, as `result.NAME`."""


def runs_in(path: Path) -> list[Path]:
    """The folders with a certificate: the run itself, or the runs of a comparison or of several seeds."""
    if not path.is_dir():
        raise DataError(f"There is no run directory {path}.")
    found = [path] if (path / "certificate.json").is_file() else sorted(p.parent for p in path.glob("**/certificate.json"))
    if not found:
        raise DataError(f"{path} holds no certificate: the run is not complete.")
    return found


def verify_run(path: Path, ledger: Path | None = None) -> Verified:
    """Every check of a certificate; `ledger` is where the run was charged, if its settings do not say."""
    folder = RunDir(path)
    certificate = folder.read_json("certificate.json")
    checks, known = [_model(folder, certificate)], {"configuration_sha256", "model_sha256"}
    checks += [_hashed(certificate), *([_page(folder, certificate)] if folder.has("certificate.html") else [])]
    result = folder.read_json("result.json") if folder.has("result.json") else {}
    if certificate.get("guarantee") is not None:
        config = _config_of(path, certificate.get("method"))
        file = ledger or (Path(config.ledger) if config is not None and config.ledger else path / LEDGER)
        for check in (_figures(certificate), _settings(config, certificate), _ledger(path, file, certificate, result, ledger)):
            checks.append(check.check)
            known |= check.known
    checks.insert(1, _result(result, certificate))
    said = [leaf for leaf in _leaves(certificate) if not any(leaf == name or leaf.startswith(f"{name}.") for name in known)]
    return Verified(certificate, checks, said + [f"result.{key}" for key in result if key not in _same_as(certificate)])


class Derived(NamedTuple):
    """A check, and the lines of the certificate that it stands for."""

    check: Check
    known: set[str] = set()  # noqa: RUF012  (never changed)


def _page(folder: RunDir, certificate: Values) -> Check:
    """The page that people read is made from the certificate, to the letter; another version may word it otherwise."""
    if certificate.get("hush_version") != __version__:
        return Check("page", None, "certificate.html was made by another version of Hush")
    try:
        same = (folder.path / "certificate.html").read_text() == certificate_page(certificate)
    except (HushError, KeyError, TypeError, ValueError, AttributeError):
        same = False
    return Check("page", same, f"certificate.html says {'what the certificate says' if same else 'something else'}")


def _hashed(certificate: Values) -> Check:
    same = digest(certificate.get("configuration")) == certificate.get("configuration_sha256")
    told = "are those it was hashed with" if same else "were changed"
    return Check("configuration", same, f"the settings on the certificate {told}")


def _same_as(certificate: Values) -> Values:
    """What a result must say, by its certificate."""
    parts = (certificate.get(key) for key in ("guarantee", "server_guarantee", "configuration"))
    proved, server, ran = (part if isinstance(part, dict) else {} for part in parts)
    told = {key: certificate.get(key) for key in _REPEATED} | {key: proved.get(key) for key in _PROVED}
    told |= {"noise_mode": certificate.get("noise"), "epsilon_server": server.get("epsilon"), "rounds_planned": ran.get("rounds")}
    return told | {"seed": ran.get("seed")}


_PROVED = ("epsilon", "delta", "unit", "relation", "view")
_REPEATED = (
    *("method", "data", "model", "clients", "cohort", "sampling", "rounds", "rounds_charged", "rounds_counted", "rounds_aborted"),
    *("secure_sum", "noise_multiplier", "claimed_epsilon", "population", "run_id", "hush_version", "caveats", "un_noised"),
    "no_guarantee",
)


def _result(result: Values, certificate: Values) -> Check:
    if not result:
        return Check("result", None, "result.json is not there")
    told = _same_as(certificate)
    wrong = [key for key in told if result.get(key) != told[key] and not (key == "delta" and not certificate.get("guarantee"))]
    return Check("result", not wrong, f"result.json says something else of {', '.join(wrong)}" if wrong else "result.json agrees")


def _model(folder: RunDir, certificate: Values) -> Check:
    if not folder.has("model.safetensors"):
        return Check("model", None, "there is no model beside the certificate")
    same = folder.digest("model.safetensors") == certificate.get("model_sha256")
    return Check("model", same, "the model is the one certified" if same else "the model is not the one certified")


def _figures(certificate: Values) -> Derived:
    """Every proved figure again, from the plan alone."""
    try:
        plan = plan_from_dict(certificate["plan"])
        known = proof_from_dict(certificate)
        assert known is not None
        delta = known.guarantee.delta
        server = account(server_plan(plan), delta) if known.server is not None else None
        again = proof_to_dict(Proof(plan, account(plan, delta), server, known.no_server, known.claim))
        again |= {"rounds_charged": plan.rounds, "noise_multiplier": plan.noise_multiplier, "clients": _holders(plan)}
        again |= {"claimed_epsilon": (certificate["claim"] or {}).get("epsilon"), "no_guarantee": None}
        again["computed"]["versions"] = certificate["computed"]["versions"]
    except (HushError, KeyError, TypeError, ValueError, AttributeError) as error:
        return Derived(Check("figures", False, f"they cannot be recomputed: {error}"))
    names = set(again) - {"plan", "claim", "no_server_guarantee"}
    wrong = _differing({name: again[name] for name in names}, certificate)
    if wrong:
        return Derived(Check("figures", False, f"the plan gives something else for {', '.join(wrong)}"))
    epsilon = again["guarantee"]["epsilon"]
    told = Check("figures", True, f"epsilon {epsilon:.6g} and what follows from it, recomputed from the plan")
    return Derived(told, names - {"claimed_epsilon", "clients", "computed"} | {"computed.method", "computed.step"})


def _holders(plan: Plan) -> int | None:
    return plan.clients if plan.unit is Unit.RECORD else plan.population


def _settings(config: RunConfig | None, certificate: Values) -> Derived:
    """All that follows from the settings that the run was started with."""
    if config is None:
        return Derived(Check("settings", None, "the run was started from Python: what it ran is the author's word"))
    try:
        expected, known = _from_settings(config, certificate)
    except DataError as error:
        return Derived(Check("settings", None, f"it cannot be derived again here: {error}"))
    except (HushError, AssertionError, KeyError, TypeError, ValueError, AttributeError) as error:
        return Derived(Check("settings", False, f"the settings of the run give no such certificate: {error}"))
    wrong = _differing(expected, certificate)
    if wrong:
        return Derived(Check("settings", False, f"the settings of the run give something else for {', '.join(wrong)}"))
    return Derived(
        Check("settings", True, f"the plan and what ran, derived again from the settings of the run{known}"), set(expected)
    )


def _from_settings(config: RunConfig, certificate: Values) -> tuple[Values, str]:
    """The certificate that the settings give, as far as they go, and what of it the certificate alone knows: sizes of data."""
    experiment = Experiment.of(config)
    clients, told, ran = (
        config.clients or certificate["clients"],
        plan_from_dict(certificate["plan"]),
        certificate["configuration"],
    )
    method, by_record = experiment.as_run(clients), told.unit is Unit.RECORD
    enrolled = (
        Enrolled(clients, told.population, told.total, told.parameters) if by_record else Enrolled(clients, dim=ran["parameters"])
    )
    shared = by_record or config.ledger is not None  # the default is the data's, or its population's
    delta = certificate["guarantee"]["delta"] if shared and config.delta is None else config.delta
    settled = settle_privacy(method, experiment.cohort, enrolled, experiment.rounds, experiment.budget, delta, config.dropout)
    assert settled.plan is not None, settled.refused
    charged = as_charged(settled.plan, certificate["rounds_counted"], certificate["rounds_charged"])
    proof = certify(charged, settled.delta, settled.method)
    assert proof is not None, "nothing was charged"
    summed = None
    if experiment.secure_sum is not None:
        sizes = (settled.method, experiment.cohort, clients, config.dropout, ran["parameters"], experiment.rounds)
        summed = describe_sum(experiment.secure_sum.terms_of(*sizes), experiment.secure_sum.masks == "fresh")
    own = replace(config, seed=ran["seed"])  # one of several
    facts = (own, settled.method, experiment.cohort, enrolled, settled.plan, settled.delta, summed)
    expected = proof_to_dict(proof) | {
        "method": settled.method.name,
        "clients": clients,
        "cohort": experiment.cohort.size,
        "sampling": sampling_name(experiment.cohort),
        "noise_multiplier": charged.noise_multiplier,
        "claimed_epsilon": proof.claim.epsilon if proof.claim else None,
        "secure_sum": summed,
        "configuration": describe(*facts),
        "no_guarantee": None,
    }
    expected.pop("computed")
    known = "" if config.clients is not None else f", for the {clients:,} clients that the certificate counts"
    if by_record:
        known = f", for the {told.population:,} records of the smallest client that the certificate counts"
    return expected, known


def _config_of(path: Path, method: object) -> RunConfig | None:
    """The run as its folder describes it, or the folder above for a comparison or several seeds."""
    for folder in (path, *list(path.resolve().parents)[:2]):
        if (folder / "config.json").is_file():
            return next((config for config in runs_of(RunDir(folder)) if shown(config.method) == method), None)
    return None


def _ledger(path: Path, file: Path, certificate: Values, result: Values, given: Path | None) -> Derived:
    """What was charged, and what was released, is what the certificate says; in a ledger whose chain holds."""
    if not file.is_file() or file.stat().st_size == 0:  # an empty one would become a ledger
        shared = given is None and certificate.get("population") is not None
        told = "the run was charged in a ledger that it shares: name it with --ledger" if shared else f"{file} is not there"
        return Derived(Check("ledger", None, told))
    try:
        ledger = Ledger(file, own=file == path / LEDGER, rollback_protection=False)
        try:
            wrong = "; ".join(_against_ledger(ledger, certificate, result))
        finally:
            ledger.close()
    except (HushError, KeyError, TypeError, ValueError, AttributeError) as error:
        return Derived(Check("ledger", False, str(error)))
    if wrong:
        return Derived(Check("ledger", False, wrong))
    unseen = f" (this machine could not tell whether it is an older copy: {ledger.no_memory})" if ledger.no_memory else ""
    told = f"{certificate['rounds_charged']} rounds are charged, of the same plan, and model, certificate and result were released"
    return Derived(Check("ledger", True, told + unseen), {"run_id", "rounds_charged", "rounds_counted", "population"})


def _against_ledger(ledger: Ledger, certificate: Values, result: Values) -> Iterator[str]:
    """What a ledger says otherwise: how often the run was charged, for what, what it gave out, and what all runs had spent."""
    shared, name = certificate.get("population"), certificate["run_id"]
    pools = [p for p in ledger.populations.values() if shared is None or p.name == shared["name"]]
    runs = [pool.runs[name] for pool in pools if name in pool.runs]
    if len(runs) != 1:
        yield f"this run is charged in {len(runs)} populations there"
        return
    (run,) = runs
    if run.charges != certificate["rounds_charged"]:
        yield f"{run.charges} rounds of this run are charged there, not {certificate['rounds_charged']}"
    if len(run.rounds) != certificate["rounds_counted"]:
        yield f"{len(run.rounds)} different rounds of this run are charged there, not {certificate['rounds_counted']}"
    if run.phase != as_released(plan_from_dict(certificate["plan"])).again(0):
        yield "rounds of another plan are charged there"
    yield from _against_releases(run, certificate, result)
    if shared is not None:
        yield from _against_pool(ledger, shared)


def _against_releases(run: Spending, certificate: Values, result: Values) -> Iterator[str]:
    """Whoever changes a line of what was released would have to write the ledger anew."""
    now = {"model": certificate.get("model_sha256"), "certificate": digest(certificate), "result": digest(result)}
    if not run.released:
        yield "nothing was released there"
    elif result and now not in run.released:
        wrong = [name for name, hashed in now.items() if hashed != run.released[-1].get(name)]
        yield f"another {' and '.join(wrong)} was released there"


def _against_pool(ledger: Ledger, together: Values) -> Iterator[str]:
    if not ledger.contains(together["ledger_head"]):
        yield "the entry that the certificate names is not there"
        return
    pool: Population = ledger.populations_at(together["ledger_entries"])[together["name"]]
    told = {"runs": len(pool.runs), "budget": pool.epsilon, "adaptive": pool.adaptive, "epsilon": pool.spent(together["delta"])}
    told |= {"epsilon_adaptive": pool.filtered() if pool.adaptive else None}
    if wrong := _differing(told, together):
        yield f"of all runs together it says something else: {', '.join(wrong)}"


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    """The names of all single values, as `plan.phases.0.rounds`; an empty list is one."""
    inside = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    if not inside:
        yield path
    for key, item in inside:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _differing(expected: Values, told: Values, path: str = "") -> list[str]:
    """The names of what is told otherwise; figures are compared to nine digits."""
    return [f"{path}{key}" for key, value in expected.items() if key not in told or not _close(value, told[key])]


def _close(a: Any, b: Any) -> bool:
    """Equal, figures to nine digits."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_close(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_close(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return bool(a == b)
