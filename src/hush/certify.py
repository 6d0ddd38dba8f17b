"""Is a run's certificate true? Recompute it from the run's own settings and its ledger, and look for what was changed since.

What neither of them tells is the author's word, and is listed as such. The ledger holds the hashes of model, certificate and result
as they were when the run ended, so that also the author's words cannot be changed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hush.cohort import sampling_name
from hush.config import RunConfig, runs_of
from hush.engines.conclude import describe, describe_sum
from hush.engines.result import REPEATED
from hush.engines.rundir import LEDGER, RunDir
from hush.errors import DataError, HushError, UsageError
from hush.experiment import Experiment
from hush.federation import initial, kept, signatures
from hush.federation.vouching import signers, vouching
from hush.plain import differing, plain
from hush.plugins import running_only, shown
from hush.privacy.accountant import account
from hush.privacy.certificate import FORMAT, digest, has_old_skellam, proof_from_dict, proof_to_dict
from hush.privacy.client_plan import server_plan
from hush.privacy.guarantee import Unit
from hush.privacy.ledger import Ledger
from hush.privacy.plan import in_a_federation
from hush.privacy.settle import Proof, as_charged, certify, settle_privacy
from hush.privacy.vocabulary import Enrolled, Persons
from hush.privacy.written import plan_from_dict
from hush.recorded import against_ledger, releases, says_nothing_was_released
from hush.report.certificate_page import certificate_page
from hush.version import __version__

Values = dict[str, Any]


class Check(NamedTuple):
    """One thing that was looked at: None where there is nothing to look at."""

    name: str
    passed: bool | None
    detail: str
    known: frozenset[str] = frozenset()
    """The lines of the certificate that it stands for."""
    copied: frozenset[str] = frozenset()
    """Of these the lines that the check itself took from the certificate."""
    unchecked: tuple[str, ...] = ()
    """What of its sources it did not look at."""
    clients: Mapping[str, str] | None = None
    """What each client says of the run, where clients sign."""


class Verified(NamedTuple):
    """A certificate, and what became of every line of it."""

    certificate: Values
    checks: list[Check]
    said: list[str]
    """What nothing but the author's word stands for; of the result too, as `result.NAME`."""
    unchecked: list[str]
    """Files beside it that nothing was held against, and lines of `config.json`, as `config.NAME`."""


def runs_in(path: Path) -> list[Path]:
    """The folders with a certificate: the run itself, or the runs of a comparison or of several seeds."""
    if not path.is_dir():
        raise DataError(f"There is no run directory {path}.")
    found = [path] if (path / "certificate.json").is_file() else sorted(p.parent for p in path.glob("**/certificate.json"))
    if not found:
        raise DataError(f"{path} holds no certificate: the run is not complete.")
    return found


def verify_run(path: Path, ledger: Path | None = None, code: Iterable[Path] = ()) -> Verified:
    """Every check of a certificate; `ledger` is where the run was charged, if its settings do not say. `code` are files that may be
    run where the settings name one: whoever wrote the folder would otherwise choose what is run here."""
    with running_only(code):
        return _verified(path, ledger)


def _verified(path: Path, ledger: Path | None) -> Verified:
    folder = RunDir(path)
    certificate = _object(folder, "certificate.json")
    if "format" not in certificate:
        wrote = f"written by Hush {certificate.get('hush_version', 'before 0.1')}, and this Hush ({__version__}) reads {FORMAT}"
        raise DataError(
            f"{path / 'certificate.json'} has format 1, {wrote}: use the Hush that wrote it, or run it again with this one."
        )
    if has_old_skellam(certificate):
        raise DataError(
            f"{path / 'certificate.json'} accounts Skellam noise by Renyi divergences, as Hush once did, and this one proves "
            "less: use the Hush that wrote it, or run it again with this one."
        )
    result = _object(folder, "result.json") if folder.has("result.json") else {}
    checks = [_model(folder, certificate), _result(result, certificate), _secrets(folder), _hashed(certificate)]
    checks += [_page(folder, certificate)] if folder.has("certificate.html") else []
    if _of_real_clients(folder, certificate):
        checks += [_proposal(folder, certificate), _signatures(folder, certificate, result)]
    checks += _derived(folder, certificate, result, ledger)
    known = {"format", "configuration_sha256", "model_sha256"}.union(*(check.known for check in checks))
    copied = set[str]().union(*(check.copied for check in checks))
    said = [leaf for leaf in leaves(certificate) if not _among(known, leaf) or _among(copied, leaf)]
    said += [f"result.{key}" for key in result if key not in _same_as(certificate)]
    unchecked = [*_other_files(folder, checks), *(name for check in checks for name in check.unchecked)]
    return Verified(certificate, checks, said, unchecked)


