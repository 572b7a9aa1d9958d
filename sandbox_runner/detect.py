"""Which backends work on this machine, and which one a pool takes."""

import logging
import shutil
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING

from sandbox_runner.backends.base import Backend, BackendStatus
from sandbox_runner.backends.bwrap import INSTALL, BwrapBackend, bwrap_status, can_map_range
from sandbox_runner.backends.docker import DockerBackend, docker_status
from sandbox_runner.images.host import ensure_host_image
from sandbox_runner.images.store import docker_name, tree_for_bwrap
from sandbox_runner.types import NoBackendError

if TYPE_CHECKING:
  from sandbox_runner.pool import PoolConfig

log = logging.getLogger("sandbox_runner")
Journal = Callable[[str, list[str]], None]


def detect_backends() -> list[BackendStatus]:
  """The state of each backend here, in the order in which "auto" prefers them."""
  return [docker_status(), _bwrap_status()]


def choose_backend(config: "PoolConfig", journal: Journal) -> Backend:
  """The backend that `config` names. "auto" takes docker, and bwrap if docker has no use here.

  Raises NoBackendError with one line that says how to get one.
  """
  makers = {"docker": open_docker, "bwrap": open_bwrap}
  if config.backend != "auto":
    return makers[config.backend](config, journal)
  try:
    return open_docker(config, journal)
  except NoBackendError as e:
    log.info("bwrap is taken, for docker is not usable: %s", e)
  return open_bwrap(config, journal)


def open_docker(config: "PoolConfig", journal: Journal) -> Backend:
  """Makes an image of the host's own Python if `config` names none."""
  name, get_it = docker_name(config.image)
  status = docker_status(name, get_it)
  if not status.available:
    instead = "" if status.fix == get_it else f", or {INSTALL}"
    raise NoBackendError(f"no docker: {status.detail}; fix: {status.fix}{instead}")
  try:
    image = name or ensure_host_image(shutil.which("docker") or "docker")
    return DockerBackend(image, config.runtime, config.preload, journal)
  except (OSError, ValueError) as e:
    raise NoBackendError(f"docker answers, but has no usable image or runtime: {e}") from e


def open_bwrap(config: "PoolConfig", journal: Journal) -> Backend:
  status = _bwrap_status()
  if not status.available:
    raise NoBackendError(f"no sandbox backend: {status.detail}; fix: {status.fix or INSTALL}")
  try:
    tree = tree_for_bwrap(config.image, can_map_range())
  except ValueError as e:
    raise NoBackendError(str(e)) from e
  return BwrapBackend(tree, config.preload, journal)


def _bwrap_status() -> BackendStatus:
  try:
    return bwrap_status()
  except subprocess.TimeoutExpired as e:
    return BackendStatus("bwrap", False, f"{e.cmd[0]} did not answer within {e.timeout:g} s")
