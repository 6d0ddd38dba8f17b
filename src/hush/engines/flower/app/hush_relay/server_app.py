"""At the server: bundles from its socket to nodes, and what they answer back; and which nodes are there."""

import os
import select
import socket
import time

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from hush_relay import frames
from hush_relay.wrapping import unwrap, wrap

app = ServerApp()


@app.main()
def relay(grid: Grid, context: Context) -> None:
    """Until the other end of the socket closes."""
    waiting: dict = {}
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
                message = Message(wrap(bundle), dst_node_id=head["node"], message_type="query", ttl=float(head["ttl"]))
                pushed = list(grid.push_messages([message]))
                if pushed and pushed[0] is not None:
                    waiting[pushed[0]] = (head["id"], time.monotonic() + float(head["ttl"]))
                else:
                    frames.send(link, {"id": head["id"], "error": "not sent"})
                continue
            for answer in grid.pull_messages(list(waiting)) if waiting else ():
                number, _ = waiting.pop(answer.metadata.reply_to_message_id, (None, 0.0))
                if number is None:
                    continue
                if answer.has_error():
                    frames.send(link, {"id": number, "error": str(answer.error.reason)[:500]})
                else:
                    frames.send(link, {"id": number}, unwrap(answer.content))
            waiting = {name: held for name, held in waiting.items() if held[1] > time.monotonic()}
