"""On-policy distillation of a larger SmolLM2 into SmolLM2-135M-Instruct on arithmetic.

  python -m ptjax.launch distill --config configs/distill_smollm2.py --workdir runs/distill \
      --config.teacher.source=SmolLM2-360M-Instruct

The teacher is a directory or a .gguf file of a model with the same tokens; as it stands here it is
the student itself, whose KL is 0. Hardware: 2 CPU cores, 12 GB.

From the model that `configs/best_of_n_smollm2.py:arithmetic` makes in 8 steps (exported), 8 steps
(`--config.fit.num_steps=8`): the KL to the teacher on the student's own answers fell from 0.83 to
0.12 nats a token, and the student passed 72 of 100 held-out tasks instead of 17 (its teacher 68).
It took 234 s of CPU time and 7.0 GB; seed 0. From the DPO model of sums, which did not see the
domain's rewards, 8 steps of 8 tasks: KL 0.178 to 0.011, 19 of 50 tasks instead of 8.
"""

from ml_collections import ConfigDict

from ptjax.core.config import to_config_dict
from ptjax.experience.collect import PolicyConfig
from ptjax.experience.packing import PackConfig
from ptjax.rollout.engine import EngineConfig
from ptjax.train.distill import DistillExperiment
from ptjax.train.experiment import ModelConfig
from ptjax.train.on_policy import RolloutConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.supervised import FitConfig


def get_config() -> ConfigDict:
  return to_config_dict(
    DistillExperiment(
      name="distill_smollm2",
      teacher=ModelConfig(),
      rollout=RolloutConfig(
        group_size=2,
        policy=PolicyConfig(max_new_tokens=40),
        engine=EngineConfig(num_slots=32, max_length=128, decode_chunk=8, adaptive=True),
      ),
      pack=PackConfig(length=384, actions=256, rows=2),
      fit=FitConfig(num_steps=20, batch_size=16),
      optimizer=OptimizerConfig(learning_rate=1e-5, warmup_steps=2),
    )
  )