def _derived(folder: RunDir, certificate: Values, result: Values, given: Path | None) -> Iterator[Check]:
    """What follows from the plan, from the settings and from the ledger: of a run without a guarantee, as far as there are any."""
    proved = certificate.get("guarantee") is not None
    if proved:
        yield _figures(certificate)
    asked = None
    try:
        asked = _asked(folder.path, certificate.get("method"))
    except HushError as error:
        wrote = f" Hush {certificate.get('hush_version')} wrote the certificate." if isinstance(error, DataError) else ""
        yield Check("settings", None if isinstance(error, DataError) else False, f"{error}{wrote}")
    else:
        if proved or asked is not None:
            yield _settings(asked, certificate, given)
    file = given or Path((asked.config.ledger if asked is not None else None) or folder.path / LEDGER)
    if proved or says_nothing_was_released(certificate) or certificate.get("population") is not None or _filled(file):
        yield _ledger(folder, file, certificate, result, shared=given is None and certificate.get("population") is not None)


def _among(names: set[str], leaf: str) -> bool:
    return any(leaf == name or leaf.startswith(f"{name}.") for name in names)


def _object(folder: RunDir, name: str) -> Values:
    value = folder.read_json(name)
    if not isinstance(value, dict):
        raise DataError(f"{folder.path / name} is not what a run of Hush writes.")
    return value


def _other_files(folder: RunDir, checks: list[Check]) -> list[str]:
    """What lies beside the certificate and was held against nothing."""
    passed = {check.name for check in checks if check.passed is not None}
    looked = {"certificate.json", "certificate.html", "result.json", "model.safetensors"}
    looked |= {"config.json"} if "settings" in passed else set()
    looked |= {kept.FILE, initial.FILE} if "proposal" in passed else set()
    looked |= {signatures.FILE} if "signatures" in passed else set()
    looked |= {"rounds.jsonl"} if {"figures", "ledger"} <= passed else set()  # what is not proved is not released there
    looked |= {LEDGER + end for end in ("", "-wal", "-shm", "-journal")} | {path.name for path in folder.secrets}
    return sorted(path.name for path in folder.path.iterdir() if path.is_file() and path.name not in looked)


def _secrets(folder: RunDir) -> Check:
    """A complete run has deleted what it needed to go on: with its secret anybody takes the noise off."""
    left = ", ".join(path.name for path in folder.secrets)
    told = f"{left} lies there, which nobody else may read: hush run --resume {folder.path} deletes it"
    return Check("secrets", not left, told if left else "nothing is left of what the run needed to go on")


def _page(folder: RunDir, certificate: Values) -> Check:
    """The page that people read is made from the certificate, to the letter; another version may word it otherwise."""
    if certificate.get("hush_version") != __version__:
        return Check("page", None, "certificate.html was made by another version of Hush")
    try:
        same = (folder.path / "certificate.html").read_text() == certificate_page(certificate, signers(folder))
    except (HushError, KeyError, TypeError, ValueError, AttributeError):
        same = False
    return Check("page", same, f"certificate.html says {'what the certificate says' if same else 'something else'}")


def _hashed(certificate: Values) -> Check:
    if certificate["format"] != FORMAT:
        return Check("configuration", False, f"the certificate says format {certificate['format']}, and this Hush writes {FORMAT}")
    same = digest(certificate.get("configuration")) == certificate.get("configuration_sha256")
    told = "are those it was hashed with" if same else "were changed"
    return Check("configuration", same, f"the settings on the certificate {told}")


