"""What ``make mutate`` breaks in what a release is made of."""

RELEASE: list[tuple[str, str, *tuple[tuple[str, str, str], ...]]] = [  # a file, its tests, and mutants: (old, new, test)
    (
        "commands/completion.py",
        "test_completion.py",
        (" and name not in taken]", "]", "test_tab_offers"),
        ('return f"{head}{colon}" if tail.isupper() else name', 'return f"{head}{colon}"', "test_tab_offers"),
        ("return among(*each.words) if each.words else None", "return None", "test_tab_offers"),
        (' + names("method")', "", "test_names_read_from_the_source_are_those_of_the_table"),
    ),
]  # fmt: skip
