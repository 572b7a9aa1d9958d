"""What is read from compiled programs, against programs whose collectives are known."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ptjax.sharding.collectives import Total, collectives, totals
from ptjax.sharding.hlo import computations, leaves, num_bytes, tuple_parts
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.replica_groups import groups_of

LAYERS, ROWS, WIDTH = 5, 8, 16


@pytest.fixture(scope="module")
def mesh():
  return make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))


def compiled_totals(mesh, body, x, spec, out_spec):
  """Totals of a `shard_map` of `body` over an f32 array of that shape."""
  mapped = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=out_spec, check_vma=False)
  like = jax.ShapeDtypeStruct(x, jnp.float32, sharding=NamedSharding(mesh, spec))
  return totals(collectives(jax.jit(mapped).lower(like).compile().as_text(), mesh))


@pytest.mark.parametrize("axes", [("tensor",), ("fsdp",), ("data", "tensor"), ("fsdp", "tensor")])
def test_axes_of_a_sum(mesh, axes):
  found = compiled_totals(mesh, lambda x: jax.lax.psum(x, axes), (ROWS, WIDTH), P(), P())
  size, n = ROWS * WIDTH * 4, 2 ** len(axes)
  assert found == {("all-reduce", axes): Total(1, size, 2 * size * (n - 1) // n)}


def test_kinds(mesh):
  def body(x):
    x = jax.lax.all_gather(x, "tensor", axis=1, tiled=True)  # [4, 16] from [4, 8]
    x = jax.lax.all_to_all(x, "fsdp", split_axis=1, concat_axis=0, tiled=True)  # [8, 8]
    return jax.lax.ppermute(x, "data", [(0, 1), (1, 0)])

  found = compiled_totals(mesh, body, (ROWS, WIDTH), P("fsdp", "tensor"), P(None, "fsdp"))
  assert found == {
    ("all-gather", ("tensor",)): Total(1, 4 * 16 * 4, 4 * 8 * 4),
    ("all-to-all", ("fsdp",)): Total(1, 8 * 8 * 4, 4 * 8 * 4),
    ("collective-permute", ("data",)): Total(1, 8 * 8 * 4, 8 * 8 * 4),
  }


def test_loops_count_each_pass(mesh):
  def body(x):
    inner = lambda x, _: (jnp.sin(jax.lax.psum(x, "fsdp")), None)  # noqa: E731
    outer = lambda x, _: (jax.lax.scan(inner, x, length=3)[0] + 1, None)  # noqa: E731
    return jax.lax.scan(outer, x, length=LAYERS)[0]

  found = compiled_totals(mesh, body, (ROWS, WIDTH), P(), P())
  size = ROWS * WIDTH * 4
  assert found == {("all-reduce", ("fsdp",)): Total(3 * LAYERS, 3 * LAYERS * size, 15 * size)}


def test_loops_of_unknown_length(mesh):
  def body(x):
    more = lambda x: jnp.sum(x) < 1e6  # noqa: E731
    return jax.lax.while_loop(more, lambda x: jax.lax.psum(x, "fsdp") + 1, x)

  like = jax.ShapeDtypeStruct((ROWS,), jnp.float32, sharding=NamedSharding(mesh, P()))
  mapped = jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
  text = jax.jit(mapped).lower(like).compile().as_text()
  with pytest.raises(ValueError, match=r"does not say how often the loop .* runs"):
    collectives(text, mesh)
  (one,) = collectives(text, mesh, unknown_trips=7)
  assert (one.kind, one.axes, one.times) == ("all-reduce", ("fsdp",), 7)


def test_source_of_a_collective(mesh):
  sharding = functools.partial(NamedSharding, mesh)
  like = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32, sharding=sharding(P("fsdp")))

  @functools.partial(jax.jit, out_shardings=sharding(P()))
  def program(x):
    with jax.named_scope("over_rows"):
      return jnp.sum(x, axis=0)

  (one,) = collectives(program.lower(like).compile().as_text(), mesh)
  assert (one.kind, one.shapes) == ("all-reduce", (("f32", (WIDTH,)),))
  assert "over_rows" in one.source


@pytest.mark.parametrize(
  ("text", "groups"),
  [
    ("replica_groups={{0,2},{1,3}}, x", [[0, 2], [1, 3]]),
    ("replica_groups={}, x", [[0, 1, 2, 3]]),
    ("replica_groups=[2,2]<=[4], x", [[0, 1], [2, 3]]),
    ("replica_groups=[2,2]<=[2,2]T(1,0), x", [[0, 2], [1, 3]]),
    ("replica_groups=mesh['a'=2,'b'=2] {'a'}, x", [[0, 2], [1, 3]]),
    ("replica_groups=mesh['a'=2,'b'=2] {'b'}, x", [[0, 1], [2, 3]]),
    ("replica_groups=mesh['a'=4] {'a':(1)2}, x", [[0, 2], [1, 3]]),
    ("replica_groups=mesh['a'=4] {'a':(2)2}, x", [[0, 1], [2, 3]]),
    ("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}, x", [[0, 2], [1, 3]]),
    ("replica_groups=mesh['a'=2,'b'=2], device_ids=(3,1,2,0) {'b'}, x", [[3, 1], [2, 0]]),
    ("source_target_pairs={{0,1},{1,0}}, x", [[0, 1], [1, 0]]),
  ],
)
def test_forms_of_groups(text, groups):
  found, is_permute = groups_of(text, 4)
  np.testing.assert_array_equal(found, groups)
  assert is_permute == text.startswith("source")


def test_an_unknown_form_is_refused():
  with pytest.raises(ValueError, match="no known form of replica groups in 'replica_groups=new"):
    groups_of("replica_groups=new{0..3}", 4)


# As TPUs write them: a reduce-scatter as a fusion, and operations that start and end apart.
TPU = """HloModule step

