"""Transcripts are append-only and line up; the single-turn environment asks once."""

import asyncio

import numpy as np
import pytest

from ptjax.core.types import FinishReason
from ptjax.data.chat_template import ChatTemplate
from ptjax.data.tokenizer import byte_tokenizer
from ptjax.envs import environment, single_turn
from ptjax.envs.tool_formats import FENCED


def generation(tokens, text="ok", versions=None):
  n = len(tokens)
  return environment.Generation(
    tokens=np.array(tokens, np.int32),
    logprobs=np.full(n, -0.5, np.float32),
    policy_versions=np.full(n, 3, np.int32) if versions is None else np.array(versions),
    text=text,
    finish_reason=FinishReason.STOP,
  )


class EchoPolicy:
  """Encodes a message as its length and answers with the number of context tokens."""

  template = ChatTemplate(byte_tokenizer())
  tool_format = FENCED

  def room(self, length):
    return 9

  def encode(self, messages):
    return np.array([len(message["content"]) for message in messages], np.int32)

  async def generate(self, context, *, max_new_tokens=None, keep=False):
    assert max_new_tokens is None  # the policy's own limit
    assert not keep
    assert context.dtype == np.int32
    return generation([len(context), 7], text="answer")


def test_single_turn_episode():
  messages = ({"role": "system", "content": "ab"}, {"role": "user", "content": "abc"})
  task = environment.Task("toy", 0, "train", messages, {})
  episode = asyncio.run(single_turn.play(task, EchoPolicy(), environment.Services()))
  np.testing.assert_array_equal(episode.tokens, [2, 3, 2, 7])
  np.testing.assert_array_equal(episode.action_mask, [False, False, True, True])
  np.testing.assert_array_equal(episode.behavior_logprobs, np.float32([0, 0, -0.5, -0.5]))
  np.testing.assert_array_equal(episode.policy_versions, [-1, -1, 3, 3])
  assert episode.turn_starts == (0, 2)
  assert episode.response == "answer"
  dtypes = (episode.tokens, episode.behavior_logprobs, episode.policy_versions)
  assert [array.dtype for array in dtypes] == [np.int32, np.float32, np.int32]


def test_transcript_of_two_actions():
  transcript = environment.Transcript()
  transcript.observe(np.array([1, 2]))
  transcript.act(generation([3], "first"))
  transcript.observe(np.array([4, 5, 6]))
  transcript.act(generation([7, 8], "second", versions=[4, 5]))
  episode = transcript.episode()
  np.testing.assert_array_equal(episode.tokens, [1, 2, 3, 4, 5, 6, 7, 8])
  np.testing.assert_array_equal(episode.policy_versions, [-1, -1, 3, -1, -1, -1, 4, 5])
  assert episode.turn_starts == (0, 2, 3, 6)
  assert episode.responses == ("first", "second")


def test_refuses_ragged_generation_and_no_action():
  transcript = environment.Transcript()
  with pytest.raises(ValueError, match="2 tokens, 2 log-probs and 1 policy versions"):
    transcript.act(generation([1, 2], versions=[0]))
  with pytest.raises(ValueError, match="at least one action"):
    transcript.episode()
