"""Reference and rollout weights in 8 bits: small, measured, corrected, and refused uncorrected."""

import dataclasses

import jax
import numpy as np
import pytest
from train_toys import session_on, toy_domain, toy_experiment

from ptjax.core.metrics import summarize
from ptjax.data.tokenizer import byte_tokenizer
from ptjax.domains.catalog import DOMAINS
from ptjax.experience.mixture import DomainConfig, Mixture
from ptjax.models import decoder
from ptjax.models.config import DecoderConfig
from ptjax.models.lora import LoraConfig
from ptjax.models.matrices import densify
from ptjax.models.quantize import quantize_blocks
from ptjax.rollout.engine import Engine, EngineConfig, Request, generate
from ptjax.rollout.sampling import SamplingConfig
from ptjax.rollout.weights import decode_config, engine_weights
from ptjax.train.experiment import ModelConfig, RLConfig
from ptjax.train.objectives import CorrectionConfig, PolicyObjective
from ptjax.train.rl import RLState, train

MODEL = DecoderConfig(
  vocab_size=260, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=48
)
ENGINE = EngineConfig(num_slots=8, max_length=64, decode_chunk=4)
TIS = PolicyObjective(correction=CorrectionConfig(kind="tis_token"))


def num_bytes(tree) -> int:
  return sum(x.nbytes for x in jax.tree.leaves(tree))


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_the_engine_decodes_with_the_quantised_weights(kind):
  """Prompts of one token: all is decoded, nothing prefilled."""
  params = decoder.init_params(MODEL, jax.random.key(0))
  requests = [
    Request(i, np.asarray([i], np.int32), 12, SamplingConfig(temperature=0.0)) for i in range(4)
  ]
  quantized = Engine(dataclasses.replace(ENGINE, weights=kind), MODEL, byte_tokenizer())
  quantized.set_weights(params, 0)
  plain = Engine(ENGINE, MODEL, byte_tokenizer())
  plain.set_weights(densify(quantize_blocks(params, kind)), 0)
  got, want = generate(quantized, requests), generate(plain, requests)
  for i in got:
    np.testing.assert_array_equal(got[i].tokens, want[i].tokens)
  small, large = (
    engine_weights(params, decode_config(MODEL, on_cpu=True), k).layers for k in (kind, None)
  )
  assert num_bytes(small) < 0.35 * num_bytes(large)


@pytest.fixture(scope="module")
def run(tiny_source, tmp_path_factory):
  """(session, records, state) of two steps with both roles in int8."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(DOMAINS, "toy", toy_domain)
    rl = RLConfig(
      num_steps=2, prompts_per_step=4, group_size=4, objective=TIS, reference=True,
      reference_weights="int8", contract_tolerance=0.5,
    )  # fmt: skip
    e = toy_experiment(
      tiny_source,
      domains=(DomainConfig("toy"),),
      rl=rl,
      engine=EngineConfig(num_slots=16, max_length=64, decode_chunk=4, weights="int8"),
    )
    with session_on(1, e, tmp_path_factory.mktemp("run")) as session:
      records = []
      state = RLState(0, session.init_policy(), None, Mixture(e.domains))
      end = train(session, state, lambda state, metrics, _: records.append(summarize(metrics)))
      yield session, records, end


def test_the_gap_is_measured_and_corrected(run):
  _, records, _ = run
  assert 1e-4 < records[0]["mismatch/max_gap"] < 0.5
  assert any(r.get("mismatch/kl", 0) > 1e-7 for r in records)
  weights = [r["correction/weight_mean"] for r in records if "correction/weight_mean" in r]
  assert weights
  assert all(w != 1.0 and abs(w - 1) < 0.1 for w in weights)


def test_the_reference_is_small_and_near_the_start(run):
  session, records, state = run
  assert 0 < abs(records[0]["policy/kl"]) < 0.01
  want = num_bytes(state.policy.params["layers"])
  assert num_bytes(session.reference["layers"]) < 0.3 * want
  # The policy took the starting weights over: no third copy is left.
  assert all(x.is_deleted() for x in jax.tree.leaves(session.start))


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"engine": dataclasses.replace(ENGINE, weights="int8")}, "nothing corrects for it"),
    (
      {
        "model": ModelConfig(lora=LoraConfig()),
        "rl": RLConfig(reference=True, reference_weights="fp8"),
      },
      "set model.lora.base instead",
    ),
  ],
)
def test_refusals(changes, message, tiny_source):
  with pytest.raises(ValueError, match=message):
    toy_experiment(tiny_source, **changes)
  with pytest.raises(ValueError, match="without a reference"):
    RLConfig(reference_weights="int8")