def _same_as(certificate: Values) -> Values:
    """What a result must say, by its certificate."""
    parts = (certificate.get(key) for key in ("guarantee", "server_guarantee", "configuration"))
    proved, server, ran = (part if isinstance(part, dict) else {} for part in parts)
    told = {key: certificate.get(key) for key in REPEATED} | {key: proved.get(key) for key in _PROVED}
    told |= {"noise_mode": certificate.get("noise"), "epsilon_server": server.get("epsilon"), "rounds_planned": ran.get("rounds")}
    return told | {"seed": ran.get("seed")}


_PROVED = ("epsilon", "delta", "unit", "relation", "view")


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


def _of_real_clients(folder: RunDir, certificate: Values) -> bool:
    ran = certificate.get("configuration")
    named = isinstance(ran, dict) and ("proposal" in ran or (isinstance(ran.get("run"), dict) and ran["run"].get("federation")))
    return bool(named) or folder.has(kept.FILE)


def _proposal(folder: RunDir, certificate: Values) -> Check:
    """What clients agreed to is the run that is certified, under the roster that is named."""
    named = frozenset({"configuration.proposal"})
    if certificate.get("hush_version") != __version__:
        return Check("proposal", None, "it was written by another version of Hush", copied=named)
    if not folder.has(kept.FILE):
        return Check("proposal", None, f"{kept.FILE} is not there", copied=named)
    wrong = "; ".join(kept.against_proposal(folder, certificate))
    return Check("proposal", not wrong, wrong or "the clients agreed to this run, with this roster", named)


def _signatures(folder: RunDir, certificate: Values, result: Values) -> Check:
    """Who of the clients vouches for it. Nobody has to: who did not sign is named, and only who says otherwise is wrong."""
    if certificate.get("hush_version") != __version__:
        return Check("signatures", None, "they were written by another version of Hush")
    if lacking := [name for name in (kept.FILE, signatures.FILE) if not folder.has(name)]:
        why = "nobody signed it" if lacking == [signatures.FILE] else "whose keys they are cannot be told"
        return Check("signatures", None, f"{' and '.join(lacking)} is not there: {why}")
    try:
        found = vouching(folder, certificate, result)
    except (HushError, AssertionError, KeyError, TypeError, ValueError, AttributeError) as error:
        return Check("signatures", False, f"they cannot be read: {error}")
    if found.wrong:
        return Check("signatures", False, "; ".join(found.wrong), clients=found.clients)
    if found.underived is not None:
        return Check(
            "signatures", None, f"they are genuine, and cannot be held against the plan: {found.underived}", clients=found.clients
        )
    told = f"{found.signed} of {len(found.clients)} clients of the roster {found.roster} signed, and what they say agrees with it"
    away = f"; not signed by {len(found.missing)}, of whom nothing is known" if found.missing else ""
    return Check("signatures", True if found.signed else None, told + away, clients=found.clients)


def _figures(certificate: Values) -> Check:
    """Every proved figure again, from the plan alone."""
    try:
        plan = plan_from_dict(certificate["plan"])
        known = proof_from_dict(certificate)
        if known is None:
            raise UsageError("there is no guarantee")
        delta = known.guarantee.delta
        server = account(server_plan(plan), delta) if known.server is not None else None
        again = proof_to_dict(Proof(plan, account(plan, delta), server, known.no_server, known.claim))
        again |= {"rounds_charged": plan.rounds, "noise_multiplier": plan.noise_multiplier}
        again |= {"clients": plan.clients if plan.unit.within_client else plan.population}
        again |= {"claimed_epsilon": (certificate["claim"] or {}).get("epsilon"), "no_guarantee": None}
        again.setdefault("epsilon_replaced", None)  # the page would show one that follows from nothing
        again["computed"]["versions"] = certificate["computed"]["versions"]
    except (HushError, KeyError, TypeError, ValueError, AttributeError) as error:
        return Check("figures", False, f"they cannot be recomputed: {error}")
    names = set(again) - {"plan", "claim", "no_server_guarantee"}
    wrong = differing({name: again[name] for name in names}, {"epsilon_replaced": None} | certificate)
    if wrong:
        return Check("figures", False, f"the plan gives something else for {', '.join(wrong)}")
    epsilon = again["guarantee"]["epsilon"]
    told = f"epsilon {epsilon:.6g} and what follows from it, recomputed from the plan"
    return Check(
        "figures", True, told, frozenset(names - {"claimed_epsilon", "clients", "computed"} | {"computed.method", "computed.step"})
    )


