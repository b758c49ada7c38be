"""AIConfigurator's predictions for the silicon rows: run by an environment that has it.

    PYTHON scripts/aiconfigurator_rows.py validation/data/vllm_dense.csv >predictions.csv

`python -m validation --aiconfigurator` makes such an environment (about 500 MB, once) and runs
this. Each row goes through the function behind `aiconfigurator cli estimate` with what the row
states, the KV precision that the twin assumes too, and the batch that is in flight; where
AIConfigurator has no prediction for a row, the row is left out.
"""

import csv
import logging
import sys
import warnings
from functools import cache

VERSION = "0.12.0"
MODELS = {
    "Qwen/Qwen3-32B": "Qwen/Qwen3-32B",
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
}
WEIGHTS = {"bf16": "bfloat16", "fp8": "fp8", "fp4": "nvfp4"}


def main(path: str) -> None:
    """One line a row: its id, TTFT and TPOT in ms."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    from aiconfigurator.cli.api import cli_estimate  # noqa: PLC0415
    from aiconfigurator_core.sdk.perf_database import (  # noqa: PLC0415
        get_latest_database_version,
    )

    latest = cache(lambda system: get_latest_database_version(system=system, backend="vllm"))
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(("id", "ttft_ms", "tpot_ms"))
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        rows = list(csv.DictReader(file))
    for row in rows:
        kv = "fp8" if "70B" in row["model"] and row["gpu"] != "h100_sxm" else "bfloat16"
        try:
            found = cli_estimate(
                MODELS[row["model"]],
                row["gpu"],
                backend_name="vllm",
                backend_version=latest(row["gpu"]),  # what it would find itself, each time anew
                isl=int(row["isl"]),
                osl=int(row["osl"]),
                tp_size=int(row["tp"]),
                batch_size=int(row["concurrency"]),
                gemm_quant_mode=WEIGHTS[row["precision"]],
                kvcache_quant_mode=kv,
            )
        except Exception as error:
            print(f"{row['id']}: {error}"[:200], file=sys.stderr)
            continue
        out.writerow((row["id"], f"{found.ttft:.2f}", f"{found.tpot:.3f}"))


if __name__ == "__main__":
    main(sys.argv[1])
