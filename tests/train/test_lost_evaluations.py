"""An evaluation between steps that loses an episode to the machinery."""

import dataclasses

import numpy as np
import pytest
from train_toys import toy_domain, toy_experiment

from ptjax.core.types import FinishReason, Outcome
from ptjax.domains.domain import Grade
from ptjax.envs.environment import Ending, Episode
from ptjax.experience.collect import EpisodeSpec, Played
from ptjax.train.hack_watch import check_lost
from ptjax.train.rl import InfrastructureError


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_lost_evaluation_ends_a_deterministic_run(tiny_source, deterministic):
  spec = EpisodeSpec(toy_domain().make_task(0, "heldout"), 0, 0)
  nothing = np.zeros(0, np.int32)
  episode = Episode(
    nothing, nothing > 0, nothing, nothing, (0,), (), FinishReason.CANCELLED, ending=Ending.LOST
  )
  played = [Played(spec, episode, Grade(Outcome.INFRA_FAILED, {}, detail="its sandbox was lost"))]
  e = toy_experiment(tiny_source)
  e = dataclasses.replace(e, rl=dataclasses.replace(e.rl, deterministic=deterministic))
  if not deterministic:
    check_lost(e, 3, played)
    return
  with pytest.raises(InfrastructureError, match="step 3: an evaluated episode of domain toy"):
    check_lost(e, 3, played)
