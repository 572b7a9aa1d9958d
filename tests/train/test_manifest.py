"""A run says what it is made of, and refuses a domain whose licence it does not know."""

import dataclasses
import json

import pytest

from ptjax.experience.packing import PackConfig
from ptjax.rollout.engine import EngineConfig
from ptjax.train.experiment import Experiment, ModelConfig
from ptjax.train.manifest import write_run_manifest
from ptjax.train.session import open_session


def test_manifest_of_a_run(tiny_source, tmp_path):
  engine = EngineConfig(num_slots=1, max_length=64)
  model, pack = ModelConfig(source=str(tiny_source)), PackConfig(rows=8)  # a row a device
  experiment = Experiment(model=model, engine=engine, pack=pack)
  with open_session(experiment, tmp_path) as session:
    write_run_manifest(session, tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (domain,) = manifest["domains"]
    assert (domain["domain"], domain["license"]) == ("arithmetic", "Apache-2.0")
    assert domain["origin"]
    assert manifest["model"] == {
      "source": str(tiny_source),
      "weights_sha256": session.model_hash,
      "tokenizer_sha256": session.template.tokenizer.content_hash,
    }
    for license, message in (("", "declares no license"), ("CC-BY-NC-4.0", "does not allow")):
      changed = dataclasses.replace(session.domains["arithmetic"], license=license)
      with pytest.raises(ValueError, match=f"'arithmetic' .*{message}"):
        write_run_manifest(dataclasses.replace(session, domains={"arithmetic": changed}), tmp_path)
