"""RULER, needles, lost in the middle, filings: SmolLM2-135M-Instruct in up to 2,048 tokens.

  python -m ptjax.launch eval --config configs/eval_ruler.py --workdir runs/ruler

Hardware: 2 CPU cores, 6 GB. Time: 20 minutes. Another model, longer:

  python -m ptjax.launch eval --config configs/eval_ruler.py --workdir runs/ruler-mine \\
      --config.model.source=exported --config.ruler.lengths=4096,8192,16384
"""

from ml_collections import ConfigDict

from ptjax.core.config import to_config_dict
from ptjax.evals.context_config import ContextEval, DepthConfig, FilingsConfig, RulerConfig


def get_config() -> ConfigDict:
  return to_config_dict(
    ContextEval(
      name="eval_ruler",
      ruler=RulerConfig(lengths=(1024, 2048), samples=10),
      needle=DepthConfig(lengths=(512, 1024, 1536, 2048), depths=6, samples=4),
      middle=DepthConfig(task="qa_1", lengths=(1024,), depths=6, samples=12),
      filings=FilingsConfig(lengths=(2048,), samples=20),
    )
  )
