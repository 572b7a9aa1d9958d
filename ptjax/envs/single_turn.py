"""One question, one answer: the environment of every domain without tools."""

from ptjax.envs import environment


async def play(
  task: environment.Task, policy: environment.Policy, services: environment.Services
) -> environment.Episode:
  """Renders the task, awaits one generation and ends; `services` is not used."""
  del services
  transcript = environment.Transcript()
  transcript.observe(policy.encode(task.messages))
  transcript.act(await policy.generate(transcript.tokens))
  return transcript.episode()
