"""The comparisons that the configurations of `prefer` and `reward` are tried on."""

from configs.data.arithmetic_pairs import comparisons, main
from ptjax.data.annotated_pairs import read_pairs
from ptjax.domains.arithmetic import extract_answer


def test_the_right_sum_is_preferred(tmp_path, capsys):
  main(str(tmp_path / "pairs.jsonl"))
  assert capsys.readouterr().out.startswith("400 comparisons")
  pairs = read_pairs(tmp_path / "pairs.jsonl")
  assert len(pairs) == 400
  for pair in pairs:
    terms, right = pair.chosen.split(" = ")
    first, sign, second = terms.split()
    assert terms in pair.messages[0]["content"]
    assert int(right) == int(first) + int(sign + second)
    assert 1 <= abs(int(extract_answer(pair.rejected)) - int(right)) <= 9


def test_the_comparisons_are_always_the_same():
  assert list(comparisons(3)) == list(comparisons(3))
