"""Flower's own SecAgg+ workflow and client mod, driven in this process: the peer of `hush.benchmarks.secagg`.

Nothing of Flower's is changed. Messages go from its workflow to its mod and back through a grid that counts bytes and times each
side; clients that vanish answer with an error from the masked vectors on, as Flower's own runtime reports them.
"""

from __future__ import annotations

import copy
import logging
import time
import warnings
from typing import Any

import numpy as np

MASKED_VECTORS = 2
"""The stage of the protocol at which clients vanish here: after they shared their secrets."""


def measure(clients: int, entries: int, dropout: float, degree: int) -> dict[str, Any]:
    """One round; a float32 vector, as Flower takes them, quantised by it to 22 bits and sent as 64."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _measure(clients, entries, dropout, min(degree, clients - 1))


def _measure(clients: int, entries: int, dropout: float, degree: int) -> dict[str, Any]:
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    import flwr
    from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
    from flwr.client.mod.secure_aggregation.secaggplus_mod import secaggplus_mod
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.compat.common import recorddict_compat as compat
    from flwr.server.client_manager import SimpleClientManager
    from flwr.server.client_proxy import ClientProxy
    from flwr.server.compat.legacy_context import LegacyContext
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
    from flwr.server.workflow.secure_aggregation.secaggplus_workflow import SecAggPlusWorkflow

    vectors = {i: (np.arange(entries, dtype=np.float32) % 97 - 48) * 1e-3 * i / clients for i in range(1, clients + 1)}
    gone = set(range(1, 1 + int(dropout * clients)))
    contexts = {i: Context(run_id=1, node_id=i, node_config={}, state=RecordDict(), run_config={}) for i in vectors}
    spent, sent, stage = [0.0], [0], [-1]

    class Proxy(ClientProxy):  # type: ignore[misc,unused-ignore]  # with Flower installed, and without
        def __init__(self, number: int) -> None:
            super().__init__(str(number))
            self.node_id = number

        def get_properties(self, *args: Any) -> Any: ...
        def get_parameters(self, *args: Any) -> Any: ...
        def fit(self, *args: Any) -> Any: ...
        def evaluate(self, *args: Any) -> Any: ...
        def reconnect(self, *args: Any) -> Any: ...

    class Grid:
        def send_and_receive(self, messages: list[Any], timeout: float | None = None) -> list[Any]:
            stage[0] += 1
            return [self._answer(copy.deepcopy(message)) for message in messages]

        def _answer(self, message: Any) -> Any:
            number = message.metadata.dst_node_id
            if number in gone and stage[0] >= MASKED_VECTORS:
                return Message(Error(code=1, reason="vanished"), reply_to=message)

            def app(told: Any, _: Any) -> Any:
                fitted = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([vectors[number]]), 10, {})
                return Message(compat.fitres_to_recorddict(fitted, True), reply_to=told)

            began = time.process_time()
            answer = secaggplus_mod(message, contexts[number], app)
            spent[0] += time.process_time() - began
            records = answer.content.config_records
            told = records["secaggplus_configs"] if "secaggplus_configs" in records else next(iter(records.values()))
            sent[0] += sum(_size(value) for value in told.values())
            return answer

    manager = SimpleClientManager()
    for number in vectors:
        manager.register(Proxy(number))
    strategy = FedAvg(fraction_fit=1.0, min_fit_clients=clients, min_available_clients=clients, fraction_evaluate=0)
    base = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    context = LegacyContext(context=base, strategy=strategy, client_manager=manager)
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    start = ndarrays_to_parameters([np.zeros(entries, np.float32)])
    context.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(start, True)
    workflow = SecAggPlusWorkflow(num_shares=degree + 1, reconstruction_threshold=0.5)  # a client of theirs keeps a share itself
    began, wall = time.process_time(), time.perf_counter()
    workflow(Grid(), context)  # type: ignore[arg-type,unused-ignore]
    whole, wall = time.process_time() - began, time.perf_counter() - wall
    got = parameters_to_ndarrays(compat.arrayrecord_to_parameters(context.state.array_records[MAIN_PARAMS_RECORD], True))[0]
    wanted = np.mean([vector for number, vector in vectors.items() if number not in gone], axis=0)
    return {
        "implementation": f"flower {flwr.__version__}",
        "clients": clients,
        "neighbours": degree,
        "entries": entries,
        "bits": 64,
        "dropout": dropout,
        "exact": bool(np.abs(got - wanted).max() < 1e-4),
        "client_ms": 1e3 * spent[0] / clients,
        "server_s": whole - spent[0],
        "upload_bytes": sent[0] / (clients - len(gone)),
        "wall_s": wall,
    }


def _size(value: Any) -> int:
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, list):
        return sum(len(item) if isinstance(item, bytes) else 8 for item in value)
    return 8
