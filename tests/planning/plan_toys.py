"""A tiny experiment and its plan, compiled once for all tests."""

import dataclasses
import functools

from ptjax.experience.collect import PolicyConfig
from ptjax.experience.packing import PackConfig
from ptjax.models.config import DecoderConfig
from ptjax.planning.plan import Plan, make_plan
from ptjax.planning.topology import parse_topology
from ptjax.rollout.engine import EngineConfig
from ptjax.train.experiment import CriticConfig, Experiment, ModelConfig, RLConfig

SHAPE = DecoderConfig(
  vocab_size=512, d_model=512, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=128, d_ff=512
)
TOPOLOGY = "v5e:2x2"


def toy(**changes) -> Experiment:
  """PPO, so that there is a critic; rows of 128 tokens."""
  base = Experiment(
    name="toy",
    model=ModelConfig("toy", matmul_dtype="bfloat16", activation_dtype="bfloat16", remat="full"),
    policy=PolicyConfig(max_new_tokens=64),
    engine=EngineConfig(num_slots=8, max_length=128, decode_chunk=4),
    pack=PackConfig(length=128, actions=64, rows=4),
    rl=RLConfig(advantages="gae", prompts_per_step=4, group_size=4),
    critic=CriticConfig(num_layers=1),
  )
  return dataclasses.replace(base, **changes)


@functools.cache
def toy_plan() -> Plan:
  return make_plan(toy(), SHAPE, parse_topology(TOPOLOGY))
