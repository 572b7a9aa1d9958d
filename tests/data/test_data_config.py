"""From a configuration to examples: checks come first, the manifest names every source."""

import dataclasses
import hashlib
import json

import pytest
from stock_templates import stock

from ptjax.core.config import to_json
from ptjax.data.config import DataConfig, SourceConfig, encoder, open_data
from ptjax.data.conversations import Encode, TurnsApart, conversation_of
from ptjax.data.decontamination import DecontaminationConfig
from ptjax.data.packing import RowConfig
from ptjax.data.pipeline import Host

ALONE = Host(0, 1)
CHAT = stock("qwen2_5")


def chat(question: str, *answers: str) -> dict:
  messages = [{"role": "user", "content": question}]
  for answer in answers:
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "more"}]
  return {"messages": messages[:-1]}


def write(path, records) -> SourceConfig:
  path.write_text("".join(json.dumps(r) + "\n" for r in records))
  digest = hashlib.sha256(path.read_bytes()).hexdigest()
  return SourceConfig(path.stem, (str(path),), "mit", "written for this test", (digest,))


@pytest.fixture
def config(tmp_path):
  a = write(tmp_path / "a.jsonl", [chat(f"question {i}", f"answer {i}") for i in range(6)])
  b = write(tmp_path / "b.jsonl", [{"inputs": "2+2", "targets": "4"}, chat("x", "y", "z")])
  return DataConfig((a, b), epochs=1)


def texts(data, config, count=100) -> list[str]:
  stream = data.stream(encoder(config, CHAT), ALONE)
  return [CHAT.tokenizer.decode(e.tokens[e.action_mask]) for e in stream.take(count)]


def test_examples_and_manifest(config, tmp_path):
  data = open_data(config, tmp_path, seed=1)
  answers = [f"answer {i}<|im_end|>" for i in range(6)]
  assert sorted(texts(data, config)) == sorted([*answers, "4<|im_end|>", "y<|im_end|>z<|im_end|>"])
  manifest = json.loads((tmp_path / "manifest.json").read_text())["data"]
  assert [(m["source"], m["license"], m["examples"]) for m in manifest] == [
    ("a", "MIT", 6),
    ("b", "MIT", 2),
  ]
  assert manifest[0]["origin"] == "written for this test"
  assert manifest[0]["files"] == {config.sources[0].files[0]: config.sources[0].sha256[0]}
  assert "a.jsonl" in to_json(config)


def test_turns_apart(config, tmp_path):
  apart = dataclasses.replace(config, turns="apart")
  found = texts(open_data(apart, tmp_path, seed=1), apart)
  assert sorted(t for t in found if "answer" not in t) == [
    "4<|im_end|>",
    "y<|im_end|>",
    "z<|im_end|>",
  ]
  turns = TurnsApart([chat("x", "y", "z"), chat("u", "v")])
  assert [len(turns[i]["messages"]) for i in range(3)] == [2, 4, 2]
  with pytest.raises(IndexError, match="turn 3 of 3"):
    turns[3]


def test_the_fingerprint_is_of_all_that_decides_the_order(config, tmp_path):
  def fingerprint(**changes):
    seed = changes.pop("seed", 1)
    return open_data(dataclasses.replace(config, **changes), tmp_path, seed).fingerprint

  same = fingerprint()
  assert same == fingerprint()
  other = write(tmp_path / "b.jsonl", [chat("x", "another")])
  weighted = tuple(dataclasses.replace(s, weight=1.0) for s in (config.sources[0], other))
  changed = [
    fingerprint(sources=(config.sources[0], other)),
    fingerprint(sources=weighted),
    fingerprint(sources=config.sources[:1]),
    fingerprint(sources=config.sources[:1], seed=2),
    fingerprint(sources=config.sources[:1], epochs=None),
    fingerprint(sources=config.sources[:1], shuffle=False),
    fingerprint(sources=config.sources[:1], max_length=5),
  ]
  assert len({same, *changed}) == 8


