"""At the server: bundles from its socket to nodes, and what they answer back; and which nodes are there."""

import os
import select
import socket
import time

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from hush_relay import frames
from hush_relay.exchange import UnderWay

app = ServerApp()


@app.main()
def relay(grid: Grid, context: Context) -> None:
    """Until the other end of the socket closes."""
    under_way = UnderWay(grid)
    known, asked = None, 0.0
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(context.run_config["socket"]))
        while True:
            if time.monotonic() - asked > 1.0:
                asked, nodes = time.monotonic(), sorted(grid.get_node_ids())
                if nodes != known:
                    known = nodes
                    frames.send(link, {"nodes": nodes})
            if select.select([link], [], [], 0.1)[0]:
                frame = frames.receive(link)
                if frame is None:  # whoever it relayed for is gone, and with it all that Flower would report to
                    os._exit(0)
                head, bundle = frame
                if not under_way.push(head["id"], head["node"], float(head["ttl"]), bundle):
                    frames.send(link, {"id": head["id"], "error": "not sent"})
                continue
            for number, answers, why in under_way.pull():
                frames.send(link, {"id": number} if answers is not None else {"id": number, "error": why}, answers or b"")
