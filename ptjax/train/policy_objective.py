"""Configuration of the policy's loss; senseless combinations are refused with the reason."""

import dataclasses
from typing import Literal

KLEstimator = Literal["k1", "k2", "k3"]
CorrectionKind = Literal[
  "none", "tis_token", "seq_tis", "icepop", "seq_mask_geo", "seq_mask_token_range"
]

# What each loss reads, and the settings of each correction where they are not given.
CLIPS = {
  "ppo": {"clip_low", "clip_high", "dual_clip"},
  "gspo": {"clip_low", "clip_high"},
  "gspo_token": {"clip_low", "clip_high"},
  "cispo": {"clip_high"},
  "dppo_tv": {"clip_low", "clip_high"},
  "reinforce": set(),
}
CORRECTION_DEFAULTS: dict[str, dict[str, float]] = {
  "none": {},
  "tis_token": {"cap": 2.0},
  "seq_tis": {"cap": 2.0},
  "icepop": {"low": 0.5, "high": 5.0},
  "seq_mask_geo": {"low": 0.99, "high": 1.01},
  "seq_mask_token_range": {"low": 0.5, "high": 2.0},
}


@dataclasses.dataclass(frozen=True)
class CorrectionConfig:
  """Weights for the gap between sampler and trainer, see `algos.correction`.

  Attributes:
    kind: none, tis_token, seq_tis (truncated importance weights of a token, a sequence), icepop (0
      outside a band), seq_mask_geo, seq_mask_token_range (whole sequences dropped).
    cap: largest weight of the two tis; None for 2.
    low, high: band of icepop (None for 0.5 and 5), of the geometric mean of a sequence (0.99 and
      1.01), of every token of a sequence (0.5 and 2).
  """

  kind: CorrectionKind = "none"
  cap: float | None = None
  low: float | None = None
  high: float | None = None

  def __post_init__(self):
    reads = CORRECTION_DEFAULTS[self.kind]
    given = {k: v for k in ("cap", "low", "high") if (v := getattr(self, k)) is not None}
    for name, value in given.items():
      if name not in reads:
        raise ValueError(
          f"correction.{name} {value}: {self.kind!r} does not read it; it has "
          f"{', '.join(reads) or 'no settings'}"
        )
    settings = self.settings
    if "cap" in settings and not settings["cap"] > 0:
      raise ValueError(f"correction.cap {settings['cap']} must be > 0")
    if "low" in settings and not 0 <= settings["low"] <= 1 <= settings["high"]:
      raise ValueError(
        f"correction.low {settings['low']} and high {settings['high']}: the band must hold 1, "
        f"where sampler and trainer agree"
      )

  @property
  def settings(self) -> dict[str, float]:
    """What the function of `algos.correction` takes."""
    defaults = CORRECTION_DEFAULTS[self.kind]
    given = {name: getattr(self, name) for name in defaults}
    return {k: defaults[k] if v is None else v for k, v in given.items()}