def test_evaluation_items_are_kept_out(config, tmp_path):
  evaluation = write(tmp_path / "e.jsonl", [{"q": "What is ANSWER 3?"}, {"q": "question, 4"}])
  clean = dataclasses.replace(
    config, decontaminate=DecontaminationConfig(evaluation.files, n=2, min_words=2)
  )
  found = texts(open_data(clean, tmp_path, seed=1), clean)
  assert {t for t in found if "answer" in t} == {f"answer {i}<|im_end|>" for i in (0, 1, 2, 5)}
  report = json.loads((tmp_path / "decontamination.json").read_text())
  assert [(d["record"], d["item"]) for d in report["sources"]["a"]["dropped"]] == [(3, 0), (4, 1)]
  examples = json.loads((tmp_path / "manifest.json").read_text())["data"][0]["examples"]
  assert examples == 4
  before = open_data(clean, tmp_path, seed=1).fingerprint
  write(tmp_path / "e.jsonl", [{"q": "answer 1"}, {"q": "answer 2"}])  # drops as many, but others
  assert open_data(clean, tmp_path, seed=1).fingerprint != before


def test_rows_and_dropped_lengths(config, tmp_path):
  data = open_data(config, tmp_path, seed=1)
  rows = data.row_stream(encoder(config, CHAT), RowConfig(length=400, window=2), ALONE)
  assert sum(int(r.segment_ids_T.max()) for r in rows.take(100)) == 8
  longest = max(len(e.tokens) for e in data.stream(encoder(config, CHAT), ALONE).take(8))
  short = dataclasses.replace(config, max_length=longest - 1)
  stream = data.stream(encoder(short, CHAT), ALONE)
  kept = stream.take(8)
  assert (len(kept), stream.dropped) == (7, 1)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"license": ""}, "source 'a' declares no license"),
    ({"license": "CC-BY-NC-4.0"}, r"under CC-BY-NC-4\.0, which this run does not allow"),
    ({"origin": ""}, "source 'a' declares no origin"),
    ({"sha256": ()}, "declares 0 sha256 for 1 files"),
    ({"sha256": ("0" * 64,)}, "another version, or damaged"),
    ({"files": ("nowhere.jsonl",)}, r"nowhere\.jsonl is no file"),
  ],
)
def test_refused_before_anything_is_read(config, tmp_path, changes, message):
  source = dataclasses.replace(config.sources[0], **changes)
  with pytest.raises(ValueError, match=message):
    open_data(dataclasses.replace(config, sources=(source,)), tmp_path, seed=1)
  assert not (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize(
  ("record", "message"),
  [
    ({"text": "x"}, "needs messages"),
    ({"messages": []}, "needs messages"),
    ({"messages": [{"content": "x"}]}, "needs a role"),
    ({"inputs": [1], "targets": [2]}, "must be texts"),
  ],
)
def test_bad_records(record, message):
  with pytest.raises(ValueError, match=message):
    conversation_of(record)


def test_errors_show_the_conversation():
  with pytest.raises(ValueError, match=r"no assistant text .*conversation: .*hello"):
    Encode(CHAT)({"messages": [{"role": "user", "content": "hello"}]})


def test_token_ids_are_trained_as_they_are():
  example = Encode(CHAT)({"inputs": [1, 2], "targets": [3]})
  assert example.tokens.tolist() == [1, 2, 3]
  assert example.action_mask.tolist() == [False, False, True]
  assert Encode(CHAT)({"targets": [3, 4]}).action_mask.tolist() == [False, True]
  for targets in ([], [10**6], [-1], [0.5]):
    with pytest.raises(ValueError, match="token ids below 259"):
      Encode(CHAT)({"targets": targets})


def test_null_fields_are_absent():
  call = {"role": "assistant", "content": None, "tool_calls": [1], "name": None}
  messages, tools = conversation_of({"messages": [call], "tools": None})
  assert messages == [{"role": "assistant", "content": None, "tool_calls": [1]}]
  assert tools is None
