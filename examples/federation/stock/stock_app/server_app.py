from flwr.serverapp import ServerApp

import hush

app = ServerApp()


@app.main()
def main(grid, context):
    told = context.run_config
    result = hush.federation.run(told["federation"], "dp-fedavg", carrier=grid, out=told["out"], rounds=3, noise=1.0, delta=1e-3)
    print(result.sentence())
