"""check_invariants knows definitions from citations, and finds what has none or two."""

import pytest
from check_invariants import Codes, load_exceptions, problems, scan


def codes(**files: str) -> Codes:
    named = {"header": "src/a/a.h", "readme": "src/a/README.md", "test": "src/a/a_test.cc", "script": "tests/a.py"}
    return scan([(named[key], text) for key, text in files.items()], [])


HEADER = "// Pages.\n//   PX1  Whole, or not there (K9).\n//        Or torn.\n//   PX2  Sorted.\n"


def test_a_rule_is_defined_in_a_header_or_in_a_list_of_markdown() -> None:
    found = codes(header=HEADER, readme="- **PX3** Bounded.\n- **PX4 (K9)** Small.\n- **K9** Durable first.\n")
    assert sorted(found.definitions) == ["K9", "PX1", "PX2", "PX3", "PX4"]
    assert not problems(found)


def test_a_citation_without_a_definition_is_named_with_its_place() -> None:
    found = codes(header=HEADER, readme="- **K9** Durable first.\n", test="int x = 1;\nuse(x);  // PX7, as PX2 says\n")
    assert problems(found) == ["src/a/a_test.cc:2: PX7 is defined nowhere"]


def test_a_second_definition_is_found_and_a_repetition_without_bold_letters_is_none() -> None:
    again = codes(header="//   PX1  Whole.\n", readme="- **PX1** Whole.\n")
    assert problems(again) == ["src/a/README.md:1: PX1 is defined at src/a/a.h:1 already"]
    assert not problems(codes(header="//   PX1  Whole.\n", readme="- PX1 Whole. **PX1-PX1**, too.\n"))


@pytest.mark.parametrize("text", ["LG1-LG13", "LG1 to LG13", "LG1\u2013LG13", "LG1, LG13", "LG1/LG13"])
def test_both_ends_of_a_range_are_citations(text: str) -> None:
    assert sorted(codes(test=f"// See {text}.\n").citations) == ["LG1", "LG13"]


def test_messages_of_tests_and_comments_of_python_cite_too() -> None:
    found = codes(test='  EXPECT_LE(a, b) << "S1";\n', script='# T1 says so\nx = "T2"\n"""T3"""\n')
    assert sorted(found.citations) == ["S1", "T1", "T3"]


def test_code_words_and_numbers_are_no_citations() -> None:
    text = 'f(L1, "U2");  // UTF8MB4, K8s, 1.5E3, L1(x), crc32C4, %S1, A1.5\n```\nQ1\n```\n'
    assert not codes(test=text).citations
    assert not codes(readme="```\nSELECT Q1\n```\n").citations


def test_what_is_no_code_has_a_reason() -> None:
    exceptions = load_exceptions('[[no_code]]\ntext = "Q[1-9]"\nfiles = "^bench/"\nwhy = "queries"\n')
    assert not scan([("bench/README.md", "Q3 is slow\n")], exceptions).citations
    assert scan([("docs/README.md", "Q3 is slow\n")], exceptions).citations
    with pytest.raises(ValueError, match="no reason"):
        load_exceptions('[[no_code]]\ntext = "Q1"\n')
