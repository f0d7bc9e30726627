import sys

from hypothesis import example, given, settings
from hypothesis import strategies as st

from substrate.domain.plainyaml import Plain, load
from substrate.domain.yamlwriter import dump, quoted

_WRITABLE = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), st.sampled_from("a: #-\n\t'\"[],"))
)
_PLAIN: st.SearchStrategy[Plain] = st.recursive(
    _WRITABLE,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_WRITABLE, inner, max_size=4)),
    max_leaves=12,
)


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(_WRITABLE, _PLAIN, max_size=4))
@example({"k" * 2000: {"l" * 2000: ["m", ["n", {"o": "p\nq"}]]}})
@example({"a": "b\n  c\n\nd\n", "e": ["f\ng", {}, [], ""]})
def test_what_is_written_reads_back_in_the_same_order(data: dict[str, Plain]) -> None:
    again = load(dump(data), max_bytes=sys.maxsize).data
    assert again == data
    assert list(again) == list(data)


@given(_WRITABLE)
def test_a_quoted_text_is_one_line_that_reads_back(text: str) -> None:
    assert "\n" not in quoted(text)
    assert load(f"a: {quoted(text)}").data == {"a": text}


def test_data_is_written_as_a_person_would() -> None:
    data: dict[str, Plain] = {
        "version": "1.10",
        "note": "two: parts",
        "story": "one\n\ntwo",
        "tags": ["a", "b, c"],
        "people": [{"name": "x", "age": "1"}, ["y", ["z"]]],
    }
    assert dump(data) == (
        'version: 1.10\nnote: "two: parts"\nstory: |-\n  one\n\n  two\ntags: [a, "b, c"]\n'
        "people:\n  - name: x\n    age: 1\n  - - y\n    - [z]\n"
    )


def test_a_colon_before_an_indicator_is_quoted_inside_brackets() -> None:
    assert load(dump({"a": ["0:?", "0:,", "b:c"]})).data == {"a": ["0:?", "0:,", "b:c"]}