class Asked(NamedTuple):
    """A run as `config.json` tells it."""

    config: RunConfig
    seeds: int


def _asked(path: Path, method: object) -> Asked | None:
    """The run as its folder describes it, or the folder above for a comparison or several seeds."""
    for folder in (path, *list(path.resolve().parents)[:2]):
        if (folder / "config.json").is_file():
            runs, seeds = runs_of(RunDir(folder)), RunDir(folder).read_json("config.json").get("seeds")
            if not isinstance(seeds, int) or seeds < 1 or (folder == path and (seeds, len(runs)) != (1, 1)):
                raise UsageError(f"{folder / 'config.json'} does not describe the run in {path}")
            return next((Asked(config, seeds) for config in runs if shown(config.method) == method), None)
    return None


_OF_THE_MACHINE = ("config.device", "config.memory", "config.chunk", "config.diagnostics", "config.seeds", "config.data_dir")
"""What nothing on a certificate follows from, or not to the letter."""


def _settings(asked: Asked | None, certificate: Values, given: Path | None) -> Check:
    """All that follows from the settings that the run was started with."""
    if asked is None or asked.config.from_python is not None:
        return Check("settings", None, "the run was started from Python: what it ran is the author's word")
    config = asked.config
    try:
        _refuse_another(asked, certificate)
        expected, copied = (_from_settings if certificate.get("guarantee") is not None else _without_proof)(config, certificate)
    except DataError as error:
        return Check("settings", None, f"it cannot be derived again here: {error}")
    except (HushError, AssertionError, KeyError, TypeError, ValueError, AttributeError) as error:  # or of a damaged certificate
        return Check("settings", False, f"the settings of the run give no such certificate: {error}")
    if wrong := differing(expected, certificate):
        return Check("settings", False, f"the settings of the run give something else for {', '.join(wrong)}")
    derived = f"the plan and what ran, derived again from the settings of the run{_counted(config, certificate)}"
    told = derived if certificate.get("guarantee") is not None else "the run is the one that was asked for"
    paths = [*(["config.ledger"] if given is not None else []), *(["config.data"] if config.data.endswith(".toml") else [])]
    return Check("settings", True, told, frozenset(expected), frozenset(copied), (*_OF_THE_MACHINE, *paths))


def _refuse_another(asked: Asked, certificate: Values) -> None:
    """What the settings say of the run as a whole: its seed, whose privacy it spent, which figures are un-noised."""
    config, seed, pool = asked.config, certificate["configuration"]["seed"], certificate.get("population")
    if seed not in range(config.seed, config.seed + asked.seeds):
        raise UsageError(f"its seed is {seed}")
    name = (config.population or certificate["data"]).strip() if config.ledger is not None else config.population
    if name != (pool["name"] if pool is not None else None):
        raise UsageError("it names another population")
    if certificate.get("guarantee") is not None and bool(config.diagnostics) != ("train_loss" in certificate["un_noised"]):
        raise UsageError("it says something else of diagnostics")


def _counted(config: RunConfig, certificate: Values) -> str:
    """What of the data the certificate alone knows, in words."""
    plan = certificate.get("plan")
    if plan is not None and Unit(plan["unit"]).within_client:
        if config.federation is not None:  # where each client knows its own number alone, and nothing follows from it
            return ""
        return f", for the {plan['population']:,} {plan['unit']}s of the smallest client that the certificate counts"
    return "" if config.clients is not None else f", for the {certificate['clients']:,} clients that the certificate counts"


def _without_proof(config: RunConfig, certificate: Values) -> tuple[Values, set[str]]:
    """Of a run without a guarantee: what was asked for. What became of it is the author's word."""
    experiment, ran = Experiment.of(config), certificate["configuration"]
    own: Values = {"run": replace(config, seed=ran["seed"]).published(), "method": experiment.method.name, "rounds": config.rounds}
    own |= {"cohort": plain(experiment.cohort), "dropout": config.dropout}
    copied = {f"configuration.{key}" for key in ran.keys() - own.keys() - {"seed", "proposal"}}
    cohort = experiment.cohort
    expected = {"method": experiment.method.name, "cohort": cohort.size, "sampling": sampling_name(cohort)}
    return expected | {"configuration": ran | own}, copied


