from flwr.serverapp import ServerApp

import hush

app = ServerApp()


@app.main()
def main(grid, context):
    told = context.run_config
    run = {"data": told["data"], "out": told["out"], "rounds": 3, "noise": 1.0, "delta": 1e-3}
    result = hush.federation.run(told["federation"], "dp-fedavg", carrier=grid, **run)
    print(result.sentence())
