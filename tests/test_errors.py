from puma.errors import unknown_name


def test_nearest_names_are_offered() -> None:
    message = str(unknown_name("norm", "linff", ["linf", "l2"]))
    assert message == "unknown norm 'linff'; did you mean 'linf'? known: linf, l2."