def _from_settings(config: RunConfig, certificate: Values) -> tuple[Values, set[str]]:
    """The certificate that the settings give, as far as they go, and what had to be taken from it: sizes of data and model."""
    experiment = Experiment.of(config)
    told, ran = plan_from_dict(certificate["plan"]), certificate["configuration"]
    clients, copied = config.clients or certificate["clients"], {"configuration.parameters"}
    by_record = told.unit.within_client
    enrolled = Enrolled(clients, dim=ran["parameters"])
    if told.parameters is not None:
        copied.add("plan.parameters")
    if by_record:
        persons = Persons(ran["rows_of_a_person"], told.phases[0].holders) if config.unit == Unit.PERSON else None
        enrolled = Enrolled(clients, ran["records"], ran["records_in_all"], ran["parameters"], persons)
        copied |= {"plan.population", "plan.total", "configuration.records", "configuration.records_in_all"}
        copied |= {"configuration.rows_of_a_person", "plan.phases.0.holders"} if persons is not None else set()
    method = experiment.as_run(enrolled)
    if config.clients is None:
        copied |= {"clients", "configuration.clients", "plan.clients" if by_record else "plan.population"}
    delta = config.delta
    if config.ledger is not None and delta is None:  # the default is that of its population
        delta = certificate["guarantee"]["delta"]
        copied |= {"guarantee.delta", "configuration.delta"}
    settled = settle_privacy(method, experiment.cohort, enrolled, experiment.rounds, experiment.budget, delta, config.dropout)
    if settled.plan is None or config.noise_seed is not None:
        raise UsageError(settled.refused or "nothing is proved of them")
    plan = settled.plan if config.federation is None else in_a_federation(settled.plan)
    charged = as_charged(plan, certificate["rounds_counted"], certificate["rounds_charged"])
    proof = certify(charged, settled.delta, settled.method)
    if proof is None:
        raise UsageError("nothing was charged")
    summed = None
    if experiment.secure_sum is not None:
        sizes = (settled.method, experiment.cohort, clients, config.dropout, ran["parameters"], experiment.rounds)
        terms, fresh = experiment.secure_sum.terms_of(*sizes), experiment.secure_sum.masks == "fresh"
        summed = describe_sum(terms, fresh, experiment.cohort, clients)
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
        "configuration": describe(*facts) | ({"proposal": ran["proposal"]} if config.federation is not None else {}),
        "no_guarantee": None,
    }
    expected.pop("computed")
    return expected, copied


def _filled(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > 0


def _ledger(folder: RunDir, file: Path, certificate: Values, result: Values, shared: bool) -> Check:
    """What was charged, and what was released, is what the certificate says; in a ledger whose chain holds."""
    if says_nothing_was_released(certificate) and certificate.get("secure_sum") is None:
        return Check("ledger", False, "only a secure sum ends a round before anything is released, and there was none")
    if not _filled(file):
        told = "the run was charged in a ledger that it shares: name it with --ledger" if shared else f"{file} is not there"
        return Check("ledger", None, told)
    try:
        ledger = Ledger(file, own=file == folder.path / LEDGER, rollback_protection=False, look=True)
    except HushError as error:
        return Check("ledger", False, str(error))
    with closing(ledger):
        wrong = "; ".join(against_ledger(ledger, folder, certificate, result))
        often = releases(ledger, certificate["run_id"]) if not wrong else 0
    if wrong:
        return Check("ledger", False, wrong)
    told = "nothing of this run is charged"
    if certificate.get("guarantee") is not None:
        told = f"{certificate['rounds_charged']} rounds are charged, of the same plan, and what lies here was released"
    told += f", {often} times the same: the process was killed after it" if often > 1 else ""
    unseen = f" (this machine could not tell whether it is an older copy: {ledger.no_memory})" if ledger.no_memory else ""
    known = frozenset({"run_id", "rounds_charged", "rounds_counted", "population"})
    return Check("ledger", True, told + unseen, known)


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """The names of all single values, as `plan.phases.0.rounds`; an empty list is one."""
    inside = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    if not inside:
        yield path
    for key, item in inside:
        yield from leaves(item, f"{path}.{key}" if path else str(key))
