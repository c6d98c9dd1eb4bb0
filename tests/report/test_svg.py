import json

from puma.report.svg import Markup, embed_json, format_short, join_markup, list_decades, make_tag, round_ticks

EVIL = "</script><!--<script>alert(1)</script>\"'&\u2028"


def test_text_is_escaped_unless_it_is_markup() -> None:
    assert make_tag("p", "<b>", Markup("<i>")) == "<p>&lt;b&gt;<i></p>"
    assert make_tag("a", title='"><x', hidden=True, href=None) == '<a title="&quot;&gt;&lt;x" hidden></a>'
    assert make_tag("line", x1=1.25, stroke_width=2, class_="c") == '<line x1="1.25" stroke-width="2" class="c"></line>'
    assert isinstance(join_markup("a"), Markup)


def test_signs_that_turn_text_around_are_left_out() -> None:
    evil = "a\u202eb\u2066c\x00d\x1be\u200ff\ufeff"
    assert make_tag("p", evil, title=evil) == '<p title="abcdef">abcdef</p>'
    assert join_markup("क्\u200dष\n\t") == "क्\u200dष\n\t"  # a joiner belongs to its word
    assert join_markup("\ud83d") == "\\ud83d"


def test_json_in_a_script_cannot_end_it() -> None:
    text = embed_json({EVIL: [EVIL, None, 1.5]})
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == {EVIL: [EVIL, None, 1.5]}


def test_ticks_are_round_and_inside() -> None:
    assert round_ticks(0, 1) == [0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]
    assert round_ticks(-0.31, 0.2) == [-0.30000000000000004, -0.2, -0.1, 0.0, 0.1, 0.2]
    assert round_ticks(3, 3) == [3]
    assert list_decades(0.7, 2000) == [1, 10, 100, 1000]
    assert [format_short(value) for value in (0.1 + 0.2, 12_000, 2_500_000)] == ["0.3", "12k", "2.5M"]
