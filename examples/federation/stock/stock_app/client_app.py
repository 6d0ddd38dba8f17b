from flwr.clientapp import ClientApp

from hush.federation import relay

app = ClientApp()


@app.query("hush")
def hush(message, context):
    return relay(message, context.node_config["hush-socket"])
