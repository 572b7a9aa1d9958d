"""What a run was made of, in `manifest.json`: model, tokenizer, domains and their licences."""

import pathlib

from ptjax.data.provenance import PERMISSIVE, check_license, write_manifest
from ptjax.experience.mixture import DomainConfig
from ptjax.rewards.judge import weights_hash
from ptjax.train.session import Session


def write_run_manifest(session: Session, workdir: pathlib.Path) -> None:
  """Writes the sections "model" and "domains" of the workdir's manifest.

  Raises:
    ValueError: a domain's licence is undeclared, no SPDX expression, or not permissive.
  """
  domains = [
    {
      "domain": domain.name,
      "license": check_license(domain.name, domain.license, PERMISSIVE),
      "origin": domain.source,
    }
    | _judge(config)
    for domain, config in zip(session.domains.values(), session.experiment.domains, strict=True)
  ]
  model = {
    "source": session.experiment.model.source,
    "weights_sha256": session.model_hash,
    "tokenizer_sha256": session.template.tokenizer.content_hash,
  }
  write_manifest(workdir, "domains", domains)
  write_manifest(workdir, "model", model)


def _judge(config: DomainConfig) -> dict[str, str]:
  """Which reward model has a share in a domain's rewards."""
  if config.judge is None:
    return {}
  return {"judge": config.judge.workdir, "judge_sha256": weights_hash(config.judge)}
