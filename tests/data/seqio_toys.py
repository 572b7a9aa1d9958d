"""Registers a task of texts, a task of token ids, and a mixture; imported by name."""

import functools

import seqio
import tensorflow as tf

QUESTIONS = [f"{a}+{b}" for a in range(4) for b in range(3)]


def _dataset(split, shuffle_files, seed=None, *, ids):
  del split, shuffle_files, seed
  if ids:
    rows = [[i, i + 1] for i in range(5)]
    return tf.data.Dataset.from_tensor_slices({"inputs": rows, "targets": [[65, 66]] * 5})
  answers = [str(eval(question)) for question in QUESTIONS]
  return tf.data.Dataset.from_tensor_slices({"inputs": QUESTIONS, "targets": answers})


def _register(name, dtype, rank, *, ids):
  feature = seqio.Feature(
    seqio.PassThroughVocabulary(size=259), add_eos=False, dtype=dtype, rank=rank
  )
  seqio.TaskRegistry.add(
    name,
    source=seqio.FunctionDataSource(functools.partial(_dataset, ids=ids), splits=["train"]),
    preprocessors=[],
    output_features={"inputs": feature, "targets": feature},
  )


_register("toy_texts", tf.string, 0, ids=False)
_register("toy_ids", tf.int32, 1, ids=True)
seqio.MixtureRegistry.add("toy_ids_mixture", [("toy_ids", 1.0), ("toy_texts", 3.0)])
