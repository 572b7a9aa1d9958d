"""ptjax: post-training of language models in JAX, from a laptop to a TPU pod."""
