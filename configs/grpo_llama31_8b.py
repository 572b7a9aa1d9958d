"""GRPO on Llama-3.1-8B with 8k tokens of context: 4k of prompt, 4k of answer.

  python -m ptjax.launch plan --config configs/grpo_llama31_8b.py --topology v5p:4x4x4

Hardware: 64 chips of v5p. Never run there: `plan` says that it fits, and what a step takes at
least. To train, set model.source to the directory of the weights.
"""

from ml_collections import ConfigDict

from ptjax.core.config import to_config_dict
from ptjax.experience.collect import PolicyConfig
from ptjax.experience.mixture import DomainConfig
from ptjax.experience.packing import PackConfig
from ptjax.rollout.engine import EngineConfig
from ptjax.sharding.mesh import MeshConfig
from ptjax.train.experiment import Experiment, ModelConfig, RLConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.policy_objective import PolicyObjective


def get_config() -> ConfigDict:
  return to_config_dict(
    Experiment(
      name="grpo_llama31_8b",
      domains=(DomainConfig("code"), DomainConfig("arithmetic")),
      model=ModelConfig(
        source="Llama-3.1-8B",
        matmul_dtype="bfloat16",
        activation_dtype="bfloat16",
        remat="full",
      ),
      mesh=MeshConfig(fsdp=-1),
      policy=PolicyConfig(max_new_tokens=4096),
      engine=EngineConfig(num_slots=256, max_length=8192),
      pack=PackConfig(length=8192, actions=4096, rows=64),
      rl=RLConfig(
        num_steps=200,
        prompts_per_step=64,
        group_size=16,
        objective=PolicyObjective(kl_coef=1e-3),
        reference=True,
      ),
      optimizer=OptimizerConfig(learning_rate=1e-6, warmup_steps=10),
    )
  )