@dataclasses.dataclass(frozen=True)
class PolicyObjective:
  """What the policy minimises.

  Attributes:
    loss: ppo (clipped surrogate), gspo (ratio of the sequence), gspo_token (the same with an
      advantage for each token), cispo, dppo_tv or reinforce.
    clip_low: the ratio is clipped at 1 - clip_low; in dppo_tv a token's probability may fall by it.
    clip_high: and at 1 + clip_high, in dppo_tv it may rise by it; DAPO's clip-higher sets it above
      clip_low.
    dual_clip: bound c on the loss of unlikely bad tokens; None for none.
    kl_coef: weight of the KL to the reference.
    kl_place: in the loss, or in the reward.
    kl_estimator: None takes the one whose gradient is that of KL(policy || reference): k2 in the
      loss, k1 in the reward. k3 in the loss has the gradient of the reverse KL; see `algos.kl`.
    entropy_coef: weight of the entropy bonus; with `rl.entropy` the first one.
    positive_weight, negative_weight: factor of the loss where the advantage is > 0, < 0.
    negative_drift: sequences of negative advantage from which the policy has drifted further than
      this, in nats a token, are masked; None masks none.
    correction: for the gap between sampler and trainer.
    old_policy: the ratio is to the trainer's own log-probs, or to those that the sampler reported.
    logit_chunk: action slots of a row whose logits exist at a time.
  """

  loss: Literal["ppo", "gspo", "gspo_token", "cispo", "dppo_tv", "reinforce"] = "ppo"
  clip_low: float = 0.2
  clip_high: float = 0.2
  dual_clip: float | None = None
  kl_coef: float = 0.0
  kl_place: Literal["loss", "reward"] = "loss"
  kl_estimator: KLEstimator | None = None
  entropy_coef: float = 0.0
  positive_weight: float = 1.0
  negative_weight: float = 1.0
  negative_drift: float | None = None
  correction: CorrectionConfig = CorrectionConfig()
  old_policy: Literal["trainer", "sampler"] = "trainer"
  logit_chunk: int = 256

  def __post_init__(self):
    _check_clips(self)
    _check_kl(self)
    _check_corrected_once(self)
    if not self.entropy_coef >= 0:
      raise ValueError(f"entropy_coef {self.entropy_coef} must be >= 0")
    for name in ("positive_weight", "negative_weight"):
      if not 0 <= getattr(self, name) < float("inf"):
        raise ValueError(f"{name} {getattr(self, name)} must be >= 0 and finite")
    if self.positive_weight == self.negative_weight == 0:
      raise ValueError("positive_weight and negative_weight are both 0: nothing would be learned")
    if self.negative_drift is not None and not self.negative_drift > 0:
      raise ValueError(f"negative_drift {self.negative_drift} must be > 0, or None")
    if self.logit_chunk < 1:
      raise ValueError(f"logit_chunk {self.logit_chunk} must be >= 1")

  @property
  def kl_in_loss(self) -> bool:
    return self.kl_coef > 0 and self.kl_place == "loss"

  @property
  def kl_in_reward(self) -> bool:
    return self.kl_coef > 0 and self.kl_place == "reward"

  @property
  def estimator(self) -> KLEstimator:
    """The KL estimator, the right one where none is named."""
    return self.kl_estimator or ("k2" if self.kl_place == "loss" else "k1")

  @property
  def corrects(self) -> bool:
    """Whether the gap between sampler and trainer is in the loss, as a weight or a ratio."""
    return self.correction.kind != "none" or self.old_policy == "sampler"

  @property
  def by_sequence(self) -> bool:
    """Whether a sequence must have one advantage: its ratio is one number."""
    return self.loss == "gspo"


def _check_clips(o: PolicyObjective) -> None:
  if not 0 < o.clip_low < 1 or not o.clip_high > 0:
    raise ValueError(f"clip_low {o.clip_low} must be in (0, 1) and clip_high {o.clip_high} > 0")
  if o.loss == "dppo_tv" and not o.clip_high < 1:
    raise ValueError(f"clip_high {o.clip_high}: dppo_tv bounds a probability, so it must be < 1")
  if o.dual_clip is not None and not o.dual_clip > 1:
    raise ValueError(f"dual_clip {o.dual_clip} must be > 1, or None")
  if o.dual_clip is not None and o.loss != "ppo":
    raise ValueError(f"dual_clip belongs to the ppo loss, not to {o.loss!r}; set it to None")
  if o.dual_clip is not None and o.dual_clip <= 1 + o.clip_high:
    raise ValueError(
      f"dual_clip {o.dual_clip} must exceed 1 + clip_high {1 + o.clip_high}: under it the bound "
      f"for bad tokens would be tighter than that for good ones"
    )
  for field in dataclasses.fields(PolicyObjective):
    if field.name.startswith("clip_") and field.name not in CLIPS[o.loss]:
      value = getattr(o, field.name)
      if value != field.default:
        raise ValueError(
          f"{field.name} {value}: the loss {o.loss!r} does not read it; leave it out"
        )


def _check_kl(o: PolicyObjective) -> None:
  if not o.kl_coef >= 0:
    raise ValueError(f"kl_coef {o.kl_coef} must be >= 0")
  if o.kl_place == "loss" and o.kl_estimator == "k1":
    raise ValueError(
      "kl_estimator 'k1' in the loss has a gradient of 0 in expectation, so it would only add "
      "noise; use 'k2', or kl_place='reward'"
    )
  if o.kl_place == "reward" and o.kl_coef == 0:
    raise ValueError("kl_place 'reward' with kl_coef 0 does nothing; set kl_coef > 0")


def _check_corrected_once(o: PolicyObjective) -> None:
  if o.old_policy == "sampler" and o.correction.kind != "none":
    raise ValueError(
      f"correction {o.correction.kind!r} with old_policy 'sampler': the ratio to the sampler holds "
      f"the gap already, which would be corrected twice; set old_policy to 'trainer'"
    )
  if o.old_policy == "sampler" and o.loss == "reinforce":
    raise ValueError(
      "old_policy 'sampler' with loss 'reinforce', which has no ratio: it would correct nothing; "
      "use a correction instead"
    )
