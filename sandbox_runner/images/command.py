"""python -m sandbox_runner images: builds them, lists what is built, and removes old ones."""

import argparse
import shutil
from typing import Any

from sandbox_runner.backends.docker import docker_status
from sandbox_runner.images.build import BuildError, build_tree, remove_old_tree, run_step
from sandbox_runner.images.description import describe, image_names
from sandbox_runner.images.store import find_other_trees, find_tree, trees_in_use
from sandbox_runner.images.to_docker import build_from_base, has_image, import_tree, other_tags

BUILD_HELP = "build images, those that are not built yet; exit status 2 if one cannot be built"
LIST_HELP = "say which images there are, and where they are built"
PRUNE_HELP = "remove what was built from older descriptions, but for what is in use"


def add_images(verbs: Any) -> None:
  images = verbs.add_parser("images", help="build, list and prune the images of sandboxes")
  actions = images.add_subparsers(dest="action", required=True, metavar="ACTION")
  build = actions.add_parser("build", help=BUILD_HELP, description=BUILD_HELP)
  build.add_argument(
    "names", nargs="*", metavar="NAME", help=f"of {', '.join(image_names())} [all of them]"
  )
  build.add_argument(
    "--backend",
    default="auto",
    choices=("auto", "bwrap", "docker"),
    help="for which; auto: for all that work here [auto]",
  )
  build.add_argument("--mirror", default="", help="of Debian [the one that apt here uses]")
  build.add_argument(
    "--base", default="", metavar="IMAGE", help="let docker build on this image of a registry"
  )
  build.add_argument("--force", action="store_true", help="also build what is built already")
  actions.add_parser("list", help=LIST_HELP, description=LIST_HELP)
  actions.add_parser("prune", help=PRUNE_HELP, description=PRUNE_HELP)


def run_images(arguments: argparse.Namespace) -> int:
  actions = {"build": run_build, "list": run_list, "prune": run_prune}
  return actions[arguments.action](arguments)


def run_build(arguments: argparse.Namespace) -> int:
  images = [describe(name) for name in arguments.names or image_names()]
  docker = find_docker(arguments.backend)
  if arguments.base and not docker:
    raise ValueError(f"--base {arguments.base} needs docker, with --backend docker or auto")
  for image in images:
    if arguments.base:
      if arguments.force or not has_image(docker, image):
        build_from_base(image, arguments.base, docker)
    else:
      tree, built = build_tree(image, arguments.mirror, arguments.force)
      print(f"{image.name}: tree {tree}", flush=True)
      if docker and (built or not has_image(docker, image)):
        import_tree(image, tree, docker)
    if docker:
      print(f"{image.name}: docker image {image.tag}", flush=True)
  return 0


def find_docker(backend: str) -> str:
  """The docker command; "" if it is not wanted. Raises BuildError if it is and does not work."""
  status = docker_status()
  if backend == "docker" and not status.available:
    raise BuildError(f"no docker: {status.detail}; fix: {status.fix}")
  found = shutil.which("docker") if backend != "bwrap" and status.available else None
  return found or ""


def run_list(_: argparse.Namespace) -> int:
  docker = find_docker("auto")
  for image in map(describe, image_names()):
    print(f"{image.name}: {image.about}")
    print(f"  tree: {find_tree(image) or 'not built'}")
    built = docker and has_image(docker, image)
    print(f"  docker: {image.tag if built else 'not built' if docker else 'no daemon answers'}")
    for old in (*find_other_trees(image), *(other_tags(docker, image) if docker else ())):
      print(f"  of an older description, which `images prune` removes: {old}")
  return 0


def run_prune(_: argparse.Namespace) -> int:
  """Status 1 if something could not be removed; the rest is."""
  docker, used, status = find_docker("auto"), trees_in_use(), 0
  for image in map(describe, image_names()):
    for path in find_other_trees(image):
      if path.name in used:
        print(f"{path}: in use, left")
        continue
      try:
        remove_old_tree(path)
        print(f"{path}: removed")
      except OSError as e:
        print(f"{path}: not removed: {e.strerror or e}")
        status = 1
    for tag in other_tags(docker, image) if docker else ():
      try:
        run_step(f"docker's removal of {tag}", [docker, "rmi", tag])
        print(f"{tag}: removed")
      except BuildError as e:  # docker refuses what a container has
        print(f"{tag}: not removed: {e}")
        status = 1
  return status
