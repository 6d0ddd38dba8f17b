"""Is a run's certificate true? Recompute it from the run's own settings, and look for what was changed since."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from hush import cohort as cohort_kinds
from hush.cohort import Bounded, Cohort, FixedSize, Poisson, Rotation
from hush.engines.rundir import LEDGER, RunDir
from hush.errors import DataError, HushError
from hush.experiment import Spec, resolve
from hush.privacy.bounds import Quantised, RecordMean
from hush.privacy.certificate import digest, proof_from_dict, proof_to_dict
from hush.privacy.guarantee import Unit
from hush.privacy.ledger import Ledger, as_released
from hush.privacy.plan import server_plan
from hush.privacy.settle import Proof, as_charged, certify, settle_privacy
from hush.privacy.vocabulary import (
    BinomialNoise,
    BoundedParticipation,
    Enrolled,
    Everyone,
    FixedSampling,
    Plan,
    PoissonSampling,
    Sampler,
    Sampling,
    SecretParticipation,
)
from hush.privacy.written import plan_from_dict, plan_to_dict
from hush.report.certificate_page import certificate_page
from hush.secagg.terms import Terms
from hush.version import __version__


class Check(NamedTuple):
    """One thing that was looked at: None where there is nothing to look at."""

    name: str
    passed: bool | None
    detail: str


def runs_in(path: Path) -> list[Path]:
    """The folders with a certificate: the run itself, or the runs of a comparison or of several seeds."""
    if not path.is_dir():
        raise DataError(f"There is no run directory {path}.")
    found = [path] if (path / "certificate.json").is_file() else sorted(p.parent for p in path.glob("**/certificate.json"))
    if not found:
        raise DataError(f"{path} holds no certificate: the run is not complete.")
    return found


def verify_run(path: Path, ledger: Path | None = None) -> tuple[dict[str, Any], list[Check]]:
    """The certificate, and every check of it; `ledger` is where the run was charged, if its settings do not say."""
    folder = RunDir(path)
    certificate = folder.read_json("certificate.json")
    checks = [_configuration(certificate), _result(folder, certificate), _model(folder, certificate)]
    if folder.has("certificate.html"):
        checks.append(_page(folder, certificate))
    if certificate.get("guarantee") is not None:
        checks += [_figures(certificate), _facts(certificate), _plan(path, certificate), _ledger(path, certificate, ledger)]
    return certificate, checks


def _page(folder: RunDir, certificate: dict[str, Any]) -> Check:
    """The page that people read is made from the certificate, to the letter; another version may word it otherwise."""
    if certificate.get("hush_version") != __version__:
        return Check("page", None, "certificate.html was made by another version of Hush")
    try:
        same = (folder.path / "certificate.html").read_text() == certificate_page(certificate)
    except (KeyError, TypeError, ValueError):
        same = False
    return Check("page", same, f"certificate.html says {'what the certificate says' if same else 'something else'}")


def _facts(certificate: dict[str, Any]) -> Check:
    """What is said beside the plan must be what the plan says."""
    try:
        plan = plan_from_dict(certificate["plan"])
        ran, claim = certificate["configuration"], certificate["claim"]
        holders = plan.clients if plan.unit is Unit.RECORD else plan.population
        facts = {
            "clients": certificate["clients"] == holders == ran["clients"],
            "rounds_charged": certificate["rounds_charged"] == plan.rounds,
            "noise_multiplier": math.isclose(certificate["noise_multiplier"], plan.noise_multiplier, rel_tol=1e-9),
            "noise": _noise_fits(plan, ran),
            "sampling": _sampling_fits(plan, certificate["sampling"], ran["cohort"]),
            "cohort": _rate_fits(plan, certificate["cohort"]),
            "records": plan.unit is not Unit.RECORD or _records_fit(plan, ran),
            "claimed_epsilon": certificate["claimed_epsilon"] == (claim or {}).get("epsilon"),
            "secure_sum": _sum_fits(plan, certificate.get("secure_sum"), ran),
        }
    except (HushError, KeyError, TypeError, ValueError) as error:
        return Check("facts", False, f"they cannot be read: {error}")
    wrong = [name for name, holds in facts.items() if not holds]
    told = f"these disagree with the plan: {', '.join(wrong)}" if wrong else "clients, cohort, noise and claim agree with the plan"
    return Check("facts", not wrong, told)


def _noise_fits(plan: Plan, ran: dict[str, Any]) -> bool:
    """Whether the noise that ran, as its own parts print it, is that of the plan."""
    noise = plan.phases[0].releases[0].noise
    if isinstance(noise, BinomialNoise):
        return re.findall(r"trials=([0-9]+)", " ".join(ran["pipeline"])) == [str(noise.trials)]
    name, place = ("noise", ran["local"]) if plan.unit is Unit.RECORD else ("multiplier", " ".join(ran["pipeline"]))
    found = re.findall(rf"\b{name}=([0-9.e+-]+)", place)
    return [math.isclose(float(m), plan.noise_multiplier, rel_tol=1e-6) for m in found] == [True]


def _sum_fits(plan: Plan, told: dict[str, Any] | None, ran: dict[str, Any]) -> bool:
    """Whether what is said of the secure sum is what ran, what the noise was sized for, and what follows from its own numbers."""
    shares = [part for part in ran["pipeline"] if part.startswith("NoiseShares(")]
    if told is None or not shares:
        return told is None and not shares and ran.get("secure_sum") is None
    found = {name: re.findall(rf"\b{name}=([^,()]+)", shares[0])[0].strip("'") for name in ("among", "corrupted", "threat")}
    terms = Terms(
        told["entries"], told["bits"], told["tolerated_dropout"], told["corrupted"], told["threat"], smallest=told["cohort"]
    )
    fresh = told["protocol"] == "SecAgg+"
    graph = terms.graph(terms.smallest)
    return (
        told == ran.get("secure_sum")
        and told["honest_min"] == plan.honest_min == terms.honest_min == int(found["among"])
        and (float(found["corrupted"]), found["threat"]) == (told["corrupted"], told["threat"])
        and told["fewest_survivors"] == terms.fewest(terms.smallest)
        and (not fresh or (told["neighbours"], told["threshold"]) == (graph.degree, graph.threshold))
    )


def _records_fit(plan: Plan, ran: dict[str, Any]) -> bool:
    """Whether steps, batches, clip and participations are those that ran, and the sizes those that were hashed with them."""
    phase, local = plan.phases[0], ran["local"]
    found = {name: re.findall(rf"\b{name}=([^,()]+)", local) for name in ("steps", "batch_size", "records")}
    batch, poisson = int(found["batch_size"][0]), found["records"] == ["'poisson'"]
    size = min(batch, plan.population)
    expected: Sampling = FixedSampling(size, plan.population, Sampler.OWN)
    if poisson:
        expected = PoissonSampling(size / plan.population, plan.population, Sampler.OWN)
    bound = phase.releases[0].bound
    mean = bound.inner if isinstance(bound, Quantised) else bound
    kinds: dict[str, type[Cohort]] = {
        k.__name__: k for k in (Poisson, FixedSize, Bounded, cohort_kinds.SecretParticipation, Rotation)
    }
    name, _, numbers = ran["cohort"].partition("(")
    cohort = kinds[name](**{key: float(value) for key, value in re.findall(r"(\w+)=([0-9.e+]+)", numbers)})
    return (
        found["steps"] == [str(phase.steps)]
        and phase.sampling == expected
        and isinstance(mean, RecordMean)
        and mean.per_record
        and mean.batch == batch
        and phase.participations == cohort.most_participations(ran["rounds"], ran["clients"])
        and phase.period == cohort.turns(ran["clients"])
        and (plan.population, plan.parameters) == (ran["records"], ran["parameters"])
    )


def _sampling_fits(plan: Plan, told: str, cohort: str) -> bool:
    """Whether the cohort that ran is of the kind that the certificate names, and may be accounted as the plan does."""
    kinds: dict[str, tuple[str, tuple[type[Sampling], ...]]] = {
        "Poisson": ("poisson", (PoissonSampling,)),
        "FixedSize": ("fixed", (FixedSampling, Everyone)),
        "Bounded": ("bounded", (BoundedParticipation,)),
        "SecretParticipation": ("secret", (SecretParticipation,)),
        "Rotation": ("rotation", (Everyone,)),
    }
    name, accounted = kinds[cohort.partition("(")[0]]
    return told == name and (plan.sampled is Unit.RECORD or isinstance(plan.phases[0].sampling, accounted))


def _rate_fits(plan: Plan, cohort: float) -> bool:
    if plan.unit is Unit.RECORD:
        return plan.cohort == cohort
    rate = getattr(plan.phases[0].sampling, "rate", None)
    return rate is None or math.isclose(cohort, rate * plan.population, rel_tol=1e-9)


def _configuration(certificate: dict[str, Any]) -> Check:
    same = digest(certificate.get("configuration")) == certificate.get("configuration_sha256")
    told = "are those it was hashed with" if same else "were changed"
    return Check("configuration", same, f"the settings on the certificate {told}")


def _result(folder: RunDir, certificate: dict[str, Any]) -> Check:
    if not folder.has("result.json"):
        return Check("result", None, "result.json is not there")
    result = folder.read_json("result.json")
    proved = certificate.get("guarantee") or {}
    pairs = [(result.get(k), certificate.get(k)) for k in ("method", "clients", "rounds", "rounds_charged", "run_id")]
    pairs += [(result.get(k), certificate.get(k)) for k in ("rounds_counted", "rounds_aborted", "secure_sum")]
    pairs += [(result.get(k), proved.get(k)) for k in ("epsilon", "delta", "unit", "relation", "view")]
    beside = ("data", "model", "cohort", "sampling", "noise_multiplier", "claimed_epsilon", "population", "caveats", "un_noised")
    pairs += [(result.get(k), certificate.get(k)) for k in (*beside, "no_guarantee")]
    pairs += [(result.get("noise_mode"), certificate.get("noise"))]
    pairs += [(result.get("epsilon_server"), (certificate.get("server_guarantee") or {}).get("epsilon"))]
    same = all(a == b for a, b in pairs)
    told = "the same of method, rounds and privacy" if same else "something else of method, rounds or privacy"
    return Check("result", same, f"result.json says {told}")


def _model(folder: RunDir, certificate: dict[str, Any]) -> Check:
    if not folder.has("model.safetensors") or not certificate.get("model_sha256"):
        return Check("model", None, "there is no model beside the certificate")
    same = folder.digest("model.safetensors") == certificate["model_sha256"]
    return Check("model", same, "the model is the one certified" if same else "the model is not the one certified")


def _figures(certificate: dict[str, Any]) -> Check:
    """Every proved figure again, from the plan alone."""
    try:
        plan = plan_from_dict(certificate["plan"])
        known = proof_from_dict(certificate)
        assert known is not None
        again = proof_to_dict(_proof_again(plan, known))
    except (HushError, KeyError, TypeError, ValueError) as error:
        return Check("figures", False, f"they cannot be recomputed: {error}")
    for key in ("guarantee", "server_guarantee", "epsilon_at", "attack", "statement", "noise"):
        if not _close(again[key], certificate[key]):
            return Check("figures", False, f"'{key}' is not what the plan gives")
    epsilon = again["guarantee"]["epsilon"]
    return Check("figures", True, f"epsilon {epsilon:.6g} and what follows from it, recomputed from the plan")


def _proof_again(plan: Plan, known: Proof) -> Proof:
    from hush.privacy.accountant import account

    server = account(server_plan(plan), known.guarantee.delta) if known.server is not None else None
    return Proof(plan, account(plan, known.guarantee.delta), server, known.no_server, known.claim)


def _plan(path: Path, certificate: dict[str, Any]) -> Check:
    """The plan again, from the settings that the run was started with."""
    spec = _spec_of(path, certificate["method"])
    if spec is None:
        return Check("plan", None, "the run was started from Python, so its plan is the certificate's own word")
    try:
        experiment = resolve(spec, lenient=True)
        clients, told = experiment.clients or certificate["clients"], plan_from_dict(certificate["plan"])
        method = experiment.as_run(clients)
        enrolled = Enrolled(clients, dim=certificate.get("configuration", {}).get("parameters"))
        if told.unit is Unit.RECORD:  # how many records the clients hold is known from the data alone
            enrolled = Enrolled(clients, told.population, dim=told.parameters)
        shared = told.unit is Unit.RECORD or spec.ledger is not None  # the data's, or its population's
        delta = certificate["guarantee"]["delta"] if shared and spec.delta is None else spec.delta
        budget = experiment.budget
        settled = settle_privacy(method, experiment.cohort, enrolled, experiment.rounds, budget, delta, spec.dropout)
        assert settled.plan is not None
        counted = certificate.get("rounds_counted")
        counted = certificate["rounds"] if counted is None else counted
        charged = as_charged(settled.plan, counted, certificate["rounds_charged"])
        proof = certify(charged, settled.delta, settled.method)
        assert proof is not None
    except DataError as error:
        return Check("plan", None, f"it cannot be derived again here: {error}")
    except (HushError, AssertionError, KeyError) as error:
        return Check("plan", False, f"the settings of the run give none: {error}")
    same = plan_to_dict(charged) == certificate["plan"] and proof.no_server == certificate.get("no_server_guarantee")
    if experiment.secure_sum is not None:  # what else was asked for must be what is said of it
        terms = experiment.secure_sum.terms(experiment.cohort, clients, spec.dropout)
        told_sum = certificate.get("secure_sum") or {}
        pairs = (
            ("threat", terms.threat),
            ("tolerated_dropout", terms.dropout),
            ("corrupted", terms.corrupted),
            ("cohort", terms.smallest),
        )
        same = same and all(told_sum.get(name) == value for name, value in pairs)
    same = same and math.isclose(proof.guarantee.epsilon, certificate["guarantee"]["epsilon"], rel_tol=1e-9)
    known = "" if experiment.clients is not None else f", for the {clients:,} clients that the certificate counts"
    if enrolled.records is not None:
        known = f", for the {enrolled.records:,} records of the smallest client that the certificate counts"
    said = f"derived again from the settings of the run{known}" if same else "the settings of the run give another one"
    return Check("plan", same, said)


def _spec_of(path: Path, method: str) -> Spec | None:
    """The settings of the command that made this run: in its folder, or above it for a comparison or several seeds."""
    for folder in (path, *list(path.resolve().parents)[:2]):
        if (folder / "config.json").is_file():
            specs = RunDir(folder).read_json("config.json").get("specs", [])
            found = [Spec.read(spec) for spec in specs if spec.get("method") == method]
            return found[0] if found else None
    return None


def _ledger(path: Path, certificate: dict[str, Any], given: Path | None) -> Check:
    """As many rounds charged as the certificate says, no more and no less, in a ledger whose chain holds."""
    spec = _spec_of(path, certificate["method"])
    file = given or (Path(spec.ledger) if spec is not None and spec.ledger else path / LEDGER)
    if not file.is_file():
        shared = given is None and certificate.get("population") is not None
        told = "the run was charged in a ledger that it shares: name it with --ledger" if shared else f"{file} is not there"
        return Check("ledger", None, told)
    try:
        ledger = Ledger(file, own=file == path / LEDGER)
        wrong = _against_ledger(ledger, certificate)
        ledger.close()
    except (HushError, KeyError) as error:
        return Check("ledger", False, str(error))
    told = f"{certificate['rounds_charged']} rounds are charged, of the same plan, and the chain holds"
    return Check("ledger", wrong is None, wrong or told)


def _against_ledger(ledger: Ledger, certificate: dict[str, Any]) -> str | None:
    """What a ledger says otherwise: how often the run was charged, for what, and what all runs spent when it ended."""
    name = certificate["run_id"]
    shared = certificate.get("population")
    pools = [p for p in ledger.populations.values() if shared is None or p.name == shared["name"]]
    runs = [pool.runs[name] for pool in pools if name in pool.runs]
    charges = sum(run.charges for run in runs)
    if charges != certificate["rounds_charged"]:
        return f"{charges} rounds of this run are charged there, not {certificate['rounds_charged']}"
    plan = plan_from_dict(certificate["plan"])
    phase = as_released(plan).again(0)
    if any(run.phase != phase for run in runs):
        return "rounds of another plan are charged there"
    together = certificate.get("population")
    if together is None:
        return None
    if not ledger.contains(together["ledger_head"]):
        return "the entry that the certificate names is not there"
    pool = ledger.populations_at(together["ledger_entries"])[together["name"]]
    if not math.isclose(pool.spent(together["delta"]), together["epsilon"], rel_tol=1e-9) or len(pool.runs) != together["runs"]:
        return "what all runs spent together is not what the certificate says"
    return None


def _close(a: Any, b: Any) -> bool:
    """Equal, figures to nine digits."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_close(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_close(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return bool(a == b)
