"""Gives images to docker: from a built tree, or by the Dockerfile from the base of a registry."""

import subprocess
import tempfile
from pathlib import Path

from sandbox_runner.images.build import BuildError, add_recipe, run_step
from sandbox_runner.images.description import Description

CHANGES = ("ENV LANG=C.UTF-8", "WORKDIR /work", 'CMD ["bash"]')


def has_image(docker: str, image: Description) -> bool:
  command = [docker, "image", "inspect", image.tag]
  return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def other_tags(docker: str, image: Description) -> list[str]:
  """Tags of this image that were built from an older description."""
  repository = image.tag.partition(":")[0]
  command = [docker, "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", repository]
  tags = run_step("docker image ls", command).split()
  return sorted(tag for tag in tags if tag != image.tag)


def import_tree(image: Description, tree: Path, docker: str) -> None:
  """The image gets its tag when all of the tree is in it. Raises BuildError."""
  what = f"docker's import of image {image.name}"
  pack = ["tar", "-C", str(tree), "--numeric-owner", "-c", "."]
  changes = [word for change in CHANGES for word in ("--change", change)]
  with subprocess.Popen(pack, stdout=subprocess.PIPE) as packing:
    command = [docker, "import", *changes, "-"]
    identity = run_step(what, command, stdin=packing.stdout).strip().splitlines()[-1]
  if packing.returncode:
    run_step(what, [docker, "rmi", identity])
    raise BuildError(f"{what}: tar could not read all of {tree}")
  run_step(what, [docker, "tag", identity, image.tag])


def build_from_base(image: Description, base: str, docker: str) -> None:
  """By the Dockerfile; pip's part is done outside, where pip knows its index. Raises BuildError."""
  with tempfile.TemporaryDirectory(prefix="sandbox_runner-") as name:
    add_recipe(image, Path(name))
    arguments = [f"BASE={base}", f"IMAGE={image.name}"]
    options = [word for argument in arguments for word in ("--build-arg", argument)]
    command = [docker, "build", "--network", "host", "--tag", image.tag, *options, name]
    run_step(f"docker's build of image {image.name}", command)
