"""`make test` runs a quarter of the cases of tests that have many, an eighth of slow ones: others after each commit."""

from ..rotation import MANY, SLOW, chosen

NAMES = [f"test_a[{i}]" for i in range(100)] + [f"test_b[{i}]" for i in range(MANY)] + ["test_c"]


def of(function, names):
    return sum(name.startswith(function) for name in names)


def test_a_share_of_many_cases_and_all_of_few():
    found = chosen(NAMES, 4, "one")
    assert (of("test_a", found), of("test_b", found), of("test_c", found)) == (25, MANY, 1)
    assert of("test_a", chosen(NAMES, 20, "one")) == MANY
    assert chosen(NAMES, 1, "one") == set(NAMES)


def test_of_slow_tests_fewer_cases_are_run():
    slow = frozenset({"test_b[3]"})  # the mark of one case is enough
    found = chosen(NAMES, 4, "one", slow=slow)
    assert (of("test_a", found), of("test_b", found), of("test_c", found)) == (25, SLOW, 1)
    assert of("test_a", chosen(NAMES, 4, "one", slow=frozenset({"test_a[7]"}))) == 13
    assert set().union(*(chosen(NAMES, 4, str(i), slow=slow) for i in range(40))) == set(NAMES)
    assert chosen(NAMES, 1, "one", slow=slow) == set(NAMES)


def test_other_cases_for_another_text_and_the_same_for_the_same():
    assert chosen(NAMES, 4, "one") == chosen(NAMES[::-1], 4, "one") != chosen(NAMES, 4, "two")


def test_each_case_has_its_turn():
    assert set().union(*(chosen(NAMES, 4, str(i)) for i in range(40))) == set(NAMES)


def test_one_case_of_each():
    assert len(chosen(NAMES, len(NAMES), "one", least=1)) == 3