%add (a: bf16[], b: bf16[]) -> bf16[] {
  %a = bf16[] parameter(0)
  ROOT %add.1 = bf16[] add(%a, %b)
}

%all-reduce-scatter.1 (p: bf16[8,4]) -> bf16[2,4] {
  %p = bf16[8,4]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %r = bf16[8,4]{1,0:T(8,128)(2,1)} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %d = bf16[2,4]{1,0:T(8,128)(2,1)} dynamic-slice(%r, %i, %z), dynamic_slice_sizes={2,4}
}

%scatter (q: f32[8]) -> f32[4] {
  %q = f32[8]{0} parameter(0)
  ROOT %s = f32[4]{0} reduce-scatter(%q), replica_groups=[4,2]<=[8], to_apply=%add
}

ENTRY %main (x: bf16[8,4]) -> bf16[2,4] {
  %x = bf16[8,4]{1,0} parameter(0)
  %f = bf16[2,4]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1
  %g = (bf16[2,4]{1,0}, bf16[4,4]{1,0}) all-gather-start(%f), replica_groups=[4,2]<=[8]
  %h = bf16[4,4]{1,0} all-gather-done(%g)
  %j = ((f32[8]{0}), f32[4]{0}, u32[]) async-start(%k), calls=%scatter
  %l = f32[4]{0} async-done(%j), calls=%scatter
}
"""


def test_programs_of_a_tpu(mesh):
  assert totals(collectives(TPU, mesh)) == {
    ("reduce-scatter", ("fsdp", "tensor")): Total(1, 16, 48),
    ("all-gather", ("tensor",)): Total(1, 32, 16),
    ("reduce-scatter", ("tensor",)): Total(1, 16, 16),
  }


def test_types():
  result = "((f32[8,2]{1,0:T(8,128)}, s4[3]{0}), (pred[5], token[]), bf16[])"
  assert len(tuple_parts(result)) == 3
  arrays = tuple(leaves(result))
  assert arrays == (("f32", (8, 2)), ("s4", (3,)), ("pred", (5,)), ("token", ()), ("bf16", ()))
  assert num_bytes(arrays) == 64 + 2 + 5 + 0 + 2
  assert num_bytes((("f8e4m3fn", (3,)),)) == 3


def test_what_an_instruction_makes_and_takes():
  (_, (p, r, _), _, (_, f, g, h, j, _)) = computations(TPU).values()
  assert (p.hbm_bytes, r.hbm_bytes) == (0, 64)  # S(1) is memory on the chip
  assert (f.operands, g.operands, h.operands) == (("x",), ("f",), ("g",))
  assert (g.made, j.made) == ("bf16[4,4]{1,0}", "f32[4]{0}")
  copy = (
    "ENTRY %m (a: f32[4]) -> f32[4] {\n  %c = (f32[4]{0}, f32[4]{0:S(1)}, u32[]) copy-start(%a)"
  )
  ((started,),) = computations(copy).values()
  assert (started.made, started.hbm_bytes) == ("f32[4]{0}", 16)


def test_text_without_a_program():
  with pytest.raises(ValueError, match="no computation in the text"):
    computations("jit(f)")
